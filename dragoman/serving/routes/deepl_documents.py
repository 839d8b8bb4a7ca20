"""DeepL's documents: a client uploads one, asks how far its translation is, and fetches the result once."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import secrets
import time
from pathlib import PurePath
from typing import Annotated, Any

from fastapi import APIRouter, Request, Response
from pydantic import Field

from dragoman.base import ConfigError, DragomanError
from dragoman.documents import FORMATS
from dragoman.serving.answers import download
from dragoman.serving.batcher import Busy
from dragoman.serving.request_fields import ignored
from dragoman.serving.routes.deepl import DeepLRequest, LanguagePair, job_of
from dragoman.serving.state import CurrentCall, NotFound, ServerCall, ServerState, TooLate
from dragoman.serving.text_translation import AUTO, TranslationJob, find_route, translate_document

router = APIRouter(prefix="/v2/document", tags=["DeepL"])
LOG = logging.getLogger("dragoman.serving")
MAX_RUNNING = 8  # documents at work in one process
MAX_EACH = 6  # of one client
AT_ONCE = 0.5  # seconds: a small document is done before its upload is answered, and clients need not ask again
_running: set[asyncio.Task[None]] = set()  # the loop itself keeps only weak references
EQUAL = "Source and target language are equal."


class UploadRequest(LanguagePair):
    """A document to translate."""

    file: tuple[str, bytes] = Field(json_schema_extra={"type": "string", "format": "binary"})
    filename: Annotated[str, Field(max_length=1_000)] = ""
    output_format: Annotated[str, Field(max_length=20)] | None = None
    enable_document_minification: bool | None = ignored("documents are never minified")


class KeyRequest(DeepLRequest):
    """The key that the upload of a document was answered with; other fields are ignored."""

    unknown_field = ""
    document_key: Annotated[str, Field(max_length=200)]


@router.post("", openapi_extra=UploadRequest.body("multipart/form-data"))
async def upload(call: CurrentCall, request: Request) -> dict[str, str]:
    """Begin to translate a document; it and its result are kept for an hour."""
    state = call.state
    body = await UploadRequest.read(request)
    name = PurePath(body.filename or body.file[0])
    suffix = name.suffix.lower()
    if not body.file[1] or suffix not in FORMATS:
        expected = f"a file that is not empty, with one of the file extensions {', '.join(FORMATS)}"
        raise ConfigError(f"Invalid file data: expected {expected}.")
    if body.output_format and f".{body.output_format.lower().lstrip('.')}" != suffix:
        raise ConfigError("Value for 'output_format' not supported: a document keeps its format.")
    job = job_of(call, body)
    # Whatever the document is written in, a target that no run writes is an error now.
    source = next(iter(state.models.sources(job.target)), AUTO) if job.source == AUTO else job.source
    if find_route(state, job, source) is None and job.source != AUTO:
        raise ConfigError(EQUAL)
    if len(_running) >= MAX_RUNNING or sum(task.get_name() == call.client for task in _running) >= MAX_EACH:
        raise Busy(5.0)
    key = secrets.token_hex(32).upper()
    about = {"key": key, "status": "translating", "name": name.name, "until": time.time() + state.limits.request_time}
    document_id = state.store.add(call.client, json.dumps(about))
    # The work outlives this request: it is a call of its own, which no closed connection ends.
    task = asyncio.create_task(work(ServerCall(state), job, document_id, about, body.file[1]), name=call.client)
    _running.add(task)
    task.add_done_callback(_running.discard)
    await asyncio.wait([task], timeout=AT_ONCE)
    return {"document_id": document_id.upper(), "document_key": key}


async def work(call: ServerCall, job: TranslationJob, document_id: str, about: dict[str, Any], data: bytes) -> None:
    """Translate a document and store what became of it."""
    translated = b""
    try:
        result = await translate_document(call, job, about["name"], data)
        if not result.translated:
            raise ConfigError(EQUAL)
        about |= {"status": "done", "characters": result.characters, "wordless": result.wordless}
        translated = result.data
    except DragomanError as error:
        about |= {"status": "error", "error": str(error)}
    except (Busy, TooLate):
        about |= {"status": "error", "error": "the server is too busy for this document; try again later"}
    except Exception as error:
        LOG.exception("internal error", exc_info=error)
        about |= {"status": "error", "error": f"internal error: {type(error).__name__}"}
    call.state.store.replace(document_id, json.dumps(about), translated)


async def stored(state: ServerState, request: Request, document_id: str) -> dict[str, Any]:
    """What is known about a document; raises NotFound without its key."""
    body = await KeyRequest.read(request)
    about: dict[str, Any] = json.loads(state.store.about(document_id.lower()) or "{}")
    if not hmac.compare_digest(str(about.get("key", "")).encode(), body.document_key.upper().encode()) or not about:
        raise NotFound("Document not found: expected the id and the key of a document of the last hour")
    if about["status"] == "translating" and time.time() > about["until"] + 5:
        about |= {"status": "error", "error": "the translation was interrupted; upload the document again"}
    return about


@router.post("/{document_id}", openapi_extra=KeyRequest.body())
async def status(call: CurrentCall, request: Request, document_id: str) -> dict[str, Any]:
    """How far the translation of a document is."""
    about = await stored(call.state, request, document_id)
    table: dict[str, Any] = {"document_id": document_id, "status": about["status"]}
    if about["status"] == "translating":
        table["seconds_remaining"] = 1  # clients wait so long before they ask again
    elif about["status"] == "done":
        table |= {"seconds_remaining": 0, "billed_characters": about["characters"]}
        table |= {"without_letters": about["wordless"]} if about["wordless"] else {}
    else:
        table |= {"error_message": about["error"], "message": about["error"]}
    return table


@router.post("/{document_id}/result", openapi_extra=KeyRequest.body())
async def result(call: CurrentCall, request: Request, document_id: str) -> Response:
    """The translated document; the server forgets it after that."""
    state = call.state
    about = await stored(state, request, document_id)
    if about["status"] != "done":
        raise ConfigError(about.get("error", "")) if about["status"] == "error" else Busy(1.0)
    data = state.store.take(document_id.lower())
    if data is None:
        raise NotFound("Document not found: it was fetched before, or is older than an hour")
    return download(data, about["name"])
