"""OpenAI's chat: the last message of the user is translated, or continued by a language model."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field

from dragoman.data.sentences import join_sentences
from dragoman.decoding.options import DecodingOptions
from dragoman.errors import ConfigError
from dragoman.inference.completer import Completer
from dragoman.serving.formality import language_of_tag
from dragoman.serving.models import ServedModel, Work
from dragoman.serving.routes.openai import (
    Generation,
    answer_head,
    completion_options,
    completion_parts,
    completion_usage,
    continuation,
    sampling_of,
    stream_choices,
    usage_table,
)
from dragoman.serving.routes.predict import PROBLEMS
from dragoman.serving.schemas import Options, Text
from dragoman.serving.state import ServerState, state_of
from dragoman.serving.streaming import TextStream, cut
from dragoman.serving.text_translation import run_translation, translator_of

router = APIRouter(prefix="/v1/chat", tags=["OpenAI"], responses=PROBLEMS)
DEFAULT_LENGTH = 100  # tokens that a language model writes unless told


class TextPart(BaseModel):
    """A part of a message; pictures and recordings are refused."""

    model_config = ConfigDict(extra="ignore")
    type: Literal["text"]
    text: Text


class Message(BaseModel):
    """One message of a chat."""

    model_config = ConfigDict(extra="ignore")
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Text | list[TextPart] | None = None

    @property
    def text(self) -> str:
        """The text of the message."""
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content or ""


class ChatRequest(Generation):
    """A chat; all messages but the last of the user have no effect, because models here take no instructions."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"model": "de-en", "messages": [{"role": "user", "content": "Guten Morgen!"}]}]
        },
    )
    messages: Annotated[list[Message], Field(min_length=1, max_length=10_000)]
    max_tokens: Annotated[int, Field(ge=1, le=10**9)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1, le=10**9)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] | None = Field(
        None, description="translation: beam search unless above 0; language models: 1"
    )
    logprobs: Literal[False] | None = None
    top_logprobs: Literal[0] | None = None

    @property
    def prompt(self) -> str:
        """The text to answer."""
        texts = [message.text for message in self.messages if message.role == "user"]
        if not texts or not texts[-1].strip():
            raise ConfigError("messages: found no text of the user, expected a message with role = user")
        return texts[-1]

    @property
    def most(self) -> int | None:
        """The most tokens that the answer may have."""
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens


def chat_model(state: ServerState, name: str | None) -> tuple[ServedModel, str]:
    """The model that a request names, and the tag after a colon: "many:de" asks the run "many" for German."""
    tag = ""
    if name is None:
        model = next((one for one in state.models if one.translates or one.engine.continues), None)
        model = model or state.model(None)
    else:
        if ":" in name and name not in state.models.models:
            name, _, tag = name.rpartition(":")
        model = state.model(name)
    if not model.translates and not model.engine.continues:
        raise ConfigError(f'model: "{model.name}" has task = "{model.task}", expected a translation or language model')
    if tag and tag not in model.tags:
        raise ConfigError(f'model: found "{model.name}:{tag}", expected one of {names_with_tags(model)}')
    if model.tags and not tag:
        if len({language_of_tag(one) for one in model.tags}) > 1:
            raise ConfigError(
                f'model: found "{model.name}" without a language, expected one of {names_with_tags(model)}'
            )
        tag = model.tags[0]
    return model, tag


def names_with_tags(model: ServedModel) -> str:
    """How a request names a run with each of its tags."""
    return ", ".join(f"{model.name}:{tag}" for tag in model.tags) or model.name


@router.post("/completions")
async def chat(request: Request, body: ChatRequest) -> Any:
    """Translate the last message of the user, or continue it with a language model."""
    state = state_of(request)
    text = body.prompt
    state.check_texts([text])
    model, tag = chat_model(state, body.model)
    if body.stream and (body.n or 1) > 1:
        raise ConfigError("stream: needs n = 1")
    if model.engine.continues:
        return await continue_message(request, state, model, model.completer, body, text)
    return await translate_message(request, state, model, tag, body, text)


def choice_of_part(text: str, reason: str | None, first: bool) -> dict[str, Any]:
    """A part of a streamed answer."""
    delta: dict[str, Any] = {"role": "assistant", "content": ""} if first else {}
    return {"index": 0, "delta": delta | ({"content": text} if text else {}), "logprobs": None, "finish_reason": reason}


