"""What a way of searching other than beam search is given, and what it gives back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from dragoman.data.batch import Batch
from dragoman.decoding.config import SearchConfig
from dragoman.decoding.hypothesis import Hypothesis
from dragoman.errors import ConfigError
from dragoman.models.contracts import NonAutoregressiveModel


class Writer(Protocol):
    """What a search needs of whatever writes token by token: a model, or an ensemble of several."""

    @property
    def max_positions(self) -> int | None:
        """Most tokens it can write; None: any number."""

    def start(self, batch: Batch) -> Any:
        """Read the sources; the state before the first target token, which is a `Searchable`."""

    def step(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Read tokens (N,) or (N, P); give log-probabilities (N, V) of the next one."""

    def read(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Read tokens (N, P); give log-probabilities (N, P, V) of what follows each of them."""


class Request(NamedTuple):
    """Sources to be answered."""

    model: Writer | NonAutoregressiveModel
    batch: Batch
    limits: Tensor  # (B,) most tokens per source, <eos> included
    config: SearchConfig
    n_best: int  # outputs wanted per source
    text: Callable[[Sequence[int]], str] = str  # token ids as text

    def stepwise(self, method: str) -> Writer:
        """The model, which must write token by token."""
        if isinstance(self.model, NonAutoregressiveModel):
            raise ConfigError(f"{method} needs a model that writes token by token; this one writes all at once")
        return self.model


class Method(Protocol):
    """A way from sources to hypotheses; what happens to one source never depends on another."""

    def search(self, request: Request) -> list[list[Hypothesis]]:
        """At most `request.n_best` hypotheses for every source, best first, and at least one."""


def distinct(hypotheses: Sequence[Hypothesis], n_best: int) -> list[Hypothesis]:
    """The best hypotheses, each once."""
    once = {one.tokens: one for one in reversed(hypotheses)}
    return sorted(once.values(), key=lambda one: (-one.normalised, one.tokens))[:n_best]


@dataclass(frozen=True)
class WithText:
    """A method that may compare texts, and the function that turns token ids into text."""

    method: Method
    text: Callable[[Sequence[int]], str]

    def search(self, request: Request) -> list[list[Hypothesis]]:
        """As the method does, with its requests able to spell tokens."""
        return self.method.search(request._replace(text=self.text))
