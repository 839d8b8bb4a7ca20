"""The one strict road between TOML tables and frozen dataclasses.

A field may be bool, int, float, str, Literal of strings, tuple[X, ...], another dataclass, or a union of
these; several dataclasses in one union are told apart by `kind: ClassVar[str]`, and the bare name of a kind
stands for a table with nothing but that kind. TOML has no null: an absent key means the default and, in a field
that may be None, the text "none" means None (and never itself). Keys left out of a table that is present come
from its class, never from the enclosing field's default.
"""

from __future__ import annotations

import codecs
import copy
import dataclasses
import datetime
import json
import math
import re
import tomllib
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from dragoman.errors import ConfigError, hint, nearest

if typing.TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T")
D = TypeVar("D", bound="DataclassInstance")
Table = dict[str, object]

# In this order because a bool is an int as well.
WORDS: dict[Any, str] = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
PLURALS = {"a whole number": "whole numbers", "a number": "numbers", "text": "text", "a table": "tables"}
LONGEST_SHOWN = 60


@dataclass(frozen=True)
class Range:
    """The limits of a number, written `Annotated[int, Range(1)]`; None leaves a side open."""

    minimum: float | None = None
    maximum: float | None = None
    exclusive_maximum: bool = False
    exclusive_minimum: bool = False

    def holds(self, value: float) -> bool:
        """Whether a number lies within the limits."""
        low, high = self.minimum, self.maximum
        above = low is None or value > low or (value == low and not self.exclusive_minimum)
        below = high is None or value < high or (value == high and not self.exclusive_maximum)
        return above and below

    @property
    def words(self) -> str:
        """The limits as an error states them, empty if there are none."""
        low = "above" if self.exclusive_minimum else "at least"
        high = "below" if self.exclusive_maximum else "at most"
        sides = ((low, self.minimum), (high, self.maximum))
        return " and ".join(f"{word} {limit:g}" for word, limit in sides if limit is not None)


# What many settings are.
Size = Annotated[int, Range(1)]
SizeOrNone = Annotated[int, Range(0)]
Share = Annotated[float, Range(0.0, 1.0, exclusive_maximum=True)]


class Setting(NamedTuple):
    """One setting as help shows it; `when` is the choice under which it exists, empty if it always does."""

    place: str
    expected: str
    default: str
    note: str
    when: str = ""


@typing.overload
def setting(default: T, *, help: str) -> T: ...
@typing.overload
def setting(*, default_factory: Callable[[], T], help: str) -> T: ...
@typing.overload
def setting(*, help: str) -> Any: ...
def setting(default: Any = MISSING, *, default_factory: Any = MISSING, help: str) -> Any:
    """A dataclass field with its help text; required if it has neither default nor factory."""
    if default_factory is not MISSING:
        return dataclasses.field(default_factory=default_factory, metadata={"help": help})
    return dataclasses.field(default=default, metadata={"help": help})


# What a class lets in


@dataclass(frozen=True)
class _Expected:
    """What a field may hold, sorted by what TOML can write there."""

    scalars: Mapping[Any, Range]
    choices: tuple[str, ...]
    lists: tuple[_Expected, ...]
    tables: tuple[Any, ...]
    none: bool

    @property
    def only_tables(self) -> bool:
        return not (self.scalars or self.choices or self.lists or self.none)

    def words(self, limits: bool = True) -> str:
        """What is expected, with or without the limits of numbers."""
        words = []
        for kind, limit in self.scalars.items():
            words.append(WORDS[kind] + (f", {limit.words}" if limits and limit.words else ""))
        if self.choices:
            words.append(_one_of(self.choices))
        for item in self.lists:
            inner = item.words(limits)
            words.append(f"a list of {PLURALS[inner]}" if inner in PLURALS else f"a list, each {inner}")
        if self.tables:
            several = f" of kind {_either([*_kinds(self.tables)])}" if len(self.tables) > 1 else ""
            words.append(f"a table{several}")
        return _either(words + ["none"] * self.none)


def _parts(annotation: Any, limits: Range) -> Iterator[tuple[Any, Range]]:
    """The members of a union, each with the limits that stand around it."""
    if get_origin(annotation) is Annotated:
        inner, *notes = get_args(annotation)
        yield from _parts(inner, next((note for note in notes if isinstance(note, Range)), limits))
    elif get_origin(annotation) in (typing.Union, UnionType):
        for member in get_args(annotation):
            yield from _parts(member, limits)
    else:
        yield annotation, limits


