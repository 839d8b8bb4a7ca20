"""DeepL's API with its own client: texts, tags, formality, glossaries and documents."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from deepl import (
    AuthorizationException,
    DeepLClient,
    DeepLException,
    DocumentHandle,
    DocumentTranslationException,
    GlossaryNotFoundException,
)
from deepl.api_data import MultilingualGlossaryDictionaryEntries as Entries

from dragoman.documents.html import parse_blocks
from dragoman.inference.segments.markup import Block
from dragoman.runs.tasks.config import build
from dragoman.serving.config import ModelConfig, ServeConfig
from dragoman.serving.routes.deepl import TagRules, restore
from tests.conftest import quiet_machine, write_rows
from tests.serving.conftest import Live, serving

FORMAL = {
    "de": "Guten Tag", "de-formal": "Guten Tag, mein Herr", "de-informal": "Moin", "de-be-brief": "Tag",
    "tr": "Merhaba",
}  # fmt: skip


@pytest.fixture
def client(live: Live) -> DeepLClient:
    return DeepLClient("any", server_url=live.url)


@pytest.fixture(scope="module")
def formal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A server with a token, whose runs have tags for ways to write, a memory, and English on both sides."""
    from dragoman.runs import train
    from dragoman.training.display import Display

    place = tmp_path_factory.mktemp("formal")
    tokenizers = {side: {"kind": "bytes"} for side in ("source", "target")}

    def memorise(name: str, outputs: dict[str, str]) -> ModelConfig:
        """A run that knows two sources by heart, in each of its tags; "" is no tag."""
        files = []
        for tag, output in outputs.items():
            write_rows(place / f"{name}{tag}.tsv", [("Hello", output), ("World", f"{output}!")])
            files.append({"file": str(place / f"{name}{tag}.tsv")} | ({"tag": tag} if tag else {}))
        table: dict[str, Any] = {"task": "translate", "data": {"train": files, "valid": files}, "tokenizer": tokenizers}
        with quiet_machine(place / "cache"):
            train(build(table | {"model": {"kind": "memorise"}}), place / name, Display(quiet=True))
        return ModelConfig(str(place / name))

    write_rows(place / "memory.tsv", [("Hello", "Salut")])
    french = {"source": "en", "target": "fr"}
    models = (
        memorise("en-de", FORMAL),
        replace(memorise("first", {"": "Bonjour"}), **french),
        replace(memorise("second", {"": "Bonjour"}), **french, memory=str(place / "memory.tsv")),
        replace(memorise("en-en", {"en": "Good day.", "en-business": "Dear Sir"}), source="en"),
    )
    config = ServeConfig(models=models, threads=1, device="cpu", token="secret")
    with serving(config, place / "spool") as live:
        yield live


def test_formality_is_a_tag_of_the_run(formal: Live) -> None:
    client = DeepLClient("secret", server_url=formal.url)
    for formality, tag in (
        (None, "de"), ("default", "de"), ("more", "de-formal"), ("less", "de-informal"),
        ("prefer_more", "de-formal"), ("prefer_less", "de-informal"),
    ):  # fmt: skip
        assert str(client.translate_text("Hello", target_lang="DE", formality=formality)) == FORMAL[tag]
    assert str(client.translate_text("Hello", target_lang="TR", formality="prefer_more")) == FORMAL["tr"]
    with pytest.raises(DeepLException, match=r"Target language 'TR' doesn't support formality"):
        client.translate_text("Hello", target_lang="TR", formality="more")
    with pytest.raises(DeepLException, match="formality"):
        client.translate_text("Hello", target_lang="DE", formality="polite")
    languages = {one.code: one.supports_formality for one in client.get_target_languages()}
    assert (languages["DE"], languages["TR"]) == (True, False)
    tagged = {"q": "Hello", "source": "en", "target": "de-formal", "api_key": "secret"}
    assert formal.post("/translate", tagged)["translatedText"] == FORMAL["de-formal"]  # a tag is a target itself
    body = {"model": "en-de:de-formal", "messages": [{"role": "user", "content": "Hello"}]}
    key = {"authorization": "Bearer secret"}
    answer = formal.client.post("/v1/chat/completions", json=body, headers=key).json()
    assert answer["choices"][0]["message"]["content"] == FORMAL["de-formal"]
    answer = formal.client.post("/v1/chat/completions", json=body | {"model": "en-de"}, headers=key)
    assert (answer.status_code, "en-de:tr" in answer.json()["error"]["message"]) == (400, True)
    with pytest.raises(AuthorizationException):
        DeepLClient("wrong", server_url=formal.url).get_usage()


