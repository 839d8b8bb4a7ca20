"""The settings of the decoding methods, apart from their searches: help and options of commands import no torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Annotated, Any, ClassVar, Literal

from dragoman.base import hint
from dragoman.base.config import Range, setting
from dragoman.decoding.config import MAX_SAMPLES
from dragoman.decoding.hypothesis import Hypothesis
from dragoman.decoding.method import Method, PathLike, Request, RunLike

Mode = Literal["ctc", "attention", "joint"]
SHORTLIST_MAKER = "dragoman shortlist RUN"


def code(module: str) -> Any:
    """The module that searches by a method; it imports its settings from here, so that this import has to wait."""
    return import_module(f"dragoman.decoding.{module}")


@dataclass(frozen=True)
class TokenSampling:
    """How a token is drawn from the model's distribution."""

    temperature: Annotated[float, Range(0.0, None, exclusive_minimum=True)] = setting(
        1.0, help="draw from p^(1/temperature): below 1 favours likely tokens, above 1 evens out all tokens"
    )
    top_k: Annotated[int, Range(0, None)] = setting(0, help="draw from the k most probable tokens only; 0: from all")
    top_p: Annotated[float, Range(0.0, 1.0, exclusive_minimum=True)] = setting(
        1.0, help="draw from the fewest most probable tokens that together have this probability"
    )
    seed: int = setting(0, help="another seed draws other outputs")


@dataclass(frozen=True)
class Sampling(TokenSampling, Method):
    """Draws every token from the model's distribution, sharpened by `temperature` and cut by `top_k` and `top_p`."""

    kind: ClassVar[str] = "sampling"
    samples: Annotated[int, Range(0, None)] = setting(
        0, help="outputs drawn per source, of which the best are returned; 0: as many as are returned"
    )

    def hypotheses(self, n_best: int) -> int:
        return max(self.samples, n_best)

    def search(self, request: Request) -> list[list[Hypothesis]]:
        """The distinct samples of every source, best first; equal samples count once."""
        hypotheses: list[list[Hypothesis]] = code("sampling").sample(request, self)
        return hypotheses


@dataclass(frozen=True, kw_only=True)
class MinimumBayesRisk(TokenSampling, Method):
    """The output with the lowest expected cost under a metric."""

    kind: ClassVar[str] = "mbr"
    samples: Annotated[int, Range(2, MAX_SAMPLES)] = setting(
        32, help="outputs drawn per source; they are the candidates and the pseudo-references"
    )
    metric: str = setting("chrf", help="what compares samples: chrf, bleu, wer or another metric that scores segments")

    def problems(self) -> Iterator[str]:
        from dragoman.scoring import segment_cost_metrics

        if self.metric not in (metrics := segment_cost_metrics()):
            yield f"metric: found {self.metric!r}. {hint(self.metric, metrics)}"

    def hypotheses(self, n_best: int) -> int:
        return max(self.samples, n_best)

    def search(self, request: Request) -> list[list[Hypothesis]]:
        """The distinct texts of every source by rising expected cost; `normalised` is the negative cost."""
        hypotheses: list[list[Hypothesis]] = code("mbr").minimise_risk(request, self)
        return hypotheses


@dataclass(frozen=True)
class Exhaustive(Method):
    """All outputs of at most `length` tokens, <eos> not counted."""

    kind: ClassVar[str] = "exhaustive"
    exact: ClassVar[bool] = True
    remote: ClassVar[bool] = False  # it may take a minute
    length: Annotated[int, Range(0, 1000)] = setting(
        4, help="maximum length of an output; there are vocabulary^length outputs of this length"
    )

    def search(self, request: Request) -> list[list[Hypothesis]]:
        hypotheses: list[list[Hypothesis]] = code("exhaustive").search_all_outputs(request, self.length)
        return hypotheses


@dataclass(frozen=True)
class Draft(Method):
    """Speculative decoding (Leviathan et al. 2023): a small run proposes tokens, the large one checks them."""

    kind: ClassVar[str] = "draft"
    names_files: ClassVar[bool] = True
    remote: ClassVar[bool] = False
    run: RunLike = setting(help="a small run with the same vocabularies")
    tokens: Annotated[int, Range(1, 1000)] = setting(4, help="tokens that the small run proposes at a time")

    def open(self, run: Any, model: Any) -> Any:
        return code("speculative").open_draft(self, run)


@dataclass(frozen=True)
class ShortlistFile(Method):
    """Output only the target tokens that a shortlist has for the source."""

    kind: ClassVar[str] = "shortlist"
    names_files: ClassVar[bool] = True
    remote: ClassVar[bool] = False
    uses_beam: ClassVar[bool] = True
    file: PathLike = setting("auto", help=f"a file of {SHORTLIST_MAKER}; auto is the run's own")

    def open(self, run: Any, model: Any) -> Any:
        return code("shortlist").open_shortlist(self.file, run, model)


@dataclass(frozen=True)
class LanguageModelFusion:
    """Shallow fusion in CTC prefix search: add weight · log p of a language model, and a bonus for every token."""

    model: PathLike = setting(help="a text or ARPA file of n-grams, or a language-model run with the same vocabulary")
    weight: Annotated[float, Range(0.0, exclusive_minimum=True)] = setting(0.3, help="weight of its log-probability")
    bonus: float = setting(0.0, help="bonus for every output token")
    order: Annotated[int, Range(1, 100)] | None = setting(None, help="n of the n-grams of a text file; none: 5")


@dataclass(frozen=True)
class CTCDecoding(Method):
    """What finds the text of a transcriber: CTC, its attention decoder, or both."""

    kind: ClassVar[str] = "ctc"
    names_files: ClassVar[bool] = True
    remote: ClassVar[bool] = False
    uses_beam: ClassVar[bool] = True
    mode: Mode = setting("ctc", help="what decodes; attention and joint need model.attention_decoder")
    ctc_weight: Annotated[float, Range(0.0, 1.0, exclusive_minimum=True, exclusive_maximum=True)] | None = setting(
        None, help="weight of CTC in the score of mode joint; none: 0.3"
    )
    language_model: LanguageModelFusion | None = setting(None, help="shallow fusion with a language model")

    def problems(self) -> Iterator[str]:
        if self.ctc_weight is not None and self.mode != "joint":
            yield f'ctc_weight: goes with mode = "joint", found mode = "{self.mode}"'
        if self.language_model is not None and self.mode == "attention":
            yield 'language_model: helps CTC, found mode = "attention", expected ctc or joint'

    def open(self, run: Any, model: Any) -> Method | None:
        method: Method | None = code("joint_ctc").open_ctc(self, run, model)
        return method
