"""Phrase-based translation (Koehn, Och and Marcu 2003): preset `phrase-based`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np

from dragoman.base import DataError
from dragoman.base.config import Range, setting
from dragoman.classical.model import (
    Arrays,
    Note,
    ScoredTokens,
    TensorSpec,
    Tokens,
    Transducer,
    row_specs,
    rows_of,
    stored_rows,
)
from dragoman.classical.ngram import NGramConfig, NGramModel, ngram_specs
from dragoman.classical.phrase_decoder import (
    FEATURES,
    LANGUAGE,
    MAX_TOKENS,
    TABLE,
    Derivation,
    PhraseDecoder,
    PhraseOptions,
)
from dragoman.classical.phrase_table import WordTable, extract_phrases, phrase_arrays
from dragoman.classical.rows import Floats, Ragged, pair_rows
from dragoman.classical.vocabulary import fold_case, same_spelling
from dragoman.classical.word_alignment import BothDirections
from dragoman.data import SourceReader
from dragoman.data.tokenizers import EOS, Tokenizer
from dragoman.scoring import LinkRows

if TYPE_CHECKING:
    from torch import Tensor

    from dragoman.data import Batch, Corpus

# Before tuning: phrase and lexical probabilities, phrases, words, distance, language model.
START = np.array([0.2, 0.2, 0.2, 0.2, 0.1, 0.8, 0.2, 0.6])
COPIED = -4.0  # log-probabilities of a token that no phrase translates and that is copied
CHUNK = 16384


@dataclass(frozen=True)
class PhraseBasedConfig:
    """A phrase table, an n-gram language model, and a log-linear model over both."""

    kind: ClassVar[str] = "phrase-based"
    fitted: ClassVar[bool] = True
    slow: ClassVar[bool] = True  # fitting takes a minute or more, and cannot pause
    max_phrase: Annotated[int, Range(1, 10)] = setting(5, help="tokens in the longest phrase")
    translations: Annotated[int, Range(1)] = setting(20, help="translations kept of each phrase")
    order: Annotated[int, Range(1, 6)] = setting(5, help="tokens in the longest n-gram of the language model")
    alignment: Annotated[int, Range(1)] = setting(5, help="EM iterations of each alignment model")
    distance: Annotated[int, Range(0, 60)] = setting(6, help="longest jump between phrases; 0: monotone")
    stack: Annotated[int, Range(1)] = setting(100, help="hypotheses of a stack")
    tune: Annotated[int, Range(0)] = setting(4, help="rounds of tuning on validation pairs; 0: fixed weights")
    tune_pairs: Annotated[int, Range(1)] = setting(400, help="validation pairs used for tuning")

    def quickly(self) -> PhraseBasedConfig:
        """What takes seconds to fit: tuning takes nine tenths of the time."""
        return replace(self, tune=0)


class PhraseBased(Transducer):
    """score = Σ weight · feature over a segmentation into phrases, their translations and their order."""

    likelihood = "none"
    shows_alignment = True

    def __init__(self, config: PhraseBasedConfig, source: SourceReader, target: Tokenizer) -> None:
        super().__init__()
        self.config, self.vocabulary = config, len(target)
        pieces = source.pieces(range(len(source))), target.pieces(range(len(target)))
        self.folded = fold_case(pieces[0]), fold_case(pieces[1])
        self.same = same_spelling(*pieces)

    def tensor_specs(self) -> dict[str, TensorSpec]:
        return {
            **row_specs("sources", "source_offsets", "phrases", len(self.folded[0])),
            "entries": TensorSpec(np.int64, ("phrases+1",), offsets_of="features"),
            **row_specs("targets", "target_offsets", "entries", self.vocabulary),
            "features": TensorSpec(np.float32, ("entries", TABLE)),
            "weights": TensorSpec(np.float64, (len(FEATURES),)),
            **ngram_specs(self.config.order, self.vocabulary),
        }

    # --- training

    def fit(self, corpus: Corpus, note: Note) -> list[float]:
        left, right = pair_rows(corpus.train)
        losses, links = self.align(left, right, note)
        phrases = extract_phrases(left, right, links, self.config.max_phrase, note)
        note("scoring phrases", 0)
        table = phrase_arrays(phrases, self.config.translations, WordTable.of(left, right, links))
        note("counting n-grams", 0)
        model = NGramModel(NGramConfig(self.config.order), self.vocabulary).fit_rows(right)
        self.store({**table, **model.tensors, "weights": START})
        if self.config.tune:
            sources, targets = pair_rows(corpus.valid)
            rows = np.unique(np.linspace(0, len(sources) - 1, min(self.config.tune_pairs, len(sources))).astype(int))
            pairs = [(sources[row], targets[row]) for row in rows.tolist() if 0 < len(sources[row]) <= MAX_TOKENS]
            if pairs:
                self.tune(pairs, note)
        return losses

    def align(self, left: Ragged, right: Ragged, note: Note) -> tuple[list[float], LinkRows]:
        both = BothDirections("hmm", self.config.alignment)
        left, right = left.mapped(self.folded[0]), right.mapped(self.folded[1])
        losses = both.fit_rows(left, right, (len(self.folded[0]), len(self.folded[1])), note)
        parts: list[LinkRows] = []
        for first in range(0, len(left), CHUNK):
            note("combining alignments", first)
            rows = np.arange(first, min(first + CHUNK, len(left)))
            links = both.align_rows(left.take(rows), right.take(rows), "grow-diag-final-and")[0]
            parts.append(links._replace(pairs=links.pairs + first))
        return losses, LinkRows.joined(parts)

    def tune(self, pairs: Sequence[tuple[Tokens, Tokens]], note: Note) -> None:

        def decode(weights: Floats, n_best: int) -> list[list[Derivation]]:
            decoder = self.decoder(weights, 0)
            return [decoder.translate(len(source), self.options(source), n_best) for source, _ in pairs]

        weights = tune(decode, [target for _, target in pairs], START, self.config.tune, note)
        self.tensors["weights"] = weights

    # --- prediction

    def load(self, tensors: Arrays) -> None:
        super().load(tensors)
        self.model = NGramModel(NGramConfig(self.config.order), self.vocabulary)
        self.model.load({name: tensor for name, tensor in tensors.items() if name[0].isdigit()})
        # For every source phrase its first entry and the one behind its last.
        phrases = stored_rows("sources", "source_offsets", tensors)
        self.table = dict(zip(phrases, pairwise(tensors["entries"].tolist()), strict=True))
        self.target_rows = stored_rows("targets", "target_offsets", tensors)

    def options(self, source: Tokens) -> PhraseOptions:
        """All phrases that match a source; a token that none translates is copied, or left out if it cannot be."""
        starts, ends, targets = list[int](), list[int](), list[Tokens]()
        features: list[Floats] = []
        stored = self.tensors["features"]
        for first in range(len(source)):
            for end in range(first + 1, min(len(source), first + self.config.max_phrase) + 1):
                begin, behind = self.table.get(source[first:end], (0, 0))
                for entry in range(begin, behind):
                    starts.append(first)
                    ends.append(end)
                    targets.append(self.target_rows[entry])
                    features.append(stored[entry])
            if (source[first],) not in self.table:
                copy = self.same[source[first]]
                starts.append(first)
                ends.append(first + 1)
                targets.append((copy,) if copy > EOS else ())
                features.append(np.full(TABLE, COPIED))
        padded = Ragged.of(targets).padded()
        return PhraseOptions(np.array(starts), np.array(ends), padded, np.stack(features).astype(np.float64))

    def decoder(self, weights: Floats, beam: int) -> PhraseDecoder:
        """The decoder of some weights; stacks hold --beam hypotheses if that is more than model.stack."""
        stack = max(beam, self.config.stack)
        limit = self.config.distance
        return PhraseDecoder(self.model, weights, stack=stack, limit=limit, pool=4 * stack)

    def attention(self, batch: Batch) -> Tensor:
        """The phrases of its own outputs: every target token looks at all tokens of its source phrase alike."""
        import torch

        sources, targets = rows_of(batch.source.data), rows_of(batch.target)
        out = torch.zeros(len(sources), 1, batch.target.shape[1], batch.source.data.shape[1])
        decoder = self.decoder(self.tensors["weights"], 0)
        for row, (source, target) in enumerate(zip(sources, targets, strict=True)):
            place = 0
            for first in range(0, len(source), MAX_TOKENS):
                part = source[first : first + MAX_TOKENS]
                options = self.options(part)
                derivation = decoder.translate(len(part), options)[0]
                if derivation.tokens != target[place : place + len(derivation.tokens)]:
                    raise DataError("no phrases to show: a phrase-based model explains its own output, not a given one")
                for option in derivation.phrases:
                    begin, end, size = (
                        first + options.starts[option],
                        first + options.ends[option],
                        options.lengths[option],
                    )
                    out[row, 0, place : place + size, begin:end] = 1 / (end - begin)
                    place += int(size)
            out[row, 0, len(target), len(source)] = 1.0
        return out

    def transduce(self, sources: Sequence[Sequence[int]], beam: int, n_best: int) -> list[list[ScoredTokens]]:
        decoder = self.decoder(self.tensors["weights"], beam)
        out = []
        for source in sources:
            parts = [tuple(source[first : first + MAX_TOKENS]) for first in range(0, len(source), MAX_TOKENS)] or [()]
            lists = [decoder.translate(len(part), self.options(part), n_best) if part else [] for part in parts]
            if len(parts) == 1 and parts[0]:
                out.append([ScoredTokens.of(derivation.tokens, derivation.score) for derivation in lists[0]])
            else:
                best = [derivations[0] for derivations in lists if derivations]
                tokens = tuple(token for derivation in best for token in derivation.tokens)
                out.append([ScoredTokens.of(tokens, math.fsum(derivation.score for derivation in best))])
        return out


assert len(START) == len(FEATURES) == LANGUAGE + 1


# --- weights of a log-linear model by pairwise ranking optimisation (PRO; Hopkins and May 2011)

N_BEST = 50
SAMPLES = 400  # pairs of translations drawn for each sentence, of which the
KEPT = 40  # most different ones teach
MIN_DIFFERENCE = 0.05
MIX = 0.5  # of the new weights with those of the last round


def bleu_statistics(tokens: Tokens, reference: Tokens) -> Floats:
    """Matches and totals of 1- to 4-grams, and both lengths."""
    row = []
    for n in range(1, 5):
        ours = Counter(tokens[place : place + n] for place in range(len(tokens) - n + 1))
        theirs = Counter(reference[place : place + n] for place in range(len(reference) - n + 1))
        row += [(ours & theirs).total(), max(0, len(tokens) - n + 1)]
    return np.array([*row, len(tokens), len(reference)], np.float64)


def bleu(statistics: Floats, smooth: float = 0.0) -> float:
    """BLEU of summed statistics, from 0 to 1; `smooth` is added to matches and totals above 1-grams."""
    added = np.array([0.0, smooth, smooth, smooth])
    matches, totals = statistics[0:8:2] + added, statistics[1:8:2] + added
    if (matches <= 0).any() or statistics[8] == 0:
        return 0.0
    brevity = min(0.0, 1 - statistics[9] / statistics[8])
    return float(np.exp(np.log(matches / totals).mean() + brevity))


def tune(
    decode: Callable[[Floats, int], list[list[Derivation]]],
    references: Sequence[Tokens],
    weights: Floats,
    rounds: int,
    note: Note,
) -> Floats:
    """The weights with the best BLEU of all rounds; each round decodes n-best lists and learns to rank all so far."""
    generator = np.random.default_rng(1)
    seen: list[dict[Tokens, tuple[Floats, Floats]]] = [{} for _ in references]
    best, best_score = weights, -1.0
    for number in range(rounds + 1):
        note("tuning weights", number + 1)
        lists = decode(weights, N_BEST)
        total = np.zeros(10)
        for known, several, reference in zip(seen, lists, references, strict=True):
            for derivation in several:
                if derivation.tokens not in known:
                    known[derivation.tokens] = (derivation.features, bleu_statistics(derivation.tokens, reference))
            total += known[several[0].tokens][1]
        score = bleu(total)
        if score > best_score:
            best, best_score = weights, score
        if number == rounds:
            break
        learned = rank(sample_pairs(seen, generator), weights)
        weights = MIX * learned + (1 - MIX) * weights
    return best


def sample_pairs(seen: Sequence[dict[Tokens, tuple[Floats, Floats]]], generator: np.random.Generator) -> Floats:
    """Differences of features, better minus worse translation, of the most different pairs of each sentence: (P, F)."""
    rows: list[Floats] = []
    for known in seen:
        features = np.stack([entry[0] for entry in known.values()])
        scores = np.array([bleu(entry[1], 1.0) for entry in known.values()])
        left, right = generator.integers(0, len(scores), (2, SAMPLES))
        gap = scores[left] - scores[right]
        order = np.argsort(-np.abs(gap), kind="stable")[:KEPT]
        order = order[np.abs(gap[order]) >= MIN_DIFFERENCE]
        rows.append((features[left[order]] - features[right[order]]) * np.sign(gap[order])[:, None])
    return np.concatenate(rows)


def rank(differences: Floats, weights: Floats) -> Floats:
    """Logistic regression without bias: weights under which better translations score higher, of the old norm."""
    if not len(differences):
        return weights
    import torch

    scale = differences.std(0) + 1e-9
    inputs = torch.from_numpy(differences / scale)
    free = torch.from_numpy(weights * scale).clone().requires_grad_()
    optimizer = torch.optim.LBFGS([free], max_iter=50, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = torch.nn.functional.softplus(-(inputs @ free)).mean() + 1e-4 * free.square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimizer.step(closure)  # type: ignore[no-untyped-call]
    learned = free.detach().numpy() / scale
    return np.asarray(learned * np.linalg.norm(weights) / max(float(np.linalg.norm(learned)), 1e-9))
