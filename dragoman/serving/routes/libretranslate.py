"""The API of LibreTranslate, which Mastodon, Weblate, Subtitle Edit and many others speak."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import PurePath
from typing import Annotated, Any, Literal
from urllib.parse import quote

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from dragoman.data.languages import UNKNOWN, language_name
from dragoman.documents.registry import FORMATS
from dragoman.errors import ConfigError
from dragoman.serving.answers import download
from dragoman.serving.request_fields import Fields, body_schema, read_fields
from dragoman.serving.routes.predict import PROBLEMS
from dragoman.serving.schemas import Phrase, Text
from dragoman.serving.state import NotFound, base_url, state_of
from dragoman.serving.text_translation import (
    AUTO,
    TranslationJob,
    UnservedPairError,
    rank_languages,
    served_languages,
    translate_document,
    translate_texts,
)

router = APIRouter(tags=["LibreTranslate"], responses=PROBLEMS)
Code = Annotated[str, Field(min_length=1, max_length=35)]


def _table(value: Any) -> Any:
    """A table, which a form writes as JSON."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        raise ValueError("expected a JSON object") from None


Glossary = Annotated[dict[str, Phrase], BeforeValidator(_table)]
Key = Annotated[str, Field(max_length=1_000)]
ABOUT_GLOSSARY = "an addition to LibreTranslate: source terms and their translations"


class TranslateRequest(BaseModel):
    """A text or several to translate; unknown fields are ignored, as LibreTranslate does."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"q": "Guten Morgen!", "source": "de", "target": "en", "format": "text"}]}
    )
    q: Annotated[Text, Field(min_length=1)] | Annotated[list[Text], Field(min_length=1)]
    source: Code = Field(description='a language code, or "auto"')
    target: Code
    format: Literal["text", "html", ""] | None = None
    alternatives: Annotated[int, Field(ge=0, le=1_000)] = 0
    api_key: Key | None = None
    glossary: Glossary | None = Field(None, description=ABOUT_GLOSSARY)


class DetectRequest(BaseModel):
    """A text whose language is asked for."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"q": "Guten Morgen!"}]})
    q: Annotated[Text, Field(min_length=1)]
    api_key: Key | None = None


class FileRequest(BaseModel):
    """A file to translate."""

    file: tuple[str, bytes] = Field(json_schema_extra={"type": "string", "format": "binary"})
    source: Code = Field(description='a language code, or "auto"')
    target: Code
    api_key: Key | None = None
    glossary: Glossary | None = Field(None, description=ABOUT_GLOSSARY)


def describe(name: str, error: Any, fields: Fields) -> str:
    """A mistake in the words of LibreTranslate."""
    if not fields.get(name) or name == "file":
        return f"Invalid request: missing {name} parameter"
    if name == "format":
        return f"{str(fields[name])[:40]} format is not supported"
    if name == "alternatives" and error["type"].startswith("int"):
        return "Invalid request: alternatives parameter is not a number"
    return f"Invalid request: {name} parameter: {error['msg']}"


@contextmanager
def language_errors() -> Iterator[None]:
    """Say in the words of LibreTranslate which language is not served."""
    try:
        yield
    except UnservedPairError as error:
        if error.place == "pair":
            source = f" from {language_name(error.source)} ({error.source})" if error.source != AUTO else ""
            target = f"{language_name(error.target)} ({error.target})"
            raise ConfigError(f"{target} is not available as a target language{source}") from None
        code = error.source if error.place == "source" else error.target
        raise ConfigError(f"{code} is not supported") from None


