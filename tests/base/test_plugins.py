"""Tables that plug-ins add to, and the modules that are loaded as plug-ins."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar

import pytest

import dragoman
from dragoman.base import config as settings
from dragoman.base import plugins
from dragoman.base.config.table import Table
from dragoman.base.errors import ConfigError
from tests.conftest import made_once, own_copy, words
from tests.test_extending import DRIVER

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Red:
    kind: ClassVar[str] = "red"
    depth: int = 1


@dataclass(frozen=True)
class Blue:
    kind: ClassVar[str] = "blue"
    tone: str = "dark"


@dataclass(frozen=True)
class Colour:
    config: Any
    word: str = ""


COLOURS: Table[str, Colour] = Table("colour", lambda entry: [entry.config.kind], [Colour(Red)])


@dataclass(frozen=True)
class Picture:
    ground: Annotated[Any, COLOURS] = Red()
    line: Annotated[Any, COLOURS] | None = None


@pytest.fixture
def blue() -> Iterator[Colour]:
    entry = Colour(Blue)
    COLOURS.add(entry, "paint")
    yield entry
    COLOURS.remove(entry)


def test_settings_of_a_table_are_looked_up_when_a_configuration_is_read() -> None:
    table = {"ground": {"kind": "blue", "tone": "light"}, "line": "blue"}
    with pytest.raises(ConfigError, match=r'ground\.kind: found "blue", expected "red"'):
        settings.build(Picture, {"ground": {"kind": "blue"}})
    COLOURS.add(Colour(Blue), "paint")
    try:
        picture = settings.build(Picture, table)
        assert picture == Picture(Blue("light"), Blue())
        assert "ground.tone" in {setting.place for setting in settings.describe(Picture)}
        assert settings.as_table(picture)["ground"] == {"kind": "blue", "tone": "light"}
    finally:
        COLOURS.remove(COLOURS["blue"])
    assert "ground.tone" not in {setting.place for setting in settings.describe(Picture)}


def test_a_second_entry_of_a_name_is_refused_but_not_a_second_import(blue: Colour) -> None:
    with pytest.raises(ConfigError) as caught:
        COLOURS.add(Colour(Red), "other.module")
    assert str(caught.value) == (
        "register: found the colour 'red' in other.module, but dragoman has registered one of that name; "
        "expected another name"
    )
    again = Colour(Blue, word="again")
    COLOURS.add(again, "paint")  # the same module, imported again
    assert COLOURS.of(Blue()) is again
    assert COLOURS.module_of("blue") == "paint"
    assert COLOURS.module_of("red") == "dragoman"
    assert COLOURS.module_of("green") == ""
    assert list(COLOURS) == ["red", "blue"]


def test_a_table_includes_another(blue: Colour) -> None:
    more: Table[str, Colour] = Table("colour", lambda entry: [entry.config.kind], [], includes=COLOURS)
    assert list(more.values()) == list(COLOURS.values())
    with pytest.raises(ConfigError, match="'blue' in here, but paint has registered"):
        more.add(Colour(Blue), "here")


def test_register_takes_entries_only() -> None:
    with pytest.raises(TypeError, match=r"register: found 3, expected an instance of one of .*DecoderEntry, .*Metric"):
        dragoman.register(3)


# ---------------------------------------------------------------------- an installed package, from the command line

SHORT = ["train.steps=4", "train.validate_every=4", "train.decode=4", "train.device=cpu"]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with examples/plugin, installed as pip installs any package."""
    return made_once(tmp_path_factory, "installed", partial(install, tmp_path_factory))


