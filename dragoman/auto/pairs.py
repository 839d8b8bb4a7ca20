"""Choose tokenizers, model and budget for pairs of text."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from dragoman.auto.budget import BATCHES, EPOCHS, up_to
from dragoman.auto.choices import STEPS, Choice, chosen, value_of
from dragoman.auto.portfolio import Candidate, candidate_choices, default_candidate, is_short, is_transformer, size
from dragoman.auto.profile import PairProfile, SideProfile, percent
from dragoman.classical import TRANSDUCERS
from dragoman.data import DataConfig
from dragoman.runs.tasks import preset_table

PRESETS = ((20_000, "transformer-tiny"), (300_000, "transformer-small"), (math.inf, "transformer-base"))
# Reduced from transformer-tiny. On 3,000 words of CMUdict its PER is that of twice the width, in a third of the time.
SMALLEST = {"kind": "transformer", "layers": 2, "width": 64, "heads": 4, "feedforward": 256, "dropout": 0.1}
SHORT = 40  # tokens: sequences that count as short
SPECIALS = 260  # pieces of every sub-word vocabulary: special tokens and bytes
MERGES_PER_ROOT = 5  # BPE merges for √(words of the corpus): frequent enough to learn (Gowda and May 2020)
LARGEST_VOCABULARY = 32_000
FEW_FORMS, HALLUCINATED = 500, 2000  # pairs with features up to which, and how many, pairs are made up
DECODED, DECODED_SENTENCES = 1000, 600  # validation inputs that are decoded, if they are short or choose the weights
LONGEST = 1000  # the most that data.max_length is raised to


def choose_pairs(
    profile: PairProfile,
    preset: str | None = None,
    *,
    gpu: bool = False,
    transformer: bool = False,
    candidate: Candidate | None = None,
) -> list[Choice]:
    """The choices for pairs with this profile.

    The model is that of the candidate or the preset. Without both, the portfolio's experience decides, also by whether
    training runs on a GPU, or with `transformer`, for overrides of its parts, the amount of data decides the size of a
    plain Transformer. Choices with sizes name their `kind`, so that an override of the kind drops them.
    """
    named = candidate.preset if candidate is not None else preset
    own = named is not None and "tokenizer" in preset_table(named)
    tokenizers = [] if own else choose_tokenizers(profile)
    data = [Choice("data.units", "phonemes" if profile.phonemes else "words"), *long_texts(profile)]
    if named is not None and preset_table(named).get("model", {}).get("kind") in TRANSDUCERS:
        why = f"preset: {named}, as asked" if candidate is None else f"model: {named}, {candidate.reason}"
        return [*tokenizers, Choice("preset", named, why), *data]
    default = default_candidate(profile, gpu) if candidate is None and preset is None else None
    if not transformer:
        candidate = candidate or default
    if candidate is not None:
        reason = f"model: {candidate.name} (preset {candidate.preset}), {candidate.reason}"
        model = [
            Choice("preset", candidate.preset, reason),
            Choice("model.tie", preset_tie(candidate.preset, profile.joint)),
        ]
    else:
        model = choose_model(profile, preset)
        if default is not None and is_transformer(default):
            reason = f"; without your overrides of encoder and decoder the model would be {default.name}"
        elif default is not None:
            reason = (
                f" and the overrides set parts of a Transformer; the default model for such data is another: add "
                f"preset={default.preset} to set parts of it"
            )
        else:
            reason = ""
        model[0] = model[0]._replace(why=f"{model[0].why}{reason}")
        if transformer and preset is None and profile.source.unit != "subwords":
            # Whoever sets a width on one side alone should not have to untie embeddings.
            model.append(Choice("model.tie", "target"))
    data += made_up_pairs(profile)
    train = choose_budget(profile, candidate, value_of(data, "data.hallucinate", 0), gpu)
    choices = [*tokenizers, *model, *data]
    if candidate is not None:
        choices += candidate_choices(candidate)
    elif preset is None and is_small(profile):
        # A model this narrow tolerates it, and learns twice as fast.
        train.append(Choice("train.optimizer.learning_rate", 4e-3))
    choices += train
    if candidate is not None and gpu and (weight := candidate.r_drop_weight(profile)):
        why = f"objective: R-drop ({weight:g}), because {size(profile)} are soon known by heart"
        objective = {"kind": "r-drop", "weight": weight, "warmup": value_of(train, STEPS) // 4}
        choices += chosen({"train": {"objective": objective}}, {"train.objective.kind": why})
    return choices


def is_small(profile: PairProfile) -> bool:
    units = (profile.source.unit, profile.target.unit)
    return profile.pairs <= 5000 and profile.longer <= 32 and "subwords" not in units


def choose_tokenizers(profile: PairProfile) -> list[Choice]:
    sides = (profile.source, profile.target)
    source, target = (tokenizer(side.unit, profile, side) for side in sides)
    if profile.features:
        source["features"] = profile.features
        target = {"kind": target["kind"]} if target["kind"] == "characters" else target
    if profile.joint:
        reason = f"source and target: one vocabulary of {tokenizer_reason(source, profile.source, profile)}"
        return chosen({"tokenizer": {"source": source}}, {"tokenizer.source.kind": reason})
    scored = "; scored as phonemes" if profile.phonemes else ""
    reasons = [tokenizer_reason(units, side, profile) for units, side in zip((source, target), sides, strict=True)]
    return chosen(
        {"tokenizer": {"source": source, "target": target}},
        {"tokenizer.source.kind": f"source: {reasons[0]}", "tokenizer.target.kind": f"target: {reasons[1]}{scored}"},
    )


def tokenizer(unit: str, profile: PairProfile, side: SideProfile) -> dict[str, Any]:
    if unit == "subwords":
        return {"kind": unit, "vocab_size": vocabulary(profile, side)}
    return {"kind": unit, "split": "spaces"} if unit == "words" and not side.marks else {"kind": unit}


def vocabulary(profile: PairProfile, side: SideProfile) -> int:
    """How many sub-words fit the corpus: about as many as occur often enough to be learned."""
    sides = (profile.source, profile.target) if profile.joint else (side,)
    words = profile.pairs * sum(side.tokens for side in sides)
    size = SPECIALS + max(side.alphabet for side in sides) + MERGES_PER_ROOT * math.sqrt(words)
    return min(LARGEST_VOCABULARY, round(int(size), -2))


def tokenizer_reason(units: Mapping[str, Any], side: SideProfile, profile: PairProfile) -> str:
    if profile.formal:
        return (
            f"{side.units}, because the targets are a formal language whose rare words are copied from the source "
            f"({percent(profile.target.new)} of the words in a held-out tenth are new)"
        )
    if units["kind"] == "words":
        return (
            f"{side.units}, because only {side.types:,} different ones occur and {percent(side.new)} of "
            "those in a held-out tenth are new"
        )
    if units["kind"] == "subwords":
        reason = (
            f"{units['vocab_size']:,} BPE sub-words, because these are {profile.pairs:,} sentences and "
            f"{percent(side.new)} of the words in a held-out tenth are new"
        )
    elif side.spaced < 0.1 and side.characters > 32:
        reason = "characters, because no spaces divide the texts into words"
    elif units.get("features"):
        reason = f'characters and whole features, because all end in features, written as "{units["features"]}"'
    else:
        reason = f"characters, because the texts are short ({side.characters:.0f} characters on average)"
    return f"{reason}, and the sides share their spelling" if profile.joint else reason


def long_texts(profile: PairProfile) -> list[Choice]:
    """A larger data.max_length where the default would leave out more than half a per cent of the pairs."""
    longest = profile.longest
    if longest <= DataConfig(train="").max_length:
        return []
    limit = min(LONGEST, 2 ** math.ceil(math.log2(longest)))
    why = f"length: up to {limit} tokens, because some texts have about {longest:,.0f}"
    return [Choice("data.max_length", limit, why)]


def made_up_pairs(profile: PairProfile) -> list[Choice]:
    """Hallucinated pairs where inflected forms are few: with a hundred pairs they double the share of right forms."""
    if not profile.features or profile.pairs > FEW_FORMS or profile.copied < 0.4:
        return []
    why = (
        f"data: {HALLUCINATED:,} made-up pairs with random stems are added (data.hallucinate), because "
        f"{profile.pairs:,} pairs are too few to learn that stems are copied"
    )
    return [Choice("data.hallucinate", HALLUCINATED, why)]


def choose_model(profile: PairProfile, preset: str | None) -> list[Choice]:
    """A Transformer that fits the amount of data, or the preset that was asked for; the first choice has the reason."""
    if preset is not None:  # its sizes are the user's choice
        tie = preset_tie(preset, profile.joint)
        return [Choice("preset", preset, f"preset: {preset}, as asked"), Choice("model.tie", tie)]
    tie, name = "all" if profile.joint else "target", up_to(PRESETS, profile.pairs)
    if is_small(profile):
        layers = f"{SMALLEST['layers']}+{SMALLEST['layers']} layers of {SMALLEST['width']}"
        why, parts = f"{name} with {layers}, because there are only {profile.pairs:,} short pairs", SMALLEST
    else:
        why = f"{name}, because there are {profile.pairs:,} pairs"
        parts = {} if profile.pairs > 20_000 else {"kind": "transformer", "dropout": 0.3}
    model = {"tie": tie, **({"encoder": parts, "decoder": parts} if parts else {})}
    return [Choice("preset", name, f"preset: {why}"), *chosen({"model": model})]


def preset_tie(preset: str, joint: bool) -> str:
    """The preset's `model.tie`, or what one or two vocabularies allow."""
    model = preset_table(preset).get("model", {})
    tie: str = model.get("tie", "target")
    if joint or tie in ("none", "target"):
        return tie
    with_output = tie == "all" and model.get("kind", "encoder-decoder") == "encoder-decoder"
    return "target" if with_output else "none"


