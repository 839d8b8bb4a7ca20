"""The options of requests follow those of the search, and those of a server are for requests that name none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal, get_origin, get_type_hints

import pytest

import dragoman
from dragoman.base.config.fields import fields_of
from dragoman.base.errors import ConfigError
from dragoman.decoding.config import SearchConfig
from dragoman.decoding.constraints.spec import ConstrainedInput
from dragoman.decoding.options import DecodingOptions, SearchOverrides
from dragoman.serving.config import LimitsConfig, ModelConfig, ServeConfig, load_config
from dragoman.serving.models import BatchWork, Models
from dragoman.serving.schemas import REMOTE, Options


def test_requests_have_every_option_of_the_search() -> None:
    hints, described = get_type_hints(SearchConfig), Options.model_json_schema()["properties"]
    for name in fields_of(SearchConfig):
        assert name in Options.model_fields, name
        if get_origin(hints[name]) is Literal:
            assert str(hints[name]) in str(Options.model_fields[name].annotation), name
    for name, limit in REMOTE.items():
        option = fields_of(DecodingOptions)[name]
        assert option.metadata["help"] in described[name]["description"]
        assert Options.model_fields[name].default == option.default
        assert not limit or limit in fields_of(LimitsConfig)
    files = ("ensemble", "rerank", "memory")  # a client names no files of the server
    assert not {*files, "constrain", "engine", "precision"} & {*REMOTE}
    (beam, _), n_best = described["beam"]["anyOf"], described["n_best"]
    assert (beam["minimum"], beam["maximum"], n_best["minimum"]) == (1, 1000, 1)


def test_the_search_of_a_server_is_for_its_runs_that_search(runs: dict[str, Path]) -> None:
    models = Models(config_of(runs, "ab-cd", "tag"))
    words = ["dhjea", "bb"]
    predictor, served = dragoman.load(runs["ab-cd"]), models["ab-cd"]
    inputs = [ConstrainedInput(word) for word in words]
    for options in (DecodingOptions(), DecodingOptions(beam=3)):
        work = BatchWork("ab-cd", "predict", options)
        expected = predictor.predict(words, beam=options.beam or 2, length_penalty=0.0)
        assert [output.score for output in served.run(work, inputs)] == [output.score for output in expected]
        assert {cost.rows for cost in served.costs(work, inputs)} == {options.beam or 2}
    tagger = config_of(runs, "tag")
    uncertain = replace(tagger, search=SearchOverrides(), min_confidence=0.5)
    quantised = replace(tagger, search=SearchOverrides(), precision="int8")
    for name, config in (("search", tagger), ("min_confidence", uncertain), ("precision", quantised)):
        with pytest.raises(ConfigError, match=f"{name}: found .*, but no run"):
            Models(config)


def test_a_server_searches_in_the_precision_of_its_settings(runs: dict[str, Path]) -> None:
    pytest.importorskip("ctranslate2")
    models = Models(replace(config_of(runs, "ab-cd", "tag"), precision="int8"))
    work = BatchWork("ab-cd", "predict", DecodingOptions())
    (served,) = models["ab-cd"].run(work, [ConstrainedInput("dhjea")])
    (expected,) = dragoman.load(runs["ab-cd"], "cpu", precision="int8").predict(["dhjea"], beam=2, length_penalty=0.0)
    assert (served.text, served.score) == (expected.text, expected.score)
    assert models["tag"].engine.labels  # a run that does not search is served beside it


def config_of(runs: dict[str, Path], *names: str) -> ServeConfig:
    models = tuple(ModelConfig(str(runs[name]), name=name) for name in names)
    return ServeConfig(models, device="cpu", search=SearchOverrides(beam=2, length_penalty=0.0))


def test_the_search_of_a_server_is_checked_when_its_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "serve.toml"
    path.write_text("[search]\nstop = 'certain'\n")
    assert load_config(path).search == SearchOverrides(stop="certain")
    path.write_text("[search]\nbeam = 0\n")
    with pytest.raises(ConfigError, match=r"search\.beam: found 0, expected"):
        load_config(path)