def test_instructions_and_styles_are_tags_of_the_run(formal: Live) -> None:
    client = DeepLClient("secret", server_url=formal.url)
    ask = partial(client.translate_text, "Hello", target_lang="DE")
    assert str(ask(custom_instructions=["Be brief!"])) == FORMAL["de-be-brief"]
    with pytest.raises(DeepLException, match=r"found 'Be brief' \+ 'formal', expected .*de-be-brief"):
        ask(custom_instructions=["Be brief", "formal"])
    other = client.create_style_rule("Other", "tr")
    own = client.create_style_rule("Mine", "de", custom_instructions=[{"label": "x", "prompt": "Be brief"}])
    assert str(ask(style_rule=own)) == FORMAL["de-be-brief"]
    assert str(ask(style_rule=other.style_id, target_lang="TR")) == FORMAL["tr"]  # it asks for nothing
    with pytest.raises(DeepLException, match="target_lang must match style rule language: found DE, expected tr"):
        ask(style_rule=other.style_id)
    changed = client.update_style_rule_configured_rules(own, {"style_and_tone": {"voice": "use_active"}})
    assert changed.version == 2
    with pytest.raises(DeepLException, match="found 'use_active' \\+ 'Be brief'"):
        ask(style_rule=own)
    with pytest.raises(DeepLException, match="Did you mean 'numbers'"):  # not forgotten in silence
        client.update_style_rule_configured_rules(own, {"number": {"a": "b"}})
    assert [one.name for one in client.get_all_style_rules(page=1, page_size=1)] == ["Mine"]
    assert not client.get_all_style_rules()[1].custom_instructions
    assert client.get_all_style_rules(detailed=True)[1].custom_instructions[0].prompt == "Be brief"  # type: ignore[index]
    for style in (own, other):
        client.delete_style_rule(style)
    for missing in (own.style_id, "../../etc"):
        with pytest.raises(DeepLException, match="Not found"):
            client.get_style_rule(missing)
    with pytest.raises(DeepLException, match="Not found"):
        ask(style_rule=own)


def test_a_memory_or_another_way_to_write_chooses_the_run(formal: Live) -> None:
    client = DeepLClient("secret", server_url=formal.url)
    (memory,) = client.list_translation_memories()
    assert (memory.name, memory.source_language, memory.segment_count) == ("memory.tsv", "en", 1)
    ask = partial(client.translate_text, "Hello", target_lang="FR", translation_memory_threshold=80)
    assert str(ask(translation_memory=memory)) == "Salut"
    with pytest.raises(DeepLException, match="found a memory of other languages than en-de"):
        ask(translation_memory=memory, target_lang="DE")
    with pytest.raises(DeepLException, match="expected the id of a translation memory"):
        ask(translation_memory="1")


def test_texts_are_rewritten_by_runs_from_a_language_to_itself(formal: Live, live: Live) -> None:
    client = DeepLClient("secret", server_url=formal.url)
    assert str(client.rephrase_text("Hello")) == "Good day."
    for style, output in ((None, "Good day."), ("business", "Dear Sir"), ("prefer_simple", "Good day.")):
        (found,) = client.rephrase_text(["Hello"], target_lang="EN-GB", style=style)
        assert (found.text, found.detected_source_language) == (output, "EN")
    for fields, message in (
        ({"style": "simple"}, "found 'simple', expected .*en-business"),
        ({"style": "simple", "tone": "friendly"}, "'tone' not supported"),
        ({"style": "lyrical"}, "'writing_style' not supported"),
        ({"target_lang": "DE"}, "expected one of: en → en"),
    ):
        with pytest.raises(DeepLException, match=message):
            client.rephrase_text("Hello", **fields)  # type: ignore[arg-type]
    with pytest.raises(DeepLException, match="from a language to itself"):
        DeepLClient("any", server_url=live.url).rephrase_text("abc")


