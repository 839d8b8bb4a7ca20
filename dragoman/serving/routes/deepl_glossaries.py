"""DeepL's glossaries: version 3 with several dictionaries, version 2 with one. Both show the same store."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from pydantic import Field

from dragoman.errors import ConfigError
from dragoman.serving import glossaries
from dragoman.serving.glossaries import Dictionary, Glossary
from dragoman.serving.request_fields import Fields, body_schema, fields_of, read_fields
from dragoman.serving.routes.deepl import Code, DeepLRequest
from dragoman.serving.routes.predict import PROBLEMS
from dragoman.serving.schemas import Text
from dragoman.serving.state import NotFound, ServerState, state_of

router = APIRouter(tags=["DeepL"], responses=PROBLEMS)
Name = Annotated[str, Field(min_length=1, max_length=1_000)]


class DictionaryRequest(DeepLRequest):
    """A dictionary of a glossary."""

    source_lang: Code
    target_lang: Code
    entries: Text
    entries_format: Literal["tsv", "csv"]


class GlossaryRequest(DictionaryRequest):
    """A glossary with one dictionary."""

    name: Name


class MultilingualRequest(DeepLRequest):
    """A glossary with several dictionaries."""

    name: Name
    dictionaries: Annotated[list[DictionaryRequest], Field(min_length=1, max_length=glossaries.MAX_DICTIONARIES)]


class PatchRequest(DeepLRequest):
    """A new name, or entries to add to a dictionary."""

    name: Name | None = None
    dictionaries: Annotated[list[DictionaryRequest], Field(max_length=glossaries.MAX_DICTIONARIES)] = Field([])


def describe(name: str, error: Any, fields: Fields) -> str:
    """A mistake in the words of DeepL."""
    place = ".".join(map(str, error["loc"])) or name
    if error["type"] == "missing":
        return f"Missing or invalid argument: {place}"
    return f"Value for '{place}' not supported: {error['msg']}"


def parsed(state: ServerState, body: DictionaryRequest) -> Dictionary:
    """The dictionary of a request."""
    return glossaries.new_dictionary(state, body.source_lang, body.target_lang, body.entries, body.entries_format)


def about(glossary_id: str, glossary: Glossary) -> dict[str, Any]:
    """A glossary as version 3 describes it."""
    return {
        "glossary_id": glossary_id,
        "name": glossary["name"],
        "dictionaries": [about_dictionary(one) for one in glossary["dictionaries"]],
        "creation_time": glossary["creation_time"],
    }


def about_dictionary(dictionary: Dictionary) -> dict[str, Any]:
    """A dictionary without its entries."""
    return {
        "source_lang": dictionary["source_lang"],
        "target_lang": dictionary["target_lang"],
        "entry_count": len(dictionary["entries"]),
    }


def about_single(glossary_id: str, glossary: Glossary) -> dict[str, Any]:
    """A glossary with one dictionary, as version 2 describes it."""
    if len(glossary["dictionaries"]) != 1:
        raise NotFound(f"glossary_id: {glossary_id} has several dictionaries; ask for /v3/glossaries")
    (dictionary,) = glossary["dictionaries"]
    return {
        "glossary_id": glossary_id,
        "name": glossary["name"],
        "ready": True,
        "creation_time": glossary["creation_time"],
        **about_dictionary(dictionary),
    }


@router.post("/v2/glossaries", status_code=201, openapi_extra=body_schema(GlossaryRequest))
async def create_glossary(request: Request) -> Any:
    """Store a glossary for two languages until the server stops."""
    state = state_of(request)
    body = await read_fields(request, GlossaryRequest, describe)
    return JSONResponse(about_single(*glossaries.create(state, body.name, [parsed(state, body)])), 201)


@router.get("/v2/glossaries")
async def list_glossaries(request: Request) -> dict[str, Any]:
    """All stored glossaries with one dictionary."""
    found = [(key, one) for key, one in glossaries.every(state_of(request)) if len(one["dictionaries"]) == 1]
    return {"glossaries": [about_single(*one) for one in found]}


@router.get("/v2/glossaries/{glossary_id}")
async def get_glossary(request: Request, glossary_id: str) -> dict[str, Any]:
    """A stored glossary without its entries."""
    return about_single(glossary_id, glossaries.get(state_of(request), glossary_id))


@router.get("/v2/glossaries/{glossary_id}/entries", response_class=PlainTextResponse)
async def glossary_entries(request: Request, glossary_id: str) -> Response:
    """The entries of a glossary with one dictionary, separated by tabs."""
    glossary = glossaries.get(state_of(request), glossary_id)
    about_single(glossary_id, glossary)
    text = glossaries.as_tsv(glossary["dictionaries"][0]["entries"])
    return Response(text.encode("utf-8", "replace"), media_type="text/tab-separated-values")


@router.delete("/v2/glossaries/{glossary_id}", status_code=204)
@router.delete("/v3/glossaries/{glossary_id}", status_code=204)
async def delete_glossary(request: Request, glossary_id: str) -> Response:
    """Forget a glossary."""
    glossaries.delete(state_of(request), glossary_id)
    return Response(status_code=204)


@router.post("/v3/glossaries", status_code=201, openapi_extra=body_schema(MultilingualRequest, "application/json"))
async def create_multilingual(request: Request) -> Any:
    """Store a glossary with dictionaries for several pairs of languages until the server stops."""
    state = state_of(request)
    body = await read_fields(request, MultilingualRequest, describe)
    dictionaries = [parsed(state, one) for one in body.dictionaries]
    pairs = [(one["source_lang"], one["target_lang"]) for one in dictionaries]
    if len({*pairs}) < len(pairs):
        raise ConfigError("dictionaries: found two for the same languages, expected one for each pair")
    return JSONResponse(about(*glossaries.create(state, body.name, dictionaries)), 201)


@router.get("/v3/glossaries")
async def list_multilingual(request: Request) -> dict[str, Any]:
    """All stored glossaries."""
    return {"glossaries": [about(*one) for one in glossaries.every(state_of(request))]}


@router.get("/v3/glossaries/{glossary_id}")
async def get_multilingual(request: Request, glossary_id: str) -> dict[str, Any]:
    """A stored glossary without its entries."""
    return about(glossary_id, glossaries.get(state_of(request), glossary_id))


@router.patch("/v3/glossaries/{glossary_id}", openapi_extra=body_schema(PatchRequest, "application/json"))
async def patch_glossary(request: Request, glossary_id: str) -> dict[str, Any]:
    """Rename a glossary, or add entries to its dictionaries; a term that is there gets its new translation."""
    state = state_of(request)
    glossary = glossaries.get(state, glossary_id)
    body = await read_fields(request, PatchRequest, describe)
    if body.name is not None:
        glossary = {**glossary, "name": body.name}
    for one in body.dictionaries:
        added = parsed(state, one)
        try:
            old = glossaries.dictionary_of(glossary, one.source_lang, one.target_lang)["entries"]
        except NotFound:
            old = {}
        entries = {**old, **added["entries"]}
        if len(entries) > glossaries.MAX_ENTRIES:
            raise ConfigError(f"entries: found {len(entries):,}, expected at most {glossaries.MAX_ENTRIES:,}")
        glossary = glossaries.with_dictionary(glossary, {**added, "entries": entries})
    glossaries.replace(state, glossary_id, glossary)
    return about(glossary_id, glossary)


async def pair_of(request: Request) -> tuple[str, str]:
    """The languages that a request names, in its address or its body."""
    fields = await fields_of(request)
    for name in ("source_lang", "target_lang"):
        if not isinstance(fields.get(name), str):
            raise ConfigError(f"Missing or invalid argument: {name}")
    return fields["source_lang"], fields["target_lang"]


@router.get("/v3/glossaries/{glossary_id}/entries")
async def dictionary_entries(request: Request, glossary_id: str) -> dict[str, Any]:
    """The entries of one dictionary of a glossary, separated by tabs."""
    glossary = glossaries.get(state_of(request), glossary_id)
    dictionary = glossaries.dictionary_of(glossary, *await pair_of(request))
    entries = {
        "source_lang": dictionary["source_lang"],
        "target_lang": dictionary["target_lang"],
        "entries": glossaries.as_tsv(dictionary["entries"]),
        "entries_format": "tsv",
    }
    return {"dictionaries": [entries]}


@router.put(
    "/v3/glossaries/{glossary_id}/dictionaries", openapi_extra=body_schema(DictionaryRequest, "application/json")
)
async def put_dictionary(request: Request, glossary_id: str) -> dict[str, Any]:
    """Add a dictionary to a glossary, in place of one for the same languages."""
    state = state_of(request)
    glossary = glossaries.get(state, glossary_id)
    dictionary = parsed(state, await read_fields(request, DictionaryRequest, describe))
    glossaries.replace(state, glossary_id, glossaries.with_dictionary(glossary, dictionary))
    return about_dictionary(dictionary)


@router.delete("/v3/glossaries/{glossary_id}/dictionaries", status_code=204)
async def delete_dictionary(request: Request, glossary_id: str) -> Response:
    """Remove one dictionary from a glossary."""
    state = state_of(request)
    glossary = glossaries.get(state, glossary_id)
    dictionary = glossaries.dictionary_of(glossary, *await pair_of(request))
    glossaries.replace(state, glossary_id, glossaries.without(glossary, dictionary))
    return Response(status_code=204)
