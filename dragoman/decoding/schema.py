"""Settings of commands: `place=value` words as `train` has them, and flags for those that people type daily.

A command has a `Schema`: dataclasses whose fields are its settings. Help, flags and errors follow from them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, make_dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from dragoman.base import ConfigError, hint
from dragoman.base.config import (
    Accepted,
    Setting,
    Table,
    accepted,
    build,
    describe,
    fields_of,
    kind_of,
    merge,
    nested,
    parse_value,
    type_hints,
)
from dragoman.decoding.options import DecodingOptions, decoding_options

Assignments = dict[str, tuple[str, object]]  # by place: how the user wrote it, and the value


class Flag(NamedTuple):
    """An option that sets a place; with `value` it takes none itself."""

    name: str
    place: str
    value: object = None
    help: str = ""


METHOD_FLAGS = (
    Flag("--sample", "method.kind", "sampling", help="Draw each output at random: method=sampling."),
    Flag("--seed", "method.seed", help="Random seed of a method that draws: equal inputs get equal outputs."),
)


class Schema:
    """The settings of a command: all fields of some dataclasses, or the places among them that it has."""

    def __init__(
        self,
        *parts: type,
        places: Sequence[str] | None = None,
        without: Sequence[str] = (),
        kinds: Sequence[str] | None = None,
    ) -> None:
        """`kinds` are the decoding methods allowed, None: all."""
        self.parts, self.without, self.kinds = parts, without, kinds
        self._places = places

    @cached_property
    def static(self) -> list[Setting]:
        """All settings but those of decoding methods, which are not imported for the names of flags."""
        return [setting for setting in describe(self.settings_class(methods=False)) if self._has(setting.place)]

    def _has(self, place: str) -> bool:
        """Whether the command has a place, or some in the table of this name."""
        inside = self._places is None or any(own == place or own.startswith(f"{place}.") for own in self._places)
        return inside and place not in self.without

    @property
    def has_method(self) -> bool:
        return self._places is None and any("method" in fields_of(part) for part in self.parts)

    @property
    def methods(self) -> dict[str, Any]:
        """The decoding methods of the command by kind. They import torch, and plug-ins may add some at any time."""
        from dragoman.decoding.method import METHODS

        return {kind: entry for kind, entry in METHODS.items() if self.kinds is None or kind in self.kinds}

    def method_annotation(self, kinds: Sequence[str]) -> Any:
        """The type of the setting `method`: a table, of which only the chosen one is imported."""
        from dragoman.decoding.method import METHODS

        late = {kind: partial(METHODS.__getitem__, kind) for kind in kinds}
        return Annotated[Any, Table("method", METHODS.names, late=late)] | None

    def settings_class(self, methods: bool = True) -> Any:
        """The dataclass of all settings; the table of methods is read now, so that late entries count."""
        made: list[tuple[str, Any, Any]] = []
        for part in self.parts:
            for name, own in fields_of(part).items():
                if methods or name != "method":
                    annotation = type_hints(part)[name]
                    if name == "method" and self.kinds is not None:
                        annotation = self.method_annotation(self.kinds)
                    # A field object belongs to one class.
                    made.append((name, annotation, field(default=own.default, metadata=own.metadata)))

        def problems(settings: Any) -> Iterator[str]:
            for part in self.parts:
                if check := getattr(part, "problems", None):
                    yield from check(settings)

        return make_dataclass("Settings", made, frozen=True, namespace={"problems": problems})

    def flags(self) -> Iterator[Flag]:
        for setting in self.static:
            if setting.flag:
                yield Flag(setting.flag, setting.place, help=flag_help(setting))
        if self.has_method:
            yield from METHOD_FLAGS

    def knows(self, settings_class: type, place: str) -> bool:
        """Whether a place is one of the command's settings, or a table of them."""
        return self._has(place) and accepted_at(settings_class, place) is not None

    def described(self) -> list[Setting]:
        """All settings, those of decoding methods included."""
        settings_class = self.settings_class()
        return [row for row in describe(settings_class) if self.knows(settings_class, row.place)]

    def lines(self) -> Iterator[str]:
        """Every setting: place, default, what it does and what it accepts."""
        for row in self.described():
            yield f"{row.place} = {shown_default(row)}" + (f"   ({row.when})" if row.when else "")
            yield f"    {row.note}; {row.expected}"

    def read(self, assignments: Assignments) -> Settings:
        """The settings of assigned values, each with its spelling on the command line; errors use the spelling."""
        settings_class = self.settings_class()
        table: dict[str, Any] = {}
        for place, (_, value) in assignments.items():
            table = dict(merge(table, nested(place.split("."), value)))
        spelled = {place: spelling for place, (spelling, _) in assignments.items()}
        self._check_method(settings_class, spelled)
        try:
            values: Any = build(settings_class, table)
        except ConfigError as error:
            lines = []
            for line in str(error).split("\n"):
                place, colon, rest = line.partition(":")
                lines.append(f"{spelled.get(place, place)}{colon}{rest}")
            raise ConfigError("\n".join(lines)) from None
        return Settings(values, spelled)

    def _check_method(self, settings_class: type, spelled: Mapping[str, str]) -> None:
        """Raise an error for settings of a method where none is chosen."""
        named = [place for place in spelled if place.startswith("method.")]
        if named and "method.kind" not in spelled and "method" not in spelled:
            name = named[0].split(".")[1]
            classes = accepted(type_hints(settings_class)["method"]).tables
            kinds = [f"method={kind_of(cls)}" for cls in classes if name in fields_of(cls)]
            raise ConfigError(f"{spelled[named[0]]} needs {' or '.join(kinds) or 'method=NAME'}")

    def accepted(self, place: str) -> Accepted:
        """The values that a place accepts; text for those of decoding methods, which are not imported."""
        return accepted_at(self.settings_class(methods=False), place) or accepted(str)

    def assign_flag(self, flag: Flag, value: Any, assignments: Assignments) -> None:
        """Set the place of a flag that was given with a value."""
        expected = accepted_at(self.settings_class(), flag.place) or accepted(str)
        given = from_flag(expected, value) if flag.value is None else flag.value
        assign(assignments, flag.place, flag.name, given)

    def read_words(self, words: Sequence[str], assignments: Assignments, keep_unknown: bool = False) -> list[str]:
        """Add the settings among words; returns the other words, with `keep_unknown` also those of unknown places."""
        settings_class = self.settings_class()
        others = []
        for word in words:
            place, equals, text = word.partition("=")
            known = bool(equals) and self.knows(settings_class, place)
            exists = not keep_unknown and Path(word).exists()
            if known and exists:
                raise ConfigError(
                    f"found '{word}', which is a setting and also a file; write ./{word} for the file, or move it"
                )
            if not known and (keep_unknown or exists or not equals or not place.replace(".", "").isidentifier()):
                others.append(word)
                continue
            if not known:
                names = [row.place for row in self.described()]
                raise ConfigError(f"{place}: no such setting, and '{word}' is no file. {hint(place, names)}")
            expected = accepted_at(settings_class, place)
            assert expected is not None
            own = "method.kind" if place == "method" else place
            assign(assignments, own, place, from_text(expected, text), repeats=bool(expected.lists))
        return others