def test_texts(live: Live, client: DeepLClient) -> None:
    plain = live.post("/translate", {"q": "abc", "source": "ab", "target": "cd"})["translatedText"]
    found = client.translate_text("abc", target_lang="CD", model_type="prefer_quality_optimized")
    assert (found.text, found.billed_characters) == (plain, 3)  # type: ignore[union-attr]
    assert found.model_type_used == "quality_optimized"  # type: ignore[union-attr]
    two = "abc.\nDef"
    whole = live.post("/v1/predict", {"input": two})["outputs"][0]["text"]
    assert str(client.translate_text(two, target_lang="CD", split_sentences="0")) == whole
    joined = live.post("/translate", {"q": "abc. Def", "source": "ab", "target": "cd"})["translatedText"]
    assert str(client.translate_text(two, target_lang="CD", split_sentences="nonewlines")) == joined
    answer = live.post("/v2/translate", {"text": "abc", "target_lang": "CD"})
    assert answer == {"translations": [{"detected_source_language": "AB", "text": plain}]}


def test_context_is_read_before_the_texts_or_refused(
    live: Live, client: DeepLClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = ["abc", "fhg"]
    plain = [str(output) for output in client.translate_text(texts, target_lang="CD")]  # type: ignore[union-attr]
    with pytest.raises(DeepLException, match=r"'context' not supported: the run .* reads one sentence at a time"):
        client.translate_text(texts, target_lang="CD", context="Before.")
    assert str(client.translate_text("abc", target_lang="CD", context=" ")) == plain[0]
    predictor, read = live.state.models["ab-cd"].predictor, list[list[str]]()

    def in_context(texts: list[str]) -> list[str]:
        read.append(texts)
        return texts

    monkeypatch.setattr(predictor, "context", 1)
    monkeypatch.setattr(predictor, "in_context", in_context)
    client.translate_text(texts, source_lang="AB", target_lang="CD", context="One before.\n Two\tbefore.")
    assert read == [["One before.", "Two before.", *texts]]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"target_lang": "ZZ"}, "Value for 'target_lang' not supported"),
        ({"source_lang": "ZZ"}, "Value for 'source_lang' not supported"),
        ({"source_lang": "CD", "target_lang": "AB"}, "Value for 'target_lang' not supported: found cd → ab"),
        ({"target_lang": None}, "Parameter 'target_lang' not specified."),
        ({"text": None}, "Parameter 'text' not specified."),
        ({"split_sentences": "2"}, "Value for 'split_sentences' not supported"),
        ({"tag_handling": "json"}, "Value for 'tag_handling' not supported"),
        ({"formality": "more"}, "Target language 'CD' doesn't support formality"),
        ({"model_type": "best"}, "Value for 'model_type' not supported"),
        ({"custom_instructions": ["be brief"]}, "found 'be brief', expected those of a tag of the run: none"),
        ({"custom_instructions": ["be brief"] * 11}, "Value for 'custom_instructions' not supported"),
        ({"translation_memory_threshold": 101}, "Value for 'translation_memory_threshold' not supported"),
        ({"formalty": "more"}, "Did you mean 'formality'"),
        ({"tag_handling": "xml", "split_sentences": "0"}, "split_sentences"),
        ({"glossary_id": "1"}, "requires the source_lang"),
    ],
)
def test_wrong_values_are_refused(live: Live, fields: dict[str, Any], message: str) -> None:
    body = {"text": ["abc"], "target_lang": "CD"} | fields
    answer = live.client.post("/v2/translate", json={key: one for key, one in body.items() if one is not None})
    assert answer.status_code == 400, answer.text
    assert message in answer.json()["message"]


