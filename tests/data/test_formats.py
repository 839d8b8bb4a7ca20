"""Example formats: files of labels, numbers and tags become examples, located faults and rows."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from dragoman.base.errors import ConfigError, DataError, RunError
from dragoman.data.config import DataConfig
from dragoman.data.examples import Example, Fault
from dragoman.data.formats.labels import (
    LabelFormat,
    NumberFormat,
    SeriesFormat,
    SeriesLabelFormat,
    SeriesTagFormat,
    TagFormat,
    word_positions,
)
from dragoman.data.media.audio import AudioConfig
from dragoman.data.media.feature_extractor import FeatureExtractor
from dragoman.data.readers.base import ReadOptions
from dragoman.data.readers.conll import read_conll
from dragoman.data.source_reader import SourceReader
from dragoman.data.split import fault_message
from dragoman.data.tokenizers.base import TextPairTokenizer, Tokenizer
from dragoman.data.tokenizers.characters import CharactersConfig
from dragoman.data.tokenizers.labels import LabelVocabulary, UnknownLabelError
from dragoman.data.tokenizers.language_tags import LanguageTagTokenizer
from dragoman.data.tokenizers.load import load_reader, load_tokenizer, train_tokenizer
from dragoman.data.tokenizers.numbers import NumberScaler, NumbersConfig
from dragoman.data.tokenizers.subwords import SubwordsConfig
from dragoman.data.tokenizers.words import WordsConfig, WordTokenizer


def read(example_format: Any, path: Path, text: str, **settings: Any) -> list[Example | Fault]:
    path.write_text(text, encoding="utf-8")
    return list(example_format.read(DataConfig(train=str(path), **settings), str(path), False))


def shown(items: list[Example | Fault]) -> list[str]:
    return [str(item) if isinstance(item, Fault) else f"{item.source}|{item.references[0]}" for item in items]


# ---------------------------------------------------------------------- labels and numbers


def test_one_or_two_texts_and_a_label(tmp_path: Path) -> None:
    example_format = LabelFormat()
    assert shown(read(example_format, tmp_path / "a.tsv", "good film\t1\nbad\t0 \n")) == ["good film|1", "bad|0"]
    three = "7\tone\ttwo\n8\tthree\tfour\n"
    assert shown(read(example_format, tmp_path / "a.tsv", three, columns=("2", "3", "1"))) == [
        "one\ttwo|7",
        "three\tfour|8",
    ]
    rows = '{"a": "x y", "label": 3}\n{"a": "z", "label": "b"}\n'
    assert shown(read(example_format, tmp_path / "a.jsonl", rows, columns=("a", "label"))) == ["x y|3", "z|b"]


def test_a_header_names_columns(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    text = "label\tsentence\n1\tgood film\n0\tbad\n"
    named = {"header": True, "columns": ("sentence", "label")}
    assert shown(read(LabelFormat(), path, text, **named)) == ["good film|1", "bad|0"]
    with pytest.raises(ConfigError, match=r"has label, sentence. Did you mean 'sentence'"):
        read(LabelFormat(), path, text, header=True, columns=("sentense", "label"))
    with pytest.raises(ConfigError, match="header: found true"):
        read(LabelFormat(), tmp_path / "a.jsonl", "{}\n", header=True)


@pytest.mark.parametrize(
    ("example_format", "text", "settings", "expected"),
    [
        (LabelFormat(), "lonely\nx\t1\n", {}, "a.tsv:1: found 1 column, expected 2"),
        (LabelFormat(), "x\t1\nx\t\n", {}, "a.tsv:2: the target is empty"),
        (LabelFormat(), "x\ty\t \n", {"columns": ("1", "2", "3")}, "a.tsv:1: the label is empty"),
        (LabelFormat(), "x\t \t1\n", {"columns": ("1", "2", "3")}, "a.tsv:1: the target is empty"),
        (NumberFormat(), "x\t1.5\nx\tmany\n", {}, "a.tsv:2: found 'many', expected a number as the target"),
        (NumberFormat(), "x\tnan\n", {}, "a.tsv:1: found 'nan', expected a number"),
        (NumberFormat(), "x\t1\nx\t1 2\n", {}, "a.tsv:2: found '1 2' with 2 numbers as the target, expected 1 numbers"),
        (SeriesFormat(), "1;2 3\t3\n", {}, "a.tsv:1: found 1 numbers in '3', expected 2 as in the first step in the"),
        (SeriesFormat(), "1;2 3;4\t3\n1 2\t3\n", {}, "a.tsv:2: found 1 numbers in a step of the series, expected 2"),
        (SeriesLabelFormat(), "1 nan\ta\n", {}, "a.tsv:1: found 'nan', expected a number in the series"),
        (SeriesTagFormat(), "1\tup\n2x\tup\n\n", {}, "a.tsv:1: found '2x', expected a number in the series"),
        (SeriesFormat(), "1 2 x\t3\n", {}, "a.tsv:1: found 'x', expected a number in the series"),
    ],
)  # fmt: skip
def test_every_faulty_line_is_reported(
    tmp_path: Path, example_format: Any, text: str, settings: dict[str, Any], expected: str
) -> None:
    faults = [
        str(item) for item in read(example_format, tmp_path / "a.tsv", text, **settings) if isinstance(item, Fault)
    ]
    assert len(faults) == 1
    assert expected in faults[0]


def test_labels_are_sorted_and_unknown_ones_are_errors(tmp_path: Path) -> None:
    labels = LabelVocabulary.of(["pos", "neg", "pos", "so so"])
    assert labels.names == ("neg", "pos", "so so")
    labels.save(tmp_path, "target")
    again = load_tokenizer(tmp_path, "target")
    assert isinstance(again, LabelVocabulary)
    assert again.names == labels.names
    assert json.loads((tmp_path / "target.json").read_text())["labels"] == ["neg", "pos", "so so"]
    with pytest.raises(UnknownLabelError, match=r"found the label 'poz', .*neg, pos, so so.*Did you mean 'pos'"):
        again.label_id("poz")
    text = (tmp_path / "target.json").read_text()
    (tmp_path / "target.json").write_text(text.replace("neg", "bad"))
    with pytest.raises(RunError, match=r"target.json: damaged"):
        load_tokenizer(tmp_path, "target")
    with pytest.raises(DataError, match="at least two"):
        LabelVocabulary.of(["a", "a"])


@pytest.mark.parametrize("scale", ["standard", "range", "none"])
def test_decoding_inverts_the_scale(scale: Any, tmp_path: Path) -> None:
    numbers = NumberScaler.train(NumbersConfig(scale=scale), ["1 2", "-3.5 4e2"])
    scaled = numbers.encode("1 2 -3.5 4e2")
    if scale == "range":
        assert (min(scaled), max(scaled)) == (0.0, 1.0)
    if scale == "standard":
        assert sum(scaled) == pytest.approx(0.0, abs=1e-9)
        assert sum(value * value for value in scaled) == pytest.approx(4.0)
    assert numbers.decode(scaled) == "1 2 -3.5 400"
    numbers.save(tmp_path, "source")
    assert load_tokenizer(tmp_path, "source").encode("7") == numbers.encode("7")
    path = tmp_path / "source.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"shift": []}))
    with pytest.raises(RunError, match=r"source.json: damaged file of numbers \(found 0 shifts and 1 divisors"):
        load_tokenizer(tmp_path, "source")


def test_a_separator_of_its_own_joins_two_texts(tmp_path: Path) -> None:
    inner = train_tokenizer(CharactersConfig(), ["ab", "c"])
    joined = TextPairTokenizer(inner)
    row = joined.encode("ab\tc")
    assert row == [*inner.encode("ab"), len(inner), *inner.encode("c")]
    assert joined.decode(row) == "ab\tc"
    assert joined.spans("ab\tc") == [(0, 1), (1, 2), (2, 3), (3, 4)]
    joined.save(tmp_path, "source")
    again = load_tokenizer(tmp_path, "source")
    assert isinstance(again, TextPairTokenizer)
    assert again.encode("c\ta") == joined.encode("c\ta")
    with pytest.raises(DataError, match="input 4: found 1 text, expected two texts"):
        LabelFormat().encode_inputs(["abc"], joined, "input 4")


# ---------------------------------------------------------------------- sentences

CONLLU = """# text = I don't
1\tI\tI\tPRON\tPRP\t_\t2\tnsubj\t_\t_
2-3\tdon't\t_\t_\t_\t_\t_\t_\t_\t_
2\tdo\tdo\tAUX\tVBP\t_\t0\troot\t_\t_
3\tn't\tnot\tPART\tRB\t_\t2\tadvmod\t_\t_
3.1\tgone\t_\t_\t_\t_\t_\t_\t_\t_

