"""The pages for users of other toolkits: every Dragoman command on them parses, and every setting takes its value."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import pytest

from dragoman.cli import cli
from dragoman.commands.settings import SettingsCommand
from dragoman.config.settings import override
from dragoman.errors import ConfigError
from dragoman.tasks.config import build
from dragoman.tasks.table import TASKS

ROOT = Path(__file__).parent.parent
PAGES = sorted(
    page
    for page in (ROOT / "docs").rglob("*.md")
    if page.name.startswith("move-from-") or page.stem in ("which-model", "when-not", "beside-others")
)
TRAINING = ("task", "preset", "data", "tokenizer", "model", "train", "search")
OUR_COLUMNS = {"Dragoman", "setting", "take"}
ASSIGNMENT = re.compile(r"[a-z][a-z_]*(?:\.[a-z_0-9]+)*=\S.*")


def is_setting(word: str) -> bool:
    return ASSIGNMENT.fullmatch(word) is not None


def check_settings(assignments: list[str]) -> None:
    """Those of training build a configuration, the others are settings of predict or of serve."""
    training = [word for word in assignments if re.split(r"[.=]", word)[0] in TRAINING]
    if training:
        task = next((word.partition("=")[2] for word in training if word.startswith("task=")), "translate")
        build(override({"task": task, **TASKS[task].starter[1]}, training))
    if others := [word for word in assignments if word not in training]:
        try:
            check_command(["predict", "runs/my", "input.txt", *others])
        except ConfigError:
            check_command(["serve", "runs/my", *others])


def check_command(words: list[str]) -> None:
    """Parse a command line as the program does; training commands also build the configuration of their settings."""
    command = cli.commands[words[0]]
    context = command.make_context(words[0], words[1:], **cli.context_settings)
    if not isinstance(command, SettingsCommand):
        given = [
            word for value in context.params.values() if isinstance(value, tuple) for word in value if is_setting(word)
        ]
        check_settings(given)


def commands(line: str) -> list[list[str]]:
    """The Dragoman commands of a shell line, without pipes, redirections, variables and torchrun."""
    found = []
    for part in re.split(r"\s\|\s|&&", line):
        words = shlex.split(part.partition(" > ")[0], comments=True)
        if "dragoman" in words:
            found.append(words[words.index("dragoman") + 1 :])
    return found


def our_commands(text: str) -> list[list[str]]:
    """Of blocks and of code spans; a span with nothing but a command's name is prose."""
    blocks = re.findall(r"```(?:sh|console|bash)\n(.*?)```", text, re.DOTALL)
    lines = [line.removeprefix("$ ") for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    lines += re.findall(r"`(dragoman [a-z-]+ [^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    return [words for line in lines for words in commands(line)]


def our_spans(text: str) -> list[str]:
    """The code spans of the columns that have our settings, without whole commands."""
    found: list[str] = []
    column = -1
    for line in text.splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip("|"))] if line.startswith("|") else []
        if ours := OUR_COLUMNS & set(cells):
            column = cells.index(ours.pop())
        elif not cells:
            column = -1
        elif column >= 0:
            spans = re.findall(r"`([^`]+)`", cells[column])
            found += [span for span in spans if not span.startswith(("dragoman ", "torchrun "))]
    return found


def our_settings(text: str) -> list[list[str]]:
    """The assignments of each span. A value in braces or brackets may have spaces."""
    spans = [[span] if re.match(r"[a-z._]+=[\[{]", span) else span.split() for span in our_spans(text)]
    return [found for words in spans if (found := [word for word in words if is_setting(word)])]


def our_options(text: str) -> set[str]:
    return {word for span in our_spans(text) for word in span.split() if word.startswith("--")}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_and_setting_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for words in our_commands(text):
        check_command(words)
    for assignments in our_settings(text):
        check_settings(assignments)
    for block in re.findall(r"```toml\n(.*?)```", text, re.DOTALL):
        build(tomllib.loads(block))
    known = {name for command in cli.commands.values() for parameter in command.params for name in parameter.opts}
    assert our_options(text) <= known


def test_every_toolkit_of_the_table_has_a_page() -> None:
    names = {page.stem.removeprefix("move-from-") for page in PAGES if page.name.startswith("move-from-")}
    assert names == {
        "fairseq", "opennmt", "sockeye", "marian", "joeynmt", "yoyodyne", "hugging-face", "libretranslate",
    }  # fmt: skip
    for name in names:
        assert len(our_commands((ROOT / "docs" / "how-to" / f"move-from-{name}.md").read_text(encoding="utf-8"))) >= 5


def test_wrong_commands_and_settings_are_found() -> None:
    from click import UsageError

    with pytest.raises(UsageError):
        check_command(["predict", "runs/my", "--lenpen", "0.6"])
    with pytest.raises(ConfigError):
        check_command(["predict", "runs/my", "search.lenpen=0.6"])
    with pytest.raises(ConfigError):
        check_command(["train", "pairs.tsv", "train.max_update=3"])
    with pytest.raises(ConfigError):
        check_settings(["model.tie=everything"])
    table = "| theirs | Dragoman |\n|---|---|\n| `--a` | `train.steps=3 train.clip=0`, `--beam 2` |\n"
    assert our_settings(table) == [["train.steps=3", "train.clip=0"]]
    assert our_options(table) == {"--beam"}
    page = "`dragoman info runs/my`, `dragoman import`\n```sh\ntorchrun -m dragoman train a.toml > log\n```"
    assert our_commands(page) == [["train", "a.toml"], ["info", "runs/my"]]
