"""Which runs of a search make an ensemble: as many as were asked for, of as many kinds as there are."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from dragoman.auto.search.state import shown_score
from dragoman.auto.trial import score_of
from dragoman.inference import ignore_unknown, learned_weights, load_predictor, reference_votes
from dragoman.runs import Run
from dragoman.scoring import References, Units, compare, score_table
from dragoman.training import Seq2SeqValidator, resolve_device

WORSE = 0.05  # p-value below which an ensemble counts as worse than its best member
T = TypeVar("T")


class Outputs(NamedTuple):
    """What one or several runs make of the validation inputs."""

    texts: list[str]
    score: float  # higher is better
    seconds: float
    size: str  # of the model, in words


class Judge(NamedTuple):
    """The validation inputs of a search, which every run of it decodes as a user would."""

    inputs: Sequence[str]
    references: References
    units: Units
    metric: str
    device: str

    @classmethod
    def of(cls, first: Path, metric: str) -> Judge:
        """`first` is one of the runs that are compared."""
        run = Run(first)
        device = resolve_device(run.config.train.device)
        validator = run.task.validator(run.config, run.task.prepare(run.config), device)
        assert isinstance(validator, Seq2SeqValidator), "a search compares outputs of models that write"
        return cls(validator.texts, validator.references, validator.units, metric, str(device))

    def outputs(self, folders: Sequence[Path], weights: Sequence[float] = ()) -> Outputs:
        predictor = load_predictor(folders, self.device, split_long=False, weights=tuple(weights))
        size, started = predictor.size, time.perf_counter()  # the model is open by then
        predictions = predictor.stream(self.inputs, on_unknown=ignore_unknown)
        texts = [prediction.text for prediction in predictions]
        seconds = time.perf_counter() - started
        table = score_table(texts, self.references, (self.metric,), units=self.units)
        return Outputs(texts, score_of(table, self.metric), seconds, size)

    def weights(self, folders: Sequence[Path]) -> tuple[float, ...]:
        """Of members that vote; none where tokens are averaged, which all members do alike."""
        predictor = load_predictor(folders, self.device, split_long=False)
        votes = reference_votes(predictor, self.inputs, self.references)
        return () if votes is None else learned_weights(votes)

    def is_worse(self, together: Outputs, alone: Outputs) -> bool:
        """Whether a paired test finds the first worse than the second."""
        systems = {"alone": alone.texts, "together": together.texts}
        versus = compare(systems, self.references, self.metric, units=self.units)[-1].versus
        return versus is not None and not versus.better and versus.bootstrap < WORSE


class Chosen(NamedTuple):
    """The members of an ensemble, best first, the weights of their votes, and what to say."""

    members: list[Path]
    weights: tuple[float, ...]
    lines: list[str]
    note: str


def choose_members(folders: Sequence[Path], judge: Judge, family: Callable[[Path], str], most: int) -> Chosen:
    """At most so many members, best first, and fewer only while these together are worse than the best one alone."""
    alone = {folder: judge.outputs([folder]) for folder in folders}
    order = sorted(folders, key=lambda folder: -alone[folder].score)
    members = sorted(diverse(order, family, most), key=order.index)
    best, lines = members[0], []
    while len(members) > 1:
        weights = judge.weights(members)
        together = judge.outputs(members, weights)
        lines.append(f"ensemble of {len(members)} models: {described(together, judge)}")
        if not judge.is_worse(together, alone[best]):
            break
        lines[-1] += f"; worse than {best.name} alone, so {members[-1].name} is left out"
        members.pop()
    else:
        weights, together = (), alone[best]
    shares = dict(zip(members, weights, strict=False))
    for folder in order:
        weight = f", weight {shares[folder]:.2f}" if folder in shares else ""
        lines.append(f"  {folder.name}: {described(alone[folder], judge)}{weight}")
    shown = ", ".join(f"{folder.name} {shown_score(alone[folder].score, judge.metric)}" for folder in order)
    if len(members) == 1:
        note = f"every ensemble is worse than {best.name} alone ({judge.metric}: {shown})"
        return Chosen(members, (), lines, note)
    score = shown_score(together.score, judge.metric)
    note = f"ensemble of {len(members)} models: {judge.metric} {score}; alone: {shown}"
    return Chosen(members, weights, lines, note)


def described(outputs: Outputs, judge: Judge) -> str:
    """The score, and what it costs to predict with."""
    took = 1000 * outputs.seconds / max(1, len(judge.inputs))
    return f"{judge.metric} {shown_score(outputs.score, judge.metric)}, {outputs.size}, {took:.1f} ms an input"


def diverse(order: Iterable[T], family: Callable[[T], str], most: int) -> list[T]:
    """The first of each family, then the others in their order, so many in all."""
    firsts: dict[str, T] = {}
    others = []
    for one in order:
        if family(one) in firsts:
            others.append(one)
        else:
            firsts[family(one)] = one
    return [*firsts.values(), *others][:most]
