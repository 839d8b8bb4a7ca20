"""Ways to write that a run was trained with as tags, such as "de-formal", "de-informal" and "de-be-brief"."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from dragoman.base import ConfigError
from dragoman.data import same_language

Formality = Literal["default", "more", "less", "prefer_more", "prefer_less"]
SUFFIXES = {"more": "-formal", "less": "-informal"}


def language_of_tag(tag: str) -> str:
    """The language of a tag: "de" of "de-formal"."""
    for suffix in SUFFIXES.values():
        if tag.endswith(suffix):
            return tag.removesuffix(suffix)
    return tag


def supports_formality(tags: Sequence[str], language: str) -> bool:
    """Whether a run with these tags can write a language formally and informally."""
    return all(f"{language}{suffix}" in tags for suffix in SUFFIXES.values())


def tag_with_formality(tags: Sequence[str], tag: str, target: str, formality: Formality) -> str:
    """The tag for a language in this formality; "" for a run without tags."""
    wanted = formality.removeprefix("prefer_")
    language = language_of_tag(tag)
    if formality == "default" and target in tags:
        return target
    if wanted in SUFFIXES:
        chosen = f"{language}{SUFFIXES[wanted]}"
        if chosen in tags:
            return chosen
        if not formality.startswith("prefer_"):
            raise ConfigError(f"Target language '{target.upper()}' doesn't support formality (field formality).")
    if not tag or tag in tags:
        return tag
    return next(other for other in tags if same_language(language_of_tag(other), language))


def tag_with_instructions(tags: Sequence[str], tag: str, target: str, instructions: Sequence[str]) -> str:
    """The tag of a language with all instructions: "de-be-brief" for "Be brief"; raises ConfigError without one."""
    if not instructions:
        return tag
    words = "-".join(re.sub(r"[\W_]+", "-", text.lower()).strip("-") for text in instructions)
    wanted = {f"{base}-{words}".lower() for base in (tag, target)}
    if (chosen := next((own for own in tags if own.lower() in wanted), None)) is None:
        found = " + ".join(map(repr, instructions))[:200]
        served = ", ".join(tags) or "none"
        raise ConfigError(f"Instructions not supported: found {found}, expected those of a tag of the run: {served}")
    return chosen
