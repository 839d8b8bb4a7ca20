"""The parts of OpenAI's API that fit: completions of a language model, transcriptions of recordings."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

from fastapi import APIRouter, File, Form, Request, UploadFile
from fastapi.responses import PlainTextResponse
from pydantic import BaseModel, ConfigDict, Field

from dragoman.data.tokenizers.base import EOS
from dragoman.decoding.complete import CompletionOptions
from dragoman.decoding.options import DecodingOptions
from dragoman.decoding.sampling import Sampling
from dragoman.errors import ConfigError, DataError
from dragoman.inference.completer import Completed, Completer
from dragoman.inference.token_stream import OnToken
from dragoman.serving.models import ServedModel, Upload, Work, fault_of
from dragoman.serving.routes.predict import PROBLEMS, file_model
from dragoman.serving.schemas import Text
from dragoman.serving.state import ServerState, state_of
from dragoman.serving.streaming import TextSoFar, complete_tokens, event_stream, sse, token_events

router = APIRouter(prefix="/v1", tags=["OpenAI"], responses=PROBLEMS)


class CompletionRequest(BaseModel):
    """A prompt or several to continue; temperature 0 is greedy search."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"model": "shakespeare", "prompt": "ROMEO:", "max_tokens": 40, "seed": 1}]}
    )
    model: Annotated[str, Field(max_length=200)] | None = None
    prompt: Text | list[Text] = ""
    max_tokens: Annotated[int, Field(ge=1, le=100_000)] = 16
    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] = 1.0
    n: Annotated[int, Field(ge=1, le=128)] = 1
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: str | Annotated[list[str], Field(max_length=4)] | None = None
    stream: bool = False
    echo: bool = False
    logprobs: Annotated[int, Field(ge=0, le=5)] | None = None


def completion_model(state: ServerState, name: str | None) -> tuple[ServedModel, Completer]:
    """The language model that a request names; without a name the first one."""
    written = [model for model in state.models if isinstance(model.engine, Completer)]
    model = written[0] if name is None and written else state.model(name)
    if not isinstance(model.engine, Completer):
        raise ConfigError(f'model: "{model.name}" has task = "{model.task}", expected a language model')
    return model, model.engine


def completion_options(body: CompletionRequest, state: ServerState) -> CompletionOptions:
    """How to continue the prompts."""
    for name, value, most in (("max_tokens", body.max_tokens, state.limits.tokens), ("n", body.n, state.limits.beam)):
        if value > most:
            raise ConfigError(f"{name}: found {value}, expected at most {most} on this server")
    if body.temperature == 0:
        if body.n > 1:
            raise ConfigError(f"n: found {body.n} with temperature 0, expected 1: greedy search gives one")
        return CompletionOptions(body.max_tokens)
    seed = secrets.randbits(62) if body.seed is None else body.seed
    return CompletionOptions(
        body.max_tokens, Sampling(temperature=body.temperature, top_p=body.top_p, seed=seed), body.n
    )


@router.post("/completions")
async def completions(request: Request, body: CompletionRequest) -> Any:
    """Continue prompts with a language model."""
    state = state_of(request)
    model, completer = completion_model(state, body.model)
    prompts = [body.prompt] if isinstance(body.prompt, str) else body.prompt
    state.check_texts(prompts)
    options = completion_options(body, state)
    if body.stream:
        if len(prompts) != 1 or body.n > 1:
            raise ConfigError("stream: needs one prompt and n = 1")
        return stream_completion(state, model, completer, prompts[0], body, options)
    outputs = await state.compute(request, Work(model.name, "complete", options), prompts)
    choices: list[dict[str, Any]] = []
    for prompt, several in zip(prompts, outputs, strict=True):
        if fault := fault_of(several):
            raise DataError(fault)
        for one in several:
            choices.append(choice_table(completer, prompt, one, body, len(choices)))
    read = sum(len(completer.encode(prompt, "prompt", allow_unknown=True)) for prompt in prompts)
    written = sum(len(one.tokens) for several in outputs for one in several)
    usage = {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}
    return {**header(model), "choices": choices, "usage": usage}


