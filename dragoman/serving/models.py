"""The runs that a server has open, and what it computes with them in batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from dragoman.analysis.alignment import AttentionView, WordAlignment, align_pairs, select_view
from dragoman.data.examples import Fault
from dragoman.data.languages import UNKNOWN, detect, languages_of_name, same_language
from dragoman.data.media.archives import MediaError
from dragoman.data.media.feature_extractor import FeatureExtractor
from dragoman.data.tokenizers.base import EOS, PAD
from dragoman.data.tokenizers.text_pair import TextPairTokenizer
from dragoman.decoding.complete import CompletionOptions
from dragoman.decoding.constraints.spec import ConstrainedInput
from dragoman.decoding.options import DecodingOptions, changed_fields
from dragoman.decoding.search import limits_of
from dragoman.documents.run import fits
from dragoman.errors import ConfigError, DataError, DragomanError, MissingExtraError, RunError
from dragoman.inference.completer import Completed, Completer
from dragoman.inference.inputs import StreamOptions
from dragoman.inference.labeler import Labeler
from dragoman.inference.load import load_run
from dragoman.inference.long_inputs import InputTooLongError, LengthLimits, over_many_characters
from dragoman.inference.prediction import Prediction
from dragoman.inference.predictor import Predictor
from dragoman.inference.unseen import told_elsewhere
from dragoman.serving.batcher import Cost
from dragoman.serving.config import ModelConfig, ServeConfig
from dragoman.serving.formality import languages_of_tags

if TYPE_CHECKING:
    from dragoman.reports.inspection import Inspection


COUNTED = {"beam", "n_best", "max_length", "length_penalty", "normalisation", "scores", "batch_size"}


class Work(NamedTuple):
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
        return (
            self.model,
            self.operation,
            self.constrained,
            tuple(sorted(given)),
            type(getattr(options, "method", None)),
        )


class ScoredPair(NamedTuple):
    """How probable a given output is; None: the model cannot output it."""

    log_probability: float | None
    score: float | None  # mean per token, <eos> included
    tokens: tuple[str, ...]
    token_scores: tuple[float | None, ...]

    @classmethod
    def of(cls, tokens: Sequence[str], scores: Sequence[float]) -> ScoredPair:
        total = sum(scores)
        finite = math.isfinite(total)
        each = tuple(score if math.isfinite(score) else None for score in scores)
        return cls(total if finite else None, total / len(scores) if finite else None, tuple(tokens), each)


@dataclass(frozen=True)
class Upload:
    """A recording or picture that a client sent."""

    data: bytes
    name: str = "upload"


class ServedModel:
    """An open run with its name and its languages."""

    def __init__(self, config: ModelConfig, serve: ServeConfig) -> None:
        folder = Path(config.run)
        self.name = config.name or folder.resolve().name
        self.default_format = config.default_format
        searches = DecodingOptions(engine=serve.engine) if serve.engine != "auto" else None  # type: ignore[arg-type]
        self.engine: Predictor | Labeler | Completer = load_run(folder, serve.device, searches)
        self.task = self.engine.run.task.name
        self.batch_size = serve.batch_size
        source, target = languages_of_name(self.name)
        self.source = config.source or source or UNKNOWN
        self.tags: tuple[str, ...] = self.engine.tags if isinstance(self.engine, Predictor) else ()
        self.targets = languages_of_tags(self.tags) or (config.target or target or UNKNOWN,)
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
        return isinstance(self.engine, Predictor) and not self.reads_files

    @property
    def has_languages(self) -> bool:
        """Whether its languages are known, so that a request may find it by them."""
        return self.source != UNKNOWN and UNKNOWN not in self.targets

    @property
    def reads_files(self) -> bool:
        """Whether its inputs are recordings or pictures."""
        return isinstance(getattr(self.engine, "source_tokenizer", None), FeatureExtractor)

    @property
    def predictor(self) -> Predictor:
        if not isinstance(self.engine, Predictor):
            raise RunError(f'model: "{self.name}" has task = "{self.task}", which needs no search')
        return self.engine

    @property
    def calibrated(self) -> bool:
        """Whether its outputs have a calibrated confidence."""
        return isinstance(self.engine, Predictor) and self.engine.calibration is not None

    def run(self, work: Work, inputs: list[Any]) -> list[Any]:
        """One output for each input; called in the thread of the batcher."""
        with torch.inference_mode():
            return self.operations[work.operation](work.options, inputs)

    def costs(self, work: Work, inputs: Sequence[Any]) -> list[Cost]:
        """An upper bound of what each input costs, without tokenizing: a text has no more tokens than characters."""
        options = work.options
        if isinstance(options, CompletionOptions):
            return [Cost(options.max_length, options.samples)] * len(inputs)
        if work.operation == "files":  # how long a recording is shows when it is decoded
            return [Cost(1, len(one.data)) for one in inputs]
        if work.operation != "predict":  # all tokens of an input at once
            return [Cost(1, sum(map(len, one)) if isinstance(one, tuple) else len(one)) for one in inputs]
        predictor = self.predictor
        assert isinstance(options, DecodingOptions)
        config = options.search_config(predictor.config.search)
        rows = max(config.beam, options.n_best)
        if options.method is not None:
            rows = options.method.hypotheses(options.n_best)
        backend = predictor.backend(predictor.defaults)
        lengths = torch.tensor([len(one.text) + 1 for one in inputs])
        steps = limits_of(lengths, config, backend.length_ratio, getattr(backend.model, "max_positions", None))
        return [
            Cost(limit + phrases_of(one), rows * self.members)
            for limit, one in zip(steps.tolist(), inputs, strict=True)
        ]

    def warm_up(self) -> None:
        """Compute once, so that the first request does not wait for lazy parts."""
        if self.translates:
            tagged = f"<2{self.tags[0]}> a" if self.tags else "a"
            self.run(Work(self.name, "predict", DecodingOptions()), [ConstrainedInput(tagged)])

    # --- the operations

    def _predict(self, options: DecodingOptions, inputs: list[ConstrainedInput]) -> list[Prediction | DataError]:
        return self.predict(replace(options, batch_size=self.batch_size), inputs)

    def predict(self, options: DecodingOptions, inputs: Sequence[ConstrainedInput]) -> list[Prediction | DataError]:
        """The predictor's outputs; an error in place of each text that it refuses because it is too long."""
        refused: dict[int, InputTooLongError] = {}
        stream = StreamOptions(
            input_name=_input_name, on_warning=_ignore, on_unknown=told_elsewhere, on_refused=refused.__setitem__
        )
        return with_refused(list(self.predictor.stream(inputs, options, stream)), refused)

    def _predict_files(self, options: DecodingOptions, inputs: list[Upload]) -> list[Any]:
        assert isinstance(self.engine, Predictor | Labeler)
        extractor = self.engine.source_tokenizer
        assert isinstance(extractor, FeatureExtractor)
        outputs: list[Any] = [None] * len(inputs)
        features: dict[str, Any] = {}
        for index, upload in enumerate(inputs):
            try:
                features[f"upload {index}"] = extractor.config.decode(upload.data, upload.name)
            except MediaError as error:
                outputs[index] = error
        extractor.preload(features)  # names that no file has: nothing is read from disk
        try:
            if isinstance(self.engine, Labeler):
                predictions = iter(self._label(None, list(features)))
            else:
                names = [ConstrainedInput(name) for name in features]
                predictions = iter(self._predict(options, names)) if names else iter(())
        finally:
            extractor.preload({})
        return [next(predictions) if output is None else output for output in outputs]

    def _label(self, options: None, inputs: list[str]) -> list[Any]:
        assert isinstance(self.engine, Labeler)
        refused: dict[int, InputTooLongError] = {}
        outputs = self.engine.stream(
            inputs,
            batch_size=self.batch_size,
            on_warning=_refuse,
            on_unknown=told_elsewhere,
            on_refused=refused.__setitem__,
        )
        return with_refused(list(outputs), refused)

    def _complete(self, options: CompletionOptions, inputs: list[str]) -> list[list[Completed]]:
        assert isinstance(self.engine, Completer)
        for prompt in inputs:
            self.check_prompt(prompt)
        return self.engine.complete(inputs, options, allow_unknown=True, batch_size=self.batch_size, on_warning=_ignore)

    def check_prompt(self, prompt: str) -> None:
        """Raise an error for a prompt that is too long: it is read in one step, which nothing can interrupt."""
        problem, _ = over_many_characters(prompt, LengthLimits.of(self.engine.config))
        if problem:
            raise DataError(f"input: {problem}; send the end of the prompt alone")

    def _score(self, options: None, inputs: list[tuple[str, str]]) -> list[ScoredPair]:
        if isinstance(self.engine, Completer):
            rows = self.engine.tokenizer.encode_batch([text.replace("\n", " ") for _, text in inputs])
            sources: list[Any] = [[] for _ in inputs]
            pieces = self.engine.tokenizer.pieces
            collate = None
        else:
            predictor = self.predictor
            codec = predictor.backend(predictor.defaults).codec
            sources, rows = codec.encode_pairs(*(list(side) for side in zip(*inputs, strict=True)))
            pieces, collate = codec.target_of(None).pieces, predictor.collator.collate
            self._check_lengths(sources, "source")
            self._check_lengths(rows, "target")
        return [
            ScoredPair.of(pieces([*row, EOS]), scores)
            for row, scores in zip(rows, self._token_scores(sources, rows, collate), strict=True)
        ]

    @property
    def scorer(self) -> Any:
        """The model that scores: all members of an ensemble together, as they predict."""
        engine = self.engine
        return engine.backend(engine.defaults).model if isinstance(engine, Predictor) else engine.model

    @property
    def members(self) -> int:
        """How many models compute together."""
        return len(self.engine.members) if isinstance(self.engine, Predictor) else 1

    def check_scores(self) -> None:
        """Raise an error for a run that has no probability of a given text."""
        if isinstance(self.engine, Labeler) or self.reads_files:
            raise ConfigError(f'model: "{self.name}" has task = "{self.task}", which has no probability of a text')
        if getattr(self.scorer, "likelihood", "tokens") == "none":
            kind = getattr(self.engine.config.model, "kind", "fitted")
            raise ConfigError(f'model: "{self.name}" has model.kind = "{kind}", which has no probability of a text')

    def _token_scores(self, sources: list[Any], rows: list[list[int]], collate: Any) -> list[tuple[float, ...]]:
        from dragoman.data.batch import batch_of

        model = self.scorer
        longest = getattr(model, "max_positions", None)
        for row in rows:
            if longest is not None and len(row) >= longest:
                raise DataError(f"target: found {len(row) + 1} tokens, <eos> included, expected at most {longest}")
        batch = (collate or batch_of)(sources, rows).to(self.engine.device)
        scores = model.score(batch)
        # A fitted model masks a target that it cannot output as a whole.
        logs = scores.log_probabilities.double().where(scores.mask | (batch.target == PAD), -math.inf)
        return [tuple(values[: len(row) + 1]) for values, row in zip(logs.tolist(), rows, strict=True)]

    def _check_lengths(self, rows: Sequence[Any], side: str) -> None:
        """Raise an error for texts longer than training allowed: memory grows with the square of their length."""
        limits = self.predictor.length_limits
        for row in rows:
            if len(row) > limits.tokens:
                raise DataError(
                    f"{side}: found {len(row):,} tokens, expected at most {limits.tokens_setting} = {limits.tokens:,}"
                )

    def refuse_ensemble(self, what: str) -> None:
        """Raise an error where only one model can be looked at, for a run that is an ensemble of several."""
        if self.members > 1:
            raise ConfigError(
                f'model: "{self.name}" is an ensemble of {self.members} models, and {what} is that of one model; serve '
                "a member as a run of its own"
            )

    def _align(self, options: None, inputs: list[tuple[str, str]]) -> list[WordAlignment]:
        return list(align_pairs(self.predictor, inputs, view=self._view, batch_size=self.batch_size))

    def inspect(self, text: str | Upload, target: str | None, tag: str | None, beam: int | None) -> Inspection:
        """Everything that can be shown about one input; called in one thread."""
        from dragoman.reports.inspection import inspect

        self.refuse_ensemble("a look inside")
        inspector = second_copy(str(self.engine.run.folder), str(self.engine.device))
        if isinstance(text, str):
            return inspect(inspector, text, target, tag=tag, beam=beam)
        assert isinstance(inspector, Predictor | Labeler)
        extractor = inspector.source_tokenizer
        assert isinstance(extractor, FeatureExtractor)
        extractor.preload({text.name: extractor.config.decode(text.data, text.name)})
        try:
            return inspect(inspector, text.name, target, tag=tag, beam=beam)
        finally:
            extractor.preload({})

    def continue_search(self, text: str, tokens: list[int]) -> dict[str, Any]:
        """The greedy continuation of the first tokens of an output; called in the thread of inspections."""
        from dragoman.analysis.beam_tree import continue_prefixes

        predictor = self.predictor
        if not hasattr(predictor.model, "read") or not hasattr(predictor.model, "step"):
            raise RunError(f'model: "{self.name}" does not write token by token, so no search can go on')
        vocabulary = predictor.codec.target_of(text)
        if any(token >= len(vocabulary) for token in tokens):
            raise RunError(f"tokens: found {max(tokens)}, expected token ids below {len(vocabulary):,}")
        longest = predictor.model.max_positions
        if longest is not None and len(tokens) + 1 >= longest:
            raise RunError(f"tokens: found {len(tokens)}, expected fewer than {longest - 1}")
        self._check_lengths([predictor.source_tokenizer.encode(text)], "input")
        (found,) = continue_prefixes(predictor, text, [tokens])
        return {
            "text": found.text, "score": found.score, "log_probability": found.total,
            "tokens": vocabulary.pieces(found.tokens), "token_scores": list(found.token_scores),
        }  # fmt: skip

    @cached_property
    def _view(self) -> AttentionView:
        return select_view(self.predictor)

    # --- texts

    @property
    def texts(self) -> int:
        """How many texts an input has: two for a run that labels pairs of texts."""
        return 2 if isinstance(getattr(self.engine, "source_tokenizer", None), TextPairTokenizer) else 1

    def unknown(self, text: str) -> list[str]:
        """The characters or words of the lines of a text that training did not have."""
        find = self.engine.unseen_in if isinstance(self.engine, Labeler) else self.engine.unseen
        return list(dict.fromkeys(surface for line in text.split("\n") for surface in find(line)))

    def fits(self, text: str) -> bool:
        """Whether the encoder can read a text as one source."""
        return fits(self.predictor, text)


