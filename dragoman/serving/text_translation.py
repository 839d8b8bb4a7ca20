"""Translate texts and documents between two languages: which run, which tag, and what the text is written in."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Literal, NamedTuple, NoReturn

from dragoman.base import ConfigError
from dragoman.data import UNKNOWN, detect, find_placeholders, normal_code, same_language
from dragoman.data.tokenizers import UNK
from dragoman.decoding import DecodingOptions
from dragoman.documents import Document, Limits, Reading, open_document, translate_units
from dragoman.inference import checker, localiser
from dragoman.serving.formality import Formality, tag_with_formality, tag_with_instructions
from dragoman.serving.models import ServedModel
from dragoman.serving.options import terminology_of
from dragoman.serving.state import ServerCall, ServerState
from dragoman.serving.translator import Translated, Translator

AUTO = "auto"
# The message of an API about languages that no run translates: which is wrong (source, target or pair), source, target,
# and all that are served.
Unserved = Callable[[str, str, str, str], str]
SHORT = 20  # characters: of so few the statistics of bytes say little
SURE = 3.0  # a text is left as it is only if the target language is this many times as probable as any other


@dataclass(frozen=True)
class TranslationJob:
    """What to translate texts into, and how."""

    source: str  # a language code, or "auto"
    target: str
    unserved: Unserved
    form: Literal["text", "html", ""] = "text"  # "": as the run's settings say
    alternatives: int = 0
    glossary: dict[str, str | list[str]] | None = None
    formality: Formality = "default"
    split: bool = True  # into sentences
    context: str = ""  # what stands before the texts, for runs that read sentences in their document
    memory: str = ""  # the id of a translation memory that the run must have
    instructions: tuple[str, ...] = ()  # each a part of the name of a tag

    def tag_for(self, model: ServedModel, tag: str) -> str:
        """The tag with which a run does what is asked; raises ConfigError for what it cannot do."""
        if self.context.strip() and not model.predictor.context:
            raise ConfigError(
                f"Parameter 'context' not supported: the run {model.name} reads one sentence at a time; leave it out"
            )
        if self.memory and model.memory_id != self.memory:
            raise ConfigError(
                f"Value for 'translation_memory_id' not supported: found a memory of other languages than {model.name}"
            )
        tag = tag_with_formality(model.tags, tag, self.target, self.formality)
        return tag_with_instructions(model.tags, tag, self.target, self.instructions)


def served_languages(state: ServerState) -> dict[str, list[str]]:
    """Every language of the server, each with those that it can be translated into."""
    table: dict[str, list[str]] = {}
    for model in state.models.translators:
        table.setdefault(model.source, []).extend(model.targets)
    for target in [code for targets in table.values() for code in targets]:
        table.setdefault(target, [])
    return {code: list(dict.fromkeys(targets)) for code, targets in table.items()}


def find_route(state: ServerState, job: TranslationJob, source: str) -> tuple[ServedModel, str] | None:
    """The first run between two languages that does what is asked, and its tag; None: the languages are one, and no
    run rewrites it.
    """

    def refuse(place: str) -> NoReturn:
        message = job.unserved(place, source, job.target, served)
        raise ConfigError(message + "".join(f"; {advice}" for advice in unknown_languages(state)))

    table = served_languages(state)
    served = ", ".join(f"{code} → {target}" for code, targets in table.items() for target in targets) or "none"

    def known(code: str) -> bool:
        return any(same_language(code, other) for other in table)

    if not known(job.target):
        refuse("target")
    if source != AUTO and not known(source):
        refuse("source")
    problems: list[ConfigError] = []
    for model, tag in state.models.routes(source, job.target):
        try:
            return model, job.tag_for(model, tag)
        except ConfigError as problem:
            problems.append(problem)
    if problems:
        raise problems[0]
    if source == UNKNOWN or not same_language(source, job.target):
        refuse("pair")
    return None


def unknown_languages(state: ServerState) -> list[str]:
    """What to do about runs that no pair of languages finds: a line, or none."""
    names = [model.name for model in state.models.translators if not model.has_languages]
    if not names:
        return []
    return [
        f"this server does not know the languages of {', '.join(names)}; start it with --languages such as de:en "
        '(or source and target in serve.toml), or ask for "und"'
    ]


def detected_language(state: ServerState, text: str, job: TranslationJob) -> tuple[str, float]:
    """The likeliest source language that can be translated into the target, and its probability in percent.

    A text may be in the target language already. For a short one that takes more than a guess: left as it is, it
    would look translated.
    """
    sources = state.models.sources(job.target)
    if not sources:
        find_route(state, job, AUTO)  # raises an error that names the target if it is unknown
        raise ConfigError(job.unserved("pair", AUTO, job.target, ""))
    if sources == [UNKNOWN]:
        return UNKNOWN, 0.0
    ranked = rank_languages(state, text, [*sources, job.target])
    code, share = ranked[0]
    possible = [entry for entry in ranked if any(same_language(entry[0], source) for source in sources)]
    if possible and share < SURE * possible[0][1]:
        code, share = possible[0]
    return code, round(100 * share, 1)


def rank_languages(state: ServerState, text: str, codes: Sequence[str]) -> list[tuple[str, float]]:
    """The languages of a text, likeliest first.

    The tokenizers of the runs help with a short text: a run needs fewer tokens for words that it was trained on.
    """
    order = {code: number for number, code in enumerate(dict.fromkeys(code.split("-")[0] for code in codes))}
    shares = dict(detect(text, codes))
    if len(shares) > 1 and len(text.strip()) < SHORT:
        tokens = {code: _token_count(state, text.strip(), code) for code in shares}
        fewest = min(tokens.values())
        shares = {code: share * math.exp(fewest - tokens[code]) for code, share in shares.items()}
        total = sum(shares.values())
        shares = {code: share / total for code, share in shares.items()}
    # Equal probabilities: the language that the server names first.
    return sorted(shares.items(), key=lambda item: (-round(item[1], 6), order.get(item[0], len(order))))


def _token_count(state: ServerState, text: str, code: str) -> float:
    """The fewest tokens that a run of this language needs for a text; an unknown token counts as several."""
    counts = [math.inf]
    for model in state.models.translators:
        sides = [model.predictor.source_tokenizer] if same_language(code, model.source) else []
        if any(same_language(code, target) for target in model.targets):
            sides.append(model.predictor.target_tokenizer)
        for tokenizer in sides:
            ids = tokenizer.encode(text)
            counts.append(len(ids) + 4 * sum(index == UNK for index in ids))
    return min(min(counts), 1_000.0)


async def translate_texts(
    call: ServerCall, job: TranslationJob, texts: list[str]
) -> tuple[list[Translated], list[tuple[str, float]]]:
    """The translations of texts; the language that each is in, and the probability of that in percent."""
    languages = [(job.source, 100.0)] * len(texts)
    if job.source == AUTO:
        languages = [detected_language(call.state, text, job) for text in texts]
    outputs: list[Translated] = [Translated(text) for text in texts]
    for code in dict.fromkeys(code for code, _ in languages):
        route = find_route(call.state, job, code)
        if route is None:
            continue
        model, tag = route
        terms = terminology_of(job.glossary)
        options = DecodingOptions(terminology=terms, tag=tag or None, n_best=1 + job.alternatives, placeholders=True)
        indices = [index for index, (other, _) in enumerate(languages) if other == code]
        own = [texts[index] for index in indices]
        translator = translator_of(call, model, options, own, job.form or model.default_format, job.context)
        translated = await translator.translate(own, job.split)
        for index, output in zip(indices, translated, strict=True):
            outputs[index] = output
    return outputs, languages


def translator_of(
    call: ServerCall,
    model: ServedModel,
    options: DecodingOptions,
    texts: Sequence[str],
    form: str,
    context: str = "",
) -> Translator:
    """A run with the options of one request; what texts must keep is kept."""
    if any(find_placeholders(text) for text in texts):
        options = replace(options, placeholders=True)
    return Translator(call, model, replace(options, scores=False), form, context)


class TranslatedDocument(NamedTuple):
    """A translated document."""

    data: bytes
    translated: bool  # no: it is in the target language already
    characters: int  # of the units that a model has read
    wordless: int  # units without letters, such as numbers: no model has read them


async def translate_document(call: ServerCall, job: TranslationJob, name: str, data: bytes) -> TranslatedDocument:
    """A document with all units translated that have no translation yet."""
    given = "" if job.source == AUTO else job.source
    limits = Limits(call.state.limits.characters)
    reading = Reading(given, job.target, expected=(given, job.target), limits=limits)

    def read() -> tuple[Document, str]:
        document = open_document(PurePath(name).name or "file", data, reading)
        text = " ".join(unit.block.text for unit in document.units if not unit.translated)
        call.state.check_texts([text])
        return document, text

    document, text = await call.in_thread(read)
    named = {code for code in map(normal_code, document.sources) if code}
    source = given or (named.pop() if len(named) == 1 else detected_language(call.state, text, job)[0])
    route = find_route(call.state, job, source)
    if route is None:
        unchanged = await call.in_thread(lambda: document.render([None] * len(document.units)))
        return TranslatedDocument(unchanged, False, len(text), 0)
    model, tag = route
    terms = terminology_of(job.glossary)
    localise = None if call.state.config.keep_numbers else localiser(source, job.target)
    translator = Translator(call, model, DecodingOptions(tag=tag or None, placeholders=True, terminology=terms))
    check = checker(source, job.target, terms)
    translation = await translate_units(document, translator, localise, check=check)
    return TranslatedDocument(translation.data, True, translation.characters, translation.counts["without letters"])