def _expected(annotation: Any) -> _Expected:
    scalars: dict[Any, Range] = {}
    choices: list[str] = []
    lists: list[_Expected] = []
    tables: list[Any] = []
    none = False
    for part, limits in _parts(annotation, Range()):
        arguments = get_args(part)
        if part in WORDS:
            scalars[part] = limits if part in (int, float) else Range()
        elif part is NoneType:
            none = True
        elif get_origin(part) is Literal:
            assert all(isinstance(choice, str) for choice in arguments), f"{part}: a choice must be text"
            choices += arguments
        elif get_origin(part) is tuple:
            assert arguments[1:] == (...,), f"{part}: write tuple[X, ...]"
            lists.append(_expected(arguments[0]))
        else:
            assert is_dataclass(part), f"{part}: not a type that a setting can have"
            tables.append(part)
    distinct = len(tables) < 2 or len(_kinds(tables)) == len(tables)
    assert distinct, f"{annotation}: each table needs its own kind"
    assert not (none and "none" in choices), f"{annotation}: both None and a choice called none"
    return _Expected(scalars, tuple(choices), tuple(lists), tuple(tables), none)


def _fields(cls: Any) -> dict[str, dataclasses.Field[Any]]:
    return {field.name: field for field in dataclasses.fields(cls) if field.init}


def _default(field: dataclasses.Field[Any]) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


def _kind(cls: Any) -> str | None:
    """The name that chooses a class; a class with an ordinary field called kind has none."""
    kind = None if "kind" in _fields(cls) else getattr(cls, "kind", None)
    return kind if isinstance(kind, str) else None


def _kinds(classes: Iterable[Any]) -> dict[str, Any]:
    return {kind: cls for cls in classes if (kind := _kind(cls)) is not None}


# From tables to dataclasses


def build(cls: type[D], table: Mapping[str, object], place: str = "", origin: str | Path = "") -> D:
    """The instance a table describes, or one ConfigError with a line for every mistake in it.

    A class may define `problems(self) -> Iterable[str]`, yielding "field: message" or a message, for what no
    single field can show. Each line starts with the origin (such as a file name) if one is given.
    """
    errors: list[str] = []
    instance = _read(_expected(cls), table, place, errors, MISSING)
    if errors:
        raise ConfigError("\n".join(f"{origin}: {error}" if str(origin) else error for error in errors))
    assert isinstance(instance, cls)
    return instance


def _build(
    cls: Any, table: Mapping[str, object], place: str, errors: list[str], others: Any = (), base: object = MISSING
) -> object:
    """An instance, or None when errors were added; `others` are the classes of other kinds.

    What the table does not say is as in `base`, the instance that stands there without any table, if it is of this
    class; else as the class has it.
    """
    before = len(errors)
    fields, kind = _fields(cls), _kind(cls)
    names = [*fields] if kind is None else ["kind", *fields]
    for key in table:
        if key not in names:
            owners = [name for name, other in _kinds(others).items() if key in _fields(other)]
            known = f" {hint(key, names)}" if names else ""
            elsewhere = f" for kind {kind}, only for {_either(owners)}"
            errors.append(f"{_join(place, key)}: no such setting" + (elsewhere if owners else f".{known}"))
    hints = get_type_hints(cls, include_extras=True)
    values: Table = {}
    for name, field in fields.items():
        expected, default, inner = _expected(hints[name]), _default(field), _join(place, name)
        if type(base) is cls:
            default = values[name] = getattr(base, name)
        if name in table:
            values[name] = _read(expected, table[name], inner, errors, default)
        elif default is MISSING:
            # The keys that a missing table must have say more than that the table is missing.
            inside: list[str] = []
            if expected.only_tables:
                _read(expected, {}, inner, inside, MISSING)
            errors.extend(inside or [f"{inner}: missing; expected {expected.words()}"])
    if len(errors) > before:
        return None
    instance = cls(**values)
    for problem in instance.problems() if hasattr(instance, "problems") else ():
        named = re.split(r"[.:\[]", problem)[0] in fields
        errors.append(place + ("." if named and place else ": " if place else "") + problem)
    return instance


