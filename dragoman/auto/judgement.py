"""Whether the new version of a run is better than the old one: on corrections held out, and on general text.

Scores of outputs do not show what a few corrections can do: a word that they repeat enters sentences that have nothing
to do with it, and chrF hardly falls. So the loss of the references and the words of the outputs judge as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dragoman.data import Example, words_and_signs
from dragoman.inference import Predictor, StreamOptions, ignore_unknown, load_predictor
from dragoman.runs import Run
from dragoman.scoring import (
    OverusedWord,
    References,
    SystemScore,
    TextMetric,
    bootstrap,
    compare,
    compare_losses,
    metrics_by_name,
    metrics_for,
    overused_words,
)

SIGNIFICANT = 0.05
LOSS = 1.0  # points of the metric: a version with a lower score is not kept unless a larger loss is ruled out
NATS = 0.02  # for each token: a version whose loss has surely risen by more is not kept; that of some good ones rises
SHOWN = 10  # changed outputs
QUIET = StreamOptions(
    on_warning=lambda line: None, on_unknown=ignore_unknown, on_refused=lambda number, error: None
)  # predictions of the same texts told all that there is to tell


class ChangedOutput(NamedTuple):
    """A general text whose output is another one now."""

    source: str
    reference: str
    before: str
    after: str


@dataclass(frozen=True)
class Judgement:
    """The old and the new version on the same texts, by metrics, of which the first decides, by loss and by words."""

    segments: int
    scores: dict[str, tuple[float, float, float]]  # before, after, p-value; the last one is the loss, if there is one
    better: bool
    significant: bool
    ruled_out: float  # points: with a confidence of 95 % the new version loses less than this by the first metric
    rise: float  # nats: with a confidence of 95 % the loss of each token has risen by this or more
    overused: list[OverusedWord]
    changed: list[ChangedOutput]  # some of them, those with overused words first

    @property
    def worse(self) -> bool:
        before, after, _ = next(iter(self.scores.values()))
        return not self.better and before != after

    @property
    def bound(self) -> str:
        """What the texts can say about a loss."""
        name = metrics_by_name()[next(iter(self.scores))].label
        return f"a loss of {self.ruled_out:.1f} points of {name} or more is ruled out (95 %)"

    @property
    def harm(self) -> str:
        """What forbids a version that makes this of general text; empty if nothing does."""
        found = []
        if self.significant and self.worse:
            found.append("it is significantly worse on general text")
        if self.rise > NATS:
            before, after, _ = self.scores["loss"]
            found.append(f"its loss on general text rises from {before:.3f} to {after:.3f}")
        if self.overused:
            words = ", ".join(map(str, self.overused[:5])) + (", …" if len(self.overused) > 5 else "")
            found.append(f"it overuses {words} on general text")
        if not found and self.worse and self.ruled_out >= LOSS:
            found.append(f"general text leaves room for a loss of {self.ruled_out:.1f} points")
        return "; ".join(found)

    def __str__(self) -> str:
        metrics = metrics_by_name()
        return ", ".join(
            f"{name} {metrics[name].format(before)} → {metrics[name].format(after)} (p = {p:.3f})"
            for name, (before, after, p) in self.scores.items()
        )

    def as_dict(self) -> dict[str, Any]:
        scores = {name: dict(zip(("before", "after", "p"), three, strict=True)) for name, three in self.scores.items()}
        return {"segments": self.segments, "ruled_out": self.ruled_out, **scores}

    def findings(self) -> dict[str, Any]:
        """The words and outputs for JSON."""
        return {
            "overused": [asdict(word) for word in self.overused],
            "changed": [output._asdict() for output in self.changed],
        }


def judge_versions(
    run: Run, adapted: Path, texts: Mapping[str, Sequence[Example]], device: str
) -> dict[str, Judgement]:
    """Compare both versions on texts of several kinds by the metric of the run."""
    systems = {
        name: load_predictor(folder, device, split_long=False)
        for name, folder in (("before", run.folder), ("after", adapted))
    }
    return {name: _judge(run, systems, examples) for name, examples in texts.items()}


def _judge(run: Run, systems: Mapping[str, Predictor], texts: Sequence[Example]) -> Judgement:
    units = run.config.data.units
    known = metrics_for(units)
    first = run.config.train.metric if run.config.train.metric in known else "chrf"
    names = tuple(dict.fromkeys((first, *(name for name in ("bleu", "chrf") if first in ("bleu", "chrf")))))
    inputs, references = [text.model_input for text in texts], [list(text.references) for text in texts]
    outputs = {name: [output.text for output in system.predict(inputs)] for name, system in systems.items()}
    compared = compare(outputs, references, names, units=units)
    before, after = ({score.metric: score for score in compared if score.system == name} for name in systems)

    def versus(score: SystemScore) -> tuple[float, float, float]:
        assert score.versus is not None, "the second system is compared with the first"
        return before[score.metric].score, score.score, score.versus.bootstrap

    scores = {name: versus(after[name]) for name in names}
    verdict = after[first].versus
    assert verdict is not None
    rise, risen = -math.inf, [0.0] * len(texts)
    if all(system.likelihood != "none" for system in systems.values()):
        forced = [system.score(texts, stream=QUIET) for system in systems.values()]
        old, new = (np.array([score.log_probability for score in scored]) for scored in forced)
        known_to_both = np.isfinite(old) & np.isfinite(new)
        if known_to_both.any():
            sizes = np.array([len(score.token_scores) for score in forced[0]], dtype=np.float64)
            *loss, rise = compare_losses(-old[known_to_both], -new[known_to_both], sizes[known_to_both])
            scores["loss"] = (loss[0], loss[1], loss[2])
            risen = np.where(known_to_both, old - new, 0.0).tolist()
    old_words, new_words = ([words_and_signs(text) for text in outputs[name]] for name in ("before", "after"))
    right = [[words_and_signs(text) for text in several] for several in references]
    overused = overused_words(old_words, new_words, right, SIGNIFICANT)
    shown = changed_outputs(
        texts, outputs, lambda text: {item.word for item in overused} & {*words_and_signs(text)}, risen
    )
    return Judgement(
        len(texts), scores, verdict.better, verdict.bootstrap < SIGNIFICANT,
        largest_loss(known[first], outputs, references), rise, overused, shown,
    )  # fmt: skip


def changed_outputs(
    texts: Sequence[Example],
    outputs: Mapping[str, Sequence[str]],
    overused_in: Callable[[str], set[str]],
    risen: Sequence[float],
) -> list[ChangedOutput]:
    """Outputs that changed: first those that got an overused word, then those whose references lost most."""
    changed = [
        (
            not overused_in(after) - overused_in(before),
            -rise,
            text.line,
            ChangedOutput(text.source, text.references[0], before, after),
        )
        for text, before, after, rise in zip(texts, outputs["before"], outputs["after"], risen, strict=True)
        if before != after
    ]
    return [shown for *_, shown in sorted(changed)[:SHOWN]]


def largest_loss(metric: TextMetric, systems: Mapping[str, Sequence[str]], references: References) -> float:
    """The upper bound of the loss from the first system to the second, in points, one-sided at 95 %; at least 0."""
    first, second = (bootstrap(metric, metric.statistics(outputs, references)) for outputs in systems.values())
    losses = (first - second) if metric.higher_is_better else (second - first)
    return max(0.0, metric.scale * float(np.quantile(losses, 0.95)))
