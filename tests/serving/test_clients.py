"""The packages that people use, against a live server: libretranslatepy, deep-translator, openai, deepl."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest
from deep_translator import LibreTranslator
from deepl import DeepLClient, DeepLException, GlossaryNotFoundException
from libretranslatepy import LibreTranslateAPI
from openai import BadRequestError, OpenAI

import dragoman
from tests.conftest import words
from tests.serving.conftest import Live


@pytest.fixture(scope="module")
def expected(runs: dict[str, Path]) -> dict[str, str]:
    texts = words(5, seed=12)
    return dict(zip(texts, map(str, dragoman.load(runs["ab-cd"], device="cpu").predict(texts)), strict=True))


def test_libretranslatepy(live: Live, expected: dict[str, str]) -> None:
    api = LibreTranslateAPI(live.url)
    for text, translation in expected.items():
        assert api.translate(text, "ab", "cd") == translation
    assert api.languages() == [
        {"code": "ab", "name": "ab", "targets": ["cd"]},
        {"code": "cd", "name": "cd", "targets": []},
    ]
    assert api.detect("abc")[0].keys() == {"language", "confidence"}


def test_deep_translator(live: Live, expected: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    # Its list of languages is fixed, so ours borrow two of its codes.
    model = live.state.models["ab-cd"]
    monkeypatch.setattr(model, "source", "de")
    monkeypatch.setattr(model, "targets", ("en",))
    translator = LibreTranslator(source="German", target="English", api_key="any", custom_url=f"{live.url}/")
    assert translator.translate_batch(list(expected)) == list(expected.values())


def test_openai_completions(live: Live, runs: dict[str, Path]) -> None:
    client = OpenAI(base_url=f"{live.url}/v1", api_key="any", max_retries=0)
    assert "characters" in [model.id for model in client.models.list()]
    answer = client.completions.create(model="characters", prompt="anna", max_tokens=6, temperature=0)
    ((whole,),) = dragoman.load(runs["characters"], device="cpu").complete(["anna"], max_length=6)
    assert "anna" + answer.choices[0].text == whole.text
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 6
    parts = client.completions.create(model="characters", prompt="anna", max_tokens=6, temperature=0, stream=True)
    assert "".join(part.choices[0].text for part in parts) == answer.choices[0].text
    several = client.completions.create(model="characters", prompt=["a", "the"], max_tokens=3, n=2, seed=5)
    assert [choice.index for choice in several.choices] == [0, 1, 2, 3]
    again = client.completions.create(model="characters", prompt=["a", "the"], max_tokens=3, n=2, seed=5)
    assert [one.text for one in several.choices] == [one.text for one in again.choices]
    with pytest.raises(BadRequestError, match="expected a language model"):
        client.completions.create(model="classify", prompt="a")


def test_openai_transcriptions(live: Live, runs: dict[str, Path], tmp_path: Path) -> None:
    with tarfile.open(runs["speech"].parents[1] / "sounds.tar.gz") as tar:
        file = tar.extractfile(tar.getmembers()[1])
        assert file is not None
        data = file.read()
    path = tmp_path / "a.wav"
    path.write_bytes(data)
    client = OpenAI(base_url=f"{live.url}/v1", api_key="any", max_retries=0)
    answer = client.audio.transcriptions.create(model="speech", file=("a.wav", io.BytesIO(data)))
    assert answer.text == dragoman.load(runs["speech"], device="cpu").predict([str(path)])[0].text


def test_deepl(live: Live, expected: dict[str, str]) -> None:
    client = DeepLClient("any", server_url=live.url)
    texts = list(expected)
    found = client.translate_text(texts, target_lang="CD")
    assert isinstance(found, list)
    assert [one.text for one in found] == list(expected.values())
    assert found[0].detected_source_lang == "AB"
    glossary = client.create_glossary("mine", "AB", "CD", {"abc": "HIJ"})
    assert client.get_glossary_entries(glossary) == {"abc": "HIJ"}
    assert [one.glossary_id for one in client.list_glossaries()] == [glossary.glossary_id]
    single = client.translate_text(
        "<b>abc</b>", source_lang="AB", target_lang="CD", glossary=glossary, tag_handling="xml"
    )
    assert "HIJ" in single.text  # type: ignore[union-attr]
    assert "<b>" in single.text  # type: ignore[union-attr]
    assert [one.code for one in client.get_target_languages()] == ["CD"]
    assert not client.get_usage().any_limit_reached
    client.delete_glossary(glossary)
    with pytest.raises(GlossaryNotFoundException):
        client.get_glossary(glossary.glossary_id)
    with pytest.raises(DeepLException, match="ab → cd"):
        client.translate_text("abc", source_lang="AB", target_lang="XX")
