"""Predict labels, numbers, tags and masked tokens: runs whose outputs need no search."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

import numpy as np

from dragoman.base import ConfigError, DataError, check_interrupted
from dragoman.classical import FittedLabeler
from dragoman.data import Example, Fault, Rows, batches_of_indices
from dragoman.data.formats import MASK, frame_tags
from dragoman.data.formats import Row as ExampleRow
from dragoman.data.tokenizers import PAIR_DELIMITER, UNKNOWN_SURFACE
from dragoman.decoding import LabelPrediction, check_at_least, replace_from_keywords
from dragoman.decoding.constraints import ConstrainedInput
from dragoman.inference.evaluation import Evaluation, first_of, given_examples, readable_examples, with_left_out
from dragoman.inference.inputs import StreamKeywords, StreamOptions, Warn
from dragoman.inference.loaded import LoadedRun
from dragoman.inference.long_inputs import LABEL_TOKENS, InputTooLongError
from dragoman.inference.opened_inputs import open_inputs
from dragoman.inference.pipeline import Done, Row, Work, check_several, stream_outputs
from dragoman.inference.segments import Part
from dragoman.models import Likelihood
from dragoman.runs import Run
from dragoman.runs.tasks import encoder_of, length_limit
from dragoman.scoring import check_metric_names, metrics_for, score_labels

if TYPE_CHECKING:
    from dragoman.data import Batch, Collator

T = TypeVar("T")  # a token, or the features of a frame


@dataclass(frozen=True)
class LabelWork(Work[LabelPrediction]):
    """What a labeler does to inputs in one call."""

    run: Labeler
    batch_size: int

    empty = LabelPrediction("", None)

    def plan(self, item: ConstrainedInput, name: str, warn: Warn) -> list[Part] | None:
        limits = self.run.length_limits
        limits = limits._replace(tokens=max(LABEL_TOKENS, limits.tokens), tokens_setting="the maximum")
        tokenizer = self.run.source_tokenizer
        # Other sources are numbers, or names of files: their characters say nothing about their length.
        if excess := limits.excess(item.text, tokenizer if tokenizer.is_text else None):
            raise InputTooLongError(name, item.text, excess, "a label may depend on all of it; shorten the text")
        return None

    def encode(self, rows: Sequence[Row]) -> None:
        run = self.run
        if run.reads_files:  # the format asks for them again by their paths
            run.extractor.preload({row.text: row.source for row in rows})
        for row in rows:  # one by one, so that an error names its input
            sources, targets = run.example_format.encode_inputs([row.text], run.source_tokenizer, row.name)
            row.source = sources[0], targets and targets[0]
        if run.reads_files:
            run.extractor.preload({})

    def check_source(self, row: Row, warn: Warn) -> None:
        source, target = row.source
        row.source = self.run.readable_part(source, row.name, warn), target

    def outputs(self, rows: Sequence[Row], done: Done) -> list[LabelPrediction]:
        run, predictions = self.run, [self.empty] * len(rows)
        for indices in self._batches([len(row.source[0]) for row in rows]):
            sources, targets = zip(*(rows[index].source for index in indices), strict=True)
            decoded = run.decode(sources, None if targets[0] is None else targets)
            for index, prediction in zip(indices, decoded, strict=True):
                predictions[index] = run.restore(rows[index].text, prediction)
                done(rows[index])
        return predictions

    def _batches(self, lengths: Sequence[int]) -> Iterator[list[int]]:
        """Indices of rows of like lengths; those longer than training had them, each alone."""
        run = self.run
        longest = run.config.data.max_length * run.source_tokenizer.channels
        usual = [index for index, length in enumerate(lengths) if run.reads_files or length <= longest]
        for numbers in batches_of_indices([lengths[index] for index in usual], self.batch_size):
            yield [usual[number] for number in numbers]
        for index in sorted({*range(len(lengths))} - {*usual}, key=lambda index: lengths[index]):
            check_interrupted()
            yield [index]


class Labeler(LoadedRun):
    """A trained run that classifies, regresses or tags."""

    writes = True  # whether an evaluation has predictions to write to a file

    def __init__(self, run: Run, device: str = "auto") -> None:
        super().__init__(run, device)
        head_decoder = run.task.head_decoder
        assert head_decoder is not None, "a run that searches is a Predictor"
        self.head_decoder = head_decoder
        self.example_format = run.task.example_format(run.config)
        self.model = run.model(None if run.is_fitted else self.device)

    @property
    def labels(self) -> tuple[str, ...]:  # type: ignore[override]
        return self.target_tokenizer.names

    @cached_property
    def collator(self) -> Collator:
        """How rows become batches of tensors, which a fitted model does without."""
        return self.run.task.collator(self.config, self.source_tokenizer)

    def decode(self, sources: Rows, targets: Rows | None) -> list[LabelPrediction]:
        """The predictions for rows; the targets of a tagger say where words begin."""
        if isinstance(self.model, FittedLabeler):
            return self.head_decoder.predictions(self.model.predict_rows(sources, targets), self.target_tokenizer)
        batch = self.collator.collate(sources, targets).to(self.device)
        return self.head_decoder.decode(self.model, batch, self.target_tokenizer)

    @property
    def likelihood(self) -> Likelihood:
        return "none"  # of texts

    def predict(self, texts: Path | Iterable[object], *, batch_size: int = 64) -> list[LabelPrediction]:
        """One prediction for each text, in order; an empty text gives an empty prediction.

        `texts` are strings, or the sources of a file (a Path), of rows or of a DataFrame (`inference.open_inputs`).
        Separate two texts by a tab, and the words of a sentence or the numbers of a series by spaces.
        """
        check_several(texts, "predict")
        return list(self.stream(open_inputs(self.run, texts), batch_size=batch_size))

    def stream(
        self,
        texts: Iterable[str | ConstrainedInput],
        stream: StreamOptions | None = None,
        *,
        batch_size: int = 64,
        **keywords: Unpack[StreamKeywords],
    ) -> Iterator[LabelPrediction]:
        """Predictions in the order of the texts, whatever their number, in bounded memory.

        Keywords are options of `StreamOptions`. A classifier reads the beginning of a text that has more tokens than
        its encoder has positions, and warns of it; any other run refuses such a text.
        """
        check_several(texts, "stream")
        check_at_least(1, batch_size=batch_size)
        (stream,) = replace_from_keywords(dict(keywords), stream or StreamOptions())
        return stream_outputs(LabelWork(self, batch_size), texts, stream)

    def restore(self, text: str, prediction: LabelPrediction) -> LabelPrediction:
        """The prediction as the reader of the input `text` needs it."""
        return prediction

    def unseen_in(self, text: str) -> list[str]:
        if self.head_decoder.outputs not in ("labels", "tags"):
            return []
        return self.unseen(PAIR_DELIMITER.join(" ".join(part.split()) for part in text.split(PAIR_DELIMITER)))

    def readable_part(self, row: list[T], name: str, warn: Warn) -> list[T]:
        """The source; a classifier of texts leaves out the end of one that is too long, any other run refuses it."""
        if not (problem := self._length_problem(len(row))):
            return row
        if self.head_decoder.outputs != "labels" or not self.source_tokenizer.is_text:
            raise DataError(f"{name}: {problem}")
        warn(f"{name}: {problem}; the end of the text is not read")
        separator = getattr(self.source_tokenizer, "separator", None)
        parts = [list(part) for _, part in groupby(row, key=lambda token: token == separator)]
        fitting = bisect_left(range(1, len(row) + 1), True, key=lambda count: bool(self._length_problem(count)))
        for _ in range(len(row) - fitting):
            max(parts, key=len).pop()  # the longer of two texts gives way
        return list(chain.from_iterable(parts))

    def _length_problem(self, length: int) -> str:
        """What is wrong with a source of so many tokens; empty if the model can read it."""
        setting, positions = length_limit(encoder_of(self.config))
        steps = getattr(getattr(self.config.model, "pooling", None), "steps", 0)
        for name, maximum in ((f"model.encoder.{setting}", positions), ("model.pooling.steps", steps or None)):
            if maximum is None:
                continue
            count = int(self.collator.source.padded_lengths(np.array([length], np.int32))[0])
            if count > maximum:
                return f"found a length of {count}, expected at most the {maximum} of {name}"
        return ""

    def known(self, examples: Sequence[Example]) -> tuple[list[Example], list[ExampleRow], list[str]]:
        """The examples whose labels the run knows, the same in token ids, and an error for each other example."""
        known: list[Example] = []
        tokens: list[ExampleRow] = []
        errors = []
        rows = self.example_format.encode(examples, self.source_tokenizer, self.target_tokenizer)
        for example, row in zip(examples, rows, strict=True):
            if isinstance(row, Fault):
                errors.append(str(row))
            else:
                known.append(example)
                tokens.append((self.readable_part(row[0], example.location, lambda line: None), row[1]))  # told later
        return known, tokens, errors

    def loss(self, rows: Sequence[ExampleRow], batch_size: int = 64) -> float:
        """The mean loss per label, number or word."""
        total, count = 0.0, 0
        for indices in batches_of_indices([len(source) for source, _ in rows], batch_size):
            sources, targets = zip(*(rows[index] for index in indices), strict=True)
            own_total, own_count = self._total_loss(sources, targets)
            total, count = total + own_total, count + own_count
        return total / count

    def _total_loss(self, sources: Rows, targets: Rows) -> tuple[float, int]:
        if isinstance(self.model, FittedLabeler):
            return self.model.total_loss(sources, targets)
        import torch

        with torch.no_grad():
            loss = self.model(self.collator.collate(sources, targets).to(self.device))
        return float(loss.total), int(loss.count)

    def evaluate(
        self,
        pairs: str | Path | Iterable[object],
        stream: StreamOptions | None = None,
        *,
        batch_size: int = 64,
        metrics: str | Sequence[str] = (),
        skip_unknown: bool = False,
        skip_unreadable: bool = False,
        **keywords: Unpack[StreamKeywords],
    ) -> Evaluation[LabelPrediction]:
        """Scores of the run on sources with their labels, numbers or tags, and the predictions behind them.

        Keywords are options of `StreamOptions`. A label that training did not have is an error, or with `skip_unknown`
        left out and counted as `unknown`. A file that cannot be read is an error too, unless `skip_unreadable` or
        `on_unreadable`, which gets its fault. A masked language model has scores of masked tokens, always the same ones
        of a text, and no predictions.
        """
        (stream,) = replace_from_keywords(dict(keywords), stream or StreamOptions())
        every = given_examples(self.run, pairs)
        if not every:
            raise DataError("nothing to evaluate: no example was read")
        if skip_unknown and not self.labels:
            raise ConfigError(
                "evaluation.skip_unknown (from Python skip_unknown) is for labels and tags; "
                f'{self.run.folder} has task = "{self.run.task.name}"'
            )
        names = (metrics,) if isinstance(metrics, str) else tuple(metrics)
        check_metric_names(metrics_for(self.head_decoder.outputs), names)
        skip_unreadable = skip_unreadable or stream.on_unreadable is not None
        readable, unreadable = readable_examples(self, every, skip_unreadable, stream.on_unreadable)
        scores, examples, outputs = self._scores(readable, names, batch_size, skip_unknown, stream)
        predictions = with_left_out(every, examples, outputs, LabelWork.empty) if self.writes else []
        return Evaluation(scores | ({"unreadable": len(unreadable)} if unreadable else {}), predictions)

    def _scores(
        self, readable: list[Example], names: Sequence[str], batch_size: int, skip_unknown: bool, stream: StreamOptions
    ) -> tuple[dict[str, Any], list[Example], list[LabelPrediction]]:
        examples, rows, errors = self.known(readable)
        if errors and not skip_unknown:
            raise first_of(errors, "evaluation.skip_unknown=true (from Python skip_unknown=True)")
        if not examples:
            raise DataError(f"nothing to evaluate: all {len(errors)} examples have labels that training did not have")
        refused: list[InputTooLongError] = []

        def refuse(number: int, error: InputTooLongError) -> None:
            refused.append(error)
            place = examples[number - 1].location
            stream.warn(f"{place}: {error.reason}; its empty answer counts as wrong")

        texts, own = [example.model_input for example in examples], replace(stream, on_refused=refuse)
        predictions = list(self.stream(texts, own, batch_size=batch_size))
        values = [prediction.value for prediction in predictions]
        if self.reads_files and self.head_decoder.outputs == "tags":  # one tag for each frame
            known = zip(examples, rows, strict=True)
            config = self.extractor.config
            expected = [tuple(frame_tags(example.references[0].strip(), len(row[0]), config)) for example, row in known]
        else:
            expected = [self.head_decoder.parse_reference(example.references[0].strip()) for example in examples]
        scores: dict[str, Any] = {"segments": len(examples)}
        if refused:
            scores["refused"] = len(refused)
        scores |= score_labels(metrics_for(self.head_decoder.outputs), values, expected, names, self.labels)
        scores["loss"] = self.loss(rows, batch_size)
        if errors:
            scores["unknown"] = len(errors)
        if by_label := self.head_decoder.report(values, expected):
            scores["labels"] = by_label
        return scores, examples, predictions


class MaskFiller(Labeler):
    """A masked language model: fills each [MASK] of a text."""

    writes = False

    def restore(self, text: str, prediction: LabelPrediction) -> LabelPrediction:
        """Words outside the vocabulary stay as the input has them."""
        if UNKNOWN_SURFACE not in prediction.text:
            return prediction
        for candidates in prediction.details["masks"]:
            text = text.replace(MASK, candidates[0]["text"], 1)
        return replace(prediction, text=text, value=text)

    def _scores(
        self, readable: list[Example], names: Sequence[str], batch_size: int, skip_unknown: bool, stream: StreamOptions
    ) -> tuple[dict[str, Any], list[Example], list[LabelPrediction]]:
        rows = self.example_format.encode(readable, self.source_tokenizer, self.target_tokenizer)
        usable = [row for row in rows if not isinstance(row, Fault) and row[0]]
        if not usable:
            raise DataError(f"nothing to evaluate: no text among {len(readable)} is long enough")
        stream.done(len(readable) - len(usable))

        def batches() -> Iterator[Batch]:
            for indices in batches_of_indices([len(source) + len(target) for source, target in usable], batch_size):
                sources, targets = zip(*(usable[index] for index in indices), strict=True)
                yield self.collator.collate(sources, targets).to(self.device)
                stream.done(len(indices))

        from dragoman.training import masked_lm_scores

        scores = masked_lm_scores(self.model, batches())
        wanted = {"loss", *(names if names and "all" not in names else scores)}
        for name in names:
            if name != "all" and name not in scores:
                raise DataError(f"metric: found '{name}', which needs model.next_sentence = true; this run has none")
        return {"segments": len(readable)} | {name: scores[name] for name in scores if name in wanted}, [], []


def labeler_of(run: Run, device: str = "auto") -> Labeler:
    """Open a run that predicts labels, tags, numbers or masked tokens."""
    head_decoder = run.task.head_decoder
    kind = MaskFiller if head_decoder is not None and head_decoder.outputs == "masked tokens" else Labeler
    return kind(run, device)