def choice_of_answer(text: str, reason: str, index: int) -> dict[str, Any]:
    """A whole answer."""
    message = {"role": "assistant", "content": text, "refusal": None}
    return {"index": index, "message": message, "logprobs": None, "finish_reason": reason}


async def continue_message(
    request: Request, state: ServerState, model: ServedModel, completer: Completer, body: ChatRequest, text: str
) -> Any:
    """The continuation of a message by a language model."""
    most = min(DEFAULT_LENGTH, state.limits.tokens) if body.most is None else body.most
    options = completion_options(state, body, most, 1.0 if body.temperature is None else body.temperature)
    if body.stream:
        head = answer_head(model, "chatcmpl", "chat.completion.chunk")
        parts = completion_parts(state, model, completer, text, body.stop, options)
        return await stream_choices(state, head, choice_of_part, parts, body.usage_wanted)
    (several,) = await state.compute(request, Work(model.name, "complete", options), [text])
    continued = continuation(completer, text)
    answers = [(*cut(continued(one.text), body.stop), one.ended) for one in several]
    choices = [
        choice_of_answer(answer, "stop" if stopped or ended else "length", index)
        for index, (answer, stopped, ended) in enumerate(answers)
    ]
    usage = completion_usage(completer, [text], [several])
    return {**answer_head(model, "chatcmpl", "chat.completion"), "choices": choices, "usage": usage}


async def translate_message(
    request: Request, state: ServerState, model: ServedModel, tag: str, body: ChatRequest, text: str
) -> Any:
    """The translation of a message: the run's beam search, or samples if the request names a temperature or top_p."""
    several = body.n or 1
    if several > state.limits.beam:
        raise ConfigError(f"n: found {several}, expected at most {state.limits.beam} on this server")
    sampled = body.temperature or (body.temperature is None and body.top_p not in (None, 1.0))
    decoding = DecodingOptions(method=sampling_of(body, body.temperature or 1.0)) if sampled else None
    options = Options(tag=tag or None, n_best=several)
    if body.stream:
        head = answer_head(model, "chatcmpl", "chat.completion.chunk")
        parts = translation_parts(request, state, model, options, decoding, body, text)
        return await stream_choices(state, head, choice_of_part, parts, body.usage_wanted)
    (found,) = await run_translation(request, state, model, options, [text], model.default_format, decoding)
    answers = [limited(model, one, body) for one in [found.text, *found.alternatives][:several]]
    choices = [choice_of_answer(answer, reason, index) for index, (answer, reason) in enumerate(answers)]
    usage = translation_usage(model, text, [answer for answer, _ in answers])
    return {**answer_head(model, "chatcmpl", "chat.completion"), "choices": choices, "usage": usage}


def limited(model: ServedModel, text: str, body: ChatRequest) -> tuple[str, str]:
    """A translation up to the first stop text and at most `max_tokens` tokens, and why it ends there."""
    tokenizer = model.predictor.target_tokenizer
    if body.most is not None and len(tokens := tokenizer.encode(text)) > body.most:
        short, stopped = cut(tokenizer.decode(tokens[: body.most]), body.stop)
        return short, "stop" if stopped else "length"
    return cut(text, body.stop)[0], "stop"


def translation_usage(model: ServedModel, text: str, answers: list[str]) -> dict[str, int]:
    """The numbers of tokens of a text and its translations."""
    predictor = model.predictor
    written = sum(len(predictor.target_tokenizer.encode(answer)) for answer in answers)
    return usage_table(len(predictor.source_tokenizer.encode(text)), written)


async def translation_parts(
    request: Request,
    state: ServerState,
    model: ServedModel,
    options: Options,
    decoding: DecodingOptions | None,
    body: ChatRequest,
    text: str,
) -> AsyncIterator[tuple[str, str | None, Mapping[str, int]]]:
    """The translation sentence by sentence, as each is ready."""
    stream, written, reason = TextStream(body.stop), "", "stop"
    if model.default_format == "html":
        (found,) = await run_translation(request, state, model, options, [text], "html", decoding)
        written, reason = limited(model, found.text, body)
    else:
        translator = translator_of(request, state, model, options, [text], "text", decoding)
        for sentence in translator.sentences(text):
            texts = [one.text for one in await translator.whole([sentence.text])] if sentence.text else []
            whole = written + join_sentences([sentence], texts)
            short, reason = limited(model, whole, body)
            if short != whole:
                written = short
                break
            written = whole
            if body.most is None and (part := stream.add(written)):  # a limit may still change the end of the text
                yield part, None, {}
    yield stream.finish(written), reason, translation_usage(model, text, [stream.sent])
