"""Sampling with temperature, top-k and top-p, and output that is reported token by token.

The random numbers are a pure function: a hash of the seed, the source's token ids, the number of the sample and the
step. So a source has the same samples alone, in any batch and in any order; another seed gives other samples.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dragoman.base import track
from dragoman.decoding.greedy import TokenChooser, argmax_token, greedy_search
from dragoman.decoding.hypothesis import Hypothesis
from dragoman.decoding.method import OpenMethod, Request, distinct
from dragoman.decoding.method_settings import Sampling as Sampling
from dragoman.decoding.method_settings import TokenSampling
from dragoman.decoding.scorer import NEG_INF, Scorer
from dragoman.models.kernels import wide

MAX_ROWS = 1024  # outputs sampled side by side, which bounds the memory
OnToken = Callable[[int, float], None]  # gets a token and its log-probability; an exception ends the search


def sample(request: Request, sampling: Sampling) -> list[list[Hypothesis]]:
    """The distinct samples of every source, best first; equal samples count once."""
    count = sampling.hypotheses(request.n_best)
    return [distinct(samples, request.n_best) for samples in draw_samples(request, sampling, count, "sampling")]


@torch.no_grad()
def draw_samples(request: Request, sampling: TokenSampling, count: int, method: str) -> list[list[Hypothesis]]:
    """`count` samples of every source in the order they were drawn; their scores are the model's own."""
    model = request.stepwise(method)
    pairs = zip(request.batch.source.data, request.batch.source.mask, strict=True)
    sources = [source[mask].flatten().tolist() for source, mask in pairs]
    state, scorer = model.start(request.batch), Scorer.from_config(request.config)
    samples: list[list[Hypothesis]] = [[] for _ in sources]
    at_once = max(1, MAX_ROWS // max(1, len(sources)))
    done = track(f"{count:,} samples of {len(sources):,} input{'s' if len(sources) > 1 else ''}", count)
    for first in range(0, count, at_once):
        numbers = range(first, min(count, first + at_once))
        rows = torch.arange(len(sources), device=request.limits.device).repeat_interleave(len(numbers))
        keys = [sample_key(sampling.seed, source, number) for source in sources for number in numbers]
        choose = token_sampler(keys, sampling)
        drawn = greedy_search(model.step, state.select(rows), request.limits[rows], scorer, choose=choose)
        for row, hypothesis in zip(rows.tolist(), drawn, strict=True):
            samples[row].append(hypothesis)
        done(len(numbers))
    return samples


def token_sampler(keys: Sequence[bytes], sampling: TokenSampling) -> TokenChooser:
    """A choice of tokens by chance, for rows with these keys."""

    def choose(log_probabilities: Tensor, rows: Tensor, length: int) -> Tensor:
        numbers = [uniform(keys[row], length) for row in rows.tolist()]
        randoms = torch.tensor(numbers, dtype=wide(log_probabilities.device), device=log_probabilities.device)
        return sample_token(truncate(log_probabilities, sampling), randoms)

    return choose


def sample_token(log_probabilities: Tensor, randoms: Tensor) -> Tensor:
    """Tokens drawn from (B, V) with uniform numbers (B,) in [0, 1), by inversion of the cumulative distribution."""
    probabilities = log_probabilities.to(wide(log_probabilities.device)).softmax(-1)
    cumulative = probabilities.cumsum(-1)
    token = (cumulative <= randoms[:, None] * cumulative[:, -1:]).sum(-1).clamp(max=probabilities.shape[-1] - 1)
    # Rounding could pass the last token of positive probability, and a broken model gives NaN: take the argmax.
    failed = ~(probabilities.gather(1, token[:, None])[:, 0] > 0)
    return torch.where(failed, argmax_token(log_probabilities, token, 0), token)


def truncate(log_probabilities: Tensor, sampling: TokenSampling) -> Tensor:
    """Unnormalised log-probabilities after temperature, then top-k, then top-p; −∞ for tokens that are cut.

    Of equally probable tokens those with lower ids stay (Fan et al. 2018; Holtzman et al. 2020, eq. 2 and 3).
    """
    out = log_probabilities.to(wide(log_probabilities.device)) / sampling.temperature
    if not sampling.top_k and sampling.top_p >= 1.0:
        return out
    ranked, order = out.sort(dim=-1, descending=True, stable=True)
    if sampling.top_k:
        ranked[:, sampling.top_k :] = NEG_INF
    if sampling.top_p < 1.0:
        probabilities = ranked.softmax(-1)
        before = probabilities.cumsum(-1) - probabilities  # of more probable tokens; the first token always stays
        ranked = ranked.masked_fill(before >= sampling.top_p, NEG_INF)
    return torch.empty_like(out).scatter_(-1, order, ranked)


def sample_key(seed: int, source: Sequence[int], sample: int) -> bytes:
    return hashlib.blake2b(f"{seed} {sample} {list(source)}".encode(), digest_size=16).digest()


def uniform(key: bytes, step: int) -> float:
    """A number in [0, 1) with 53 random bits."""
    drawn = hashlib.blake2b(step.to_bytes(8, "little"), key=key, digest_size=8).digest()
    return float((int.from_bytes(drawn, "little") >> 11) * 2.0**-53)


# --- Streaming


def observed(choose: TokenChooser, on_token: OnToken) -> TokenChooser:
    """A choice of tokens that reports the token of its first row."""

    def chosen(log_probabilities: Tensor, rows: Tensor, length: int) -> Tensor:
        tokens = choose(log_probabilities, rows, length)
        token = int(tokens[0])
        on_token(token, float(log_probabilities[0, token]))
        return tokens

    return chosen


@dataclass(frozen=True, eq=False)
class TokenStream(OpenMethod):
    """A decoding method: greedy search or sampling of one source that reports its tokens one by one."""

    on_token: OnToken
    sampling: Sampling | None = None  # None: greedy

    @torch.no_grad()
    def search(self, request: Request) -> list[list[Hypothesis]]:
        model = request.stepwise("streaming")
        assert len(request.batch.source) == 1, "tokens of several sources could not be told apart"
        choose: TokenChooser = argmax_token
        if self.sampling is not None:
            source = request.batch.source.data[0][request.batch.source.mask[0]].flatten().tolist()
            choose = token_sampler([sample_key(self.sampling.seed, source, 0)], self.sampling)
        state, scorer = model.start(request.batch), Scorer.from_config(request.config)
        return [greedy_search(model.step, state, request.limits, scorer, choose=observed(choose, self.on_token))]
