"""Tables that plug-ins add to, and the modules that are loaded as plug-ins."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import pytest

import dragoman
from dragoman.config import settings
from dragoman.config.table import Table
from dragoman.errors import ConfigError


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


def test_no_module_of_the_package_reads_a_table_while_it_is_imported() -> None:
    """The first read loads the plug-ins, and these import modules of the package."""
    script = """
import importlib, pkgutil, dragoman
from dragoman import plugins
for module in pkgutil.walk_packages(dragoman.__path__, "dragoman."):
    if not module.name.endswith(("__main__", "_triton")):
        importlib.import_module(module.name)
        assert not plugins.loaded, module.name
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
