from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.base.errors import ConfigError, DataError, RunError
from dragoman.data.tokenizers import words as word_tokenizer
from dragoman.data.tokenizers.base import EOS, PAD, SOS, SPECIALS, UNK, UNKNOWN_SURFACE, Tokenizer, count_tokens
from dragoman.data.tokenizers.characters import BytesConfig, CharactersConfig, CharacterTokenizer
from dragoman.data.tokenizers.load import TokenizerConfig, load_tokenizer, train_tokenizer
from dragoman.data.tokenizers.subwords import SubwordsConfig, _sample
from dragoman.data.tokenizers.words import WordsConfig, WordTokenizer

CORPUS = [
    "The cat sat on the mat.",
    "the dog didn't sit;  it ran (fast).",
    "Übung macht den Meister – 3,14!",
    "लड़का किताब पढ़ता है",
    "\ttabs and \u2028 separators\x00 ",
    "low lower lowest, new newer newest",
]
CONFIGS: list[TokenizerConfig] = [
    WordsConfig(),
    WordsConfig(split="spaces"),
    CharactersConfig(),
    BytesConfig(),
    SubwordsConfig(vocab_size=400),
    SubwordsConfig(vocab_size=400, algorithm="unigram"),
]
ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
SEAMS = st.text(st.sampled_from("ab  \t\u2028\u00a0￭&;.,(-joiner्क⁇▁"), max_size=15)


@pytest.fixture(scope="module", params=CONFIGS, ids=lambda config: f"{config.kind}-{list(vars(config).values())[1:]}")
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return train_tokenizer(request.param, CORPUS)


@pytest.fixture(scope="module")
def subwords() -> dict[str, Tokenizer]:
    return {name: train_tokenizer(SubwordsConfig(400, name), CORPUS) for name in ("bpe", "unigram")}


# --- round trips


@given(ANY_TEXT | SEAMS)
def test_words_decode_to_the_same_text(text: str) -> None:
    words = train_tokenizer(WordsConfig(), [text, "x"])
    assert words.decode(words.encode(text)) == text
    assert UNK not in words.encode(text)


@given(st.lists(st.text(st.characters(exclude_characters=" ", exclude_categories=["Cs"]), min_size=1), max_size=6))
def test_spaced_tokens_decode_to_the_same_text(tokens: list[str]) -> None:
    text = " ".join(tokens)
    words = train_tokenizer(WordsConfig(split="spaces"), [text, "x"])
    ids = words.encode(text)
    assert words.pieces(ids) == tokens
    assert words.decode(ids) == text
    assert words.encode(f" {text.replace(' ', '  ')} ") == ids


@given(ANY_TEXT)
def test_characters_decode_to_the_same_text(text: str) -> None:
    characters = train_tokenizer(CharactersConfig(), [text, "x"])
    ids = characters.encode(text)
    assert len(ids) == len(text)
    assert characters.decode(ids) == text


@settings(max_examples=300)
@given(
    text=(ANY_TEXT | SEAMS).filter(lambda text: "\U0010fffe" not in text),
    name=st.sampled_from(["bpe", "unigram"]),
)
def test_subwords_decode_to_the_same_text(subwords: dict[str, Tokenizer], text: str, name: str) -> None:
    ids = subwords[name].encode(text)
    assert subwords[name].decode(ids) == text
    assert not {PAD, UNK, SOS, EOS} & set(ids)


def test_batches_are_the_texts_one_by_one(tokenizer: Tokenizer) -> None:
    texts = [*CORPUS, "", "unseen ζ words", *CORPUS]
    assert tokenizer.encode_batch(texts) == [tokenizer.encode(text) for text in texts]
    assert tokenizer.encode_batch([]) == []


# --- how words are split


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("Hello, world!", ["Hello", "￭,", "world", "￭!"]),
        ("didn't", ["didn", "￭'￭", "t"]),
        ("((a) b)", ["(", "￭(￭", "a", "￭)", "b", "￭)"]),
        ("a - b", ["a", "-", "b"]),
        ("a  b ", ["a", " ", " ", "b", " "]),
        (" \ta", [" ", "\t", "a"]),
        ("a ￭ b￭", ["a", "&joiner;", "b", "￭&joiner;"]),
        ("&joiner;", ["&￭", "joiner", "￭;"]),
        ("किताब पढ़ता", ["किताब", "पढ़ता"]),
        ("me\u0301me", ["me\u0301me"]),
        ("<eos>", ["<￭", "eos", "￭>"]),
    ],
)
def test_words_at_punctuation(text: str, pieces: list[str]) -> None:
    words = train_tokenizer(WordsConfig(), [text])
    assert words.pieces(words.encode(text)) == pieces


