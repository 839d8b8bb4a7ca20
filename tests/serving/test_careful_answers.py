"""Answers that are right or refused: languages, ensembles, long texts, tokens, links, internal errors and mistakes."""

from __future__ import annotations

import json
import math
import random
import shutil
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from dragoman.runs.folder import write_members
from dragoman.serving.config import ModelConfig, ServeConfig
from dragoman.serving.models import ServedModel
from dragoman.serving.server import announce
from dragoman.serving.store import KEPT
from dragoman.training.checkpoints import read_tensors, write_tensors
from tests.conftest import call, quiet_machine
from tests.serving.conftest import Live, serving
from tests.serving.test_load import raw


def other_weights(run: Path, folder: Path) -> Path:
    """A copy of a run that computes something else."""
    shutil.copytree(run, folder)
    path = folder / "weights.safetensors"
    torch.manual_seed(3)
    tensors = {name: tensor + 0.05 * torch.randn_like(tensor) for name, tensor in read_tensors(path).items()}
    write_tensors(path, tensors)
    return folder


def fitted(folder: Path, preset: str, lines: list[str], *settings: str) -> Path:
    folder.mkdir(parents=True)
    (folder / "pairs.tsv").write_text("".join(lines), encoding="utf-8")
    told = call("train", folder / "pairs.tsv", f"preset={preset}", *settings, "--run", folder / "run")
    assert told.code == 0, told.err
    return folder / "run"


