"""The way in from the command line: run a command, and turn whatever goes wrong into a line and an exit code."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback

import click

from dragoman.commands.root import ReaderLeft, cli
from dragoman.errors import DragomanError

__all__ = ["cli", "guarded", "main"]


def main() -> None:
    """Run the command line; every user mistake is one line and exit code 2."""
    for number, name in ((1, "stdout"), (2, "stderr")):
        if getattr(sys, name) is None:  # closed by whoever started us: the next file opened would take its place
            os.dup2(os.open(os.devnull, os.O_WRONLY), number)
            setattr(sys, name, os.fdopen(number, "w", encoding="utf-8"))
        getattr(sys, name).reconfigure(errors="backslashreplace")  # a poor locale must not end a run
    sys.exit(guarded(sys.argv[1:]))


def guarded(arguments: list[str]) -> int:
    """Run a command and turn whatever goes wrong into an exit code and a line; `--trace` adds the traceback."""
    trace = "--trace" in arguments
    try:
        try:
            cli.main([word for word in arguments if word != "--trace"], prog_name="dragoman", standalone_mode=False)
            if sys.stdout is not None:
                sys.stdout.flush()  # a full disk or a reader that left is noticed here, not at exit
        except click.exceptions.Exit as leave:
            return leave.exit_code
        except SystemExit:  # rich's answer to a reader that left
            raise ReaderLeft from None
        except BaseException:
            if trace:
                traceback.print_exc()
            raise
    except click.ClickException as mistake:
        where = mistake.ctx.command_path if isinstance(mistake, click.UsageError) and mistake.ctx else "dragoman"
        tell(mistake.format_message(), where)
        return 2
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return 130
    except (ReaderLeft, BrokenPipeError):
        silence()  # or Python would complain at exit
        return 141
    except DragomanError as error:
        tell(str(error))
        if error.abrupt:
            sys.stderr.flush()
            os._exit(2)
        return 2
    except OSError as error:
        if error.filename is None:
            silence()  # what could not be written would be tried again at exit
        tell(f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror or error))
        return 2
    except Exception as error:
        from dragoman.training.signals import Stopped

        if isinstance(error, Stopped):
            click.echo(f"stopped and saved at step {error.step}; the same command goes on from there", err=True)
            return error.code
        tell(f"internal error: {type(error).__name__}: {error}. Add --trace to see where, and please report it")
        return 1
    return 0


def tell(message: str, where: str = "dragoman") -> None:
    """Say what is wrong; a message of several lines names several mistakes."""
    for line in message.split("\n"):
        click.echo(f"{where}: {line}", err=True)


def silence() -> None:
    """Let standard output lead nowhere from here on."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
