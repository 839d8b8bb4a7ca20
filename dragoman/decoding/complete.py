"""Texts gone on with by a language model (FIELD A5, K1): prompts in, what follows out, greedily or by chance.

A prompt is read at once and then written on token by token. Lines end in <eos>; a completion may stop at the end of its
line or go on over as many lines as there is room for.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any, NamedTuple

import torch

from dragoman.data.batch import Batch
from dragoman.data.tokenizers.base import EOS, PAD
from dragoman.decoding.greedy import Choose, follow, most_probable
from dragoman.decoding.hypothesis import Hypothesis
from dragoman.decoding.sampling import ROWS, Sampling, key_of, roulette
from dragoman.errors import DataError


class Completion(NamedTuple):
    """What follows a prompt."""

    tokens: tuple[int, ...]  # without the prompt
    token_scores: tuple[float, ...]  # log-probability of each
    ended: bool  # with the end of a line that was to end it, not for want of room


@torch.no_grad()
def complete(
    model: Any,  # a LanguageModel
    prompts: Sequence[Sequence[int]],
    longest: int,
    *,
    sampling: Sampling | None = None,
    samples: int = 1,
    one_line: bool = False,
    device: torch.device | None = None,
    rows: int = ROWS,
    first: int = 1,  # number of the first prompt, for messages
) -> list[list[Completion]]:
    """Of every prompt so many completions of at most `longest` tokens; without a `sampling` the greedy one.

    Prompts of one length are read together: a completion depends on nothing but its own prompt and the seed.
    """
    assert longest >= 1
    assert sampling is not None or samples == 1, "there is one greedy completion"
    device = device or next(model.parameters()).device
    read = [[EOS, *prompt] for prompt in prompts]  # a text begins where the line before ended
    check_room(model.max_positions, read, longest, first)
    found: list[list[Completion]] = [[] for _ in prompts]
    asked = [(place, sample) for place in range(len(prompts)) for sample in range(samples)]
    asked.sort(key=lambda one: len(read[one[0]]))
    for _, group in groupby(asked, key=lambda one: len(read[one[0]])):
        together = list(group)
        for begin in range(0, len(together), rows):
            part = together[begin : begin + rows]
            written = _together(model, read, part, longest, sampling, one_line, device)
            for (place, _), one in zip(part, written, strict=True):
                found[place].append(one)
    return found


def check_room(max_positions: int | None, prompts: Sequence[Sequence[int]], longest: int, first: int = 1) -> None:
    """Refuse prompts that leave no room for what is to follow."""
    for number, prompt in enumerate(prompts, first):
        if max_positions is not None and len(prompt) + longest - 1 > max_positions:
            raise DataError(
                f"prompt {number}: {len(prompt)} tokens (the beginning of the line counts) and {longest} to follow, "
                f"but the model reads at most {max_positions} (model.stack.positions.max_positions)"
            )


def _together(
    model: Any,
    prompts: Sequence[Sequence[int]],
    asked: Sequence[tuple[int, int]],  # place of the prompt and number of the sample
    longest: int,
    sampling: Sampling | None,
    one_line: bool,
    device: torch.device,
) -> list[Completion]:
    """Completions of prompts of one length."""
    places = sorted({place for place, _ in asked})
    source = torch.tensor([prompts[place] for place in places], device=device)
    state = model.start(Batch(source, source != PAD, source.new_empty(len(places), 0)))  # each prompt is read once
    row_of = {place: row for row, place in enumerate(places)}
    state = state.select(torch.tensor([row_of[place] for place, _ in asked], device=device))
    choose: Choose = most_probable
    if sampling is not None:
        choose = roulette([key_of(sampling.seed, prompts[place], sample) for place, sample in asked], sampling)
    limits = torch.full((len(asked),), longest, device=device)
    written = follow(model.step, state, limits, choose=choose, end="cut" if one_line else "limit")
    return [_completion(one, one_line) for one in written]


def _completion(hypothesis: Hypothesis, one_line: bool) -> Completion:
    ended = one_line and hypothesis.tokens[-1] == EOS
    return Completion(hypothesis.tokens, hypothesis.token_scores, ended)
