"""Predict labels, numbers, tags and masked tokens: runs whose outputs need no search."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, groupby, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dragoman.data.examples import Example, Fault
from dragoman.data.formats.base import Row
from dragoman.data.formats.masked_text import MASK
from dragoman.data.formats.media_targets import frame_tags
from dragoman.data.media.feature_extractor import FeatureExtractor
from dragoman.data.tokenizers.base import UNKNOWN_SURFACE
from dragoman.data.tokenizers.labels import LabelVocabulary
from dragoman.data.tokenizers.text_pair import PAIR_DELIMITER
from dragoman.decoding.fill_mask import MaskDecoder
from dragoman.decoding.labels import LabelPrediction
from dragoman.errors import ConfigError, DataError
from dragoman.inference.evaluation import Evaluation, as_examples, read_examples, read_files
from dragoman.inference.inputs import MEDIA_WINDOW, WINDOW, StreamOptions
from dragoman.inference.loaded import describe
from dragoman.inference.long_inputs import (
    LABEL_TOKENS,
    InputTooLongError,
    LengthLimits,
    OnWarning,
    over_long,
    over_many_characters,
    warn_caller,
)
from dragoman.inference.unseen import UnseenInputs, UnseenText
from dragoman.progress import check_interrupted
from dragoman.runs import Run
from dragoman.scoring.label_metrics import check_metric_names, score_labels
from dragoman.scoring.registry import metrics_for
from dragoman.tasks.base import encoder_of, length_limit
from dragoman.training.runtime import resolve_device
from dragoman.training.validation.mlm import masked_lm_scores

NO_PREDICTION = LabelPrediction("", None)  # of an empty text


class Labeler:
    """A trained run that classifies, regresses or tags."""

    writes = True  # whether an evaluation has predictions to write to a file

    def __init__(self, run: Run, device: str = "auto") -> None:
        head_decoder = run.task.head_decoder
        assert head_decoder is not None, "a run that searches is a Predictor"
        self.run, self.config, self.head_decoder = run, run.config, head_decoder
        self.device = resolve_device(device)
        self.source_tokenizer, self.target_tokenizer = run.tokenizers()
        self.unseen = UnseenText(run, self.source_tokenizer)
        self.labels = self.target_tokenizer.names if isinstance(self.target_tokenizer, LabelVocabulary) else ()
        self.example_format = run.task.example_format(run.config)
        self.collator = run.task.collator(run.config, self.source_tokenizer)
        self.model: Any = run.model(self.device)

    def __repr__(self) -> str:
        return describe(self, self.run, self.model, self.device)

    def predict(self, texts: Sequence[str], *, batch_size: int = 64) -> list[LabelPrediction]:
        """One prediction for each text, in order; an empty text gives an empty prediction.

        Separate two texts by a tab, and the words of a sentence or the numbers of a series by spaces.
        """
        if isinstance(texts, str):
            raise TypeError("predict takes a list of texts; for one text write predict([text])")
        return list(self.stream(texts, batch_size=batch_size))

    def stream(
        self,
        texts: Iterable[str],
        *,
        batch_size: int = 64,
        window: int = WINDOW,
        progress: Callable[[int], None] | None = None,
        on_warning: OnWarning | None = None,
        on_unreadable: Callable[[Fault], None] | None = None,
        on_unknown: Callable[[int, list[str]], None] | None = None,
        on_refused: Callable[[int, InputTooLongError], None] | None = None,
    ) -> Iterator[LabelPrediction]:
        """Predictions in the order of the texts, whatever their number, in bounded memory.

        A text that is too long is an error; if `on_refused` takes it, the prediction is empty. The same holds for a
        file that cannot be read and `on_unreadable`. A classifier reads the beginning of a text that has more tokens
        than its encoder has positions, and `on_warning` gets a line about it (None: a Python warning). `on_unknown`
        gets the number of each text with characters or words that training did not have, and these (None: one warning).
        """
        if isinstance(texts, str):
            raise TypeError("stream takes several texts; for one text write [text]")
        for name, value in (("batch_size", batch_size), ("window", window)):
            if value < 1:
                raise ConfigError(f"{name}: found {value}, expected at least 1")
        if isinstance(self.source_tokenizer, FeatureExtractor):
            window = min(window, MEDIA_WINDOW)
        unseen = UnseenInputs()
        stream = StreamOptions(
            window=window, progress=progress, on_warning=on_warning, on_unreadable=on_unreadable,
            on_unknown=on_unknown or unseen.add, on_refused=on_refused,
        )  # fmt: skip
        return unseen.watch(self._stream(iter(texts), batch_size, stream), on_warning)

    def _stream(self, texts: Iterator[str], rows: int, stream: StreamOptions) -> Iterator[LabelPrediction]:
        first = 1
        while inputs := list(islice(texts, stream.window)):
            yield from self._window(self._short_enough(inputs, first, stream), rows, first, stream)
            first += len(inputs)

    def _short_enough(self, texts: list[str], first: int, stream: StreamOptions) -> list[str]:
        """The texts; one that is too long is an error, or empty if the caller takes the error."""
        limits = LengthLimits.of(self.config)
        limits = limits._replace(tokens=max(LABEL_TOKENS, limits.tokens), tokens_setting="the maximum")
        out = list(texts)
        for number, text in enumerate(texts, first):
            if not (isinstance(text, str) and text.strip()):
                continue
            if self.source_tokenizer.is_text:
                problem, limit = over_long(text, self.source_tokenizer, limits)
            else:  # numbers, or names of files
                problem, limit = over_many_characters(text, limits)
            if not problem:
                continue
            error = InputTooLongError(
                stream.input_name(number), text, limit, problem, "a label may depend on all of it; shorten the text"
            )
            if stream.on_refused is None:
                raise error
            stream.on_refused(number, error)
            out[number - first] = ""
        return out

    def _window(self, texts: list[str], rows: int, first: int, stream: StreamOptions) -> list[LabelPrediction]:
        if (wrong := next((text for text in texts if not isinstance(text, str)), None)) is not None:
            raise TypeError(f"found {wrong!r} among the texts, expected strings")
        out = [NO_PREDICTION] * len(texts)
        indices = [index for index, text in enumerate(texts) if text.strip()]
        stream.done(len(texts) - len(indices))
        sources: list[list[Any]] = []
        targets: list[list[Any]] | None = None
        if isinstance(self.source_tokenizer, FeatureExtractor):
            indices = self._read_files(self.source_tokenizer, texts, indices, first, stream)
        for index in indices:  # one by one, so that an error names its input
            left, right = self.example_format.encode_inputs([texts[index]], self.source_tokenizer, first + index)
            if stream.on_unknown is not None and (unknown := self.unseen_in(texts[index])):
                stream.on_unknown(first + index, unknown)
            sources.append(self._readable_part(left[0], stream.input_name(first + index), stream.on_warning))
            if right is not None:
                targets = [*(targets or []), *right]
        if isinstance(self.source_tokenizer, FeatureExtractor):
            self.source_tokenizer.preload({})
        for chosen in self._batches_of_rows(sources, rows):
            check_interrupted()
            batch_targets = None if targets is None else [targets[row] for row in chosen]
            batch = self.collator.collate([sources[row] for row in chosen], batch_targets).to(self.device)
            predictions = self.head_decoder.decode(self.model, batch, self.target_tokenizer)
            for row, prediction in zip(chosen, predictions, strict=True):
                out[indices[row]] = prediction
            stream.done(len(chosen))
        return out

    def unseen_in(self, text: str) -> list[str]:
        """The characters or words of a text that training did not have."""
        if self.head_decoder.outputs not in ("labels", "tags"):
            return []
        return self.unseen(PAIR_DELIMITER.join(" ".join(part.split()) for part in text.split(PAIR_DELIMITER)))

    def _read_files(
        self, extractor: FeatureExtractor, paths: list[str], indices: list[int], first: int, stream: StreamOptions
    ) -> list[int]:
        """Read the files of a window together, an archive once; returns the indices of those that can be read."""
        found = extractor.encode_or_fault([paths[index] for index in indices])
        readable: dict[int, Any] = {}
        for index, features in zip(indices, found, strict=True):
            if not isinstance(features, Fault):
                readable[index] = features
                continue
            fault = Fault(stream.input_name(first + index), features.kind, str(features))
            if stream.on_unreadable is None:
                raise DataError(f"{fault}; leave such inputs out with --skip-unreadable")
            stream.on_unreadable(fault)
            stream.done(1)
        extractor.preload({paths[index]: features for index, features in readable.items()})
        return list(readable)

    def _batches_of_rows(self, sources: Sequence[Sequence[Any]], rows: int) -> Iterator[list[int]]:
        """Indices of rows of like lengths, `rows` in a batch; longer than training had them, each alone."""
        order = sorted(range(len(sources)), key=lambda row: len(sources[row]))
        longest = self.config.data.max_length * self.source_tokenizer.channels
        is_media = isinstance(self.source_tokenizer, FeatureExtractor)  # tokenizer.source limits their length
        usual = [row for row in order if is_media or len(sources[row]) <= longest]
        for start in range(0, len(usual), rows):
            yield usual[start : start + rows]
        yield from ([row] for row in order[len(usual) :])

    def _readable_part(self, row: Sequence[Any], where: str, on_warning: OnWarning | None) -> Any:
        """The source; a classifier of texts leaves out the end of one that is too long, any other run refuses it."""
        try:
            self._check_length(row, where)
            return row
        except DataError as error:
            if self.head_decoder.outputs != "labels" or not self.source_tokenizer.is_text:
                raise
            warn_caller(on_warning, f"{error}; the end of the text is not read")
        separator = getattr(self.source_tokenizer, "separator", None)
        parts = [list(part) for _, part in groupby(row, key=lambda token: token == separator)]
        for _ in range(len(row) - self._most_tokens(len(row))):
            max(parts, key=len).pop()  # the longer of two texts gives way
        return list(chain.from_iterable(parts))

    def _most_tokens(self, count: int) -> int:
        """The largest number of tokens up to `count` that the model can read."""

        def too_long(tokens: int) -> bool:
            try:
                self._check_length(range(tokens), "")
            except DataError:
                return True
            return False

        return bisect_left(range(1, count + 1), True, key=too_long)

    def _check_length(self, row: Sequence[Any], where: str) -> None:
        """Raise an error for a source longer than the model can read."""
        setting, maximum = length_limit(encoder_of(self.config))
        bounds = [(f"model.encoder.{setting}", maximum)]
        steps = getattr(getattr(self.config.model, "pooling", None), "steps", 0)
        bounds.append(("model.pooling.steps", steps or None))
        count = int(self.collator.source.padded_lengths(np.array([len(row)], np.int32))[0])
        for setting, maximum in bounds:
            if maximum is not None and count > maximum:
                raise DataError(f"{where}: found a length of {count}, expected at most the {maximum} of {setting}")

    def known(self, examples: Sequence[Example]) -> tuple[list[Example], list[Row], list[str]]:
        """The examples whose labels the run knows, the same in token ids, and an error for each other example."""
        known: list[Example] = []
        tokens: list[Row] = []
        errors = []
        rows = self.example_format.encode(examples, self.source_tokenizer, self.target_tokenizer)
        for example, row in zip(examples, rows, strict=True):
            if isinstance(row, Fault):
                errors.append(str(row))
            else:
                known.append(example)
                tokens.append((self._readable_part(row[0], example.location, lambda line: None), row[1]))  # told later
        return known, tokens, errors

    def _checked(
        self, pairs: str | Path | Sequence[Example | tuple[str, str]], metrics: str | Sequence[str], skip_unknown: bool
    ) -> tuple[list[Example], tuple[str, ...]]:
        """The examples of an evaluation and the names of its metrics, checked."""
        if isinstance(pairs, str | Path):
            pairs = read_examples(self.run, pairs)
        if not pairs:
            raise DataError("nothing to evaluate: no example was read")
        if skip_unknown and not self.labels:
            raise ConfigError(
                "--skip-unknown (skip_unknown=True) is for labels and tags; "
                f'{self.run.folder} has task = "{self.run.task.name}"'
            )
        names = (metrics,) if isinstance(metrics, str) else tuple(metrics)
        check_metric_names(metrics_for(self.head_decoder.outputs), names)
        return as_examples(pairs), names

    @torch.no_grad()
    def loss(self, rows: Sequence[Row], batch_size: int = 64) -> float:
        """The mean loss per label, number or word."""
        total, count = 0.0, 0
        ordered = sorted(rows, key=lambda row: len(row[0]))
        for start in range(0, len(ordered), batch_size):
            sources, targets = zip(*ordered[start : start + batch_size], strict=True)
            loss = self.model(self.collator.collate(sources, targets).to(self.device))
            total, count = total + float(loss.total), count + int(loss.count)
        return total / count

    def evaluate(
        self,
        pairs: str | Path | Sequence[Example | tuple[str, str]],
        *,
        batch_size: int = 64,
        metrics: str | Sequence[str] = (),
        skip_unknown: bool = False,
        progress: Callable[[int], None] | None = None,
        on_unreadable: Callable[[Fault], None] | None = None,
        on_warning: OnWarning | None = None,
    ) -> Evaluation:
        """Scores of the run on sources with their labels, numbers or tags, and the predictions behind them.

        A label that training did not have is an error, or with `skip_unknown` left out and counted as `unknown`. A file
        that cannot be read is an error too, or its fault goes to `on_unreadable`.
        """
        examples, names = self._checked(pairs, metrics, skip_unknown)
        unreadable: list[Fault] = []
        if isinstance(self.source_tokenizer, FeatureExtractor):
            examples, unreadable = self._readable(self.source_tokenizer, examples, on_unreadable)
        examples, rows, errors = self.known(examples)
        if errors and not skip_unknown:
            more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
            raise DataError(f"{errors[0]}{more}; leave such examples out with --skip-unknown (skip_unknown=True)")
        if not examples:
            raise DataError(f"nothing to evaluate: all {len(errors)} examples have labels that training did not have")
        texts = [example.model_input for example in examples]
        refused: list[InputTooLongError] = []

        def refuse(number: int, error: InputTooLongError) -> None:
            refused.append(error)
            place = examples[number - 1].location
            warn_caller(on_warning, f"{place}: {error.reason}; its empty answer counts as wrong")

        stream = self.stream(texts, batch_size=batch_size, progress=progress, on_warning=on_warning, on_refused=refuse)
        predictions = list(stream)
        values = [prediction.value for prediction in predictions]
        expected = [self._reference(example, row) for example, row in zip(examples, rows, strict=True)]
        scores: dict[str, Any] = {"segments": len(examples)}
        if unreadable:
            scores["unreadable"] = len(unreadable)
        if refused:
            scores["refused"] = len(refused)
        scores |= score_labels(metrics_for(self.head_decoder.outputs), values, expected, names, self.labels)
        scores["loss"] = self.loss(rows, batch_size)
        if errors:
            scores["unknown"] = len(errors)
        if by_label := self.head_decoder.report(values, expected):
            scores["labels"] = by_label
        return Evaluation(scores, predictions)

    def _readable(
        self, extractor: FeatureExtractor, examples: list[Example], on_unreadable: Callable[[Fault], None] | None
    ) -> tuple[list[Example], list[Fault]]:
        """The examples whose files can be read, which are read once; other files are errors, or reported."""
        readable, faults = read_files(extractor, examples, self)
        if faults and on_unreadable is None:
            more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
            raise DataError(f"{faults[0]}{more}; leave such examples out with --skip-unreadable")
        for fault in faults:
            assert on_unreadable is not None
            on_unreadable(fault)
        if not readable:
            raise DataError(f"nothing to evaluate: none of {len(faults)} files could be read")
        return readable, faults

    def _reference(self, example: Example, row: Row) -> Any:
        """The value of an example's target that metrics compare."""
        text = example.references[0].strip()
        if isinstance(self.source_tokenizer, FeatureExtractor) and self.head_decoder.outputs == "tags":
            return tuple(frame_tags(text, len(row[0]), self.source_tokenizer.config))  # one tag for each frame
        return self.head_decoder.parse_reference(text)


