"""The parts of a stream, put together, are the plain answer: for any prompt, stop texts, seed and tokenizer."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.base import config as settings
from dragoman.serving.config import ModelConfig, ServeConfig
from dragoman.serving.streaming import TextStream, cut
from tests.conftest import quiet_machine
from tests.runs.tasks import test_language_model as language_models
from tests.serving.conftest import Live, serving
from tests.serving.tiny_runs import quick

TOKENIZERS: dict[str, dict[str, Any]] = {
    "characters": {"kind": "characters"},
    "bytes": {"kind": "bytes"},
    "words": {"kind": "words", "split": "punctuation"},
    "subwords": {"kind": "subwords", "vocab_size": 300},
}


def text_with_marks() -> str:
    """Lines with punctuation, accents and characters of several bytes."""
    plain = language_models.some_text(200, 1).replace("anna", "Änna").replace("sleeps", "schläft, „so“ 😀.")
    return plain.replace("runs and runs", "runs (and runs)!")


@pytest.fixture(scope="module")
def writers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A server with a language model for every kind of tokenizer."""
    place = tmp_path_factory.mktemp("writers")
    (place / "text.txt").write_text(text_with_marks(), encoding="utf-8")
    models = []
    with quiet_machine(place / "cache"):
        for name, tokenizer in TOKENIZERS.items():
            table = settings.merge(language_models.table("lstm", place), {"tokenizer": {"source": tokenizer}})
            models.append(ModelConfig(str(quick(table, place / name)), name=name))
    with serving(ServeConfig(models=tuple(models), threads=1, device="cpu"), place / "spool") as live:
        yield live


def streamed(live: Live, path: str, body: dict[str, Any]) -> tuple[str, str]:
    """The text of all parts of a stream, and the reason of its end."""
    answer = live.client.post(path, json=body | {"stream": True})
    assert answer.status_code == 200, answer.text
    lines = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    choices = [json.loads(line)["choices"][0] for line in lines[:-1]]
    parts = [choice["text"] if "text" in choice else choice["delta"].get("content", "") for choice in choices]
    return "".join(parts), choices[-1]["finish_reason"]


@pytest.mark.parametrize("name", TOKENIZERS)
def test_streams_are_plain_answers(writers: Live, name: str) -> None:
    draw = random.Random(name)
    stops_seen = 0
    for number in range(20):
        prompt = draw.choice(
            ["Änna", "the cat of ", "a dog  ", "", "otto\n", "zzz 7", "so“ ", "the cat of bob sleeps\n\n"]
        )
        body: dict[str, Any] = {"model": name, "prompt": prompt, "max_tokens": draw.randint(1, 30), "seed": number}
        body["temperature"] = draw.choice([0, 0.7, 1.5, 2.0])
        free = writers.post("/v1/completions", body)["choices"][0]["text"]
        places = [draw.randrange(len(free) + 1) for _ in range(draw.randint(0, 4))]
        body["stop"] = [stop for place in places if (stop := free[place : place + draw.randint(1, 4)])]
        plain = writers.post("/v1/completions", body)["choices"][0]
        stops_seen += plain["finish_reason"] == "stop"
        assert not any(stop in plain["text"] for stop in body["stop"])
        assert free.startswith(plain["text"])
        assert streamed(writers, "/v1/completions", body) == (plain["text"], plain["finish_reason"]), body
        chat = {key: value for key, value in body.items() if key != "prompt"}
        chat["messages"] = [{"role": "user", "content": prompt}]
        if prompt.strip():
            whole = writers.post("/v1/chat/completions", chat)["choices"][0]
            assert whole["message"]["content"] == plain["text"]
            assert streamed(writers, "/v1/chat/completions", chat) == (plain["text"], plain["finish_reason"])
    assert stops_seen > 2


@given(st.text("ab\ufffdc", max_size=30), st.lists(st.text("abc", min_size=1, max_size=4), max_size=4), st.randoms())
def test_parts_never_go_beyond_the_answer(text: str, stops: list[str], draw: random.Random) -> None:
    """However a text grows, what was sent is a beginning of the text cut at the first stop text."""
    stream = TextStream(stops)
    sent, end = "", 0
    while end < len(text) and not stream.stopped:
        end = min(len(text), end + draw.randint(1, 3))
        sent += stream.add(text[:end])
        assert cut(text, stops)[0].startswith(sent)
    if not stream.stopped:
        sent += stream.finish(text)
    assert (sent, stream.stopped) == cut(text, stops)


def test_a_stop_text_that_is_completed_first_counts() -> None:
    assert cut("xabcd", ["abcd", "bc"]) == ("xa", True)
    assert cut("xabcd", ["abc", "bc"]) == ("x", True)
    assert cut("xabcd", []) == ("xabcd", False)


def test_mistakes_before_the_first_token_have_their_status(writers: Live) -> None:
    body = {"model": "bytes", "prompt": "a", "max_tokens": 5000, "stream": True}
    assert writers.client.post("/v1/completions", json=body).status_code == 400