# second
1\t1 000\t_\tNUM\tCD\t_\t_\t_\t_\t_
"""


def test_conllu_and_two_columns(tmp_path: Path) -> None:
    path = tmp_path / "a.conllu"
    path.write_text(CONLLU, encoding="utf-8")
    assert shown(list(read_conll(str(path)))) == ["I do n't|PRON AUX PART", "1\u00a0000|NUM"]
    assert shown(list(read_conll(str(path), ReadOptions(columns=("form", "xpos")))))[0] == "I do n't|PRP VBP RB"
    with pytest.raises(ConfigError, match="Did you mean 'xpos'"):
        list(read_conll(str(path), ReadOptions(columns=("form", "xposs"))))
    packed = tmp_path / "b.tsv.gz"
    packed.write_bytes(gzip.compress(b"\nThe\tDET\tDT\ndog\tNOUN\tNN\n\n\nruns\tVERB\tVBZ"))
    items = list(read_conll(str(packed), ReadOptions(columns=("1", "2"))))
    assert shown(items) == ["The dog|DET NOUN", "runs|VERB"]
    assert [item.location for item in items] == [f"{packed}:2", f"{packed}:6"]
    assert [item.word_lines for item in items] == [(2, 3), (6,)]  # type: ignore[union-attr]
    first = next(read_conll(str(path)))
    assert isinstance(first, Example)
    assert [first.word_location(word) for word in range(3)] == [f"{path}:{line}" for line in (2, 4, 5)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\tX\nlonely\n\nb\tY\n", ":2: found 1 column, expected 2"),
        ("a\tX\t1\n\nb\tY\n", ":1: found 3 columns, expected 2"),
        ("a\t\n\nb\tY\n", ":1: found no tag for 'a'"),
        ("\tX\n\nb\tY\n", ":1: the word is empty"),
        ("a\tX Y\n\nb\tY\n", ":1: found the tag 'X Y'"),
        ("a\x07\tX\n\nb\tY\n", ":1: found U+0007"),
    ],
)
def test_a_sentence_with_a_faulty_line_is_reported_and_skipped(tmp_path: Path, text: str, expected: str) -> None:
    found = shown(read(TagFormat(), tmp_path / "a.tsv", text))
    assert expected in found[0]
    assert found[1:] == ["b|Y"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("lines.tsv", "the dog runs\tDET NOUN VERB\nit\tPRON\na cat\tDET NOUN\n"),
        ("lines.csv", "words,tags\nthe dog runs,DET NOUN VERB\nit,PRON\na cat,DET NOUN\n"),
        ("spaces.txt", "-DOCSTART- -X-\n\nthe DET\ndog NOUN\nruns VERB\n\nit PRON\n\na DET\ncat NOUN\n"),
        ("columns.tsv", "-DOCSTART-\n\nthe\tDET\ndog\tNOUN\nruns\tVERB\n\nit\tPRON\n\na\tDET\ncat\tNOUN\n"),
        (
            "lists.jsonl",
            '{"source": ["the", "dog", "runs"], "target": ["DET", "NOUN", "VERB"]}\n'
            '{"source": ["it"], "target": ["PRON"]}\n{"source": "a cat", "target": "DET NOUN"}\n',
        ),
    ],
)
def test_usual_layouts_of_tagged_sentences(tmp_path: Path, name: str, text: str) -> None:
    """A line of words and a line of tags, columns between spaces, CSV and lists in JSON were all faults."""
    expected = ["the dog runs|DET NOUN VERB", "it|PRON", "a cat|DET NOUN"]
    assert shown(read(TagFormat(), tmp_path / name, text)) == expected


def test_more_columns_of_tags_are_explained(tmp_path: Path) -> None:
    path = tmp_path / "four.txt"
    path.write_text("the DT B-NP O\ndog NN I-NP O\n\nit PRP B-NP O\n", encoding="utf-8")
    faults = [item for item in read_conll(str(path)) if isinstance(item, Fault)]
    assert faults[0].detail == "found 4 columns, expected 2 (word and tag)"
    advice = 'Choose word and tag among the 4 columns with data.columns, such as ["1", "4"], correct the lines'
    assert advice in fault_message(faults, len(faults), 1000)
    assert shown(list(read_conll(str(path), ReadOptions(columns=("1", "3"))))) == ["the dog|B-NP I-NP", "it|B-NP"]


def test_lines_of_words_and_tags_must_match(tmp_path: Path) -> None:
    rows = '{"source": "a b", "target": "X Y"}\n{"source": "a b", "target": "X"}\n'
    found = shown(read(TagFormat(), tmp_path / "a.jsonl", rows))
    assert found[0] == "a b|X Y"
    assert "a.jsonl:2: found 2 words and 1 tags" in found[1]


@pytest.mark.parametrize(
    "config",
    [
        CharactersConfig(),
        WordsConfig(split="spaces"),
        WordsConfig(),
        SubwordsConfig(vocab_size=300),
        SubwordsConfig(vocab_size=300, algorithm="unigram"),
    ],
    ids=lambda config: f"{config.kind}-{getattr(config, 'split', '')}{getattr(config, 'algorithm', '')}",
)
def test_every_word_begins_at_a_token_of_its_own(config: Any) -> None:
    texts = ["the quick brown fox don't jump , over ( it ) .", "a bb ccc dddd", "Zürich ￭ 日本 \u2581x o'clock"]
    tokenizer = train_tokenizer(config, texts[:2])
    for text in texts:
        positions = word_positions(text, tokenizer)
        words = text.split(" ")
        assert len(positions) == len(words)
        assert positions == sorted(set(positions))
        spans = tokenizer.spans(text)
        assert len(spans) == len(tokenizer.encode(text))
        starts = [sum(len(word) + 1 for word in words[:index]) for index in range(len(words))]
        for position, start in zip(positions, starts, strict=True):
            first, end = spans[position]
            assert first <= start < end  # the first character of the word, perhaps with the space before


def test_a_feature_extractor_with_a_damaged_scale_is_refused(tmp_path: Path) -> None:
    FeatureExtractor(AudioConfig(), [0.0] * 80, [1.0] * 80).save(tmp_path, "source")
    load_reader(tmp_path, "source")
    with pytest.raises(RunError, match=r"source.json: found audio, expected a tokenizer"):
        load_tokenizer(tmp_path, "source")
    path = tmp_path / "source.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"deviation": 7}))
    with pytest.raises(RunError, match=r"source.json: damaged file of audio"):
        load_reader(tmp_path, "source")


WORDS = WordTokenizer(WordsConfig(), ["a", "b"])


@pytest.mark.parametrize(
    ("reader", "unit", "size", "line"),
    [
        (WORDS, "tokens", "vocabulary 6", "source vocabulary: 6 words"),
        (TextPairTokenizer(WORDS), "tokens", "vocabulary 7", "source vocabulary: 7 words"),
        (LanguageTagTokenizer(WORDS, ["de"]), "tokens", "vocabulary 7", "source vocabulary: 7 words"),
        (LabelVocabulary(["x", "y"]), "tokens", "2 labels", "source vocabulary: 2 labels"),
        (NumberScaler(NumbersConfig()), "numbers", "numbers", 'source: numbers (scale = "standard")'),
        (FeatureExtractor(AudioConfig()), "frames", "80 features", f"source: {AudioConfig().summary}"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, SourceReader) else "",
)
def test_every_reader_answers_what_others_ask(reader: SourceReader, unit: str, size: str, line: str) -> None:
    """So that nobody has to ask for its class."""
    assert (reader.unit, reader.size, reader.describe("source")) == (unit, size, line)
    assert reader.innermost is (WORDS if len(reader) in (6, 7) else reader)
    assert reader.reads_files == isinstance(reader, FeatureExtractor) != isinstance(reader, Tokenizer)
    assert (reader.separator is None) != isinstance(reader, TextPairTokenizer)
    assert reader.names == (("x", "y") if isinstance(reader, LabelVocabulary) else ())