def install(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> None:
    copy = tmp_path_factory.mktemp("source") / "plugin"  # a build writes into the folder that it builds
    shutil.copytree(ROOT / "examples" / "plugin", copy, ignore=shutil.ignore_patterns("__pycache__"))
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check"]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, "--target", folder, copy], check=True)


@pytest.fixture(scope="module")
def work(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data and a run with the decoder, the metric, the reader and the objective of the package."""
    return own_copy(tmp_path_factory, "plugins", partial(train_with_plugins, installed))


def train_with_plugins(installed: Path, folder: Path) -> None:
    rows = [(word, f"{word[::-1]} {word.upper()}") for word in words(60)]
    folder.joinpath("pairs.bitext").write_text("".join(f"{a} ||| {b}\n" for a, b in rows), encoding="utf-8")
    folder.joinpath("test.bitext").write_text("".join(f"{a} ||| {b}\n" for a, b in rows[:8]), encoding="utf-8")
    commands = [
        ["train", "pairs.bitext", "--run", "runs/x", "model.decoder.kind=minimal-gru", "model.decoder.width=16",
         "model.encoder.kind=recurrent", "model.encoder.width=16", "train.metric=first_word",
         "train.objective.kind=focal", *SHORT],
        ["predict", "runs/x", "test.bitext", "--beam", "2"],
        ["evaluate", "runs/x", "test.bitext", "--metric", "first_word", "--json"],
        ["train", "runs/x", "train.steps=6"],
    ]  # fmt: skip
    results = run(folder, *commands, path=[installed])
    (folder / "results.json").write_text(json.dumps(results), encoding="utf-8")


def run(work: Path, *commands: Sequence[str], path: Sequence[Path] = (), **environment: str) -> list[Any]:
    """Exit code, standard output and errors of commands, run in one new process with these folders to import from."""
    variables = {
        **{name: value for name, value in os.environ.items() if name != plugins.VARIABLE},
        "PYTHONPATH": os.pathsep.join(map(str, [*path, ROOT])),
        "DRAGOMAN_CACHE": str(work / "cache"),
        "OMP_NUM_THREADS": "1",
        **environment,
    }
    arguments = [sys.executable, "-P", "-c", DRIVER, json.dumps(commands)]  # -P: the current folder is no place
    done = subprocess.run(arguments, cwd=work, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    results: list[Any] = json.loads(done.stdout.splitlines()[-1])
    return results


def test_an_installed_package_adds_all_four_kinds(work: Path) -> None:
    trained = json.loads((work / "results.json").read_text(encoding="utf-8"))
    assert [code for code, _, _ in trained] == [0, 0, 0, 0], trained
    (_, _, training), (_, predicted, _), (_, evaluated, _), _ = trained
    assert "best first word" in training or "first_word" in training
    assert len(predicted.splitlines()) == 8
    assert 0 <= json.loads(evaluated)["first_word"] <= 1
    config = tomllib.loads((work / "runs" / "x" / "config.toml").read_text(encoding="utf-8"))
    assert config["model"]["decoder"]["kind"] == "minimal-gru"
    assert config["train"]["objective"] == {"kind": "focal", "gamma": 2.0}


def test_a_run_names_its_plugins_and_never_imports_them(work: Path) -> None:
    about = json.loads((work / "runs" / "x" / "run.json").read_text(encoding="utf-8"))
    assert about["plugins"] == [{"module": "dragoman_example", "package": "dragoman-example", "version": "0.1"}]
    for code, _, error in run(work, ["predict", "runs/x", "test.bitext"], ["info", "runs/x"], ["train", "runs/x"]):
        assert code == 2
        assert error == (
            "dragoman: runs/x: this run needs the plug-in 'dragoman_example' of the package dragoman-example 0.1; "
            "pip install dragoman-example, or name its module: dragoman --import dragoman_example …, or "
            "DRAGOMAN_IMPORT=dragoman_example\n"
        )


def test_a_module_can_be_named_and_workers_import_it(work: Path) -> None:
    """Not installed: only a folder to import from. The workers of the shards inherit the environment."""
    place = [ROOT / "examples" / "plugin"]
    work.joinpath("lines.txt").write_text("ab\ncd\nef\n" * 4, encoding="utf-8")
    shards = ["predict", "runs/x", "lines.txt", "--shards", "out", "shards.processes=2"]
    plain = ["predict", "runs/x", "lines.txt"]
    (first, second) = run(work, ["--import", "dragoman_example", *plain], shards, path=place)
    assert (first[0], second[0]) == (0, 0), (first, second)
    parts = sorted((work / "out").glob("part-*.txt"))
    assert parts
    assert "".join(part.read_text(encoding="utf-8") for part in parts) == first[1]
    ((code, out, _),) = run(work, plain, path=place, DRAGOMAN_IMPORT="dragoman_example")
    assert (code, out) == (0, first[1])


def test_a_module_in_the_current_folder(tmp_path: Path) -> None:
    tmp_path.joinpath("mine.py").write_text("import dragoman_missing\n", encoding="utf-8")
    tmp_path.joinpath("fine.py").write_text("import dragoman\n", encoding="utf-8")
    (broken, missing, file, fine) = run(
        tmp_path, ["--import", "mine", "new"], ["--import", "nobody", "new"], ["--import", "fine.py", "new"],
        ["--import", "fine", "new"],
    )  # fmt: skip
    start = "dragoman: --import or DRAGOMAN_IMPORT: the plug-in "
    assert broken[2] == f"{start}'mine' cannot be imported: ModuleNotFoundError: No module named 'dragoman_missing'\n"
    assert missing[2] == f"{start}'nobody' cannot be imported: ModuleNotFoundError: No module named 'nobody'\n"
    assert "write fine, the name of the module" in file[2]
    assert [result[0] for result in (broken, missing, file, fine)] == [2, 2, 2, 0]


def test_a_broken_package_breaks_nothing_else(tmp_path: Path) -> None:
    """The warning comes once, and in the error of what may need it; a command that reads no table never sees it."""
    site = tmp_path / "site"
    info = site / "broken_example-2.0.dist-info"
    info.mkdir(parents=True)
    info.joinpath("METADATA").write_text(
        "Metadata-Version: 2.1\nName: broken-example\nVersion: 2.0\n", encoding="utf-8"
    )
    info.joinpath("entry_points.txt").write_text("[dragoman.plugins]\nx = broken_example\n", encoding="utf-8")
    site.joinpath("broken_example.py").write_text("raise RuntimeError('no luck')\n", encoding="utf-8")
    tmp_path.joinpath("out").write_text("a b\n", encoding="utf-8")
    line = "the plug-in 'broken_example' of the package broken-example 2.0 cannot be imported: RuntimeError: no luck"
    score = ["score", "out", "out"]
    presets, good, again, bad = run(
        tmp_path, ["presets"], [*score, "--metric", "wer"], score, [*score, "--metric", "nothing"], path=[site]
    )
    assert (presets[0], presets[2]) == (0, "")
    assert (good[0], good[2]) == (0, f"warning: {line}\n")
    assert (again[0], again[2]) == (0, "")
    assert bad[0] == 2
    assert bad[2].endswith(f" ({line})\n")


def test_loading_in_python_finds_the_package(installed: Path, work: Path) -> None:
    script = "import dragoman; print(len(dragoman.load('runs/x').predict(['ab', 'cd'])))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, [installed, ROOT]))}
    done = subprocess.run([sys.executable, "-c", script], cwd=work, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "2\n"), done.stderr


def test_a_late_entry_is_imported_when_it_is_first_asked_for() -> None:
    made = []

    def entry(name: str) -> str:
        made.append(name)
        return name

    table = Table("thing", lambda name: [name], late={name: lambda name=name: entry(name) for name in ("a", "b")})
    with pytest.raises(ConfigError, match="'a' in elsewhere, but dragoman has registered one of that name"):
        table.add("a", "elsewhere")
    table.add("c", "elsewhere")
    assert (list(table), "b" in table, "d" in table, made) == (["a", "b", "c"], True, False, [])
    assert (table["b"], table["b"], made) == ("b", "b", ["b"])
    assert list(table.values()) == ["a", "b", "c"]
    misnamed = Table("thing", lambda name: [name], late={"a": lambda: "b"})
    with pytest.raises(AssertionError, match="under this name"):
        misnamed["a"]
