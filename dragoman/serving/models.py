"""The runs that a server has open, and what it computes with them in batches."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from uuid import NAMESPACE_URL, uuid5

from dragoman.base import ConfigError, DataError, DragomanError, MissingExtraError, RunError
from dragoman.data import UNKNOWN, Example, detect, languages_of_name, protected_spans, same_language, without_spans
from dragoman.data.media import MediaError
from dragoman.data.tokenizers import add_tag, join_context, split_context, split_tag
from dragoman.decoding import DecodingOptions, LabelPrediction, changed_fields
from dragoman.decoding.constraints import ConstrainedInput, OutputConstraints
from dragoman.inference import (
    Completed,
    Completer,
    CompletionOptions,
    Labeler,
    Observe,
    Prediction,
    Predictor,
    StreamOptions,
    TargetScore,
    ignore_unknown,
    load_run,
)
from dragoman.runs import Run, current_version
from dragoman.serving.batcher import SearchCost
from dragoman.serving.config import ModelConfig, ServeConfig
from dragoman.serving.formality import language_of_tag

if TYPE_CHECKING:  # a run that an engine searches is served without torch
    from dragoman.inference.align import AttentionView, WordAlignment
    from dragoman.inspect import InspectOptions
    from dragoman.inspect.views import Inspection

T = TypeVar("T")
UPLOAD = "upload"  # what messages call a recording or picture that a client sent
COUNTED = {"beam", "n_best", "max_length", "length_penalty", "normalisation", "scores", "batch_size"}


class BatchWork(NamedTuple):
    """What is computed of the inputs of a batch: inputs with equal work share a batch."""

    model: str
    operation: str
    options: Hashable = None
    constrained: bool = False

    @property
    def kind(self) -> Hashable:
        """Work of one kind takes about as long for its cost: searches that end early, that may not, that sample, ….

        Widths and lengths are in the cost; of the other options it counts which are given.
        """
        options = self.options
        given = {*changed_fields(options)} - COUNTED if isinstance(options, DecodingOptions) else ()
        method = type(getattr(options, "method", None))
        return self.model, self.operation, self.constrained, tuple(sorted(given)), method


def without_gradients() -> AbstractContextManager[Any]:
    """Torch's inference mode; work that imports no torch needs none, and a search says itself that it needs none."""
    torch = sys.modules.get("torch")
    return nullcontext() if torch is None else torch.inference_mode()


