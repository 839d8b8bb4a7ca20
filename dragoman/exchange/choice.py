"""Who searches for a run: torch, or another engine where that can do what is asked."""

from __future__ import annotations

import copy
import sys
from typing import Any

import torch

from dragoman.data.tokenizers.base import Tokenizer
from dragoman.decoding.config import SearchConfig
from dragoman.decoding.methods import Method
from dragoman.decoding.shortlist import Shortlist
from dragoman.errors import ConfigError, RunError
from dragoman.exchange.engine import Engine, chosen, refusal
from dragoman.runs import Run

TORCH = "torch"


class Choice:
    """Chooses for every search; the other engine is made when it is first needed, and anew for a shortlist."""

    def __init__(
        self, run: Run, tokenizers: tuple[Tokenizer, Tokenizer], engine: str, precision: str, device: torch.device
    ) -> None:
        self.run, self.tokenizers, self.precision = run, tokenizers, precision
        self.name = chosen(engine, precision, run.config.model, device)
        self.insists = engine == "ctranslate2" or precision == "int8"  # a search it cannot do is then an error
        self._made: dict[bool, tuple[Shortlist | None, Engine | None]] = {}  # without a shortlist, and for the last one

    def only_torch(self) -> Choice:
        """The same run with no other engine."""
        other = copy.copy(self)
        other.name, other._made = TORCH, {}
        return other

    def refusal(
        self, config: SearchConfig, n_best: int, method: Method | None, *, rules: bool, traced: bool
    ) -> str | None:
        """Why torch searches and not the engine; an error where the engine was insisted on. None: the engine does."""
        if self.name == TORCH:
            return "there is no other engine"
        listed = isinstance(method, Shortlist) and self.insists
        size = len(self.tokenizers[1])
        reason = refusal(config, n_best, size, method=None if listed else method, rules=rules, traced=traced)
        if reason is not None and self.insists:
            raise ConfigError(f"engine: found ctranslate2, which cannot do {reason}; expected auto or torch")
        return reason

    def engine_for(
        self, model: Any, config: SearchConfig, n_best: int, method: Method | None, *, rules: bool, traced: bool
    ) -> Engine | None:
        """The engine if it can do what is asked, made if need be; None: torch searches."""
        if self.refusal(config, n_best, method, rules=rules, traced=traced) is not None:
            return None
        return self.engine(model, method if isinstance(method, Shortlist) else None)

    def engine(self, model: Any, shortlist: Shortlist | None = None) -> Engine | None:
        """What searches in place of torch for this model of the run; None: nothing does."""
        if self.name == TORCH:
            return None
        listed = shortlist is not None
        if listed not in self._made or self._made[listed][0] is not shortlist:
            self._made[listed] = shortlist, self._make(model, shortlist)
        return self._made[listed][1]

    def _make(self, model: Any, shortlist: Shortlist | None) -> Engine | None:
        if not all(bool(part.isfinite().all()) for part in model.parameters()):
            return None  # of broken weights our own search says so
        folder = self.run.folder
        try:
            return Engine.of(folder, self.run.weights_path(), model, self.tokenizers, self.precision, shortlist)
        except (OSError, RuntimeError, ValueError) as error:
            if self.insists:
                raise RunError(f"{folder}: cannot be run by ctranslate2 ({error})") from None
            print(f"{folder}: cannot be run by ctranslate2 ({error}); torch searches", file=sys.stderr)
            return None
