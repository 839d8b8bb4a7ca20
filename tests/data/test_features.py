"""Features at the end of a source text as whole tokens of a character tokenizer."""

from __future__ import annotations

from pathlib import Path

import pytest

from dragoman.data.config import DataConfig, TokenizersConfig
from dragoman.data.corpus import prepare_corpus
from dragoman.data.tokenizers.characters import CharactersConfig, CharacterTokenizer, find_features, split_features
from dragoman.data.tokenizers.load import load_tokenizer

PAIRS = [
    ("zunehmen V;IND;PST;2;SG", "nahmst zu"),
    ("sehen V;IND;PST;3;SG", "sah"),
    ("guten Tag N;DAT;SG", "guten Tag"),
    ("Vase N;DAT;SG", "Vase"),
    ("Vogel N;NOM;PL", "Vögel"),
    ("gehen V;IND;PST;2;SG", "gingst"),
    ("Haus N;NOM;SG", "Haus"),
]


def test_split() -> None:
    assert split_features("zu nehmen V;PST;2", " ;") == ("zu nehmen", [" V", ";PST", ";2"])
    assert split_features("walk+V+Past", "++") == ("walk", ["+V", "+Past"])
    assert split_features("dog#N", "#;") == ("dog", ["#N"])
    assert split_features("dog", " ;") == ("dog", [])
    assert split_features("Hund N", " ") == ("Hund", [" N"])


@pytest.mark.parametrize("text", [*(source for source, _ in PAIRS), "ohne", " ", "; ;", "a  ;;", " V;"])
def test_tokens_joined_are_the_text(text: str) -> None:
    tokenizer = CharacterTokenizer.train(CharactersConfig(features=" ;"), [source for source, _ in PAIRS] + [text])
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert [text[first:end] for first, end in tokenizer.spans(text)] == tokenizer.pieces(ids)


def test_a_feature_is_not_the_letter_of_that_name() -> None:
    tokenizer = CharacterTokenizer.train(CharactersConfig(features=" ;"), [source for source, _ in PAIRS])
    assert tokenizer.pieces(tokenizer.encode("Vase V;2;SG")) == ["V", "a", "s", "e", " V", ";2", ";SG"]
    assert tokenizer.pieces(tokenizer.encode("Vase X")) == ["V", "a", "s", "e", "<unk>"]


@pytest.mark.parametrize("shared", [True, False])
def test_a_corpus_with_features(tmp_path: Path, shared: bool) -> None:
    file = tmp_path / "pairs.tsv"
    file.write_text("".join(f"{source}\t{target}\n" for source, target in PAIRS * 3), encoding="utf-8")
    data = DataConfig(train=str(file), valid=str(file), cache=str(tmp_path / "cache"))
    units = TokenizersConfig(CharactersConfig(features=" ;"), None if shared else CharactersConfig())
    corpus = prepare_corpus(data, units)
    source, target = corpus.source_tokenizer, corpus.target_tokenizer
    assert target.pieces(target.encode("nahmst zu"))[-3:] == [" ", "z", "u"]  # no feature in a target
    assert source.pieces(source.encode("sehen V;IND"))[-2:] == [" V", ";IND"]
    assert (source.encode("abc") == target.encode("abc")) == shared
    assert (len(source) == len(target)) == shared
    assert corpus.report["train"]["unknown"] == {"source": 0.0, "target": 0.0}
    source.save(tmp_path, "saved")
    loaded = load_tokenizer(tmp_path, "saved")
    assert loaded.fingerprint() == source.fingerprint() != CharacterTokenizer(CharactersConfig(), "ab").fingerprint()
    assert loaded.encode("sehen V;IND") == source.encode("sehen V;IND")


def test_find() -> None:
    sources = [source for source, _ in PAIRS]
    assert find_features(sources * 3) == " ;"
    assert (
        find_features([source.replace(" ", "+").replace(";", "+") for source, _ in PAIRS if "Tag" not in source] * 3)
        == "++"
    )
    assert find_features(["talo N;IN+ALL;SG", "katu N;IN+ALL;PL", "tie N;(AT,ABL);SG", "suo N;(AT,ABL);PL"] * 3) == " ;"
    assert find_features(["talo N;IN;SG"] * 200 + ["stray"]) == " ;"
    assert find_features(["talo N;IN;SG"] * 20 + ["stray"]) == ""
    assert find_features([target for _, target in PAIRS]) == ""
    assert find_features(["I see; you know", "he sees; she knows"]) == ""
    assert find_features([f"word{n} A{n};B{n}" for n in range(20)]) == ""  # every feature occurs once
    assert find_features([]) == ""


def test_layouts_that_are_refused() -> None:
    assert list(CharactersConfig(features="ab").problems())
    assert list(CharactersConfig(features=" ;|").problems())
    assert not list(CharactersConfig(features=" ;").problems())
    assert list(TokenizersConfig(CharactersConfig(), CharactersConfig(features=" ;")).problems())