def test_ignored_tags_are_copied(client: DeepLClient) -> None:
    text = '<par>abc</par><raw id="1">def <b>g</b></raw><raw/><b>abc</b>'
    found = str(client.translate_text(text, target_lang="CD", tag_handling="xml", ignore_tags="raw,keep"))
    assert '</par><raw id="1">def <b>g</b></raw><raw/><b>' in found
    assert "dragoman" not in found
    assert "abc" not in found


@pytest.mark.parametrize(
    ("rules", "blocks"),
    [
        (TagRules(), ["ab", " c", "d", "e", " f"]),
        (TagRules(non_splitting=frozenset({"x", "y"})), ["ab c", "d", "e f"]),
        (TagRules(splitting=frozenset({"b"})), ["a", "b", " c", "d", "e", " f"]),
        (TagRules(outline=False), ["ab cde fg"]),
        (TagRules(outline=False, splitting=frozenset({"p"})), ["ab c", "d", "e fg"]),
        (TagRules(outline=False, ignore=frozenset({"p"})), ["ab c", "e fg"]),
    ],
)
def test_tags_split_as_a_request_says(rules: TagRules, blocks: list[str]) -> None:
    text = 'a<b>b</b><x> c</x><p n="1">d</p>e<y/> f<code>g</code>'
    prepared = rules.prepare(text)
    assert restore(prepared) == text
    parsed = [part.text for part in parse_blocks(prepared) if isinstance(part, Block)]
    assert [one for one in parsed if one.strip()] == blocks


def test_languages(live: Live) -> None:
    assert live.client.get("/v2/languages").json() == [{"language": "AB", "name": "ab"}]
    answer = live.client.get("/v2/languages", params={"type": "both"})
    assert (answer.status_code, "'type' is invalid" in answer.json()["message"]) == (400, True)
    pairs = live.client.get("/v2/glossary-language-pairs").json()
    assert pairs == {"supported_languages": [{"source_lang": "ab", "target_lang": "cd"}]}


@pytest.mark.parametrize(
    ("entries", "form", "message"),
    [
        ("a\tb\na\tc", "tsv", "second translation"),
        ("a b", "tsv", "line 1"),
        ("", "tsv", "found 0"),
        ("a,b", "xml", "entries_format"),
    ],
)
def test_wrong_entries(live: Live, entries: str, form: str, message: str) -> None:
    languages = {"source_lang": "ab", "target_lang": "cd"}
    body = {"name": "x", **languages, "entries": entries, "entries_format": form}
    answer = live.client.post("/v2/glossaries", json=body)
    assert (answer.status_code, message in answer.json()["message"]) == (400, True), answer.text


def test_multilingual_glossaries(client: DeepLClient) -> None:
    glossary = client.create_multilingual_glossary("mine", [Entries("AB", "CD", {"abc": "HIJ", "d": "F"})])
    glossary_id = glossary.glossary_id
    assert [one.glossary_id for one in client.list_multilingual_glossaries()] == [glossary_id]
    assert client.get_glossary(glossary_id).entry_count == 2  # version 2 shows it too: it has one dictionary
    found = client.translate_text("abc", source_lang="AB", target_lang="CD", glossary=glossary)
    assert "HIJ" in str(found)
    updated = client.update_multilingual_glossary_dictionary(glossary, Entries("AB", "CD", {"abc": "EDF", "e": "J"}))
    assert updated.dictionaries[0].entry_count == 3
    found = client.translate_text("abc", source_lang="AB", target_lang="CD", glossary=glossary)
    assert "EDF" in str(found)
    assert client.update_multilingual_glossary_name(glossary, "ours").name == "ours"
    client.replace_multilingual_glossary_dictionary(glossary, Entries("AB", "CD", {"b": "G"}))
    entries = client.get_multilingual_glossary_entries(glossary, "AB", "CD").dictionaries
    assert entries[0].entries == "b\tG"
    with pytest.raises(DeepLException, match="language pair"):
        client.create_multilingual_glossary("other", [Entries("AB", "ZZ", {"a": "b"})])
    client.delete_multilingual_glossary_dictionary(glossary, source_lang="AB", target_lang="CD")
    assert client.get_multilingual_glossary(glossary_id).dictionaries == []
    with pytest.raises(DeepLException, match="Dictionary not found"):
        client.get_multilingual_glossary_entries(glossary, "AB", "CD")
    client.delete_multilingual_glossary(glossary)
    for missing in (glossary_id, "../../etc", "x" * 300):
        with pytest.raises(GlossaryNotFoundException):
            client.get_multilingual_glossary(missing)