def header(model: ServedModel) -> dict[str, Any]:
    """The fields that every answer begins with."""
    return {
        "id": f"cmpl-{secrets.token_hex(12)}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": model.name,
    }


def new_text(completer: Completer, prompt: str, text: str) -> str:
    """The text that follows the prompt."""
    if text.startswith(prompt):
        return text[len(prompt) :]
    return text[len(completer.decode(completer.encode(prompt, "prompt", allow_unknown=True))) :]


def cut(text: str, stop: str | list[str] | None) -> tuple[str, bool]:
    """The text before the first of some texts, and whether one was found."""
    places = [text.find(one) for one in ([stop] if isinstance(stop, str) else stop or []) if one]
    found = [place for place in places if place >= 0]
    return (text[: min(found)], True) if found else (text, False)


def choice_table(
    completer: Completer, prompt: str, one: Completed, body: CompletionRequest, index: int
) -> dict[str, Any]:
    """One completion."""
    text, stopped = cut(new_text(completer, prompt, one.text), body.stop)
    logprobs: dict[str, Any] | None = None
    if body.logprobs is not None:
        logprobs = {"tokens": one.tokens, "token_logprobs": one.token_scores, "top_logprobs": None, "text_offset": []}
    reason = "stop" if stopped or one.ended else "length"
    return {"text": prompt + text if body.echo else text, "index": index, "logprobs": logprobs, "finish_reason": reason}


def stream_completion(
    state: ServerState,
    model: ServedModel,
    completer: Completer,
    prompt: str,
    body: CompletionRequest,
    options: CompletionOptions,
) -> Any:
    """Events with the text that every token adds."""

    def search(on_token: OnToken) -> Any:
        return complete_tokens(model, prompt, options, on_token)

    row = completer.encode(prompt, "prompt", allow_unknown=True)
    begin = completer.decode(row)

    async def events() -> AsyncIterator[str]:
        head = header(model)
        so_far = TextSoFar(lambda tokens: completer.decode([*row, *tokens]))
        so_far.text = begin
        written, stopped = "", False

        def event(text: str, reason: str | None) -> str:
            return sse({**head, "choices": [{"text": text, "index": 0, "logprobs": None, "finish_reason": reason}]})

        if body.echo:
            yield event(prompt, None)
        async for one in token_events(state, search):
            if isinstance(one, dict):
                break
            delta = so_far.add(one[0]) if one[0] != EOS else "\n"
            if one[0] == EOS:
                so_far.tokens.append(EOS)
                so_far.text = completer.decode([*row, *so_far.tokens])
            before, stopped = cut(written + delta, body.stop)
            if stopped:
                yield event(before[len(written) :], None)
                break
            written += delta
            if delta:
                yield event(delta, None)
        yield event("", "stop" if stopped else "length")
        yield sse("[DONE]")

    state.check_streams()
    return event_stream(state, events())


@router.post("/audio/transcriptions")
async def transcriptions(
    request: Request,
    file: Annotated[UploadFile, File(description="a recording")],
    model: Annotated[str | None, Form(max_length=200)] = None,
    response_format: Annotated[Literal["json", "text", "verbose_json"], Form()] = "json",
    language: Annotated[str | None, Form(max_length=35)] = None,
) -> Any:
    """The transcript of a recording."""
    state = state_of(request)
    served = file_model(state, model, "transcribe")
    upload = Upload(await file.read())
    (output,) = await state.compute(request, Work(served.name, "files", DecodingOptions()), [upload])
    if fault := fault_of(output):
        raise DataError(fault)
    if response_format == "text":
        return PlainTextResponse(output.text + "\n")
    if response_format == "verbose_json":
        return {"task": "transcribe", "language": language or served.targets[0], "text": output.text, "segments": []}
    return {"text": output.text}
