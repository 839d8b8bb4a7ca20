"""The API of LibreTranslate, which Mastodon, Weblate, Subtitle Edit and many others speak."""

from __future__ import annotations

import json
from pathlib import PurePath
from typing import Annotated, Any, Literal
from urllib.parse import quote

from fastapi import APIRouter, Request, Response
from pydantic import BeforeValidator, Field

from dragoman.base import ConfigError
from dragoman.data import UNKNOWN, language_name
from dragoman.documents import FORMATS
from dragoman.serving.answers import download
from dragoman.serving.request_fields import Fields, ForeignRequest, listed
from dragoman.serving.schemas import Phrase, Text, example
from dragoman.serving.state import CurrentCall, NotFound, call_of
from dragoman.serving.text_translation import (
    AUTO,
    TranslationJob,
    rank_languages,
    served_languages,
    translate_document,
    translate_texts,
)

router = APIRouter(tags=["LibreTranslate"])
Code = Annotated[str, Field(min_length=1, max_length=35)]


def _table(value: Any) -> Any:
    """A table, which a form writes as JSON."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        raise ValueError("expected a JSON object") from None


class LibreTranslateRequest(ForeignRequest):
    """A body whose unknown fields are ignored, as LibreTranslate does."""

    unknown_field = ""
    api_key: Annotated[str, Field(max_length=1_000)] | None = None

    @classmethod
    def describe(cls, name: str, error: Any, fields: Fields) -> str:
        if not fields.get(name) or name == "file":
            return f"Invalid request: missing {name} parameter"
        if name == "format":
            return f"{str(fields[name])[:40]} format is not supported"
        if name == "alternatives" and error["type"].startswith("int"):
            return "Invalid request: alternatives parameter is not a number"
        return f"Invalid request: {name} parameter: {error['msg']}"


class Languages(LibreTranslateRequest):
    """What requests for texts and files have in common."""

    source: Code = Field(description='a language code, or "auto"')
    target: Code
    glossary: Annotated[dict[str, Phrase], BeforeValidator(_table)] | None = Field(
        None, description="an addition to LibreTranslate: source terms and their translations"
    )

    def job(self, form: Literal["text", "html", ""] = "text", alternatives: int = 0) -> TranslationJob:
        glossary = dict[str, str | list[str]](self.glossary) if self.glossary else None
        return TranslationJob(self.source, self.target, unserved, form, alternatives, glossary)


class TranslateRequest(Languages):
    """A text or several to translate."""

    model_config = example({"q": "Guten Morgen!", "source": "de", "target": "en", "format": "text"})
    q: Annotated[Text, Field(min_length=1)] | Annotated[list[Text], Field(min_length=1)]
    format: Literal["text", "html", ""] | None = None
    alternatives: Annotated[int, Field(ge=0, le=1_000)] = 0


class DetectRequest(LibreTranslateRequest):
    """A text whose language is asked for."""

    model_config = example({"q": "Guten Morgen!"})
    q: Annotated[Text, Field(min_length=1)]


class FileRequest(Languages):
    """A file to translate."""

    file: tuple[str, bytes] = Field(json_schema_extra={"type": "string", "format": "binary"})


def unserved(place: str, source: str, target: str, served: str) -> str:
    """Say in the words of LibreTranslate which language is not served."""
    if place == "pair":
        origin = f" from {language_name(source)} ({source})" if source != AUTO else ""
        return f"{language_name(target)} ({target}) is not available as a target language{origin}"
    return f"{source if place == 'source' else target} is not supported"


@router.post("/translate", openapi_extra=TranslateRequest.body())
async def translate(request: Request) -> Any:
    """Translate a text or several, each from its own language if the source is "auto"."""
    call = call_of(request)
    body = await TranslateRequest.read(request)
    texts = listed(body.q)
    call.state.check_texts(texts)
    if body.alternatives > (most := call.state.limits.beam - 1):
        raise ConfigError(f"Invalid request: alternatives parameter must be <= {most}")
    outputs, languages = await translate_texts(call, body.job(body.format or "", body.alternatives), texts)
    answer: dict[str, list[Any]] = {"translatedText": [output.text for output in outputs]}
    if body.alternatives:
        answer["alternatives"] = [output.alternatives[: body.alternatives] for output in outputs]
    if body.source == AUTO:
        answer["detectedLanguage"] = [{"language": code, "confidence": share} for code, share in languages]
    return answer if isinstance(body.q, list) else {name: values[0] for name, values in answer.items()}


@router.post("/detect", openapi_extra=DetectRequest.body())
async def detect_language(call: CurrentCall, request: Request) -> list[dict[str, Any]]:
    """The language of a text among those of the server, likeliest first."""
    body = await DetectRequest.read(request)
    call.state.check_texts([body.q])
    known = list(served_languages(call.state))
    if not body.q.strip() or not {*known} - {UNKNOWN}:
        return [{"language": next(iter(known), UNKNOWN), "confidence": 0.0}]
    ranked = rank_languages(call.state, body.q, known)[:5]
    return [{"language": code, "confidence": round(100 * share, 1)} for code, share in ranked]


@router.get("/languages")
async def languages(call: CurrentCall) -> list[dict[str, Any]]:
    """All languages, each with those that it can be translated into: none for a language that is only a target."""
    return [
        {"code": code, "name": language_name(code), "targets": targets}
        for code, targets in served_languages(call.state).items()
    ]


@router.get("/spec", include_in_schema=False)
async def spec(request: Request) -> Any:
    """The description of the API under the address that LibreTranslate gives it."""
    return request.app.openapi()


@router.get("/frontend/settings")
async def frontend_settings(call: CurrentCall) -> dict[str, Any]:
    """What LibreTranslate tells its own page."""
    state = call.state
    translators = state.models.translators
    first = [translators[0].source, translators[0].targets[0]] if translators else [None, None]
    source, target = ({"code": code, "name": language_name(code)} if code else None for code in first)
    return {
        "apiKeys": bool(state.config.token),
        "charLimit": state.limits.characters,
        "filesTranslation": bool(translators),
        "frontendTimeout": 500,
        "keyRequired": bool(state.config.token),
        "language": {"source": source, "target": target},
        "suggestions": state.corrections is not None,
        "supportedFilesFormat": list(FORMATS),
    }


@router.post("/translate_file", openapi_extra=FileRequest.body("multipart/form-data"))
async def translate_file(call: CurrentCall, request: Request) -> Any:
    """Translate a file; the answer has the address of the result, and how many of its texts have no letters."""
    body = await FileRequest.read(request)
    name, data = body.file
    if not data:
        raise ConfigError("Invalid request: empty file")
    path = PurePath(name)
    if path.suffix.lower() not in FORMATS:
        raise ConfigError(f"Invalid request: file format not supported; expected one of {', '.join(FORMATS)}")
    document = await translate_document(call, body.job(), name, data)
    key = call.state.store.add(call.client, data=document.data)
    shown = quote(f"{path.stem[:80]}_{body.target}{path.suffix.lower()}")
    url = f"{base_url(request)}{request.app.url_path_for('download_file', key=key, name=shown)}"
    return {"translatedFileUrl": url} | ({"withoutLetters": document.wordless} if document.wordless else {})


def base_url(request: Request) -> str:
    """The address of the server for links in answers, without a slash at its end.

    Never from the header Host, which a client may set to anything: a cache or a log would keep the link for others.
    """
    if configured := request.app.state.server.config.base_url:
        return str(configured).rstrip("/")
    host, port = request.scope["server"]
    return f"{request.scope['scheme']}://{f'[{host}]' if ':' in host else host}:{port}"


@router.get("/download_file/{key}/{name}")
async def download_file(call: CurrentCall, key: str, name: str) -> Response:
    """A translated file; it is kept for an hour."""
    data = call.state.store.data(key)
    if data is None:
        raise NotFound("file: no such file; translated files are kept for an hour")
    return download(data, name)