@pytest.fixture(scope="module")
def mixed(runs: dict[str, Path], config: ServeConfig, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A run with languages, the same without, its ensemble with another, and models without a neural network."""
    place = tmp_path_factory.mktemp("mixed")
    first = runs["ab-cd"]
    both = Path(shutil.copytree(first, place / "both"))
    second = other_weights(first, place / "second")
    shutil.copytree(second, both / "trials" / "b")
    write_members(both, ["trials/b"])
    draw = random.Random(5)
    words = [" ".join(draw.choices(["the", "dog", "cat", "sees"], k=draw.randint(2, 5))) for _ in range(60)]
    sounds = ["".join(draw.choices("abc", k=draw.randint(2, 5))) for _ in range(60)]
    with quiet_machine(place / "cache"):
        by_words = ("model.tune=0", "tokenizer.source.kind=words", "tokenizer.target.kind=words")
        phrases = fitted(place / "p", "phrase-based", [f"{one}\t{one.upper()}\n" for one in words], *by_words)
        ngrams = fitted(place / "n", "ngram-transducer", [f"{one}\t{one.upper()}\n" for one in sounds])
    named = {"ab-cd": first, "welsh": first, "both": both, "second": second, "phrases": phrases, "ngrams": ngrams}
    models = tuple(ModelConfig(str(path), name=name) for name, path in named.items())
    with serving(replace(config, models=models), place / "spool") as live:
        yield live


# --- languages


@pytest.mark.parametrize("pair", [("en", "fr"), ("ab", "fr"), ("en", "cd"), ("und", "fr"), ("en", "und")])
def test_a_run_without_languages_answers_no_pair(mixed: Live, pair: tuple[str, str]) -> None:
    source, target = pair
    answer = mixed.client.post("/translate", json={"q": "abc", "source": source, "target": target})
    assert answer.status_code == 400, answer.text
    assert "the languages of welsh" in answer.json()["error"]
    assert "languages=" in answer.json()["error"]  # the name in Python, where this server was started
    form = {"text": ["abc"], "source_lang": source.upper(), "target_lang": target.upper()}
    assert mixed.client.post("/v2/translate", json=form).status_code == 400
    file = {"file": ("a.txt", b"abc")}
    answer = mixed.client.post("/translate_file", files=file, data={"source": source, "target": target})
    assert answer.status_code == 400


def test_the_choice_of_a_model(mixed: Live) -> None:
    models = mixed.state.models
    assert models.routes("ab", "cd") == [(models["ab-cd"], "")]
    assert models.routes("en", "fr") == []
    assert models.routes("und", "und")[0] == (models["welsh"], "")  # what /v1/models and /languages call it
    assert mixed.post("/v1/predict", {"model": "welsh", "input": "abc"})["model"] == "welsh"
    assert mixed.post("/translate", {"q": "abc", "source": "ab", "target": "cd"})["translatedText"]
    said: list[str] = []
    announce(models, "http://x", said.append)
    assert "languages unknown" in next(line for line in said if "welsh" in line)
    assert "ab → cd" in next(line for line in said if "ab-cd" in line)


# --- ensembles and scores


def test_the_score_of_an_ensemble_is_that_of_all_members(mixed: Live) -> None:
    pairs = [{"source": "abcde", "target": "ABCDE"}, {"source": "jih", "target": "JIA"}]
    scores = {
        name: mixed.post("/v1/score", {"model": name, "pairs": pairs})["scores"] for name in ("ab-cd", "second", "both")
    }
    for number in range(len(pairs)):
        one, other, both = (scores[name][number]["token_scores"] for name in ("ab-cd", "second", "both"))
        assert one != pytest.approx(other, abs=1e-3)
        mean = [math.log((math.exp(left) + math.exp(right)) / 2) for left, right in zip(one, other, strict=True)]
        assert both == pytest.approx(mean, abs=1e-4)
    (output,) = mixed.post("/v1/predict", {"model": "both", "input": "abcde"})["outputs"]
    (scored,) = mixed.post("/v1/score", {"model": "both", "pairs": [{"source": "abcde", "target": output["text"]}]})[
        "scores"
    ]
    assert scored["score"] == pytest.approx(output["score"], abs=1e-3)
    table = {model["id"]: model for model in mixed.client.get("/v1/models").json()["data"]}
    assert table["both"]["members"] == 2
    assert table["both"]["parameters"] == 2 * table["second"]["parameters"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/inspect/continue", {"input": "abc", "tokens": []}),
        ("/v1/predict", {"input": "abc", "alignment": True}),
    ],
)
def test_alignments_and_continuations_are_those_of_all_members(mixed: Live, path: str, body: dict[str, Any]) -> None:
    tables = [mixed.post(path, body | {"model": name}) | {"model": ""} for name in ("both", "second", "ab-cd")]
    assert tables[0] not in tables[1:]


@pytest.mark.parametrize(("path", "body"), [("/v1/inspect", {"input": "abc"})])
def test_what_one_model_shows_is_refused_for_an_ensemble(mixed: Live, path: str, body: dict[str, Any]) -> None:
    answer = mixed.client.post(path, json=body | {"model": "both"})
    assert (answer.status_code, "ensemble of 2 models" in answer.json()["error"]) == (400, True), answer.text
    assert mixed.client.post(path, json=body | {"model": "second"}).status_code == 200


def test_scores_of_fitted_models(mixed: Live) -> None:
    pair = {"source": "the dog", "target": "THE DOG"}
    answer = mixed.client.post("/v1/score", json={"model": "phrases", "pairs": [pair]})
    assert (answer.status_code, "no probability" in answer.json()["error"]) == (400, True), answer.text
    possible, impossible = mixed.post(
        "/v1/score",
        {"model": "ngrams", "pairs": [{"source": "ab", "target": "AB"}, {"source": "ab", "target": "CCCCCC"}]},
    )["scores"]
    assert possible["log_probability"] < 0
    assert impossible["log_probability"] is None  # not 0, the logarithm of certainty


# --- long texts


@pytest.mark.parametrize("more", [{}, {"forbid": ["Q"]}, {"beam": 1}])
@pytest.mark.parametrize(("times", "part"), [(1_100, 171), (60, 150)])  # above data.max_characters, data.max_length
def test_a_text_that_is_too_long_is_read_in_parts(live: Live, more: dict[str, Any], times: int, part: int) -> None:
    """It is cut in halves until each can be read."""
    text = "abcdefghij" * times
    short, long = live.post("/v1/predict", {"input": ["abc", text]} | more)["outputs"]
    (first,) = live.post("/v1/predict", {"input": text[:part]} | more)["outputs"]
    assert long["text"].startswith(first["text"])
    assert len(long["text"]) > 2 * len(first["text"]) > 0
    assert short == live.post("/v1/predict", {"input": "abc"} | more)["outputs"][0]
    if "beam" in more:
        events = live.client.post("/v1/predict", json={"input": text, "stream": True}).text
        deltas = [json.loads(line[6:]) for line in events.splitlines() if line.startswith("data: {")]
        assert "".join(event.get("delta", "") for event in deltas) == long["text"]


@pytest.mark.parametrize(("times", "limit"), [(1_100, "data.max_characters = 10,000"), (60, "data.max_length = 256")])
def test_a_text_that_cannot_be_read_in_parts_is_refused(live: Live, times: int, limit: str) -> None:
    for inputs in ("abcdefghij" * times, ["abc", "abcdefghij" * times]):
        answer = live.client.post("/v1/predict", json={"input": inputs, "require": ["ABC"]})
        assert (answer.status_code, f"expected at most {limit}" in answer.json()["error"]) == (400, True), answer.text


@pytest.mark.parametrize("more", [{}, {"stream": True}])
def test_a_prompt_that_is_too_long_is_refused(live: Live, more: dict[str, Any]) -> None:
    answer = live.client.post(
        "/v1/predict", json={"model": "characters", "input": "ab " * 4_000, "max_length": 2} | more
    )
    assert "found 12,000 characters, expected at most data.max_characters = 10,000" in answer.text
    assert answer.status_code == (200 if more else 400)  # a stream has begun when its prompt is read


def test_other_long_texts_are_refused(live: Live) -> None:
    text = "abcdefghij" * 60  # more than the 256 tokens of data.max_length
    for pair in ({"source": text, "target": "A"}, {"source": "a", "target": text}):
        scored = live.client.post("/v1/score", json={"pairs": [pair]})
        assert (scored.status_code, "data.max_length" in scored.json()["error"]) == (400, True), scored.text
    for model in ("classify", "tag", "mask"):
        labelled = live.client.post("/v1/predict", json={"model": model, "input": "film [MASK] " * 1_000})
        assert (labelled.status_code, "data.max_characters" in labelled.json()["error"]) == (400, True)


# --- tokens, origins and links


@pytest.fixture(scope="module")
def guarded(config: ServeConfig, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    config = replace(config, models=config.models[:1], token="schlüssel", cors=("https://example.org",), page=False)
    with serving(config, tmp_path_factory.mktemp("guarded") / "spool") as live:
        yield live


def test_a_preflight_needs_no_token(guarded: Live) -> None:
    headers = {
        "Origin": "https://example.org",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type",
    }
    answer = guarded.client.options("/v1/predict", headers=headers)
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == "https://example.org"
    assert "authorization" in answer.headers["access-control-allow-headers"]
    assert guarded.client.options("/v1/predict").status_code == 403
    assert guarded.client.options("/v1/predict", headers=headers | {"Origin": "https://evil.org"}).status_code == 400


def test_tokens_beyond_ascii(guarded: Live) -> None:
    for sent, status in (("schlüssel".encode(), 200), ("schlüssel".encode("latin-1"), 200), (b"schl\xffssel", 403)):
        answer = guarded.client.post("/v1/predict", json={"input": "a"}, headers={b"Authorization": b"Bearer " + sent})
        assert answer.status_code == status
    body = {"q": "abc", "source": "ab", "target": "cd"}
    assert guarded.client.post("/translate", json=body | {"api_key": "schlüssel"}).status_code == 200
    assert guarded.client.post("/translate", json=body | {"api_key": "schlussel"}).status_code == 403


def test_links_to_files(guarded: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """The address is the server's own, whatever the header Host says; the link itself is the key, for an hour."""

    def link(**headers: str) -> str:
        fields = {"source": "ab", "target": "cd", "api_key": "schlüssel"}
        files = {"file": ("a.txt", b"abc\n")}
        answer = guarded.client.post("/translate_file", files=files, data=fields, headers=headers)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["translatedFileUrl"])

    url = link(Host="evil.example")
    assert url.startswith(f"{guarded.url}/download_file/")
    with httpx.Client() as stranger:
        assert stranger.get(url).status_code == 200
        assert stranger.get(url.replace("/download_file/", "/download_file/0")).status_code == 404
        key = url.split("/")[-2]
        with guarded.state.store.change() as rows:
            rows.execute("UPDATE files SET changed = changed - ? WHERE id = ?", (KEPT + 9, key))
        assert stranger.get(url).status_code == 404
    monkeypatch.setattr(guarded.state, "config", replace(guarded.state.config, base_url="https://example.org/mt/"))
    assert link().startswith("https://example.org/mt/download_file/")