def test_long_chunks_are_not_cached() -> None:
    words = train_tokenizer(WordsConfig(), ["a b", "y." * 50_000])
    assert isinstance(words, WordTokenizer)
    assert words.decode(words.encode("y." * 50_000 + " a")) == "y." * 50_000 + " a"
    assert set(words._cache) == {"a"}


def test_the_cache_has_a_limit_and_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word_tokenizer, "_CACHED_CHUNKS", 2)
    words = train_tokenizer(WordsConfig(), CORPUS)
    assert isinstance(words, WordTokenizer)
    first = words.encode_batch(CORPUS)
    assert words.encode_batch(CORPUS) == first
    assert len(words._cache) == 2


# --- special symbols and unknown text


def test_special_symbols_have_the_same_ids_everywhere(tokenizer: Tokenizer) -> None:
    assert (PAD, UNK, SOS, EOS) == (0, 1, 2, 3)
    assert tokenizer.pieces([PAD, UNK, SOS, EOS]) == list(SPECIALS) == ["<pad>", "<unk>", "<sos>", "<eos>"]
    ids = tokenizer.encode("The cat")
    assert tokenizer.decode([SOS, *ids, EOS, PAD, PAD]) == "The cat"
    assert "⁇" in tokenizer.decode([*ids, UNK])
    assert max(ids) < len(tokenizer)


@pytest.mark.parametrize("config", CONFIGS)
def test_a_text_cannot_spell_a_special_symbol(config: TokenizerConfig) -> None:
    text = "<pad> <unk> <sos> <eos> </s> <0x41>"
    spelled = train_tokenizer(config, [text])
    assert not {PAD, UNK, SOS, EOS} & set(spelled.encode(text))
    assert spelled.decode(spelled.encode(text)) == text


def test_unknown_text() -> None:
    words = train_tokenizer(WordsConfig(), ["the cat , sat"])
    assert words.encode("the dog sat") == [*words.encode("the"), UNK, *words.encode("sat")]
    assert words.decode(words.encode("the dog, sat")) == "the ⁇ ⁇ sat"  # ',' after a word is another token: '￭,'
    characters = train_tokenizer(CharactersConfig(), ["abc"])
    assert characters.encode("axc") == [4, UNK, 6]
    assert characters.decode([4, UNK, 6]) == "a⁇c"
    subwords = train_tokenizer(SubwordsConfig(400), ["abc"])
    assert subwords.pieces(subwords.encode("ζ")) == ["▁", "<0xCE>", "<0xB6>"]
    assert subwords.decode([*subwords.encode("a"), UNK]) == "a⁇"
    assert subwords.decode(subwords.encode("ζ")[:-1]) == "\ufffd"