class ServedModel:
    """An open run with its name and its languages."""

    def __init__(self, config: ModelConfig, serve: ServeConfig) -> None:
        folder = Path(config.run)
        self.name = config.name or folder.resolve().name
        self.default_format = config.default_format
        self.memory_file = Path(config.memory).name
        self.engine: Predictor | Labeler | Completer = load_run(folder, serve.device, decoding_defaults(config, serve))
        if serve.min_confidence is not None and self.engine.searches and not self.engine.is_calibrated:
            raise RunError(f"min_confidence: {folder} has no calibration; first: dragoman calibrate {folder}")
        if config.memory:
            # A faulty one is an error at the start, not at the first request.
            self.memory_size = len(self.predictor.memory(config.memory))
        run = self.engine.run
        self.task = run.task.name
        # The weights that are loaded now: the run may be adapted while the server goes on with them.
        self.origin: dict[str, Any] = {"model": self.name, "run": str(run.folder.resolve())}
        if serve.corrections:
            version = current_version(run)
            self.origin |= {"version": version and version.number, "weights": run.weights_digest()}
        self.batch_size = serve.batch_size
        source, target = languages_of_name(self.name)
        self.source = config.source or source or UNKNOWN
        self.tags = self.engine.tags if self.engine.searches else ()
        self.targets = tuple(dict.fromkeys(map(language_of_tag, self.tags))) or (config.target or target or UNKNOWN,)
        self.operations: dict[str, Callable[[Any, list[Any]], list[Any]]] = {
            "predict": self._predict,
            "files": self._predict_files,
            "label": self._label,
            "complete": self._complete,
            "score": self._score,
            "align": self._align,
        }

    @property
    def translates(self) -> bool:
        """Whether it reads and writes text by a search."""
        return self.engine.searches and not self.reads_files

    @property
    def has_languages(self) -> bool:
        """Whether its languages are known, so that a request may find it by them."""
        return self.source != UNKNOWN and UNKNOWN not in self.targets

    @property
    def reads_files(self) -> bool:
        return self.engine.reads_files

    @property
    def memory_id(self) -> str:
        """What requests call the translation memory of the run: the same after a restart; empty: it has none."""
        return str(uuid5(NAMESPACE_URL, f"dragoman:{self.name}/{self.memory_file}")) if self.memory_file else ""

    @property
    def predictor(self) -> Predictor:
        if not isinstance(self.engine, Predictor):
            raise RunError(f'model: "{self.name}" has task = "{self.task}", which needs no search')
        return self.engine

    @property
    def completer(self) -> Completer:
        if not isinstance(self.engine, Completer):
            raise ConfigError(
                f'model: "{self.name}" has task = "{self.task}", expected a language model; for a translation ask '
                "/v1/chat/completions"
            )
        return self.engine

    def run(self, work: BatchWork, inputs: list[Any]) -> list[Any]:
        """One output for each input; called in the thread of the batcher."""
        with without_gradients():
            return self.operations[work.operation](work.options, inputs)

    def costs(self, work: BatchWork, inputs: Sequence[Any]) -> list[SearchCost]:
        """An upper bound of what each input costs, without tokenizing: a text has no more tokens than characters."""
        options = work.options
        if isinstance(options, CompletionOptions):
            return [SearchCost(options.max_length, options.samples)] * len(inputs)
        if work.operation != "predict":  # all tokens of an input at once; the length of a recording is not known yet
            return [SearchCost(1, sum(map(len, item)) if isinstance(item, tuple) else len(item)) for item in inputs]
        predictor = self.predictor
        assert isinstance(options, DecodingOptions)
        config = options.search_config(predictor.search)
        rows = max(config.beam, options.n_best)
        if options.method is not None:
            rows = options.method.hypotheses(options.n_best)
        backend = predictor.backend(predictor.defaults)
        # In plain numbers: for one text a tensor takes a tenth of a millisecond.
        steps = (config.limit(len(item.text) + 1, backend.length_ratio) for item in inputs)
        most = getattr(backend.traits, "max_positions", None) or math.inf
        return [
            SearchCost(int(min(limit, most)) + phrases_of(item.constraints), rows * len(self.engine.members))
            for limit, item in zip(steps, inputs, strict=True)
        ]

    def warm_up(self) -> None:
        """Compute once, so that the first request does not wait for lazy parts."""
        if self.translates:
            tagged = f"<2{self.tags[0]}> a" if self.tags else "a"
            self.run(BatchWork(self.name, "predict", DecodingOptions()), [ConstrainedInput(tagged)])

    # --- the operations

    def _predict(self, options: DecodingOptions, inputs: list[ConstrainedInput]) -> list[Prediction | DragomanError]:
        return self.predict(replace(options, batch_size=self.batch_size), inputs)

    def predict(self, options: DecodingOptions, inputs: Sequence[ConstrainedInput]) -> list[Prediction | DragomanError]:
        """The predictor's outputs; an error in place of each input that fails."""
        inputs = [item._replace(text=self.alone(item.text)) for item in inputs]
        return outputs_or_errors(lambda stream: self.predictor.stream(inputs, options, stream))

    def alone(self, text: str) -> str:
        """A text without context if it brings none: its neighbours are of other requests."""
        tag, own = split_tag(text, self.tags)
        if not self.predictor.context or split_context(own)[0] is not None:
            return text
        own = join_context((), own)
        return add_tag(own, tag) if tag else own

    def _label(self, options: None, inputs: list[str]) -> list[LabelPrediction | DragomanError]:
        labeler = self.engine
        assert isinstance(labeler, Labeler)
        return outputs_or_errors(
            # A text of which the end would be left out has no answer.
            lambda stream: labeler.stream(inputs, replace(stream, on_warning=_refuse), batch_size=self.batch_size)
        )

    def _complete(self, options: CompletionOptions, inputs: list[str]) -> list[list[Completed] | DragomanError]:
        return outputs_or_errors(lambda stream: self.complete(options, inputs, stream))

    def complete(
        self, options: CompletionOptions, prompts: Sequence[str], stream: StreamOptions, observe: Observe | None = None
    ) -> Iterator[list[Completed]]:
        """The completions of prompts; a prompt that is too long is refused: nothing can interrupt its one step."""
        longest = self.engine.length_limits.characters
        options = replace(options, allow_unknown=True, batch_size=self.batch_size, max_characters=longest)
        return self.completer.stream(prompts, replace(options, observe=observe), stream)

    def _predict_files(self, options: DecodingOptions, inputs: list[bytes]) -> list[Any]:
        extractor = self.engine.extractor
        errors: dict[int, MediaError] = {}
        features: dict[str, Any] = {}
        for index, data in enumerate(inputs):
            try:
                features[f"upload {index}"] = extractor.config.decode(data, UPLOAD)
            except MediaError as error:
                errors[index] = error
        extractor.preload(features)  # names that no file has: nothing is read from disk
        try:
            names = list(features)
            outputs: list[Any] = (
                self._predict(options, [ConstrainedInput(name) for name in names])
                if self.engine.searches
                else self._label(None, names)
            )
        finally:
            extractor.preload({})
        predictions = iter(outputs)
        return [errors[index] if index in errors else next(predictions) for index in range(len(inputs))]

    def _score(self, options: None, inputs: list[tuple[str, str]]) -> list[TargetScore | DragomanError]:
        def scores(stream: StreamOptions) -> Iterator[TargetScore]:
            # A text longer than training allowed has no answer: memory grows with the square of its length.
            stream = replace(stream, on_warning=_refuse)
            if isinstance(self.engine, Completer):
                lines = [target for _, target in inputs]
                return iter(self.engine.score(lines, stream, batch_size=self.batch_size))
            pairs = [Example(self.alone(source), (target,), "input", 1) for source, target in inputs]
            return iter(self.predictor.score(pairs, stream=stream, batch_size=self.batch_size))

        return outputs_or_errors(scores)

    def check_scores(self) -> None:
        """Raise an error for a run that has no probability of a given text."""
        if self.reads_files or not (self.engine.searches or self.engine.continues):
            raise ConfigError(f'model: "{self.name}" has task = "{self.task}", which has no probability of a text')
        if self.engine.likelihood == "none":
            kind = getattr(self.engine.config.model, "kind", "fitted")
            raise ConfigError(f'model: "{self.name}" has model.kind = "{kind}", which has no probability of a text')

    def _align(self, options: None, inputs: list[tuple[str, str]]) -> list[WordAlignment | DragomanError]:
        from dragoman.inference.align import align_pairs

        how: Any = {"view": self._view, "batch_size": self.batch_size}
        return outputs_or_errors(lambda stream: align_pairs(self.predictor, inputs, stream=stream, **how))

    def inspect(self, text: str | bytes, options: InspectOptions, **variant: bool) -> Inspection:
        """Everything that can be shown about one input; called in one thread. `variant`: see `open_variant`."""
        from dragoman.inspect.views import inspect, variant_title

        if (members := len(self.engine.members)) > 1:
            raise ConfigError(
                f'model: "{self.name}" is an ensemble of {members} models, and a look inside is that of one model; '
                "serve a member as a run of its own"
            )
        inspector = second_copy(str(self.engine.run.folder), str(self.engine.device), **variant)
        if isinstance(text, str):
            found = inspect(inspector, text, options)
            return replace(found, title=variant_title(self.name, **variant))
        extractor = inspector.extractor
        extractor.preload({UPLOAD: extractor.config.decode(text, UPLOAD)})
        try:
            return inspect(inspector, UPLOAD, options)
        finally:
            extractor.preload({})

    def continue_search(self, text: str, tokens: list[int]) -> dict[str, Any]:
        """The greedy continuation of the first tokens of an output; called in the thread of inspections."""
        from dragoman.inspect.views import continue_prefixes

        predictor = self.predictor
        if not hasattr(predictor.model, "read") or not hasattr(predictor.model, "step"):
            raise RunError(f'model: "{self.name}" does not write token by token, so no search can go on')
        vocabulary = predictor.codec.target_of(text)
        if any(token >= len(vocabulary) for token in tokens):
            raise RunError(f"tokens: found {max(tokens)}, expected token ids below {len(vocabulary):,}")
        longest = predictor.model.max_positions
        if longest is not None and len(tokens) + 1 >= longest:
            raise RunError(f"tokens: found {len(tokens)}, expected fewer than {longest - 1}")
        if (excess := predictor.length_limits.excess(text, predictor.source_tokenizer)) is not None:
            raise DataError(f"input: {excess[0]}")
        (output,) = continue_prefixes(predictor, text, [tokens])
        return {
            "text": output.text, "score": output.score, "log_probability": output.total,
            "tokens": vocabulary.pieces(output.tokens), "token_scores": list(output.token_scores),
        }  # fmt: skip

    @cached_property
    def _view(self) -> AttentionView:
        from dragoman.inference.align import select_view

        return select_view(self.predictor)

    # --- texts

    def unknown(self, text: str, copied: bool = False) -> list[str]:
        """The characters or words of the lines of a text that training did not have, but for those that are copied."""
        find = self.engine.unseen_in
        text = without_spans(text, protected_spans(text)) if copied else text
        return list(dict.fromkeys(surface for line in text.split("\n") for surface in find(line)))


