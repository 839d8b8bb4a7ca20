"""DeepL's API: texts, languages and usage. Glossaries and documents have files of their own."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from pydantic import BeforeValidator, Field

from dragoman.base import ConfigError
from dragoman.data import UNKNOWN, language_name, same_language, short_code
from dragoman.documents import INLINE
from dragoman.serving import glossaries, styles
from dragoman.serving.formality import Formality, supports_formality
from dragoman.serving.request_fields import Fields, ForeignRequest, fields_of, ignored, listed
from dragoman.serving.schemas import Text, example
from dragoman.serving.state import CurrentCall, NotFound, ServerCall, call_of
from dragoman.serving.text_translation import AUTO, TranslationJob, find_route, rank_languages, translate_texts

router = APIRouter(prefix="/v2", tags=["DeepL"])
Code = Annotated[str, Field(min_length=1, max_length=35)]
Id = Annotated[str, Field(max_length=100)]
Prompt = Annotated[str, Field(min_length=1, max_length=300)]
Style = Literal[
    "default", "simple", "business", "academic", "casual",
    "prefer_simple", "prefer_business", "prefer_academic", "prefer_casual",
]  # fmt: skip
Tone = Literal[
    "default", "enthusiastic", "friendly", "confident", "diplomatic",
    "prefer_enthusiastic", "prefer_friendly", "prefer_confident", "prefer_diplomatic",
]  # fmt: skip
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
    """A body in whose mistakes DeepL's words are used; as there, fields that nobody knows have no effect."""

    only_misspelt = True
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
    style_id: Id | None = Field(None, description="a stored style; a run follows it that has a tag for it")
    translation_memory_id: Id | None = Field(
        None, description="the memory of a run, which is then the one that is used"
    )
    translation_memory_threshold: Annotated[int, Field(ge=0, le=100)] | None = ignored("only equal texts are taken")
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
    custom_instructions: Annotated[list[Prompt], BeforeValidator(listed), Field(max_length=10)] = Field(
        [], description='followed by a run with a tag for them: "de-be-brief" for "Be brief"'
    )


class RephraseRequest(DeepLRequest):
    """Texts to rewrite."""

    model_config = example({"text": ["Good mornin!"], "target_lang": "EN-US"})
    text: Annotated[list[Text], BeforeValidator(listed), Field(min_length=1)]
    target_lang: Code | None = None
    writing_style: Style = "default"
    tone: Tone = "default"
    auth_key: Annotated[str, Field(max_length=1_000)] | None = None


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
    """The languages, glossary, memory and style of a request."""
    if body.glossary_id and body.glossary_ids:
        raise ConfigError("Parameter 'glossary_ids' not supported: found glossary_id with it, expected one of them.")
    terms: dict[str, str | list[str]] = {}
    for glossary_id in [body.glossary_id] if body.glossary_id else body.glossary_ids:
        if body.source_lang is None:
            raise ConfigError("Use of a glossary requires the source_lang parameter to be specified")
        terms = {**glossaries.entries(call, glossary_id, body.source_lang, body.target_lang), **terms}
    source = (body.source_lang or AUTO).lower()
    target = body.target_lang.lower()
    instructions: tuple[str, ...] = ()
    if body.style_id:
        instructions = styles.instructions(styles.get(call, body.style_id), body.target_lang)
    if body.translation_memory_id and body.translation_memory_id not in {
        model.memory_id for model in call.state.models
    }:
        raise NotFound("translation_memory_id: expected the id of a translation memory of this server")
    return TranslationJob(
        source, target, unserved, glossary=terms or None, formality=body.formality,
        memory=body.translation_memory_id or "", instructions=instructions,
    )  # fmt: skip


@router.post("/translate", openapi_extra=TextsRequest.body())
async def translate(request: Request) -> Any:
    """Translate texts; `glossary_id` names a glossary that was stored before."""
    call = call_of(request)
    body = await TextsRequest.read(request)
    call.state.check_texts(body.text)
    texts = body.text
    call.state.check_texts([body.context or ""])
    job = job_of(call, body)
    instructions = (*job.instructions, *body.custom_instructions)
    split, context = body.split_sentences != "0", body.context or ""
    job = replace(job, split=split, context=context, instructions=instructions)
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


@router.post("/write/rephrase", openapi_extra=RephraseRequest.body())
async def rephrase(request: Request) -> Any:
    """Rewrite texts with runs from a language to itself; their tags, such as "en-business", have styles and tones."""
    call = call_of(request)
    body = await RephraseRequest.read(request)
    call.state.check_texts(body.text)
    writers = [
        code for model in call.state.models.translators for code in model.targets if same_language(code, model.source)
    ]
    if not writers:
        raise ConfigError("Rephrasing not supported: found no run of this server from a language to itself")
    if "default" not in (body.writing_style, body.tone):
        raise ConfigError("Parameter 'tone' not supported: found writing_style with it, expected one of them.")
    style = body.tone if body.writing_style == "default" else body.writing_style
    optional = style.startswith("prefer_")
    wanted = () if style == "default" else (style.removeprefix("prefer_"),)
    improvements = []
    for text in body.text:
        target = (body.target_lang or rank_languages(call.state, text, writers)[0][0]).lower()
        source = next((code for code in writers if same_language(code, target)), None)
        if source is None:
            raise ConfigError(unserved("target", target, target, ", ".join(f"{code} → {code}" for code in writers)))
        job = TranslationJob(source, target, unserved, instructions=wanted)
        if optional:
            try:
                find_route(call.state, job, source)
            except ConfigError:
                job = replace(job, instructions=())
        ((output,), _) = await translate_texts(call, job, [text])
        improvements.append(
            {"text": output.text, "detected_source_language": short_code(source).upper(), "target_language": target}
        )
    return {"improvements": improvements}


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
