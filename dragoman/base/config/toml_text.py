"""Values as TOML text, and the phrases of error messages."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence

TomlTable = dict[str, object]
MAX_SHOWN = 60  # characters of a text that an error message quotes


def join_place(place: str, key: str) -> str:
    """The dotted name of a key inside the table at `place`."""
    return f"{place}.{toml_key(key)}" if place else toml_key(key)


def toml_key(name: str) -> str:
    """A TOML key, quoted if it has to be."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else quoted(name)


def quoted(text: str) -> str:
    """A text as a TOML string on one line; control characters are escaped."""
    escaped = json.dumps(text, ensure_ascii=False)
    return re.sub("[\x7f-\x9f\u2028\u2029\ud800-\udfff]", lambda match: f"\\u{ord(match[0]):04x}", escaped)


def inline(value: object) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{toml_key(key)} = {inline(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(inline, value)) + "]"
    if isinstance(value, int | float):
        return str(value).lower()  # for the sake of true and false
    return '"none"' if value is None else quoted(str(value))


def either(words: Sequence[str]) -> str:
    """Phrases joined as "a, b or c"."""
    if len(words) < 2:
        return "".join(words)
    comma = "," if any("," in word or " or " in word for word in words) else ""
    return ", ".join(words[:-1]) + f"{comma} or {words[-1]}"


def one_of(choices: Iterable[str]) -> str:
    choices = list(choices)
    return quoted(choices[0]) if len(choices) == 1 else "one of " + ", ".join(choices)


def shown(value: object) -> str:
    """A value as error messages quote it; long texts and numbers are shortened."""
    if isinstance(value, int) and value.bit_length() > 64:
        return "a whole number beyond 64 bits"  # Python refuses to print very long ones
    if isinstance(value, str) and len(value) > MAX_SHOWN:
        return quoted(value[:MAX_SHOWN]) + "…"
    return "none" if value is None else inline(value)
