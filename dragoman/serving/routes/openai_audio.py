"""OpenAI's transcriptions of recordings, as text, JSON or subtitles."""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from fastapi.responses import PlainTextResponse
from pydantic import BeforeValidator, Field

from dragoman.base import ConfigError
from dragoman.data import UNKNOWN, language_name, same_language
from dragoman.data.media import open_audio
from dragoman.decoding import DecodingOptions, Sampling
from dragoman.inference import Prediction
from dragoman.serving.models import BatchWork
from dragoman.serving.request_fields import Fields, ForeignRequest, listed, unsupported
from dragoman.serving.routes.predict import file_model
from dragoman.serving.schemas import ModelName
from dragoman.serving.state import CurrentCall, ServerState
from dragoman.serving.streaming import event_stream, sse

router = APIRouter(prefix="/v1/audio", tags=["OpenAI"])


class TranscriptionRequest(ForeignRequest):
    """A recording to transcribe."""

    unknown_field = "{name}: this server does not support it. {hint}"
    file: tuple[str, bytes] = Field(json_schema_extra={"type": "string", "format": "binary"})
    model: ModelName = None
    response_format: Literal["json", "text", "srt", "vtt", "verbose_json"] = "json"
    language: Annotated[str, Field(max_length=35)] | None = Field(None, description="must be the language of the run")
    temperature: Annotated[float, Field(ge=0, le=1)] = Field(0.0, description="0: beam search; above: a sample")
    stream: bool = False
    prompt: Any = unsupported("a run takes no instructions", "")
    granularities: Annotated[list[Literal["segment"]], BeforeValidator(listed)] = Field(
        [], alias="timestamp_granularities[]", description="words have no times"
    )

    @classmethod
    def describe(cls, name: str, error: Any, fields: Fields) -> str:
        if name == "file":
            return f"{name}: expected an uploaded recording (multipart/form-data)"
        return super().describe(name, error, fields)


@router.post("/transcriptions", openapi_extra=TranscriptionRequest.body("multipart/form-data"))
async def transcriptions(call: CurrentCall, request: Request) -> Any:
    """The transcript of a recording."""
    body = await TranscriptionRequest.read(request)
    model = file_model(call.state, body.model, "transcribe")
    language = model.targets[0]
    if body.language and language != UNKNOWN and not same_language(body.language, language):
        raise ConfigError(f'language: found {body.language}, expected {language}, the language of "{model.name}"')
    if body.stream and body.response_format not in ("json", "text"):
        raise ConfigError(f"stream: found response_format = {body.response_format} with it, expected json or text")
    if body.granularities and body.response_format != "verbose_json":
        raise ConfigError("timestamp_granularities: needs response_format = verbose_json")
    method = Sampling(temperature=body.temperature) if body.temperature else None
    work = BatchWork(model.name, "files", DecodingOptions(method=method))
    (output,) = await call.compute(work, [body.file[1]])
    if body.stream:
        return stream_transcript(call.state, output.text)
    if body.response_format == "json":
        return {"text": output.text}
    if body.response_format == "text":
        return PlainTextResponse(output.text + "\n")
    seconds = duration(body.file[1])
    if body.response_format == "srt":
        return PlainTextResponse(f"1\n{clock(0, ',')} --> {clock(seconds, ',')}\n{output.text}\n\n")
    if body.response_format == "vtt":
        return PlainTextResponse(f"WEBVTT\n\n{clock(0, '.')} --> {clock(seconds, '.')}\n{output.text}\n\n")
    spoken = body.language or language
    return {
        "task": "transcribe",
        "language": language_name(spoken).lower() if spoken != UNKNOWN else UNKNOWN,
        "duration": seconds,
        "text": output.text,
        "segments": [segment(output, seconds, body.temperature)],
    }


def duration(data: bytes) -> float:
    with open_audio(data, "file") as file:
        return round(float(file.frames) / float(file.samplerate), 3)


def clock(seconds: float, mark: str) -> str:
    """A time as subtitles write it."""
    thousandths = round(1000 * seconds)
    minutes, rest = divmod(thousandths, 60_000)
    return f"{minutes // 60:02}:{minutes % 60:02}:{rest // 1000:02}{mark}{rest % 1000:03}"


def segment(output: Prediction, seconds: float, temperature: float) -> dict[str, Any]:
    """The whole recording as one segment: a run reads it at once, and says not when each word was spoken."""
    text = output.text.encode("utf-8", "replace")
    return {
        "id": 0,
        "seek": 0,
        "start": 0.0,
        "end": seconds,
        "text": output.text,
        "temperature": temperature,
        "avg_logprob": sum(output.token_scores) / max(1, len(output.token_scores)),
        "compression_ratio": len(text) / len(zlib.compress(text)),
    }


def stream_transcript(state: ServerState, text: str) -> Any:
    """Events with the transcript, which is there as a whole: a beam search may change its first word at the end."""

    async def events() -> AsyncIterator[str]:
        if text:
            yield sse({"type": "transcript.text.delta", "delta": text})
        yield sse({"type": "transcript.text.done", "text": text})

    return event_stream(state, events())