def _read(expected: _Expected, value: object, place: str, errors: list[str], default: object) -> object:
    """The value a field gets; when errors were added the result is of no use."""
    if expected.none and (value is None or value == "none"):
        return None
    named = "none" if value is None and "none" in _kinds(expected.tables) else value
    if isinstance(named, str) and len(expected.tables) > 1 and not expected.scalars and named not in expected.choices:
        value = {"kind": named}  # the bare name of a kind stands for a table with nothing else
    if isinstance(value, Mapping) and expected.tables:
        chosen = _choose(expected.tables, value, place, errors, default)
        others = [cls for cls in expected.tables if cls is not chosen]
        return None if chosen is None else _build(chosen, value, place, errors, others, default)
    if isinstance(value, list | tuple) and expected.lists:
        trials: list[list[str]] = []
        for item in expected.lists:
            trial: list[str] = []
            items = [_read(item, one, f"{place}[{i}]", trial, MISSING) for i, one in enumerate(value)]
            if not trial:
                return tuple(items)
            trials.append(trial)
        errors += sorted(trials, key=len)[0]
        return None
    scalar, complaint = _scalar(expected, value)
    if complaint:
        errors.append(f"{place}: {complaint}")
    return scalar


def _choose(classes: Sequence[Any], table: Mapping[str, object], place: str, errors: list[str], default: object) -> Any:
    """The class a table asks for by kind; without one, the class of the default or the only one there is."""
    kinds = _kinds(classes)
    if "kind" not in table or not kinds:
        if type(default) in classes or len(classes) == 1:
            return type(default) if type(default) in classes else classes[0]
        errors.append(f"{_join(place, 'kind')}: missing; expected {_one_of(kinds)}")
        return None
    kind = "none" if table["kind"] is None else table["kind"]
    if isinstance(kind, str) and kind in kinds:
        return kinds[kind]
    errors.append(f"{_join(place, 'kind')}: {_wrong(kind, _one_of(kinds), kinds)}")
    return None


def _scalar(expected: _Expected, value: Any) -> tuple[object, str]:
    """A lone value as its field keeps it, and what is wrong with it, if anything."""
    if value is None and "none" in expected.choices:
        value = "none"  # the command line cannot know that this field has a choice of that name
    if value in expected.choices:
        return value, ""
    found = next((kind for kind in WORDS if isinstance(value, kind)), None)
    if found is int and int not in expected.scalars:
        found = float
    if found not in expected.scalars:
        return None, _wrong(value, expected.words(limits=False), expected.choices)
    if found is bool:
        return value, ""
    if found is str:
        unwritable = re.search("[\ud800-\udfff]", value)
        return value, f"found {_shown(value)}, expected text that UTF-8 can hold" if unwritable else ""
    if found is int and not -(2**63) <= value < 2**63:
        return None, f"found {_shown(value)}, expected one that TOML can hold"
    try:
        number = float(value) if found is float else value
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        return None, f"found {_shown(value)}, expected a finite number"
    limits = expected.scalars[found]
    return number, "" if limits.holds(number) else f"found {_shown(value)}, expected {limits.words}"


# Words for errors


def _join(place: str, key: str) -> str:
    return f"{place}.{_key(key)}" if place else _key(key)


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _quoted(name)


def _quoted(text: str) -> str:
    """A TOML string on one line, whatever the text holds."""
    escaped = json.dumps(text, ensure_ascii=False)
    return re.sub("[\x7f-\x9f\u2028\u2029\ud800-\udfff]", lambda match: f"\\u{ord(match[0]):04x}", escaped)


def _either(words: Sequence[str]) -> str:
    if len(words) < 2:
        return "".join(words)
    comma = "," if any("," in word or " or " in word for word in words) else ""
    return ", ".join(words[:-1]) + f"{comma} or {words[-1]}"


def _one_of(choices: Iterable[str]) -> str:
    choices = list(choices)
    return _quoted(choices[0]) if len(choices) == 1 else "one of " + ", ".join(choices)


def _shown(value: object) -> str:
    if isinstance(value, int) and value.bit_length() > 64:
        return "a whole number beyond 64 bits"  # Python refuses to print very long ones
    if isinstance(value, str) and len(value) > LONGEST_SHOWN:
        return _quoted(value[:LONGEST_SHOWN]) + "…"
    return "none" if value is None else inline(value)