def test_lone_surrogates_do_not_break_encoding(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode(tokenizer.encode("The \ud800 cat")).startswith("The")
    assert tokenizer.encode_batch(["\ud800"]) == [tokenizer.encode("\ud800")]


# --- learning


def test_vocabulary_is_ranked_by_count_then_code_point() -> None:
    words = train_tokenizer(WordsConfig(), ["d c a", "c b", "b"])
    assert words.pieces(range(4, len(words))) == ["b", "c", "a", "d"]
    assert len(train_tokenizer(WordsConfig(vocab_size=6), ["b a c", "c b"])) == 6
    assert train_tokenizer(CharactersConfig(min_count=2), ["abb", "ca"]).pieces([4, 5]) == ["a", "b"]
    assert len(train_tokenizer(CharactersConfig(min_count=2), ["abb", "ca"])) == 6


def test_learning_gives_the_same_every_time(tokenizer: Tokenizer, request: pytest.FixtureRequest) -> None:
    again = train_tokenizer(request.node.callspec.params["tokenizer"], iter(CORPUS))
    assert again.fingerprint() == tokenizer.fingerprint()
    assert again.encode_batch(CORPUS) == tokenizer.encode_batch(CORPUS)


def test_fingerprints_tell_vocabularies_and_rules_apart() -> None:
    texts = ["a b c", "a b"]
    made = [train_tokenizer(config, texts) for config in CONFIGS]
    made += [train_tokenizer(WordsConfig(vocab_size=6), texts), train_tokenizer(CharactersConfig(), ["a"])]
    assert len({tokenizer.fingerprint() for tokenizer in made}) == len(made)
    assert train_tokenizer(WordsConfig(vocab_size=99), texts).fingerprint() == made[0].fingerprint()


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("texts", [[], [""]])
def test_no_text_to_learn_from(config: TokenizerConfig, texts: list[str]) -> None:
    with pytest.raises(DataError, match="no text to learn"):
        train_tokenizer(config, texts)


@pytest.mark.parametrize("algorithm", ["bpe", "unigram"])
def test_subwords_from_little_text(algorithm: Any, capfd: pytest.CaptureFixture[str]) -> None:
    subwords = train_tokenizer(SubwordsConfig(8000, algorithm), ["x"])
    assert 261 <= len(subwords) < 270
    assert subwords.decode(subwords.encode("x y  z")) == "x y  z"
    assert capfd.readouterr() == ("", "")


def test_subwords_reach_the_vocabulary_size(subwords: dict[str, Tokenizer]) -> None:
    texts = [f"word{number} and number {number * 7}" for number in range(3000)]
    for algorithm in ("bpe", "unigram"):
        assert len(train_tokenizer(SubwordsConfig(500, algorithm), texts)) == 500
    assert "▁low" in [*map(str, subwords["bpe"].pieces(range(len(subwords["bpe"]))))]


def test_too_many_characters_for_the_vocabulary() -> None:
    text = "".join(chr(0x4E00 + number) for number in range(200))
    with pytest.raises(ConfigError, match=r"^vocab_size: found 300, expected 461 or more.*coverage"):
        train_tokenizer(SubwordsConfig(300), [text])
    for algorithm in ("bpe", "unigram"):
        # The space is rarer here than the coverage asks for, and must have a piece all the same.
        fewer = train_tokenizer(SubwordsConfig(300, algorithm, character_coverage=0.98), [text, "a" * 20_000])
        assert fewer.decode(fewer.encode(f"{text} {text}")) == f"{text} {text}"


def test_subwords_from_very_long_lines() -> None:
    text = "ab" * 40_000 + "q"
    subwords = train_tokenizer(SubwordsConfig(300), [text])  # sentencepiece itself would abort the process here
    assert len(subwords.encode(text)) < len(text) / 4
    assert subwords.pieces(subwords.encode(text)[-1:])[0].endswith("q")  # the end of the line was learned too
    assert subwords.decode(subwords.encode(text)) == text


def test_subwords_learn_from_a_sample() -> None:
    texts = [f"line {number}" for number in range(1000)]
    sample = _sample(iter(["", *texts, ""]), 100)
    assert len(set(sample)) == 100
    assert set(sample) <= set(texts)
    assert sample == _sample(iter(texts), 100)
    assert 35 < sum(int(text.split()[1]) >= 500 for text in sample) < 65
    assert _sample(texts, 1000) == texts
    few, many = (train_tokenizer(SubwordsConfig(sample=size), texts) for size in (5, 1000))
    assert few.fingerprint() != many.fingerprint()


# --- saving and loading


def test_saved_tokenizers_load_unchanged(tokenizer: Tokenizer, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "run"
    tokenizer.save(folder, "source")
    assert sorted(folder.iterdir()) == sorted(tokenizer.files(folder, "source"))
    loaded = load_tokenizer(folder, "source")
    assert type(loaded) is type(tokenizer)
    assert (loaded.kind, len(loaded)) == (tokenizer.kind, len(tokenizer))
    assert loaded.fingerprint() == tokenizer.fingerprint()
    assert loaded.encode_batch(CORPUS) == tokenizer.encode_batch(CORPUS)
    for ids in tokenizer.encode_batch(CORPUS):
        assert loaded.decode(ids) == tokenizer.decode(ids)
        assert loaded.pieces(ids) == tokenizer.pieces(ids)
    before = [path.read_bytes() for path in tokenizer.files(folder, "source")]
    loaded.save(folder, "source")
    assert [path.read_bytes() for path in tokenizer.files(folder, "source")] == before


def test_tokenizers_can_be_pickled(tokenizer: Tokenizer) -> None:
    copy: Tokenizer = pickle.loads(pickle.dumps(tokenizer))
    assert copy.encode_batch(CORPUS) == tokenizer.encode_batch(CORPUS)


def test_odd_tokens_survive_saving(tmp_path: Path) -> None:
    text = '\u2028\u2029\x85\x00\t\n\r"\\ é\u00a0\ud800😀\ufeff'
    characters = train_tokenizer(CharactersConfig(), [text])
    characters.save(tmp_path, "odd")
    assert load_tokenizer(tmp_path, "odd").decode(characters.encode(text)) == text
    lines = (tmp_path / "odd.vocabulary.jsonl").read_text(encoding="utf-8").split("\n")
    assert len(lines) == len(characters) + 1
    assert '"é"' in lines
    assert json.loads(lines[characters.encode("😀")[0]]) == "😀"


def test_subword_pieces_can_be_read_from_the_file(subwords: dict[str, Tokenizer], tmp_path: Path) -> None:
    subwords["bpe"].save(tmp_path, "both")
    rows = (tmp_path / "both.vocab").read_text(encoding="utf-8").splitlines()
    assert len(rows) == len(subwords["bpe"])
    assert rows[:4] == ["<pad>\t0", "<unk>\t0", "<sos>\t0", "<eos>\t0"]
    assert any(row.startswith("▁low\t") for row in rows)


def damaged(folder: Path, config: TokenizerConfig, suffix: str, content: bytes | None) -> str:
    train_tokenizer(config, CORPUS).save(folder, "t")
    path = folder / f"t.{suffix}"
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    with pytest.raises(RunError) as caught:
        load_tokenizer(folder, "t")
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    return message.removeprefix(f"{path}: ")


SPECIAL_LINES = b'"<pad>"\n"<unk>"\n"<sos>"\n"<eos>"\n'


@pytest.mark.parametrize(
    ("config", "suffix", "content", "says"),
    [
        (CharactersConfig(), "json", None, "cannot be read (No such file"),
        (CharactersConfig(), "json", b"{", "damaged"),
        (CharactersConfig(), "json", b"[]", "damaged"),
        (CharactersConfig(), "json", b"{}", "damaged"),
        (CharactersConfig(), "json", b"\xff", "damaged"),
        (CharactersConfig(), "json", b'{"kind": [], "fingerprint": ""}', "found the kind '[]'"),
        (CharactersConfig(), "json", b'{"kind": "word", "fingerprint": ""}', "Did you mean 'words'?"),
        (CharactersConfig(), "json", b'{"kind": "words", "fingerprint": "", "vocab_size": 1}', "at least 5"),
        (CharactersConfig(), "json", b'{"kind": "words", "fingerprint": "", "size": 1}', "no such setting"),
        (CharactersConfig(), "vocabulary.jsonl", None, "cannot be read (No such file"),
        (CharactersConfig(), "vocabulary.jsonl", b"", "damaged"),
        (WordsConfig(), "vocabulary.jsonl", b"\xff", "damaged"),
        (WordsConfig(), "vocabulary.jsonl", SPECIAL_LINES + b"3\n", "not a JSON string"),
        (
            WordsConfig(),
            "vocabulary.jsonl",
            SPECIAL_LINES + b'"the"\n',
            "not the one that t.json was saved with",
        ),
        (SubwordsConfig(400), "model", None, "cannot be read (No such file"),
        (SubwordsConfig(400), "model", b"", "damaged"),
        (SubwordsConfig(400), "model", b"nonsense", "damaged"),
    ],
)
def test_damaged_files_are_named(
    tmp_path: Path, config: TokenizerConfig, suffix: str, content: bytes | None, says: str
) -> None:
    assert says in damaged(tmp_path, config, suffix, content)


def test_a_model_of_another_run_is_noticed(tmp_path: Path) -> None:
    train_tokenizer(SubwordsConfig(300), ["another text"]).save(tmp_path, "other")
    other = (tmp_path / "other.model").read_bytes()
    assert "not the one that t.json was saved with" in damaged(tmp_path, SubwordsConfig(400), "model", other)


def test_a_changed_model_with_the_same_pieces_is_noticed(tmp_path: Path) -> None:
    """It decoded unknown tokens to bytes that are not UTF-8, or split texts in another way."""
    train_tokenizer(SubwordsConfig(400), CORPUS).save(tmp_path, "t")
    whole = (tmp_path / "t.model").read_bytes()
    changed = whole.replace(UNKNOWN_SURFACE.encode(), b"\xd4" + UNKNOWN_SURFACE.encode()[1:])
    assert changed != whole
    assert "it was changed after it was saved" in damaged(tmp_path, SubwordsConfig(400), "model", changed)


def test_a_changed_special_line_is_noticed(tmp_path: Path) -> None:
    characters = train_tokenizer(CharactersConfig(), CORPUS)
    assert isinstance(characters, CharacterTokenizer)
    characters.save(tmp_path, "t")
    path = tmp_path / "t.vocabulary.jsonl"
    lines: Sequence[str] = path.read_text(encoding="utf-8").split("\n")
    assert "damaged" in damaged(tmp_path, CharactersConfig(), "vocabulary.jsonl", "\n".join(lines[1:]).encode())


def test_counting_tokens_needs_bounded_memory() -> None:
    texts = [["common", f"rare{number}"] for number in range(5000)] + [["late"] * 9]
    counts = count_tokens(texts, max_tokens=100)
    assert len(counts) <= 100
    assert counts["common"] == 5000
    assert counts["late"] == 9


def test_a_piece_that_is_not_utf8_is_damage(subwords: dict[str, Tokenizer], tmp_path: Path) -> None:
    subwords["bpe"].save(tmp_path, "source")
    model = tmp_path / "source.model"
    model.write_bytes(model.read_bytes().replace("▁".encode(), b"\xe2\xff\x81"))
    with pytest.raises(RunError, match=r"source.model: damaged tokenizer file"):
        load_tokenizer(tmp_path, "source")
