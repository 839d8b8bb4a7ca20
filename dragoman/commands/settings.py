"""Commands with settings: flags and `place=value` words of a `Schema`."""

from __future__ import annotations

from typing import Any

import click

from dragoman.base import ConfigError
from dragoman.base.config import Accepted, fields_of
from dragoman.decoding import Flag, Schema


class SettingsCommand(click.Command):
    """A command with settings. It declares an argument `words`, which takes files and settings alike.

    The function gets the words that are no settings as `file` (one), or under the name of `several`.
    """

    def __init__(
        self, *arguments: Any, schema: Schema, several: str = "", keep_unknown: bool = False, **attributes: Any
    ) -> None:
        """With `keep_unknown` a word with an unknown place is no setting: it may be a prompt."""
        super().__init__(*arguments, **attributes)
        self.schema, self.several, self.keep_unknown = schema, several, keep_unknown
        self.flags: dict[str, Flag] = {}
        for flag in schema.flags():
            option = _click_option(flag, schema.accepted(flag.place))
            self.flags[str(option.name)] = flag
            self.params.append(option)
        self.params.append(
            click.Option(
                ["--help-settings"], is_flag=True, expose_value=False, is_eager=True, callback=_print_settings,
                help="Print all settings with their defaults.",
            )
        )  # fmt: skip

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        rest = super().parse_args(ctx, args)
        if ctx.resilient_parsing:
            return rest
        assignments: dict[str, tuple[str, object]] = {}
        for name, flag in self.flags.items():
            value = ctx.params.pop(name)
            if value is None or value == () or value is False:
                continue
            self.schema.assign_flag(flag, value, assignments)
        others = self.schema.read_words(ctx.params.pop("words", ()), assignments, self.keep_unknown)
        if self.several:
            ctx.params[self.several] = tuple(others)
        elif len(others) > 1:
            raise ConfigError(f"found {len(others)} files ({', '.join(others[:4])}), expected at most one")
        else:
            ctx.params["file"] = others[0] if others else None
        ctx.params["settings"] = self.schema.read(assignments)
        return rest

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_options(ctx, formatter)
        with formatter.section("Settings, written PLACE=VALUE (--help-settings has defaults and details)"):
            schema = self.schema
            rows = [(setting.place, setting.note) for setting in schema.static if not setting.flag]
            for kind, entry in schema.methods.items() if schema.has_method else ():
                names = ", ".join(f"method.{name}" for name in fields_of(entry.config))
                rows.append((f"method={kind}", f"{entry.about} ({names})"))
            formatter.write_dl(rows)


def _print_settings(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    if not value or ctx.resilient_parsing:
        return
    command = ctx.command
    assert isinstance(command, SettingsCommand)
    for line in command.schema.lines():
        click.echo(line)
    ctx.exit()


def _click_option(flag: Flag, expected: Accepted) -> click.Option:
    """The option of a flag; the strict loader reads its text, so that it has no type of its own."""
    if flag.value is not None or bool in expected.scalars:
        return click.Option([flag.name], is_flag=True, help=flag.help)
    number = flag.name == "--seed" or (not expected.choices and str not in expected.scalars and not expected.lists)
    metavar = "N" if number else "TEXT"
    return click.Option([flag.name], multiple=bool(expected.lists), metavar=metavar, help=flag.help)
