"""DeepL's API: texts, languages and usage. Glossaries and documents have files of their own."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from pydantic import BeforeValidator, Field

from dragoman.base import ConfigError
from dragoman.data import UNKNOWN, language_name
from dragoman.documents import INLINE
from dragoman.serving import glossaries
from dragoman.serving.formality import Formality, supports_formality
from dragoman.serving.request_fields import Fields, ForeignRequest, fields_of, ignored, listed, unsupported
from dragoman.serving.schemas import Text, example
from dragoman.serving.state import CurrentCall, ServerCall, call_of
from dragoman.serving.text_translation import AUTO, TranslationJob, translate_texts

router = APIRouter(prefix="/v2", tags=["DeepL"])
Code = Annotated[str, Field(min_length=1, max_length=35)]
Id = Annotated[str, Field(max_length=100)]
Tags = Annotated[
    list[Annotated[str, Field(max_length=100)]],
    BeforeValidator(lambda value: [tag for part in listed(value) for tag in str(part).split(",") if tag]),
    Field(max_length=100),
]
# The reader of HTML has rules of its own, by the names of tags and `translate="no"`. `TagRules.prepare` writes tags
# that it treats as the request wishes. A translation has every tag as it was, so `restore` finds them again.
_TAG = re.compile(r"<(?P<close>/?)(?P<name>[A-Za-z_][\w:.-]*)(?P<rest>[^<>]*)>")
_SPLITS = "dragoman-"  # before a name: no tag of HTML, so it splits
_INLINE = ' data-dragoman-name="'  # in a tag of HTML that stands inside sentences
_IGNORED = ' translate="no" data-dragoman-ignored=""'
_RENAMED = re.compile(rf'<(/?)(?:tt|wbr){_INLINE}([^"]+)"|<(/?){_SPLITS}(?=\w)|{re.escape(_IGNORED)}')


class DeepLRequest(ForeignRequest):
    """A body in whose mistakes DeepL's words are used."""

    unknown_field = "Parameter '{name}' not supported. {hint}"
    refused_field = "Parameter '{name}' not supported: {reason}"

    @classmethod
    def describe(cls, name: str, error: Any, fields: Fields) -> str:
        if name == "file":
            return "Invalid file data: expected an uploaded file (multipart/form-data)."
        if error["type"] == "missing":
            return f"Parameter '{name}' not specified."
        return f"Value for '{name}' not supported: {error['msg']}"


class LanguagePair(DeepLRequest):
    """What requests for texts and documents have in common."""

    target_lang: Code
    source_lang: Code | None = None
    glossary_id: Id | None = None
    glossary_ids: Tags = Field([], description="several glossaries; the first that has a term decides")
    formality: Annotated[Formality, BeforeValidator(lambda value: str(value).lower())] = "default"
    style_id: Any = unsupported("this server has no style rules")
    translation_memory_id: Any = unsupported("this server has no translation memories")
    translation_memory_threshold: int | None = ignored("there is no translation memory")
    enable_beta_languages: bool | None = ignored("all languages are served alike")
    auth_key: Annotated[str, Field(max_length=1_000)] | None = None


class TextsRequest(LanguagePair):
    """Texts to translate."""

    model_config = example({"text": ["Guten Morgen!"], "target_lang": "EN-US"})
    text: Annotated[list[Text], BeforeValidator(listed), Field(min_length=1)]
    tag_handling: Literal["xml", "html"] | None = None
    tag_handling_version: Literal["v1", "v2"] | None = ignored("there is one version")
    ignore_tags: Tags = Field([])
    splitting_tags: Tags = Field([])
    non_splitting_tags: Tags = Field([])
    outline_detection: bool = True
    split_sentences: Annotated[Literal["0", "1", "nonewlines"], BeforeValidator(str)] = "1"
    preserve_formatting: bool | None = ignored("formatting is never changed")
    show_billed_characters: bool = False
    model_type: Literal["latency_optimized", "quality_optimized", "prefer_quality_optimized"] | None = None
    context: Text | None = Field(None, description="what stands before the texts; refused by a run without context")
    custom_instructions: Any = unsupported("a run takes no instructions")


@dataclass(frozen=True)
class TagRules:
    """What a request says about tags, by their names."""

    ignore: frozenset[str] = frozenset()
    splitting: frozenset[str] = frozenset()
    non_splitting: frozenset[str] = frozenset()
    outline: bool = True  # tags in neither list: as in HTML; else they stand inside sentences

    def prepare(self, text: str) -> str:
        """The text with tags that HTML treats as these rules say."""
        if self == TagRules():
            return text
        return _TAG.sub(self._prepared, text)

    def _prepared(self, tag: re.Match[str]) -> str:
        close, name, rest = tag["close"], tag["name"], tag["rest"]
        if name in self.ignore:
            return tag[0] if close or rest.endswith("/") else f"<{name}{_IGNORED}{rest}>"
        if name in self.splitting:
            return f"<{close}{_SPLITS}{name}{rest}>" if name.lower() in INLINE else tag[0]
        if name in self.non_splitting or not self.outline:
            inline = "wbr" if rest.endswith("/") else "tt"
            return f'<{close}{inline}{_INLINE}{name}"{rest}>'
        return tag[0]


