"""Choose tokenizers, model and budget for pairs of text."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from dragoman.auto.budget import BATCHES, CHARACTERS_PER_TOKEN, EPOCHS, up_to
from dragoman.auto.profile import EXAMINED, FEW, PairProfile
from dragoman.classical.transducers import KINDS
from dragoman.tasks.config import preset_table

VOCABULARIES = ((20_000, 4000), (200_000, 8000), (2_000_000, 16_000), (math.inf, 32_000))  # pairs → sub-words
PRESETS = ((20_000, "transformer-tiny"), (300_000, "transformer-small"), (math.inf, "transformer-base"))
# Reduced from transformer-tiny. On 3,000 words of CMUdict its PER is that of twice the width, in a third of the time.
SMALLEST = {"kind": "transformer", "layers": 2, "width": 64, "heads": 4, "feedforward": 256, "dropout": 0.1}


def choose_pairs(profile: PairProfile, preset: str | None = None) -> tuple[dict[str, Any], list[str]]:
    """A configuration table for pairs with this profile, and the reason for each choice.

    Without `preset`, the amount of data decides the model. Tables with sizes name their `kind`, so that an override
    of the kind drops them.
    """
    source, target, reasons = choose_tokenizers(profile)
    if preset is not None and preset_table(preset).get("model", {}).get("kind") in KINDS:
        return choose_fitted(profile, preset, source, target, reasons)
    joint = source == target and source["kind"] == "subwords"
    tokens = max(
        profile.source_characters / CHARACTERS_PER_TOKEN[source["kind"]],
        profile.target_symbol_count / min(profile.pairs, EXAMINED)
        if profile.recurring
        else profile.target_characters / CHARACTERS_PER_TOKEN[target["kind"]],
    )
    small = profile.pairs <= 5000 and tokens <= 32 and "subwords" not in (source["kind"], target["kind"])
    model, reason = choose_model(profile, preset, joint, small)
    train, budget = choose_budget(profile, tokens, target["kind"], patience=6 if small else 10)
    table: dict[str, Any] = {
        "preset": preset or up_to(PRESETS, profile.pairs),
        "data": {"units": "phonemes" if profile.phonemes else "words"},
        "tokenizer": {"source": source} if joint else {"source": source, "target": target},
        "model": model,
        "train": train,
    }
    if preset is None and small:
        train["optimizer"]["learning_rate"] = 4e-3  # a model this narrow tolerates it, and learns twice as fast
    reasons += [reason, budget]
    if "dropout" in model.get("encoder", {}) and not small:
        reasons.append("dropout: 0.3, because a model soon memorises a small corpus")
    return table, reasons


def choose_fitted(
    profile: PairProfile, preset: str, source: dict[str, Any], target: dict[str, Any], reasons: list[str]
) -> tuple[dict[str, Any], list[str]]:
    """A configuration for a preset without gradients: no budget, and the tokenizers of the preset if it has some."""
    table: dict[str, Any] = {"preset": preset, "data": {"units": "phonemes" if profile.phonemes else "words"}}
    if "tokenizer" in preset_table(preset):
        reasons = []
    else:
        table["tokenizer"] = {"source": source, "target": target}
    return table, [*reasons, f"preset: {preset}, as asked"]


def choose_tokenizers(profile: PairProfile) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
    """Source and target tokenizer, with the reasons."""
    subwords = {"kind": "subwords", "vocab_size": up_to(VOCABULARIES, profile.pairs)}
    source = {"kind": "characters"} if profile.source_short else subwords
    source_reason = tokenizer_reason(source, profile.source_characters, profile.source_spaces, profile)
    if profile.recurring:
        target: dict[str, Any] = {"kind": "words", "split": "spaces"}
        scored = "; scored as phonemes" if profile.phonemes else ""
        reason = f"target: space-separated symbols, because only {profile.target_symbols} different ones occur{scored}"
        return source, target, [f"source: {source_reason}", reason]
    target = {"kind": "characters"} if profile.target_short else subwords
    if source == target == subwords:
        return source, target, [f"source and target: {source_reason.replace('sub-words', 'shared sub-words')}"]
    target_reason = tokenizer_reason(target, profile.target_characters, profile.target_spaces, profile)
    return source, target, [f"source: {source_reason}", f"target: {target_reason}"]


def tokenizer_reason(tokenizer: Mapping[str, Any], characters: float, spaces: float, profile: PairProfile) -> str:
    """Why this tokenizer."""
    if tokenizer["kind"] == "subwords":
        return f"{tokenizer['vocab_size']:,} BPE sub-words, because these are {profile.pairs:,} sentences"
    if characters > 32 and profile.pairs < FEW:
        return f"characters, because {profile.pairs:,} pairs are too few to learn sub-words from"
    if characters > 32 and spaces < 0.1:
        return "characters, because no spaces divide the texts into words"
    return f"characters, because the texts are short ({characters:.0f} characters on average)"


def choose_model(profile: PairProfile, preset: str | None, joint: bool, small: bool) -> tuple[dict[str, Any], str]:
    """The model settings on top of the preset, and the reason."""
    if preset is not None:  # its sizes are the user's choice
        return {"tie": preset_tie(preset, joint)}, f"preset: {preset}, as asked"
    tie, name = "all" if joint else "target", up_to(PRESETS, profile.pairs)
    if small:
        size = f"{SMALLEST['layers']}+{SMALLEST['layers']} layers of {SMALLEST['width']}"
        reason = f"preset: {name} with {size}, because there are only {profile.pairs:,} short pairs"
        return {"tie": tie, "encoder": dict(SMALLEST), "decoder": dict(SMALLEST)}, reason
    reason = f"preset: {name}, because there are {profile.pairs:,} pairs"
    if profile.pairs > 20_000:
        return {"tie": tie}, reason
    regularised = {"kind": "transformer", "dropout": 0.3}
    return {"tie": tie, "encoder": regularised, "decoder": dict(regularised)}, reason


def preset_tie(preset: str, joint: bool) -> str:
    """The preset's `model.tie`, reduced to what separate vocabularies allow."""
    model = preset_table(preset).get("model", {})
    tie: str = model.get("tie", "target")
    if joint or tie in ("none", "target"):
        return tie
    return "target" if model.get("kind", "encoder-decoder") == "encoder-decoder" else "none"


def choose_budget(profile: PairProfile, tokens: float, target_kind: str, patience: int) -> tuple[dict[str, Any], str]:
    """The `train` table and its reason; `tokens` is the mean length of the longer side."""
    batch_tokens = up_to(BATCHES, profile.pairs * tokens)
    steps_per_epoch = max(1.0, profile.pairs * (tokens + 1) * 1.15 / batch_tokens)  # padding and <eos> included
    steps = max(1000, math.ceil(up_to(EPOCHS, profile.pairs) * steps_per_epoch))
    validate_every = max(20, min(1000, max(math.ceil(steps_per_epoch), steps // 40), steps // 25))
    # Short outputs are right or wrong, and keep improving after the loss has begun to rise.
    metric = "loss" if target_kind == "subwords" else "per" if profile.phonemes else "cer"
    reason = (
        f"budget: {steps:,} steps of {batch_tokens:,} tokens, about {steps / steps_per_epoch:.0f} epochs, validated "
        f"every {validate_every} steps; training stops after {patience} validations without a better {metric}"
    )
    return {
        "steps": steps,
        "batch_tokens": batch_tokens,
        "validate_every": validate_every,
        "save_every": validate_every,
        "metric": metric,
        "patience": patience,
        "optimizer": {"warmup": max(50, min(4000, steps // 10))},
    }, reason
