"""Texts in, texts out: predict and evaluate with a run whose outputs are found by a search."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any

from dragoman.classical.model import Transducer
from dragoman.data.collate import batches_by_length
from dragoman.data.examples import Example
from dragoman.data.media.feature_extractor import FeatureExtractor
from dragoman.data.tokenizers.base import EOS, Tokenizer
from dragoman.data.tokenizers.language_tags import add_tag, check_tag, split_tag
from dragoman.decoding.config import SearchConfig
from dragoman.decoding.constraints.automata import ConstraintAutomaton
from dragoman.decoding.constraints.compiler import ConstraintCompiler
from dragoman.decoding.constraints.source import add_numbers, restore_placeholders, without_protected
from dragoman.decoding.constraints.spec import NO_CONSTRAINTS, ConstrainedInput
from dragoman.decoding.hypothesis import Hypothesis
from dragoman.decoding.methods import Method, WithText
from dragoman.decoding.options import CTCDecoding, DecodingOptions, Draft, ShortlistFile, replace_from_keywords
from dragoman.decoding.search import search
from dragoman.decoding.shortlist import Shortlist
from dragoman.decoding.trace import Trace
from dragoman.errors import ConfigError, DataError
from dragoman.exchange import engine as engines
from dragoman.exchange.choice import Call
from dragoman.inference.confidence import SavedCalibration, load_calibration, token_confidences
from dragoman.inference.ensemble import Backend, open_backend
from dragoman.inference.evaluation import (
    Evaluation,
    EvaluationOptions,
    ReferenceLoss,
    as_examples,
    metric_names,
    read_examples,
    reference_loss,
)
from dragoman.inference.inputs import (
    MEDIA_WINDOW,
    Nodes,
    StreamOptions,
    constrained_inputs,
    encode_inputs,
    model_inputs,
    readable_examples,
    tagged_sources,
    with_tags,
)
from dragoman.inference.loaded import LoadedRun
from dragoman.inference.long_inputs import InputTooLongError, LengthLimits, OnWarning, warn_caller
from dragoman.inference.methods import open_method
from dragoman.inference.parts import Part, Planner, constraints_of_part, join_parts
from dragoman.inference.prediction import NO_PREDICTION, Prediction, with_confidences
from dragoman.inference.rerank import Reranker
from dragoman.inference.training_texts import letter_sides
from dragoman.inference.unseen import UnseenInputs
from dragoman.models.contracts import NonAutoregressiveModel
from dragoman.runs import Run
from dragoman.scoring.error_rates import count_edit_kinds
from dragoman.scoring.report import score_table


@dataclass(frozen=True)
class Decoding:
    """All that one call of the predictor needs: options with everything they name opened."""

    options: DecodingOptions  # its method is open
    stream: StreamOptions
    config: SearchConfig
    backend: Backend
    method: Method | None
    reranker: Reranker | None

    def of_parts(self, numbers: Sequence[int]) -> Decoding:
        """The same for parts of inputs, whose numbers these are: parts have the names of their inputs."""
        name = self.stream.input_name
        stream = replace(self.stream, progress=None, input_name=lambda part: name(numbers[part - 1]))
        return replace(self, stream=stream)

    @property
    def call(self) -> Call:
        """The settings and options that the engine must support."""
        return Call(self.config, self.options)

    @property
    def n_best(self) -> int:
        """Outputs that the search returns: all of the beam where they are reranked."""
        return self.options.n_best if self.reranker is None else max(self.options.n_best, self.config.beam)

    @property
    def constrainable(self) -> bool:
        """Whether the search can force texts into an output: a search token by token, by greedy or beam search."""
        return self.method is None and not isinstance(self.backend.model, Transducer | NonAutoregressiveModel)

    @property
    def scores(self) -> bool:
        """Whether the search must compute scores."""
        return self.options.scores or self.reranker is not None


def prediction_of(hypothesis: Hypothesis, target: Tokenizer) -> Prediction:
    tokens = hypothesis.tokens[:-1] if hypothesis.tokens[-1] == EOS else hypothesis.tokens
    return Prediction(
        text=target.decode(tokens),
        score=hypothesis.normalised,
        tokens=tuple(target.pieces(tokens)),
        token_scores=hypothesis.token_scores,
    )


class Predictor(LoadedRun):
    """A trained run that is ready to predict.

    `options` are the defaults of every call. A call takes a `DecodingOptions`, single options as keywords, or both:
    `run.predict(texts, beam=8)`.
    """

    def __init__(self, run: Run, device: str = "auto", options: DecodingOptions | None = None) -> None:
        self.defaults = options = options or DecodingOptions()
        super().__init__(
            run, "cpu" if device == "auto" and options.engine == "ctranslate2" else device, options.precision
        )
        self._backends: dict[Any, Backend] = {}
        self._opened: dict[Any, Any] = {}  # methods and rerankers, by what names them
        self.calibration: SavedCalibration | None = None
        self.length_limits = min(LengthLimits.of(member.config) for member in self.members)
        self.read_calibration()
        self.backend(options)

    def read_calibration(self) -> None:
        """Read calibration.json of the run folder; without it predictions have no confidences."""
        self.calibration = load_calibration(self.run)

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
        if not isinstance(options.method, Draft | ShortlistFile | CTCDecoding):  # opens nothing: not worth remembering
            return open_method(options.method, self, model)
        key = (options.method, options.ensemble, options.average)
        if key not in self._opened:
            self._opened[key] = open_method(options.method, self, model)
        return self._opened[key]  # type: ignore[no-any-return]

    def reranker(self, options: DecodingOptions, on_warning: OnWarning | None = None) -> Reranker | None:
        """The reranker of some options with its runs open and checked; None: there is none."""
        if not options.rerank:
            return None
        if options.rerank not in self._opened:
            reranker = Reranker(options.rerank, str(self.device))
            if isinstance(self.source_tokenizer, FeatureExtractor):
                reranker.check_language_models(self.run.folder)
            reranker.check_direction(self.run, on_warning)
            self._opened[options.rerank] = reranker
        return self._opened[options.rerank]  # type: ignore[no-any-return]

    def _options(self, options: DecodingOptions | None, keywords: dict[str, Any], *others: Any) -> tuple[Any, ...]:
        """The options of a call: `options` over the predictor's defaults, then keywords; with `others` likewise."""
        base = self.defaults if options is None else options.over(self.defaults)
        return replace_from_keywords(keywords, base, *others)

    def predict(
        self, texts: Sequence[str], options: DecodingOptions | None = None, **keywords: Any
    ) -> list[Prediction]:
        """One prediction for each text, in order; an empty text gives an empty prediction.

        A run with tags needs one: the option `tag` for all texts, or "<2de> " in front of a text, which goes first.
        """
        if isinstance(texts, str):
            raise TypeError("predict takes a list of texts; for one text write predict([text])")
        (options,) = self._options(options, keywords)
        return list(self.stream(constrained_inputs(list(texts), options), options))

    def trace(self, text: str, options: DecodingOptions | None = None, **keywords: Any) -> Nodes:
        """Every continuation that the search for a text ranked: see decoding/trace.py."""
        traces: list[Nodes] = []
        list(self.stream([text], options, on_trace=lambda _, nodes: traces.append(nodes), **keywords))
        return traces[0]

    def stream(
        self,
        texts: Iterable[str | ConstrainedInput],
        options: DecodingOptions | None = None,
        stream: StreamOptions | None = None,
        **keywords: Any,
    ) -> Iterator[Prediction]:
        """Predictions in the order of the texts, whatever their number, in bounded memory.

        Keywords are options of `DecodingOptions` and `StreamOptions`. Constraints among the options have one value for
        all texts here; a `ConstrainedInput` brings its own instead.
        """
        if isinstance(texts, str):
            raise TypeError("stream takes several texts; for one text write [text]")
        options, stream = self._options(options, keywords, stream or StreamOptions())
        unseen = UnseenInputs()
        if stream.on_unknown is None:
            stream = replace(stream, on_unknown=unseen.add)
        outputs = self._stream(model_inputs(texts, options, self.tags), self._decoding(options, stream))
        return unseen.watch(outputs, stream.on_warning)

    def _decoding(self, options: DecodingOptions, stream: StreamOptions) -> Decoding:
        """Open and check all that a call needs: a mistake shows before any work."""
        if isinstance(self.source_tokenizer, FeatureExtractor):
            stream = replace(stream, window=min(stream.window, MEDIA_WINDOW))
            for name in ("terminology", "placeholders"):
                if getattr(options, name):
                    raise ConfigError(f"{name}: needs the text of a source; {self.run.folder} reads files")
        config, method = options.search_config(self.config.search), self.method(options)
        if options.n_best > config.beam and method is None:
            raise ConfigError(f"n_best: found {options.n_best}, expected at most the beam of {config.beam}")
        options = replace(options, method=method)
        searched = None if method is None else WithText(method, self.backend(options).codec.target_of(None).decode)
        reranker = self.reranker(options, stream.on_warning)
        decoding = Decoding(options, stream, config, self.backend(options), searched, reranker)
        decoding.backend.engines.can_search(decoding.call, traced=stream.on_trace is not None)
        return decoding

    def read_as(self, texts: Iterable[str], tag: str | None = None) -> Iterator[str]:
        """The texts as the model reads them: each with its tag, empty ones unchanged."""
        if tag is not None:
            check_tag(tag, self.tags)
        return with_tags(texts, tag, self.tags)

    def _stream(self, inputs: Iterator[ConstrainedInput], decoding: Decoding) -> Iterator[Prediction]:
        first, report = 1, decoding.stream.on_trace
        while read := list(islice(inputs, decoding.stream.window)):
            self._report_unseen(read, decoding.stream, first)
            window = [self._with_numbers(one) for one in read]
            traces: list[Trace | None] | None = None if report is None else [None] * len(window)
            parts = self._parts(window, decoding, first)
            whole = [one._replace(text="") if index in parts else one for index, one in enumerate(window)]
            predictions = self._ranked_window(whole, decoding, first, traces)
            for index, prediction in self._joined_parts(window, parts, decoding, first):
                predictions[index] = prediction
            first += len(window)
            for index, prediction in enumerate(predictions):
                if report is not None and traces is not None:
                    trace = traces[index]
                    target = decoding.backend.codec.target_of(window[index].text)
                    report(window[index].text, trace.as_table(0, target.pieces) if trace is not None else [])
                yield prediction

    def _report_unseen(self, inputs: list[ConstrainedInput], stream: StreamOptions, first: int) -> None:
        """Report the characters or words that training did not have, but for those of placeholders."""
        assert stream.on_unknown is not None, "`stream` sets it"
        for number, (text, constraints) in enumerate(inputs, first):
            if constraints.placeholders:
                text = without_protected(text, [name for name, _ in constraints.placeholders])
            if text.strip() and (surfaces := self.unseen(text)):  # nothing reads an empty input
                stream.on_unknown(number, surfaces)

    def _with_numbers(self, one: ConstrainedInput) -> ConstrainedInput:
        """The input; its numbers are texts to copy if training had none of their digits."""
        source = split_tag(one.text, self.tags)[1]
        return one._replace(constraints=add_numbers(one.constraints, source, self.unseen.lacks_digit))

    def _parts(self, inputs: list[ConstrainedInput], decoding: Decoding, first: int) -> dict[int, list[Part]]:
        """The parts of every input that the model does not read as a whole, by index; none of one that is refused."""
        if isinstance(self.source_tokenizer, FeatureExtractor):
            return {}
        stream, parts = decoding.stream, dict[int, list[Part]]()
        planner = Planner(self.source_tokenizer, self.length_limits, decoding.constrainable)
        warn = partial(warn_caller, stream.on_warning)
        for index, one in enumerate(inputs):
            try:
                own = planner.parts(one, stream.input_name(first + index), warn)
            except InputTooLongError as error:
                if stream.on_refused is None:
                    raise
                stream.on_refused(first + index, error)
                own = []
            if own is not None:
                parts[index] = own
        return parts

    def reads_in_parts(self, one: ConstrainedInput, options: DecodingOptions) -> bool:
        """Whether an input is read in parts: their tokens come in the order of the batches, not in that of the text."""
        decoding = self._decoding(options, StreamOptions(on_warning=lambda line: None))
        return bool(self._parts([self._with_numbers(one)], decoding, 1))

    def _joined_parts(
        self, inputs: list[ConstrainedInput], parts: dict[int, list[Part]], decoding: Decoding, first: int
    ) -> Iterator[tuple[int, Prediction]]:
        """(index, prediction) of every input that is read in parts; the parts of all are searched together."""
        read: list[ConstrainedInput] = []
        numbers: list[int] = []
        for index, several in parts.items():
            text, constraints = inputs[index]
            tag = split_tag(text, self.tags)[0]
            for part in several:
                if not part.copied:
                    own = constraints_of_part(constraints, part.text) if decoding.constrainable else NO_CONSTRAINTS
                    read.append(ConstrainedInput(add_tag(part.text, tag) if tag else part.text, own))
                    numbers.append(first + index)
        outputs = iter(self._ranked_window(read, decoding.of_parts(numbers), 1, None) if read else ())
        for index, several in parts.items():
            if several:
                yield index, join_parts(several, [next(outputs) for part in several if not part.copied])

    def _ranked_window(
        self, inputs: list[ConstrainedInput], decoding: Decoding, first: int, traces: list[Trace | None] | None
    ) -> list[Prediction]:
        """Predictions of some inputs, reranked if the options ask for it."""
        predictions = self._window(inputs, decoding, first, traces)
        if decoding.reranker is None:
            return predictions
        sources = [split_tag(one.text, self.tags)[1] for one in inputs]
        return decoding.reranker.ranked(sources, predictions, decoding.options.n_best)

    def _window(
        self, inputs: list[ConstrainedInput], decoding: Decoding, first: int, traces: list[Trace | None] | None
    ) -> list[Prediction]:
        """Predictions of some inputs, the first of which has the number `first`; `traces` is filled for each."""
        out = [NO_PREDICTION] * len(inputs)
        stream = decoding.stream
        indices = [index for index, one in enumerate(inputs) if split_tag(one.text, self.tags)[1].strip()]
        stream.done(len(inputs) - len(indices))
        codec = decoding.backend.codec
        sources, indices = encode_inputs(self, codec, inputs, indices, first, stream)
        automata = self._automata(inputs, indices, first, decoding)
        kept: list[Trace | None] | None = None if traces is None else [None] * len(indices)
        hypotheses: list[tuple[int, list[Hypothesis]]] = []
        for result in self._decode(sources, decoding, automata, kept):
            hypotheses.append(result)
            stream.done(1)
        confidences = self._confidences(sources, hypotheses, decoding)
        for row, best in hypotheses:
            index = indices[row]
            target = codec.target_of(inputs[index].text)
            predictions = [prediction_of(one, target) for one in best]
            if confidences is not None and self.calibration is not None:
                scale = self.calibration.scale
                predictions = [with_confidences(one, next(confidences), scale) for one in predictions]
            source, constraints = inputs[index]
            if constraints.placeholders:
                restore = partial(restore_placeholders, source=split_tag(source, self.tags)[1])
                predictions = [
                    replace(one, text=restore(one.text, placeholders=constraints.placeholders)) for one in predictions
                ]
            out[index] = replace(predictions[0], alternatives=tuple(predictions[1:]))
            if traces is not None and kept is not None:
                traces[index] = kept[row]
        return out

    def _automata(
        self, inputs: list[ConstrainedInput], indices: list[int], first: int, decoding: Decoding
    ) -> list[ConstraintAutomaton | None] | None:
        """The constraints of each input as automata over tokens; None: no input has any."""
        if not any(inputs[index].constraints for index in indices):
            return None
        stream, positions, codec = decoding.stream, decoding.backend.model.max_positions, decoding.backend.codec
        max_tokens = min(decoding.config.max_length or math.inf, math.inf if positions is None else positions - 1)
        automata = [
            self.constraint_compiler.extended(codec.target_of(text)).compile(
                constraints, stream.input_name(first + index), max_tokens
            )
            if constraints
            else None
            for index, (text, constraints) in ((index, inputs[index]) for index in indices)
        ]
        return automata if any(automata) else None

    @cached_property
    def by_letter(self) -> tuple[bool, bool]:
        """Whether sources and targets are aligned and shown letter by letter, as those of spelling models are."""
        source, target = letter_sides(self.run, (self.source_tokenizer, self.target_tokenizer))
        return source, target

    @cached_property
    def constraint_compiler(self) -> ConstraintCompiler:
        """Compiles constraints into automata over tokens; it reads the vocabulary when it is first needed."""
        return ConstraintCompiler(self.target_tokenizer)

    def _decode(
        self,
        sources: Sequence[Any],
        decoding: Decoding,
        automata: list[ConstraintAutomaton | None] | None,
        traces: list[Trace | None] | None,
    ) -> Iterator[tuple[int, list[Hypothesis]]]:
        """(index, hypotheses) for every source; the constraints of some do not change which engine does the others."""
        if automata is None or traces is not None:
            yield from self._decode_alike(sources, decoding, automata, traces)
            return
        for constrained in (False, True):
            rows = [row for row, one in enumerate(automata) if (one is not None) is constrained]
            chosen, own = [sources[row] for row in rows], [automata[row] for row in rows] if constrained else None
            found = self._decode_alike(chosen, decoding, own, None) if rows else ()
            yield from ((rows[index], hypotheses) for index, hypotheses in found)

    def _decode_alike(
        self,
        sources: Sequence[Any],
        decoding: Decoding,
        automata: list[ConstraintAutomaton | None] | None,
        traces: list[Trace | None] | None,
    ) -> Iterator[tuple[int, list[Hypothesis]]]:
        """(index, hypotheses) for every source, by the engine or by our own search."""
        backend, options = decoding.backend, decoding.options
        engine = None
        if backend.engines.can_search(decoding.call, constrained=automata is not None, traced=traces is not None):
            listed = options.method if isinstance(options.method, Shortlist) else None
            engine = backend.engines.engine(backend.model, listed)
        if engine is None:
            return self._search(sources, decoding, automata, traces)
        how = engines.EngineSearch(decoding.config, decoding.n_best, options.batch_size, decoding.scores)
        own_search = partial(self._search, decoding=decoding)
        return engines.search_all(engine, backend.model, sources, backend.length_ratio, how, own_search)

    def _search(
        self,
        sources: Sequence[Any],
        decoding: Decoding,
        automata: list[ConstraintAutomaton | None] | None = None,
        traces: list[Trace | None] | None = None,
    ) -> Iterator[tuple[int, list[Hypothesis]]]:
        """(index, hypotheses) for every source, in batches of like lengths."""
        backend = decoding.backend
        for indices, batch in batches_by_length(sources, decoding.options.batch_size, self.collator):
            trace = None if traces is None else Trace(len(indices))
            hypotheses = search(
                backend.model,
                batch.to(self.device),
                decoding.config,
                backend.length_ratio,
                decoding.n_best,
                method=decoding.method,
                constraints=None if automata is None else [automata[index] for index in indices],
                trace=trace,
            )
            if traces is not None and trace is not None:
                for row, index in enumerate(indices):
                    traces[index] = trace.of(row)
            yield from zip(indices, hypotheses, strict=True)

    def _confidences(
        self, sources: Sequence[Any], hypotheses: Sequence[tuple[int, list[Hypothesis]]], decoding: Decoding
    ) -> Iterator[tuple[float, ...]] | None:
        """The calibrated confidences of every hypothesis; None: nobody needs them, or nothing is calibrated.

        A calibration is that of a run folder; it does not hold for an ensemble with others.
        """
        if self.calibration is None or not decoding.backend.own or not decoding.options.scores:
            return None
        outputs = [(sources[row], one.tokens[:-1]) for row, several in hypotheses for one in several]
        temperature, model = self.calibration.temperature, decoding.backend.model
        return iter(token_confidences(model, outputs, temperature, self.device, decoding.options.batch_size))

    def loss(
        self, examples: Sequence[Example], options: DecodingOptions | None = None, **keywords: Any
    ) -> ReferenceLoss:
        """The loss of the first references; those that the model cannot output at all are left out and counted."""
        (options,) = self._options(options, keywords)
        backend, texts = self.backend(options), [example.references[0] for example in examples]
        sources, targets = backend.codec.encode_pairs(tagged_sources(examples, options.tag, self.tags), texts)
        return reference_loss(backend.model, sources, targets, self.collator, self.device, options.batch_size)

    def _likelihood(self, examples: Sequence[Example], options: DecodingOptions) -> dict[str, Any]:
        """Loss, perplexity and token accuracy of the first references, as far as the model has them."""
        known = getattr(self.backend(options).model, "likelihood", "tokens")
        if known == "none":
            return {}
        loss, accuracy, too_long = self.loss(examples, options)
        finite = math.isfinite(loss)  # it is not where no reference can be output; JSON has no infinity
        perplexity = math.exp(min(loss, 700)) if finite else None
        scores: dict[str, Any] = {"loss": loss if finite else None, "perplexity": perplexity}
        if known == "tokens":
            scores["token_accuracy"] = accuracy
        return scores | ({"too_long": too_long} if too_long else {})

    def evaluate(
        self,
        pairs: str | Path | Sequence[Example | tuple[str, str | Sequence[str]]],
        options: DecodingOptions | None = None,
        evaluation: EvaluationOptions | None = None,
        stream: StreamOptions | None = None,
        **keywords: Any,
    ) -> Evaluation:
        """Scores of the run on pairs of a source and one or more references, and the outputs behind them.

        `pairs` may be a file, which is read as the run's own data were. The result unpacks into scores and predictions.
        Keywords are options of `DecodingOptions`, `EvaluationOptions` and `StreamOptions`. Loss, perplexity and token
        accuracy are always among the scores; they are those of the first references, whatever the options are. A
        non-autoregressive model may be unable to output a long reference at all: these three leave it out, and
        `too_long` counts it. Files that cannot be read are counted in `unreadable`.
        """
        if isinstance(pairs, str | Path):
            pairs = read_examples(self.run, pairs, several_references=True)
        if not pairs:
            raise DataError("nothing to evaluate: no pair was read")
        options, evaluation, stream = self._options(
            options, keywords, evaluation or EvaluationOptions(), stream or StreamOptions()
        )
        units = self.config.data.units
        names = metric_names(evaluation.metrics, self.run.task, units)
        every = as_examples(pairs)
        examples, faults = readable_examples(self, every, evaluation.skip_unreadable, stream)
        inputs = constrained_inputs(tagged_sources(examples, options.tag, self.tags), options)
        predictions = list(self.stream(inputs, replace(options, tag=None), stream))
        texts, references = [one.text for one in predictions], [example.references for example in examples]
        draws = evaluation.draws if evaluation.intervals else 0
        scores = score_table(texts, references, names, units=units, draws=draws, seed=evaluation.draws_seed)
        scores |= self._likelihood(examples, options)
        if self.run.task.counts_edit_types:
            scores["errors"] = {unit: count_edit_kinds(texts, references, unit) for unit in ("words", "characters")}
        if faults:  # an empty output for each, so that the lines of the outputs are those of the pairs
            scores["unreadable"] = len(faults)
            left_out, found = {fault.location for fault in faults}, iter(predictions)
            predictions = [NO_PREDICTION if one.location in left_out else next(found) for one in every]
        return Evaluation(scores, predictions)
