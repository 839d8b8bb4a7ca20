"""Reasons why a model cannot be exported, which several formats share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dragoman.layers.self_attention import FullConfig
from dragoman.models.encoder_decoder import EncoderDecoderConfig
from dragoman.models.transformer import TransformerConfig

# Settings of a Transformer for which neither CTranslate2 nor transformers has a layer, and the values that go.
PLAIN: dict[str, tuple[Any, ...]] = {"head_width": (0,), "embedding_norm": (False,), "norm_epsilon": (0.0,)}


def transformer_blockers(config: Any, required: Mapping[str, tuple[Any, ...]]) -> list[str]:
    """Every setting that keeps a model from being an encoder-decoder of plain Transformers with `required` settings."""
    if not isinstance(config, EncoderDecoderConfig):
        return [not_encoder_decoder(config)]
    reasons = [f"model.prompt: found {list(config.prompt)}, expected none"] if config.prompt else []
    for side in ("encoder", "decoder"):
        reasons += stack_blockers(f"model.{side}", getattr(config, side), required)
    return reasons


def not_encoder_decoder(config: Any) -> str:
    return f"model.kind: found {config.kind!r}, expected 'encoder-decoder'"


def stack_blockers(place: str, stack: Any, required: Mapping[str, tuple[Any, ...]]) -> Iterator[str]:
    if not isinstance(stack, TransformerConfig):
        yield f"{place}.kind: found {stack.kind!r}, expected 'transformer'"
        return
    if not isinstance(stack.attention, FullConfig):
        yield f"{place}.attention: found {stack.attention.kind!r}, expected 'full'"
    if (merge := getattr(stack.positions, "merge", "sum")) != "sum":
        yield f"{place}.positions.merge: found {merge!r}, expected 'sum'"
    for name, expected in required.items():
        if (value := getattr(stack, name)) not in expected:
            yield f"{place}.{name}: found {value!r}, expected {' or '.join(map(repr, expected))}"
