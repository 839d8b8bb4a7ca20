"""Ensembles of any runs: their outputs are candidates, and each member votes with its probabilities of all of them.

Models that share their vocabularies are averaged token by token (`decoding.Ensemble`). Here are those that cannot be:
runs with other tokenizers, and models that search on their own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from dragoman.base import ConfigError, RunError
from dragoman.decoding import DEFAULT_AVERAGE, Average, DecodingOptions
from dragoman.decoding.constraints import ConstrainedInput
from dragoman.inference.prediction import Prediction
from dragoman.inference.target_scores import QUIET, score_pairs
from dragoman.inference.training_data import DIRECTION_MARGIN, similarity, training_texts
from dragoman.models import Decodes, Likelihood, ModelTraits

if TYPE_CHECKING:
    from torch import Tensor

CHUNK = 256  # inputs that are voted on together
RULED_OUT = -50.0  # the log-probability of a candidate that a member finds impossible, for means of logarithms
PSEUDO_INPUTS = 100  # validation inputs that speak for equal weights
ROUNDS = 20  # of EM
Votes = list[float]  # the log-probability of each candidate, normalised over all of them


def check_members(first: Any, others: Sequence[Any]) -> None:
    """Raise an error for members that read other inputs than the first one, or translate the other way."""
    for other in others:
        for what, mine, theirs in (
            ("inputs", *("files" if run.reads_files else "texts" for run in (first, other))),
            ("tags", *(", ".join(run.tags) or "none" for run in (first, other))),
            ("sentences of context", *(str(run.context) for run in (first, other))),
        ):
            if mine != theirs:
                raise RunError(
                    f"{other.run.folder}: found {what}: {theirs}, expected {mine} as in {first.run.folder}: the "
                    "members of an ensemble read the same inputs"
                )
        data, others_data = first.config.data, other.config.data
        if first.reads_files or (data.train, data.columns) == (others_data.train, others_data.columns):
            continue
        texts, others_texts = training_texts(first.run), training_texts(other.run)
        if texts is None or others_texts is None:
            continue
        same = similarity(texts.sources, others_texts.sources) + similarity(texts.targets, others_texts.targets)
        swapped = similarity(texts.sources, others_texts.targets) + similarity(texts.targets, others_texts.sources)
        if same + DIRECTION_MARGIN < swapped:
            raise RunError(
                f"{other.run.folder}: found a run from the targets to the sources of {first.run.folder}, expected one "
                "of the same direction; a reverse run goes with rerank.runs"
            )


@dataclass(frozen=True)
class Committee(ModelTraits):
    """Predictors of single runs that choose each output together."""

    members: tuple[Any, ...]
    weights: tuple[float, ...]  # of their votes; their sum is 1
    average: Average = DEFAULT_AVERAGE

    likelihood: ClassVar[Likelihood] = "none"  # it compares candidates, but has no probability of any text
    decodes: ClassVar[Decodes] = "own-search"

    def parameters(self) -> Iterator[Tensor]:
        for member in self.members:
            if not member.run.is_fitted:
                yield from member.model.parameters()

    def check(self, options: DecodingOptions, traced: bool) -> None:
        """Raise an error for what needs a search token by token of all members."""
        found = "another decoding method" if options.method is not None else "a trace of the search" if traced else ""
        if found:
            raise ConfigError(
                f"{self.members[0].run.folder}: found {found}, expected models with the same vocabularies: the members "
                "of this ensemble search on their own"
            )

    def predictions(
        self, items: Sequence[ConstrainedInput], options: DecodingOptions, n_best: int, beam: int
    ) -> Iterator[Prediction]:
        """The best candidates of each input; `score` is the log of their averaged probability."""
        beam = max(beam, n_best)
        own = replace(
            options, ensemble=(), weights=(), average=DEFAULT_AVERAGE, rerank=(), memory=None, terminology=None,
            placeholders=False, min_confidence=None, split_long=False, tag=None, scores=True, beam=beam, n_best=beam,
        )  # fmt: skip
        for first in range(0, len(items), CHUNK):
            for candidates, votes in self.votes(items[first : first + CHUNK], own):
                scores = self.averaged(votes)
                order = sorted(range(len(candidates)), key=lambda index: -scores[index])
                best, *others = [with_score(candidates[index], scores[index]) for index in order[:n_best]]
                yield replace(best, alternatives=tuple(others))

    def votes(
        self, items: Sequence[ConstrainedInput], options: DecodingOptions
    ) -> Iterator[tuple[list[Prediction], list[Votes]]]:
        """Of each input the candidates of all members, and the votes of each."""
        lists = [list(member.stream(items, options, QUIET)) for member in self.members]
        unions: list[dict[str, Prediction]] = [{} for _ in items]
        for predictions in lists:
            for union, prediction in zip(unions, predictions, strict=True):
                for output in (prediction, *prediction.alternatives):
                    union.setdefault(output.text, replace(output, alternatives=()))
        several = [
            own_votes(predictions, unions) if member.likelihood == "none" else forced_votes(member, items, unions)
            for member, predictions in zip(self.members, lists, strict=True)
        ]
        for index, union in enumerate(unions):
            yield list(union.values()), [votes[index] for votes in several]

    def averaged(self, votes: Sequence[Votes]) -> list[float]:
        """The weighted mean of the members' votes for each candidate: of the probabilities or of their logarithms."""
        weighted = [*zip(self.weights, votes, strict=True)]
        if self.average == "log":
            columns = zip(*(([weight * max(log, RULED_OUT) for log in own]) for weight, own in weighted), strict=True)
            return normalised([math.fsum(column) for column in columns])
        columns = zip(*(([weight * math.exp(log) for log in own]) for weight, own in weighted), strict=True)
        return [math.log(total) if (total := math.fsum(column)) else RULED_OUT for column in columns]


