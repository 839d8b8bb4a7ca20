"""Tokens as server-sent events, while a search chooses them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from starlette.responses import StreamingResponse

from dragoman.base import ConfigError, DragomanError
from dragoman.decoding import DecodingOptions, Sampling
from dragoman.decoding.constraints import ConstrainedInput
from dragoman.inference import CompletionOptions
from dragoman.serving.answers import busy_message
from dragoman.serving.batcher import Busy
from dragoman.serving.models import ServedModel, quiet_stream, without_gradients
from dragoman.serving.options import InputBuilder, completion_options, decoding_options
from dragoman.serving.schemas import PredictRequest
from dragoman.serving.state import ServerState, TooLate

if TYPE_CHECKING:
    from dragoman.decoding import OnToken


class Abandoned(Exception):  # noqa: N818
    """Nobody reads the stream any more."""


class TextStream:
    """Turns a text that grows into parts whose concatenation is the whole text, cut at the first stop text.

    A part is sent once nothing that follows can change it: not the last bytes of a character, nothing that may be the
    beginning of a stop text.
    """

    def __init__(self, stops: Sequence[str] = ()) -> None:
        self.stops = stops
        self.sent, self.stopped = "", False

    def add(self, text: str) -> str:
        """What can be sent now that the text is this."""
        text, self.stopped = cut(text.rstrip("\ufffd"), self.stops)
        return self._send(text if self.stopped else text[: len(text) - self._open(text)])

    def finish(self, text: str) -> str:
        text, self.stopped = cut(text, self.stops)
        return self._send(text)

    def _send(self, text: str) -> str:
        if not text.startswith(self.sent):  # a tokenizer that took back what it said: wait for the whole text
            return ""
        part, self.sent = text[len(self.sent) :], text
        return part

    def _open(self, text: str) -> int:
        """How many characters at the end may be the beginning of a stop text."""
        return max(
            (length for stop in self.stops for length in range(1, len(stop)) if text.endswith(stop[:length])), default=0
        )


def cut(text: str, stops: Sequence[str]) -> tuple[str, bool]:
    """The text before a stop text, and whether there is one: the one that a writer of the text completes first."""
    places = [(place + len(stop), place) for stop in stops if stop and (place := text.find(stop)) >= 0]
    return (text[: min(places)[1]], True) if places else (text, False)


def search_tokens(model: ServedModel, text: ConstrainedInput, options: DecodingOptions, on_token: OnToken) -> Any:
    """Search greedily or by sampling, report every token, and return the prediction as a table.

    The tokens of a text that is read in parts, or that may be refused, are not reported: the text comes at the end.
    """
    from dragoman.decoding import TokenStream  # it imports torch

    sampling = options.method if isinstance(options.method, Sampling) else None
    if model.predictor.reads_in_parts(text, options) or model.predictor.defaults.min_confidence is not None:
        on_token = lambda token, score: None  # noqa: E731
    streamed = replace(options, beam=None, method=TokenStream(on_token, sampling), engine="torch", batch_size=1)
    (prediction,) = model.predict(streamed, [text])
    if isinstance(prediction, DragomanError):
        raise prediction
    return prediction.as_table()


def complete_tokens(model: ServedModel, prompt: str, options: CompletionOptions, on_token: OnToken) -> Any:
    """Continue a prompt, report every token, and return the completion as a table."""
    from dragoman.decoding import observed

    ((completed,),) = model.complete(options, [prompt], quiet_stream(), lambda choose: observed(choose, on_token))
    return asdict(completed)


async def token_events(
    state: ServerState, search: Callable[[OnToken], Any]
) -> AsyncIterator[tuple[int, float] | dict[str, Any]]:
    """(token, log-probability) of every token as it is chosen, then the whole output.

    The search runs in a thread of its own. It ends early when nobody reads any more.
    """
    loop = asyncio.get_running_loop()
    events: asyncio.Queue[Any] = asyncio.Queue()
    left = False

    def on_token(token: int, score: float) -> None:
        if left:
            raise Abandoned
        loop.call_soon_threadsafe(events.put_nowait, (token, score))

    def work() -> None:
        try:
            with without_gradients():
                output: Any = search(on_token)
        except Abandoned:
            return
        except Exception as error:
            output = error
        loop.call_soon_threadsafe(events.put_nowait, {"output": output})

    state.streaming += 1
    future = loop.run_in_executor(state.streams, work)
    try:
        while True:
            event = await asyncio.wait_for(events.get(), state.limits.request_time)
            if isinstance(event, dict):
                if isinstance(event["output"], Exception):
                    raise event["output"]
                yield event["output"]
                return
            yield event
    finally:
        left = True
        await asyncio.wait([future], timeout=1.0)
        state.streaming -= 1


def sse(data: dict[str, Any] | str, event: str = "") -> str:
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
    return (f"event: {event}\n" if event else "") + f"data: {text}\n\n"


def event_stream(state: ServerState, events: AsyncIterator[str]) -> StreamingResponse:
    """A response that sends events as they come; problems after its start become an event "error"."""

    async def guarded() -> AsyncIterator[str]:
        try:
            async for event in events:
                yield event
        except DragomanError as error:
            yield sse({"error": str(error)}, "error")
        except (TimeoutError, TooLate):
            yield sse({"error": f"the output took longer than {state.limits.request_time:g} seconds"}, "error")
        except Busy as error:
            yield sse({"error": busy_message(error)}, "error")

    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    return StreamingResponse(guarded(), media_type="text/event-stream", headers=headers)


def stream_prediction(state: ServerState, model: ServedModel, body: PredictRequest, text: str) -> StreamingResponse:
    """The answer of /v1/predict with "stream": an event for every token, then the whole output."""
    options = decoding_options(body, state.limits)
    if options.n_best > 1 or (options.beam or 1) > 1 or not isinstance(options.method, Sampling | None):
        raise ConfigError("stream: needs greedy search (beam 1) or sampling, one output")
    for name in ("split", "alignment"):
        if getattr(body, name):
            raise ConfigError(f"stream: found {name} with it, expected one of them")
    if body.format == "html":
        raise ConfigError("stream: found format html with it, expected text")
    if model.engine.continues:
        decode: Callable[[list[int]], str] = model.completer.decode
        search = partial(complete_tokens, model, text, completion_options(body, state.limits))
    elif model.translates:
        build = InputBuilder(options, model)
        if build.constrained:
            raise ConfigError("stream: found constraints with it, expected one of them: they need beam search")
        source = build(text)
        decode = model.predictor.codec.target_of(source.text).decode
        search = partial(search_tokens, model, source, build.search)
    else:
        raise ConfigError(f'stream: needs a run that writes tokens; "{model.name}" has task = "{model.task}"')

    async def events() -> AsyncIterator[str]:
        stream, tokens = TextStream(), list[int]()
        async for event in token_events(state, search):
            if not isinstance(event, dict):
                tokens.append(event[0])
                yield sse({"delta": stream.add(decode(tokens)), "score": event[1]})
                continue
            if rest := stream.finish(event["text"]):
                yield sse({"delta": rest, "score": 0.0})
            yield sse(event, "done")

    state.check_streams()
    return event_stream(state, events())
