"""Every Dragoman command on a page parses, also one that torchrun starts, and every setting takes its value."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dragoman.auto.media import MODELS
from dragoman.base.config import override
from dragoman.base.errors import ConfigError
from dragoman.cli import cli
from dragoman.commands.settings import SettingsCommand
from dragoman.runs.tasks.config import build, preset_names
from dragoman.runs.tasks.table import TASKS

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
TRAINING = ("task", "preset", "data", "tokenizer", "model", "train", "search")
OTHER_TOML = {"project", "case", "probe", "models"}  # of a package, a suite, templates of probe and a server
OUR_COLUMNS = {"Dragoman", "setting", "take"}
ASSIGNMENT = re.compile(r"[a-z][a-z_]*(?:\.[a-z_0-9]+)*=\S.*")
PLACEHOLDER = re.compile(r"[A-Z]+|…")
# A shell line with a command of ours. Other lines of a block are outputs.
COMMAND = re.compile(r"(?:dragoman|torchrun|srun) .*|.*[|&] dragoman .*")


def is_setting(word: str) -> bool:
    return ASSIGNMENT.fullmatch(word) is not None


def bases(task: str) -> Iterator[dict[str, Any]]:
    """Configurations that settings of training may go with: a page need not show the file my.toml that it uses."""
    yield {"task": task, **TASKS[task].starter[1]}
    yield from ({"task": name, **TASKS[name].starter[1]} for name in TASKS)
    yield from ({"preset": name, "data": {"train": "pairs.tsv"}} for name in preset_names())
    tokenizers = {"source": {"kind": "video"}, "target": {"kind": "words"}}
    yield {"task": "caption", "data": {"train": "clips.tsv"}, "tokenizer": tokenizers, "model": MODELS["video"]}


def check_training(assignments: list[str]) -> None:
    """A starter or a preset takes all settings; else the error is that of the starter of their task."""
    given = [word for word in assignments if not PLACEHOLDER.fullmatch(word.partition("=")[2])]
    task = next((word.partition("=")[2] for word in given if word.startswith("task=")), "translate")
    found = None
    for base in bases(task):
        try:
            build(override(base, given))
        except ConfigError as error:
            found = found or error
        else:
            return
    assert found is not None
    raise found


def check_settings(assignments: list[str]) -> None:
    """Those of training build a configuration, the others are settings of predict or of serve."""
    training = [word for word in assignments if re.split(r"[.=]", word)[0] in TRAINING]
    if training:
        check_training(training)
    if others := [word for word in assignments if word not in training]:
        try:
            check_command(["predict", "runs/my", "input.txt", *others])
        except ConfigError:
            check_command(["serve", "runs/my", *others])


def check_command(words: list[str]) -> None:
    """Parse a command line as the program does; training commands also build the configuration of their settings."""
    command = cli.commands[words[0]]
    context = command.make_context(words[0], words[1:], **cli.context_settings)
    if not isinstance(command, SettingsCommand) and words[0] != "worked":  # its values are of a calculation
        given = [
            word
            for value in context.params.values()
            if isinstance(value, tuple)
            for word in value
            if isinstance(word, str) and is_setting(word)
        ]
        check_settings([f"task={context.params['task']}", *given] if words[0] == "new" and given else given)


def check_torchrun(words: list[str]) -> None:
    """Parse the options of torchrun as torchrun does, and the rest as a command of ours."""
    from torch.distributed.run import get_args_parser

    try:
        given = get_args_parser().parse_args(words)
    except SystemExit:
        raise AssertionError(f"torchrun refuses {shlex.join(words)}") from None
    assert given.module
    assert given.training_script == "dragoman"
    check_command(without_imports(given.training_script_args))


def without_imports(words: list[str]) -> list[str]:
    """The command and its words, without `--import MODULE` in front."""
    while words[0] == "--import":
        words = words[2:]
    return words


def command_lines(text: str) -> list[str]:
    """Shell lines of blocks, of indented lines and of code spans.

    A span that goes on with an option (`dragoman export --to`) names the option and is no command line.
    """
    blocks = re.findall(r"^```(?:sh|console|bash)?\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    rest = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    lines = [line.removeprefix("$ ") for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    lines += [line.removeprefix("$ ") for line in re.findall(r"^    (\S.*)$", rest, re.MULTILINE)]
    spans = re.findall(r"`(dragoman [a-z][a-z-]* [^`\n-][^`\n]*|torchrun [^`\n]*dragoman[^`\n]*)`", rest)
    return [line for line in lines if COMMAND.fullmatch(line)] + [span.replace("\\|", "|") for span in spans]


def commands(line: str, program: str = "dragoman") -> list[list[str]]:
    """The words after `dragoman`, or after `torchrun`, in each part of a shell line without redirections."""
    found = []
    for part in re.split(r"\s\|\s|&&", line):
        words = shlex.split(part.partition(" > ")[0], comments=True)
        if program in words and "dragoman" in words:
            found.append(words[words.index(program) + 1 :])
    return found


def our_commands(text: str) -> list[list[str]]:
    """Commands that no torchrun starts."""
    lines = [line for line in command_lines(text) if "torchrun " not in line]
    return [without_imports(words) for line in lines for words in commands(line)]


def torchrun_commands(text: str) -> list[list[str]]:
    return [words for line in command_lines(text) for words in commands(line, "torchrun")]


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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_and_setting_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for words in our_commands(text):
        check_command(words)
    for words in torchrun_commands(text):
        check_torchrun(words)
    for assignments in our_settings(text):
        check_settings(assignments)
    for block in re.findall(r"^```toml\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        table = tomllib.loads(block)
        if not OTHER_TOML & set(table):
            table["data"] = {"train": "pairs.tsv"} | table.get("data", {})
            build(table)
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
    page = "`dragoman info runs/my`, `dragoman import --run`\n```sh\ntorchrun -m dragoman train a.toml > log\n```\n"
    page += "    dragoman check a\n    an output of dragoman\n"
    assert our_commands(page) == [["check", "a"], ["info", "runs/my"]]
    assert torchrun_commands(page) == [["-m", "dragoman", "train", "a.toml"]]
    check_torchrun(["-m", "dragoman", "--import", "mine", "train", "a.toml", "--run-folder", "runs/my"])
    with pytest.raises(AssertionError, match="torchrun refuses"):  # which takes --run for its own --run-path
        check_torchrun(["--nproc-per-node", "2", "-m", "dragoman", "train", "a.toml", "--run", "runs/my"])
    with pytest.raises(UsageError):
        check_torchrun(["-m", "dragoman", "train", "a.toml", "--folder", "runs/my"])
