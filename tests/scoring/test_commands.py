"""The commands `dragoman score` and `dragoman compare`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from dragoman.scoring import corrections, sacrebleu
from dragoman.scoring.registry import SCORE_DEFAULTS, metrics_for
from tests.conftest import call
from tests.scoring.test_significance import systems


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    outputs, references = systems(40)
    texts = {"refs": [texts[0] for texts in references], **outputs}
    texts["two"] = [f"{text}\t{text} again" for text in texts["refs"]]
    texts["tags"] = [f"<2{'de' if number % 3 else 'fr'}> {text}" for number, text in enumerate(texts["refs"])]
    for name, lines in texts.items():
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return tmp_path


METRICS = {**metrics_for("phonemes"), **metrics_for("words")}  # WER of words, not of phonemes
MORE = [metric.name for metric in sacrebleu.METRICS if metric.needs]  # a package, or a download
MORE += [metric.name for metric in corrections.METRICS]  # the sources


def test_help_names_every_metric() -> None:
    help_text = " ".join(re.sub(r"-\s+", "-", call("score", "-h").out).replace(",", " ").split())
    for name in (*METRICS, *MORE):
        assert f"{name} " in help_text


def test_the_documentation_lists_every_metric() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "scoring.md").read_text(encoding="utf-8")
    table = page.partition("| name | label |")[2].partition("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.split("\n")[2:]]
    assert {row[0] for row in rows if row[0] not in {f"`{name}`" for name in METRICS}} == {f"`{name}`" for name in MORE}
    rows = [row for row in rows if row[0].strip("`") in METRICS]
    assert [row[0] for row in rows] == [f"`{name}`" for name in METRICS]
    for row, metric in zip(rows, METRICS.values(), strict=True):
        assert row[1] == metric.label
        assert row[3] == ("higher" if metric.higher_is_better else "lower")


def test_default_and_named_metrics(folder: Path) -> None:
    usual = json.loads(call("score", "base", "refs", "--json").out)
    assert set(usual) == {*SCORE_DEFAULTS["words"], "segments", "signatures", "terms"}
    assert set(usual["terms"]["bleu"]) >= {"precisions", "brevity_penalty", "output_length", "reference_length"}
    asked = json.loads(call("score", "base", "refs", "two", "--metric", "ter", "--metric", "rouge-l", "--json").out)
    assert set(asked) == {"ter", "rouge-l", "segments", "signatures"}
    assert asked["signatures"]["ter"].startswith("nrefs:3|case:lc|tok:tercom")
    everything = json.loads(call("score", "base", "refs", "--metric", "all", "--json").out)
    assert set(METRICS) - set(everything) == {"per"}
    shown = call("score", "base", "refs", "--metric", "meteor_exact_stem", "--intervals").lines[0]
    assert shown.startswith("METEOR (exact+stem) ")
    assert " to " in shown


def test_intervals_contain_the_score_and_follow_the_seed(folder: Path) -> None:
    one, again, other = (
        json.loads(call("score", "base", "refs", "--intervals", "--draws", "50", "--seed", seed, "--json").out)
        for seed in ("3", "3", "4")
    )
    assert one == again
    assert one["intervals"] != other["intervals"]
    for name, (low, high) in one["intervals"].items():
        assert low < one[name] < high


def test_alignments_are_printed_and_drawn(folder: Path) -> None:
    (folder / "h").write_text("EXECUTION\nmoney\n")
    (folder / "r").write_text("INTENTION\nmonkey\n")
    options = ("--alignment", "--characters", "--table", "--substitution", "2", "--plot", "table.png")
    result = call("score", "h", "r", "--metric", "cer", *options)
    assert result.code == 0, result.err
    assert result.lines[:4] == [
        "line 1: 3 S, 1 I, 1 D of 9 characters, cost 8",
        "I N T E * N T I O N",
        "* E X E C U T I O N",
        "D S S   I S",
    ]
    assert "all lines: 3 S, 1 I, 2 D of 15 characters, 40.00 %" in result.lines
    assert Path("table.png").stat().st_size > 5_000
    counted = json.loads(call("score", "h", "r", "--alignment", "--characters", "--json").out)["alignment"]
    assert counted[0] == {"substitutions": 5, "insertions": 0, "deletions": 0, "matches": 4, "cost": 5}
    assert counted[1]["deletions"] == 1


def test_bleu_is_taken_apart(folder: Path) -> None:
    (folder / "h").write_text("the cat sat on the mat\n")
    (folder / "r").write_text("the cat is on the mat\n")
    result = call("score", "h", "r", "--metric", "bleu", "--ngrams")
    assert result.code == 0, result.err
    assert "  3-grams    1 of 4     the cat sat  cat sat on  sat on the  [on the mat]" in result.lines
    assert "brevity penalty 1.0000: 6 tokens of output, 6 of references" in result.lines
    terms = json.loads(call("score", "h", "r", "--metric", "bleu", "--ngrams", "--json").out)
    assert terms["ngrams"]["bleu"]["score"] == terms["bleu"]
    assert terms["ngrams"]["bleu"]["matches"] == [5, 3, 1, 0]


def test_buckets(folder: Path) -> None:
    options = ("--source", "refs", "--by-length", "--by-frequency", "worse", "--by-tag", "tags", "--metric", "chrf")
    found = json.loads(call("score", "base", "refs", *options, "--draws", "20", "--json").out)
    for key in ("by_length", "by_frequency", "by_tag"):
        assert sum(group["segments"] for group in found[key]["chrf"]) == 40
    assert [(group["label"], group["segments"]) for group in found["by_tag"]["chrf"]] == [("de", 26), ("fr", 14)]
    tagged = json.loads(call("score", "base", "refs", "--source", "tags", *options[2:], "--draws", "20", "--json").out)
    assert tagged == found  # a tag is no word
    assert call("score", "base", "refs", "--by-tag", "tags", "--plot", "tags.png").code == 0
    result = call("score", "base", "refs", "--by-length", "--metric", "wer", "--plot", "cut.png")
    assert result.lines[0].startswith("words of the reference  segments          WER  95 % interval")
    assert Path("cut.png").stat().st_size > 5_000


def test_compare(folder: Path) -> None:
    result = call("compare", "refs", "base", "same", "better", "--metric", "bleu", "--plot", "c.png", "--draws", "100")
    assert result.code == 0, result.err
    assert result.lines[3].split()[-2:] == ["1.000", "1.000"]
    assert float(result.lines[4].split()[-1]) < 0.05
    assert Path("c.png").stat().st_size > 5_000
    rows = json.loads(call("compare", "two", "base", "worse", "--draws", "50", "--json").out)
    assert [row["metric"] for row in rows] == [name for name in SCORE_DEFAULTS["words"] for _ in range(2)]
    assert rows[0]["versus"] is None
    assert rows[1]["versus"]["better"] is False
    assert rows[1]["signature"].startswith("nrefs:2|")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("score base refs --metric blue", "metric: found 'blue', which is no metric. Did you mean 'bleu'?"),
        ("score base refs --by-frequency refs", "--by-frequency needs --source"),
        (
            "score base refs --source refs",
            "--source is read for --by-length, --by-frequency and --metric f0.5: found none of them",
        ),
        ("score base refs --table", "--table needs --alignment"),
        ("score base refs --substitution 2", "--substitution needs --alignment"),
        ("score base refs --draws 50", "--draws needs --intervals, --by-length, --by-frequency or --by-tag"),
        ("score base refs --draws-seed 5", "--seed needs --intervals, --by-length, --by-frequency or --by-tag"),
        ("score base refs --plot x.png", "--plot draws one thing: found nothing to draw, expected one of --by-length"),
        ("score base refs --plot x.png --alignment --by-length", "found --by-length, --alignment, expected one of"),
        ("score base refs --plot x.jpg --by-length", "x.jpg: found ending '.jpg', expected .png, .svg or .pdf"),
        ("score base refs --by-tag short", "short: found 1 lines, expected 40 as in base"),
        (
            "score base refs --metric wer --ngrams",
            "no n-grams to show: found the metrics wer, expected bleu among them",
        ),
        ("compare refs base", "nothing to compare: found one system (base), expected a baseline and another"),
        ("compare refs base base", "base: found twice, expected each system once"),
        ("compare refs base short", "short: found 1 lines, expected 40 as in base"),
        ("compare short base same", "short: found 1 lines, expected 40 as in base"),
    ],
)
def test_errors_are_one_line(folder: Path, arguments: str, message: str) -> None:
    (folder / "short").write_text("x\n")
    result = call(*arguments.split())
    assert result.code == 2
    assert result.out == ""
    assert message in result.err
    assert result.err.count("\n") == 1
