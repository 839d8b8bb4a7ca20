"""`dragoman predict` reads the same sources as `dragoman evaluate`, and answers every line."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from dragoman.inference.load import load_run
from tests.conftest import TrainedFolder, call, quiet_machine, words, write_rows

TINY = ("train.steps=2", "train.validate_every=2", "model.encoder.layers=1", "model.encoder.width=16")


@pytest.fixture(scope="module")
def plain(trained_folder: TrainedFolder) -> list[str]:
    """The outputs for the sources alone, one per line."""
    texts = words(6, seed=5)
    with quiet_machine(trained_folder.folder / "cache"), contextlib.chdir(trained_folder.folder):
        return [
            *texts,
            *call("predict", trained_folder.run, stdin="".join(f"{text}\n" for text in texts).encode()).lines,
        ]


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("labels")
    rows = [(word, "even" if len(word) % 2 == 0 else "odd") for word in words(60)]
    write_rows(folder / "labels.tsv", rows)
    with quiet_machine(folder / "cache"), contextlib.chdir(folder):
        result = call("train", "labels.tsv", "task=classify", *TINY)
    assert result.code == 0, result.err
    return folder / "runs" / "labels"


def test_references_are_left_out(inside: TrainedFolder, plain: list[str]) -> None:
    sources, outputs = plain[:6], plain[6:]
    pairs = write_rows(inside.folder / "some.tsv", [(text, text.upper(), "other") for text in sources])
    records = [{"source": text, "target": text.upper(), "id": number} for number, text in enumerate(sources)]
    objects = inside.write("some.jsonl", "".join(json.dumps(record) + "\n" for record in records))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(records), inside.folder / "some.parquet")
    turned = write_rows(inside.folder / "turned.tsv", [("x", "in"), *(("1", text) for text in sources)])
    single = inside.write("single.tsv", "".join(f"{text}\n" for text in sources))
    for arguments in (
        (pairs,),
        (objects,),
        (inside.folder / "some.parquet",),
        (single,),
        (turned, "data.columns=in", "data.header=true"),
    ):
        result = call("predict", inside.run, *arguments)
        assert (result.code, result.lines, result.err) == (0, outputs, ""), arguments


def test_a_row_read_as_a_whole_line_is_reported(inside: TrainedFolder, plain: list[str]) -> None:
    piped = "".join(f"{text}\tX\n" for text in plain[:6]).encode()
    result = call("predict", inside.run, stdin=piped)
    assert result.err.count("warning: input 1 has a tab and is read as one source") == 1
    assert call("predict", inside.run, "data.columns=1", stdin=piped).lines == plain[6:]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            '{"target": "a"}',
            'some.jsonl:1: found "target", expected a text "source" (data.columns names another field)',
        ),
        ('{"source": "a", "requrie": "b"}', "some.jsonl:1: found the field 'requrie'. Did you mean 'require'?"),
        ("[" * 100_000, "some.jsonl:1: found no JSON"),
    ],
)
def test_a_wrong_object_is_explained(inside: TrainedFolder, line: str, message: str) -> None:
    inside.write("some.jsonl", line + "\n")
    result = call("predict", inside.run, "some.jsonl")
    assert result.code == 2
    assert message in result.err


def test_a_classifier_ignores_the_labels_of_a_file(classifier: Path, tmp_path: Path, cached: Path) -> None:
    texts = words(5, seed=9)
    alone = call("predict", classifier, stdin="".join(f"{text}\n" for text in texts).encode())
    assert alone.code == 0, alone.err
    pairs = write_rows(tmp_path / "test.tsv", [(text, "odd") for text in texts])
    assert call("predict", classifier, pairs).lines == alone.lines
    objects = tmp_path / "test.jsonl"
    objects.write_text("".join(json.dumps({"source": text, "target": "odd"}) + "\n" for text in texts))
    assert call("predict", classifier, objects).lines == alone.lines


def test_a_long_line_costs_the_others_nothing(inside: TrainedFolder, plain: list[str]) -> None:
    first, second = plain[0], plain[1]
    sentences = " ".join(["abcd"] * 300)
    lines = inside.write("long.txt", f"{first}\n{'x' * 12_000}\n{sentences}\n{second}\n{'ab' * 400}\n")
    result = call("predict", inside.run, lines)
    assert result.code == 0
    assert (result.lines[0], result.lines[3]) == (plain[6], plain[7])
    assert (
        "long.txt:2: found 12,000 characters, expected at most data.max_characters = 10,000; read in 64" in result.err
    )
    assert len(result.lines[1]) >= 64
    assert "long.txt:3: found 1,499 tokens, expected at most data.max_length = 256; read in 8 parts" in result.err
    assert len(result.lines[2].split(" ")) >= 8
    assert "long.txt:5: found 800 tokens" in result.err
    shorter = inside.write("shorter.txt", f"{sentences}\n{second}\n")
    records = [json.loads(line) for line in call("predict", inside.run, shorter, "--json", "--n-best", "2").lines]
    assert [record["text"] for record in records] == result.lines[2:4]
    constrained = call("predict", inside.run, shorter, "constraints.forbid=Q")
    assert constrained.lines[1] == plain[7]
    assert "Q" not in constrained.lines[0]
    refused = call("predict", inside.run, lines, "--json", "constraints.require=AB")
    assert refused.code == 1
    assert (
        "long.txt:3: found 1,499 tokens, expected at most data.max_length = 256; a text that is read in" in refused.err
    )
    assert "3 inputs were too long and have no output" in refused.err
    records = [json.loads(line) for line in refused.lines]
    assert [record["text"] == "" for record in records] == ["refused" in record for record in records]
    assert ["refused" in record for record in records] == [False, True, True, False, True]


def test_a_classifier_leaves_out_a_line_that_is_too_long(classifier: Path, cached: Path) -> None:
    result = call("predict", classifier, stdin=f"ab\n{'a ' * 50_000}\ncd\n".encode())
    assert (result.code, result.lines[1]) == (1, "")
    assert all(result.lines[row] in ("even", "odd") for row in (0, 2))
    assert "input 2: found 100,000 characters" in result.err


def test_unknown_characters_are_named(inside: TrainedFolder) -> None:
    result = call("predict", inside.run, stdin="abc\naéc\nß\n".encode())
    assert "2 inputs have characters or words that training did not have: 'é', 'ß'" in result.err
    assert "unknown" not in call("predict", inside.run, stdin=b"abc\n").err


def test_comma_separated_sources_are_read_as_the_run_read_its_data(
    inside: TrainedFolder, plain: list[str], classifier: Path
) -> None:
    """The reference was read as part of the source, and a header as a text."""
    rows = "".join(f"{text},{text.upper()}\n" for text in plain[:6])
    for name, content in (("some.csv", rows), ("headed.csv", f"source,target\n{rows}")):
        result = call("predict", inside.run, inside.write(name, content))
        assert (result.code, result.lines, result.err) == (0, plain[6:], ""), name
    labels = "".join(f"{word},{'even' if len(word) % 2 == 0 else 'odd'}\n" for word in words(20))
    named = inside.write("named.csv", f"text,kind\n{labels}")
    result = call("train", named, "task=classify", "data.header=true", "--run", "runs/named", *TINY)
    assert result.code == 0, result.err
    assert len(call("predict", "runs/named", named).lines) == 20
    scores = call("evaluate", "runs/named", named, "--json")
    assert json.loads(scores.out)["segments"] == 20
    assert f"warning: {named} is training data of this run" in scores.err


def test_unknown_characters_of_labelled_texts_are_reported(classifier: Path) -> None:
    result = call("predict", classifier, stdin=f"{words(60)[0]}\nÅÅ\n".encode())
    assert len(result.lines) == 2
    assert "warning: 1 input has characters or words that training did not have: 'ÅÅ'" in result.err
    typed = call("repl", classifier, stdin=":why\n:beam x\n:nothing\nÅÅ\n".encode())
    assert ':why is for runs that search for a text; this one has task = "classify"' in typed.err
    assert "found ':nothing', expected one of these" in typed.err
    assert "training did not have" in typed.err


def test_a_file_without_the_header_of_the_training_file_loses_no_line(inside: TrainedFolder) -> None:
    """Its first line was left out without a word."""
    rows = [(word, "even" if len(word) % 2 == 0 else "odd") for word in words(20)]
    headed = write_rows(inside.folder / "headed.tsv", [("text", "kind"), *rows])
    bare = write_rows(inside.folder / "bare.tsv", rows[:5])
    other = write_rows(inside.folder / "other.tsv", [("Wort", "Art"), *rows[:5]])
    assert call("train", headed, "task=classify", "data.header=true", "--run", "runs/headed", *TINY).code == 0
    result = call("predict", "runs/headed", bare)
    assert len(result.lines) == 5
    assert "bare.tsv:1 is not the header of the training file and is read as data; add data.header=true" in result.err
    assert len(call("predict", "runs/headed", other, "data.header=true").lines) == 5
    assert len(call("predict", "runs/headed", headed).lines) == 20


@pytest.mark.filterwarnings("default")
def test_a_classifier_reads_the_beginning_of_a_text_that_is_too_long(inside: TrainedFolder) -> None:
    """One such text stopped an evaluation. The longer of two texts gives way."""
    rows = [(f"{word} b c", f"{word} d", "even" if len(word) % 2 == 0 else "odd") for word in words(40)]
    pairs = write_rows(inside.folder / "two.tsv", rows)
    bert = ("kind=bert", "layers=1", "width=16", "heads=2", "feedforward=32", "max_positions=10")
    result = call(
        "train", pairs, "task=classify", 'data.columns=["1","2","3"]', "data.max_length=9", "train.steps=2",
        "train.validate_every=2", "--run", "runs/two", *(f"model.encoder.{setting}" for setting in bert),
    )  # fmt: skip
    assert result.code == 0, result.err
    word = rows[0][0].split()[0]
    long = write_rows(inside.folder / "long.tsv", [(f"{word} b c" + " b" * 3000, f"{word} d", "odd")] * 2)
    result = call("evaluate", "runs/two", long, "--json")
    assert result.code == 0, result.err
    assert json.loads(result.out)["segments"] == 2
    assert result.err.count("the end of the text is not read") == 2
    labeler = load_run("runs/two", "cpu")
    separator = labeler.source_tokenizer.separator
    cut = labeler.readable_part([5, 6, 7, 8, 9, 5, 6, 7, separator, 5, 6], "input 1", lambda line: None)
    assert cut == [5, 6, 7, 8, 9, 5, separator, 5, 6]
