"""The server's own API: predict, score and look inside with any model."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import APIRouter, File, Form, Request, Response, UploadFile

from dragoman.base import ConfigError
from dragoman.data import UNKNOWN
from dragoman.decoding import DecodingOptions
from dragoman.inference import Finding, UnseenInputs, checker
from dragoman.inspect import InspectOptions
from dragoman.serving.formality import language_of_tag
from dragoman.serving.models import BatchWork, ServedModel
from dragoman.serving.options import completion_options, decoding_options, tagged, within
from dragoman.serving.schemas import (
    Continuation,
    ContinueRequest,
    InspectRequest,
    PredictRequest,
    PredictResponse,
    ScoreRequest,
    ScoreResponse,
)
from dragoman.serving.state import CurrentCall, ServerCall, ServerState, call_of
from dragoman.serving.streaming import stream_prediction
from dragoman.serving.translator import Translator, prediction_table
from dragoman.web import plain

if TYPE_CHECKING:
    from dragoman.inspect.views import Inspection


router = APIRouter(prefix="/v1", tags=["dragoman"])


@router.post("/predict", response_model=PredictResponse, response_model_exclude_unset=True)
async def predict(request: Request, body: PredictRequest) -> Any:
    """The outputs of a model: translations, labels, numbers, tags, filled masks or continued prompts."""
    call = call_of(request)
    model = call.state.model(body.model)
    texts = [body.input] if isinstance(body.input, str) else body.input
    call.state.check_texts(texts)
    if model.reads_files:
        raise ConfigError(f'model: "{model.name}" reads files; send them to /v1/predict/file')
    if body.stream:
        if not isinstance(body.input, str):
            raise ConfigError("stream: needs one input, found several")
        if body.checks:
            raise ConfigError("stream: found checks with it, which need whole outputs")
        return stream_prediction(call.state, model, body, body.input)
    outputs_of = translated_outputs if model.engine.searches else other_outputs
    outputs = await outputs_of(call, model, body, texts)
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
    call: ServerCall, model: ServedModel, body: PredictRequest, texts: list[str]
) -> list[dict[str, Any]]:
    """The outputs of a model that searches."""
    options = decoding_options(body, call.state.limits)
    if body.format == "html" and (options.n_best > 1 or body.alignment):
        raise ConfigError("format: html has one output without alignment; expected n_best 1 and no alignment")
    translator = Translator(call, model, options, body.format)
    outputs = await translator.translate(texts, body.split, body.alignment)
    tables = [prediction_table(output, model) for output in outputs]
    if body.checks:
        source = "" if model.source == UNKNOWN else model.source
        target = language_of_tag(options.tag) if options.tag else model.targets[0].replace(UNKNOWN, "")
        check = checker(source, target, options.terminology)
        await call.prepare(partial(add_findings, tables, texts, check), texts)
    return tables


def add_findings(tables: Sequence[dict[str, Any]], sources: Sequence[str], check: Callable[..., list[Finding]]) -> None:
    """Add to each output what is doubtful about it; to a text that was split, what is so about its sentences."""
    for table, source in zip(tables, sources, strict=True):
        if sentences := table.get("sentences"):
            add_findings(sentences, [sentence["source"] for sentence in sentences], check)
            table["findings"] = [finding for sentence in sentences for finding in sentence["findings"]]
        else:
            found = [] if table.get("refused") else check(source, table["text"])
            table["findings"] = [finding.as_table() for finding in found]


async def other_outputs(
    call: ServerCall, model: ServedModel, body: PredictRequest, texts: list[str]
) -> list[dict[str, Any]]:
    """The outputs of labelers and language models."""
    allowed = {"model", "input"}
    work = BatchWork(model.name, "label")
    if model.engine.continues:
        allowed |= {"method", "max_length", "n_best"}
        work = BatchWork(model.name, "complete", completion_options(body, call.state.limits))
    for name in sorted(body.model_fields_set - allowed):
        if getattr(body, name) != PredictRequest.model_fields[name].default:
            raise ConfigError(f'{name}: needs a run that searches; "{model.name}" has task = "{model.task}"')
    outputs = await call.compute(work, texts)
    tables: list[dict[str, Any]] = []
    for output, unknown in zip(
        outputs, await call.prepare(lambda: list(map(model.unknown, texts)), texts), strict=True
    ):
        if model.engine.continues:
            table, *others = (asdict(completed) for completed in output)
            table |= {"alternatives": others} if others else {}
        else:
            table = {"text": output.text, **output.details}
        tables.append(table | ({"unknown": unknown} if unknown else {}))
    return tables


@router.post("/predict/file", response_model=PredictResponse, response_model_exclude_unset=True)
async def predict_file(
    call: CurrentCall,
    file: Annotated[UploadFile, File(description="a recording or a picture")],
    model: Annotated[str | None, Form(max_length=200)] = None,
    beam: Annotated[int | None, Form(ge=1, le=1_000)] = None,
    n_best: Annotated[int, Form(ge=1, le=1_000)] = 1,
) -> Any:
    """The transcript, caption or label of a recording or picture."""
    served = file_model(call.state, model)
    if not served.engine.searches and (beam is not None or n_best > 1):
        raise ConfigError(
            f'model: "{served.name}" has task = "{served.task}", which needs no search: no beam or n_best'
        )
    options = within(DecodingOptions(beam=beam, n_best=n_best), call.state.limits)
    (output,) = await call.compute(BatchWork(served.name, "files", options), [await file.read()])
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
    call = call_of(request)
    model = call.state.model(body.model)
    call.state.check_texts([text for pair in body.pairs for text in (pair.source, pair.target)])
    model.check_scores()
    if model.engine.continues:
        pairs = [("", pair.target) for pair in body.pairs]
    else:
        if any(not pair.source.strip() for pair in body.pairs):
            raise ConfigError("source: found an empty one, expected text")
        pairs = [(tagged(pair.source, body.tag, model), pair.target) for pair in body.pairs]
    outputs = await call.compute(BatchWork(model.name, "score"), pairs)
    return {"model": model.name, "scores": [output.as_table() for output in outputs]}


# --- what happens inside a model for one input: the numbers behind the pages of `dragoman inspect`

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
    options = InspectOptions(body.output, beam=body.beam, tag=body.tag, views=tuple(body.views))

    def look() -> bytes:
        from dragoman.inspect.views import VIEWS  # they import torch, which must not hold up other requests

        kinds = [kind for kind, view in VIEWS.items() if not view.on_request]
        if unknown := [name for name in body.views if name not in kinds]:
            raise ConfigError(f"views: found {unknown[0]!r}, expected some of {', '.join(kinds)}")
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