@lru_cache(maxsize=2)  # of a page with two runs side by side
def second_copy(folder: str, device: str, **variant: bool) -> Predictor | Labeler | Completer:
    """A run once more: an inspection changes weights and hooks while it looks, which requests must not see."""
    from dragoman.inspect.views import open_variant

    return open_variant(folder, device, **variant)


def phrases_of(constraints: OutputConstraints) -> int:
    """Characters of the texts that an output must have: a search may become so much longer."""
    required = sum(max(map(len, alternatives), default=0) for alternatives in constraints.require)
    return len(constraints.prefix) + required + max(map(len, constraints.allow), default=0)


def quiet_stream(failed: Callable[[int, DragomanError], None] | None = None) -> StreamOptions:
    """How requests read their inputs: answers have fields of their own for what a stream would warn of.

    Requests share batches, so the number of an input in its batch means nothing to a client.
    """
    return StreamOptions(
        input_name=lambda number: "input", on_warning=lambda line: None, on_unknown=ignore_unknown, on_failed=failed
    )


def outputs_or_errors(compute: Callable[[StreamOptions], Iterator[T]]) -> list[T | DragomanError]:
    """All outputs; an error in place of each input that fails."""
    failed: dict[int, DragomanError] = {}
    outputs = list(compute(quiet_stream(failed.__setitem__)))
    return [failed.get(number, output) for number, output in enumerate(outputs, 1)]


