"""The part of DeepL's API (version 2) that translates texts, with glossaries, which become terminology."""

from __future__ import annotations

import csv
import io
import json
import time
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from pydantic import BaseModel, BeforeValidator, Field

from dragoman.data.languages import UNKNOWN, language_name
from dragoman.errors import ConfigError
from dragoman.serving.routes.libretranslate import Code, TranslateRequest, body_schema, fields_of, read, translate_texts
from dragoman.serving.routes.predict import PROBLEMS
from dragoman.serving.schemas import Phrase, Text
from dragoman.serving.state import NotFound, ServerState, state_of

router = APIRouter(prefix="/v2", tags=["DeepL"], responses=PROBLEMS)
MAX_ENTRIES = 10_000
Glossary = dict[str, Any]


class DeepLRequest(BaseModel):
    """Texts to translate; fields that steer DeepL's own models are ignored."""

    text: Annotated[list[Text], BeforeValidator(lambda value: [value] if isinstance(value, str) else value)]
    target_lang: Code
    source_lang: Code | None = None
    glossary_id: Annotated[str, Field(max_length=100)] | None = None
    tag_handling: Literal["xml", "html"] | None = None


class GlossaryRequest(BaseModel):
    """A glossary to store."""

    name: Annotated[str, Field(min_length=1, max_length=1_000)]
    source_lang: Code
    target_lang: Code
    entries: Text
    entries_format: Literal["tsv", "csv"] = "tsv"


@router.post("/translate", openapi_extra=body_schema(DeepLRequest))
async def translate(request: Request) -> Any:
    """Translate texts; `glossary_id` names a glossary that was stored before."""
    state = state_of(request)
    body = await read(request, DeepLRequest)
    state.check_texts(body.text)
    terms = glossary_of(state, body.glossary_id)["entries"] if body.glossary_id else None
    asked = TranslateRequest(
        q=body.text, source=(body.source_lang or "auto").lower(), target=body.target_lang.lower(),
        format="html" if body.tag_handling else "text", glossary=terms,
    )  # fmt: skip
    found, detected = await translate_texts(request, state, asked, body.text)
    return {
        "translations": [
            {"detected_source_language": one["language"].upper(), "text": text.text, "billed_characters": 0}
            for text, one in zip(found, detected, strict=True)
        ]
    }


@router.get("/languages")
async def languages(request: Request, type: Literal["source", "target"] = "source") -> list[dict[str, Any]]:
    """The languages that can be translated from or into; DeepL's own client sends `type` as a form."""
    targets = "target" in (type, (await fields_of(request)).get("type"))
    translators = state_of(request).models.translators
    codes = [code for one in translators for code in (one.targets if targets else (one.source,))]
    found = [{"language": code.upper(), "name": language_name(code)} for code in dict.fromkeys(codes)]
    return [one | {"supports_formality": False} for one in found] if targets else found


@router.get("/glossary-language-pairs")
async def glossary_languages(request: Request) -> dict[str, Any]:
    """The pairs of languages that glossaries work with: all."""
    pairs = [
        {"source_lang": one.source.split("-")[0].lower(), "target_lang": code.split("-")[0].lower()}
        for one in state_of(request).models.translators
        for code in one.targets
        if UNKNOWN not in (one.source, code)
    ]
    return {"supported_languages": pairs}


@router.get("/usage")
async def usage() -> dict[str, int]:
    """How much was translated; this server counts nothing."""
    return {"character_count": 0, "character_limit": 10**12}


@router.post("/glossaries", status_code=201, openapi_extra=body_schema(GlossaryRequest))
async def create_glossary(request: Request) -> Any:
    """Store a glossary until the server stops."""
    state = state_of(request)
    body = await read(request, GlossaryRequest)
    table = {
        "name": body.name,
        "ready": True,
        "source_lang": body.source_lang.lower(),
        "target_lang": body.target_lang.lower(),
        "creation_time": time.strftime("%Y-%m-%dT%H:%M:%S.000000Z", time.gmtime()),
        "entries": parse_entries(body.entries, body.entries_format),
    }
    if state.glossaries.full:
        raise ConfigError("glossaries: found as many as this server keeps; delete one first")
    key = state.glossaries.add(json.dumps(table).encode("utf-8", "surrogatepass"))
    return JSONResponse(about(key, table), 201)


@router.get("/glossaries")
async def list_glossaries(request: Request) -> dict[str, Any]:
    """All stored glossaries."""
    state = state_of(request)
    found = []
    for key in state.glossaries.ids():
        if (data := state.glossaries.get(key)) is not None:
            found.append(about(key, json.loads(data)))
    return {"glossaries": found}


@router.get("/glossaries/{key}")
async def get_glossary(request: Request, key: str) -> Glossary:
    """A stored glossary without its entries."""
    return about(key, glossary_of(state_of(request), key))


@router.get("/glossaries/{key}/entries", response_class=PlainTextResponse)
async def glossary_entries(request: Request, key: str) -> Response:
    """The entries of a glossary, separated by tabs."""
    entries = glossary_of(state_of(request), key)["entries"]
    text = "\n".join(f"{term}\t{translation}" for term, translation in entries.items())
    return Response(text.encode("utf-8", "replace"), media_type="text/tab-separated-values")


@router.delete("/glossaries/{key}", status_code=204)
async def delete_glossary(request: Request, key: str) -> Response:
    """Forget a glossary."""
    state = state_of(request)
    glossary_of(state, key)
    state.glossaries.remove(key)
    return Response(status_code=204)


def glossary_of(state: ServerState, key: str) -> Glossary:
    """A stored glossary; raises NotFound."""
    data = state.glossaries.get(key)
    if data is None:
        raise NotFound(f"glossary_id: found {key[:40]!r}, expected the id of a stored glossary")
    found: Glossary = json.loads(data)
    return found


def about(key: str, table: Glossary) -> Glossary:
    """A glossary as DeepL describes it."""
    entries = table["entries"]
    return {"glossary_id": key, "entry_count": len(entries)} | {
        name: value for name, value in table.items() if name != "entries"
    }


def parse_entries(text: str, form: str) -> dict[str, Phrase]:
    """The terms and translations of a glossary in a tab-separated or CSV file."""
    entries: dict[str, str] = {}
    try:
        rows = [line.split("\t") for line in text.splitlines()] if form == "tsv" else [*csv.reader(io.StringIO(text))]
    except csv.Error as error:
        raise ConfigError(f"entries: found no CSV ({error}), expected lines of term and translation") from None
    for number, row in enumerate(rows, 1):
        if not any(cell.strip() for cell in row):
            continue
        if len(row) < 2 or not row[0].strip() or not row[1].strip() or max(len(row[0]), len(row[1])) > 1_000:
            raise ConfigError(f"entries: found {'/'.join(row)[:60]!r} in line {number}, expected term and translation")
        entries[row[0].strip()] = row[1].strip()
    if not 0 < len(entries) <= MAX_ENTRIES:
        raise ConfigError(f"entries: found {len(entries):,}, expected 1 to {MAX_ENTRIES:,}")
    return entries