def choose_budget(profile: PairProfile, candidate: Candidate | None, made_up: int, gpu: bool) -> list[Choice]:
    """The choices of training; `made_up` pairs are trained on beside those of the profile."""
    tokens = profile.longer
    batch_tokens = candidate.batch_tokens(profile) if candidate is not None else up_to(BATCHES, profile.pairs * tokens)
    steps_per_epoch = max(1.0, profile.pairs * (tokens + 1) * 1.15 / batch_tokens)  # padding and <eos> included
    steps = max(1000, math.ceil(up_to(EPOCHS, profile.pairs) * steps_per_epoch))
    patience = 6 if is_small(profile) else 10
    if candidate is not None:
        steps = candidate.steps(profile, steps_per_epoch, gpu)
        # Small validation sets are noisy.
        patience = 20 if profile.pairs <= 10_000 and candidate.smallest_batch >= 1024 else 10
    validations = 40 if gpu or patience > 10 else 25  # a CPU takes long to decode
    validate_every = max(20, min(1000, max(math.ceil(steps_per_epoch), steps // validations), steps // 25))
    # Short outputs are right or wrong, and keep improving after the loss has begun to rise.
    unit = profile.target.unit
    sentences = "loss" if profile.pairs > 20_000 else "chrf"
    metric = "per" if profile.phonemes else {"subwords": sentences, "words": "wer", "characters": "cer"}[unit]
    epochs = steps / steps_per_epoch * profile.pairs / (profile.pairs + made_up)
    reason = (
        f"budget: {steps:,} steps of {batch_tokens:,} tokens, about {epochs:.0f} epochs, validated "
        f"every {validate_every} steps; training stops after {patience} validations without a better {metric}"
    )
    train = {
        "steps": steps,
        "batch_tokens": batch_tokens,
        "validate_every": validate_every,
        "save_every": validate_every,
        "metric": metric,
        "patience": patience,
        **({"decode": DECODED} if is_short(profile) else {"decode": DECODED_SENTENCES} if metric == "chrf" else {}),
        "optimizer": {"warmup": max(50, min(4000, steps // 10))},
    }
    return chosen({"train": train}, {STEPS: reason}, round(epochs))
