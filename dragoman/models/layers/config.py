"""The settings of positions and self-attention. Nothing here imports torch, so that a configuration is read quickly."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from dragoman.base.config import Range, Size, setting

Merge = Literal["sum", "mean", "concatenate", "downscaled"]
MERGE = (
    "embedding and position are added, averaged, or concatenated and projected back to the width of the model; "
    "downscaled: the position is divided by √width and added, with scale_embedding = false (Csordás et al. 2021)"
)


@dataclass(frozen=True)
class SinusoidalConfig:
    """Sinusoids of growing wave length; any number of positions."""

    kind: ClassVar[str] = "sinusoidal"
    layout: Literal["interleaved", "halves", "fairseq"] = setting(
        "interleaved",
        help="sine and cosine alternate as in the paper, or all sines first (Marian); fairseq: all sines first, with "
        "other wave lengths, from position 2 on (M2M-100, NLLB)",
    )
    merge: Merge = setting("sum", help=MERGE)


@dataclass(frozen=True)
class LearnedConfig:
    """One learned vector per position, up to a maximum."""

    kind: ClassVar[str] = "learned"
    max_positions: Annotated[int, Range(1, None)] = setting(1024, help="longest sequence the model can see")
    merge: Merge = setting("sum", help=MERGE)


@dataclass(frozen=True)
class NoPositionsConfig:
    """No positions; a causal decoder can still count what it sees."""

    kind: ClassVar[str] = "none"


@dataclass(frozen=True)
class RotaryConfig:
    """Queries and keys are rotated by their position, so that their product depends on the distance."""

    kind: ClassVar[str] = "rotary"
    base: Annotated[float, Range(1.0, None, exclusive_minimum=True)] = setting(
        10000.0, help="the slowest pair rotates once in about 2π × base positions"
    )


@dataclass(frozen=True)
class RelativeConfig:
    """A learned vector per distance, added to the keys; far distances share the last one."""

    kind: ClassVar[str] = "relative"
    distance: Annotated[int, Range(1, None)] = setting(16, help="maximum distance; farther ones count as this")


@dataclass(frozen=True)
class RelativeSinusoidalConfig:
    """Sinusoids of the distance, projected for every head, added to the keys; any distance (Transformer-XL)."""

    kind: ClassVar[str] = "relative-sinusoidal"


@dataclass(frozen=True)
class RelativeBiasConfig:
    """A learned bias per head and bucket of distances, as in T5; one table for the whole stack."""

    kind: ClassVar[str] = "relative-bias"
    buckets: Annotated[int, Range(4, None)] = setting(32, help="buckets of distances")
    distance: Annotated[int, Range(2, None)] = setting(128, help="distances from here on share a bucket")

    def problems(self) -> Iterator[str]:
        if self.distance <= self.buckets // 2:
            yield f"distance: found {self.distance}, expected more than half of buckets = {self.buckets}"


AbsolutePositionsConfig = SinusoidalConfig | LearnedConfig | NoPositionsConfig  # for models without self-attention
RelativePositionsConfig = RotaryConfig | RelativeConfig | RelativeSinusoidalConfig | RelativeBiasConfig
PositionsConfig = AbsolutePositionsConfig | RelativePositionsConfig


@dataclass(frozen=True)
class FullConfig:
    """Every position sees every other; in a decoder, every earlier one."""

    kind: ClassVar[str] = "full"


@dataclass(frozen=True)
class LocalConfig:
    """Every position sees those at most `window` away."""

    kind: ClassVar[str] = "local"
    window: Size = setting(128, help="farthest distance that is seen, to either side; in a decoder, back")


@dataclass(frozen=True)
class SegmentsConfig:
    """Every position sees its own segment and the one before, so that the context grows by a segment per layer."""

    kind: ClassVar[str] = "segments"
    length: Size = setting(128, help="positions in a segment")


@dataclass(frozen=True)
class LinearConfig:
    """Linear attention: cost linear in length, and the state of a decoder does not grow."""

    kind: ClassVar[str] = "linear"


SelfAttentionConfig = FullConfig | LocalConfig | SegmentsConfig | LinearConfig