def own_votes(predictions: Sequence[Prediction], unions: Sequence[dict[str, Prediction]]) -> list[Votes]:
    """Of a member without probabilities: its own outputs share its votes by their scores."""
    found = []
    for prediction, union in zip(predictions, unions, strict=True):
        scores = {output.text: output.score for output in (prediction, *prediction.alternatives)}
        found.append(normalised([scores.get(text, -math.inf) for text in union]))
    return found


def forced_votes(
    member: Any, items: Sequence[ConstrainedInput], unions: Sequence[dict[str, Prediction]]
) -> list[Votes]:
    pairs = [(item.text, text) for item, union in zip(items, unions, strict=True) for text in union]
    scores = iter(score_pairs(member, pairs))
    return [normalised([next(scores).log_probability for _ in union]) for union in unions]


def normalised(logs: Sequence[float]) -> Votes:
    """Log-probabilities that sum to one; equal ones where all candidates are impossible."""
    highest = max(logs, default=0.0)
    if highest == -math.inf:
        return [-math.log(len(logs))] * len(logs)
    total = highest + math.log(math.fsum(math.exp(log - highest) for log in logs))
    return [log - total for log in logs]


def with_score(output: Prediction, score: float) -> Prediction:
    """An output with its score as the probability of the whole, which its end has."""
    return replace(output, score=score, token_scores=(*(0.0 for _ in output.tokens), score))


def learned_weights(votes: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """The weights of members that make references most probable, by EM; votes (inputs, members) for the references.

    `PSEUDO_INPUTS` further inputs speak for equal weights: few validation inputs cannot tell members apart.
    """
    members = len(votes[0]) if votes else 1
    weights = [1 / members] * members
    for _ in range(ROUNDS):
        counts = [PSEUDO_INPUTS / members] * members
        for row in votes:
            parts = [weight * math.exp(log) for weight, log in zip(weights, row, strict=True)]
            if total := math.fsum(parts):
                counts = [count + part / total for count, part in zip(counts, parts, strict=True)]
        weights = [count / math.fsum(counts) for count in counts]
    return tuple(weights)


def reference_votes(
    predictor: Any, inputs: Sequence[str], references: Sequence[Sequence[str]]
) -> list[list[float]] | None:
    """The members' votes for the references that are among the candidates; None: the members are averaged.

    A row for each such input has one vote for each member, the highest of several references.
    """
    committee = predictor.backend(predictor.defaults).traits
    if not isinstance(committee, Committee):
        return None
    own = replace(predictor.defaults, split_long=False, n_best=predictor.search.beam, beam=predictor.search.beam)
    items = [ConstrainedInput(text) for text in inputs]
    rows = []
    for (candidates, votes), truth in zip(committee.votes(items, own), references, strict=True):
        right = [index for index, output in enumerate(candidates) if output.text in truth]
        if right:
            rows.append([max(member[index] for index in right) for member in votes])
    return rows