def _refuse(line: str) -> None:
    """A text that is too long to label has no answer."""
    raise RunError(line)


def decoding_defaults(config: ModelConfig, serve: ServeConfig) -> DecodingOptions:
    """How a run decodes where a request does not say it; all but the engine is for runs that search."""
    given: dict[str, Any] = {}
    if Run(config.run).task.searches:
        given = {
            **serve.search.given(), "min_confidence": serve.min_confidence, "memory": config.memory or None,
            "precision": serve.precision,
        }  # fmt: skip
    elif config.memory:
        raise RunError(f"memory: {config.run} does not search for an output text, expected none")
    return DecodingOptions(**given, engine=serve.engine)


class Models:
    """All runs of a server."""

    def __init__(self, config: ServeConfig) -> None:
        if not config.models:
            raise RunError("found no run to serve, expected at least one: dragoman serve RUN")
        self.models = {model.name: model for model in (ServedModel(entry, config) for entry in config.models)}
        precision = None if config.precision == ServeConfig.precision else config.precision
        given = {"search": config.search.given(), "min_confidence": config.min_confidence, "precision": precision}
        for name in given if not any(model.engine.searches for model in self) else ():
            if given[name] not in ({}, None):
                raise ConfigError(f"{name}: found {given[name]}, but no run of the server searches for an output text")

    def __getitem__(self, name: str) -> ServedModel:
        return self.models[name]

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(self.models.values())

    def warm_up(self) -> None:
        """Open now what a request would wait for: lazy parts of the models, and what detects languages."""
        for model in self:
            model.warm_up()
        codes = [code for model in self.translators for code in (model.source, *model.targets)]
        if len({*codes} - {UNKNOWN}) > 1:
            with suppress(MissingExtraError):
                detect("a", codes)

    def routes(self, source: str, target: str) -> list[tuple[ServedModel, str]]:
        """All models that translate between two languages, each with the tag that it needs.

        All protocols choose by this. A run whose languages are not known answers no pair of languages: it stands in
        lists as "und", and only a request that says "und" for the unknown side means it.
        """
        return [
            (model, code if model.tags else "")
            for model in self.translators if same_language(source, model.source)
            for code in model.targets if same_language(target, code)
        ]  # fmt: skip

    @property
    def translators(self) -> list[ServedModel]:
        return [model for model in self if model.translates]

    def sources(self, target: str) -> list[str]:
        """The source languages that can be translated into `target`."""
        serving = [model for model in self.translators if any(same_language(target, code) for code in model.targets)]
        return list(dict.fromkeys(model.source for model in serving))
