"""Continue prompts and score texts with a language model."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from dragoman.config import settings
from dragoman.data.bptt import InMemoryStream, OverlappingBpttPlan
from dragoman.data.tokenizers.base import EOS, UNK
from dragoman.decoding.complete import Completion, CompletionOptions, Observe, complete
from dragoman.decoding.constraints.spec import ConstrainedInput
from dragoman.decoding.options import replace_from_keywords
from dragoman.decoding.sampling import Sampling
from dragoman.errors import ConfigError, DataError, RunError
from dragoman.inference.evaluation import read_examples
from dragoman.inference.inputs import StreamOptions, Warn
from dragoman.inference.keywords import CompletionKeywords
from dragoman.inference.loaded import LoadedRun
from dragoman.inference.long_inputs import InputTooLongError, over_many_characters
from dragoman.inference.parts import Part
from dragoman.inference.pipeline import Done, Row, Work, check_several, stream_outputs
from dragoman.inference.target_scores import mean_log_probabilities
from dragoman.inference.unseen import UnseenText
from dragoman.runs import Run
from dragoman.scoring.perplexity import TextSize, text_size
from dragoman.training.validation.language_model import text_likelihood

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


@dataclass(frozen=True)
class CompletionWork(Work[list[Completed]]):
    """The work of one call of a completer."""

    completer: Completer
    options: CompletionOptions
    batch_size: int
    allow_unknown: bool
    max_characters: int | None
    observe: Observe | None

    reads_empty = True  # an empty prompt begins a new line

    @property
    def run(self) -> Completer:
        return self.completer

    @property
    def empty(self) -> list[Completed]:
        return []

    def plan(self, item: ConstrainedInput, name: str, warn: Warn) -> list[Part] | None:
        if self.max_characters is not None:
            limits = self.run.length_limits._replace(characters=self.max_characters)
            problem, limit = over_many_characters(item.text, limits)
            if problem:
                raise InputTooLongError(name, item.text, limit, problem, "send the end of the prompt alone")
        return None

    def encode(self, rows: Sequence[Row]) -> None:
        for row in rows:
            row.source = self.run.encode(row.text, row.name, self.allow_unknown)

    def outputs(self, rows: Sequence[Row], done: Done) -> list[list[Completed]]:
        run = self.run
        sources = [row.source for row in rows]
        completions = complete(
            run.model, sources, self.options, device=run.device, rows=self.batch_size, first=rows[0].number,
            observe=self.observe,
        )  # fmt: skip
        for row in rows:
            done(row)
        return [
            [self._completed(row, completion) for completion in several]
            for row, several in zip(rows, completions, strict=True)
        ]

    def _completed(self, row: Row, completion: Completion) -> Completed:
        scores = completion.token_scores
        new_tokens = completion.tokens[: -1 if completion.ended else None]
        return Completed(
            self.run.joined(row.text, row.source, new_tokens),
            sum(scores) / len(scores),
            tuple(self.run.tokenizer.pieces(completion.tokens)),
            scores,
            completion.ended,
        )


class Completer(LoadedRun):
    """A trained language model that continues prompts and scores texts."""

    continues = True

    def __init__(self, run: Run, device: str = "auto") -> None:
        if not run.task.is_language_model:
            raise RunError(
                f'{run.folder}: found task = "{run.task.name}", expected a language model (task = "language-model")'
            )
        super().__init__(run, device)
        self.tokenizer = self.target_tokenizer
        self.unseen = UnseenText(run, self.tokenizer, "target")
        self.model = run.model(self.device)

    def complete(
        self,
        prompts: Iterable[str],
        options: CompletionOptions | None = None,
        *,
        allow_unknown: bool = False,
        batch_size: int = 64,
        first: int = 1,
        observe: Observe | None = None,
        **keywords: Unpack[CompletionKeywords],
    ) -> list[list[Completed]]:
        """The completions of every prompt; see `stream`."""
        check_several(prompts, "complete", "prompt")
        return list(
            self.stream(
                prompts, options, allow_unknown=allow_unknown, batch_size=batch_size, first=first, observe=observe,
                **keywords,
            )
        )  # fmt: skip

    def stream(
        self,
        prompts: Iterable[str],
        options: CompletionOptions | None = None,
        stream: StreamOptions | None = None,
        *,
        allow_unknown: bool = False,
        batch_size: int = 64,
        first: int = 1,
        max_characters: int | None = None,
        observe: Observe | None = None,
        **keywords: Unpack[CompletionKeywords],
    ) -> Iterator[list[Completed]]:
        """The completions of every prompt, in order and in bounded memory.

        Keywords are fields of `CompletionOptions` and `StreamOptions`. An empty prompt begins a new line, and "\\n" in
        a prompt ends one. A word outside the vocabulary is an error, or with `allow_unknown` read as <unk>. `first` is
        the number of the first prompt in messages. A prompt of more than `max_characters` is refused. `observe`
        changes the choice of tokens, to report each as it is chosen (`token_stream.observed`).
        """
        check_several(prompts, "stream", "prompt")
        stream = stream or StreamOptions(input_name="prompt {}".format)
        options, stream = replace_from_keywords(dict(keywords), options or CompletionOptions(), stream)
        if batch_size < 1:
            raise ConfigError(f"batch_size: found {batch_size}, expected at least 1")
        if options.sampling is not None:  # checks the ranges
            settings.build(Sampling, settings.as_table(options.sampling))
        work = CompletionWork(self, options, batch_size, allow_unknown, max_characters, observe)
        return stream_outputs(work, prompts, stream, first)

    def unseen_in(self, text: str) -> list[str]:
        return [surface for line in text.split("\n") for surface in self.unseen(line)]

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
        check_several(texts, "rate")
        rows = self.tokenizer.encode_batch([text.replace("\n", " ") for text in texts])
        return mean_log_probabilities(self.model, [[]] * len(rows), rows, self.device, batch_size)

    def evaluate(
        self,
        lines: str | Path | Iterable[str],
        *,
        batch_size: int = 64,
        progress: Callable[[int], None] | None = None,
    ) -> dict[str, float]:
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
        likelihood, accuracy = text_likelihood(
            self.model, plan, size, self.device, rows=batch_size, progress=progress or (lambda tokens: None)
        )
        return {
            "lines": count,
            "tokens": likelihood.tokens,
            "words": size.words,
            "characters": size.characters,
            "unknown": int((text.tokens == UNK).sum()),
            **likelihood.scores(),
            "token_accuracy": accuracy,
        }
