"""Continue prompts and score texts with a language model."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
from numpy.typing import NDArray

from dragoman.base import ConfigError, DataError, RunError
from dragoman.base import config as settings
from dragoman.data import Example
from dragoman.data import read_examples as read_files
from dragoman.data.tokenizers import EOS, UNK
from dragoman.decoding import Hypothesis, continue_greedily, replace_from_keywords, split_at_eos
from dragoman.decoding.constraints import ConstrainedInput
from dragoman.inference.completion import CompletionOptions, Observe
from dragoman.inference.dynamic_evaluation import (
    BATCHES,
    STREAMS,
    DynamicEvaluation,
    dynamic_likelihood,
    gradient_sizes,
)
from dragoman.inference.evaluation import read_examples
from dragoman.inference.inputs import StreamKeywords, StreamOptions, Warn
from dragoman.inference.loaded import LoadedRun
from dragoman.inference.long_inputs import InputTooLongError
from dragoman.inference.opened_inputs import open_inputs
from dragoman.inference.pipeline import Done, Row, Work, check_several, stream_outputs
from dragoman.inference.segments import Part
from dragoman.inference.target_scores import ScoreWork, TargetScore, target_score, token_scores
from dragoman.inference.unseen import UnseenText
from dragoman.runs import Run
from dragoman.scoring import TextLikelihood, TextSize, text_size

if TYPE_CHECKING:
    import torch

    from dragoman.decoding import Sampling, StopAt, TokenChooser

LINES = 10_000  # tokenised together


def check_length(model: Any, prompt: Sequence[int], max_length: int, name: str) -> None:
    """Refuse a prompt that leaves no positions for its completion."""
    size, longest = len(prompt) + 1, model.max_positions
    if longest is not None and size + max_length - 1 > longest:
        raise DataError(
            f"{name}: found {size} tokens (with the start of the line) and {max_length} to write, "
            f"expected at most {longest} together (model.stack.positions.max_positions)"
        )


class CompletionKeywords(StreamKeywords, total=False):
    """The fields of `CompletionOptions` and `StreamOptions`."""

    max_length: int
    sampling: Sampling | None
    samples: int
    one_line: bool
    allow_unknown: bool
    batch_size: int
    max_characters: int | None
    observe: Observe | None


def complete(
    model: Any, prompts: Sequence[Sequence[int]], options: CompletionOptions, device: torch.device | None = None
) -> list[list[Hypothesis]]:
    """The continuations of every prompt by a LanguageModel; each depends on its own prompt and the seed alone.

    Prompts of equal length are read together.
    """
    contexts = [[EOS, *prompt] for prompt in prompts]  # a text begins where the line before it ended
    if model.array_text and options.sampling is None and options.observe is None:
        return [[continue_greedily(model, row, options.max_length, options.one_line)] for row in contexts]
    completions: list[list[Hypothesis]] = [[] for _ in prompts]
    jobs = [(index, sample) for index in range(len(prompts)) for sample in range(options.samples)]
    jobs.sort(key=lambda job: len(contexts[job[0]]))
    for _, group in groupby(jobs, key=lambda job: len(contexts[job[0]])):
        equal_length = list(group)
        for begin in range(0, len(equal_length), options.batch_size):
            chunk = equal_length[begin : begin + options.batch_size]
            outputs = _complete(model, contexts, chunk, options, device)
            for (index, _), completion in zip(chunk, outputs, strict=True):
                completions[index].append(completion)
    return completions


def _complete(
    model: Any,
    contexts: Sequence[Sequence[int]],
    jobs: Sequence[tuple[int, int]],
    options: CompletionOptions,
    device: torch.device | None,
) -> list[Hypothesis]:
    """Continuations of jobs (index of a prompt, number of the sample) of equal length; each prompt is read once."""
    import torch

    from dragoman.data import token_batch
    from dragoman.decoding import argmax_token, greedy_search, sample_key, token_sampler

    indices = sorted({index for index, _ in jobs})
    source = torch.tensor([contexts[index] for index in indices], device=device)
    with torch.no_grad():
        state = model.start(token_batch(source))
    row_of = {index: row for row, index in enumerate(indices)}
    state = state.select(torch.tensor([row_of[index] for index, _ in jobs], device=device))
    choose: TokenChooser = argmax_token
    if (sampling := options.sampling) is not None:
        keys = [sample_key(sampling.seed, contexts[index], sample) for index, sample in jobs]
        choose = token_sampler(keys, sampling)
    if options.observe is not None:
        choose = options.observe(choose)
    limits = torch.full((len(jobs),), options.max_length, device=device)
    stop_at: StopAt = "eos-or-limit" if options.one_line else "limit"
    return greedy_search(model.step, state, limits, choose=choose, stop_at=stop_at)


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
    """What a completer does to prompts in one call."""

    run: Completer
    options: CompletionOptions

    empty = []  # noqa: RUF012  (nobody changes it)
    reads_empty = True  # an empty prompt begins a new line

    def plan(self, item: ConstrainedInput, name: str, warn: Warn) -> list[Part] | None:
        if self.options.max_characters is not None:
            limits = self.run.length_limits._replace(characters=self.options.max_characters)
            if excess := limits.excess(item.text):
                raise InputTooLongError(name, item.text, excess, "send the end of the prompt alone")
        return None

    def encode(self, rows: Sequence[Row]) -> None:
        for row in rows:
            row.source = self.run.encode(row.text, row.name, self.options.allow_unknown)

    def check_source(self, row: Row, warn: Warn) -> None:
        check_length(self.run.model, row.source, self.options.max_length, row.name)

    def outputs(self, rows: Sequence[Row], done: Done) -> list[list[Completed]]:
        run, sources = self.run, [row.source for row in rows]
        completions = complete(run.model, sources, self.options, None if run.run.is_fitted else run.device)
        for row in rows:
            done(row)
        return [
            [self._completed(row, completion) for completion in several]
            for row, several in zip(rows, completions, strict=True)
        ]

    def _completed(self, row: Row, completion: Hypothesis) -> Completed:
        run, tokens, scores = self.run, completion.tokens, completion.token_scores
        ended = self.options.one_line and tokens[-1] == EOS  # at the end of its line, not at the maximum length
        text = run.joined(row.text, row.source, tokens[: -1 if ended else None])
        return Completed(text, sum(scores) / len(scores), tuple(run.tokenizer.pieces(tokens)), scores, ended)


@dataclass(frozen=True)
class LineScoreWork(Work[TargetScore]):
    """The probabilities of texts as lines."""

    run: Completer
    batch_size: int

    empty = ScoreWork.empty
    reads_empty = True

    def encode(self, rows: Sequence[Row]) -> None:
        lines = self.run.tokenizer.encode_batch([row.text.replace("\n", " ") for row in rows])
        for row, line in zip(rows, lines, strict=True):
            row.source = [], line

    def outputs(self, rows: Sequence[Row], done: Done) -> list[TargetScore]:
        from dragoman.data import batch_of

        run, pairs = self.run, [row.source for row in rows]
        found = token_scores(run.model, pairs, batch_of, run.device, self.batch_size, lambda index: done(rows[index]))
        return [
            target_score(run.tokenizer.pieces, *both) for both in zip((line for _, line in pairs), found, strict=True)
        ]


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
        self.model = run.model(None if run.is_fitted else self.device)

    def complete(
        self,
        prompts: Path | Iterable[object],
        options: CompletionOptions | None = None,
        **keywords: Unpack[CompletionKeywords],
    ) -> list[list[Completed]]:
        """The completions of every prompt, of a file (a Path) too: see `stream` and `inference.open_inputs`."""
        check_several(prompts, "complete", "prompt")
        return list(self.stream(open_inputs(self.run, prompts), options, **keywords))

    def stream(
        self,
        prompts: Iterable[str | ConstrainedInput],
        options: CompletionOptions | None = None,
        stream: StreamOptions | None = None,
        **keywords: Unpack[CompletionKeywords],
    ) -> Iterator[list[Completed]]:
        """The completions of every prompt, in order and in bounded memory.

        Keywords are fields of `CompletionOptions` and `StreamOptions`. An empty prompt begins a new line, and "\\n" in
        a prompt ends one.
        """
        check_several(prompts, "stream", "prompt")
        stream = stream or StreamOptions(input_name="prompt {}".format)
        options, stream = replace_from_keywords(dict(keywords), options or CompletionOptions(), stream)
        if options.sampling is not None:  # checks the ranges
            from dragoman.decoding import Sampling

            settings.build(Sampling, settings.as_table(options.sampling))
        return stream_outputs(CompletionWork(self, options), prompts, stream)

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
                    f"{self.tokenizer.kind}; write it otherwise, or read it as <unk> with allow_unknown=true "
                    "(from Python allow_unknown=True)"
                )
            row += [EOS, *tokens] if number else tokens
        return row

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens; every <eos> begins a new line."""
        return "\n".join(self.tokenizer.decode(line) for line in split_at_eos(tokens))

    def joined(self, prompt: str, row: Sequence[int], following: Sequence[int]) -> str:
        """A prompt and its continuation; unknown words of the prompt stay as the user wrote them."""
        text = self.decode([*row, *following])
        return prompt + text[len(self.decode(row)) :] if UNK in row else text

    def rate(self, texts: Sequence[str], batch_size: int = 64) -> list[float]:
        """The mean log-probability per token of every text as a line of its own, <eos> included; −∞: it is too long."""
        check_several(texts, "rate")
        return [score.score for score in self.score(texts, batch_size=batch_size)]

    def score(
        self,
        texts: Iterable[str],
        stream: StreamOptions | None = None,
        *,
        batch_size: int = 64,
        **keywords: Unpack[StreamKeywords],
    ) -> list[TargetScore]:
        """How probable each text is as a line of its own, token by token; −∞: it is longer than the model can write."""
        check_several(texts, "score")
        (stream,) = replace_from_keywords(dict(keywords), stream or StreamOptions())
        return list(stream_outputs(LineScoreWork(self, batch_size), texts, stream))

    def evaluate(
        self,
        lines: str | Path | Iterable[str],
        *,
        batch_size: int = 64,
        progress: Callable[[int], None] | None = None,
        dynamic: DynamicEvaluation | None = None,
    ) -> dict[str, float]:
        """The perplexities of a running text by token, word and character; they do not depend on the batch size.

        With `dynamic` the model goes on learning from what it has read; this needs the training data for statistics.

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
        size, count, blocks = TextSize(), 0, []
        waiting = iter(lines)
        while block := list(islice(waiting, LINES)):
            size += text_size(block)
            count += len(block)
            blocks.append(self._tokens(block))
        tokens = np.concatenate([np.array([EOS], np.int32), *blocks])
        if not count:
            raise DataError("nothing to evaluate: no line was read")
        done = progress or (lambda tokens: None)
        likelihood, accuracy = self._likelihood(tokens, size, batch_size, done, dynamic)
        return {
            "lines": count,
            "tokens": likelihood.tokens,
            "words": size.words,
            "characters": size.characters,
            "unknown": int((tokens == UNK).sum()),
            **likelihood.scores(),
            "token_accuracy": accuracy,
        }

    def _likelihood(
        self,
        tokens: NDArray[np.int32],
        size: TextSize,
        batch_size: int,
        done: Callable[[int], None],
        dynamic: DynamicEvaluation | None,
    ) -> tuple[TextLikelihood, float]:
        """The likelihood of a text, and the accuracy."""
        if dynamic is not None and self.run.is_fitted:
            raise ConfigError(
                f'evaluation.dynamic: learns by gradients, found model.kind = "{self.config.model.kind}" in '
                f"{self.run.folder}, which has none; leave it out"
            )
        if self.model.array_text:
            nats, right = 0.0, 0
            for score, correct, count in self.model.text_scores(tokens):
                nats, right = nats - score, right + correct
                done(count)
            return TextLikelihood(nats, len(tokens) - 1, size), right / max(1, len(tokens) - 1)
        from dragoman.data import OverlappingBpttPlan
        from dragoman.training import text_likelihood

        if dynamic is not None:
            sizes = gradient_sizes(self.model, self._training_text(dynamic.segment), dynamic.segment, self.device)
            return dynamic_likelihood(self.model, tokens, sizes, dynamic, size, self.device, done)
        plan = OverlappingBpttPlan(tokens, self.config.model.segment)
        return text_likelihood(self.model, plan, size, self.device, rows=batch_size, progress=done)

    def _tokens(self, lines: list[str]) -> NDArray[np.int32]:
        rows = self.tokenizer.encode_batch(lines)
        return np.fromiter((token for row in rows for token in (*row, EOS)), np.int32)

    def _training_text(self, segment: int) -> NDArray[np.int32]:
        """The beginning of the training data, as long as statistics of gradients need it."""
        data, tokens, length = self.config.data, [np.array([EOS], np.int32)], 0
        items = read_files(data, data.train, example_format=self.run.task.example_format(self.config))
        lines = (item.references[0] for item in items if isinstance(item, Example))
        while length < STREAMS * BATCHES * segment and (block := list(islice(lines, LINES))):
            tokens.append(self._tokens(block))
            length += len(tokens[-1])
        return np.concatenate(tokens)
