"""DeepL's glossaries: version 3 with several dictionaries, version 2 with one. Both show the same store."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from pydantic import Field

from dragoman.base import ConfigError
from dragoman.serving import glossaries
from dragoman.serving.glossaries import Entries, Glossary, Pair
from dragoman.serving.request_fields import Fields, fields_of
from dragoman.serving.routes.deepl import Code, DeepLRequest
from dragoman.serving.schemas import Text
from dragoman.serving.state import CurrentCall, NotFound, ServerState

router = APIRouter(tags=["DeepL"])
Name = Annotated[str, Field(min_length=1, max_length=1_000)]


class GlossaryFields(DeepLRequest):
    """A request about glossaries, where DeepL has other words for mistakes."""

    @classmethod
    def describe(cls, name: str, error: Any, fields: Fields) -> str:
        place = ".".join(map(str, error["loc"])) or name
        if error["type"] == "missing":
            return f"Missing or invalid argument: {place}"
        return f"Value for '{place}' not supported: {error['msg']}"


class DictionaryRequest(GlossaryFields):
    """A dictionary of a glossary."""

    source_lang: Code
    target_lang: Code
    entries: Text
    entries_format: Literal["tsv", "csv"]

    def parse(self, state: ServerState) -> tuple[Pair, Entries]:
        return glossaries.new_dictionary(state, self.source_lang, self.target_lang, self.entries, self.entries_format)


class GlossaryRequest(DictionaryRequest):
    """A glossary with one dictionary."""

    name: Name


class MultilingualRequest(GlossaryFields):
    """A glossary with several dictionaries."""

    name: Name
    dictionaries: Annotated[list[DictionaryRequest], Field(min_length=1, max_length=glossaries.MAX_DICTIONARIES)]


class PatchRequest(GlossaryFields):
    """A new name, or entries to add to a dictionary."""

    name: Name | None = None
    dictionaries: Annotated[list[DictionaryRequest], Field(max_length=glossaries.MAX_DICTIONARIES)] = Field([])


def about(glossary: Glossary) -> dict[str, Any]:
    """A glossary as version 3 describes it."""
    return {
        "glossary_id": glossary.glossary_id,
        "name": glossary.name,
        "dictionaries": [about_dictionary(pair, count) for pair, count in glossary.dictionaries.items()],
        "creation_time": glossary.creation_time,
    }


def about_dictionary(pair: Pair, count: int) -> dict[str, Any]:
    """A dictionary without its entries."""
    return {"source_lang": pair[0], "target_lang": pair[1], "entry_count": count}


def about_single(glossary: Glossary) -> dict[str, Any]:
    """A glossary with one dictionary, as version 2 describes it."""
    table = about(glossary)
    dictionaries = table.pop("dictionaries")
    if len(dictionaries) != 1:
        raise NotFound(f"glossary_id: {glossary.glossary_id} has several dictionaries; ask for /v3/glossaries")
    return {"ready": True, **table, **dictionaries[0]}


@router.post("/v2/glossaries", status_code=201, openapi_extra=GlossaryRequest.body())
async def create_glossary(call: CurrentCall, request: Request) -> Any:
    """Store a glossary for two languages."""
    body = await GlossaryRequest.read(request)
    glossary = glossaries.create(call, body.name, dict([body.parse(call.state)]))
    return JSONResponse(about_single(glossary), 201)


@router.get("/v2/glossaries")
async def list_glossaries(call: CurrentCall) -> dict[str, Any]:
    """All stored glossaries with one dictionary."""
    stored = [glossary for glossary in glossaries.every(call) if len(glossary.dictionaries) == 1]
    return {"glossaries": [about_single(glossary) for glossary in stored]}


@router.get("/v2/glossaries/{glossary_id}")
async def get_glossary(call: CurrentCall, glossary_id: str) -> dict[str, Any]:
    """A stored glossary without its entries."""
    return about_single(glossaries.get(call, glossary_id))


@router.get("/v2/glossaries/{glossary_id}/entries", response_class=PlainTextResponse)
async def glossary_entries(call: CurrentCall, glossary_id: str) -> Response:
    """The entries of a glossary with one dictionary, separated by tabs."""
    glossary = glossaries.get(call, glossary_id)
    about_single(glossary)  # raises NotFound for several dictionaries
    text = "".join(glossaries.as_tsv(glossaries.entries(call, glossary_id, *pair)) for pair in glossary.dictionaries)
    return Response(text.encode("utf-8", "replace"), media_type="text/tab-separated-values")


@router.delete("/v2/glossaries/{glossary_id}", status_code=204)
@router.delete("/v3/glossaries/{glossary_id}", status_code=204)
async def delete_glossary(call: CurrentCall, glossary_id: str) -> Response:
    """Forget a glossary."""
    glossaries.delete(call, glossary_id)
    return Response(status_code=204)


@router.post("/v3/glossaries", status_code=201, openapi_extra=MultilingualRequest.body("application/json"))
async def create_multilingual(call: CurrentCall, request: Request) -> Any:
    """Store a glossary with dictionaries for several pairs of languages."""
    body = await MultilingualRequest.read(request)
    dictionaries = dict(dictionary.parse(call.state) for dictionary in body.dictionaries)
    if len(dictionaries) < len(body.dictionaries):
        raise ConfigError("dictionaries: found two for the same languages, expected one for each pair")
    return JSONResponse(about(glossaries.create(call, body.name, dictionaries)), 201)


@router.get("/v3/glossaries")
async def list_multilingual(call: CurrentCall) -> dict[str, Any]:
    """All stored glossaries."""
    return {"glossaries": [about(glossary) for glossary in glossaries.every(call)]}


@router.get("/v3/glossaries/{glossary_id}")
async def get_multilingual(call: CurrentCall, glossary_id: str) -> dict[str, Any]:
    """A stored glossary without its entries."""
    return about(glossaries.get(call, glossary_id))


@router.patch("/v3/glossaries/{glossary_id}", openapi_extra=PatchRequest.body("application/json"))
async def patch_glossary(call: CurrentCall, request: Request, glossary_id: str) -> dict[str, Any]:
    """Rename a glossary, or add entries to its dictionaries; a term that is there gets its new translation."""
    body = await PatchRequest.read(request)
    glossaries.update(call, glossary_id, body.name, [dictionary.parse(call.state) for dictionary in body.dictionaries])
    return about(glossaries.get(call, glossary_id))


async def pair_of(request: Request) -> Pair:
    """The languages that a request names, in its address or its body."""
    fields = await fields_of(request)
    for name in ("source_lang", "target_lang"):
        if not isinstance(fields.get(name), str):
            raise ConfigError(f"Missing or invalid argument: {name}")
    return glossaries.base_code(fields["source_lang"]), glossaries.base_code(fields["target_lang"])


@router.get("/v3/glossaries/{glossary_id}/entries")
async def dictionary_entries(call: CurrentCall, request: Request, glossary_id: str) -> dict[str, Any]:
    """The entries of one dictionary of a glossary, separated by tabs."""
    source, target = await pair_of(request)
    entries = glossaries.as_tsv(glossaries.entries(call, glossary_id, source, target))
    dictionary = {"source_lang": source, "target_lang": target, "entries": entries, "entries_format": "tsv"}
    return {"dictionaries": [dictionary]}


@router.put("/v3/glossaries/{glossary_id}/dictionaries", openapi_extra=DictionaryRequest.body("application/json"))
async def put_dictionary(call: CurrentCall, request: Request, glossary_id: str) -> dict[str, Any]:
    """Add a dictionary to a glossary, in place of one for the same languages."""
    pair, entries = (await DictionaryRequest.read(request)).parse(call.state)
    glossaries.update(call, glossary_id, replaced=[(pair, entries)])
    return about_dictionary(pair, len(entries))


@router.delete("/v3/glossaries/{glossary_id}/dictionaries", status_code=204)
async def delete_dictionary(call: CurrentCall, request: Request, glossary_id: str) -> Response:
    """Remove one dictionary from a glossary."""
    glossaries.delete(call, glossary_id, await pair_of(request))
    return Response(status_code=204)