def restore(text: str) -> str:
    """A translation with the request's own tags."""

    def own(tag: re.Match[str]) -> str:
        if tag[2]:
            return f"<{tag[1]}{tag[2]}"
        return "" if tag[3] is None else f"<{tag[3]}"

    return _RENAMED.sub(own, text)


def unserved(place: str, source: str, target: str, served: str) -> str:
    """Say in the words of DeepL which language is not served."""
    name = "source_lang" if place == "source" else "target_lang"
    return f"Value for '{name}' not supported: found {source} → {target}, expected one of: {served}"


def job_of(call: ServerCall, body: LanguagePair) -> TranslationJob:
    """The languages, glossary and formality of a request."""
    if body.glossary_id and body.glossary_ids:
        raise ConfigError("Parameter 'glossary_ids' not supported: found glossary_id with it, expected one of them.")
    terms: dict[str, str | list[str]] = {}
    for glossary_id in [body.glossary_id] if body.glossary_id else body.glossary_ids:
        if body.source_lang is None:
            raise ConfigError("Use of a glossary requires the source_lang parameter to be specified")
        terms = {**glossaries.entries(call, glossary_id, body.source_lang, body.target_lang), **terms}
    source = (body.source_lang or AUTO).lower()
    target = body.target_lang.lower()
    return TranslationJob(source, target, unserved, glossary=terms or None, formality=body.formality)


@router.post("/translate", openapi_extra=TextsRequest.body())
async def translate(request: Request) -> Any:
    """Translate texts; `glossary_id` names a glossary that was stored before."""
    call = call_of(request)
    body = await TextsRequest.read(request)
    call.state.check_texts(body.text)
    texts = body.text
    call.state.check_texts([body.context or ""])
    job = replace(job_of(call, body), split=body.split_sentences != "0", context=body.context or "")
    if body.tag_handling:
        if not job.split:
            raise ConfigError(
                "Value for 'split_sentences' not supported: with tag_handling sentences are always split."
            )
        rules = TagRules(
            frozenset(body.ignore_tags),
            frozenset(body.splitting_tags),
            frozenset(body.non_splitting_tags),
            body.outline_detection,
        )
        job = replace(job, form="html")
        texts = [rules.prepare(text) for text in texts]
    elif body.split_sentences == "nonewlines":
        texts = [re.sub(r"[ \t]*\r?\n[ \t]*", " ", text) for text in texts]
    outputs, languages = await translate_texts(call, job, texts)
    translations = []
    for text, translated, (code, _) in zip(body.text, outputs, languages, strict=True):
        table: dict[str, Any] = {
            "detected_source_language": code.upper(),
            "text": restore(translated.text) if body.tag_handling else translated.text,
        }
        if body.show_billed_characters:
            table["billed_characters"] = len(text)
        if body.model_type is not None:
            table["model_type_used"] = body.model_type.removeprefix("prefer_")
        translations.append(table)
    return {"translations": translations}


@router.get("/languages")
async def languages(call: CurrentCall, request: Request) -> list[dict[str, Any]]:
    """The languages that can be translated from or into; DeepL's own client sends `type` as a form."""
    kind = (await fields_of(request)).get("type", "source")
    if kind not in ("source", "target"):
        raise ConfigError("Parameter 'type' is invalid. 'source' and 'target' are valid values.")
    translators = call.state.models.translators
    if kind == "source":
        codes = dict.fromkeys(model.source for model in translators)
        return [{"language": code.upper(), "name": language_name(code)} for code in codes]
    formal: dict[str, bool] = {}
    for model in translators:
        for code in model.targets:
            formal[code] = formal.get(code, False) or supports_formality(model.tags, code)
    return [
        {"language": code.upper(), "name": language_name(code), "supports_formality": formality}
        for code, formality in formal.items()
    ]


@router.get("/glossary-language-pairs")
async def glossary_languages(call: CurrentCall) -> dict[str, Any]:
    """The pairs of languages that glossaries work with: all."""
    pairs = [
        {"source_lang": model.source.split("-")[0].lower(), "target_lang": code.split("-")[0].lower()}
        for model in call.state.models.translators
        for code in model.targets
        if UNKNOWN not in (model.source, code)
    ]
    return {"supported_languages": pairs}


@router.get("/usage")
async def usage() -> dict[str, int]:
    """How much was translated; this server counts nothing."""
    return {"character_count": 0, "character_limit": 10**12}
