"""Outputs drawn by chance (FIELD H2): the roulette wheel, its temperature, and what is left off it.

Chance is a pure function: where the ball falls follows from a hash of the seed, the source's token ids, the number of
the sample and the step. So a source has the same samples alone, among any neighbours, in any batch and any order; a
source that is asked for twice has the same samples twice, and another seed gives others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from dragoman.config.settings import Range, setting
from dragoman.decoding.greedy import Choose, follow, most_probable
from dragoman.decoding.hypothesis import Hypothesis
from dragoman.decoding.methods import Request, distinct

NOTHING = float("-inf")
ROWS = 1024  # outputs drawn side by side, which bounds the memory


@dataclass(frozen=True)
class Sampling:
    """Every token is drawn, as likely as the model says or as the wheel was changed to."""

    kind: ClassVar[str] = "sampling"
    temperature: Annotated[float, Range(0.0, None, exclusive_minimum=True)] = setting(
        1.0, help="p^(1/temperature): below 1 likely tokens grow likelier, above 1 all grow alike"
    )
    top_k: Annotated[int, Range(0, None)] = setting(0, help="only so many most probable tokens; 0: all")
    top_p: Annotated[float, Range(0.0, 1.0, exclusive_minimum=True)] = setting(
        1.0, help="only the fewest most probable tokens that together have this probability"
    )
    seed: int = setting(0, help="other seeds draw other outputs")
    samples: Annotated[int, Range(0, None)] = setting(
        0, help="outputs drawn per source, of which the best are told; 0: as many as are wanted"
    )

    def search(self, request: Request) -> list[list[Hypothesis]]:
        """The distinct samples of every source, best first: fewer than were drawn where some are alike."""
        return [
            distinct(samples, request.n_best)
            for samples in draw(request, self, max(self.samples, request.n_best), "sampling")
        ]


@torch.no_grad()
def draw(request: Request, sampling: Sampling, count: int, method: str) -> list[list[Hypothesis]]:
    """So many samples of every source in the order they were drawn; their scores are the model's own."""
    model = request.stepwise(method)
    both = zip(request.batch.source, request.batch.source_mask, strict=True)
    sources = [source[mask].flatten().tolist() for source, mask in both]
    state = model.start(request.batch)
    found: list[list[Hypothesis]] = [[] for _ in sources]
    at_once = max(1, ROWS // max(1, len(sources)))
    for first in range(0, count, at_once):
        numbers = range(first, min(count, first + at_once))
        rows = torch.arange(len(sources), device=request.limits.device).repeat_interleave(len(numbers))
        keys = [key_of(sampling.seed, source, number) for source in sources for number in numbers]
        drawn = follow(
            model.step,
            state.select(rows),
            request.limits[rows],
            choose=roulette(keys, sampling),
            length_penalty=request.config.length_penalty,
            normalisation=request.config.normalisation,
        )
        for row, hypothesis in zip(rows.tolist(), drawn, strict=True):
            found[row].append(hypothesis)
    return found


def roulette(keys: Sequence[bytes], sampling: Sampling) -> Choose:
    """A choice by chance for rows with these keys."""

    def choose(log_probabilities: Tensor, place: Tensor, length: int) -> Tensor:
        balls = [uniform(keys[row], length) for row in place.tolist()]
        ball = torch.tensor(balls, dtype=torch.float64, device=log_probabilities.device)
        return spin(narrowed(log_probabilities, sampling), ball)

    return choose


def spin(log_probabilities: Tensor, ball: Tensor) -> Tensor:
    """Where a ball (B,) in [0, 1) falls on a wheel whose slots are as wide as their tokens are probable."""
    slots = log_probabilities.double().softmax(-1)
    ends = slots.cumsum(-1)
    token = (ends <= ball[:, None] * ends[:, -1:]).sum(-1).clamp(max=slots.shape[-1] - 1)
    # Rounding could let the ball fall behind the last slot, and a broken model's NaN has no slots at all.
    lost = ~(slots.gather(1, token[:, None])[:, 0] > 0)
    return torch.where(lost, most_probable(log_probabilities, token, 0), token)


def narrowed(log_probabilities: Tensor, sampling: Sampling) -> Tensor:
    """Unnormalised log-probabilities after temperature, then top-k, then top-p; −∞ for what is left off.

    Of equally probable tokens those with the lower ids stay (Fan et al. 2018; Holtzman et al. 2020 eq. 2 and 3).
    """
    out = log_probabilities.double() / sampling.temperature
    if not sampling.top_k and sampling.top_p >= 1.0:
        return out
    ranked, order = out.sort(dim=-1, descending=True, stable=True)
    if sampling.top_k:
        ranked[:, sampling.top_k :] = NOTHING
    if sampling.top_p < 1.0:
        chances = ranked.softmax(-1)
        before = chances.cumsum(-1) - chances  # what more probable tokens have; the first always stays
        ranked = ranked.masked_fill(before >= sampling.top_p, NOTHING)
    return torch.empty_like(out).scatter_(-1, order, ranked)


def key_of(seed: int, source: Sequence[int], sample: int) -> bytes:
    """Whose chance it is."""
    return hashlib.blake2b(f"{seed} {sample} {list(source)}".encode(), digest_size=16).digest()


def uniform(key: bytes, step: int) -> float:
    """A number in [0, 1) with 53 random bits."""
    drawn = hashlib.blake2b(step.to_bytes(8, "little"), key=key, digest_size=8).digest()
    return float((int.from_bytes(drawn, "little") >> 11) * 2.0**-53)
