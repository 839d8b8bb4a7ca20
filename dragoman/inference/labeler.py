"""Text in, answers out, for runs that need no search: labels, numbers and tags."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import torch

from dragoman.data.examples import Example, Fault
from dragoman.data.formats.base import Row
from dragoman.data.formats.masked_text import MASK
from dragoman.data.tokenizers.base import UNKNOWN_SURFACE
from dragoman.data.tokenizers.labels import LabelVocabulary
from dragoman.decoding.fill_mask import MaskDecoder
from dragoman.decoding.labels import LabelPrediction
from dragoman.errors import ConfigError, DataError
from dragoman.inference.evaluation import as_examples
from dragoman.inference.inputs import WINDOW
from dragoman.runs import Run, resolve_device
from dragoman.scoring.label_metrics import check_metric_names, score_labels
from dragoman.scoring.registry import metrics_for
from dragoman.tasks.base import encoder_of, length_limit
from dragoman.training.validation.mlm import masked_lm_scores

NOTHING = LabelPrediction("", None)


class Labeler:
    """A trained run that classifies, regresses or tags, ready to be asked."""

    writes = True  # whether an evaluation has answers to keep

    def __init__(self, run: Run, device: str = "auto") -> None:
        head_decoder = run.task.head_decoder
        assert head_decoder is not None, "a run that searches is a Predictor"
        self.run, self.config, self.head_decoder = run, run.config, head_decoder
        self.device = resolve_device(device)
        self.source_tokenizer, self.target_tokenizer = run.tokenizers()
        self.labels = self.target_tokenizer.names if isinstance(self.target_tokenizer, LabelVocabulary) else ()
        self.example_format = run.task.example_format(run.config)
        self.collator = run.task.collator(run.config, self.source_tokenizer)
        self.model: Any = run.model(self.device)

    def predict(self, texts: Sequence[str], *, batch_size: int = 64) -> list[LabelPrediction]:
        """One answer per text, in order; an empty text gives an empty answer.

        Two texts have a tab between them, the words of a sentence to be tagged and the numbers of a series spaces.
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
    ) -> Iterator[LabelPrediction]:
        """Answers in the order of the texts, whatever their number, in bounded memory."""
        if isinstance(texts, str):
            raise TypeError("stream takes several texts; for one text write [text]")
        for name, value in (("batch_size", batch_size), ("window", window)):
            if value < 1:
                raise ConfigError(f"{name}: found {value}, expected at least 1")
        return self._stream(iter(texts), batch_size, window, progress or (lambda _: None))

    def _stream(
        self, texts: Iterator[str], rows: int, window: int, done: Callable[[int], None]
    ) -> Iterator[LabelPrediction]:
        first = 1
        while together := list(islice(texts, window)):
            yield from self._window(together, rows, first, done)
            first += len(together)

    def _window(self, texts: list[str], rows: int, first: int, done: Callable[[int], None]) -> list[LabelPrediction]:
        if (wrong := next((text for text in texts if not isinstance(text, str)), None)) is not None:
            raise TypeError(f"found {wrong!r} among the texts, expected strings")
        out = [NOTHING] * len(texts)
        places = [place for place, text in enumerate(texts) if text.strip()]
        done(len(texts) - len(places))
        sources: list[list[Any]] = []
        targets: list[list[Any]] | None = None
        for place in places:  # one by one, so that a mistake names its input
            left, right = self.example_format.encode_inputs([texts[place]], self.source_tokenizer, first + place)
            self._check_length(left[0], f"input {first + place}")
            sources += left
            if right is not None:
                targets = [*(targets or []), *right]
        order = sorted(range(len(places)), key=lambda index: len(sources[index]))
        for start in range(0, len(order), rows):
            chosen = order[start : start + rows]
            some = None if targets is None else [targets[index] for index in chosen]
            batch = self.collator.collate([sources[index] for index in chosen], some).to(self.device)
            answers = self.head_decoder.decode(self.model, batch, self.target_tokenizer)
            for index, answer in zip(chosen, answers, strict=True):
                out[places[index]] = answer
            done(len(chosen))
        return out

    def _check_length(self, row: Sequence[Any], where: str) -> None:
        """Refuse what the model has no room for."""
        bound, most = length_limit(encoder_of(self.config))
        bounds = [(f"model.encoder.{bound}", most)]
        steps = getattr(getattr(self.config.model, "pooling", None), "steps", 0)
        bounds.append(("model.pooling.steps", steps or None))
        count = int(self.collator.source.padded_lengths(np.array([len(row)], np.int32))[0])
        for place, limit in bounds:
            if limit is not None and count > limit:
                raise DataError(f"{where}: found a length of {count}, expected at most the {limit} of {place}")

    def known(self, examples: Sequence[Example]) -> tuple[list[Example], list[Row], list[str]]:
        """The examples whose labels training had, as they are and in tokens, and what is wrong with the others."""
        kept: list[Example] = []
        tokens: list[Row] = []
        wrong = []
        rows = self.example_format.encode(examples, self.source_tokenizer, self.target_tokenizer)
        for example, row in zip(examples, rows, strict=True):
            if isinstance(row, Fault):
                wrong.append(str(row))
            else:
                self._check_length(row[0], example.location)
                kept.append(example)
                tokens.append(row)
        return kept, tokens, wrong

    def _checked(
        self, pairs: Sequence[Example | tuple[str, str]], metrics: str | Sequence[str], skip_unknown: bool
    ) -> tuple[list[Example], tuple[str, ...]]:
        """The examples of an evaluation and the names of its metrics, if that is what can be asked of this run."""
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
        """The mean loss of a label, number or word."""
        total, count = 0.0, 0
        kept = sorted(rows, key=lambda row: len(row[0]))
        for start in range(0, len(kept), batch_size):
            some = kept[start : start + batch_size]
            loss = self.model(self.collator.collate([one[0] for one in some], [one[1] for one in some]).to(self.device))
            total, count = total + float(loss.total), count + int(loss.count)
        return total / count

    def evaluate(
        self,
        pairs: Sequence[Example | tuple[str, str]],
        *,
        batch_size: int = 64,
        metrics: str | Sequence[str] = (),
        skip_unknown: bool = False,
        progress: Callable[[int], None] | None = None,
    ) -> tuple[dict[str, Any], list[LabelPrediction]]:
        """Scores of the run on sources with their labels, numbers or tags, and the answers behind them.

        A label that training did not have is an error, or with `skip_unknown` left out and counted as `unknown`.
        """
        examples, names = self._checked(pairs, metrics, skip_unknown)
        examples, rows, wrong = self.known(examples)
        if wrong and not skip_unknown:
            more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
            raise DataError(f"{wrong[0]}{more}; leave such examples out with --skip-unknown (skip_unknown=True)")
        if not examples:
            raise DataError(f"nothing to evaluate: all {len(wrong)} examples have labels that training did not have")
        texts = [example.source for example in examples]
        answers = list(self.stream(texts, batch_size=batch_size, progress=progress))
        found = [answer.value for answer in answers]
        expected = [self.head_decoder.parse_reference(example.references[0]) for example in examples]
        scores: dict[str, Any] = {"segments": len(examples)}
        scores |= score_labels(metrics_for(self.head_decoder.outputs), found, expected, names, self.labels)
        scores["loss"] = self.loss(rows, batch_size)
        if wrong:
            scores["unknown"] = len(wrong)
        if each := self.head_decoder.report(found, expected):
            scores["labels"] = each
        return scores, answers


