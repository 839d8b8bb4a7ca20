"""Routes for whoever runs the server: health, readiness, metrics and the list of models."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse

from dragoman.data.languages import language_name
from dragoman.serving.models import ServedModel
from dragoman.serving.state import state_of
from dragoman.version import __version__

router = APIRouter(tags=["operation"])


@router.get("/health")
async def health(request: Request) -> Response:
    """Whether the process works; a supervisor restarts it otherwise."""
    alive = state_of(request).batcher.alive
    # LibreTranslate answers {"status": "ok"} and nothing else; /ready says more.
    return JSONResponse({"status": "ok" if alive else "broken"}, 200 if alive else 503)


@router.get("/ready", responses={503: {"description": "the server is stopping"}})
async def ready(request: Request) -> Response:
    """Whether a load balancer may send requests; 503 while the server stops."""
    state = state_of(request)
    if state.draining:
        return JSONResponse({"status": "stopping"}, 503, headers={"retry-after": "2"})
    models = [model.name for model in state.models]
    return JSONResponse({"status": "ready", "version": __version__, "models": models})


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(request: Request) -> Response:
    """Counters of this worker, in the text format of Prometheus."""
    state = state_of(request)
    text = state.metrics.text(state.batcher.waiting, state.active)
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
        "input": engine.source_tokenizer.kind if model.reads_files else "text",  # type: ignore[union-attr]
        "parameters": sum(parameter.numel() for parameter in engine.model.parameters()),
        "calibrated": model.calibrated,
        "texts": model.texts,
    }
    if model.translates:
        table["source"] = {"code": model.source, "name": language_name(model.source)}
        table["targets"] = [{"code": code, "name": language_name(code)} for code in model.targets]
        table["tags"] = list(model.tags)
        table["beam"] = engine.config.search.beam
    labels = getattr(engine, "labels", ())
    if labels:
        table["labels"] = list(labels)
    return table


@router.get("/v1/models")
async def models(request: Request) -> dict[str, Any]:
    """The models of the server with their tasks and languages."""
    return {"object": "list", "data": [model_table(model) for model in state_of(request).models]}
