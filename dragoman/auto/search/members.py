"""Which runs of a search make an ensemble, by their scores together on the validation inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from dragoman.auto.search.state import shown_score
from dragoman.auto.trial import score_of
from dragoman.inference import ignore_unknown, load_predictor
from dragoman.runs import Run
from dragoman.scoring import score_table
from dragoman.training import Seq2SeqValidator, resolve_device

Score = Callable[[Sequence[Path]], float]  # of runs as an ensemble; higher is better


def ensemble_score(first: Path, metric: str) -> Score:
    """How to score runs together. `first` is one of them.

    Scores are measured now, on the inputs that validation decodes and as it decodes them: the weights of a run may be a
    mean over several validations, of which none has their score.
    """
    run = Run(first)
    device = resolve_device(run.config.train.device)
    validator = run.task.validator(run.config, run.task.prepare(run.config), device)
    assert isinstance(validator, Seq2SeqValidator), "only models that write token by token are averaged"

    def score(folders: Sequence[Path]) -> float:
        predictor = load_predictor(folders, str(device), split_long=False)
        predictions = predictor.stream(validator.texts, beam=1, scores=False, on_unknown=ignore_unknown)
        outputs = [prediction.text for prediction in predictions]
        return score_of(score_table(outputs, validator.references, (metric,), units=validator.units), metric)

    return score


def helpful_members(members: Sequence[Path], score: Score, metric: str, most: int) -> tuple[list[Path], str]:
    """At most so many members that help, the best one first, and a note with the scores of all.

    Each member is added if the score with it is better than without.
    """
    alone = [score([member]) for member in members]
    order = sorted(range(len(members)), key=lambda index: -alone[index])
    kept, best = [members[order[0]]], alone[order[0]]
    for index in order[1:]:
        if len(kept) < most and (together := score([*kept, members[index]])) > best:
            kept, best = [*kept, members[index]], together
    shown = ", ".join(f"{members[index].name} {shown_score(alone[index], metric)}" for index in order)
    if len(kept) == 1:
        return kept, f"no ensemble is better than {kept[0].name} alone ({metric}: {shown})"
    left_out = ", ".join(member.name for member in members if member not in kept)
    note = f"ensemble of {len(kept)} models: {metric} {shown_score(best, metric)}; alone: {shown}"
    return kept, f"{note}; without {left_out}, which did not help" if left_out else note
