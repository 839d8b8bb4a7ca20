"""The verbs that look at a run give Python what the commands print."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dragoman.base.errors import ConfigError, DataError
from dragoman.inspect.measure.calibration import calibrate
from dragoman.inspect.measure.run_summary import info
from dragoman.inspect.measure.shortlists import shortlist
from dragoman.inspect.measure.speed import bench
from dragoman.inspect.measure.suite import first_suite, run_suite
from dragoman.inspect.measure.template_probes import probe
from dragoman.inspect.options import (
    AttentionOptions,
    BenchOptions,
    CalibrateOptions,
    InfoOptions,
    InspectOptions,
    ProbeOptions,
    ShortlistOptions,
)
from dragoman.inspect.views.inspection import inspect, inspect_to
from dragoman.inspect.views.media_plots import attention
from tests.conftest import TrainedFolder, call


def test_verbs_give_what_the_commands_print(inside: TrainedFolder) -> None:
    run = str(inside.run)
    assert info(run, InfoOptions(depth=2, plot="curve.svg")) == json.loads(
        call("info", run, "--depth", 2, "--json").out
    )
    assert Path("curve.svg").is_file()
    pictures = attention(run, ["abc", "ab!"], "seen.svg")
    assert pictures.paths == [Path("seen.svg")]
    assert pictures.unseen.message()
    learned = shortlist(run, ShortlistOptions(likely=3, output="likely.safetensors"))
    command = ("shortlist", run, "--likely", 3, "--output", "again.safetensors", "--json")
    assert learned.as_dict() | {"file": "again.safetensors"} == json.loads(call(*command).out)
    speeds = bench(run, "pairs.tsv", BenchOptions(pairs=2, rounds=1))
    assert (speeds.pairs, speeds.rounds) == (2, 1)
    assert next(speeds.speeds).name == "training"
    fitted = calibrate(run, None, CalibrateOptions(error_rate=0.0, plot="right.svg"))
    assert json.loads(call("calibrate", run, "--error-rate", 0, "--json").out) == json.loads(
        json.dumps(fitted.as_dict())
    )
    assert Path("right.svg").is_file()
    text, _ = first_suite(run)
    suite = inside.folder / "suite.toml"
    suite.write_text(text, encoding="utf-8")
    assert [result.passed for result in run_suite(run, suite) if result.group == "case"]


def test_inspect_opens_a_run_and_saves(inside: TrainedFolder) -> None:
    found = inspect(inside.run, "abc", InspectOptions("ABD", views=("next",), beside="untrained"))
    assert [view.kind for view in found.views] == ["overview", "next"]
    assert found.beside is not None
    assert found.save("next.json", "next") == Path("next.json")
    with pytest.raises(DataError, match="views: found 'nxt', expected some of overview"):
        inspect(inside.run, "abc", InspectOptions(views=("nxt",)))
    with pytest.raises(DataError, match="view=…: found 'layers', expected one of attention, "):
        inspect_to("layers.png", inside.run, "abc", InspectOptions(), "layers", None)
    with pytest.raises(DataError, match="expected a file that ends in"):
        inspect_to("page.txt", inside.run, "abc", InspectOptions(), None, None)


def test_options_without_effect_are_refused(inside: TrainedFolder) -> None:
    with pytest.raises(ConfigError, match="probe=… or templates=…"):
        probe(inside.run, ProbeOptions(("length",), templates="x.toml"))
    with pytest.raises(DataError, match="only empty text"):
        attention(inside.run, [" "], "seen.svg", AttentionOptions())
