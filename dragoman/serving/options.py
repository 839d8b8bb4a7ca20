"""From the fields of a request to decoding options and inputs with constraints, within the server's limits."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import cached_property

from dragoman.data.tokenizers.context import split_context
from dragoman.data.tokenizers.language_tags import add_tag, check_tag, split_tag
from dragoman.decoding.config import SearchConfig
from dragoman.decoding.constraints.source import Terminology, add_source_constraints
from dragoman.decoding.constraints.spec import ConstrainedInput, parse_constraints
from dragoman.decoding.options import DecodingOptions
from dragoman.decoding.sampling import Sampling
from dragoman.errors import ConfigError
from dragoman.inference.completer import CompletionOptions
from dragoman.serving.config import LimitsConfig
from dragoman.serving.models import ServedModel
from dragoman.serving.schemas import Options

SEARCH = tuple(field.name for field in fields(SearchConfig))
# Which limit of the server holds for which fields.
LIMITED = {"beam": ("beam", "n_best", "num_complete"), "tokens": ("max_length", "min_length", "no_repeat_ngram")}
CONSTRAINTS = ("prefix", "forbid", "require", "allow", "pattern")


def decoding_options(request: Options, limits: LimitsConfig) -> DecodingOptions:
    """The options of a request without its constraints, which belong to each input; `method` may draw samples."""
    for limit, names in LIMITED.items():
        most = getattr(limits, limit)
        for name in names:
            if (value := getattr(request, name)) is not None and value > most:
                raise ConfigError(f"{name}: found {value}, expected at most {most} on this server")
    if request.method is not None and (drawn := request.method.hypotheses(request.n_best)) > limits.samples:
        raise ConfigError(f"method: found {drawn:,} samples, expected at most {limits.samples} on this server")
    if request.pattern is not None and len(request.pattern) > limits.pattern:
        longest = f"at most {limits.pattern} characters" if limits.pattern else "none: this server takes no patterns"
        raise ConfigError(f"pattern: found {len(request.pattern)} characters, expected {longest} (limits.pattern)")
    lists = (request.forbid or (), request.allow or (), request.require or ())
    phrases = [
        text for entries in lists for entry in entries for text in ([entry] if isinstance(entry, str) else entry)
    ]
    if (total := sum(map(len, phrases))) > limits.characters:
        raise ConfigError(
            f"forbid, allow, require: found {total:,} characters, expected at most {limits.characters:,} in a request"
        )
    given = {name: value for name in SEARCH if (value := getattr(request, name)) is not None}
    beam = given.get("beam")
    if request.method is None and request.n_best > (beam or request.n_best):
        raise ConfigError(f"n_best: found {request.n_best}, expected at most the beam of {beam}")
    return DecodingOptions(**given, n_best=request.n_best, method=request.method)


def completion_options(request: Options, limits: LimitsConfig) -> CompletionOptions:
    """How a language model continues the prompts of a request."""
    options = decoding_options(request, limits)
    if options.method is not None and not isinstance(options.method, Sampling):
        raise ConfigError(f"method: found {options.method.kind}, expected sampling: a language model continues a text")
    length = min(100, limits.tokens) if request.max_length is None else request.max_length
    return CompletionOptions(length, options.method, request.n_best)


def with_enough_beam(options: DecodingOptions, model: ServedModel) -> DecodingOptions:
    """Options whose beam is as wide as the outputs asked for, unless the request names a beam."""
    if options.beam is None and options.method is None and options.n_best > model.predictor.search.beam:
        return replace(options, beam=options.n_best)
    return options


def terms_of(request: Options) -> dict[str, tuple[str, ...]] | None:
    """The terms of a request; empty terms are errors."""
    if request.terminology is None:
        return None
    terms: dict[str, tuple[str, ...]] = {}
    for term, translations in request.terminology.items():
        if not term.strip() or len(term) > 1_000:
            raise ConfigError(f"terminology: found {term[:40]!r}, expected a source term")
        texts = [translations] if isinstance(translations, str) else translations
        if not texts or not all(text.strip() for text in texts):
            raise ConfigError(f"terminology: found an empty translation of {term[:40]!r}, expected text")
        terms[term.strip()] = tuple(text.strip() for text in texts)
    if len(terms) > 10_000:
        raise ConfigError(f"terminology: found {len(terms):,} terms, expected at most 10,000")
    return terms


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
    """Turns texts into inputs with all constraints of a request."""

    def __init__(self, request: Options, model: ServedModel) -> None:
        self.model, self.tag, self.placeholders = model, request.tag, request.placeholders
        self.constraints = parse_constraints({name: getattr(request, name) for name in CONSTRAINTS}, "request")
        self._terms = terms_of(request)
        if request.tag is not None:
            check_tag(request.tag, model.tags)

    def __call__(self, text: str) -> ConstrainedInput:
        own = split_context(text)[1] if self.model.engine.context else text
        constraints = add_source_constraints(self.constraints, own, self.terms, self.placeholders)
        return ConstrainedInput(tagged(text, self.tag, self.model), constraints)

    @property
    def constrained(self) -> bool:
        """Whether some output may have constraints: such inputs are searched apart from others."""
        return bool(self.constraints) or self._terms is not None or self.placeholders

    @property
    def read_first(self) -> list[str]:
        """Texts that are read before the first input is made: ten thousand terms take most of a second."""
        return list(self._terms or ())

    @cached_property
    def terms(self) -> Terminology | None:
        return None if self._terms is None else Terminology(self._terms)
