"""The server's own API over HTTP: every task answers as `predict` does, whoever else asks at the same time."""

from __future__ import annotations

import json
import re
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import dragoman
from dragoman.inference import checker
from dragoman.inference.load import load_run
from tests.conftest import words
from tests.runs.tasks import test_labels_end_to_end as labels
from tests.serving.conftest import Live


def test_neighbours_change_no_answer(live: Live, runs: dict[str, Path]) -> None:
    """Many requests at once with different options: each has the answer of `predict` alone."""
    texts = words(40, seed=8)
    asked: list[dict[str, Any]] = []
    for number, text in enumerate(texts):
        body: dict[str, Any] = {"input": [text, texts[number - 1]]}
        body |= [{}, {"beam": 2}, {"n_best": 3}, {"forbid": ["A"]}][number % 4]
        if number % 8 == 7:
            body = {"input": text, "method": {"kind": "sampling", "seed": number}}
        asked.append(body)
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda body: live.post("/v1/predict", body), asked))
    run = dragoman.load(runs["ab-cd"], device="cpu")
    for body, answer in zip(asked, answers, strict=True):
        inputs = body["input"] if isinstance(body["input"], list) else [body["input"]]
        options = {key: value for key, value in body.items() if key not in ("input", "method")}
        if "method" in body:
            from dragoman.decoding.sampling import Sampling

            options["method"] = Sampling(seed=body["method"]["seed"])
        for output, expected in zip(answer["outputs"], run.predict(inputs, **options), strict=True):
            assert output["text"] == expected.text
            assert output["score"] == pytest.approx(expected.score, abs=1e-4)
            found = [one["text"] for one in output.get("alternatives", [])]
            assert found == [one.text for one in expected.alternatives]


@pytest.mark.parametrize("name", ["classify", "regress", "tag"])
def test_labels(live: Live, runs: dict[str, Path], name: str) -> None:
    inputs = labels.INPUTS[name]
    answer = live.post("/v1/predict", {"model": name, "input": inputs})
    expected = list(dragoman.load(runs[name], device="cpu").stream(inputs, on_unknown=lambda number, surfaces: None))
    assert [one["text"] for one in answer["outputs"]] == [one.text for one in expected]
    assert live.client.post("/v1/predict", json={"model": name, "input": "a", "beam": 2}).status_code == 400


def test_masks_and_prompts(live: Live, runs: dict[str, Path]) -> None:
    answer = live.post("/v1/predict", {"model": "mask", "input": "the [MASK] sleeps"})
    assert (
        answer["outputs"][0]["text"] == dragoman.load(runs["mask"], device="cpu").predict(["the [MASK] sleeps"])[0].text
    )
    answer = live.post("/v1/predict", {"model": "characters", "input": "anna", "max_length": 5})
    ((expected,),) = dragoman.load(runs["characters"], device="cpu").complete(["anna"], max_length=5)
    assert answer["outputs"][0]["text"] == expected.text


@pytest.mark.parametrize(("name", "archive"), [("speech", "sounds.tar.gz"), ("captions", "pictures.tar")])
def test_uploads(live: Live, runs: dict[str, Path], name: str, archive: str, tmp_path: Path) -> None:
    run = dragoman.load(runs[name], device="cpu")
    with tarfile.open(runs[name].parents[1] / archive) as tar:
        member = tar.getmembers()[0]
        file = tar.extractfile(member)
        assert file is not None
        data = file.read()
    path = tmp_path / Path(member.name).name
    path.write_bytes(data)
    response = live.client.post("/v1/predict/file", files={"file": (path.name, data)}, data={"model": name})
    assert response.json()["outputs"][0]["text"] == run.predict([str(path)])[0].text
    broken = live.client.post("/v1/predict/file", files={"file": ("a.wav", b"RIFF....")}, data={"model": name})
    assert broken.status_code == 400
    # A path in a request is a text like any other: nothing is read.
    assert "reads files" in live.client.post("/v1/predict", json={"model": name, "input": str(path)}).json()["error"]


