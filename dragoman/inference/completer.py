"""Continue prompts and score texts with a language model."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dragoman.config import settings
from dragoman.data.batch import batch_of
from dragoman.data.bptt import InMemoryStream, OverlappingBpttPlan
from dragoman.data.tokenizers.base import EOS, UNK
from dragoman.decoding.complete import Completion, CompletionOptions, Observe, complete
from dragoman.decoding.options import replace_from_keywords
from dragoman.decoding.sampling import Sampling
from dragoman.errors import ConfigError, DataError, RunError, UnseenTextWarning
from dragoman.inference.evaluation import read_examples
from dragoman.inference.loaded import describe
from dragoman.inference.long_inputs import OnWarning, warn_caller
from dragoman.inference.unseen import UnseenInputs, UnseenText
from dragoman.runs import Run
from dragoman.scoring.perplexity import TextSize, text_size
from dragoman.training.runtime import resolve_device
from dragoman.training.validation.lm import text_likelihood

LINES = 10_000  # tokenised together


@dataclass(frozen=True)
class Completed:
    """A prompt and its continuation."""

    text: str  # the prompt included; lines with "\n" between them
    score: float  # mean log-probability per new token
    tokens: tuple[str, ...]  # new tokens, readable
    token_scores: tuple[float, ...]
    ended: bool  # with `one_line`: the line ended before the maximum length

    def as_json(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False)


class Completer:
    """A trained language model that continues prompts and scores texts."""

    def __init__(self, run: Run, device: str = "auto") -> None:
        if not run.task.is_language_model:
            raise RunError(
                f'{run.folder}: found task = "{run.task.name}", expected a language model (task = "language-model")'
            )
        self.run, self.config = run, run.config
        self.device = resolve_device(device)
        self.tokenizer = run.tokenizers()[1]
        self.unseen = UnseenText(run, self.tokenizer, "target")
        self.model: Any = run.model(self.device)

    def __repr__(self) -> str:
        return describe(self, self.run, self.model, self.device)

    def complete(
        self,
        prompts: Sequence[str],
        options: CompletionOptions | None = None,
        *,
        allow_unknown: bool = False,
        batch_size: int = 64,
        first: int = 1,
        observe: Observe | None = None,
        on_warning: OnWarning | None = None,
        **keywords: Any,
    ) -> list[list[Completed]]:
        """The completions of every prompt; keywords are fields of `CompletionOptions`.

        An empty prompt begins a new line, and "\\n" in a prompt ends one. A word outside the vocabulary is an error, or
        with `allow_unknown` read as <unk>. `first` is the number of the first prompt in error messages.
        `observe` changes the choice of tokens, to report each as it is chosen (`token_stream.observed`).
        `on_warning` gets a line about prompts with characters or words that training did not have (None: a Python
        warning).
        """
        if isinstance(prompts, str):
            raise TypeError("complete takes a list of prompts; for one prompt write complete([prompt])")
        (options,) = replace_from_keywords(keywords, options or CompletionOptions())
        if batch_size < 1:
            raise ConfigError(f"batch_size: found {batch_size}, expected at least 1")
        if options.sampling is not None:  # checks the ranges
            settings.build(Sampling, settings.as_table(options.sampling))
        encode = partial(self.encode, allow_unknown=allow_unknown)
        rows = [encode(prompt, f"prompt {number}") for number, prompt in enumerate(prompts, first)]
        unseen = UnseenInputs()
        for number, prompt in enumerate(prompts, first):
            if surfaces := [surface for line in prompt.split("\n") for surface in self.unseen(line)]:
                unseen.add(number, surfaces)
        if message := unseen.message():
            warn_caller(on_warning, message, UnseenTextWarning)
        completions = complete(
            self.model, rows, options, device=self.device, rows=batch_size, first=first, observe=observe
        )
        return [
            [self._completed(prompt, row, one) for one in several]
            for prompt, row, several in zip(prompts, rows, completions, strict=True)
        ]

    def _completed(self, prompt: str, row: Sequence[int], completion: Completion) -> Completed:
        scores = completion.token_scores
        new_tokens = completion.tokens[: -1 if completion.ended else None]
        return Completed(
            self.joined(prompt, row, new_tokens),
            sum(scores) / len(scores),
            tuple(self.tokenizer.pieces(completion.tokens)),
            scores,
            completion.ended,
        )

    def encode(self, text: str, place: str, allow_unknown: bool = False) -> list[int]:
        """The tokens of a text; a word outside the vocabulary is an error that names it.

        <eos> stands between its lines, unless the tokenizer has tokens for line ends.
        """
        row: list[int] = []
        lines = [text] if self.tokenizer.keeps_white_space else text.split("\n")
        for number, line in enumerate(lines):
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
        """The text of tokens; every <eos> begins a new line."""
        lines: list[list[int]] = [[]]
        for ends, same in groupby(tokens, key=lambda token: token == EOS):
            if ends:
                lines += [[] for _ in same]
            else:
                lines[-1] += same
        return "\n".join(self.tokenizer.decode(line) for line in lines)

    def joined(self, prompt: str, row: Sequence[int], following: Sequence[int]) -> str:
        """A prompt and its continuation; unknown words of the prompt stay as the user wrote them."""
        text = self.decode([*row, *following])
        return prompt + text[len(self.decode(row)) :] if UNK in row else text

    def rate(self, texts: Sequence[str], batch_size: int = 64) -> list[float]:
        """The mean log-probability per token of every text as a line of its own, <eos> included; −∞: it is too long."""
        if isinstance(texts, str):
            raise TypeError("rate takes a list of texts; for one text write rate([text])")
        rows = self.tokenizer.encode_batch([text.replace("\n", " ") for text in texts])
        return mean_log_probabilities(self.model, rows, self.device, batch_size)

    def evaluate(
        self,
        lines: str | Path | Iterable[str],
        *,
        batch_size: int = 64,
        progress: Callable[[int], None] | None = None,
    ) -> dict[str, Any]:
        """The perplexities of a running text by token, word and character; they do not depend on the batch size.

        The end of a line counts as a word and a character. `unknown` counts tokens read as <unk>: if there are some,
        perplexities cannot be compared with those of another vocabulary.
        """
        if isinstance(lines, Path) or (isinstance(lines, str) and Path(lines).is_file()):
            lines = [example.references[0] for example in read_examples(self.run, lines)]
        if isinstance(lines, str):  # its characters would be lines
            raise TypeError(
                f"evaluate takes a file or the lines of a text; found {lines[:40]!r}, which is no file. For a text "
                "write evaluate(text.splitlines())"
            )
        parts: list[Any] = [np.array([EOS], np.int32)]
        size, count, waiting = TextSize(), 0, list[str]()

        def encode_waiting() -> None:
            rows = self.tokenizer.encode_batch(waiting)
            parts.append(np.fromiter((token for row in rows for token in (*row, EOS)), np.int32))
            waiting.clear()

        for line in lines:
            size += text_size([line])
            count += 1
            waiting.append(line)
            if len(waiting) == LINES:
                encode_waiting()
        encode_waiting()
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
