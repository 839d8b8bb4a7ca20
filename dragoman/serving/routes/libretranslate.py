"""The API of LibreTranslate, which Mastodon, Weblate, Subtitle Edit and many others speak."""

from __future__ import annotations

import asyncio
import json
from pathlib import PurePath
from typing import Annotated, Any, Literal
from urllib.parse import quote

from fastapi import APIRouter, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from starlette.datastructures import UploadFile

from dragoman.data.languages import UNKNOWN, detect, language_name, same_language
from dragoman.decoding.constraints.source import find_placeholders
from dragoman.decoding.options import DecodingOptions
from dragoman.documents.base import Output, Reading
from dragoman.documents.registry import FORMATS, open_document
from dragoman.errors import ConfigError
from dragoman.serving.gate import is_token
from dragoman.serving.models import ServedModel
from dragoman.serving.options import InputBuilder, with_enough_beam
from dragoman.serving.routes.predict import PROBLEMS, problem
from dragoman.serving.schemas import Options, Phrase, Text
from dragoman.serving.state import ServerState, base_url, state_of
from dragoman.serving.translate import Translated, Translator

router = APIRouter(tags=["LibreTranslate"], responses=PROBLEMS)
Code = Annotated[str, Field(min_length=1, max_length=35)]


class TranslateRequest(BaseModel):
    """A text or several to translate; unknown fields are ignored, as LibreTranslate does."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"q": "Guten Morgen!", "source": "de", "target": "en", "format": "text"}]}
    )
    q: Text | list[Text]
    source: Code = Field("auto", description='a language code, or "auto"')
    target: Code
    format: Literal["text", "html"] | None = None
    alternatives: Annotated[int, Field(ge=0, le=1_000)] = 0
    api_key: Annotated[str, Field(max_length=1_000)] | None = None
    glossary: Annotated[dict[str, Phrase], BeforeValidator(lambda value: _table(value))] | None = Field(
        None, description="an addition to LibreTranslate: source terms and their translations"
    )


class DetectRequest(BaseModel):
    """A text whose language is asked for."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"q": "Guten Morgen!"}]})
    q: Text
    api_key: Annotated[str, Field(max_length=1_000)] | None = None


