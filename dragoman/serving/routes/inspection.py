"""What happens inside a model for one input: the numbers behind the pages of `dragoman inspect`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import APIRouter, File, Form, Response, UploadFile

from dragoman.base import ConfigError
from dragoman.inspect import InspectOptions
from dragoman.inspect.views import VIEWS
from dragoman.serving.options import tagged
from dragoman.serving.routes.predict import file_model
from dragoman.serving.schemas import Continuation, ContinueRequest, InspectRequest
from dragoman.serving.state import CurrentCall
from dragoman.web import plain

if TYPE_CHECKING:
    from dragoman.inspect.views import Inspection

router = APIRouter(prefix="/v1", tags=["dragoman"])
LONGEST = 2_000  # characters: the numbers grow with the square of the length


def check_lengths(**texts: str) -> None:
    """Raise an error for texts too long to look inside, and for an empty input."""
    for name, text in texts.items():
        if len(text) > LONGEST:
            raise ConfigError(f"{name}: found {len(text):,} characters, expected at most {LONGEST:,} to look inside")
    if not texts["input"].strip():
        raise ConfigError("input: found empty text, expected text to inspect")


def as_json(inspection: Inspection, packed: bool) -> bytes:
    """The answer as bytes, in the thread of the inspection: megabytes of JSON must not hold up other requests."""
    table = plain(inspection.page_data() if packed else inspection.as_dict())
    return json.dumps(table, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace")


@router.post("/inspect")
async def inspect(call: CurrentCall, body: InspectRequest) -> Any:
    """Attention, beam tree, states and all other views of one text, as numbers."""
    model, most = call.state.model(body.model), call.state.limits.beam
    if body.beam is not None and body.beam > most:
        raise ConfigError(f"beam: found {body.beam}, expected at most {most} on this server")
    if model.reads_files:
        raise ConfigError(f'model: "{model.name}" reads files; send one to /v1/inspect/file')
    check_lengths(input=body.input, output=body.output or "")
    kinds = [kind for kind, view in VIEWS.items() if not view.on_request]
    if unknown := [name for name in body.views if name not in kinds]:
        raise ConfigError(f"views: found {unknown[0]!r}, expected some of {', '.join(kinds)}")

    options = InspectOptions(body.output, beam=body.beam, tag=body.tag, views=tuple(body.views))

    def look() -> bytes:
        variant = {"untrained": body.untrained, "positions": body.positions}
        found = model.inspect(body.input, options, **variant)
        return as_json(found, body.numbers == "packed")

    return Response(await call.inspect(look), media_type="application/json")


@router.post("/inspect/continue", response_model=Continuation)
async def continue_search(call: CurrentCall, body: ContinueRequest) -> Any:
    """What would have followed a pruned branch of the beam: the first tokens of an output continued greedily."""
    model = call.state.model(body.model)
    if not model.translates:
        raise ConfigError(f'model: "{model.name}" has task = "{model.task}", expected one that translates text')
    check_lengths(input=body.input)
    text = tagged(body.input, body.tag, model)
    return await call.inspect(lambda: model.continue_search(text, body.tokens))


@router.post("/inspect/file")
async def inspect_file(
    call: CurrentCall,
    file: Annotated[UploadFile, File(description="a recording or a picture")],
    model: Annotated[str | None, Form(max_length=200)] = None,
    numbers: Annotated[Literal["lists", "packed"], Form()] = "lists",
) -> Any:
    """The views of a recording or a picture: where the model looked, when each word was said."""
    served = file_model(call.state, model)
    data = await file.read()

    def look() -> bytes:
        return as_json(served.inspect(data, InspectOptions()), numbers == "packed")

    return Response(await call.inspect(look), media_type="application/json")