@lru_cache(maxsize=1)
def second_copy(folder: str, device: str) -> Predictor | Labeler | Completer:
    """A run once more: an inspection changes weights and hooks while it looks, which requests must not see."""
    return load_run(Path(folder), device)


def phrases_of(one: ConstrainedInput) -> int:
    """Characters of the texts that an output must have: a search may become so much longer."""
    required = sum(max(map(len, alternatives), default=0) for alternatives in one.constraints.require)
    return len(one.constraints.prefix) + required + max(map(len, one.constraints.allow), default=0)


def with_refused(outputs: list[Any], refused: Mapping[int, InputTooLongError]) -> list[Any]:
    """The outputs with the errors of inputs that are too long, by their numbers from 1."""
    for number, error in refused.items():
        outputs[number - 1] = DataError(f"input: {error.reason}")
    return outputs


def _input_name(number: int) -> str:
    """Requests share batches, so the number of an input in its batch means nothing to a client."""
    return "input"


def _ignore(line: str) -> None:
    """A warning that an answer has in a field of its own."""


def _refuse(line: str) -> None:
    """A text that is too long to label has no answer."""
    raise RunError(line)


class Models:
    """All runs of a server."""

    def __init__(self, config: ServeConfig) -> None:
        if not config.models:
            raise RunError("found no run to serve, expected at least one: dragoman serve RUN")
        self.models = {model.name: model for model in (ServedModel(one, config) for one in config.models)}

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

    def run(self, work: Work, inputs: list[Any]) -> list[Any]:
        """One output for each input; called in the thread of the batcher."""
        return self.models[work.model].run(work, inputs)

    def costs(self, work: Work, inputs: Sequence[Any]) -> list[Cost]:
        """An upper bound of what each input costs."""
        return self.models[work.model].costs(work, inputs)

    def route(self, source: str, target: str) -> tuple[ServedModel, str] | None:
        """The model that translates between two languages, and the tag that it needs; None: there is none.

        All protocols choose by this. A run whose languages are not known answers no pair of languages: it stands in
        lists as "und", and only a request that says "und" for the unknown side means it.
        """
        for model in self.translators:
            if same_language(source, model.source):
                for code in model.targets:
                    if same_language(target, code):
                        return model, code if model.tags else ""
        return None

    @property
    def translators(self) -> list[ServedModel]:
        """The models that translate text."""
        return [model for model in self if model.translates]

    def sources(self, target: str = "") -> list[str]:
        """The source languages that can be translated (into `target`)."""
        found = (
            model.source
            for model in self.translators
            if not target or any(same_language(target, code) for code in model.targets)
        )
        return list(dict.fromkeys(found))


def fault_of(output: Any) -> str | None:
    """The message of an output that is a user's mistake; other exceptions are raised."""
    if isinstance(output, Fault):
        return str(output)
    if isinstance(output, DragomanError):
        return str(output)
    if isinstance(output, Exception):
        raise output
    return None
