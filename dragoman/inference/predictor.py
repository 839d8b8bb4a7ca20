"""Texts in, texts out: predict and evaluate with a run whose outputs are found by a search."""

from __future__ import annotations

import math
import weakref
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Unpack

from dragoman.data.examples import Example
from dragoman.data.tokenizers.language_tags import check_tag
from dragoman.decoding.constraints.source import Terminology
from dragoman.decoding.constraints.spec import ConstrainedInput
from dragoman.decoding.method import Method
from dragoman.decoding.options import DecodingOptions, replace_from_keywords
from dragoman.errors import ConfigError, DataError
from dragoman.exchange import engine as engines
from dragoman.inference.confidence import SavedCalibration, load_calibration
from dragoman.inference.ensemble import Backend, open_backend
from dragoman.inference.evaluation import (
    Evaluation,
    EvaluationOptions,
    given_examples,
    metric_names,
    readable_examples,
)
from dragoman.inference.inputs import Nodes, StreamOptions, constrained_inputs, tagged_sources, with_tags
from dragoman.inference.keywords import DecodingKeywords, EvaluationKeywords, SearchKeywords
from dragoman.inference.loaded import Seq2SeqRun
from dragoman.inference.long_inputs import OnWarning
from dragoman.inference.pipeline import check_several, stream_outputs
from dragoman.inference.prediction import NO_PREDICTION, Origin, Prediction
from dragoman.inference.rerank import Reranker
from dragoman.inference.search_work import SearchWork
from dragoman.inference.target_scores import ReferenceLoss, reference_loss
from dragoman.inference.training_texts import letter_sides
from dragoman.runs import Run
from dragoman.scoring.error_rates import count_edit_kinds
from dragoman.scoring.report import score_table


