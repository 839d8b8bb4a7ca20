"""The contract of a decoding method, and the table of all methods but greedy and beam search.

From an entry of the table follow the settings of the command line (`method=NAME method.x=…`), their help and errors,
the JSON schema of the server and the table in docs/reference/decoding.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, TypeAlias, cast

from dragoman.base import ConfigError
from dragoman.base import config as settings
from dragoman.base.config import Table, imported
from dragoman.decoding.config import SearchConfig
from dragoman.decoding.hypothesis import Hypothesis
from dragoman.models import decodes

if TYPE_CHECKING:
    from torch import Tensor

    from dragoman.data import Batch
    from dragoman.models import NonAutoregressiveModel

    PathLike = str | Path
    RunLike = Any
else:
    PathLike = RunLike = str  # what the strict loader reads; Python may also pass a Path, or a run that is open already


# tokens (N,), state → log-probabilities (N, V), the decoder's vectors (N, D) behind them, and the next state
HiddenStep: TypeAlias = "Callable[[Tensor, Any], tuple[Tensor, Tensor, Any]]"


class AutoregressiveModel(Protocol):
    """A model, or an ensemble of several, that a search reads token by token."""

    @property
    def max_positions(self) -> int | None:
        """Maximum number of target tokens; None: any number."""

    def start(self, batch: Batch) -> Any:
        """The state before the first target token, with `select`, `reorder` and `expand` as `State` has them."""

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
        if decodes(self.model) == "parallel":
            raise ConfigError(f"{method} needs a model that outputs token by token; this one outputs all at once")
        return cast(AutoregressiveModel, self.model)

    def hidden_step(self, method: str) -> HiddenStep:
        """A step that also gives the decoder's vectors, for a method that compares them (`Method.needs_hidden`)."""
        step: HiddenStep | None = getattr(self.model, "hidden_step", None)
        if step is None:
            raise ConfigError(
                f"{method} reads the vectors of one decoder; {type(self.model).__name__} gives none. Use a single run "
                "with an encoder and a decoder"
            )
        return step


class Method:
    """A decoding method: a frozen dataclass with its settings, which searches.

    The class variables say what others must know of it, so that nobody asks which class it is.
    """

    kind: ClassVar[str] = ""  # how a user names it: method.kind = "…"
    uses_beam: ClassVar[bool] = False  # whether it is a beam search, so that search.beam has an effect
    needs_hidden: ClassVar[bool] = False  # whether it calls `Request.hidden_step`
    names_files: ClassVar[bool] = False  # whether its settings name files or runs; such a method is opened once
    remote: ClassVar[bool] = True  # whether clients of a server may ask for it
    exact: ClassVar[bool] = False  # whether the scores of its outputs are exact probabilities worth printing

    def open(self, run: Any, model: Any) -> Method | None:
        """The method ready to search with `model`, of the loaded run or an ensemble; None: greedy or beam search.

        This checks its settings; a method that names files or runs opens them.
        """
        return settings.build(type(self), settings.as_table(self))  # type: ignore[type-var, arg-type]  # a dataclass

    def search(self, request: Request) -> list[list[Hypothesis]]:
        """Between one and `request.n_best` hypotheses for every source, best first.

        The hypotheses of one source never depend on another.
        """
        raise NotImplementedError

    def hypotheses(self, n_best: int) -> int:
        """Hypotheses searched for each source: what the server limits and counts as cost."""
        return n_best

    def report(self) -> str:
        """A line for the user after all inputs; empty: nothing to say."""
        return ""


class OpenMethod(Method):
    """A method that holds models or files, not settings."""

    def open(self, run: Any, model: Any) -> Method:
        return self


class MethodEntry(NamedTuple):
    """A method in the table: the class of its settings, and one line for help."""

    config: type[Method]
    about: str


def distinct(hypotheses: Sequence[Hypothesis], n_best: int) -> list[Hypothesis]:
    """The best distinct hypotheses; of equal scores the lower token ids come first."""
    once = {hypothesis.tokens: hypothesis for hypothesis in reversed(hypotheses)}
    return sorted(once.values(), key=lambda hypothesis: (-hypothesis.normalised, hypothesis.tokens))[:n_best]


SETTINGS = "method_settings"  # the module of all settings, which imports this one
ABOUT = {  # by kind: the class of the settings, and one line for help
    "sampling": ("Sampling", "draw every token at random from the model's distribution"),
    "mbr": ("MinimumBayesRisk", "draw samples and output the one most like the others under a metric"),
    "exhaustive": ("Exhaustive", "score every output up to a length: exact, for small vocabularies"),
    "draft": ("Draft", "greedy search in which a small run proposes tokens and the run checks them"),
    "shortlist": ("ShortlistFile", "beam search among the target tokens that are likely for the source"),
    "ctc": ("CTCDecoding", "how a transcriber decodes: CTC, attention or both, and a language model"),
}
METHODS: Table[str, MethodEntry] = Table(
    "decoding method",
    lambda entry: [entry.config.kind],
    late={
        kind: imported(MethodEntry, f"dragoman.decoding.{SETTINGS}:{name}", about)
        for kind, (name, about) in ABOUT.items()
    },
)
