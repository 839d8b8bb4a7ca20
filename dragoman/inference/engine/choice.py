"""Who searches for a call: torch, or CTranslate2 where it supports every option of the call.

`SUPPORTED` is an allow-list. An option that is not listed there and does not have its default goes to our own search,
so that a new option never reaches the engine by accident.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dragoman.base import ConfigError, RunError
from dragoman.data import SourceReader
from dragoman.data.tokenizers import Tokenizer
from dragoman.decoding import SUPPRESSED_TOKENS, DecodingOptions, SearchConfig, changed_fields
from dragoman.decoding.constraints import FIELDS
from dragoman.inference.engine import ctranslate2 as exchange
from dragoman.inference.engine.engine import Engine
from dragoman.inference.engine.exporter import stacks_of
from dragoman.models import EncoderDecoderConfig, ModelTraits
from dragoman.runs import Run
from dragoman.runs.tasks import length_limit

if TYPE_CHECKING:
    from dragoman.decoding import Shortlist

TORCH = "torch"
ENGINES = ("auto", "torch", "ctranslate2")
CANNOT = "engine: found ctranslate2, which cannot do {reason}; expected auto or torch"


def chosen(engine: str, precision: str, model: Any, device: str) -> str:
    """The engine for a model's configuration, "torch" or "ctranslate2"; an error if the one named cannot run it.

    `device` is a name of torch's, such as "cpu" or "cuda:0".
    """
    precisions = (*exchange.PRECISIONS, "bfloat16")
    for name, value, expected in (("engine", engine, ENGINES), ("precision", precision, precisions)):
        if value not in expected:
            raise ConfigError(f"{name}: found {value!r}, expected one of {', '.join(expected)}")
    if precision == "bfloat16":
        if engine == "ctranslate2" or not device.startswith("cuda"):
            raise ConfigError(
                f"precision: found 'bfloat16' with engine {engine!r} on device {device!r}, expected engine torch "
                "on a GPU; float32 goes everywhere"
            )
        return TORCH
    if engine == TORCH or (engine == "auto" and precision == "float32"):
        if precision != "float32":
            raise ConfigError(
                f"precision: found {precision!r}, which only the engine ctranslate2 has, expected float32"
            )
        if engine == TORCH or device != "cpu" or not exchange.installed() or exchange.blockers(model):
            return TORCH
        return "ctranslate2"
    if device != "cpu":
        raise ConfigError(f"engine: ctranslate2 runs on the CPU here, found device {device!r}, expected cpu")
    exchange.package()
    exchange.check_exportable(model)
    return "ctranslate2"


def required(engine: str, precision: str) -> bool:
    """Whether the caller requires the engine, so that a search it cannot do is an error."""
    return engine == "ctranslate2" or precision == "int8"


def open_shortlist(options: DecodingOptions) -> Shortlist | None:
    """The shortlist of options whose method is open; None: they have none."""
    if options.method is None:
        return None
    from dragoman.decoding import Shortlist

    return options.method if isinstance(options.method, Shortlist) else None


class Call(NamedTuple):
    """The search settings and options of a call."""

    config: SearchConfig
    options: DecodingOptions  # its method is open

    @property
    def width(self) -> int:
        return max(self.config.beam, self.options.n_best)

    @property
    def engine_required(self) -> bool:
        """Whether a search that the engine cannot do is an error."""
        return required(self.options.engine, self.options.precision)


# For every setting and option: when CTranslate2 supports a value other than the default; None: always.
SUPPORTED: dict[str, Callable[[Call], bool] | None] = {
    "beam": None,
    "length_penalty": None,
    "normalisation": lambda call: (
        call.width == 1 or call.config.normalisation != "gnmt" or not call.config.length_penalty
    ),
    "stop": lambda call: call.width == 1 or call.config.stop == "complete",
    "max_length": None,
    "num_complete": None,  # its patience
    # It forbids tokens before the softmax. That changes the ranks in a beam, but not which token is the most probable.
    "min_length": lambda call: call.width == 1,
    "no_repeat_ngram": lambda call: call.width == 1,
    "diversity_penalty": None,  # has an effect with beam_groups alone
    "n_best": None,
    # CTranslate2 joins the shortlists of a batch, so that neighbours may change an output: only where it is required.
    "method": lambda call: open_shortlist(call.options) is not None and call.engine_required,
    "rerank": None,  # happens after the search
    "ensemble": None,  # the engine is not even made for one
    # Inputs that have constraints are known later, and go to our own search one window at a time.
    **dict.fromkeys((*FIELDS, "terminology", "placeholders", "split_long", "average", "weights", "tag", "scores")),
    **dict.fromkeys(("min_confidence", "memory", "min_match", "batch_size", "engine", "precision")),
}


def unsupported(call: Call, vocabulary: int, *, constrained: bool = False, traced: bool = False) -> Iterator[str]:
    """Every reason why CTranslate2 would not give what our own search gives."""
    searched = {field.name for field in fields(call.config)}  # options of these names are in the settings already
    for owner, place, skipped in ((call.config, "search.", set()), (call.options, "", searched)):
        for name in changed_fields(owner):
            if name in skipped or (name in SUPPORTED and ((fits := SUPPORTED[name]) is None or fits(call))):
                continue
            method = type(call.options.method).__name__
            yield f"the method {method}" if name == "method" else f"{place}{name} = {getattr(owner, name)!r}"
    if constrained:
        yield "prefixes, phrases and other constraints"
    if traced:
        yield "a trace of the beam"
    # Where it is required, it stops as by "complete" and adds the greedy output.
    if call.width > 1 and call.config.stop == "ahead" and not call.engine_required:
        yield "search.stop = 'ahead'"
    # In a smaller vocabulary continuations that are never output would enter the beam.
    if call.width > 1 and vocabulary < 2 * call.width + 1 + len(SUPPRESSED_TOKENS):
        yield f"a beam of {call.width} over a vocabulary of {vocabulary}"


class EngineTraits(ModelTraits):
    """What a model declares that the engine can run: an encoder-decoder of Transformers."""

    decodes = "stepwise"

    def __init__(self, config: EncoderDecoderConfig) -> None:
        self._max_positions = length_limit(stacks_of(config)["decoder"])[1]

    @property
    def max_positions(self) -> int | None:
        return self._max_positions


class EngineChoice:
    """Chooses for every search; the engine is made when it is first needed, and again for each new shortlist."""

    def __init__(
        self,
        run: Run,
        tokenizers: tuple[SourceReader, Tokenizer],
        engine: str,
        precision: str,
        device: str,
        is_ensemble: bool = False,
    ) -> None:
        self.run, self.tokenizers, self.precision = run, tokenizers, precision
        self.required = required(engine, precision)
        self.name = chosen(engine, precision, run.config.model, device)
        if is_ensemble:  # CTranslate2 searches with one model
            if self.required:
                raise ConfigError(CANNOT.format(reason="an ensemble"))
            self.name = TORCH
        self._made: dict[bool, tuple[Shortlist | None, Engine | None]] = {}  # without a shortlist, and for the last one

    def can_search(self, call: Call, *, constrained: bool = False, traced: bool = False) -> bool:
        """Whether the engine does a search; an error with the reason where it is required and cannot."""
        if self.name == TORCH:
            return False
        reason = next(unsupported(call, len(self.tokenizers[1]), constrained=constrained, traced=traced), None)
        if reason is not None and self.required:
            raise ConfigError(CANNOT.format(reason=reason))
        return reason is None

    @property
    def traits(self) -> ModelTraits | None:
        """What the model declares where the engine can run it, without the model; None: nobody knows yet."""
        return None if self.name == TORCH else EngineTraits(self.run.config.model)

    def open_written(self, call: Call) -> bool:
        """Open the engine for a call if its folder is written: torch is needed for no search that the engine does."""
        if self.name == TORCH or next(unsupported(call, len(self.tokenizers[1])), None) is not None:
            return False
        engine = self._open(self._written, None)
        if engine is not None:
            self._made[False] = None, engine
        return engine is not None

    def engine(self, open_model: Callable[[], Any], shortlist: Shortlist | None = None) -> Engine | None:
        """The engine with the weights of the run; None: torch searches. Its folder is written from the model."""
        if self.name == TORCH:
            return None
        listed = shortlist is not None
        if listed not in self._made or self._made[listed][0] is not shortlist:
            find = lambda: self._written() or self._export(open_model())  # noqa: E731
            self._made[listed] = shortlist, self._open(find, shortlist)
        return self._made[listed][1]

    def _written(self) -> Path | None:
        return exchange.written_folder(self.run.folder, self.run.weights_path(), self.precision)

    def _export(self, model: Any) -> Path | None:
        from dragoman.inference.engine.ctranslate2_export import exported

        if not all(bool(parameter.isfinite().all()) for parameter in model.parameters()):
            return None  # our own search reports broken weights
        return exported(self.run.folder, self.run.weights_path(), model, self.tokenizers, self.precision)

    def _open(self, find_folder: Callable[[], Path | None], shortlist: Shortlist | None) -> Engine | None:
        """The engine with a model folder; None where there is no folder, or CTranslate2 cannot run it."""
        folder = self.run.folder
        try:
            found = find_folder()
            if found is None:
                return None
            return Engine.of(folder, found, self.tokenizers, self.precision, shortlist)
        except (OSError, RuntimeError, ValueError, IndexError) as error:
            if self.required:
                raise RunError(f"{folder}: cannot be run by ctranslate2 ({error})") from None
            print(f"{folder}: cannot be run by ctranslate2 ({error}); torch searches", file=sys.stderr)
            return None