def _wrong(value: object, words: str, choices: Iterable[str] = ()) -> str:
    """What was found and expected, with the nearest choice or with the type of a value that is no choice."""
    choices = list(choices)
    if isinstance(value, str) and choices:
        match = nearest(value, choices)
        return f"found {_shown(value)}, expected {words}" + (f". Did you mean '{match}'?" if match else "")
    found = _shown(value)
    if isinstance(value, Mapping | list | tuple):
        found = "a table" if isinstance(value, Mapping) else "a list"
    elif value is not None and not isinstance(value, bool):
        of_type = (word for kind, word in WORDS.items() if isinstance(value, kind))
        found += f" ({next(of_type, type(value).__name__)})"
    return f"found {found}, expected {words}"


# Tables before they are read


def merge(base: Mapping[str, object], over: Mapping[str, object]) -> Table:
    """Two tables as one, the second winning key by key.

    A table that changes its `kind` keeps none of the base's other keys, for they belonged to the other kind.
    """
    changed = "kind" in base and "kind" in over and base["kind"] != over["kind"]
    result: Table = {} if changed else copy.deepcopy(dict(base))
    for key, value in over.items():
        below = result.get(key)
        if is_kind(below) and isinstance(value, Mapping):
            below = {"kind": below}  # a bare kind, now given settings of its own
        if isinstance(below, Mapping) and isinstance(value, Mapping):
            result[key] = merge(below, value)
        else:
            result[key] = copy.deepcopy(value)
    return result


def is_kind(value: object) -> bool:
    """Whether a value may be the kind of a part and nothing more, as in encoder = "recurrent"."""
    return isinstance(value, str) and re.fullmatch("[a-z][a-z0-9-]*", value) is not None


def override(table: Mapping[str, object], assignments: Sequence[str]) -> Table:
    """A table changed by `place.to.key=value`; a value that is not TOML is plain text, `none` is None.

    The assignments are merged among themselves first, so a setting may stand before the `kind` it belongs to.
    """
    over: Table = {}
    errors = []
    for assignment in assignments:
        place, equals, text = assignment.partition("=")
        keys = place.strip().split(".")
        if not equals or not all(keys):
            errors.append(f"found {_shown(assignment)}, expected place=value")
            continue
        nested: Table = {keys[-1]: _parsed(text.strip())}
        for key in reversed(keys[:-1]):
            nested = {key: nested}
        over = merge(over, nested)
    if errors:
        raise ConfigError("\n".join(errors))
    return merge(table, over)


def left_out(
    base: Mapping[str, object], over: Mapping[str, object], place: str = ""
) -> Iterator[tuple[str, list[str]]]:
    """Where `merge` puts another part in the place of one, and which of its settings it leaves out there."""
    if "kind" in base and "kind" in over and base["kind"] != over["kind"]:
        if lost := [key for key in base if key not in over and key != "kind"]:
            yield place, [_join(place, key) for key in lost]
        return
    for key, value in over.items():
        below = base.get(key)
        if isinstance(below, Mapping) and isinstance(value, Mapping):
            yield from left_out(below, value, _join(place, key))
        elif isinstance(below, Mapping) and is_kind(value) and (lost := [name for name in below if name != "kind"]):
            yield _join(place, key), [_join(_join(place, key), name) for name in lost]


def _parsed(text: str) -> object:
    if text == "none":
        return None
    try:
        # Within brackets a '#' hides the closing one, so `1#2` fails here and stays text, not 1.
        tomllib.loads(f"value = [{text}]")
        value: object = tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text
    # No setting is a date, but a run may well be named after one.
    return text if isinstance(value, datetime.date | datetime.time) else value


def read_toml(path: str | Path) -> Table:
    """The table in a TOML file, or a ConfigError of one line naming the file and, for bad text, its line."""
    path = Path(path)
    if path.is_dir():
        raise ConfigError(f"{path}: found a folder, expected a TOML file")
    try:
        data = path.read_bytes().removeprefix(codecs.BOM_UTF8)
    except FileNotFoundError:
        names = [other.name for other in path.parent.iterdir()] if path.parent.is_dir() else []
        match = nearest(path.name, names)
        raise ConfigError(f"{path}: no such file." + (f" Did you mean '{match}'?" if match else "")) from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    try:
        return tomllib.loads(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}:{line}: found bytes that are not UTF-8, expected text") from None
    except (ValueError, RecursionError) as error:
        where = re.search(r"\(at (?:line (\d+), column \d+|end of document)\)$", str(error))
        at_line = f":{where[1] or len(data.splitlines())}" if where else ""
        raise ConfigError(f"{path}{at_line}: not valid TOML: {error}") from None


