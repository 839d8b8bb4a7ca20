"""Texts gone on with and texts measured, by runs that learned running text."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from itertools import groupby
from typing import Any

import numpy as np
import torch

from dragoman.config import settings
from dragoman.data.batch import batch_of
from dragoman.data.bptt import InMemoryStream, OverlappingBpttPlan
from dragoman.data.tokenizers.base import EOS, UNK
from dragoman.decoding.complete import CompletionOptions, complete
from dragoman.decoding.sampling import Sampling
from dragoman.errors import ConfigError, DataError, RunError
from dragoman.runs import Run, resolve_device
from dragoman.scoring.perplexity import TextSize, text_size
from dragoman.training.validation.lm import text_likelihood

LINES = 10_000  # tokenised at a time


@dataclass(frozen=True)
class Completed:
    """A prompt and what follows it."""

    text: str  # the prompt included; lines with "\n" between them
    score: float  # mean log-probability a token of what follows
    tokens: tuple[str, ...]  # of what follows, readable
    token_scores: tuple[float, ...]
    ended: bool  # with the end of its line, where one line was asked for, and not for want of room

    def as_json(self) -> str:
        """One JSON object on one line."""
        return json.dumps(asdict(self), ensure_ascii=False)


class Completer:
    """A trained language model, ready to go on with texts and to say how likely they are."""

    def __init__(self, run: Run, device: str = "auto") -> None:
        if not run.task.is_language_model:
            raise RunError(
                f'{run.folder}: found task = "{run.task.name}", expected a language model (task = "language-model")'
            )
        self.run, self.config = run, run.config
        self.device = resolve_device(device)
        self.tokenizer = run.tokenizers()[1]
        self.model: Any = run.model(self.device)

    def complete(
        self,
        prompts: Sequence[str],
        *,
        max_length: int = 100,
        sampling: Sampling | None = None,
        samples: int = 1,
        one_line: bool = False,
        allow_unknown: bool = False,
        batch_size: int = 64,
        first: int = 1,
    ) -> list[list[Completed]]:
        """Of every prompt so many completions of at most `max_length` tokens; without a `sampling` the greedy one.

        An empty prompt begins a new line, "\\n" in a prompt ends one. `one_line` stops where the line ends. What the
        vocabulary does not have is an error, or with `allow_unknown` read as <unk>. `first` is the number of the first
        prompt, for messages.
        """
        if isinstance(prompts, str):
            raise TypeError("complete takes a list of prompts; for one prompt write complete([prompt])")
        for name, value in (("max_length", max_length), ("samples", samples), ("batch_size", batch_size)):
            if value < 1:
                raise ConfigError(f"{name}: found {value}, expected at least 1")
        if samples > 1 and sampling is None:
            raise ConfigError(
                f"samples: found {samples} without a sampling, expected 1: the likeliest tokens are one text"
            )
        if is_dataclass(sampling):
            sampling = settings.build(Sampling, settings.as_table(sampling))  # ranges are checked
        rows = [self.encode(prompt, f"prompt {place}", allow_unknown) for place, prompt in enumerate(prompts, first)]
        options = CompletionOptions(max_length, sampling, samples, one_line)
        found = complete(self.model, rows, options, device=self.device, rows=batch_size, first=first)
        return [
            [
                Completed(
                    self.joined(prompt, row, one.tokens[: -1 if one.ended else None]),
                    sum(one.token_scores) / len(one.token_scores),
                    tuple(self.tokenizer.pieces(one.tokens)),
                    one.token_scores,
                    one.ended,
                )
                for one in several
            ]
            for prompt, row, several in zip(prompts, rows, found, strict=True)
        ]

    def encode(self, text: str, place: str, allow_unknown: bool = False) -> list[int]:
        """The tokens of a text, <eos> between its lines; what is unknown is an error that names it."""
        row: list[int] = []
        for number, line in enumerate(text.split("\n")):
            tokens = self.tokenizer.encode(line)
            if UNK in tokens and not allow_unknown:
                begin, end = self.tokenizer.spans(line)[tokens.index(UNK)]
                raise DataError(
                    f"{place}: found {line[begin:end]!r}, which is not in the vocabulary of {len(self.tokenizer):,} "
                    f"{self.tokenizer.kind}; write it otherwise, or read it as <unk> with --allow-unknown "
                    "(allow_unknown=True)"
                )
            row += [EOS, *tokens] if number else tokens
        return row

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens, a new line for every <eos>."""
        lines: list[list[int]] = [[]]
        for ends, same in groupby(tokens, key=lambda token: token == EOS):
            if ends:
                lines += [[] for _ in same]
            else:
                lines[-1] += same
        return "\n".join(self.tokenizer.decode(line) for line in lines)

    def joined(self, prompt: str, row: Sequence[int], following: Sequence[int]) -> str:
        """A prompt and what follows it; words outside the vocabulary stand as they were written."""
        text = self.decode([*row, *following])
        return prompt + text[len(self.decode(row)) :] if UNK in row else text

    def rate(self, texts: Sequence[str], batch_size: int = 64) -> list[float]:
        """Of every text, a line of its own, the mean log-probability a token, its end included; −∞: no room for it."""
        if isinstance(texts, str):
            raise TypeError("rate takes a list of texts; for one text write rate([text])")
        rows = self.tokenizer.encode_batch([text.replace("\n", " ") for text in texts])
        return mean_log_probabilities(self.model, rows, self.device, batch_size)

    def evaluate(
        self,
        lines: Iterable[str],
        *,
        batch_size: int = 64,
        progress: Callable[[int], None] | None = None,
    ) -> dict[str, Any]:
        """How likely a running text is: its nats by token, word and character, whatever the batch size.

        The end of a line counts as a word and a character. `unknown` tokens, read as <unk>, are counted: where there
        are some, figures cannot be compared with those of another vocabulary.
        """
        if isinstance(lines, str):  # its characters would be lines
            raise TypeError("evaluate takes the lines of a text; of a file write evaluate(text.splitlines())")
        parts: list[Any] = [np.array([EOS], np.int32)]
        size, count, together = TextSize(), 0, list[str]()

        def take() -> None:
            rows = self.tokenizer.encode_batch(together)
            parts.append(np.fromiter((token for row in rows for token in (*row, EOS)), np.int32))
            together.clear()

        for line in lines:
            size += text_size([line])
            count += 1
            together.append(line)
            if len(together) == LINES:
                take()
        take()
        text = InMemoryStream(np.concatenate(parts))
        if not count:
            raise DataError("nothing to evaluate: no line was read")
        plan = OverlappingBpttPlan(text, self.config.model.segment)
        found = text_likelihood(
            self.model, plan, size, self.device, rows=batch_size, progress=progress or (lambda tokens: None)
        )
        assert found is not None, "nothing interrupts it"
        likelihood, accuracy = found
        return {
            "lines": count,
            "tokens": likelihood.tokens,
            "words": size.words,
            "characters": size.characters,
            "unknown": int((text.tokens == UNK).sum()),
            **likelihood.scores(),
            "token_accuracy": accuracy,
        }


@torch.no_grad()
def mean_log_probabilities(
    model: Any, rows: Sequence[Sequence[int]], device: torch.device, batch_size: int = 64
) -> list[float]:
    """The mean log-probability per token, <eos> included, of each row as a line of its own, for reranking.

    A row longer than the model can read scores −∞.
    """
    max_positions = model.max_positions
    means = [float("-inf")] * len(rows)
    order = [index for index, row in enumerate(rows) if max_positions is None or len(row) < max_positions]
    order.sort(key=lambda index: len(rows[index]))
    for first in range(0, len(order), batch_size):
        indices = order[first : first + batch_size]
        batch = batch_of([[]] * len(indices), [rows[index] for index in indices]).to(device)
        scores = model.score(batch)
        batch_means = scores.log_probabilities.double().sum(1) / scores.mask.sum(1)
        for index, mean in zip(indices, batch_means.tolist(), strict=True):
            means[index] = mean
    return means
