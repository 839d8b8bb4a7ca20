"""OpenAI's completions and models. Chat and transcriptions have files of their own."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

from fastapi import APIRouter, Request
from pydantic import BeforeValidator, Field, model_validator

from dragoman.base import ConfigError
from dragoman.data.tokenizers import UNK
from dragoman.decoding import Sampling
from dragoman.inference import Completed, Completer, CompletionOptions
from dragoman.serving.models import BatchWork, ServedModel
from dragoman.serving.request_fields import ForeignRequest, ignored, unsupported
from dragoman.serving.routes.operations import model_table
from dragoman.serving.schemas import ModelName, Strict, Text, example
from dragoman.serving.state import CurrentCall, ServerCall, ServerState, call_of
from dragoman.serving.streaming import TextStream, complete_tokens, cut, event_stream, sse, token_events

router = APIRouter(prefix="/v1", tags=["OpenAI"])

Part = tuple[str, str | None, Mapping[str, int]]  # text, reason of the end, numbers of tokens
Parts = AsyncGenerator[Part, None]
Choice = Callable[[str, str | None, bool], dict[str, Any]]  # text, reason, whether it is the first → table of a part
LACKING = "this server does not have it"
SAYS_WHO = "it says who asks and why"
Stops = Annotated[
    list[Annotated[str, Field(max_length=1_000)]],
    BeforeValidator(lambda value: [] if value is None else [value] if isinstance(value, str) else value),
    Field(max_length=4),
]


class StreamSettings(Strict):
    """What a stream says beside its text."""

    include_usage: bool = False
    include_obfuscation: Literal[False] = False


class Generation(ForeignRequest):
    """What completions and chat have in common."""

    model: ModelName = None
    top_p: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] | None = None
    n: Annotated[int, Field(ge=1, le=128)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: Stops = Field([])
    stream: bool | None = None
    stream_options: StreamSettings | None = None
    best_of: Any = unsupported(LACKING, 1)
    frequency_penalty: Any = unsupported(LACKING, 0)
    presence_penalty: Any = unsupported(LACKING, 0)
    logit_bias: Any = unsupported(LACKING, {})
    suffix: Any = unsupported(LACKING, "")
    store: Any = unsupported(LACKING, False)
    service_tier: Any = unsupported(LACKING, "auto", "default")
    response_format: Any = unsupported(LACKING, {"type": "text"})
    modalities: Any = unsupported(LACKING, ["text"])
    tools: Any = unsupported(LACKING, [])
    tool_choice: Any = unsupported(LACKING, "none", "auto")
    functions: Any = unsupported(LACKING, [])
    function_call: Any = unsupported(LACKING, "none", "auto")
    parallel_tool_calls: Any = ignored("there are no tools")
    audio: Any = unsupported(LACKING)
    prediction: Any = unsupported(LACKING)
    web_search_options: Any = unsupported(LACKING)
    reasoning_effort: Any = unsupported(LACKING)
    verbosity: Any = unsupported(LACKING)
    moderation: Any = unsupported(LACKING)
    user: Any = ignored(SAYS_WHO)
    metadata: Any = ignored(SAYS_WHO)
    safety_identifier: Any = ignored(SAYS_WHO)
    prompt_cache_key: Any = ignored(SAYS_WHO)
    prompt_cache_retention: Any = ignored(SAYS_WHO)
    prompt_cache_options: Any = ignored(SAYS_WHO)

    @model_validator(mode="after")
    def _check_stream(self) -> Generation:
        if self.stream_options is not None and not self.stream:
            raise ConfigError("stream_options: found without stream, expected stream = true")
        return self

    @property
    def usage_wanted(self) -> bool:
        """Whether a stream ends with the number of tokens."""
        return self.stream_options is not None and self.stream_options.include_usage


class CompletionRequest(Generation):
    """A prompt or several to continue; temperature 0 is greedy search."""

    model_config = example({"model": "shakespeare", "prompt": "ROMEO:", "max_tokens": 40, "seed": 1})
    prompt: Text | Annotated[list[Text], Field(min_length=1)] = ""
    max_tokens: Annotated[int, Field(ge=1, le=100_000)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] | None = None
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=0)] | None = Field(
        None, description="0: the log-probability of each token; those of other tokens are not given"
    )


@router.get("/models/{name}")
async def retrieve_model(call: CurrentCall, name: str) -> dict[str, Any]:
    """One model of the server."""
    return model_table(call.state.model(name))


def completion_options(state: ServerState, body: Generation, max_tokens: int, temperature: float) -> CompletionOptions:
    """How to continue the prompts."""
    samples = body.n or 1
    for name, value, most in (("max_tokens", max_tokens, state.limits.tokens), ("n", samples, state.limits.beam)):
        if value > most:
            raise ConfigError(f"{name}: found {value}, expected at most {most} on this server")
    if temperature == 0:
        if samples > 1:
            raise ConfigError(f"n: found {samples} with temperature 0, expected 1: greedy search gives one")
        return CompletionOptions(max_tokens)
    return CompletionOptions(max_tokens, samples=samples, sampling=sampling_of(body, temperature))


def sampling_of(body: Generation, temperature: float) -> Sampling:
    """How to draw tokens; without a seed every request draws others."""
    seed = secrets.randbits(62) if body.seed is None else body.seed
    return Sampling(temperature=temperature, top_p=1.0 if body.top_p is None else body.top_p, seed=seed)


@router.post("/completions")
async def completions(request: Request, body: CompletionRequest) -> Any:
    """Continue prompts with a language model: the one that the request names, or the first one."""
    call = call_of(request)
    state = call.state
    writers = [model for model in state.models if model.engine.continues]
    model = writers[0] if body.model is None and writers else state.model(body.model)
    model.completer  # noqa: B018  # raises an error for another task
    prompts = [body.prompt] if isinstance(body.prompt, str) else body.prompt
    state.check_texts(prompts)
    temperature = 1.0 if body.temperature is None else body.temperature
    options = completion_options(state, body, 16 if body.max_tokens is None else body.max_tokens, temperature)
    if body.logprobs is not None and (body.stream or body.stop):
        raise ConfigError("logprobs: found stream or stop with it, expected neither")
    head = answer_head(model, "cmpl", "text_completion")
    if body.stream:
        if len(prompts) != 1 or options.samples > 1:
            raise ConfigError("stream: needs one prompt and n = 1")

        def choice(text: str, reason: str | None, first: bool) -> dict[str, Any]:
            text = prompts[0] + text if first and body.echo else text
            return {"text": text, "index": 0, "logprobs": None, "finish_reason": reason}

        parts = completion_parts(state, model, prompts[0], body.stop, options)
        return await stream_choices(state, head, choice, parts, body.usage_wanted)
    completed, usage = await complete(call, model, prompts, body.stop, options)
    choices = [
        {
            "text": completion.prompt + completion.text if body.echo else completion.text,
            "index": index,
            "logprobs": None if body.logprobs is None else completion.logprobs,
            "finish_reason": completion.reason,
        }
        for index, completion in enumerate(completed)
    ]
    return {**head, "choices": choices, "usage": usage}


class FinishedCompletion(NamedTuple):
    """The continuation of a prompt, and why it ends."""

    prompt: str
    text: str
    reason: str
    logprobs: dict[str, Any]


async def complete(
    call: ServerCall, model: ServedModel, prompts: Sequence[str], stops: Sequence[str], options: CompletionOptions
) -> tuple[list[FinishedCompletion], dict[str, int]]:
    """The continuations of prompts up to the first stop text, and the numbers of tokens."""
    outputs: list[list[Completed]] = await call.compute(BatchWork(model.name, "complete", options), prompts)
    completions, read, written = list[FinishedCompletion](), 0, 0
    for prompt, several in zip(prompts, outputs, strict=True):
        row = model.completer.encode(prompt, "prompt", allow_unknown=True)
        continued = continuation(model.completer, prompt, row)
        read += len(row)
        for completed in several:
            text, stopped = cut(continued(completed.text), stops)
            reason = "stop" if stopped or completed.ended else "length"
            logprobs = {"tokens": completed.tokens, "token_logprobs": completed.token_scores}
            completions.append(FinishedCompletion(prompt, text, reason, logprobs))
            written += len(completed.tokens)
    return completions, usage_table(read, written)


def usage_table(read: int, written: int) -> dict[str, int]:
    """The numbers of tokens as OpenAI names them."""
    return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}


def answer_head(model: ServedModel, kind: str, name: str) -> dict[str, Any]:
    """The fields that every answer begins with."""
    return {"id": f"{kind}-{secrets.token_hex(12)}", "object": name, "created": int(time.time()), "model": model.name}


def continuation(completer: Completer, prompt: str, row: list[int]) -> Callable[[str], str]:
    """A function from a prompt (`row`: its tokens) with its continuation to the continuation alone.

    A tokenizer may drop the space at the end of a prompt and write it before the next word: then it is dropped there.
    """
    read = completer.decode(row)
    begin = len(prompt if UNK in row else read)
    dropped = prompt[-1:].isspace() and not read[-1:].isspace()

    def new_text(text: str) -> str:
        return text[begin + (dropped and text[begin : begin + 1] == " ") :]

    return new_text


async def completion_parts(
    state: ServerState, model: ServedModel, prompt: str, stops: Sequence[str], options: CompletionOptions
) -> Parts:
    """Parts of a completion as they are written; the last has the reason of its end and the numbers of tokens."""
    completer = model.completer
    row = completer.encode(prompt, "prompt", allow_unknown=True)
    continued, stream, tokens = continuation(completer, prompt, row), TextStream(stops), list[int]()
    rest = ""
    async for event in token_events(state, partial(complete_tokens, model, prompt, options)):
        if isinstance(event, dict):
            rest = stream.finish(continued(event["text"]))
            break
        tokens.append(event[0])
        if part := stream.add(continued(completer.joined(prompt, row, tokens))):
            yield part, None, {}
        if stream.stopped:
            break
    yield rest, "stop" if stream.stopped else "length", usage_table(len(row), len(tokens))


async def stream_choices(
    state: ServerState, head: dict[str, Any], choice: Choice, parts: Parts, usage_wanted: bool
) -> Any:
    """Events with the parts of one answer.

    The first part is computed before the answer begins, so that a mistake or a full queue has its status.
    """
    state.check_streams()
    first = await anext(parts)

    async def events() -> AsyncIterator[str]:
        usage = {"usage": None} if usage_wanted else {}
        yield sse({**head, "choices": [choice("", None, True)], **usage})
        part: Part | None = first
        counted: Mapping[str, int] = {}
        while part is not None:
            text, reason, counts = part
            counted = counts or counted
            if text:
                yield sse({**head, "choices": [choice(text, None, False)], **usage})
            if reason:
                yield sse({**head, "choices": [choice("", reason, False)], **usage})
            part = await anext(parts, None)
        if usage_wanted:
            yield sse({**head, "choices": [], "usage": dict(counted)})
        yield sse("[DONE]")

    return event_stream(state, events())