def _table(value: Any) -> Any:
    """A table, which a form writes as JSON."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        raise ValueError("expected a JSON object") from None


def body_schema(model: type[BaseModel]) -> dict[str, Any]:
    """The OpenAPI description of a body that may be JSON or a form."""
    schema = model.model_json_schema()
    content = {kind: {"schema": schema} for kind in ("application/json", "application/x-www-form-urlencoded")}
    return {"requestBody": {"required": True, "content": content}}


async def fields_of(request: Request) -> dict[str, Any]:
    """The fields of a request, from its address, a form or JSON: clients send all three."""
    fields: dict[str, Any] = {}
    for name, value in request.query_params.multi_items():
        fields[name] = [*_listed(fields[name]), value] if name in fields else value
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind in ("application/x-www-form-urlencoded", "multipart/form-data"):
        async with request.form(max_files=2, max_fields=2_000) as form:
            for name, entry in form.multi_items():
                if isinstance(entry, UploadFile):
                    fields[name] = (entry.filename or "", await entry.read())
                else:
                    fields[name] = [*_listed(fields[name]), entry] if name in fields else entry
    elif body := await request.body():
        try:
            found = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"body: found no JSON ({str(error)[:80]}), expected JSON or a form") from None
        if not isinstance(found, dict):
            raise ConfigError("body: expected a JSON object")
        fields |= found
    return fields


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


async def read(request: Request, model: type[BaseModel]) -> Any:
    """The fields of a request, checked."""
    fields = await fields_of(request)
    check_key(request, fields)
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise RequestValidationError(error.errors(include_url=False, include_input=False)) from None


class WrongKey(Exception):  # noqa: N818
    """A request without the token of the server."""


def check_key(request: Request, fields: dict[str, Any]) -> None:
    """The token in the field api_key or in the header."""
    token = state_of(request).config.token
    if not token:
        return
    header = request.headers.get("authorization", "").split(" ", 1)[-1].strip()
    for sent in (str(fields.get("api_key", "")).encode("utf-8", "replace"), header.encode("latin-1")):
        if is_token(sent, token):
            return
    raise WrongKey


@router.post("/translate", openapi_extra=body_schema(TranslateRequest))
async def translate(request: Request) -> Any:
    """Translate a text or several, each from its own language if the source is "auto"."""
    state = state_of(request)
    body = await read(request, TranslateRequest)
    texts = [body.q] if isinstance(body.q, str) else body.q
    state.check_texts(texts)
    found, detected = await translate_texts(request, state, body, texts)
    several = isinstance(body.q, list)
    answer: dict[str, Any] = {"translatedText": [one.text for one in found] if several else found[0].text}
    if body.alternatives:
        alternatives = [one.alternatives[: body.alternatives] for one in found]
        answer["alternatives"] = alternatives if several else alternatives[0]
    if body.source == "auto":
        answer["detectedLanguage"] = detected if several else detected[0]
    return answer


async def translate_texts(
    request: Request, state: ServerState, body: TranslateRequest, texts: list[str]
) -> tuple[list[Translated], list[dict[str, Any]]]:
    """The translations of texts, and the language that each was found to be in."""
    languages = [(body.source, 100.0)] * len(texts)
    if body.source == "auto":
        languages = [detected_language(state, text, body.target) for text in texts]
    found: list[Translated | None] = [None] * len(texts)
    for code in dict.fromkeys(code for code, _ in languages):
        indices = [index for index, (other, _) in enumerate(languages) if other == code]
        outputs = await translate_from(request, state, body, code, [texts[index] for index in indices])
        for index, output in zip(indices, outputs, strict=True):
            found[index] = output
    detected = [{"language": code, "confidence": share} for code, share in languages]
    return [one for one in found if one is not None], detected


def detected_language(state: ServerState, text: str, target: str) -> tuple[str, float]:
    """The likeliest source language that can be translated into `target`, and its probability in percent."""
    codes = [*state.models.sources(target)]
    if not codes:
        return target, 0.0
    if codes == [UNKNOWN]:
        return UNKNOWN, 0.0
    code, share = detect(text, [*codes, target])[0]  # a text may be in the target language already
    return code, round(100 * share, 1)


def find_route(state: ServerState, source: str, target: str) -> tuple[ServedModel, str] | None:
    """The model and tag between two languages; None: they are one language, and there is nothing to translate."""
    route = state.models.route(source, target)
    if route is None and (source == UNKNOWN or not same_language(source, target)):
        pairs = ", ".join(f"{one.source} → {code}" for one in state.models.translators for code in one.targets)
        raise ConfigError(f"source, target: found {source} → {target}, expected one of: {pairs or 'none'}")
    return route


async def translate_from(
    request: Request, state: ServerState, body: TranslateRequest, source: str, texts: list[str]
) -> list[Translated]:
    """Translations of texts in one language."""
    route = find_route(state, source, body.target)
    if route is None:
        return [Translated(text) for text in texts]
    model, tag = route
    glossary: dict[str, str | list[str]] | None = dict(body.glossary) if body.glossary else None
    options = Options(terminology=glossary, tag=tag or None, n_best=1 + min(body.alternatives, state.limits.beam - 1))
    return await run_translation(request, state, model, options, texts, body.format or model.default_format)


async def run_translation(
    request: Request, state: ServerState, model: ServedModel, options: Options, texts: list[str], form: str
) -> list[Translated]:
    """Translate with one model; placeholders of texts that have some are copied."""
    if any(find_placeholders(text) for text in texts) and form == "text":
        options = options.model_copy(update={"placeholders": True})
    decoding = with_enough_beam(DecodingOptions(n_best=options.n_best, scores=False), model)
    translator = Translator(state, request, model, decoding, InputBuilder(options, model))
    return await (translator.html(texts) if form == "html" else translator.split(texts))


@router.post("/detect", openapi_extra=body_schema(DetectRequest))
async def detect_language(request: Request) -> list[dict[str, Any]]:
    """The language of a text, likeliest first."""
    state = state_of(request)
    body = await read(request, DetectRequest)
    state.check_texts([body.q])
    known = [one.source for one in state.models.translators]
    known += [code for one in state.models.translators for code in one.targets]
    if not body.q.strip() or not {*known} - {UNKNOWN}:
        return [{"language": next(iter(known), UNKNOWN), "confidence": 0.0}]
    ranked = detect(body.q, known)[:5]
    return [{"language": code, "confidence": round(100 * share, 1)} for code, share in ranked]


@router.get("/languages")
async def languages(request: Request) -> list[dict[str, Any]]:
    """The source languages, each with the languages that it can be translated into."""
    table: dict[str, list[str]] = {}
    for model in state_of(request).models.translators:
        table.setdefault(model.source, []).extend(code for code in model.targets)
    return [
        {"code": code, "name": language_name(code), "targets": list(dict.fromkeys(targets))}
        for code, targets in table.items()
    ]


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


FILE_SCHEMA = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "properties": {
                        "file": {"type": "string", "format": "binary"},
                        "source": {"type": "string"},
                        "target": {"type": "string"},
                        "api_key": {"type": "string"},
                    },
                    "required": ["file", "target"],
                }
            }
        },
    }
}


@router.post("/translate_file", openapi_extra=FILE_SCHEMA)
async def translate_file(request: Request) -> Any:
    """Translate a file (text, HTML, subtitles); the answer has the address of the result."""
    state = state_of(request)
    fields = await fields_of(request)
    check_key(request, fields)
    upload = fields.pop("file", None)
    if not isinstance(upload, tuple):
        raise ConfigError("file: missing; expected an uploaded file (multipart/form-data)")
    name, data = upload
    names = {key: value for key, value in fields.items() if isinstance(value, str)}
    try:
        body = TranslateRequest.model_validate({**names, "q": ""})
    except ValidationError as error:
        raise RequestValidationError(error.errors(include_url=False, include_input=False)) from None

    result = await translate_document(request, state, body, name, data)
    key = state.spool.add(result)
    path = PurePath(name)
    shown = quote(f"{path.stem[:80]}_{body.target}{path.suffix.lower()}")
    return {"translatedFileUrl": f"{base_url(request)}{request.app.url_path_for('download_file', key=key, name=shown)}"}


async def translate_document(
    request: Request, state: ServerState, body: TranslateRequest, name: str, data: bytes
) -> bytes:
    """The bytes of a document with all units translated that have no translation yet."""
    reading = Reading("" if body.source == "auto" else body.source, body.target)
    document = await asyncio.to_thread(open_document, PurePath(name).name or "file", data, reading)
    chosen = [index for index, unit in enumerate(document.units) if not unit.translated]
    text = " ".join(document.units[index].block.text for index in chosen)
    state.check_texts([text])
    source = detected_language(state, text, body.target)[0] if body.source == "auto" else body.source
    route = find_route(state, source, body.target)
    outputs: list[Output | None] = [None] * len(document.units)
    if route is not None:
        model, tag = route
        glossary: dict[str, str | list[str]] | None = dict(body.glossary) if body.glossary else None
        options = Options(tag=tag or None, placeholders=True, terminology=glossary)
        translator = Translator(state, request, model, DecodingOptions(), InputBuilder(options, model))
        blocks = [document.units[index].block for index in chosen]
        for index, output in zip(chosen, await translator.blocks(blocks), strict=True):
            outputs[index] = output
    return await asyncio.to_thread(document.render, outputs)


@router.get("/download_file/{key}/{name}")
async def download_file(request: Request, key: str, name: str) -> Response:
    """A translated file; it is kept for an hour."""
    data = state_of(request).spool.get(key)
    if data is None:
        return problem(404, "file: no such file; translated files are kept for an hour")
    headers = {
        "content-disposition": f"attachment; filename*=UTF-8''{quote(name)}",
        "x-content-type-options": "nosniff",
    }
    return Response(data, media_type="application/octet-stream", headers=headers)
