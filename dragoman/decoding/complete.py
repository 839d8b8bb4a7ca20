"""Continue prompts with a language model, greedily or by sampling.

The model reads a prompt at once and then writes token by token. Lines end in <eos>; a completion stops at the end of
its line or goes on over several lines up to its length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

import torch

from dragoman.data.batch import token_batch
from dragoman.data.tokenizers.base import EOS
from dragoman.decoding.greedy import StopAt, TokenChooser, argmax_token, greedy_search
from dragoman.decoding.sampling import MAX_ROWS, Sampling, sample_key, token_sampler
from dragoman.errors import ConfigError, DataError

Observe = Callable[[TokenChooser], TokenChooser]


class Completion(NamedTuple):
    """The continuation of a prompt."""

    tokens: tuple[int, ...]  # without the prompt
    token_scores: tuple[float, ...]  # log-probability of each token
    ended: bool  # whether it stopped at the end of its line, not at the maximum length


@dataclass(frozen=True)
class CompletionOptions:
    """How prompts are continued."""

    max_length: int = 100  # new tokens
    sampling: Sampling | None = None  # None: greedy
    samples: int = 1  # completions per prompt
    one_line: bool = False  # stop at the end of the line

    def __post_init__(self) -> None:
        for name in ("max_length", "samples"):
            if (value := getattr(self, name)) < 1:
                raise ConfigError(f"{name}: found {value}, expected at least 1")
        if self.samples > 1 and self.sampling is None:
            raise ConfigError(f"samples: found {self.samples} without a sampling, expected 1: greedy search gives one")


@torch.no_grad()
def complete(
    model: Any,  # a LanguageModel
    prompts: Sequence[Sequence[int]],
    options: CompletionOptions,
    *,
    device: torch.device | None = None,
    rows: int = MAX_ROWS,
    first: int = 1,  # number of the first prompt, for error messages
    observe: Observe | None = None,
) -> list[list[Completion]]:
    """The completions of every prompt; each depends on its own prompt and the seed alone.

    Prompts of equal length are read together. `observe` changes the choice of tokens, to report each as it is chosen.
    """
    device = device or next(model.parameters()).device
    contexts = [[EOS, *prompt] for prompt in prompts]  # a text begins where the line before it ended
    check_length(model.max_positions, contexts, options.max_length, first)
    completions: list[list[Completion]] = [[] for _ in prompts]
    jobs = [(index, sample) for index in range(len(prompts)) for sample in range(options.samples)]
    jobs.sort(key=lambda job: len(contexts[job[0]]))
    for _, group in groupby(jobs, key=lambda job: len(contexts[job[0]])):
        equal_length = list(group)
        for begin in range(0, len(equal_length), rows):
            chunk = equal_length[begin : begin + rows]
            outputs = _complete(model, contexts, chunk, options, device, observe)
            for (index, _), completion in zip(chunk, outputs, strict=True):
                completions[index].append(completion)
    return completions


def check_length(max_positions: int | None, contexts: Sequence[Sequence[int]], max_length: int, first: int = 1) -> None:
    """Refuse prompts that leave no positions for their completion."""
    for number, context in enumerate(contexts, first):
        if max_positions is not None and len(context) + max_length - 1 > max_positions:
            raise DataError(
                f"prompt {number}: found {len(context)} tokens (with the start of the line) and {max_length} to write, "
                f"expected at most {max_positions} together (model.stack.positions.max_positions)"
            )


def _complete(
    model: Any,
    contexts: Sequence[Sequence[int]],
    jobs: Sequence[tuple[int, int]],  # index of the prompt and number of the sample
    options: CompletionOptions,
    device: torch.device,
    observe: Observe | None = None,
) -> list[Completion]:
    """Completions of prompts of equal length; each prompt is read once for all its samples."""
    indices = sorted({index for index, _ in jobs})
    source = torch.tensor([contexts[index] for index in indices], device=device)
    state = model.start(token_batch(source))
    row_of = {index: row for row, index in enumerate(indices)}
    state = state.select(torch.tensor([row_of[index] for index, _ in jobs], device=device))
    choose: TokenChooser = argmax_token
    if (sampling := options.sampling) is not None:
        keys = [sample_key(sampling.seed, contexts[index], sample) for index, sample in jobs]
        choose = token_sampler(keys, sampling)
    if observe is not None:
        choose = observe(choose)
    limits = torch.full((len(jobs),), options.max_length, device=device)
    stop_at: StopAt = "eos-or-limit" if options.one_line else "limit"
    outputs = greedy_search(model.step, state, limits, choose=choose, stop_at=stop_at)
    return [
        Completion(output.tokens, output.token_scores, options.one_line and output.tokens[-1] == EOS)
        for output in outputs
    ]
