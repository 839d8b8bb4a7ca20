"""OpenAI's chat: the last message of the user is translated, or continued by a language model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field

from dragoman.base import ConfigError
from dragoman.data import join_sentences
from dragoman.decoding import DecodingOptions
from dragoman.serving.formality import language_of_tag
from dragoman.serving.models import ServedModel
from dragoman.serving.routes.openai import (
    Generation,
    Parts,
    answer_head,
    complete,
    completion_options,
    completion_parts,
    sampling_of,
    stream_choices,
    usage_table,
)
from dragoman.serving.schemas import Text, example
from dragoman.serving.state import ServerCall, ServerState, call_of
from dragoman.serving.streaming import TextStream, cut
from dragoman.serving.text_translation import translator_of
from dragoman.serving.translator import Translator

router = APIRouter(prefix="/v1/chat", tags=["OpenAI"])
DEFAULT_LENGTH = 100  # tokens that a language model writes unless told


class TextPart(BaseModel):
    """A part of a message; pictures and recordings are refused."""

    type: Literal["text"]
    text: Text


class Message(BaseModel):
    """One message of a chat."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Text | list[TextPart] | None = None

    @property
    def text(self) -> str:
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content or ""


class ChatRequest(Generation):
    """A chat; all messages but the last of the user have no effect, because models here take no instructions."""

    model_config = example({"model": "de-en", "messages": [{"role": "user", "content": "Guten Morgen!"}]})
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
        model = next((model for model in state.models if model.translates or model.engine.continues), None)
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
        if len({*map(language_of_tag, model.tags)}) > 1:
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
    call = call_of(request)
    text = body.prompt
    call.state.check_texts([text])
    model, tag = chat_model(call.state, body.model)
    if body.stream and (body.n or 1) > 1:
        raise ConfigError("stream: needs n = 1")
    if model.engine.continues:
        return await continue_message(call, model, body, text)
    return await translate_message(call, model, tag, body, text)


def choice_of_part(text: str, reason: str | None, first: bool) -> dict[str, Any]:
    """A part of a streamed answer."""
    delta: dict[str, Any] = {"role": "assistant", "content": ""} if first else {}
    return {"index": 0, "delta": delta | ({"content": text} if text else {}), "logprobs": None, "finish_reason": reason}


async def continue_message(call: ServerCall, model: ServedModel, body: ChatRequest, text: str) -> Any:
    """The continuation of a message by a language model."""
    most = min(DEFAULT_LENGTH, call.state.limits.tokens) if body.most is None else body.most
    options = completion_options(call.state, body, most, 1.0 if body.temperature is None else body.temperature)
    if body.stream:
        parts = completion_parts(call.state, model, text, body.stop, options)
        return await stream_answer(call, model, body, parts)
    completed, usage = await complete(call, model, [text], body.stop, options)
    return whole_answer(model, [(completion.text, completion.reason) for completion in completed], usage)


async def stream_answer(call: ServerCall, model: ServedModel, body: ChatRequest, parts: Parts) -> Any:
    head = answer_head(model, "chatcmpl", "chat.completion.chunk")
    return await stream_choices(call.state, head, choice_of_part, parts, body.usage_wanted)


def whole_answer(model: ServedModel, answers: Sequence[tuple[str, str]], usage: dict[str, int]) -> dict[str, Any]:
    """Answers with the reasons of their ends, as OpenAI writes them."""
    choices = [
        {
            "index": index,
            "message": {"role": "assistant", "content": text, "refusal": None},
            "logprobs": None,
            "finish_reason": reason,
        }
        for index, (text, reason) in enumerate(answers)
    ]
    return {**answer_head(model, "chatcmpl", "chat.completion"), "choices": choices, "usage": usage}


async def translate_message(call: ServerCall, model: ServedModel, tag: str, body: ChatRequest, text: str) -> Any:
    """The translation of a message: the run's beam search, or samples if the request names a temperature or top_p."""
    several, most = body.n or 1, call.state.limits.beam
    if several > most:
        raise ConfigError(f"n: found {several}, expected at most {most} on this server")
    sampled = body.temperature or (body.temperature is None and body.top_p not in (None, 1.0))
    method = sampling_of(body, body.temperature or 1.0) if sampled else None
    options = DecodingOptions(method=method, tag=tag or None, n_best=several)
    translator = translator_of(call, model, options, [text], model.default_format)
    if body.stream:
        return await stream_answer(call, model, body, translation_parts(translator, body, text))
    (output,) = await translator.translate([text])
    answers = [limited(model, answer, body) for answer in [output.text, *output.alternatives][:several]]
    return whole_answer(model, answers, translation_usage(model, text, [answer for answer, _ in answers]))


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


async def translation_parts(translator: Translator, body: ChatRequest, text: str) -> Parts:
    """The translation sentence by sentence, as each is ready."""
    model, stream, written, reason = translator.model, TextStream(body.stop), "", "stop"
    if translator.form == "html":
        (output,) = await translator.html([text])
        written, reason = limited(model, output.text, body)
    else:
        for sentence in translator.sentences(text):
            texts = [output.text for output in await translator.whole([sentence.text])] if sentence.text else []
            whole = written + join_sentences([sentence], texts)
            short, reason = limited(model, whole, body)
            if short != whole:
                written = short
                break
            written = whole
            if body.most is None and (part := stream.add(written)):  # a limit may still change the end of the text
                yield part, None, {}
    yield stream.finish(written), reason, translation_usage(model, text, [stream.sent])