@router.post("/translate", openapi_extra=body_schema(TranslateRequest))
async def translate(request: Request) -> Any:
    """Translate a text or several, each from its own language if the source is "auto"."""
    state = state_of(request)
    body = await read_fields(request, TranslateRequest, describe)
    texts = [body.q] if isinstance(body.q, str) else body.q
    state.check_texts(texts)
    if body.alternatives > (most := state.limits.beam - 1):
        raise ConfigError(f"Invalid request: alternatives parameter must be <= {most}")
    glossary: dict[str, Any] | None = dict(body.glossary) if body.glossary else None
    job = TranslationJob(body.source, body.target, body.format or "", body.alternatives, glossary)
    with language_errors():
        found, languages = await translate_texts(request, state, job, texts)
    several = isinstance(body.q, list)
    answer: dict[str, Any] = {"translatedText": [one.text for one in found] if several else found[0].text}
    if body.alternatives:
        alternatives = [one.alternatives[: body.alternatives] for one in found]
        answer["alternatives"] = alternatives if several else alternatives[0]
    if body.source == AUTO:
        detected = [{"language": code, "confidence": share} for code, share in languages]
        answer["detectedLanguage"] = detected if several else detected[0]
    return answer


@router.post("/detect", openapi_extra=body_schema(DetectRequest))
async def detect_language(request: Request) -> list[dict[str, Any]]:
    """The language of a text among those of the server, likeliest first."""
    state = state_of(request)
    body = await read_fields(request, DetectRequest, describe)
    state.check_texts([body.q])
    known = list(served_languages(state))
    if not body.q.strip() or not {*known} - {UNKNOWN}:
        return [{"language": next(iter(known), UNKNOWN), "confidence": 0.0}]
    ranked = rank_languages(state, body.q, known)[:5]
    return [{"language": code, "confidence": round(100 * share, 1)} for code, share in ranked]


@router.get("/languages")
async def languages(request: Request) -> list[dict[str, Any]]:
    """All languages, each with those that it can be translated into: none for a language that is only a target."""
    return [
        {"code": code, "name": language_name(code), "targets": targets}
        for code, targets in served_languages(state_of(request)).items()
    ]


@router.get("/spec", include_in_schema=False)
async def spec(request: Request) -> Any:
    """The description of the API under the address that LibreTranslate gives it."""
    return request.app.openapi()


@router.get("/frontend/settings")
async def frontend_settings(request: Request) -> dict[str, Any]:
    """What LibreTranslate tells its own page."""
    state = state_of(request)
    translators = state.models.translators
    first = translators[0] if translators else None
    return {
        "apiKeys": bool(state.config.token),
        "charLimit": state.limits.characters,
        "filesTranslation": bool(translators),
        "frontendTimeout": 500,
        "keyRequired": bool(state.config.token),
        "language": {
            "source": {"code": first.source, "name": language_name(first.source)} if first else None,
            "target": {"code": first.targets[0], "name": language_name(first.targets[0])} if first else None,
        },
        "suggestions": False,
        "supportedFilesFormat": list(FORMATS),
    }


@router.post("/translate_file", openapi_extra=body_schema(FileRequest, "multipart/form-data"))
async def translate_file(request: Request) -> Any:
    """Translate a file; the answer has the address of the result."""
    state = state_of(request)
    body = await read_fields(request, FileRequest, describe)
    name, data = body.file
    if not data:
        raise ConfigError("Invalid request: empty file")
    path = PurePath(name)
    if path.suffix.lower() not in FORMATS:
        raise ConfigError(f"Invalid request: file format not supported; expected one of {', '.join(FORMATS)}")
    job = TranslationJob(body.source, body.target, glossary=dict(body.glossary) if body.glossary else None)
    with language_errors():
        result = await translate_document(request, state, job, name, data)
    key = state.spool.add(result.data)
    shown = quote(f"{path.stem[:80]}_{body.target}{path.suffix.lower()}")
    return {"translatedFileUrl": f"{base_url(request)}{request.app.url_path_for('download_file', key=key, name=shown)}"}


@router.get("/download_file/{key}/{name}")
async def download_file(request: Request, key: str, name: str) -> Response:
    """A translated file; it is kept for an hour."""
    data = state_of(request).spool.get(key)
    if data is None:
        raise NotFound("file: no such file; translated files are kept for an hour")
    return download(data, name)
