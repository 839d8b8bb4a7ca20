"""How prompts are continued: the options of Python and the settings of `dragoman complete`. No torch is imported."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from dragoman.base import ConfigError
from dragoman.base.config import Range, setting
from dragoman.decoding import MAX_SAMPLES, MAX_TOKENS, check_at_least

if TYPE_CHECKING:
    from dragoman.decoding import Sampling, TokenChooser

Observe = Callable[["TokenChooser"], "TokenChooser"]


@dataclass(frozen=True)
class CompletionSettings:
    """How prompts are continued: what a command has as settings."""

    max_length: Annotated[int, Range(1, MAX_TOKENS)] = setting(
        100, help="maximum number of new tokens", flag="--max-length"
    )
    one_line: bool = setting(
        False, help="stop at the end of the line; without it the text continues", flag="--one-line"
    )
    samples: Annotated[int, Range(1, MAX_SAMPLES)] = setting(
        1, help="texts for every prompt; needs --sample", flag="--samples"
    )
    allow_unknown: bool = setting(False, help="read words outside the vocabulary as <unk>")
    batch_size: Annotated[int, Range(1, 100_000)] = setting(64, help="prompts in a batch", flag="--batch-size")


@dataclass(frozen=True)
class CompletionOptions(CompletionSettings):
    """How prompts are continued."""

    sampling: Sampling | None = None  # None: greedy
    max_characters: int | None = None  # refuse longer prompts; None: any length
    observe: Observe | None = None  # changes the choice of tokens, to report each as it is chosen

    def __post_init__(self) -> None:
        check_at_least(1, max_length=self.max_length, samples=self.samples, batch_size=self.batch_size)
        if self.samples > 1 and self.sampling is None:
            raise ConfigError(f"samples: found {self.samples} without a sampling, expected 1: greedy search gives one")