def named(name: str, data: bytes) -> io.BytesIO:
    """An open file of this name."""
    file = io.BytesIO(data)
    file.name = name
    return file


def test_documents(live: Live, client: DeepLClient, tmp_path: Path) -> None:
    plain = live.post("/translate", {"q": "abc", "source": "ab", "target": "cd"})["translatedText"]
    (tmp_path / "a.html").write_text("<p>abc</p>", encoding="utf-8")
    status = client.translate_document_from_filepath(tmp_path / "a.html", tmp_path / "b.html", target_lang="CD")
    assert (tmp_path / "b.html").read_text(encoding="utf-8") == f"<p>{plain}</p>"
    assert (status.done, status.billed_characters) == (True, 3)
    handle = client.translate_document_upload(named("a.html", b"<p>7,041</p><p>abc</p>"), target_lang="CD")
    body = {"document_key": handle.document_key}
    found = live.post(f"/v2/document/{handle.document_id}", body)
    assert (found["billed_characters"], found["without_letters"]) == (3, 1), found
    glossary = client.create_glossary("mine", "AB", "CD", {"abc": "HIJ"})
    out = io.BytesIO()
    client.translate_document(named("a.txt", b"abc\n"), out, source_lang="AB", target_lang="CD", glossary=glossary)
    assert "HIJ" in out.getvalue().decode()
    client.delete_glossary(glossary)
    handle = client.translate_document_upload("abc", filename="c.txt", source_lang="AB", target_lang="CD")
    client.translate_document_wait_until_done(handle)
    with pytest.raises(DeepLException, match="Not found"):
        client.translate_document_get_status(DocumentHandle(handle.document_id, "0" * 64))
    response = client.translate_document_download(handle)
    assert response is not None
    assert response.text == plain
    with pytest.raises(DeepLException, match="Not found"):  # it is fetched once
        client.translate_document_download(handle)


def test_documents_that_cannot_be_translated(live: Live, client: DeepLClient) -> None:
    for filename, fields, message in (
        ("a.exe", {"target_lang": "CD"}, "Invalid file data"),
        ("a.txt", {"target_lang": "ZZ"}, "Value for 'target_lang' not supported"),
        ("a.txt", {"target_lang": "CD", "source_lang": "ZZ"}, "Value for 'source_lang' not supported"),
        ("a.txt", {"target_lang": "CD", "source_lang": "CD"}, "Source and target language are equal"),
        ("a.txt", {"target_lang": "CD", "output_format": "docx"}, "output_format"),
        ("a.txt", {"target_lang": "CD", "formality": "more"}, "formality"),
    ):
        answer = live.client.post("/v2/document", files={"file": (filename, b"abc")}, data=fields)
        assert (answer.status_code, message in answer.json()["message"]) == (400, True), answer.text
    broken = named("a.docx", b"PK no zip")
    with pytest.raises(DocumentTranslationException, match=r"a\.docx"):
        client.translate_document(broken, io.BytesIO(), source_lang="AB", target_lang="CD")
    answer = live.client.post("/v2/document/0123", json={"document_key": "x"})
    assert answer.status_code == 404
    assert live.client.post("/v2/document/0123", json={}).status_code == 400
