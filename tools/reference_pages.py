"""The pages of the reference that the code itself knows: commands, settings, Python and HTTP interface.

`pages()` maps the path of each page below docs/ to its text; `make docs` builds them into the site.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import MISSING, dataclass, field, is_dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click

import dragoman
from dragoman.base.config.dumper import plain
from dragoman.base.config.fields import accepted, default_of, fields_of, kind_of, kinds_of, type_hints
from dragoman.base.config.toml_text import inline, join_place, one_of
from dragoman.cli import cli
from dragoman.commands.root import GROUPS
from dragoman.commands.settings import SettingsCommand
from dragoman.runs.tasks.table import TASKS
from dragoman.serving.app import ABOUT, PROBLEMS, create_app
from dragoman.serving.config import ServeConfig

MADE = "<!-- made by tools/reference_pages.py from the code -->\n\n"
PLACES = 4  # of a table of settings that occurs in many


def pages() -> dict[str, str]:
    return {path: MADE + text for path, text in (*commands(), *settings(), *python(), *http())}


# -- Text ------------------------------------------------------------------------------------------------------------


def escaped(text: str) -> str:
    """Plain text as Markdown; code spans stay."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else re.sub(r"([\\*_<\[\]])", r"\\\1", part) for part in parts)


def sentence(text: str) -> str:
    """A note as a sentence."""
    text = escaped(text.strip())
    first = text[:1].upper() if text[:1].isascii() else text[:1]  # β stays β
    return first + text[1:] + ("" if text.endswith((".", "?", "…")) else ".") if text else ""


def entry(name: str, *notes: str) -> str:
    """A term with its notes, one paragraph each."""
    return f"`{name}`\n:   " + "\n\n    ".join(notes) + "\n"


# A page that the help of a command names, as in: see 'scarce' in the documentation.
DOCS = Path(__file__).resolve().parent.parent / "docs"
NAMED_PAGE = re.compile(r"'([\w-]+)' in the documentation")


def link(named: re.Match[str]) -> str:
    """The page of this name, seen from reference/commands."""
    (page,) = DOCS.glob(f"*/{named[1]}.md")
    return f"[{named[1]}](../../{page.relative_to(DOCS)}) in the documentation"


def help_text(text: str) -> str:
    """The help of a command as Markdown: a paragraph that click leaves as it is becomes a block."""
    made = []
    for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(text)):
        if paragraph.startswith("\b"):
            lines = paragraph.partition("\n")[2]
            made.append(f"```text\n{lines}\n```")
        else:
            made.append(re.sub(NAMED_PAGE, link, escaped(" ".join(paragraph.split()))))
    return "\n\n".join(made)


# -- Commands --------------------------------------------------------------------------------------------------------


def commands() -> Iterator[tuple[str, str]]:
    """A page for each group of `dragoman --help`."""
    root = click.Context(cli, info_name="dragoman", **cli.context_settings)
    rows = []
    for group, listed in GROUPS.items():
        path = slug(group)
        rows += [f"| [{name}]({path}.md#{name}) | {summary} |" for name, _, summary in listed]
        sections = [command_section(cli.commands[name], root) for name, *_ in listed]
        yield f"reference/commands/{path}.md", f"# Commands: {group.lower()}\n\n" + "\n\n".join(sections)
    about = [option(parameter, root) for parameter in cli.get_params(root)]
    table = "| command | what it does |\n|---|---|\n" + "\n".join(rows)
    options = "## Options of all commands\n\n" + "\n".join(filter(None, about))
    yield (
        "reference/commands/index.md",
        f"# Commands\n\nAll commands of `dragoman`, by what a user wants.\n\n{table}\n\n{options}\n\n"
        "[The command line](../command-line.md) has the exit codes.\n",
    )


def command_section(command: click.Command, root: click.Context) -> str:
    context = click.Context(command, root, command.name)
    usage = command.get_usage(context).removeprefix("Usage: ")
    made = [f"## {command.name}", f"```text\n{usage}\n```", help_text(command.help or "")]
    options = [row for parameter in command.get_params(context) if (row := option(parameter, context))]
    made += [f"### Options of {command.name}", "\n".join(options)]
    if isinstance(command, SettingsCommand):
        rows = command.schema.described()
        made += [f"### Settings of {command.name}", "Written `PLACE=VALUE` after the command."]
        made += ["\n".join(setting_entry(row.place, row.expected, row.default, row.note, row.when) for row in rows)]
    elif any(parameter.name == "overrides" for parameter in command.params):
        made.append(f"### Settings of {command.name}\n\nThose of a [configuration](../settings/index.md).")
    return "\n\n".join(made)


