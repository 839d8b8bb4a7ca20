"""The runs that a server has open, and what it computes with them in batches."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from dragoman.analysis.alignment import AttentionView, WordAlignment, align_pairs, select_view
from dragoman.data.examples import Fault
from dragoman.data.languages import UNKNOWN, languages_of_name, same_language
from dragoman.data.media.archives import MediaError
from dragoman.data.media.feature_extractor import FeatureExtractor
from dragoman.data.tokenizers.base import EOS, Tokenizer
from dragoman.data.tokenizers.text_pair import PAIR_DELIMITER, TextPairTokenizer
from dragoman.decoding.complete import CompletionOptions
from dragoman.decoding.constraints.spec import ConstrainedInput
from dragoman.decoding.options import DecodingOptions
from dragoman.documents.run import fits
from dragoman.errors import DragomanError, RunError
from dragoman.inference.completer import Completed, Completer
from dragoman.inference.inputs import StreamOptions
from dragoman.inference.labeler import Labeler
from dragoman.inference.load import load_run
from dragoman.inference.long_inputs import unknown_surfaces
from dragoman.inference.prediction import Prediction
from dragoman.inference.predictor import Predictor
from dragoman.serving.config import ModelConfig, ServeConfig
from dragoman.serving.formality import languages_of_tags
from dragoman.tasks.base import encoder_of, length_limit

if TYPE_CHECKING:
    from dragoman.reports.inspection import Inspection


class Work(NamedTuple):
    """What is computed of the inputs of a batch: inputs with equal work share a batch."""

    model: str
    operation: str
    options: Hashable = None
    constrained: bool = False


class ScoredPair(NamedTuple):
    """How probable a given output is."""

    log_probability: float
    score: float  # mean per token, <eos> included
    tokens: tuple[str, ...]
    token_scores: tuple[float, ...]


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
    def reads_files(self) -> bool:
        """Whether its inputs are recordings or pictures."""
        return isinstance(getattr(self.engine, "source_tokenizer", None), FeatureExtractor)

    @property
    def predictor(self) -> Predictor:
        """The run, which must search."""
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

    def warm_up(self) -> None:
        """Compute once, so that the first request does not wait for lazy parts."""
        if self.translates:
            tagged = f"<2{self.tags[0]}> a" if self.tags else "a"
            self.run(Work(self.name, "predict", DecodingOptions()), [ConstrainedInput(tagged)])

    # --- the operations

    def _predict(self, options: DecodingOptions, inputs: list[ConstrainedInput]) -> list[Prediction]:
        options = replace(options, batch_size=self.batch_size)
        return list(self.predictor.stream(inputs, options, StreamOptions(input_name=_input_name, on_warning=_ignore)))

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
        return list(self.engine.stream(inputs, batch_size=self.batch_size, on_warning=_refuse))

    def _complete(self, options: CompletionOptions, inputs: list[str]) -> list[list[Completed]]:
        assert isinstance(self.engine, Completer)
        return self.engine.complete(inputs, options, allow_unknown=True, batch_size=self.batch_size)

    def _score(self, options: None, inputs: list[tuple[str, str]]) -> list[ScoredPair]:
        if isinstance(self.engine, Completer):
            rows = self.engine.tokenizer.encode_batch([text.replace("\n", " ") for _, text in inputs])
            sources: list[Any] = [[] for _ in inputs]
            pieces = self.engine.tokenizer.pieces
            collate = None
        else:
            predictor = self.predictor
            sources, rows = predictor.codec.encode_pairs(*(list(side) for side in zip(*inputs, strict=True)))
            pieces, collate = predictor.codec.target_of(None).pieces, predictor.collator.collate
            self._check_lengths(sources)
        return [
            ScoredPair(sum(scores), sum(scores) / len(scores), tuple(pieces([*row, EOS])), scores)
            for row, scores in zip(rows, self._token_scores(sources, rows, collate), strict=True)
        ]

    def _token_scores(self, sources: list[Any], rows: list[list[int]], collate: Any) -> list[tuple[float, ...]]:
        from dragoman.data.batch import batch_of

        model = self.engine.model
        longest = getattr(model, "max_positions", None)
        for row in rows:
            if longest is not None and len(row) >= longest:
                raise RunError(f"target: found {len(row) + 1} tokens, <eos> included, expected at most {longest}")
        batch = (collate or batch_of)(sources, rows).to(self.engine.device)
        scores = model.score(batch)
        table = scores.log_probabilities.double().tolist()
        return [tuple(values[: len(row) + 1]) for values, row in zip(table, rows, strict=True)]

    def _check_lengths(self, sources: Sequence[Any]) -> None:
        setting, maximum = length_limit(encoder_of(self.engine.config))
        for row in sources:
            if maximum is not None and len(row) >= maximum:
                raise RunError(
                    f"source: found {len(row) + 1} tokens, expected at most the {maximum} of model.encoder.{setting}"
                )

    def _align(self, options: None, inputs: list[tuple[str, str]]) -> list[WordAlignment]:
        return list(align_pairs(self.predictor, inputs, view=self._view, batch_size=self.batch_size))

    def inspect(self, text: str | Upload, target: str | None, tag: str | None, beam: int | None) -> Inspection:
        """Everything that can be shown about one input; called in one thread."""
        from dragoman.reports.inspection import inspect

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
        self._check_lengths([predictor.source_tokenizer.encode(text)])
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
        """The characters or words of a text that training did not have: the model reads them as <unk>."""
        tokenizer = getattr(self.engine, "source_tokenizer", None)
        if isinstance(tokenizer, TextPairTokenizer):
            tokenizer = tokenizer.inner
        if not isinstance(tokenizer, Tokenizer) or not tokenizer.is_text or self.task == "masked-language-model":
            return []
        parts = text.split(PAIR_DELIMITER) if self.texts > 1 else [text]
        try:
            found = [one for part in parts for one in unknown_surfaces(part, tokenizer.encode(part), tokenizer)]
        except NotImplementedError:  # a tokenizer that cannot say where its tokens stand
            return []
        return list(dict.fromkeys(found))

    def fits(self, text: str) -> bool:
        """Whether the encoder can read a text as one source."""
        return fits(self.predictor, text)


@lru_cache(maxsize=1)
def second_copy(folder: str, device: str) -> Predictor | Labeler | Completer:
    """A run once more: an inspection changes weights and hooks while it looks, which requests must not see."""
    return load_run(Path(folder), device)


def _input_name(number: int) -> str:
    return "text"


def _ignore(line: str) -> None:
    """A long text is read in parts: a client cannot do anything about it."""


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

    def run(self, work: Work, inputs: list[Any]) -> list[Any]:
        """One output for each input; called in the thread of the batcher."""
        return self.models[work.model].run(work, inputs)

    def route(self, source: str, target: str) -> tuple[ServedModel, str] | None:
        """The model that translates between two languages, and the tag that it needs; None: there is none."""
        for model in self.translators:
            if model.source == UNKNOWN or same_language(source, model.source):
                for code in model.targets:
                    if code == UNKNOWN or same_language(target, code):
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
            if not target or any(code == UNKNOWN or same_language(target, code) for code in model.targets)
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