def keeping_unknown(text: str, answer: LabelPrediction) -> LabelPrediction:
    """An answer whose words outside the vocabulary stand as they were written, if there are any."""
    if UNKNOWN_SURFACE not in answer.text:
        return answer
    for found in answer.details["masks"]:
        text = text.replace(MASK, found[0]["text"], 1)
    return replace(answer, text=text, value=text)


class MaskFiller(Labeler):
    """A trained run that tells hidden tokens: it fills each [MASK] of a text."""

    writes = False

    def _window(self, texts: list[str], rows: int, first: int, done: Callable[[int], None]) -> list[LabelPrediction]:
        return [keeping_unknown(*both) for both in zip(texts, super()._window(texts, rows, first, done), strict=True)]

    def evaluate(
        self,
        pairs: Sequence[Example | tuple[str, str]],
        *,
        batch_size: int = 64,
        metrics: str | Sequence[str] = (),
        skip_unknown: bool = False,
        progress: Callable[[int], None] | None = None,
    ) -> tuple[dict[str, Any], list[LabelPrediction]]:
        """How well the run knows what is hidden of texts, always the same tokens; there are no answers to give."""
        examples, names = self._checked(pairs, metrics, skip_unknown)
        found = masked_lm_scores(self.model, self._batches(examples, batch_size, progress or (lambda _: None)))
        assert found is not None
        wanted = {"loss", *(names if names and "all" not in names else found)}
        for name in names:
            if name != "all" and name not in found:
                raise DataError(f"metric: found '{name}', which needs model.next_sentence = true; this run has none")
        return {"segments": len(examples), **{name: found[name] for name in found if name in wanted}}, []

    def _batches(self, examples: Sequence[Example], count: int, done: Callable[[int], None]) -> Iterator[Any]:
        rows = self.example_format.encode(examples, self.source_tokenizer, self.target_tokenizer)
        kept = sorted((row for row in rows if len(row) == 2 and row[0]), key=lambda row: len(row[0]) + len(row[1]))
        if not kept:
            raise DataError(f"nothing to evaluate: no text among {len(examples)} is long enough")
        for start in range(0, len(kept), count):
            some = kept[start : start + count]
            yield self.collator.collate([one[0] for one in some], [one[1] for one in some]).to(self.device)
            done(len(examples) * min(len(kept), start + count) // len(kept) - len(examples) * start // len(kept))


LABELERS: dict[type, type[Labeler]] = {MaskDecoder: MaskFiller}  # by head decoder; the others use Labeler


def labeler_of(run: Run, device: str = "auto") -> Labeler:
    """What answers for a run that needs no search."""
    return LABELERS.get(type(run.task.head_decoder), Labeler)(run, device)
