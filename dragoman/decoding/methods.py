"""The interface of decoding methods other than greedy and beam search."""

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


class AutoregressiveModel(Protocol):
    """A model, or an ensemble of several, that a search reads token by token."""

    @property
    def max_positions(self) -> int | None:
        """Maximum number of target tokens; None: any number."""

    def start(self, batch: Batch) -> Any:
        """The state after the sources and before the first target token, a `SearchState`."""

    def step(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Read tokens (N,) or (N, P); give log-probabilities (N, V) of the next one."""

    def read(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Read tokens (N, P); give log-probabilities (N, P, V) of what follows each of them."""


class Request(NamedTuple):
    """Sources to decode."""

    model: AutoregressiveModel | NonAutoregressiveModel
    batch: Batch
    limits: Tensor  # (B,) maximum number of tokens per source, <eos> included
    config: SearchConfig
    n_best: int  # outputs per source
    text: Callable[[Sequence[int]], str] = str  # token ids as text

    def stepwise(self, method: str) -> AutoregressiveModel:
        """The model, which must be autoregressive."""
        if isinstance(self.model, NonAutoregressiveModel):
            raise ConfigError(f"{method} needs a model that outputs token by token; this one outputs all at once")
        return self.model


class Method(Protocol):
    """A decoding method; the hypotheses of one source never depend on another."""

    def search(self, request: Request) -> list[list[Hypothesis]]:
        """Between one and `request.n_best` hypotheses for every source, best first."""


def distinct(hypotheses: Sequence[Hypothesis], n_best: int) -> list[Hypothesis]:
    """The best distinct hypotheses."""
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
