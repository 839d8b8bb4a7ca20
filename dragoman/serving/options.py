"""From the fields of a request to decoding options and inputs with constraints, within the server's limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from dragoman.base import ConfigError
from dragoman.data.tokenizers import add_tag, check_tag, split_context, split_tag
from dragoman.decoding import DecodingOptions, Sampling
from dragoman.decoding.constraints import (
    FIELDS,
    ConstrainedInput,
    Terminology,
    add_terms,
    parse_constraints,
)
from dragoman.inference import CompletionOptions
from dragoman.serving.config import LimitsConfig
from dragoman.serving.models import ServedModel
from dragoman.serving.schemas import REMOTE, Options


def decoding_options(request: Options, limits: LimitsConfig) -> DecodingOptions:
    """The options of a request; `method` may draw samples."""
    given = {name: getattr(request, name) for name in REMOTE}
    options = within(DecodingOptions(**given | {"terminology": terminology_of(given["terminology"])}), limits)
    if (pattern := given["pattern"]) is not None and len(pattern) > limits.pattern:
        longest = f"at most {limits.pattern} characters" if limits.pattern else "none: this server takes no patterns"
        raise ConfigError(f"pattern: found {len(pattern)} characters, expected {longest} (limits.pattern)")
    entries = [entry for name in ("forbid", "allow", "require") for entry in given[name] or ()]
    if (total := sum(len(entry) if isinstance(entry, str) else sum(map(len, entry)) for entry in entries)) > (
        limits.characters
    ):
        raise ConfigError(
            f"forbid, allow, require: found {total:,} characters, expected at most {limits.characters:,} in a request"
        )
    return options


def within(options: DecodingOptions, limits: LimitsConfig) -> DecodingOptions:
    """The options, if the server allows so wide a search."""
    for name, limit in REMOTE.items():
        if limit and (value := getattr(options, name)) is not None and value > (most := getattr(limits, limit)):
            raise ConfigError(f"{name}: found {value}, expected at most {most} on this server")
    if options.method is not None and (drawn := options.method.hypotheses(options.n_best)) > limits.samples:
        raise ConfigError(f"method: found {drawn:,} samples, expected at most {limits.samples} on this server")
    return options


def completion_options(request: Options, limits: LimitsConfig) -> CompletionOptions:
    """How a language model continues the prompts of a request."""
    options = decoding_options(request, limits)
    if options.method is not None and not isinstance(options.method, Sampling):
        raise ConfigError(f"method: found {options.method.kind}, expected sampling: a language model continues a text")
    length = min(100, limits.tokens) if options.max_length is None else options.max_length
    return CompletionOptions(length, samples=options.n_best, sampling=options.method)


def terminology_of(given: Mapping[str, str | Sequence[str]] | None) -> Terminology | None:
    """The terms of a request; empty terms are errors."""
    if given is None:
        return None
    terms: dict[str, tuple[str, ...]] = {}
    for term, translations in given.items():
        if not term.strip() or len(term) > 1_000:
            raise ConfigError(f"terminology: found {term[:40]!r}, expected a source term")
        texts = [translations] if isinstance(translations, str) else translations
        if not texts or not all(text.strip() for text in texts):
            raise ConfigError(f"terminology: found an empty translation of {term[:40]!r}, expected text")
        terms[term.strip()] = tuple(text.strip() for text in texts)
    if len(terms) > 10_000:
        raise ConfigError(f"terminology: found {len(terms):,} terms, expected at most 10,000")
    return Terminology(terms)


def tagged(text: str, tag: str | None, model: ServedModel) -> str:
    """The text as the model reads it: with the tag of its target language."""
    if tag is not None:
        check_tag(tag, model.tags)
    if not model.tags or not text.strip() or split_tag(text, model.tags)[0]:
        return text
    if tag is None:
        raise ConfigError(f"tag: missing; expected one of {', '.join(model.tags)}")
    return add_tag(text, tag)


class InputBuilder:
    """Turns texts into inputs with the tag and all constraints of a request.

    `search` has the other options: inputs of requests that search alike share batches.
    """

    def __init__(self, options: DecodingOptions, model: ServedModel) -> None:
        self.model, self.tag = model, options.tag
        self.constraints = parse_constraints({name: getattr(options, name) for name in FIELDS}, "request")
        assert isinstance(options.terminology, Terminology | None), "a request has terms, no file"
        self.terms = options.terminology
        if self.tag is not None:
            check_tag(self.tag, model.tags)
        own: dict[str, Any] = dict.fromkeys((*FIELDS, "terminology", "tag"))
        self.search = replace(options, **own)

    def __call__(self, text: str) -> ConstrainedInput:
        own = split_context(text)[1] if self.model.engine.context else text
        constraints = add_terms(self.constraints, own, self.terms)
        return ConstrainedInput(tagged(text, self.tag, self.model), constraints)

    @property
    def constrained(self) -> bool:
        """Whether some output may have constraints: such inputs are searched apart from others."""
        return bool(self.constraints) or self.terms is not None or self.search.placeholders

    @property
    def read_first(self) -> list[str]:
        """Texts that are read before the first input is made: ten thousand terms take most of a second."""
        return [] if self.terms is None else list(self.terms.terms)