def test_checks_name_what_is_doubtful(live: Live) -> None:
    """Of a text that is split, the findings are those of its sentences."""
    source = "ab 12345. cd 67890."
    (whole,) = live.post("/v1/predict", {"input": source, "checks": True})["outputs"]
    facts = checker("", "")(source, whole["text"])
    assert whole["findings"] == [finding.as_table() for finding in facts]
    (split,) = live.post("/v1/predict", {"input": source, "checks": True, "split": True})["outputs"]
    assert split["findings"] == [finding for part in split["sentences"] for finding in part["findings"]]
    (plain,) = live.post("/v1/predict", {"input": source})["outputs"]
    assert "findings" not in plain
    refused = live.client.post("/v1/predict", json={"input": source, "checks": True, "stream": True})
    assert (refused.status_code, "checks" in refused.json()["error"]) == (400, True)


def test_long_texts_are_split_and_joined(live: Live) -> None:
    one, two = words(2, seed=3)
    texts = [f"  {one} \n{two}\n\n{one}  ", "", " \n", one]
    answer = live.post("/v1/predict", {"input": texts, "split": True, "n_best": 2})
    single = [live.post("/v1/predict", {"input": text})["outputs"][0]["text"] for text in (one, two, one)]
    found = [output["text"] for output in answer["outputs"]]
    assert found == [f"  {single[0]} \n{single[1]}\n\n{single[2]}  ", "", " \n", single[2]]


def test_markup_survives(live: Live) -> None:
    text = "<p>abc <b>de <i>fg</i></b> &amp; <a href='x'>hij</a></p><script>if (a < b) {}</script><!-- c -->"
    found = live.post("/v1/predict", {"input": text, "format": "html"})["outputs"][0]["text"]
    for tag in ("<p>", "</p>", "<b>", "</b>", "<i>", "</i>", "<a href='x'>", "</a>", "<script>if (a < b) {}</script>"):
        assert found.count(tag) == 1, (tag, found)
    assert found.endswith("<!-- c -->")
    assert found.index("<b>") < found.index("<i>") < found.index("</i>") < found.index("</b>")


def test_alignment_and_scores(live: Live, runs: dict[str, Path]) -> None:
    (output,) = live.post("/v1/predict", {"input": "abc def", "alignment": True})["outputs"]
    assert output["source_words"] == list("abcdef")  # a run of single words is aligned by letters
    assert all(0 <= source < 6 for source, _ in output["alignment"])
    assert "".join(output["target_words"]) == output["text"].replace(" ", "")
    assert len(output["word_confidences"]) == len(output["target_words"])
    assert output["unknown"] == [" "]
    plain = live.post("/v1/predict", {"input": "abc"})
    assert "unknown" not in plain["outputs"][0]
    assert "warnings" not in plain
    for more in ({}, {"split": True}, {"format": "html"}):
        (warning,) = live.post("/v1/predict", {"input": ["abc", "é", "é"], **more})["warnings"]
        assert warning.startswith(
            "2 inputs have characters or words that training did not have: 'é' (first in input 2)"
        )
    (warning,) = live.post("/v1/predict", {"model": "characters", "input": "a Ж"})["warnings"]
    assert "'Ж'" in warning
    (whole,) = live.post("/v1/predict", {"input": "ab é. ab", "split": True})["outputs"]
    assert "é" in whole["unknown"]
    (labelled,) = live.post("/v1/predict", {"model": "classify", "input": "film xyzzy"})["outputs"]
    assert "xyzzy" in labelled["unknown"]
    scored = live.post("/v1/score", {"pairs": [{"source": "abc def", "target": output["text"]}]})["scores"][0]
    run = dragoman.load(runs["ab-cd"], device="cpu")
    if run.target_tokenizer.encode(output["text"]) == run.target_tokenizer.encode(output["text"].strip()):
        assert scored["score"] == pytest.approx(output["score"], abs=1e-3)
    alone = live.post("/v1/score", {"model": "characters", "pairs": [{"target": "a dog runs"}]})["scores"][0]
    rated = dragoman.load(runs["characters"], device="cpu").rate(["a dog runs"])[0]
    assert alone["score"] == pytest.approx(rated, abs=1e-4)


def test_the_beam_is_as_wide_as_the_outputs_asked_for(live: Live) -> None:
    wide, *others = (
        live.post("/v1/predict", {"input": "abcde", "n_best": 7, **beam})["outputs"]
        for beam in ({"beam": 7}, {"beam": 2}, {})
    )
    assert others == [wide, wide]
    assert len(wide[0]["alternatives"]) == 6


def events(text: str) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]