# From dataclasses to tables and text


def as_table(instance: DataclassInstance) -> Table:
    """The plain nested table of an instance, `kind` first and None kept; `build` is its inverse."""
    table = _plain(instance)
    assert isinstance(table, dict)
    return table


def _plain(value: object, for_file: bool = False) -> object:
    """A value without dataclasses and tuples; for a file, without the keys it shows by leaving them out."""
    if isinstance(value, list | tuple):
        return [_plain(item, for_file) for item in value]
    if not is_dataclass(value):
        return value
    kind = _kind(value)
    table: Table = {} if kind is None else {"kind": kind}
    for name, field in _fields(value).items():
        inner = getattr(value, name)
        if not (for_file and inner is None and _default(field) is None):
            table[name] = _plain(inner, for_file)
    return table


def dump(instance: DataclassInstance) -> str:
    """TOML text that `build` reads back to an equal instance; a ConfigError if its values forbid that.

    None is left out where it is the default and is "none" elsewhere; tables within lists are written inline.
    """
    changed = differences(instance, build(type(instance), as_table(instance)))
    if changed:
        rows = (f"{place}: found {_shown(now)}, which reads back as {_shown(then)}" for place, now, then in changed)
        raise ConfigError("\n".join(rows))
    return "\n".join(_lines(_plain(instance, for_file=True), "")).lstrip("\n") + "\n"


def _lines(table: Any, place: str) -> Iterator[str]:
    tables = {key: value for key, value in table.items() if isinstance(value, Mapping)}
    if place and (len(tables) < len(table) or not table):
        yield f"\n[{place}]"
    yield from (f"{_key(key)} = {inline(value)}" for key, value in table.items() if key not in tables)
    for key, value in tables.items():
        yield from _lines(value, _join(place, key))


def inline(value: object) -> str:
    """A plain value as TOML on one line."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(key)} = {inline(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(inline, value)) + "]"
    if isinstance(value, int | float):
        return str(value).lower()  # for the sake of true and false
    return '"none"' if value is None else _quoted(str(value))


def differences(left: DataclassInstance, right: DataclassInstance) -> list[tuple[str, object, object]]:
    """Every place where two instances differ, with both values; where kinds differ, only the kind."""
    return list(_differences(as_table(left), as_table(right), ""))


def _differences(left: Table, right: Table, place: str) -> Iterator[tuple[str, object, object]]:
    other_kind = left.get("kind") != right.get("kind")
    for key in ["kind"] if other_kind else dict.fromkeys([*left, *right]):
        one, other, inner = left.get(key), right.get(key), _join(place, key)
        if isinstance(one, dict) and isinstance(other, dict):
            yield from _differences(one, other, inner)
        elif one != other:
            yield inner, one, other


def describe(cls: type[DataclassInstance], place: str = "") -> list[Setting]:
    """Every setting of a class in order, those of nested classes and of each kind included.

    A default is TOML text, "none" or "required", and is what holds while the enclosing table is left out.
    """
    return list(_describe(cls, place, "", None))


def _describe(cls: Any, place: str, when: str, instance: object) -> Iterator[Setting]:
    hints = get_type_hints(cls, include_extras=True)
    for name, field in _fields(cls).items():
        expected, default, inner = _expected(hints[name]), _default(field), _join(place, name)
        note, kinds = field.metadata.get("help", ""), _kinds(expected.tables)
        if default is not MISSING and instance is not None:
            default = getattr(instance, name)
        if not expected.only_tables:
            text = "none" if default is None else inline(_plain(default, for_file=True))
            yield Setting(inner, expected.words(), "required" if default is MISSING else text, note, when)
        if len(kinds) > 1:
            chosen = inline(_kind(default)) if type(default) in expected.tables else "required"
            yield Setting(f"{inner}.kind", _one_of(kinds), chosen, note, when)
        for table in expected.tables:
            condition = f"{inner}.kind = {inline(_kind(table))}" if len(kinds) > 1 else f"{inner} is a table"
            always = expected.only_tables and len(expected.tables) == 1
            both = when if always else f"{when} and {condition}" if when else condition
            yield from _describe(table, inner, both, default if type(default) is table else None)