def restore_unknown(text: str, prediction: LabelPrediction) -> LabelPrediction:
    """The prediction with words outside the vocabulary as the input `text` has them."""
    if UNKNOWN_SURFACE not in prediction.text:
        return prediction
    for candidates in prediction.details["masks"]:
        text = text.replace(MASK, candidates[0]["text"], 1)
    return replace(prediction, text=text, value=text)


class MaskFiller(Labeler):
    """A masked language model: fills each [MASK] of a text."""

    writes = False

    def _window(self, texts: list[str], rows: int, first: int, stream: StreamOptions) -> list[LabelPrediction]:
        predictions = super()._window(texts, rows, first, stream)
        return [restore_unknown(text, prediction) for text, prediction in zip(texts, predictions, strict=True)]

    def evaluate(
        self,
        pairs: str | Path | Sequence[Example | tuple[str, str]],
        *,
        batch_size: int = 64,
        metrics: str | Sequence[str] = (),
        skip_unknown: bool = False,
        progress: Callable[[int], None] | None = None,
        on_unreadable: Callable[[Fault], None] | None = None,
        on_warning: OnWarning | None = None,
    ) -> Evaluation:
        """Scores of masked tokens, always the same ones of a text; the list of predictions is empty."""
        examples, names = self._checked(pairs, metrics, skip_unknown)
        scores = masked_lm_scores(self.model, self._batches(examples, batch_size, progress or (lambda _: None)))
        assert scores is not None
        wanted = {"loss", *(names if names and "all" not in names else scores)}
        for name in names:
            if name != "all" and name not in scores:
                raise DataError(f"metric: found '{name}', which needs model.next_sentence = true; this run has none")
        return Evaluation({"segments": len(examples)} | {name: scores[name] for name in scores if name in wanted}, [])

    def _batches(self, examples: Sequence[Example], count: int, done: Callable[[int], None]) -> Iterator[Any]:
        rows = self.example_format.encode(examples, self.source_tokenizer, self.target_tokenizer)
        usable = sorted((row for row in rows if len(row) == 2 and row[0]), key=lambda row: len(row[0]) + len(row[1]))
        if not usable:
            raise DataError(f"nothing to evaluate: no text among {len(examples)} is long enough")
        for start in range(0, len(usable), count):
            sources, targets = zip(*usable[start : start + count], strict=True)
            yield self.collator.collate(sources, targets).to(self.device)
            end = min(len(usable), start + count)
            done(len(examples) * end // len(usable) - len(examples) * start // len(usable))


LABELERS: dict[type, type[Labeler]] = {MaskDecoder: MaskFiller}  # by head decoder; the others use Labeler


def labeler_of(run: Run, device: str = "auto") -> Labeler:
    """The labeler of a run that needs no search."""
    return LABELERS.get(type(run.task.head_decoder), Labeler)(run, device)
