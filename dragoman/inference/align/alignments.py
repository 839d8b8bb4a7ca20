"""Options of alignment, and alignments as values: links between words, and the places of words in a recording."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from dragoman.base import ConfigError
from dragoman.base.config import Limited, Range, Size, setting
from dragoman.scoring import Links, links_text

if TYPE_CHECKING:
    from torch import Tensor


LEARNING = ("learn_from", "iterations", "prior")  # options of a model that learns from the pairs
OF_MODELS = {"model", *LEARNING, "threshold", "combine"}
AlignmentModel = Literal["ibm1", "ibm2", "ibm3", "hmm"]


@dataclass(frozen=True)
class AlignOptions(Limited):
    """How the words of pairs are aligned."""

    model: AlignmentModel | None = setting(
        None, help="Learn the alignment from the pairs themselves, without a run.", flag="--model"
    )
    learn_from: str | None = setting(
        None, help="With --model: further pairs to learn from.", flag="--learn-from", metavar="FILE"
    )
    iterations: Size | None = setting(
        None, help="With --model: EM iterations of each model. [default: 5]", flag="--iterations"
    )
    prior: Annotated[float, Range(0.0)] | None = setting(
        None, help="With --model: Dirichlet prior of the translations of a word; 0 is plain EM. [default: 0.01]",
        flag="--prior",
    )  # fmt: skip
    predict: bool = setting(
        False, help="FILE or standard input has sources alone: print the run's output, a tab and the links.",
        flag="--predict",
    )  # fmt: skip
    layer: str | None = setting(
        None, help="Layer whose attention is read: a name, or a number from 1. [default: the last, of three or more "
        "the last but one; with --reverse the two that agree best]", flag="--layer",
    )  # fmt: skip
    head: Size | None = setting(None, help="Read one attention head. [default: the mean of all]", flag="--head")
    shift: bool = setting(
        False, help="Use the step that reads a token as input, not the step that outputs it.", flag="--shift"
    )
    threshold: Annotated[float, Range(0.0, 1.0, exclusive_minimum=True)] | None = setting(
        None, help="Link all words with at least this weight. [default: each target word with the word of highest "
        "weight]", flag="--threshold",
    )  # fmt: skip
    reverse: str | None = setting(
        None, help="A run trained from target to source: combine the links of both.", flag="--reverse", metavar="RUN"
    )
    combine: Literal["intersection", "union", "grow-diag", "grow-diag-final-and"] | None = setting(
        None, help="How the links of both directions are combined. [default: grow-diag; with --model "
        "grow-diag-final-and]", flag="--combine",
    )  # fmt: skip
    gold: str | None = setting(
        None, help="Gold links of these pairs: read the layer with the lowest error rate.", flag="--gold",
        metavar="FILE",
    )  # fmt: skip
    gold_from: Literal["0", "1"] | None = setting(
        None, help="The number of the first word in the --gold file.", flag="--gold-from"
    )
    batch_size: Size = setting(32, help="Pairs in a batch.", flag="--batch-size")
    tag: str | None = setting(
        None, help="Target tag, such as de, for a run trained with several; dragoman info lists them.", flag="--tag"
    )
    media: str | None = setting(
        None, help="Folder or archive with the files of a manifest. [default: the run's]", flag="--media",
        metavar="PATH",
    )  # fmt: skip
    skip_unreadable: bool = setting(
        False, help="Leave out and count recordings or pictures that cannot be read.", flag="--skip-unreadable"
    )

    def __post_init__(self) -> None:
        if self.threshold is not None and not 0 < self.threshold <= 1:  # nan is neither
            raise ConfigError(f"--threshold: found {self.threshold:g}, expected a number above 0 and at most 1")
        if self.model is not None:
            self.refuse_all_but(OF_MODELS, f"goes with a run, found --model {self.model}")
        for name, needed in (*((name, "model") for name in LEARNING), ("gold_from", "gold")):
            if getattr(self, name) is not None and getattr(self, needed) is None:
                raise ConfigError(f"--{name.replace('_', '-')} needs --{needed}")

    def refuse_all_but(self, allowed: set[str], reason: str) -> None:
        """Raise an error for an option that was given and is not allowed: none is ever ignored."""
        for field in fields(self):
            if getattr(self, field.name) != field.default and field.name not in allowed:
                raise ConfigError(f"{field.metadata['flag']} {reason}")


@dataclass(frozen=True)
class TermOptions(Limited):
    """Which terms are extracted from pairs."""

    model: AlignmentModel = setting("hmm", help="The word alignment model.", flag="--model")
    max_words: Annotated[int, Range(1, 7)] = setting(3, help="Words of a term.", flag="--max-words")
    min_count: Size = setting(3, help="Occurrences of the pair.", flag="--min-count")
    min_share: Annotated[float, Range(0.0, 1.0)] = setting(
        0.5, help="Share of the source term's occurrences that have this translation.", flag="--min-share"
    )


@dataclass(frozen=True)
class WordAlignment:
    """The words of a sentence pair and the links between them; str() gives Pharaoh format, "0-0 1-2"."""

    source: tuple[str, ...]
    target: tuple[str, ...]
    links: Links
    weights: Tensor  # (target words, source words); the weight on <eos> is missing
    output: str | None = None  # the whole target, where the run wrote it to align it

    def __str__(self) -> str:
        return links_text(self.links)

    def lines(self) -> Iterator[str]:
        """The links as a line of a file, behind the output where the run wrote it."""
        yield str(self) if self.output is None else f"{self.output}\t{self}"

    def as_json_line(self) -> str:
        """One JSON object on one line; `weights` has a row for each target word."""
        weights = [[round(weight, 4) for weight in row] for row in self.weights.tolist()]
        table = {"source": self.source, "target": self.target, "links": sorted(self.links), "weights": weights}
        return json.dumps(table, ensure_ascii=False)


class AlignedSpan(NamedTuple):
    """Start and end in seconds or pixels, and the probability of the token or word there."""

    start: float
    end: float
    probability: float


@dataclass(frozen=True)
class ForcedAlignment:
    """A text aligned with its recording or line image; words outside the vocabulary have no span."""

    text: str
    unit: str  # seconds or pixels
    fits: bool  # whether the recording or line is long enough for the text; if not, no word has a span
    words: tuple[tuple[str, AlignedSpan | None], ...]
    tokens: tuple[tuple[str, AlignedSpan | None], ...]
    source: str = ""  # the name of the recording or image

    def lines(self) -> Iterator[str]:
        """Name, word, start, end and probability of every word, tab-separated; '-' without a span."""
        for word, span in self.words:
            places = ("-",) * 3 if span is None else (f"{number:.3f}" for number in span)
            yield "\t".join((self.source, word, *places))

    def as_json_line(self) -> str:
        words: list[dict[str, Any]] = [
            {"word": word} | {field: span and round(getattr(span, field), 4) for field in AlignedSpan._fields}
            for word, span in self.words
        ]
        table = {"source": self.source, "text": self.text, "unit": self.unit, "words": words}
        return json.dumps(table, ensure_ascii=False)
