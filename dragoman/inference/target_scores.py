"""Teacher forcing: how probable given targets are. What scores or aligns pairs is a `PairWork` of the one pipeline."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from dragoman.base import RunError
from dragoman.data import batches_of_indices
from dragoman.data.tokenizers import EOS, PairCodec, ensure_tag
from dragoman.decoding.constraints import ConstrainedInput
from dragoman.inference.evaluation import ReferenceLoss
from dragoman.inference.inputs import StreamOptions, Warn
from dragoman.inference.loaded import LoadedRun, Seq2SeqRun
from dragoman.inference.long_inputs import LABEL_TOKENS, InputTooLongError
from dragoman.inference.pipeline import Done, Row, Work, as_input, check_positions, stream_outputs
from dragoman.inference.unseen import ignore_unknown
from dragoman.models import decodes

if TYPE_CHECKING:  # fitted models score without torch
    import torch

    from dragoman.classical import Transducer
    from dragoman.data import Batch

Output = TypeVar("Output")
TokenPair = tuple[Any, Sequence[int]]  # a source, which may be features, and a target
Collate = Callable[[Any, Any], "Batch"]
RowDone = Callable[[int], None]
# Of callers whose inputs were predicted before, which told all that there is to tell.
QUIET = StreamOptions(on_warning=lambda line: None, on_unknown=ignore_unknown)


class TargetScore(NamedTuple):
    """How probable a given target is."""

    log_probability: float  # −∞: the model cannot output it
    tokens: tuple[str, ...]  # <eos> included
    token_scores: tuple[float, ...]
    correct: tuple[bool, ...]  # whether each token was the model's first choice

    @property
    def score(self) -> float:
        """The mean log-probability per token, <eos> included."""
        return self.log_probability / max(1, len(self.token_scores))

    def as_table(self) -> dict[str, Any]:
        """The fields as JSON has them, which has no infinity: null."""
        numbers = {"log_probability": self.log_probability, "score": self.score}
        table: dict[str, Any] = {name: value if math.isfinite(value) else None for name, value in numbers.items()}
        scores = [value if math.isfinite(value) else None for value in self.token_scores]
        return {**table, "tokens": list(self.tokens), "token_scores": scores}


def pair_inputs(pairs: Iterable[tuple[str, str]]) -> Iterator[ConstrainedInput]:
    return (ConstrainedInput(source, target=target) for source, target in pairs)


class PairWork(Work[Output]):
    """Work on pairs of a source and a given target: a source of `Row` is token ids or features, and target tokens."""

    run: Seq2SeqRun
    codec: PairCodec
    tag: str | None
    batch_size: int

    reads_empty = True  # an empty side has a score, and words on the other

    def prepare(self, item: str | ConstrainedInput, name: str) -> ConstrainedInput:
        given = as_input(item)
        if given.target is None:
            raise TypeError(f"{name}: found no target, expected a pair of a source and a target")
        tagged = ensure_tag(given.text, self.tag, self.run.tags, name) if given.text.strip() else given.text
        return given._replace(text=tagged)

    def encode(self, rows: Sequence[Row]) -> None:
        texts = [row.item.target or "" for row in rows]
        if self.run.reads_files:
            sources, targets = [row.source for row in rows], self.codec.target.encode_batch(texts)
        else:
            sources, targets = self.codec.encode_pairs([self.read_text(row) for row in rows], texts)
        for row, *pair in zip(rows, sources, targets, strict=True):
            row.source = tuple(pair)

    def read_text(self, row: Row) -> str:
        """The text of a source that the model reads."""
        return self.in_context(row)

    def check_source(self, row: Row, warn: Warn) -> None:
        """Teacher forcing reads a pair as a whole: beyond what training allowed it warns, far beyond it refuses."""
        source, target = row.source
        limits, sides = self.run.length_limits, [("target", target)]
        if not self.run.reads_files:
            check_positions(self.run, row, source)
            sides.insert(0, ("source", source))
        for side, tokens in sides:
            if (size := len(tokens)) > limits.tokens:
                excess = f"{side}: found {size:,} tokens, expected at most {limits.tokens_setting} = {limits.tokens:,}"
                if size > LABEL_TOKENS:
                    reason = "its parts have no score of their own; shorten it"
                    raise InputTooLongError(row.name, row.text, (excess, limits.tokens), reason)
                warn(f"{row.name}: {excess}; read as a whole")

    def batches(self, rows: Sequence[Row]) -> Iterator[tuple[list[int], Batch]]:
        return forced_batches([row.source for row in rows], self.run.collator.collate, self.run.device, self.batch_size)


@dataclass(frozen=True)
class ScoreWork(PairWork[TargetScore]):
    """The probabilities of given targets."""

    run: Seq2SeqRun
    model: Any
    codec: PairCodec
    tag: str | None = None
    batch_size: int = 64

    empty = TargetScore(-math.inf, (), (), ())

    def outputs(self, rows: Sequence[Row], done: Done) -> list[TargetScore]:
        pairs = [row.source for row in rows]

        def scored(index: int) -> None:
            done(rows[index])

        if decodes(self.model) == "own-search":
            found = sequence_scores(self.model, pairs, self.batch_size, scored)
        else:
            collate, device = self.run.collator.collate, self.run.device
            found = token_scores(self.model, pairs, collate, device, self.batch_size, scored)
        return [
            target_score(self.codec.target_of(row.text).pieces, row.source[1], scores)
            for row, scores in zip(rows, found, strict=True)
        ]


def target_score(
    pieces: Callable[[Sequence[int]], list[str]], target: Sequence[int], scores: tuple[list[float], list[bool]]
) -> TargetScore:
    logs, correct = scores
    return TargetScore(math.fsum(logs), tuple(pieces([*target, EOS])), tuple(logs), tuple(correct))


def check_likelihood(run: LoadedRun) -> None:
    """Raise an error for a run that has no probability of a given text."""
    if run.likelihood == "none":
        if len(run.members) > 1:
            run.run.check_single("its members vote on outputs, and give no text a probability")
        kind = getattr(run.config.model, "kind", "fitted")
        raise RunError(f'{run.run.folder}: found model.kind = "{kind}", which has no probability of a text')


def score_pairs(run: Seq2SeqRun, pairs: Iterable[tuple[str, str]], tag: str | None = None) -> list[TargetScore]:
    """The scores of targets that other runs wrote; −∞ for pairs that this run cannot read or write."""
    stream = replace(QUIET, on_refused=lambda number, error: None)
    return list(stream_outputs(ScoreWork(run, run.model, run.codec, tag), pair_inputs(pairs), stream))


@dataclass(frozen=True)
class EncodeWork(PairWork[TokenPair]):
    """Pairs as the model reads them, in token ids."""

    run: Seq2SeqRun
    codec: PairCodec
    tag: str | None = None

    empty = [], []

    def outputs(self, rows: Sequence[Row], done: Done) -> list[TokenPair]:
        for row in rows:
            done(row)
        return [row.source for row in rows]


def encoded_pairs(run: Seq2SeqRun, pairs: Iterable[tuple[str, str]], tag: str | None = None) -> list[TokenPair]:
    return list(stream_outputs(EncodeWork(run, run.codec, tag), pair_inputs(pairs), StreamOptions()))


def reference_loss(scores: Iterable[TargetScore]) -> ReferenceLoss:
    """The loss of references; those that the model cannot output at all are left out and counted."""
    every = list(scores)
    possible = [score for score in every if math.isfinite(score.log_probability)]
    count, right = sum(len(score.tokens) for score in possible), sum(sum(score.correct) for score in possible)
    total = -math.fsum(score.log_probability for score in possible)
    mean = (total / count, right / count) if count else (math.inf, 0.0)
    return ReferenceLoss(*mean, len(every) - len(possible))


# --- on tokens


def forced_batches(
    pairs: Sequence[TokenPair], collate: Collate, device: torch.device, batch_size: int
) -> Iterator[tuple[list[int], Batch]]:
    """Batches of pairs of like lengths, and the indices of their rows."""
    for rows in batches_of_indices([(len(target), len(source)) for source, target in pairs], batch_size):
        yield rows, collate([pairs[row][0] for row in rows], [pairs[row][1] for row in rows]).to(device)


def token_scores(
    model: Any,
    pairs: Sequence[TokenPair],
    collate: Collate,
    device: torch.device,
    batch_size: int = 64,
    done: RowDone = lambda index: None,
) -> list[tuple[list[float], list[bool]]]:
    """Of every target token and its <eos> the log-probability, and whether it was the model's first choice.

    −∞: the model cannot output the target, or none that is so long.
    """
    import torch

    scores = [([-math.inf] * (len(target) + 1), [False] * (len(target) + 1)) for _, target in pairs]
    fitting = [row for row, (logs, _) in enumerate(scores) if len(logs) <= (model.max_positions or math.inf)]
    with torch.no_grad():
        for indices, batch in forced_batches([pairs[row] for row in fitting], collate, device, batch_size):
            found = model.score(batch)
            logs = found.log_probabilities.masked_fill(~found.mask, -math.inf).tolist()
            for index, *own in zip(indices, logs, found.correct.tolist(), strict=True):
                row = fitting[index]
                size = len(scores[row][0])
                scores[row] = own[0][:size], own[1][:size]
                done(row)
    return scores


def sequence_scores(
    model: Transducer, pairs: Sequence[TokenPair], batch_size: int, done: RowDone
) -> list[tuple[list[float], list[bool]]]:
    """The same of a model that knows the probability of whole targets alone, which their <eos> has."""
    model.check_likelihood()
    scores: list[tuple[list[float], list[bool]]] = [([], [])] * len(pairs)
    for rows in batches_of_indices([len(target) for _, target in pairs], batch_size):
        sources, targets = ([tuple(pairs[row][side]) for row in rows] for side in (0, 1))
        for row, target, log in zip(rows, targets, model.log_probabilities(sources, targets), strict=True):
            every = 0.0 if math.isfinite(log) else -math.inf
            scores[row] = [*[every] * len(target), log], [False] * (len(target) + 1)
            done(row)
    return scores


def token_confidences(
    model: Any, pairs: Sequence[TokenPair], temperature: float, device: torch.device, batch_size: int = 64
) -> list[tuple[float, ...]]:
    """softmax(logits / temperature) of every target token and of its <eos>, in the order of the pairs."""
    import torch

    from dragoman.data import batch_of
    from dragoman.models.heads import full_precision

    confidences: list[tuple[float, ...]] = [()] * len(pairs)
    with torch.no_grad():
        for indices, batch in forced_batches(pairs, batch_of, device, batch_size):
            scores = (full_precision(model.logits(batch)) / temperature).log_softmax(-1)
            probabilities = scores.gather(-1, batch.target[:, :, None])[:, :, 0].exp().tolist()
            for index, row in zip(indices, probabilities, strict=True):
                confidences[index] = tuple(row[: len(pairs[index][1]) + 1])
    return confidences
