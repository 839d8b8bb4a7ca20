"""The server's own API: predict, score and inspect with any model."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, File, Form, Request, UploadFile

from dragoman.decoding.complete import CompletionOptions
from dragoman.decoding.sampling import Sampling
from dragoman.errors import ConfigError
from dragoman.inference.unseen import UnseenInputs
from dragoman.serving.models import ServedModel, Upload, Work
from dragoman.serving.options import InputBuilder, decoding_options, tagged, with_enough_beam
from dragoman.serving.schemas import (
    Options,
    PredictRequest,
    PredictResponse,
    Problem,
    ScoreRequest,
    ScoreResponse,
)
from dragoman.serving.state import ServerState, state_of
from dragoman.serving.streaming import stream_prediction
from dragoman.serving.translate import Translator, in_thread, prediction_table

PROBLEMS: dict[int | str, dict[str, Any]] = {
    400: {"model": Problem, "description": "the request cannot be answered: the error says why"},
    403: {"model": Problem, "description": "the token is missing or wrong"},
    404: {"model": Problem, "description": "no such model"},
    408: {"model": Problem, "description": "the request arrived too slowly"},
    413: {"model": Problem, "description": "the body is too large"},
    415: {"model": Problem, "description": "the body is neither JSON nor a form"},
    422: {"model": Problem, "description": "a field has the wrong type or lies out of range"},
    503: {"model": Problem, "description": "too busy or stopping: see the header Retry-After"},
}
router = APIRouter(prefix="/v1", tags=["dragoman"], responses=PROBLEMS)


@router.post("/predict", response_model=PredictResponse, response_model_exclude_unset=True)
async def predict(request: Request, body: PredictRequest) -> Any:
    """The outputs of a model: translations, labels, numbers, tags, filled masks or continued prompts."""
    state = state_of(request)
    model = state.model(body.model)
    single = isinstance(body.input, str)
    texts = [body.input] if isinstance(body.input, str) else body.input
    state.check_texts(texts)
    if model.reads_files:
        raise ConfigError(f'model: "{model.name}" reads files; send them to /v1/predict/file')
    if body.stream:
        if not single:
            raise ConfigError("stream: needs one input, found several")
        return stream_prediction(request, state, model, body)
    outputs_of = translated_outputs if model.engine.searches else other_outputs
    outputs = await outputs_of(request, state, model, body, texts)
    warnings = unseen_warnings(outputs)
    return {"model": model.name, "outputs": outputs} | ({"warnings": warnings} if warnings else {})


def unseen_warnings(outputs: list[dict[str, Any]]) -> list[str]:
    """One line about all inputs with characters or words that training did not have; none if there are none."""
    unseen = UnseenInputs()
    for number, output in enumerate(outputs, 1):
        if surfaces := output.get("unknown"):
            unseen.add(number, surfaces)
    return [message] if (message := unseen.message()) else []


async def translated_outputs(
    request: Request, state: ServerState, model: ServedModel, body: PredictRequest, texts: list[str]
) -> list[dict[str, Any]]:
    """The outputs of a model that searches."""
    options = with_enough_beam(decoding_options(body, state.limits), model)
    translator = Translator(state, request, model, options, InputBuilder(body, model))
    if body.format == "html":
        if body.n_best > 1 or body.alignment:
            raise ConfigError("format: html has one output without alignment; expected n_best 1 and no alignment")
        found = await translator.html(texts)
    elif body.split:
        found = await translator.split(texts, body.alignment)
    else:
        found = await translator.whole(texts, body.alignment)
    return [prediction_table(one, model) for one in found]


async def other_outputs(
    request: Request, state: ServerState, model: ServedModel, body: PredictRequest, texts: list[str]
) -> list[dict[str, Any]]:
    """The outputs of labelers and language models."""
    allowed = {"model", "input"}
    work = Work(model.name, "label")
    if model.engine.continues:
        allowed |= {"method", "max_length", "n_best"}
        work = Work(model.name, "complete", completion_options(body, state))
    for name in sorted(body.model_fields_set - allowed):
        if getattr(body, name) != PredictRequest.model_fields[name].default:
            raise ConfigError(f'{name}: needs a run that searches; "{model.name}" has task = "{model.task}"')
    outputs = await state.compute(request, work, texts)
    found = await in_thread(lambda: [model.unknown(text) for text in texts], texts)
    if model.engine.continues:
        tables = [[asdict(one) for one in several] for several in outputs]
        return [
            {**best, **({"alternatives": others} if others else {}), **({"unknown": unknown} if unknown else {})}
            for (best, *others), unknown in zip(tables, found, strict=True)
        ]
    return [
        {"text": output.text, **output.details, **({"unknown": unknown} if unknown else {})}
        for output, unknown in zip(outputs, found, strict=True)
    ]


def completion_options(body: PredictRequest, state: ServerState) -> CompletionOptions:
    """How a language model continues the prompts of a request."""
    options = decoding_options(body, state.limits)
    if options.method is not None and not isinstance(options.method, Sampling):
        raise ConfigError(f"method: found {options.method.kind}, expected sampling: a language model continues a text")
    length = min(100, state.limits.tokens) if body.max_length is None else body.max_length
    return CompletionOptions(length, options.method, body.n_best)


@router.post("/predict/file", response_model=PredictResponse, response_model_exclude_unset=True)
async def predict_file(
    request: Request,
    file: Annotated[UploadFile, File(description="a recording or a picture")],
    model: Annotated[str | None, Form(max_length=200)] = None,
    beam: Annotated[int | None, Form(ge=1, le=1_000)] = None,
    n_best: Annotated[int, Form(ge=1, le=1_000)] = 1,
) -> Any:
    """The transcript, caption or label of a recording or picture."""
    state = state_of(request)
    served = file_model(state, model)
    if not served.engine.searches and (beam is not None or n_best > 1):
        raise ConfigError(
            f'model: "{served.name}" has task = "{served.task}", which needs no search: no beam or n_best'
        )
    body = Options(beam=beam, n_best=n_best)
    options = with_enough_beam(decoding_options(body, state.limits), served)
    upload = Upload(await file.read())
    (output,) = await state.compute(request, Work(served.name, "files", options), [upload])
    return {"model": served.name, "outputs": [output.as_table()]}


def file_model(state: ServerState, name: str | None, task: str | None = None) -> ServedModel:
    """The model that reads a file: the named one, or the first that reads files."""
    reading = [model for model in state.models if model.reads_files and task in (None, model.task)]
    if name is None and reading:
        return reading[0]
    model = state.model(name)
    if model not in reading:
        raise ConfigError(f'model: "{model.name}" has task = "{model.task}", expected {task or "one that reads files"}')
    return model


@router.post("/score", response_model=ScoreResponse)
async def score(request: Request, body: ScoreRequest) -> Any:
    """How probable given outputs are under a model."""
    state = state_of(request)
    model = state.model(body.model)
    texts = [text for pair in body.pairs for text in (pair.source, pair.target)]
    state.check_texts(texts)
    model.check_scores()
    if model.engine.continues:
        pairs = [("", pair.target) for pair in body.pairs]
    else:
        if any(not pair.source.strip() for pair in body.pairs):
            raise ConfigError("source: found an empty one, expected text")
        pairs = [(tagged(pair.source, body.tag, model), pair.target) for pair in body.pairs]
    outputs = await state.compute(request, Work(model.name, "score"), pairs)
    return {"model": model.name, "scores": [output._asdict() for output in outputs]}
