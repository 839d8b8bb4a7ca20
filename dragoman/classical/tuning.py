"""Weights of a log-linear model by pairwise ranking optimisation (PRO; Hopkins and May 2011)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from dragoman.classical.model import Note, Tokens
from dragoman.classical.phrase_decoder import Derivation
from dragoman.classical.rows import Floats

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
