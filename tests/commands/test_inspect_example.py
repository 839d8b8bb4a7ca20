"""`dragoman inspect` and `dragoman compare` from the command line."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest
import torch

from dragoman.inference.load import load_run
from dragoman.inspect.views.inspection import open_variant
from dragoman.models.registry import has_attention
from tests.conftest import QUICK, SMALL, TrainedFolder, call, write_rows


def test_inspect_writes_pages_numbers_and_figures(inside: TrainedFolder) -> None:
    assert call("inspect", inside.run, "abc", "-o", "page.html").code == 0
    page = Path("page.html").read_text(encoding="utf-8")
    assert "Content-Security-Policy" in page
    assert call("inspect", inside.run, "abc", "--target", "ABD", "-o", "numbers.json").code == 0
    numbers = json.loads(Path("numbers.json").read_text(encoding="utf-8"))
    assert numbers["target"]["tokens"] == ["A", "B", "D", "<eos>"]
    kinds = [view["kind"] for view in numbers["views"]]
    assert {"overview", "attention", "beam", "next", "whatif", "tables", "layers"} <= set(kinds)
    weights = numbers["views"][kinds.index("attention")]["data"]["layers"][-1]["weights"]
    assert sum(weights[0][0]) == pytest.approx(1, abs=1e-5)
    for kind in ("attention", "beam", "next", "whatif"):
        assert call("inspect", inside.run, "abc", "--view", kind, "-o", f"{kind}.svg").code == 0
        assert Path(f"{kind}.svg").read_text(encoding="utf-8").startswith("<?xml")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("abc", "-o", "page.txt"), "expected a file that ends in .html, .json, .svg, .png or .pdf"),
        ((" ", "-o", "page.html"), "found empty text"),
        (("abc", "-o", "page.html", "--layer", "1"), "--layer goes with .svg, .png or .pdf"),
        (("abc", "-o", "x.svg", "--view", "gates"), "found 'gates', expected one of"),
        (("abc", "-o", "x.svg", "--beside", "untrained"), "--beside goes with .html or .json"),
        (("abc", "--beside", "nothing"), "nothing"),
        (("abc", "-o", "x.svg", "--layer", "99"), "--layer: found '99', expected 1 to"),
    ],
)
def test_inspect_names_mistakes(inside: TrainedFolder, arguments: tuple[str, ...], complaint: str) -> None:
    result = call("inspect", inside.run, *arguments)
    assert result.code == 2
    assert complaint in result.err


def test_compare_trains_configurations_and_resumes(inside: TrainedFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman.inspect.measure.comparison.COST_LENGTHS", (16, 32, 64))
    for name, seed in (("one", 1), ("two", 2)):
        table = f'preset = "demo-rnn"\n[data]\ntrain = "pairs.tsv"\n[train]\nseed = {seed}\n'
        inside.write(f"{name}.toml", table)
    inside.write("counts.toml", 'preset = "ngram-transducer"\n[data]\ntrain = "pairs.tsv"\n')
    settings = [part for override in (*SMALL, *QUICK) if override.startswith("train.") for part in ("--set", override)]
    configs = ("one.toml", "two.toml", "counts.toml")
    command = ("compare", *configs, inside.run, "--test", "test.tsv", "--steps", "2", "--draws", "20")
    result = call(*command, *settings, "--metric", "cer", "--output", "report.json")
    assert result.code == 0, result.err
    report = json.loads(Path("report.json").read_text(encoding="utf-8"))
    kinds = {view["kind"] for view in report["views"]}
    assert {"scores", "curves", "lengths", "significance", "outputs", "attentions", "cost"} <= kinds
    rows = next(view for view in report["views"] if view["kind"] == "scores")["data"]["rows"]
    assert [row["name"] for row in rows] == ["pairs", "one", "two", "counts"]
    assert all(row["parameters"] > 0 for row in rows)
    assert all(row["activation_bytes"] > 0 for row in rows[:3])
    assert rows[3]["activation_bytes"] is None
    again = call(*command, *settings, "--metric", "cer", "--json")
    assert "one, seed 1: trained already" in again.err
    assert "counts, seed 1: trained already" in again.err
    assert [row["name"] for row in json.loads(again.out)["rows"]] == ["pairs", "one", "two", "counts"]


def test_compare_texts_writes_a_report(inside: TrainedFolder) -> None:
    for name, lines in (("ref.txt", "a b\nc d\n"), ("one.txt", "a b\nc e\n"), ("two.txt", "a\nx\n")):
        inside.write(name, lines)
    result = call(
        "compare", "ref.txt", "one.txt", "two.txt", "--metric", "chrf", "--output", "texts.html", "--draws", "20"
    )
    assert result.code == 0, result.err
    assert "one.txt" in result.out
    assert "Content-Security-Policy" in Path("texts.html").read_text(encoding="utf-8")
    assert "--steps goes with runs" in call("compare", "ref.txt", "one.txt", "two.txt", "--steps", "3").err


def test_the_ladder_holds_out_pairs_and_builds_the_history_of_the_field(tmp_path: Path) -> None:
    from dragoman.auto.architecture_ladder import hold_out, ladder
    from dragoman.data.config import DataConfig
    from dragoman.data.split import TrainValidSplit

    write_rows(tmp_path / "pairs.tsv", [(f"word {number}", f"wort {number}") for number in range(60)])
    path, test = hold_out(str(tmp_path / "pairs.tsv"), tmp_path / "ladder")
    kept = Path(path).read_text(encoding="utf-8").splitlines()
    assert len(test) == 6
    assert len(kept) == 54
    assert not {one.source for one in test} & {line.split("\t")[0] for line in kept}
    split = TrainValidSplit(DataConfig(train=path), lambda doing, count: None)
    assert sum(1 for _ in split.valid("reading")) >= 3  # what is left still has pairs to validate on
    configs, steps = ladder(path)
    assert [step.name for step in steps] == list(configs)
    assert [(step.name.split()[0], step.year) for step in steps] == [
        ("n-gram", 2008), ("Kalchbrenner", 2013), ("Cho", 2014), ("Sutskever", 2014), ("Bahdanau", 2015),
        ("Luong", 2015), ("GNMT", 2016), ("ConvS2S", 2017), ("Transformer", 2017), ("modern", 2023),
    ]  # fmt: skip
    networks = [configs[step.name].model for step in steps[1:]]
    assert [model.encoder.kind for model in networks] == [
        "kalchbrenner", *["recurrent"] * 5, "convs2s", "transformer", "transformer",
    ]  # fmt: skip
    past, modern = (model.decoder for model in networks[-2:])
    assert (past.norm, past.positions.kind, past.gated) == ("post", "sinusoidal", False)
    assert (modern.norm, modern.positions.kind, modern.gated, modern.norm_kind) == ("pre", "rotary", True, "rms")


def test_from_gates_to_heads_one_thing_changes_at_a_time(tmp_path: Path) -> None:
    from dragoman.auto.architecture_ladder import ladder

    write_rows(tmp_path / "pairs.tsv", [(f"word {number}", f"wort {number}") for number in range(60)])
    configs, _ = ladder(str(tmp_path / "pairs.tsv"), stages="attention")
    gates, free, projected, heads = (config.model for config in configs.values())
    assert list(configs) == ["gates", "free candidates", "keys and values", "heads"]
    assert not has_attention(gates.decoder)
    assert free.encoder == projected.encoder == heads.encoder
    assert free.decoder == replace(projected.decoder, attention=free.decoder.attention)
    assert free.decoder == replace(heads.decoder, attention=free.decoder.attention)
    assert (free.decoder.attention.keys, projected.decoder.attention.keys > 0) == (0, True)
    assert heads.decoder.attention.heads == 4


def test_made_up_dates_say_the_same_on_both_sides() -> None:
    from dragoman.auto.architecture_ladder import made_up_dates

    pairs = list(made_up_dates(200))
    assert pairs == list(made_up_dates(200))
    assert len({source for source, _ in pairs}) == 200
    forms = ("%d %B %Y", "%B %d, %Y", "%d. %b %Y", "%d/%m/%Y")
    for source, target in pairs:
        for spoken, written in zip(source.split("; "), target.split(), strict=True):
            found = set()
            for form in forms:
                with suppress(ValueError):
                    found.add(datetime.strptime(spoken, form).date().isoformat())
            assert found == {written}


@pytest.mark.page
def test_a_ladder_is_a_table_of_years_sizes_scores_and_speeds(tmp_path: Path) -> None:
    write_rows(tmp_path / "pairs.tsv", [(f"w{number}", f"v{number}") for number in range(40)])
    small = ("--stages", "attention", "--steps", "1", "--set", "search.beam=1")
    told = call("compare", "--ladder", tmp_path / "pairs.tsv", "--folder", tmp_path / "f", *small)
    assert told.code == 0, told.err
    start = next(place for place, line in enumerate(told.lines) if line.startswith("step  "))
    rows = {line.split("  ")[0]: line.split("  ") for line in told.lines[start : start + 5]}
    assert "parameters" in rows["step"]
    for name, year in (("gates", "2014"), ("free candidates", "2014"), ("keys and values", "2017"), ("heads", "2017")):
        found = [cell.strip() for cell in rows[name] if cell.strip()]
        assert found[1] == year
        assert int(found[2].replace(",", "")) > 1000
        assert all(float(speed.replace(",", "")) >= 0 for speed in found[4:])
        assert len(found) == 6


def test_variants_of_a_run(inside: TrainedFolder) -> None:
    """Before training means the weights that training began with: those after a step that moved nothing."""
    still = [f"train.{one}" for one in ("steps=1", "validate_every=1", "optimizer.learning_rate=1e-12")]
    assert call("train", "pairs.tsv", "--run", "still", *SMALL, *still).code == 0
    expected = dict(load_run("still", "cpu").model.named_parameters())
    first = open_variant(inside.run, "cpu", untrained=True)
    for name, weight in first.model.named_parameters():
        torch.testing.assert_close(weight, expected[name], atol=1e-9, rtol=0)
    trained = dict(load_run(inside.run, "cpu").model.named_parameters())
    assert not any(torch.equal(trained[name], weight) for name, weight in expected.items())
    bag = open_variant(inside.run, "cpu", positions=False)
    texts = [next(bag.stream([text])).text for text in ("abcd", "dcba")]
    assert sorted(texts[0]) == sorted(texts[1])
    result = call("inspect", inside.run, "abcd", "--beside", "untrained", "--view", "next", "-o", "page.json")
    assert result.code == 0, result.err
    shown = json.loads(Path("page.json").read_text())
    assert shown["beside"]["title"] == "pairs (before training)"
    assert [view["kind"] for view in shown["beside"]["views"]] == ["next"]