@pytest.mark.parametrize("method", [None, {"kind": "sampling", "seed": 4, "temperature": 1.5}])
def test_streams_say_what_a_whole_answer_says(live: Live, method: dict[str, Any] | None) -> None:
    body = {"input": "abcde", **({"method": method} if method else {})}
    whole = live.post("/v1/predict", body | ({} if method else {"beam": 1}))["outputs"][0]
    response = live.client.post("/v1/predict", json=body | {"stream": True})
    assert response.headers["content-type"].startswith("text/event-stream")
    *tokens, last = events(response.text)
    assert last["text"] == whole["text"]
    assert "".join(token["delta"] for token in tokens) == whole["text"]
    assert sum(token["score"] for token in tokens) == pytest.approx(sum(whole["token_scores"]), abs=1e-3)


@pytest.mark.parametrize(
    ("body", "status", "word"),
    [
        ({"input": "a", "beam": 99}, 400, "beam"),
        ({"input": "a", "beam": 2, "n_best": 99}, 400, "n_best"),
        ({"input": "a", "max_length": 5000}, 400, "max_length"),
        ({"input": ["a"] * 1001}, 400, "1,001 texts"),
        ({"input": "a" * 20_001}, 400, "20,001 characters"),
        ({"input": "a", "model": "ab-cf"}, 404, "Did you mean 'ab-cd'"),
        ({"input": "a", "unknown": 1}, 422, "unknown"),
        ({"input": 3}, 422, "input"),
        ({"input": "a", "pattern": "("}, 400, "pattern"),
        ({"input": "a", "stream": True, "beam": 3}, 400, "stream"),
        ({"input": ["a", "b"], "stream": True}, 400, "stream"),
        ({"input": "a", "tag": "de"}, 400, "tag"),
        ({"input": "a", "prefix": "Q", "forbid": ["Q"]}, 400, "constraints"),
    ],
)
def test_mistakes_are_told(live: Live, body: dict[str, Any], status: int, word: str) -> None:
    response = live.client.post("/v1/predict", json=body)
    assert (response.status_code, word in response.json()["error"]) == (status, True), response.text


def test_one_bad_input_spoils_no_other(live: Live) -> None:
    """Requests that share a batch: one has constraints that nothing satisfies."""
    bodies = [{"input": word, "require": [word.upper()]} for word in words(6, seed=2)]
    bodies.insert(3, {"input": "abc", "require": ["ABC"], "forbid": ["A"]})
    with ThreadPoolExecutor(8) as pool:
        codes = list(pool.map(lambda body: live.client.post("/v1/predict", json=body).status_code, bodies))
    assert codes == [200, 200, 200, 400, 200, 200, 200]


def test_operation(live: Live) -> None:
    assert live.client.get("/health").json()["status"] == "ok"
    assert live.client.get("/ready").status_code == 200
    models = {model["id"]: model for model in live.client.get("/v1/models").json()["data"]}
    assert models["ab-cd"]["task"] == "translate"
    assert models["captions"]["input"] == "picture"
    live.post("/v1/predict", {"input": "abc"})
    text = live.client.get("/metrics").text
    assert 'path="/v1/predict",status="200"' in text
    assert "dragoman_batch_size_count" in text
    schema = live.client.get("/openapi.json").json()
    assert {"/v1/predict", "/translate", "/v1/completions"} <= schema["paths"].keys()


def test_a_search_goes_on_from_given_tokens(live: Live, runs: dict[str, Path]) -> None:
    predictor = load_run(runs["ab-cd"], "cpu")
    tokens = predictor.target_tokenizer.encode("BA")
    found = live.post("/v1/inspect/continue", {"input": "abc", "tokens": tokens})
    assert found["text"].startswith("BA")
    (scored,) = live.post("/v1/score", {"pairs": [{"source": "abc", "target": found["text"]}]})["scores"]
    assert found["log_probability"] == pytest.approx(scored["log_probability"], abs=1e-4)
    for wrong in ({"tokens": [10**6]}, {"tokens": [4] * 1_000, "input": ""}, {"tokens": [4], "model": "classify"}):
        assert live.client.post("/v1/inspect/continue", json={"input": "abc"} | wrong).status_code == 400


def test_every_reference_of_the_description_leads_somewhere(live: Live) -> None:
    schema = live.client.get("/openapi.json")
    references = set(re.findall(r'"\$ref":"#/([^"]+)"', schema.text))
    assert references
    for reference in references:
        table = schema.json()
        for part in reference.split("/"):
            table = table[part]
