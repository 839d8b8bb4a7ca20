"""The n-gram language model: a `FittedModel` with the interface of neural language models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dragoman.base import DataError
from dragoman.base.config import Range, setting
from dragoman.classical.kneser_ney import MAX_ORDER, Level, extend, gather, ngram_words, prune, smooth, suffix_links
from dragoman.classical.model import Arrays, FittedModel, Note, Size, TensorSpec
from dragoman.classical.ngram_counts import count_ngrams
from dragoman.classical.rows import Floats, Ints, Ragged
from dragoman.data import Column
from dragoman.data.tokenizers import EOS, PAD, SOS

if TYPE_CHECKING:
    from torch import Tensor

    from dragoman.data import Batch, Corpus, Segment
    from dragoman.models import State, TokenScores


@dataclass(frozen=True)
class NGramConfig:
    """An n-gram model with modified Kneser-Ney smoothing (Chen and Goodman 1998)."""

    kind: ClassVar[str] = "ngram"
    fitted: ClassVar[bool] = True
    segment: ClassVar[int] = 512  # tokens scored at a time; changes no result
    order: Annotated[int, Range(1, MAX_ORDER)] = setting(5, help="tokens in the longest n-gram")
    prune: Annotated[float, Range(0.0, 1.0)] = setting(
        0.0, help="drop n-grams whose loss raises the perplexity by less than this share, such as 1e-8"
    )


PART = 1 << 16  # tokens of a text scored at a time
UNDECIDED = -2  # in place of a token: the most probable one is not known yet


class NGramModel(FittedModel):
    """p(token | the last n − 1 tokens). Every line begins anew: an n-gram never spans two lines."""

    decodes = "stepwise"
    array_text = True

    def __init__(self, config: NGramConfig, vocabulary: int) -> None:
        super().__init__()
        self.config, self.vocabulary = config, vocabulary
        self.levels: list[Level] = []

    @property
    def order(self) -> int:
        """The tokens of the longest n-grams; less than asked for where all texts are shorter."""
        return len(self.levels)

    @property
    def size(self) -> str:
        return f"{sum(len(level.keys) for level in self.levels):,} n-grams of up to {self.order} tokens"

    def tensor_specs(self) -> dict[str, TensorSpec]:
        """Three tensors for every order; a key is the place of the first n − 1 tokens · vocabulary + the last token."""
        return ngram_specs(self.config.order, self.vocabulary)

    def fit(self, corpus: Corpus, note: Note) -> list[float]:
        note("counting n-grams", 0)
        self.fit_rows(corpus.train.target)
        return []

    def fit_rows(self, rows: Ragged | Column) -> NGramModel:
        """Fit to token rows without <eos>, in memory or in a store."""
        if not (rows.offset(len(rows)) if isinstance(rows, Column) else len(rows.flat)):
            raise DataError("found no text, expected lines to count n-grams of")
        levels = smooth(count_ngrams(rows, self.vocabulary, self.config.order), self.vocabulary)
        if self.config.prune:
            levels = prune(levels, self.vocabulary, self.config.prune)
        self.set_levels(levels)
        return self

    def set_levels(self, levels: list[Level]) -> None:
        """Take the n-grams of another source, such as an ARPA file."""
        arrays = {}
        for n, level in enumerate(levels, 1):
            for name, part in level._asdict().items():
                arrays[f"{n}.{name}"] = part.astype(np.int64 if name == "keys" else np.float32, copy=False)
        self.store(arrays)

    def load(self, tensors: Arrays) -> None:
        super().load(tensors)
        self.levels = [
            Level(*(tensors[f"{n}.{part}"] for part in Level._fields)) for n in range(1, self.config.order + 1)
        ]
        # Sums of log-probabilities begin with those of unigrams and inherit their precision.
        keys, *logs = self.levels[0]
        self.levels[0] = Level(keys, *(part.astype(np.float64) for part in logs))
        self.__dict__.pop("best", None)

    # --- probabilities of given tokens

    def contexts(self, history: Ints, inputs: Ints) -> list[Ints]:
        """For every input (B, T), read after a history (B, H): the places of the n-grams that end there, by order."""
        tokens = np.concatenate([history, inputs], 1)
        places = [tokens]
        for n in range(2, self.order):
            before = np.concatenate([np.full((len(tokens), 1), -1, np.int64), places[-1][:, :-1]], 1)
            places.append(extend(self.levels, n, before, tokens, self.vocabulary))
        return [place[:, history.shape[1] :] for place in places] if self.order > 1 else []

    def log_probabilities(self, contexts: list[Ints], targets: Ints) -> Floats:
        out = self.levels[0].log_probabilities[targets]
        for n, places in enumerate(contexts, 2):  # of n − 1 tokens
            extended = extend(self.levels, n, places, targets, self.vocabulary)
            out = out + gather(self.levels[n - 2].backoffs, places)
            own = extended >= 0
            out[own] = self.levels[n - 1].log_probabilities[extended[own]]
        return out

    def first_choices(self, contexts: list[Ints], shape: tuple[int, ...]) -> Ints:
        """The most probable token after each context (B, T)."""
        tokens = np.full(shape, self.best[0][0][0])
        for n, (places, (best, _)) in enumerate(zip(contexts, self.best[1:], strict=True), 1):
            own = np.append(best, -1)[places]  # the place −1 is unknown
            for place in np.unique(places[own == UNDECIDED]).tolist():
                words = ngram_words(self.levels, n, np.array([place]), self.vocabulary)[0]
                best[place] = int(self.distribution(words.tolist()).argmax())  # once for all
            own = np.append(best, -1)[places]
            tokens = np.where(own >= 0, own, tokens)
        return tokens

    @cached_property
    def best(self) -> list[tuple[Ints, Floats]]:
        """For contexts of 0, 1, … tokens the most probable next token and its log-probability; −1: as one shorter.

        Of an UNDECIDED token the log-probability is an upper bound.
        """
        top = int(self.levels[0].log_probabilities.argmax())
        best = [(np.array([top]), self.levels[0].log_probabilities[[top]])]
        links = suffix_links(self.levels, self.vocabulary)
        for n in range(2, self.order + 1):
            best.append(self._best_of_order(n, links, best))
        return best

    def _best_of_order(self, n: int, links: list[Ints], lower: list[tuple[Ints, Floats]]) -> tuple[Ints, Floats]:
        level, contexts = self.levels[n - 1], self.levels[n - 2]
        parents = level.keys // self.vocabulary
        order = np.lexsort((level.keys, -level.log_probabilities, parents))
        first, index = np.unique(parents[order], return_index=True)
        tokens, logs = np.full(len(contexts.keys), -1, np.int64), np.full(len(contexts.keys), -np.inf)
        tokens[first] = level.keys[order[index]] % self.vocabulary
        logs[first] = level.log_probabilities[order[index]]
        # The best token of the shorter context, with its back-off weight. Where the longer context has an n-gram of
        # its own for that token, which pruning may leave less probable, another token may be the best.
        shorter = np.zeros(len(contexts.keys), np.int64) if n == 2 else links[n - 2]
        rival_tokens, rival = lower[-1][0][shorter], lower[-1][1][shorter] + contexts.backoffs
        use = (rival > logs) & (shorter >= 0)
        own = extend(self.levels, n, np.arange(len(contexts.keys)), np.maximum(rival_tokens, 0), self.vocabulary)
        rival_tokens = np.where(own >= 0, UNDECIDED, rival_tokens)
        return np.where(use, rival_tokens, tokens), np.where(use, rival, logs)

    def score(self, batch: Batch | Segment) -> TokenScores:
        """Score every target: of a segment of running text after its carry, or of a batch line by line."""
        import torch

        from dragoman.data import Segment
        from dragoman.models import TokenScores

        target = batch.target.cpu().numpy()
        if isinstance(batch, Segment):
            carried = batch.carried
            history = np.full((len(target), 0), SOS) if carried is None else as_history(carried.cpu().numpy())
            inputs = as_history(batch.source.data.cpu().numpy())
            if carried is not None:
                both = np.concatenate([history, inputs], 1)
                carried.copy_(torch.from_numpy(both[:, both.shape[1] - carried.shape[1] :]))
        else:
            sources = batch.source.data.cpu().numpy()
            history = as_history(sources[:, :-1])
            inputs = as_history(np.concatenate([sources[:, -1:], target[:, :-1]], 1))
        mask = torch.from_numpy(target != PAD)
        contexts = self.contexts(history, inputs)
        logs = np.where(target == PAD, 0.0, self.log_probabilities(contexts, target))
        correct = torch.from_numpy(self.first_choices(contexts, target.shape) == target) & mask
        device = batch.target.device
        return TokenScores(torch.from_numpy(logs).to(device), correct.to(device), mask.to(device))

    def text_scores(self, text: NDArray[Any]) -> Iterator[tuple[float, int, int]]:
        """Log-probability, right guesses and tokens of each part of a text; its first token is read alone."""
        read = as_history(text)
        for first in range(0, len(text) - 1, PART):
            end, before = min(first + PART, len(text) - 1), max(0, first - self.order + 1)
            target = text[None, first + 1 : end + 1].astype(np.int64)
            contexts = self.contexts(read[None, before:first], read[None, first:end])
            right = self.first_choices(contexts, target.shape) == target
            yield float(self.log_probabilities(contexts, target).sum()), int(right.sum()), target.size

    def empty_carry(self, rows: int) -> Tensor:
        """The tokens before a text: none, as at the start of a line."""
        import torch

        return torch.full((rows, max(0, self.order - 1)), SOS)

    # --- token by token

    def distribution(self, history: Sequence[int]) -> Floats:
        """Log-probabilities (V,) of the next token after a history, of which the last n − 1 tokens count."""
        out = self.levels[0].log_probabilities.copy()
        row = np.array([history[max(0, len(history) - self.order + 1) :]], np.int64)
        for n, places in enumerate(self.contexts(row[:, :0], row) if row.size else (), 2):
            if (place := int(places[0, -1])) >= 0:
                keys = self.levels[n - 1].keys
                first, end = np.searchsorted(keys, [place * self.vocabulary, (place + 1) * self.vocabulary])
                out += self.levels[n - 2].backoffs[place]
                out[keys[first:end] % self.vocabulary] = self.levels[n - 1].log_probabilities[first:end]
        return out

    @staticmethod
    def state_keys(contexts: Sequence[Ints], rows: int) -> Ints:
        """A number for the longest known context of each row, on which all later probabilities depend."""
        keys = np.zeros(rows, np.int64)
        for n, places in enumerate(contexts, 1):
            keys = np.where(places >= 0, n * (1 << 48) + places, keys)
        return keys

    def first_contexts(self, rows: int) -> list[Ints]:
        """The contexts of `advance` at the start of a line."""
        return [np.full(rows, SOS if n == 0 else -1, np.int64) for n in range(max(0, self.order - 1))]

    def advance(self, contexts: list[Ints], tokens: Ints) -> tuple[Floats, list[Ints]]:
        """The log-probability of each token (N,) after its contexts, and the contexts after it.

        Contexts are the places of the last n-grams, by order. An n-gram is only there if its last n − 1 tokens are: a
        token that a short context lacks is sought no further.
        """
        logs = self.levels[0].log_probabilities[tokens]
        after = [tokens]
        alive = np.arange(len(tokens))
        for n, places in enumerate(contexts, 2):
            logs = logs + gather(self.levels[n - 2].backoffs, places)
            extended = np.full(len(tokens), -1, np.int64)
            reached = extend(self.levels, n, places[alive], tokens[alive], self.vocabulary)
            extended[alive] = reached
            alive = alive[reached >= 0]
            logs[alive] = self.levels[n - 1].log_probabilities[extended[alive]]
            after.append(extended)
        return logs, after[: len(contexts)]

    def start(self, batch: Batch, capacity: int | None = None) -> State:
        """Read the prompts except their last tokens, which replace <sos> later."""
        import torch

        from dragoman.models import State

        source = batch.source.data
        width = max(0, self.order - 1)
        empty = torch.full((len(source), width), SOS, device=source.device)
        history = torch.cat([empty, source[:, :-1]], 1)
        return State((source[:, -1],), (history[:, history.shape[1] - width :],), 0)

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """Read tokens (N,) or (N, P); log-probabilities (N, V) of the next token."""
        import torch

        tokens = tokens if tokens.dim() == 2 else tokens[:, None]
        (last,), (history,) = state.static, state.cache
        tokens = torch.where(tokens == SOS, last.repeat_interleave(state.hypotheses)[:, None], tokens)
        history = torch.cat([history, tokens], 1)[:, tokens.shape[1] :]
        rows = [line_of(row) for row in history.tolist()]
        known = {row: torch.from_numpy(self.distribution(row)) for row in set(rows)}
        out = torch.stack([known[row] for row in rows]).to(tokens.device)
        return out, state._replace(cache=(history,), length=state.length + tokens.shape[1])


def ngram_specs(order: int, vocabulary: int) -> dict[str, TensorSpec]:
    specs = {}
    for n in range(1, order + 1):
        size: Size = vocabulary if n == 1 else f"{n}-grams"
        before: tuple[Size, ...] = () if n == 1 else (vocabulary if n == 2 else f"{n - 1}-grams",)
        specs[f"{n}.keys"] = TensorSpec(np.int64, (size,), 0, (*before, vocabulary), rising=True)
        for part in ("log_probabilities", "backoffs"):
            specs[f"{n}.{part}"] = TensorSpec(np.float32, (size,))
    return specs


def as_history(tokens: Ints) -> Ints:
    """Tokens as contexts: a line begins where the last one ended."""
    return np.where(tokens == EOS, SOS, tokens).astype(np.int64)


def line_of(tokens: list[int]) -> tuple[int, ...]:
    """The tokens from the start of the last line on."""
    row = [SOS if token == EOS else token for token in tokens]
    starts = [place for place, token in enumerate(row) if token == SOS]
    return tuple(row[starts[-1] :]) if starts else tuple(row)
