"""Document context and tags from a column: what training reads is what prediction reads, and the model uses it."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import dragoman
from dragoman.data.examples import Example, Fault
from dragoman.data.readers.base import ReadOptions
from dragoman.data.readers.pairs import read_pairs
from dragoman.data.tokenizers.characters import CharactersConfig, CharacterTokenizer
from dragoman.data.tokenizers.context import ContextTokenizer
from dragoman.data.tokenizers.language_tags import LanguageTagTokenizer
from dragoman.data.translation_memory import TranslationMemory
from dragoman.decoding.constraints.spec import ConstrainedInput
from dragoman.decoding.options import DecodingOptions
from dragoman.inference.predictor import Predictor, SearchWork
from dragoman.runs import Run
from dragoman.runs.tasks.table import task_of
from dragoman.serving.config import ModelConfig, ServeConfig
from dragoman.serving.models import BatchWork, ServedModel
from tests.conftest import SMALL, CommandResult, call, quiet_machine, write_rows

NAMES = "abcdef"


def document(draw: random.Random) -> list[tuple[str, str, str]]:
    """A name, then "?", whose translation is the name, loud or not: neither is in the source alone."""
    name, style = draw.choice(NAMES), draw.choice(("loud", "soft"))
    said = name.upper() if style == "loud" else name
    return [(name * 2, said * 2, style), ("?", said, style)]


@dataclass(frozen=True)
class Trained:
    """A folder with documents and a run that reads the sentence before and a tag."""

    folder: Path
    run: Path
    training: CommandResult


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trained]:
    folder, draw = tmp_path_factory.mktemp("context"), random.Random(1)
    blocks = ["".join("\t".join(row) + "\n" for row in document(draw)) for _ in range(150)]
    (folder / "train.tsv").write_text("\n".join(blocks))  # a blank line between documents
    (folder / "valid.tsv").write_text("\n".join(blocks[:20]))
    with quiet_machine(folder / "cache"):
        result = call(
            "train", folder / "train.tsv", "--run", folder / "run", *SMALL, "data.context=1", "data.tag_column=3",
            f"data.valid={folder / 'valid.tsv'}", "tokenizer.source.kind=characters", "train.steps=120",
            "train.batch_tokens=256", "train.validate_every=60", "train.optimizer.learning_rate=1e-2",
            "train.optimizer.warmup=20", "train.average.kind=none",
        )  # fmt: skip
        assert result.code == 0, result.err
        yield Trained(folder, folder / "run", result)


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The token ids that models read, in the order of the inputs."""
    read: list[list[int]] = []
    outputs = SearchWork.outputs

    def recorded(self: SearchWork, rows: Any, done: Any) -> Any:
        read.extend(list(row.source) for row in rows)
        return outputs(self, rows, done)

    monkeypatch.setattr(SearchWork, "outputs", recorded)
    return read


def test_training_and_every_way_to_predict_read_the_same_tokens(trained: Trained, rows: list[list[int]]) -> None:
    run = Run(trained.run)
    corpus = task_of(run.config).prepare(run.config)
    stored = [row.tolist() for row in corpus.valid.source.rows(range(len(corpus.valid)))]
    predictor = dragoman.load(trained.run)
    separator = predictor.source_tokenizer.separator
    assert [row.count(separator) for row in stored[:4]] == [0, 1, 0, 1]
    scores = call("evaluate", trained.run, trained.folder / "valid.tsv", "--json")
    assert scores.code == 0, scores.err
    assert rows == stored
    rows.clear()
    lines = [line.split("\t") for line in (trained.folder / "valid.tsv").read_text().split("\n")]
    tagged = [f"<2{line[2]}> {line[0]}" if len(line) > 1 else "" for line in lines]
    predicted = [prediction.text for prediction in predictor.predict(tagged)]
    assert rows == stored
    rows.clear()
    text = trained.folder / "input.txt"
    text.write_text("".join(f"{line}\n" for line in tagged))
    assert call("predict", trained.run, text).lines == predicted
    assert rows == stored
    rows.clear()
    list(predictor.stream(iter(tagged), window=1))  # one by one, as in a pipe
    assert rows == stored


