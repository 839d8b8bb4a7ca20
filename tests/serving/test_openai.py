"""OpenAI's API with its own client: chat, models, errors, and transcriptions in every format."""

from __future__ import annotations

import io
import tarfile
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import AuthenticationError, BadRequestError, NotFoundError, OpenAI

import dragoman
from dragoman.serving.config import ModelConfig, ServeConfig
from tests.conftest import words
from tests.serving.conftest import Live, serving


@pytest.fixture(scope="module")
def client(live: Live) -> OpenAI:
    return OpenAI(base_url=f"{live.url}/v1", api_key="any", max_retries=0)


@pytest.fixture(scope="module")
def guarded(runs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A server with a token."""
    config = ServeConfig(models=(ModelConfig(str(runs["ab-cd"]), name="ab-cd"),), threads=1, device="cpu", token="key")
    with serving(config, tmp_path_factory.mktemp("guarded") / "spool") as live:
        yield live


def chat(client: OpenAI, text: str, **fields: Any) -> Any:
    messages: Any = [
        {"role": "system", "content": "You are a translator."},
        {"role": "user", "content": "earlier"},
        {"role": "assistant", "content": "EARLIER"},
        {"role": "user", "content": text},
    ]
    return client.chat.completions.create(**({"model": "ab-cd", "messages": messages} | fields))


def test_chat_translates_the_last_message(live: Live, client: OpenAI) -> None:
    one, two, three = words(3, seed=21)
    text = f"{one}\n{two}!\n\n{three}"
    plain = live.post("/translate", {"q": text, "source": "ab", "target": "cd"})["translatedText"]
    answer = chat(client, text)
    assert answer.choices[0].message.content == plain
    assert (answer.object, answer.choices[0].finish_reason) == ("chat.completion", "stop")
    run = live.state.models["ab-cd"].predictor
    assert answer.usage.prompt_tokens == len(run.source_tokenizer.encode(text))
    assert answer.usage.completion_tokens == len(run.target_tokenizer.encode(plain))
    parts = list(chat(client, text, stream=True, stream_options={"include_usage": True}))
    assert "".join(part.choices[0].delta.content or "" for part in parts if part.choices) == plain
    assert len([part for part in parts if part.choices and part.choices[0].delta.content]) == 3  # a part per sentence
    assert parts[-1].usage == answer.usage
    typed = [{"role": "user", "content": [{"type": "text", "text": one}, {"type": "text", "text": "."}]}]
    alone = live.post("/translate", {"q": f"{one}.", "source": "ab", "target": "cd"})["translatedText"]
    assert chat(client, "", messages=typed).choices[0].message.content == alone


def test_chat_obeys_its_fields(live: Live, client: OpenAI) -> None:
    text = words(1, seed=22)[0]
    plain = chat(client, text).choices[0].message.content
    short = chat(client, text, max_tokens=2).choices[0]
    assert (short.message.content, short.finish_reason) == (plain[:2], "length")
    cut = chat(client, text, stop=[plain[1:3]]).choices[0]
    assert (cut.message.content, cut.finish_reason) == (plain[:1], "stop")
    for fields in ({"max_tokens": 2}, {"stop": plain[1:3]}, {"max_completion_tokens": 3, "stop": plain[1:3]}):
        whole = chat(client, text, **fields).choices[0]
        parts = list(chat(client, text, stream=True, **fields))
        assert "".join(part.choices[0].delta.content or "" for part in parts) == whole.message.content
        assert parts[-1].choices[0].finish_reason == whole.finish_reason
    several = [choice.message.content for choice in chat(client, text, n=3).choices]
    outputs = live.post("/v1/predict", {"input": text, "n_best": 3})["outputs"][0]
    assert several == [plain, *(one["text"] for one in outputs["alternatives"])]
    drawn = [chat(client, text, temperature=1.8, seed=seed).choices[0].message.content for seed in (1, 1, 2, 3, 4, 5)]
    assert drawn[0] == drawn[1]
    assert len({*drawn}) > 1


def test_chat_continues_with_a_language_model(client: OpenAI, runs: dict[str, Path]) -> None:
    ((whole,),) = dragoman.load(runs["characters"], device="cpu").complete(["anna"], max_length=6)
    answer = chat(client, "anna", model="characters", max_tokens=6, temperature=0)
    assert "anna" + answer.choices[0].message.content == whole.text
    assert answer.choices[0].finish_reason == "length"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": 3}, "temperature"),
        ({"frequency_penalty": 0.5}, "frequency_penalty"),
        ({"logit_bias": {"5": 100}}, "logit_bias"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"logprobs": True}, "logprobs"),
        ({"store": True}, "store"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"n": 2, "stream": True}, "stream"),
        ({"n": 99}, "n"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "system", "content": "x"}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, None),
        ({"model": "classify"}, "model"),
        ({"model": "ab-cd:fr"}, "model"),
        ({"extra_body": {"temprature": 1}}, "temprature"),
    ],
)
def test_what_cannot_be_obeyed_is_refused(client: OpenAI, fields: dict[str, Any], param: str | None) -> None:
    with pytest.raises(BadRequestError) as error:
        chat(client, "abc", **fields)
    body: Any = error.value.body
    assert body["type"] == "invalid_request_error"
    assert param is None or body["param"] == param
    assert param is None or param in body["message"]


def test_fields_that_change_nothing_are_let_through(client: OpenAI) -> None:
    neutral: dict[str, Any] = {"frequency_penalty": 0, "tools": [], "response_format": {"type": "text"}, "store": False}
    named: dict[str, Any] = {"user": "u", "metadata": {"a": "b"}, "logprobs": False, "seed": 3}
    assert chat(client, "abc", **neutral, **named).choices[0].message.content


@pytest.mark.parametrize(
    "fields", [{"best_of": 3}, {"suffix": "x"}, {"logprobs": 3}, {"presence_penalty": 1}, {"prompt": []}, {"n": 0}]
)
def test_completions_refuse_what_they_cannot_obey(client: OpenAI, fields: dict[str, Any]) -> None:
    with pytest.raises(BadRequestError) as error:
        client.completions.create(**({"model": "characters", "prompt": "a"} | fields))
    assert next(iter(fields)) in str(error.value)


def test_models(client: OpenAI) -> None:
    assert client.models.retrieve("characters").id == "characters"
    with pytest.raises(NotFoundError, match="Did you mean"):
        client.models.retrieve("charaters")
    with pytest.raises(NotFoundError):
        chat(client, "abc", model="gpt-4")


def test_a_wrong_key_is_401(guarded: Live) -> None:
    wrong = OpenAI(base_url=f"{guarded.url}/v1", api_key="other", max_retries=0)
    for call in (
        lambda: chat(wrong, "abc"),
        lambda: wrong.completions.create(model="ab-cd", prompt="a"),
        lambda: wrong.models.list(),
        lambda: wrong.models.retrieve("ab-cd"),
        lambda: wrong.audio.transcriptions.create(model="ab-cd", file=("a.wav", b"x")),
    ):
        with pytest.raises(AuthenticationError):
            call()
    right = OpenAI(base_url=f"{guarded.url}/v1", api_key="key", max_retries=0)
    assert chat(right, "abc").choices[0].message.content
    assert guarded.client.post("/v2/translate", json={"text": "a"}).status_code == 403


@pytest.fixture(scope="module")
def recording(runs: dict[str, Path]) -> bytes:
    with tarfile.open(runs["speech"].parents[1] / "sounds.tar.gz") as tar:
        file = tar.extractfile(tar.getmembers()[1])
        assert file is not None
        return file.read()


def test_transcriptions(client: OpenAI, recording: bytes) -> None:
    with wave.open(io.BytesIO(recording)) as file:
        seconds = file.getnframes() / file.getframerate()

    def transcribe(**fields: Any) -> Any:
        return client.audio.transcriptions.create(model="speech", file=("a.wav", io.BytesIO(recording)), **fields)

    text = transcribe().text
    assert transcribe(response_format="text") == text + "\n"
    end = f"00:00:{seconds:06.3f}"
    assert transcribe(response_format="vtt") == f"WEBVTT\n\n00:00:00.000 --> {end}\n{text}\n\n"
    assert transcribe(response_format="srt") == f"1\n00:00:00,000 --> {end.replace('.', ',')}\n{text}\n\n"
    verbose = transcribe(response_format="verbose_json", timestamp_granularities=["segment"])
    assert (verbose.text, verbose.duration) == (text, pytest.approx(seconds, abs=1e-3))
    (segment,) = verbose.segments
    assert (segment.start, segment.end, segment.text) == (0.0, pytest.approx(seconds, abs=1e-3), text)
    assert segment.avg_logprob < 0
    events = list(transcribe(stream=True))
    assert "".join(event.delta for event in events if event.type == "transcript.text.delta") == text
    assert (events[-1].type, events[-1].text) == ("transcript.text.done", text)
    for wrong in (
        {"prompt": "names: Anna"},
        {"include": ["logprobs"]},
        {"response_format": "diarized_json"},
        {"response_format": "verbose_json", "timestamp_granularities": ["word"]},
        {"response_format": "srt", "stream": True},
        {"temperature": 7},
    ):
        with pytest.raises(BadRequestError):
            transcribe(**wrong)
    with pytest.raises(BadRequestError, match="recording"):
        client.audio.transcriptions.create(model="speech", file=("a.wav", b"RIFF"))