class Settings:
    """What a command was told: `values` has all settings, `spelled` those that were given, as the user wrote them."""

    def __init__(self, values: Any, spelled: Mapping[str, str]) -> None:
        self.values, self.spelled = values, spelled

    def __getattr__(self, name: str) -> Any:
        return getattr(self.values, name)

    def value(self, place: str) -> Any:
        value = self.values
        for key in place.split("."):
            value = value.kind if key == "kind" else getattr(value, key)
        return value

    def decoding(self, *, scores: bool = True) -> DecodingOptions:
        return decoding_options(self.values, scores=scores)


def assign(assignments: Assignments, place: str, spelling: str, value: object, repeats: bool = False) -> None:
    """Set a place; one that was set already is an error, unless it is a list that repeated words fill."""
    if place in assignments:
        before, earlier = assignments[place]
        if repeats and isinstance(earlier, list) and isinstance(value, list):
            value = [*earlier, *value]
        elif earlier != value:
            names = (before, spelling) if before != spelling else (f"{spelling}={earlier}", f"{spelling}={value}")
            raise ConfigError(f"found {' and '.join(names)}, expected one of them")
    assignments[place] = (spelling, value)


def accepted_at(cls: type, place: str) -> Accepted | None:
    """The values that a place accepts; None: there is no such setting in any kind of its tables."""
    classes: Sequence[Any] = [cls]
    expected = None
    for key in place.split("."):
        if key == "kind" and any(kind_of(own) for own in classes):
            return accepted(str)
        hints = [type_hints(own)[key] for own in classes if key in fields_of(own)]
        if not hints or hints[0] is Any:
            return None
        expected = accepted(hints[0])
        classes = [table for annotation in hints for table in accepted(annotation).tables]
    return expected


def from_text(expected: Accepted, text: str) -> object:
    """The value of a word; a list may be written as its only item, and text need not be quoted."""
    value = parse_value(text.strip())
    if expected.lists and not isinstance(value, list) and not (value is None and expected.none):
        return [from_text(expected.lists[0], text)]
    fits = type(value) in expected.scalars or (isinstance(value, int) and float in expected.scalars)
    return text if isinstance(value, int | float) and not fits and str in expected.scalars else value


def from_flag(expected: Accepted, value: Any) -> object:
    """The value of a flag; text stays as it was typed."""
    if isinstance(value, tuple):
        return [from_flag(expected.lists[0], item) for item in value]
    return value if isinstance(value, bool) or str in expected.scalars else parse_value(value)


def shown_default(setting: Setting) -> str:
    return "the run's" if setting.place.startswith("search.") else setting.default


def flag_help(setting: Setting) -> str:
    default = shown_default(setting).strip('"')
    shown = "" if default in ("none", "false", "[]", "") else f" [default: {default}]"
    return f"{setting.note[0].upper()}{setting.note[1:]}.{shown}"