def test_the_model_answers_by_the_sentence_before_and_the_tag(trained: Trained) -> None:
    predictor = dragoman.load(trained.run)
    assert predictor.evaluate(trained.folder / "valid.tsv").scores["exact_match"] > 0.9
    answers = {
        (name, tag): [output.text for output in predictor.predict([name * 2, "?"], tag=tag)]
        for name in NAMES
        for tag in ("loud", "soft")
    }
    right = [answers[name, tag][1] == (name.upper() if tag == "loud" else name) for name, tag in answers]
    assert sum(right) >= 11
    # A text may bring its context along; one sentence alone has none.
    brought = predictor.predict(["bb\t?", "cc\t?"], tag="loud")
    assert [output.text for output in brought] == [answers["b", "loud"][1], answers["c", "loud"][1]]


def test_documents_and_requests_keep_their_sentences_apart(trained: Trained, rows: list[list[int]]) -> None:
    page = trained.folder / "page.md"
    page.write_text("bb\n\n?\n\nbb\n\n?\n")
    result = call("translate", trained.run, page, "--tag", "loud", "--output", trained.folder / "out.md")
    assert result.code == 0, result.err
    separator = dragoman.load(trained.run).source_tokenizer.separator
    assert separator in rows[1]
    rows.clear()
    served = ServedModel(ModelConfig(run=str(trained.run)), ServeConfig(models=(ModelConfig(run=str(trained.run)),)))
    served.predict(
        DecodingOptions(tag="loud"), [ConstrainedInput("bb"), ConstrainedInput("?"), ConstrainedInput("cc\t?")]
    )
    assert [row.count(separator) for row in rows] == [0, 0, 1]
    pairs = [("<2loud> bb", "B"), ("<2loud> ?", "B"), ("<2loud> cc\t?", "C")]
    together = served.run(BatchWork(served.name, "score"), pairs)
    for pair, scored in zip(pairs, together, strict=True):
        (alone,) = served.run(BatchWork(served.name, "score"), [pair])
        assert alone.token_scores == pytest.approx(scored.token_scores, abs=1e-4)


def test_a_context_that_does_not_fit_is_left_out_from_its_beginning() -> None:
    inner = CharacterTokenizer.train(CharactersConfig(), ["abcdef"])
    tokenizer = ContextTokenizer(inner, 2, limit=8)

    def pieces(text: str) -> str:
        ids = tokenizer.encode(text)
        assert len(ids) == len(tokenizer.spans(text))
        return "".join(tokenizer.pieces(ids)).replace("<sep>", "|")

    assert pieces("ab\tcd\tef") == "ab|cd|ef"
    assert pieces("aa\tab\tcd\tef") == "ab|cd|ef"
    assert pieces("abc\tcd\tef") == "cd|ef"
    assert pieces("abcdef\tef") == pieces("\tef") == pieces("ef") == "ef"
    assert pieces("abcdefabc") == "abcdefabc"  # whether a source itself fits is for others to say
    tagged = LanguageTagTokenizer(tokenizer, ["de"])
    assert tagged.pieces(tagged.encode("<2de> ab\tcd")) == ["<2de>", "a", "b", "<sep>", "c", "d"]
    assert tokenizer.fingerprint() != ContextTokenizer(inner, 1, limit=8).fingerprint()


def test_tags_and_documents_come_from_columns(tmp_path: Path) -> None:
    options = ReadOptions(tag_column="3", document_column="4")
    path = write_rows(tmp_path / "a.tsv", [("a", "b", "de", "x"), ("a", "b", "d e", "x"), ("a", "b", "de")])
    found = list(read_pairs(path, options))
    assert isinstance(found[0], Example)
    assert (found[0].tag, found[0].document, found[0].references) == ("de", "x", ("b",))
    assert "found 'd e' in column 3" in str(found[1])
    assert isinstance(found[2], Fault)
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"source": "a", "target": ["b", "c"], "style": 1}) + "\n")
    (item,) = read_pairs(path, ReadOptions(tag_column="style", several_references=True))
    assert isinstance(item, Example)
    assert (item.tag, item.references) == ("1", ("b", "c"))


