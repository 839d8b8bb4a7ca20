"""Routes for whoever runs the server: health, readiness, metrics and the list of models."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse, PlainTextResponse

from dragoman.base import __version__
from dragoman.data import language_name
from dragoman.serving.models import ServedModel
from dragoman.serving.state import CurrentCall

router = APIRouter(tags=["operation"])
BUSY = 5.0  # seconds of one batch: several times what one should take


@router.get("/health")
async def health(call: CurrentCall) -> Response:
    """Whether the process works; a supervisor restarts it otherwise (503).

    "busy" with 200: a batch has been computed for some seconds; others are computed beside it. "stuck" with 503: it
    should have been given up, but cannot be. A healthy server says what LibreTranslate says, and no more.
    """
    state = call.state
    busy = state.busy_for
    status = "ok" if busy < BUSY else "busy" if busy < state.limits.request_time + BUSY else "stuck"
    if not state.alive:
        status = "broken"
    details = {} if status == "ok" else {"busy_seconds": round(busy, 3), "waiting": state.waiting}
    return JSONResponse({"status": status} | details, 200 if status in ("ok", "busy") else 503)


@router.get("/ready", responses={503: {"description": "the server is stopping"}})
async def ready(call: CurrentCall) -> Response:
    """Whether a load balancer may send requests; 503 while the server stops."""
    state = call.state
    if state.draining:
        return JSONResponse({"status": "stopping"}, 503, headers={"retry-after": "2"})
    models = [model.name for model in state.models]
    return JSONResponse({"status": "ready", "version": __version__, "models": models})


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(call: CurrentCall) -> Response:
    """Counters of this worker, in the text format of Prometheus."""
    state = call.state
    text = state.metrics.text(state.waiting, len(state.calls), state.busy_for)
    return PlainTextResponse(text, media_type="text/plain; version=0.0.4")


def model_table(model: ServedModel) -> dict[str, Any]:
    """What a client needs to know about a model."""
    engine = model.engine
    table: dict[str, Any] = {
        "id": model.name,
        "object": "model",
        "owned_by": "dragoman",
        "created": 0,
        "task": model.task,
        "input": engine.source_tokenizer.kind if model.reads_files else "text",
        "parameters": engine.parameters,
        "members": len(engine.members),
        "calibrated": engine.is_calibrated,
        "texts": engine.texts_per_input,
    }
    if model.translates:
        table["source"] = {"code": model.source, "name": language_name(model.source)}
        table["targets"] = [{"code": code, "name": language_name(code)} for code in model.targets]
        table["tags"] = list(model.tags)
        table["beam"] = model.predictor.search.beam
        table["suggestions"] = "weights" in model.origin
    if engine.labels:
        table["labels"] = list(engine.labels)
    return table


@router.get("/v1/models")
async def models(call: CurrentCall) -> dict[str, Any]:
    """The models of the server with their tasks and languages."""
    return {"object": "list", "data": [model_table(model) for model in call.state.models]}
