"""LibreTranslate's API: its messages, languages, detection and files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import dragoman
from dragoman.documents.registry import FORMATS
from dragoman.runs.tasks.config import build
from dragoman.serving.config import ModelConfig, ServeConfig
from tests.conftest import quiet_machine, words, write_rows
from tests.documents.samples import XLIFF1
from tests.serving.conftest import Live, serving


@pytest.fixture(scope="module")
def expected(runs: dict[str, Path]) -> dict[str, str]:
    texts = words(5, seed=12)
    return dict(zip(texts, map(str, dragoman.load(runs["ab-cd"], device="cpu").predict(texts)), strict=True))


@pytest.fixture(scope="module")
def spanish(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A server that translates English into Spanish by heart."""
    from dragoman.runs import train
    from dragoman.training.display import Display

    place = tmp_path_factory.mktemp("spanish")
    write_rows(place / "pairs.tsv", [("Hello", "Hola"), ("World", "Mundo"), ("the house", "la casa")] * 3)
    tokenizers = {side: {"kind": "words"} for side in ("source", "target")}
    data = {"train": str(place / "pairs.tsv"), "valid": str(place / "pairs.tsv")}
    with quiet_machine(place / "cache"):
        config = build({"task": "translate", "data": data, "tokenizer": tokenizers, "model": {"kind": "memorise"}})
        train(config, place / "en-es", Display(quiet=True))
    models = (ModelConfig(str(place / "en-es")),)
    with serving(ServeConfig(models=models, threads=1, device="cpu"), place / "spool") as live:
        yield live


def test_forms_lists_and_detection(live: Live, expected: dict[str, str]) -> None:
    texts = [*expected, "", "  "]
    body = {"q": texts, "source": "auto", "target": "cd", "alternatives": 2}
    answer = live.post("/translate", body)
    assert answer["translatedText"] == [*expected.values(), "", "  "]
    assert len(answer["detectedLanguage"]) == len(answer["alternatives"]) == len(texts)
    form = live.client.post("/translate", data={"q": texts[0], "source": "ab", "target": "cd"})
    assert form.json() == {"translatedText": expected[texts[0]]}
    glossary = live.post("/translate", {"q": "abc", "source": "ab", "target": "cd", "glossary": {"abc": "HIJ"}})
    assert "HIJ" in glossary["translatedText"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": None}, "Invalid request: missing q parameter"),
        ({"q": ""}, "Invalid request: missing q parameter"),
        ({"source": None}, "Invalid request: missing source parameter"),
        ({"target": None}, "Invalid request: missing target parameter"),
        ({"target": "zz"}, "zz is not supported"),
        ({"target": "zz", "source": "auto"}, "zz is not supported"),
        ({"source": "zz"}, "zz is not supported"),
        ({"source": "cd", "target": "ab"}, "ab (ab) is not available as a target language from cd (cd)"),
        ({"source": "auto", "target": "ab"}, "ab (ab) is not available as a target language"),
        ({"format": "rtf"}, "rtf format is not supported"),
        ({"alternatives": 16}, "Invalid request: alternatives parameter must be <= 15"),
        ({"alternatives": "many"}, "Invalid request: alternatives parameter is not a number"),
    ],
)
def test_mistakes_have_the_messages_of_libretranslate(live: Live, change: dict[str, Any], message: str) -> None:
    fields = {"q": "abc", "source": "ab", "target": "cd"} | change
    fields = {name: value for name, value in fields.items() if value is not None}
    for answer in (live.client.post("/translate", json=fields), live.client.post("/translate", data=fields)):
        assert (answer.status_code, answer.json()) == (400, {"error": message})


def test_detect_needs_a_text(live: Live) -> None:
    answer = live.client.post("/detect")
    assert (answer.status_code, answer.json()) == (400, {"error": "Invalid request: missing q parameter"})


def test_unknown_languages_of_files(live: Live) -> None:
    for fields in ({"source": "auto", "target": "zz"}, {"source": "zz", "target": "cd"}):
        answer = live.client.post("/translate_file", files={"file": ("a.txt", b"abc")}, data=fields)
        assert (answer.status_code, answer.json()) == (400, {"error": "zz is not supported"})
    answer = live.client.post("/translate_file", data={"source": "ab", "target": "cd", "file": "abc"})
    assert (answer.status_code, answer.json()) == (400, {"error": "Invalid request: missing file parameter"})


def test_the_description_and_health_are_where_clients_look(live: Live) -> None:
    assert "/translate" in live.client.get("/spec").json()["paths"]
    assert live.client.post("/spec").status_code == 405
    assert live.client.get("/health").json() == {"status": "ok"}
    assert live.client.get("/frontend/settings").json()["supportedFilesFormat"] == list(FORMATS)


def test_a_text_in_no_language_of_the_server_is_named(spanish: Live) -> None:
    """Japanese was called English, and translated as such."""
    japanese = "こんにちは、世界。"
    assert spanish.post("/detect", {"q": japanese})[0]["language"] == "ja"
    assert spanish.post("/detect", {"q": "Ein Mann mit Hut geht über die Straße."})[0]["language"] == "de"
    refusal = (400, {"error": "ja is not supported"})
    answer = spanish.client.post("/translate", json={"q": japanese, "source": "auto", "target": "es"})
    assert (answer.status_code, answer.json()) == refusal
    page = '<html lang="{}"><p>Hello'
    for name, text in (
        ("a.txt", japanese),
        ("a.xlf", XLIFF1.replace('source-language="en"', 'source-language="ja"')),
        ("a.html", page.format("ja")),
    ):
        file, data = {"file": (name, text.encode())}, {"source": "auto", "target": "es"}
        answer = spanish.client.post("/translate_file", files=file, data=data)
        assert (answer.status_code, answer.json()) == refusal
    for label, source in (("en-GB", "auto"), ("ja", "en")):  # what a request says of a page comes before its label
        file, data = {"file": ("a.html", page.format(label).encode())}, {"source": source, "target": "es"}
        answer = spanish.client.post("/translate_file", files=file, data=data)
        assert spanish.client.get(answer.json()["translatedFileUrl"]).text == '<html lang="es"><p>Hola'