def option(parameter: click.Parameter, context: click.Context) -> str:
    record = None if isinstance(parameter, click.Argument) else parameter.get_help_record(context)
    if record is None:  # an argument, which the usage shows, or a hidden option
        return ""
    names, text = record
    text, _, extra = text.partition("  [")
    notes = [sentence(text)] + ([f"*{escaped(extra.rstrip(']'))}*"] if extra else [])
    return entry(names, " ".join(filter(None, notes)) or "–")


def setting_entry(place: str, expected: str, default: str, note: str, when: str = "") -> str:
    value = "required" if default == "required" else f"default `{default}`"
    where = f" If {escaped(when)}." if when else ""
    return entry(place, f"{sentence(note)}{where}", f"*{escaped(expected)}; {value}*")


def slug(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


# -- Settings --------------------------------------------------------------------------------------------------------


@dataclass
class SettingsTable:
    """A dataclass of settings, with the places and the tasks that have it."""

    places: list[str] = field(default_factory=list)
    tasks: list[str] = field(default_factory=list)


SETTING_PAGES = {
    "top": ("Settings", "index"),
    "data": ("Settings: data", "data"),
    "tokenizer": ("Settings: tokenizers", "tokenizer"),
    "model": ("Settings: models", "model"),
    "encoder": ("Settings: encoders", "encoder"),
    "decoder": ("Settings: decoders", "decoder"),
    "part": ("Settings: parts of models", "part"),
    "train": ("Settings: training", "train"),
    "search": ("Settings: search", "search"),
}  # fmt: skip
INTRODUCTION = """A configuration is a TOML file, or words `PLACE=VALUE` after a command:
`train.steps=2000` is `steps = 2000` in the table `[train]`. A table with a `kind` has the settings of that kind alone.
`dragoman check` names a setting that does not exist and the nearest one that does.

Without a file, `dragoman train` [chooses](../../explanation/auto.md) the settings itself.
[Presets](../commands/start.md#presets) name sets of them.

| page | tables |
|---|---|
"""


def settings() -> Iterator[tuple[str, str]]:
    """A page for each group of tables of the configuration, and one for the file of a server."""
    tables: dict[type, SettingsTable] = {}
    for name, task in TASKS.items():
        collect(task.config, "", name, tables)
    sections: dict[str, list[str]] = {name: [] for name in SETTING_PAGES}
    for cls, known in tables.items():
        sections[page_of(known.places)].append(table_section(cls, known))
    listed = ""
    for name, (title, path) in SETTING_PAGES.items():
        if name != "top":
            kinds = [cls for cls, known in tables.items() if page_of(known.places) == name]
            shown = ", ".join(f"`{kind_of(cls) or tables[cls].places[0]}`" for cls in kinds[:8])
            listed += f"| [{title.partition(': ')[2]}]({path}.md) | {shown}{' …' if len(kinds) > 8 else ''} |\n"
            yield f"reference/settings/{path}.md", f"# {title}\n\n" + "\n\n".join(sections[name])
    listed += "| [server](serve.md) | the file of `dragoman serve --config` |\n"
    tasks = "\n`task` at the top level is the kind of problem: " + ", ".join(f"`{name}`" for name in TASKS) + ".\n"
    yield "reference/settings/index.md", "# Settings\n\n" + INTRODUCTION + listed + tasks
    served: dict[type, SettingsTable] = {}
    collect(ServeConfig, "", "", served)
    text = "\n\n".join(table_section(cls, known) for cls, known in served.items())
    yield "reference/settings/serve.md", f"# Settings: server\n\nThe file of `dragoman serve --config FILE`.\n\n{text}"


def collect(cls: type, place: str, task: str, found: dict[type, SettingsTable]) -> None:
    """Note every dataclass of settings below one, with its places."""
    known = found.setdefault(cls, SettingsTable())
    if place not in known.places:
        known.places.append(place)
    if task not in known.tasks:
        known.tasks.append(task)
    hints = type_hints(cls)
    for name in fields_of(cls):
        for table in accepted(hints[name]).tables:
            collect(table, join_place(place, name), task, found)
        for item in accepted(hints[name]).lists:
            for table in item.tables:
                collect(table, join_place(place, name), task, found)


def page_of(places: list[str]) -> str:
    parts = min(places, key=len).split(".")
    if parts == [""]:
        return "top"
    if parts[0] != "model" or len(parts) == 1:
        return parts[0]
    sides = {"encoder": "encoder", "stack": "encoder", "decoder": "decoder", "attention_decoder": "decoder"}
    return sides.get(parts[-1], "part")


def table_section(cls: Any, known: SettingsTable) -> str:
    kind, places = kind_of(cls), sorted(known.places, key=lambda place: (place.count("."), place))
    if not places[0]:
        title = "Top level"
    else:
        title = kind or places[0]
    shown = ", ".join(f"`{place}`" for place in places[:PLACES])
    more = f" and {len(places) - PLACES} more places" if len(places) > PLACES else ""
    where = (f'`kind = "{kind}"` in {shown}{more}.' if kind else f"Table {shown}{more}.") if places[0] else ""
    if len(known.tasks) < len(TASKS) and known.tasks != [""]:
        where += f" Tasks: {', '.join(known.tasks)}."
    about = (cls.__doc__ or "").strip()
    about = "" if about.startswith(f"{cls.__name__}(") else help_text(about)
    rows = [field_entry(cls, name) for name in fields_of(cls)]
    return "\n\n".join(filter(None, (f"## {title}", where, about, "\n".join(rows) or "No settings of its own.")))


def field_entry(cls: Any, name: str) -> str:
    own = fields_of(cls)[name]
    expected, default = accepted(type_hints(cls)[name]), default_of(own)
    kinds = kinds_of(expected.tables)
    words = f"a table of kind {one_of(kinds).removeprefix('one of ')}" if len(kinds) > 8 else expected.words()
    text = "required" if default is MISSING else "none" if default is None else inline(plain(default, for_file=True))
    if is_dataclass(default) and len(text) > 60:
        text = f'kind = "{kind_of(default)}"' if kind_of(default) else "its own defaults"
    return setting_entry(name, words, text, str(own.metadata.get("help", "")))


# -- Python ----------------------------------------------------------------------------------------------------------

PYTHON_INTRODUCTION = """# Python interface

The public functions, classes and errors: the names in `dragoman.__all__`. They keep their meaning within a minor
version. [Use Dragoman as a library](../how-to/library.md) shows them at work.
"""


def python() -> Iterator[tuple[str, str]]:
    """The public names, for mkdocstrings."""
    groups: dict[str, list[str]] = {"Functions": [], "Classes": [], "Errors and warnings": []}
    for name in dragoman.__all__:
        value = getattr(dragoman, name)
        if name.startswith("__"):
            continue
        is_error = isinstance(value, type) and issubclass(value, Exception)
        group = "Errors and warnings" if is_error else "Classes" if isinstance(value, type) else "Functions"
        groups[group].append(f"::: {value.__module__}.{name}\n    options:\n      heading_level: 3\n")
    text = "".join(f"\n## {group}\n\n" + "\n".join(names) for group, names in groups.items())
    yield "reference/python.md", PYTHON_INTRODUCTION + text


# -- HTTP ------------------------------------------------------------------------------------------------------------

STARTING = """A running server has its description at `/openapi.json`.
[Serving](../../how-to/serving.md) says how to start one.
"""
ERRORS = """## Errors

All routes but those of operation may answer so, with a line that says what was found and expected.

"""
ANSWERS = "| answer | meaning |\n|---|---|\n"
PROTOCOLS = {
    "dragoman": "Dragoman's own", "LibreTranslate": "as LibreTranslate", "OpenAI": "as OpenAI", "DeepL": "as DeepL",
    "OPUS-CAT": "as OPUS-CAT", "corrections": "corrections", "operation": "operation",
}  # fmt: skip


def openapi() -> dict[str, Any]:
    """The description of the server, which needs no model."""
    gate: Any = create_app(SimpleNamespace(config=SimpleNamespace(page=False, cors=())))  # type: ignore[arg-type]
    described: dict[str, Any] = gate.app.openapi()
    return described


def http() -> Iterator[tuple[str, str]]:
    """A page for each protocol."""
    described = openapi()
    schemas = described["components"]["schemas"]
    sections: dict[str, list[str]] = {tag: [] for tag in PROTOCOLS}
    rows: dict[str, list[str]] = {tag: [] for tag in PROTOCOLS}
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            (tag,) = operation["tags"]
            title = f"{method.upper()} {path}"
            summary = operation.get("description", operation["summary"]).split("\n\n")[0]
            rows[tag].append(f"| [{title}]({slug(tag)}.md#{anchor(title)}) | {escaped(' '.join(summary.split()))} |")
            sections[tag].append(operation_section(title, operation, schemas))
    listed = ""
    for tag, name in PROTOCOLS.items():
        table = "| route | what it does |\n|---|---|\n" + "\n".join(rows[tag])
        listed += f"\n## {name[:1].upper()}{name[1:]}\n\n{table}\n"
        used = referenced(sections[tag], schemas)
        forms = "".join(f"\n\n## {form}\n\n{fields(schemas[form], schemas)}" for form in used)
        yield f"reference/http/{slug(tag)}.md", f"# HTTP interface: {name}\n\n" + "\n\n".join(sections[tag]) + forms
    problems = "".join(f"| {status} | {problem['description']} |\n" for status, problem in PROBLEMS.items())
    yield "reference/http/index.md", f"# HTTP interface\n{ABOUT}\n{STARTING}{listed}\n{ERRORS}{ANSWERS}{problems}"


def anchor(title: str) -> str:
    """The anchor of a heading, as the site makes it."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def operation_section(title: str, operation: dict[str, Any], schemas: dict[str, Any]) -> str:
    made = [f"## {title}", escaped(operation.get("description", ""))]
    if parameters := operation.get("parameters"):
        made += ["**Parameters**", "\n".join(parameter_entry(one) for one in parameters)]
    contents = operation.get("requestBody", {}).get("content", {})
    if contents:
        schema = resolved(next(iter(contents.values()))["schema"], schemas)
        made += [f"**Body** ({' or '.join(f'`{kind}`' for kind in contents)})", fields(schema, schemas)]
        for example in schema.get("examples", [])[:1]:
            made.append("```json\n" + json.dumps(example, indent=2, ensure_ascii=False) + "\n```")
    answers = []
    for status, answer in operation["responses"].items():
        if PROBLEMS.get(int(status), {}).get("description") == answer["description"]:
            continue  # the same for all routes: on the first page
        schema = next(iter(answer.get("content", {}).values()), {}).get("schema", {})
        shown = f": {words(schema)}" if schema and status.startswith("2") else ""
        answers.append(f"| {status} | {escaped(answer['description'])}{shown} |")
    made.append(ANSWERS + "\n".join(answers))
    return "\n\n".join(filter(None, made))


def resolved(schema: dict[str, Any], schemas: dict[str, Any]) -> dict[str, Any]:
    name = schema.get("$ref", "").rpartition("/")[2]
    found: dict[str, Any] = schemas[name] if name else schema
    return found


def fields(schema: dict[str, Any], schemas: dict[str, Any]) -> str:
    if "properties" not in schema:
        members = [resolved(one, schemas) for one in schema.get("anyOf", schema.get("oneOf", []))]
        return "\n\n".join(fields(one, schemas) for one in members if "properties" in one) or words(schema)
    required = schema.get("required", ())
    rows = []
    for name, own in schema["properties"].items():
        rest = f"default `{json.dumps(own['default'])}`" if "default" in own else "optional"
        rest = "required" if name in required else rest
        note = sentence(own.get("description", ""))
        rows.append(entry(name, *filter(None, (note, f"*{words(own)}; {rest}*"))))
    return "\n".join(rows)


def parameter_entry(parameter: dict[str, Any]) -> str:
    rest = "required" if parameter.get("required") else "optional"
    note = sentence(parameter.get("description", ""))
    kind = f"*{words(parameter['schema'])}; {rest}; in the {parameter['in']}*"
    return entry(parameter["name"], *filter(None, (note, kind)))


def words(schema: dict[str, Any]) -> str:
    """A JSON schema in words."""
    if name := schema.get("$ref", "").rpartition("/")[2]:
        return f"[{name}](#{name.lower()})"
    if "const" in schema:
        return f"`{json.dumps(schema['const'])}`"
    if "enum" in schema:
        return ", ".join(f"`{json.dumps(value)}`" for value in schema["enum"])
    if members := schema.get("anyOf", schema.get("oneOf")):
        return " or ".join(dict.fromkeys(map(words, members)))
    kind = schema.get("type", "any value")
    if kind == "array":
        return f"list of {words(schema.get('items', {}))}"
    if schema.get("format") == "binary" or "contentMediaType" in schema:
        return "file"
    limits = [f"{word} {schema[key]:g}" for key, word in LIMITS.items() if abs(schema.get(key, HUGE)) < HUGE]
    return " ".join([kind, *limits]).replace("array", "list")


HUGE = 2**62  # a limit of the number's size, not of its meaning
LIMITS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<", "maxLength": "of length ≤"}


def referenced(texts: Iterable[str], schemas: dict[str, Any]) -> list[str]:
    """The named forms that texts link to, and those that these contain."""
    waiting, found = list(texts), []
    while waiting:
        for name in schemas:
            if name not in found and f"[{name}](#{name.lower()})" in waiting[0]:
                found.append(name)
                waiting.append(fields(schemas[name], schemas))
        waiting.pop(0)
    return found
