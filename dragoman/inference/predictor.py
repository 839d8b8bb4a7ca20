"""Texts in, texts out: predict and evaluate with a run whose outputs are found by a search."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, cast

from dragoman.base import ConfigError, DataError, DragomanError, RunError
from dragoman.data import Example, TranslationMemory
from dragoman.data.tokenizers import Context, check_tag, ensure_tag, join_context
from dragoman.decoding import DEFAULT_AVERAGE, DecodingOptions, Method, SearchConfig, replace_from_keywords
from dragoman.decoding.constraints import (
    ConstrainedInput,
    Terminology,
)
from dragoman.inference.align.alignments import AlignOptions, ForcedAlignment, WordAlignment
from dragoman.inference.committee import Committee, check_members
from dragoman.inference.confidence import SavedCalibration, load_calibration
from dragoman.inference.evaluation import (
    Evaluation,
    EvaluationOptions,
    ReferenceLoss,
    given_examples,
    metric_names,
    readable_examples,
    with_left_out,
)
from dragoman.inference.inputs import (
    DecodingKeywords,
    EvaluationKeywords,
    Nodes,
    SearchKeywords,
    StreamKeywords,
    StreamOptions,
    constrained_inputs,
    tagged_sources,
)
from dragoman.inference.loaded import Backend, LoadedRun, Seq2SeqRun, open_backend, shares
from dragoman.inference.long_inputs import (
    OnWarning,
)
from dragoman.inference.opened_inputs import open_inputs
from dragoman.inference.pipeline import check_several, stream_outputs
from dragoman.inference.prediction import NO_PREDICTION, Origin, Prediction
from dragoman.inference.search_work import SearchWork
from dragoman.inference.target_scores import (
    QUIET,
    ScoreWork,
    TargetScore,
    check_likelihood,
    pair_inputs,
    reference_loss,
)
from dragoman.inference.training_data import letter_sides
from dragoman.runs import Run
from dragoman.scoring import count_edit_kinds, score_table

if TYPE_CHECKING:
    from dragoman.inference.align import AttentionView
    from dragoman.inference.rerank import Reranker

T = TypeVar("T")


class Predictor(Seq2SeqRun):
    """A trained run that is ready to predict.

    `options` are the defaults of every call. A call takes a `DecodingOptions`, single options as keywords, or both:
    `run.predict(texts, beam=8)`.
    """

    def __init__(
        self, run: Run, device: str = "auto", options: DecodingOptions | None = None, *, alone: bool = False
    ) -> None:
        self.defaults = options = options or DecodingOptions()
        device = "cpu" if device == "auto" and options.engine == "ctranslate2" else device
        super().__init__(run, device, options.precision, late=True, alone=alone)
        self._opened: dict[Hashable, Any] = {}  # backends, methods and rerankers, by the options that name them
        self.calibration: SavedCalibration | None = None
        self.read_calibration()
        self.backend(options)

    def opening(self) -> tuple[object, ...]:
        return (self.defaults,)

    def read_calibration(self) -> None:
        """Read calibration.json of the run folder; without it predictions have no confidences."""
        self.calibration = load_calibration(self.run)

    @property
    def is_calibrated(self) -> bool:
        return self.calibration is not None

    @property
    def scorer(self) -> Any:
        return self.backend(self.defaults).model

    @cached_property
    def search(self) -> SearchConfig:
        """How calls search that do not say it."""
        return self.defaults.search_config(self.config.search)

    def _once(self, key: tuple[Hashable, ...], open_: Callable[[], T]) -> T:
        """What some options name; opened once."""
        if key not in self._opened:
            self._opened[key] = open_()
        opened: T = self._opened[key]
        return opened

    def backend(self, options: DecodingOptions) -> Backend:
        key = ("backend", options.engine, options.precision, options.ensemble, options.average, options.weights)
        return self._once(key, lambda: open_backend(self, options, lambda runs: self._committee(runs, options)))

    def _committee(self, runs: Sequence[Run], options: DecodingOptions) -> Committee:
        """The runs as members that vote, each with its own search."""
        own = replace(options, ensemble=(), weights=(), average=DEFAULT_AVERAGE)
        members = [Predictor(member, self._device, own, alone=True) for member in runs]
        check_members(members[0], members[1:])
        weights = shares(self.run, options) or (1 / len(runs),) * len(runs)
        return Committee(tuple(members), weights, options.average)

    def method(self, options: DecodingOptions) -> Method | None:
        """The decoding method of some options with its files and runs open; None: greedy or beam search."""
        if (method := options.method) is None:
            return None
        model = self.backend(options).model
        if not method.names_files:  # opens nothing: not worth remembering
            return method.open(self, model)
        key = ("method", method, options.ensemble, options.average, options.weights)
        return self._once(key, lambda: method.open(self, model))

    def memory(self, memory: str | Path | TranslationMemory) -> TranslationMemory:
        """An open translation memory; a file is read once."""
        if self.tags:
            raise ConfigError(f"memory: {self.run.folder} has tags of several languages, a memory has one")
        if isinstance(memory, TranslationMemory):
            return memory
        return self._once(("memory", str(memory)), lambda: TranslationMemory.read(memory))

    def reranker(self, options: DecodingOptions, on_warning: OnWarning | None = None) -> Reranker | None:
        """The reranker of some options with its runs open and checked; None: there is none."""
        if not (models := options.rerank):
            return None
        from dragoman.inference.rerank import Reranker

        return self._once(("rerank", models), lambda: Reranker(models, str(self.device)).checked(self, on_warning))

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

        `texts` are strings, or the sources of a file (a Path), of rows or of a DataFrame (`inference.open_inputs`).
        A run with tags needs one: the option `tag` for all texts, or "<2de> " in front of a text, which goes first.
        """
        check_several(texts, "predict")
        (options,) = self._options(options, keywords)
        inputs = constrained_inputs(list(open_inputs(self.run, texts)), options)
        origin = weakref.ref(self)
        return [
            replace(prediction, origin=Origin(origin, item.text, options.tag))
            for item, prediction in zip(inputs, self.stream(inputs, options), strict=True)
        ]

    def trace(self, text: str, options: DecodingOptions | None = None, **keywords: Unpack[SearchKeywords]) -> Nodes:
        """Every continuation that the search for a text ranked: see decoding/trace.py."""
        traces: list[Nodes] = []
        keywords.setdefault("split_long", False)  # there is one search to show
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
        for name in ("terminology", "placeholders", "memory") if self.reads_files else ():
            if getattr(options, name):
                raise ConfigError(f"{name}: needs the text of a source; {self.run.folder} reads files")
        if options.memory is not None:
            options = replace(options, memory=self.memory(options.memory))
        if isinstance(options.terminology, str | Path):
            options = replace(options, terminology=Terminology.read(options.terminology))
        config, method = options.search_config(self.config.search), self.method(options)
        options, backend = replace(options, method=method), self.backend(options)
        reranker, traced = self.reranker(options, stream.on_warning), stream.on_trace is not None
        # A calibration is that of a run folder: it does not hold for an ensemble with others.
        wanted = options.scores or options.min_confidence is not None
        calibration = self.calibration if backend.own and wanted else None
        if options.min_confidence is not None and calibration is None:
            whose = self.run.folder if backend.own else "an ensemble"
            raise RunError(
                f"min_confidence: {whose} has no calibrated confidences; first: dragoman calibrate {self.run.folder}"
            )
        reader = self if options.split_long is not False else self.whole_reader
        if options.split_long and reader.length_limits.usual is None:
            raise ConfigError(
                f"split_long: {self.run.folder} stores no length to split at, expected a run that translates sentences"
            )
        work = SearchWork(reader, options, config, backend, reranker, calibration, traced)
        if isinstance(backend.traits, Committee):
            backend.traits.check(options, traced)
        work.can_use_engine()  # where the engine is required and cannot, an error comes before any work
        return work

    @cached_property
    def whole_reader(self) -> Predictor:
        """This predictor, but that it reads inputs as a whole up to the hard limits of the model."""
        reader = copy(self)
        reader.length_limits = self.length_limits._replace(usual=None)
        return reader

    def fits(self, text: str) -> bool:
        return LoadedRun.fits(self if self.defaults.split_long is not False else self.whole_reader, text)

    def in_context(self, texts: Iterable[str]) -> list[str]:
        """The sentences of a document, each with its context, so that they may be computed in any order."""
        context = Context(self.context)
        return [join_context(context.of(text), text) for text in texts] if self.context else list(texts)

    def read_as(self, texts: Iterable[str], tag: str | None = None) -> Iterator[str]:
        """The texts as the model reads them: each with its tag, empty ones unchanged."""
        if tag is not None:
            check_tag(tag, self.tags)
        named = ((text, f"input {number}") for number, text in enumerate(texts, 1))
        return (ensure_tag(text, tag, self.tags, name) if text.strip() else text for text, name in named)

    def reads_in_parts(self, item: ConstrainedInput, options: DecodingOptions) -> bool:
        """Whether an input is read in parts: their tokens come in the order of the batches, not in that of the text."""
        work = self._work(options, StreamOptions(on_warning=lambda line: None))
        return work.plan(work.prepare(item, "input"), "input", lambda line: None) is not None

    @cached_property
    def alignment_view(self) -> AttentionView | None:
        """The attention that links the words of a source and an output; None: the model has none to read."""
        select_view = import_module("dragoman.inference.align").select_view  # which imports this module
        try:
            view: AttentionView = select_view(self)
        except DragomanError:
            return None
        return view

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
        quiet = replace(QUIET, on_refused=lambda number, error: None)  # what it cannot read, it cannot output
        return reference_loss(self._scores(examples, options, quiet))

    def score(
        self,
        pairs: str | Path | Iterable[object],
        options: DecodingOptions | None = None,
        stream: StreamOptions | None = None,
        **keywords: Unpack[SearchKeywords],
    ) -> list[TargetScore]:
        """How probable the target of each pair is, token by token, given the source and the tokens before it.

        `pairs` are those of `evaluate`; the first reference of several counts. Of the decoding options those count that
        choose models (`ensemble`, `average`, `precision`), `tag` and `batch_size`.
        """
        options, stream = self._options(options, keywords, stream or StreamOptions())
        check_likelihood(self)
        return list(self._scores(given_examples(self.run, pairs), options, stream))

    def align(
        self,
        pairs: str | Path | Iterable[object],
        options: AlignOptions | None = None,
        stream: StreamOptions | None = None,
        **keywords: Unpack[StreamKeywords],
    ) -> list[WordAlignment]:
        """The links between the words of each pair, by attention; `pairs` are those of `evaluate`."""
        if self.reads_files:
            raise RunError(f"{self.run.folder}: reads files, whose words have places; use force_align")
        return cast("list[WordAlignment]", self._aligned(pairs, options, stream, keywords))

    def force_align(
        self,
        pairs: str | Path | Iterable[object],
        options: AlignOptions | None = None,
        stream: StreamOptions | None = None,
        **keywords: Unpack[StreamKeywords],
    ) -> list[ForcedAlignment]:
        """Where the words of each text are in its recording or line image, by CTC; `pairs` are those of `evaluate`."""
        if not self.reads_files:
            raise RunError(f"{self.run.folder}: reads texts, whose words have links; use align")
        return cast("list[ForcedAlignment]", self._aligned(pairs, options, stream, keywords))

    def _aligned(self, pairs: Any, options: AlignOptions | None, stream: StreamOptions | None, keywords: Any) -> Any:
        (stream,) = replace_from_keywords(dict(keywords), stream or StreamOptions())
        texts = [(example.model_input, example.references[0]) for example in given_examples(self.run, pairs)]
        # The analysis imports inference, so that this import has to wait.
        align = import_module("dragoman.inference.align.verbs").align
        return list(align(self, texts, options or AlignOptions(), stream=stream))

    def _scores(
        self, examples: Sequence[Example], options: DecodingOptions, stream: StreamOptions
    ) -> Iterator[TargetScore]:
        backend = self.backend(options)
        targets = (example.references[0] for example in examples)
        pairs = zip(tagged_sources(examples, options.tag, self.tags), targets, strict=True)
        work = ScoreWork(self, backend.model, backend.codec, options.tag, options.batch_size)
        return stream_outputs(work, pair_inputs(pairs), stream)

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
        tagged = map(ConstrainedInput, tagged_sources(examples, options.tag, self.tags))
        inputs = constrained_inputs([*tagged], options)
        # A test set is what it measures: whoever tests lengths that training had not, wants to see how the model does,
        # and scores of two runs compare only if both have read the same texts.
        whole = replace(options, tag=None, split_long=bool(options.split_long))
        predictions = list(self.stream(inputs, whole, stream))
        texts, references = [output.text for output in predictions], [example.references for example in examples]
        draws = evaluation.draws if evaluation.intervals else 0
        sources = [example.source for example in examples]
        seed = evaluation.draws_seed
        scores = score_table(texts, references, names, units=units, draws=draws, seed=seed, sources=sources)
        scores |= self._likelihood_scores(examples, options)
        if self.run.task.counts_edit_types:
            scores["errors"] = {unit: count_edit_kinds(texts, references, unit) for unit in ("words", "characters")}
        if faults:
            scores["unreadable"] = len(faults)
        return Evaluation(scores, with_left_out(every, examples, predictions, NO_PREDICTION))