def test_a_file_in_other_languages_than_the_request_is_refused(spanish: Live) -> None:
    for name, text, found in (
        ("a.xlf", XLIFF1.replace('source-language="en"', 'source-language="ja"'), "the source language ja"),
        ("a.xlf", XLIFF1.replace('="en"', '="en" target-language="fr"'), "the target language fr"),
        ("a.po", 'msgid ""\nmsgstr "Language: fr\\n"\n\nmsgid "Hello"\nmsgstr ""\n', "the target language fr"),
    ):
        file, data = {"file": (name, text.encode())}, {"source": "en", "target": "es"}
        answer = spanish.client.post("/translate_file", files=file, data=data)
        assert (answer.status_code, found in answer.json()["error"]) == (400, True), answer.text


def test_short_texts_are_in_a_language_of_the_server(spanish: Live) -> None:
    """The statistics of bytes take "Hello" for Spanish: then the text would be left as it is."""
    for text, translation in (("Hello", "Hola"), ("World", "Mundo"), ("the house", "la casa")):
        answer = spanish.post("/translate", {"q": text, "source": "auto", "target": "es"})
        assert answer["translatedText"] == translation
        assert answer["detectedLanguage"]["language"] == "en"
        assert spanish.post("/detect", {"q": text})[0]["language"] == "en"
    assert spanish.post("/detect", {"q": "Hola"})[0]["language"] == "es"
    # A run that only looks its outputs up follows no glossary: it says so.
    body = {"q": "Hello", "source": "en", "target": "es", "glossary": {"Hello": "Mundo"}}
    refused = spanish.client.post("/translate", json=body)
    assert (refused.status_code, "searches on its own" in refused.json()["error"]) == (400, True), refused.text
    long = "¿Dónde está la biblioteca? Quisiera leer un libro sobre la historia de España."
    answer = spanish.post("/translate", {"q": long, "source": "auto", "target": "es"})
    assert answer["translatedText"] == long  # it is Spanish already
    assert answer["detectedLanguage"]["language"] == "es"
    codes = {one["code"]: one["targets"] for one in spanish.client.get("/languages").json()}
    assert codes == {"en": ["es"], "es": []}


def test_files(live: Live, expected: dict[str, str]) -> None:
    one, two = list(expected)[:2]
    srt = f"1\n00:00:01,000 --> 00:00:02,000\n{one}\n\n2\n00:00:03,000 --> 00:00:04,000\n{two}\n"
    files = {"file": ("film.srt", srt.encode())}
    answer = live.client.post("/translate_file", files=files, data={"source": "ab", "target": "cd"})
    url = answer.json()["translatedFileUrl"]
    assert url.endswith("/film_cd.srt")
    assert live.client.get(url).text == srt.replace(one, expected[one]).replace(two, expected[two])
    assert "withoutLetters" not in answer.json()
    files = {"file": ("numbers.txt", f"7,041\n{one}\n".encode())}
    answer = live.client.post("/translate_file", files=files, data={"source": "ab", "target": "cd"})
    assert answer.json()["withoutLetters"] == 1, "no model has read 7,041"
    unit = '<trans-unit id="1"><source>{}</source>{}</trans-unit>'
    units = unit.format(f"<g>{one}</g>", "") + unit.format("x", "<target>y</target>")
    xliff = f'<xliff version="1.2"><file>{units}</file></xliff>'
    auto = {"source": "auto", "target": "cd"}
    answer = live.client.post("/translate_file", files={"file": ("a.xlf", xliff.encode())}, data=auto)
    found = live.client.get(answer.json()["translatedFileUrl"]).text
    assert f"<g>{expected[one]}</g></target>" in found
    assert 'target-language="cd"' in found
    assert "<target>y</target>" in found
    bomb = '<!DOCTYPE x [<!ENTITY a "b">]>' + xliff
    other = live.client.post("/translate_file", files={"file": ("a.xlf", bomb.encode())}, data=auto)
    assert other.status_code == 400
    assert "entity" in other.json()["error"]
    assert live.client.get("/download_file/../../etc/passwd").status_code == 404
    assert live.client.get("/download_file/0123/x").status_code == 404
    other = live.client.post("/translate_file", files={"file": ("a.exe", b"MZ")}, data=auto)
    assert other.status_code == 400
    assert "file format not supported" in other.json()["error"]


def test_what_weblate_and_subtitle_edit_send(live: Live, expected: dict[str, str]) -> None:
    texts = list(expected)
    assert {"ab", "cd"} <= {language["code"] for language in live.client.get("/languages").json()}
    weblate = {"api_key": "", "q": texts, "source": "ab", "target": "cd"}
    assert live.post("/translate", weblate)["translatedText"] == list(expected.values())
    headers = {"content-type": "application/json", "accept": "application/json"}
    text = f'{{"q": "{texts[0]}", "source": "ab", "target": "cd"}}'
    answer = live.client.post("/translate", content=text.encode(), headers=headers)
    assert answer.json()["translatedText"] == expected[texts[0]]
