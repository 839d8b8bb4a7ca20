"""What happens inside a model for one input: the numbers behind the pages of `dragoman inspect`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import APIRouter, File, Form, Request, Response, UploadFile

from dragoman.errors import ConfigError
from dragoman.serving.models import Upload
from dragoman.serving.options import tagged
from dragoman.serving.routes.predict import PROBLEMS, file_model
from dragoman.serving.schemas import Continuation, ContinueRequest, InspectRequest
from dragoman.serving.state import ServerState, state_of
from dragoman.web.page import plain

if TYPE_CHECKING:
    from dragoman.reports.inspection import Inspection

router = APIRouter(prefix="/v1", tags=["dragoman"], responses=PROBLEMS)
LONGEST = 2_000  # characters: the numbers grow with the square of the length


def check_beam(state: ServerState, beam: int | None) -> None:
    """Raise an error for a beam wider than the server allows."""
    if beam is not None and beam > state.limits.beam:
        raise ConfigError(f"beam: found {beam}, expected at most {state.limits.beam} on this server")


def check_lengths(**texts: str) -> None:
    """Raise an error for texts too long to look inside, and for an empty input."""
    for name, text in texts.items():
        if len(text) > LONGEST:
            raise ConfigError(f"{name}: found {len(text):,} characters, expected at most {LONGEST:,} to look inside")
    if not texts["input"].strip():
        raise ConfigError("input: found empty text, expected text to inspect")


def as_json(found: Inspection, packed: bool) -> bytes:
    """The answer as bytes, in the thread of the inspection: megabytes of JSON must not hold up other requests."""
    text = json.dumps(plain(found.page_data() if packed else found.as_dict()), ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8", "replace")


@router.post("/inspect")
async def inspect(request: Request, body: InspectRequest) -> Any:
    """Attention, beam tree, states and all other views of one text, as numbers."""
    state = state_of(request)
    model = state.model(body.model)
    check_beam(state, body.beam)
    if model.reads_files:
        raise ConfigError(f'model: "{model.name}" reads files; send one to /v1/inspect/file')
    check_lengths(input=body.input, output=body.output or "")

    def look() -> bytes:
        return as_json(model.inspect(body.input, body.output, body.tag, body.beam), body.numbers == "packed")

    return Response(await state.inspect(request, look), media_type="application/json")


@router.post("/inspect/continue", response_model=Continuation)
async def continue_search(request: Request, body: ContinueRequest) -> Any:
    """What would have followed a pruned branch of the beam: the first tokens of an output continued greedily."""
    state = state_of(request)
    model = state.model(body.model)
    if not model.translates:
        raise ConfigError(f'model: "{model.name}" has task = "{model.task}", expected one that translates text')
    check_lengths(input=body.input)
    text = tagged(body.input, body.tag, model)
    return await state.inspect(request, lambda: model.continue_search(text, body.tokens))


@router.post("/inspect/file")
async def inspect_file(
    request: Request,
    file: Annotated[UploadFile, File(description="a recording or a picture")],
    model: Annotated[str | None, Form(max_length=200)] = None,
    numbers: Annotated[Literal["lists", "packed"], Form()] = "lists",
) -> Any:
    """The views of a recording or a picture: where the model looked, when each word was said."""
    state = state_of(request)
    served = file_model(state, model)
    upload = Upload(await file.read())

    def look() -> bytes:
        return as_json(served.inspect(upload, None, None, None), numbers == "packed")

    return Response(await state.inspect(request, look), media_type="application/json")