class Predictor(Seq2SeqRun):
    """A trained run that is ready to predict.

    `options` are the defaults of every call. A call takes a `DecodingOptions`, single options as keywords, or both:
    `run.predict(texts, beam=8)`.
    """

    def __init__(self, run: Run, device: str = "auto", options: DecodingOptions | None = None) -> None:
        self.defaults = options = options or DecodingOptions()
        super().__init__(
            run, "cpu" if device == "auto" and options.engine == "ctranslate2" else device, options.precision
        )
        self._backends: dict[Hashable, Backend] = {}
        self._methods: dict[Hashable, Method | None] = {}
        self._rerankers: dict[Hashable, Reranker] = {}
        self.calibration: SavedCalibration | None = None
        self.read_calibration()
        self.backend(options)

    def read_calibration(self) -> None:
        """Read calibration.json of the run folder; without it predictions have no confidences."""
        self.calibration = load_calibration(self.run)

    @property
    def is_calibrated(self) -> bool:
        return self.calibration is not None

    @property
    def scorer(self) -> Any:
        return self.backend(self.defaults).model

    @property
    def engine_name(self) -> str:
        """The engine that searches by default: "torch" or "ctranslate2"."""
        return self.backend(self.defaults).engines.name

    @property
    def engine(self) -> engines.Engine | None:
        """The engine that searches in place of torch by default; made when it is first needed."""
        backend = self.backend(self.defaults)
        return backend.engines.engine(backend.model)

    def backend(self, options: DecodingOptions) -> Backend:
        """The model and engine for some options; opened once."""
        key = (options.engine, options.precision, options.ensemble, options.average)
        if key not in self._backends:
            self._backends[key] = open_backend(self, options)
        return self._backends[key]

    def method(self, options: DecodingOptions) -> Method | None:
        """The decoding method of some options with its files and runs open; None: greedy or beam search."""
        if options.method is None:
            return None
        model = self.backend(options).model
        if not options.method.names_files:  # opens nothing: not worth remembering
            return options.method.open(self, model)
        key = (options.method, options.ensemble, options.average)
        if key not in self._methods:
            self._methods[key] = options.method.open(self, model)
        return self._methods[key]

    def reranker(self, options: DecodingOptions, on_warning: OnWarning | None = None) -> Reranker | None:
        """The reranker of some options with its runs open and checked; None: there is none."""
        if not options.rerank:
            return None
        if options.rerank not in self._rerankers:
            reranker = Reranker(options.rerank, str(self.device))
            if self.reads_files:
                reranker.check_language_models(self.run.folder)
            reranker.check_direction(self.run, on_warning)
            self._rerankers[options.rerank] = reranker
        return self._rerankers[options.rerank]

    def _options(
        self, options: DecodingOptions | None, keywords: Mapping[str, object], *others: Any
    ) -> tuple[Any, ...]:
        """The options of a call: `options` over the predictor's defaults, then keywords; with `others` likewise."""
        base = self.defaults if options is None else options.over(self.defaults)
        return replace_from_keywords(dict(keywords), base, *others)

    def predict(
        self,
        texts: Path | Iterable[object],
        options: DecodingOptions | None = None,
        **keywords: Unpack[DecodingKeywords],
    ) -> list[Prediction]:
        """One prediction for each text, in order; an empty text gives an empty prediction.

        `texts` are strings, or the sources of a file (a Path), of rows or of a DataFrame (`data.readers.memory`).
        A run with tags needs one: the option `tag` for all texts, or "<2de> " in front of a text, which goes first.
        """
        check_several(texts, "predict")
        (options,) = self._options(options, keywords)
        sources = self.texts_of(texts)
        predictions = self.stream(constrained_inputs(sources, options), options)
        origin = weakref.ref(self)
        return [
            replace(prediction, origin=Origin(origin, source, options.tag))
            for source, prediction in zip(sources, predictions, strict=True)
        ]

    def trace(self, text: str, options: DecodingOptions | None = None, **keywords: Unpack[SearchKeywords]) -> Nodes:
        """Every continuation that the search for a text ranked: see decoding/trace.py."""
        traces: list[Nodes] = []
        keywords["on_trace"] = lambda _, nodes: traces.append(nodes)
        list(self.stream([text], options, **keywords))
        return traces[0]

    def stream(
        self,
        texts: Iterable[str | ConstrainedInput],
        options: DecodingOptions | None = None,
        stream: StreamOptions | None = None,
        **keywords: Unpack[SearchKeywords],
    ) -> Iterator[Prediction]:
        """Predictions in the order of the texts, whatever their number, in bounded memory.

        Keywords are options of `DecodingOptions` and `StreamOptions`. Constraints among the options have one value for
        all texts here; a `ConstrainedInput` brings its own instead.
        """
        check_several(texts, "stream")
        options, stream = self._options(options, keywords, stream or StreamOptions())
        return stream_outputs(self._work(options, stream), texts, stream)

    def _work(self, options: DecodingOptions, stream: StreamOptions) -> SearchWork:
        """Open and check all that a call needs: a mistake shows before any work."""
        if options.tag is not None:
            check_tag(options.tag, self.tags)
        for name in ("terminology", "placeholders") if self.reads_files else ():
            if getattr(options, name):
                raise ConfigError(f"{name}: needs the text of a source; {self.run.folder} reads files")
        terms = options.terminology
        terms = Terminology.read(terms) if isinstance(terms, str | Path) else terms
        config, method = options.search_config(self.config.search), self.method(options)
        if options.n_best > config.beam and method is None:
            raise ConfigError(f"n_best: found {options.n_best}, expected at most the beam of {config.beam}")
        options, backend = replace(options, method=method), self.backend(options)
        reranker, traced = self.reranker(options, stream.on_warning), stream.on_trace is not None
        # A calibration is that of a run folder: it does not hold for an ensemble with others.
        calibration = self.calibration if backend.own and options.scores else None
        work = SearchWork(self, options, config, backend, method, reranker, terms, calibration, traced)
        backend.engines.can_search(work.call, traced=traced)
        return work

    def read_as(self, texts: Iterable[str], tag: str | None = None) -> Iterator[str]:
        """The texts as the model reads them: each with its tag, empty ones unchanged."""
        if tag is not None:
            check_tag(tag, self.tags)
        return with_tags(texts, tag, self.tags)

    def reads_in_parts(self, item: ConstrainedInput, options: DecodingOptions) -> bool:
        """Whether an input is read in parts: their tokens come in the order of the batches, not in that of the text."""
        work = self._work(options, StreamOptions(on_warning=lambda line: None))
        return work.plan(work.protect(work.prepare(item, "input")), "input", lambda line: None) is not None

    @cached_property
    def by_letter(self) -> tuple[bool, bool]:
        """Whether sources and targets are aligned and shown letter by letter, as those of spelling models are."""
        source, target = letter_sides(self.run, (self.source_tokenizer, self.target_tokenizer))
        return source, target

    def loss(
        self, examples: Sequence[Example], options: DecodingOptions | None = None, **keywords: Unpack[DecodingKeywords]
    ) -> ReferenceLoss:
        """The loss of the first references; those that the model cannot output at all are left out and counted."""
        (options,) = self._options(options, keywords)
        backend, texts = self.backend(options), [example.references[0] for example in examples]
        sources, targets = backend.codec.encode_pairs(tagged_sources(examples, options.tag, self.tags), texts)
        return reference_loss(backend.model, sources, targets, self.collator.collate, self.device, options.batch_size)

    def _likelihood_scores(self, examples: Sequence[Example], options: DecodingOptions) -> dict[str, Any]:
        """Loss, perplexity and token accuracy of the first references, as far as the model has them."""
        likelihood = self.backend(options).model.likelihood
        if likelihood == "none":
            return {}
        loss, accuracy, too_long = self.loss(examples, options)
        finite = math.isfinite(loss)  # it is not where no reference can be output; JSON has no infinity
        perplexity = math.exp(min(loss, 700)) if finite else None
        scores: dict[str, Any] = {"loss": loss if finite else None, "perplexity": perplexity}
        if likelihood == "tokens":
            scores["token_accuracy"] = accuracy
        return scores | ({"too_long": too_long} if too_long else {})

    def evaluate(
        self,
        pairs: str | Path | Iterable[object],
        options: DecodingOptions | None = None,
        evaluation: EvaluationOptions | None = None,
        stream: StreamOptions | None = None,
        **keywords: Unpack[EvaluationKeywords],
    ) -> Evaluation[Prediction]:
        """Scores of the run on pairs of a source and one or more references, and the outputs behind them.

        `pairs` may be a file, which is read as the run's own data were, pairs, dicts or a DataFrame. The
        result unpacks into scores and predictions. Keywords are options of `DecodingOptions`, `EvaluationOptions` and
        `StreamOptions`. Loss, perplexity and token accuracy are always among the scores; they are those of the first
        references, whatever the options are. A non-autoregressive model may be unable to output a long reference at
        all: these three leave it out, and `too_long` counts it. Files that cannot be read are counted in `unreadable`.
        """
        every = given_examples(self.run, pairs, several_references=True)
        if not every:
            raise DataError("nothing to evaluate: no pair was read")
        options, evaluation, stream = self._options(
            options, keywords, evaluation or EvaluationOptions(), stream or StreamOptions()
        )
        units = self.config.data.units
        names = metric_names(evaluation.metrics, self.run.task, units)
        examples, faults = readable_examples(self, every, evaluation.skip_unreadable, stream.on_unreadable)
        inputs = constrained_inputs(tagged_sources(examples, options.tag, self.tags), options)
        predictions = list(self.stream(inputs, replace(options, tag=None), stream))
        texts, references = [one.text for one in predictions], [example.references for example in examples]
        draws = evaluation.draws if evaluation.intervals else 0
        scores = score_table(texts, references, names, units=units, draws=draws, seed=evaluation.draws_seed)
        scores |= self._likelihood_scores(examples, options)
        if self.run.task.counts_edit_types:
            scores["errors"] = {unit: count_edit_kinds(texts, references, unit) for unit in ("words", "characters")}
        if faults:  # an empty output for each, so that the lines of the outputs are those of the pairs
            scores["unreadable"] = len(faults)
            left_out, rest = {fault.location for fault in faults}, iter(predictions)
            predictions = [NO_PREDICTION if example.location in left_out else next(rest) for example in every]
        return Evaluation(scores, predictions)
