"""The JSON Schema of configurations: it takes what the loader takes, and finds an editor's usual mistakes."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from dragoman.base.errors import ConfigError
from dragoman.runs.tasks import config
from dragoman.runs.tasks.config import config_schema, preset_names, preset_table
from dragoman.runs.tasks.starters import WIDTH, starter
from tests.conftest import call
from tests.runs.tasks.test_starter import OTHERS, TASKS, uncommented


@pytest.fixture(scope="module")
def validator() -> Any:
    jsonschema = pytest.importorskip("jsonschema")
    schema = config_schema()
    jsonschema.Draft7Validator.check_schema(schema)
    return jsonschema.Draft7Validator(schema)


def problems(validator: Any, table: dict[str, Any]) -> list[str]:
    return [error.message for error in validator.iter_errors(table)]


@pytest.mark.parametrize("task", TASKS)
def test_starters_are_valid_with_any_line_in_use(task: str, validator: Any) -> None:
    lines = starter(task).splitlines()
    assert lines[0].startswith("#:schema https://")
    assert lines[0].endswith("/dragoman.schema.json")
    assert problems(validator, tomllib.loads("\n".join(lines))) == []
    assert problems(validator, tomllib.loads("\n".join(map(uncommented, lines)))) == []
    for line in lines:
        setting, comment, _ = line.partition("  # ")
        assert len(line) <= WIDTH or (not comment and not setting.startswith("##")), line


@pytest.mark.parametrize("task", OTHERS)
def test_other_kinds_are_valid(task: str, validator: Any) -> None:
    assert problems(validator, tomllib.loads(starter(task, OTHERS[task]))) == []


@pytest.mark.parametrize("name", preset_names())
def test_presets_are_valid(name: str, validator: Any) -> None:
    assert problems(validator, {**preset_table(name), "data": {"train": "pairs.tsv"}}) == []
    assert problems(validator, {"preset": name, "data": {"train": "pairs.tsv"}}) == []


DATA = {"train": "pairs.tsv"}
SHORT: dict[str, dict[str, Any]] = {
    "a bare kind": {"tokenizer": {"source": "characters"}},
    "no kind": {"preset": "transformer-small", "model": {"encoder": {"layers": 3}}},
    "none": {"train": {"lora": "none", "average": "none"}},
    "a list as text": {"data": {**DATA, "columns": "en,de"}},
    "files": {"data": {"train": ["a.tsv", {"file": "b.tsv", "weight": 2.0}], "valid": {"source": "a", "target": "b"}}},
    "a whole number for a number": {"train": {"minutes": 5}},
}
WRONG: dict[str, dict[str, Any]] = {
    "a misspelt table": {"trian": {"steps": 5}},
    "a misspelt setting": {"train": {"stepz": 5}},
    "text for a number": {"train": {"steps": "many"}},
    "a number that is too small": {"train": {"steps": 0}},
    "an unknown kind": {"tokenizer": {"source": {"kind": "wordz"}}},
    "a setting of another kind": {"tokenizer": {"source": {"kind": "characters", "model_type": "bpe"}}},
    "an unknown task": {"task": "translte"},
    "a setting of another task": {"task": "classify", "model": {"tie": "target"}},
    "no data": {"data": {}},
}


@pytest.mark.parametrize("name", SHORT)
def test_short_ways_of_writing_are_valid(name: str, validator: Any) -> None:
    table = {"data": DATA, **SHORT[name]}
    config.build(table)
    assert problems(validator, table) == []


@pytest.mark.parametrize("name", [name for name in WRONG if name != "no data"])
def test_what_the_loader_refuses_is_marked(name: str, validator: Any) -> None:
    table = {"data": DATA, **WRONG[name]}
    with pytest.raises(ConfigError):
        config.build(table)
    assert problems(validator, table) != []


def test_a_file_without_data_is_marked(validator: Any) -> None:
    assert problems(validator, {"train": {"steps": 5}}) == ["'data' is a required property"]


def test_the_command_prints_the_schema_and_a_checker_reads_it(tmp_path: Path) -> None:
    pytest.importorskip("check_jsonschema")
    result = call("schema")
    assert result.code == 0, result.err
    assert json.loads(result.out)["title"].startswith("Dragoman ")
    (tmp_path / "schema.json").write_text(result.out, encoding="utf-8")
    (tmp_path / "my.toml").write_text(starter("translate"), encoding="utf-8")
    (tmp_path / "wrong.toml").write_text('data.train = "a.tsv"\ntrain.stepz = 5\n', encoding="utf-8")
    command = [sys.executable, "-m", "check_jsonschema", "--schemafile", str(tmp_path / "schema.json")]
    right = subprocess.run([*command, str(tmp_path / "my.toml")], capture_output=True, text=True)
    assert right.returncode == 0, right.stdout + right.stderr
    wrong = subprocess.run([*command, str(tmp_path / "wrong.toml")], capture_output=True, text=True)
    assert wrong.returncode == 1
    assert "'stepz' was unexpected" in wrong.stdout + wrong.stderr