@pytest.mark.parametrize("address", ["example.org", "ftp://a", "https://a b", "javascript:x"])
def test_a_base_url_is_an_address(address: str) -> None:
    assert next(ServeConfig(base_url=address).problems()).startswith("base_url")


# --- internal errors


def test_an_internal_error_keeps_the_connection(
    mixed: Live, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(self: ServedModel, work: Any, inputs: Any) -> Any:
        raise KeyError("ours")

    monkeypatch.setattr(ServedModel, "run", broken)
    body = b'{"input": "abc"}'
    head = b"POST /v1/predict HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    with socket.create_connection(mixed.listening.getsockname(), timeout=20) as connection:
        for _ in range(2):
            connection.sendall(head % len(body) + body)
            answer = b""
            while b"}" not in answer:
                part = connection.recv(65536)
                assert part, "the connection was closed"
                answer += part
            assert answer.startswith(b"HTTP/1.1 500")
    message = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
    assert "KeyError" in message
    number = message.split()[2].rstrip(":")
    assert f"internal error {number}" in caplog.text


def test_overload_with_any_bytes_in_the_path(mixed: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mixed.state.batcher, "queue", 0)
    for path in (b"/v1/predict?q=\xe4\xf6", b"/v1/completions?\xff", b"/v1/pr\xe9dict"):
        data = b"POST " + path + b" HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}"
        answer = raw(mixed, data)
        assert answer.split(b" ")[1] in (b"503", b"400", b"404"), answer
    assert (
        raw(mixed, b"POST /v1/predict?\xff HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}")[
            9:12
        ]
        == b"503"
    )


# --- mistakes of a client


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        ({"content": b'{"input": "abc"}'}, 415, ["content-type: found none, expected application/json"]),
        (
            {"content": b'{"input": "abc"}', "headers": {"content-type": "application/x-www-form-urlencoded"}},
            415,
            ["'application/x-www-form-urlencoded', expected application/json", "-H 'content-type: application/json'"],
        ),
        ({"json": {"input": "abc", "beem": 3}}, 422, ["'beem'. Did you mean 'beam'?"]),
        ({"json": {"inputs": "abc"}}, 422, ["input: missing", "Did you mean 'input'?"]),
        (
            {"json": {"input": "abc", "method": {"kind": "sampling", "temprature": 1}}},
            422,
            ["method: temprature: no such setting. Did you mean 'temperature'?"],
        ),
        ({"json": {"input": "abc", "method": {"kind": "samplng"}}}, 422, ["method", "sampling"]),
        ({"json": {"input": 3}}, 422, ["input: found 3, expected a valid string or a valid list"]),
        ({"json": ["abc"]}, 422, ["body: found a list, expected"]),
        (
            {"content": b'{"input": "abc",\n "beam" 3}', "headers": {"content-type": "application/json"}},
            422,
            ["found no JSON", "line 2, column 9"],
        ),
        ({"content": b"", "headers": {"content-type": "application/json"}}, 422, ["missing", "input"]),
    ],
)
def test_mistakes_are_told_as_on_the_command_line(
    live: Live, arguments: dict[str, Any], status: int, words: list[str]
) -> None:
    answer = live.client.post("/v1/predict", **arguments)
    assert answer.status_code == status, answer.text
    for word in words:
        assert word in answer.json()["error"], answer.text


def test_paths_methods_and_files_that_do_not_exist(live: Live) -> None:
    missing = live.client.post("/v1/prediction", json={})
    assert (missing.status_code, "Did you mean /v1/predict?" in missing.json()["error"]) == (404, True), missing.text
    assert "Expected one of: " in live.client.get("/zzzzzzzz").json()["error"]
    wrong = live.client.get("/v1/predict")
    assert (wrong.status_code, "found 'GET', expected POST" in wrong.json()["error"]) == (405, True), wrong.text
    upload = live.client.post("/v1/predict/file", json={"file": "a.wav"})
    assert (upload.status_code, "expected multipart/form-data" in upload.json()["error"]) == (415, True), upload.text
    kind = live.client.post("/translate_file", files={"file": ("a.xyz", b"x")}, data={"source": "ab", "target": "cd"})
    assert (kind.status_code, ".docx" in kind.json()["error"]) == (400, True), kind.text