def test_what_makes_no_sense_is_refused(trained: Trained, tmp_path: Path) -> None:
    pairs, run = trained.folder / "train.tsv", trained.run
    other = write_rows(tmp_path / "valid.tsv", [("aa", "AA", "lout"), ("?", "A", "loud")])
    two = write_rows(tmp_path / "two.tsv", [("aa", "AA"), ("b", "B")])
    new = ("--run", str(tmp_path / "new"))
    for arguments, message in (
        (("train", pairs, *new, "data.context=1", "data.tag_column=3", "preset=ngram-transducer"), "single texts"),
        (("train", pairs, *new, "data.context=1", "data.tag_column=3", "preset=wu-2019-small"), "with attention"),
        (("train", pairs, *new, "data.context=17", "data.tag_column=3"), "data.context"),
        (("train", pairs, *new, "data.context=1", "data.tag_column=3", "task=classify"), "only task"),
        (("train", pairs, *new, "data.document_column=3"), "which is for data.context"),
        (("train", pairs, *new, "data.tag_column=3", "data.context=1", f"data.valid={other}"), "Did you mean 'loud'"),
        (("train", two, *new, "data.tag_column=3"), "found 2 columns"),
        (("train", two, *new, "data.tag_column=style", "data.header=true"), "found 'style'"),
        (("evaluate", run, two), "found 2 columns"),
        (("predict", run, two), "found no tag"),
        (("predict", run, two, "--tag", "quiet"), "quiet"),
        (("predict", run, two, "--tag", "loud", "--shards", tmp_path / "shards"), "a shard may not have"),
        (("distil", run), "which distil does not support"),
        (("adapt", run, two), "found data.context"),
        (("curve", pairs, *new, "data.context=1", "data.tag_column=3"), "tags, weights or a context"),
        (("export", run, "--to", "onnx", "--output", tmp_path / "out"), "data.context and data.memory"),
    ):
        result = call(*arguments)
        assert (result.code, message in result.err) == (2, True), (arguments, result.err)


def test_pairs_in_memory_are_sentences_of_one_document(trained: Trained, rows: list[list[int]]) -> None:
    predictor: Predictor = dragoman.load(trained.run)
    predictor.evaluate([("bb", "BB"), ("?", "B")], tag="loud")
    assert [row.count(predictor.source_tokenizer.separator) for row in rows] == [0, 1]


def test_a_model_reads_the_translation_of_a_similar_training_source(
    tmp_path: Path, cached: Path, rows: list[list[int]]
) -> None:
    """Neural fuzzy repair: never its own pair in training, the match of --memory in prediction."""
    words = ["the", "cat", "sat", "on", "a", "mat", "dog", "ran", "by", "old", "new", "red"]
    draw = random.Random(1)
    sources = list(dict.fromkeys(" ".join(draw.choices(words, k=5)) for _ in range(60)))
    pairs = write_rows(tmp_path / "pairs.tsv", [(text, text.upper()) for text in sources])
    run = tmp_path / "run"
    config = {
        "data": {"train": str(pairs), "valid": str(pairs), "memory": 0.4, "max_length": 20},
        "tokenizer": {"source": {"kind": "words"}},
        "model": {
            side: {"kind": "transformer", "layers": 1, "width": 16, "heads": 2} for side in ("encoder", "decoder")
        },
        "train": {"steps": 2, "validate_every": 2, "decode": 2, "optimizer": {"warmup": 1}},
    }
    predictor = dragoman.train(config, run, quiet=True)
    corpus = task_of(predictor.config).prepare(predictor.config)
    decoded = [predictor.source_tokenizer.decode(row) for row in corpus.train.source.rows(range(len(corpus.train)))]
    read = [text.split("\t") for text in decoded]
    matched = [parts for parts in read if len(parts) == 2]
    assert 5 < len(matched) <= len(sources)
    assert all(parts[0] == parts[0].upper() and parts[0] != parts[1].upper() for parts in matched)
    predictor.predict(sources, memory=TranslationMemory([(text, text.upper()) for text in sources]))
    assert not rows  # the memory has all of them: nothing is searched
    others = TranslationMemory([(text, text.upper()) for text in sources[1:]])
    predictor.predict([sources[0], "zzz"], memory=others)
    assert predictor.source_tokenizer.decode(rows[0]) == decoded[0]
    assert len(rows[1]) == 1
    result = call("train", pairs, "--run", tmp_path / "two", "data.memory=0.5", "tokenizer.target.kind=words")
    assert (result.code, "leave tokenizer.target out" in result.err) == (2, True), result.err
