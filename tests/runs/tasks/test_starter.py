"""The starter configuration: it parses, and no line of it lies about the value a setting has."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from typing import Any

import click
import pytest

from dragoman.base import config as settings
from dragoman.base.errors import ConfigError
from dragoman.cli import cli
from dragoman.runs.tasks import config
from dragoman.runs.tasks.config import Config
from dragoman.runs.tasks.starters import starter, value_at
from dragoman.runs.tasks.table import TASKS as ALL_TASKS

TASKS = list(ALL_TASKS)
COMMENTED = re.compile(r"# (\w+ = .*)")


@cache
def text_of(task: str) -> str:
    return starter(task)


def lines_of(task: str) -> list[str]:
    return text_of(task).splitlines()


@cache
def built(task: str) -> Config:
    return build(lines_of(task))


def build(lines: list[str]) -> Config:
    return config.build(tomllib.loads("\n".join(lines)))


def table_of(task: str) -> dict[str, Any]:
    return {"task": task, **ALL_TASKS[task].starter.table}


def commented(task: str) -> list[int]:
    """The numbers of the lines that hold a setting behind '#'."""
    return [number for number, line in enumerate(lines_of(task)) if COMMENTED.fullmatch(line)]


def uncommented(line: str) -> str:
    return COMMENTED.sub(r"\1", line)


@pytest.mark.parametrize("task", TASKS)
def test_it_builds_what_its_table_says(task: str) -> None:
    assert build(lines_of(task)) == config.build(table_of(task))
    assert starter(task).replace("\n", "").isprintable()


@pytest.mark.parametrize(("task", "number"), [(task, number) for task in TASKS for number in commented(task)])
def test_a_line_shows_the_value_its_setting_has(task: str, number: int) -> None:
    lines = lines_of(task)
    lines[number] = uncommented(lines[number])
    assert build(lines) == built(task)


@pytest.mark.parametrize("task", TASKS)
def test_all_lines_together_show_the_whole_configuration(task: str) -> None:
    lines = [uncommented(line) for line in lines_of(task)]
    assert build(lines) == build(lines_of(task))
    written = tomllib.loads("\n".join(lines))
    # The preset is a base to stand on; with every line uncommented nothing of it is left to add.
    assert build([line for line in lines if not line.startswith("preset")]) == build(lines)
    searched = ALL_TASKS[task].head_decoder is None and not ALL_TASKS[task].is_language_model
    unsaid = [] if searched else ["search"]  # where nothing is searched for
    if task in ("masked-language-model", "transcribe"):
        unsaid.insert(0, "model.encoder.kind")  # there is one only
    assert missing(settings.as_table(build(lines)), written, "") == unsaid


OTHERS = {
    "transcribe": [
        "tokenizer.source.kind=line-image", "model.augment=line", "model.encoder.subsampling=frame-stacking",
        "model.attention_decoder=joint",
    ],
    "caption": ["model.encoder=patches", "model.decoder.kind=transformer", "model.decoder.layers=2"],
    "classify": ["model.pooling=queries", "model.encoder.kind=transformer", "data.train=mine.tsv"],
    "translate": ["preset=luong-2015-small", "tokenizer.target=characters", "model.tie=target"],
}  # fmt: skip


@pytest.mark.parametrize(
    ("task", "overrides"),
    [
        ("translate", ["train.average=none"]),
        ("translate", ["train.average=best"]),
        ("translate", ["preset=none"]),
        ("translate", ["data.valid=none", "tokenizer.target=none"]),
        ("translate", ["data.valid.source=a", "data.valid.target=b"]),
        ("translate", ['data.train={source="a", target="b", tag="de"}']),
        ("translate", ['data.train=[{file="a", tag="de"}, {file="b", tag="fr"}]']),
        ("translate", ["train.start_from.run=runs/x", 'train.start_from.parts=["encoder"]']),
        ("classify", ['data.columns=["a", "b", "c"]', "model.texts=apart"]),
        ("transcribe", ["model.augment=none"]),
        ("language-model", ["model.stack=recurrent", "model.memory=0", "data.train=x # y.txt"]),
    ],
    ids=str,
)
def test_nothing_that_is_asked_for_is_lost(task: str, overrides: list[str]) -> None:
    expected = config.build(settings.override(table_of(task), overrides))
    assert expected != config.build(table_of(task)) or "none" in str(overrides)
    assert build(starter(task, overrides).splitlines()) == expected


@pytest.mark.parametrize("task", OTHERS)
def test_settings_of_other_kinds_are_shown_when_asked_for(task: str) -> None:
    lines = starter(task, OTHERS[task]).splitlines()
    expected = config.build(settings.override(table_of(task), OTHERS[task]))
    assert build(lines) == expected != config.build(table_of(task))
    shown = [uncommented(line) for line in lines]
    assert build(shown) == expected
    unsaid = ["model.encoder.kind"] if task == "transcribe" else ["search"] if task == "classify" else []
    assert missing(settings.as_table(expected), tomllib.loads("\n".join(shown)), "") == unsaid


def test_a_starter_has_one_task() -> None:
    with pytest.raises(ConfigError, match="task: found 'tag', expected 'classify', which was asked for"):
        starter("classify", ["task=tag"])


def test_an_encoder_that_does_not_read_the_source_names_those_that_do() -> None:
    kinds = ["tokenizer.source.kind=video"]
    with pytest.raises(ConfigError) as caught:
        starter("caption", kinds)
    advice = re.findall(r'; set (\S+) = "(\S+)"(?:$|\n)', str(caught.value))
    assert advice == [("model.augment.kind", "none"), ("model.encoder.kind", "frames")]
    assert 'kind = "frames"' in starter("caption", kinds + [f"{place}={kind}" for place, kind in advice])


def missing(resolved: dict[str, Any], written: dict[str, Any], place: str) -> list[str]:
    """Places of a resolved configuration that a table does not name."""
    found = []
    for key, value in resolved.items():
        inner = f"{place}.{key}".strip(".")
        if isinstance(value, dict) and isinstance(written.get(key), dict):
            found += missing(value, written[key], inner)
        elif key not in written:
            found.append(inner)
    return [name for name in found if name != "model.kind"]  # there is only one kind of it


@pytest.mark.parametrize("task", TASKS)
def test_every_line_says_what_it_is_for(task: str) -> None:
    notes: dict[str, set[str]] = {}  # several kinds may have a setting of one name
    for item in settings.describe(ALL_TASKS[task].config):
        notes.setdefault(item.place, set()).add(item.note)
    heading = ""
    seen = 0
    above: list[str] = []
    for line in lines_of(task):
        if found := re.fullmatch(r"\[(.*)\]", line):
            heading, above = found[1], []
        elif line.startswith("## "):
            above.append(line[3:])
        elif heading and (found := re.fullmatch(r"(?:# )?(\w+) = (?:.*?  # (.*)|.*)", line)):
            said = " ".join(above) or found[2]
            assert said.startswith(tuple(note for note in notes[f"{heading}.{found[1]}"] if note))
            above = []
            seen += 1
    assert seen > 50


def test_no_help_refers_to_papers_that_a_user_does_not_have() -> None:
    notes = [item.note for task in ALL_TASKS.values() for item in settings.describe(task.config)]
    commands = [cli.commands[name] for name in cli.commands]
    # A command keeps the help option of the first context it sees, so the context must be the one it really has.
    parent = click.Context(cli, **cli.context_settings)
    helps = [command.get_help(click.Context(command, parent=parent)) for command in commands]
    assert len(notes) > 500
    assert len(helps) > 10
    for text in (*notes, *helps):
        assert not re.search(r"\bFIELD\b|\b[A-M]\d{1,2}\)", text), text


def test_an_unknown_task_is_told_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"found 'translte', no such task\. Did you mean 'translate'\?"):
        starter("translte")


def test_places_of_tables() -> None:
    table = {"a": {"b": 1, "c": {}}}
    assert value_at(table, "a.b") == 1
    assert value_at(table, "a.c") == {}
    assert value_at(table, "a.b.d") is None
    assert value_at(table, "x") is None
