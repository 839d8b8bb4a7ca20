"""The entry point of the command line: run a command and turn errors into one line and an exit code."""

from __future__ import annotations

import atexit
import contextlib
import errno
import os
import sys
import threading
import traceback
import warnings
from typing import Any

import click

from dragoman.base import DragomanError, brief, is_out_of_memory, listening, on_command_line, terminal
from dragoman.commands.root import CommandStopped, OutputClosed, cli
from dragoman.models.kernels import defer_meta_kernels

__all__ = ["cli", "guarded", "main", "run"]

DECODES = {"predict", "translate", "complete"}  # commands that compute outputs and nothing else of a model


def run() -> None:
    """The program: `main`, then the end of the process without the teardown of torch, which takes half a second."""
    try:
        main()
    except SystemExit as exiting:
        code = 0 if exiting.code is None else exiting.code
        watched = sys.getprofile() is not None or sys.gettrace() is not None
        if "torch" not in sys.modules or watched or not isinstance(code, int):
            raise
        # What Python itself does before it destroys modules: wait for threads, call exit handlers, flush.
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):  # a closed pipe: `guarded` has reported it
                stream.flush()
        os._exit(code)


def main() -> None:
    """Run the command line; a user error is one line and exit code 2."""
    if "DRAGOMAN_COMPLETE" in os.environ:  # a shell asks how its line may go on
        from dragoman.commands.completion import answer

        sys.exit(answer(cli))
    wait_briefly()
    if DECODES & set(sys.argv[1:]):
        defer_meta_kernels()
    for number, name in ((1, "stdout"), (2, "stderr")):
        if getattr(sys, name) is None:  # the parent closed it: the next file opened would get its number
            # Messages may be lost, outputs may not: writing to the latter fails.
            os.dup2(os.open(os.devnull, os.O_WRONLY if number == 2 else os.O_RDONLY), number)
            setattr(sys, name, os.fdopen(number, "w", encoding="utf-8"))
        getattr(sys, name).reconfigure(errors="backslashreplace")  # a locale without UTF-8 must not stop a run
        setattr(sys, name, terminal.guarded(getattr(sys, name)))
    sys.exit(guarded(sys.argv[1:]))


def wait_briefly() -> None:
    """Let idle threads of OpenMP sleep soon, unless the user has chosen; call this before torch is imported.

    They wait in a loop for milliseconds otherwise. Beside other busy processes, training then takes four times as long.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")


@on_command_line()
def guarded(arguments: list[str]) -> int:
    """Run a command and return its exit code; an error is one line, `--trace` adds the traceback."""
    from dragoman.commands.progress import LongWork  # not for completion, which must be quick
    from dragoman.training import Signals, interrupted_by_signals

    trace, signals = "--trace" in arguments, Signals()
    try:
        try:
            with interrupted_by_signals() as signals, listening(LongWork()), warnings.catch_warnings():
                warnings.showwarning = show_warning
                words = [word for word in arguments if word != "--trace"] or ["--help"]
                code = cli.main(words, prog_name="dragoman", standalone_mode=False)  # of click's Exit; commands: None
            if sys.stdout is not None:
                sys.stdout.flush()  # a full disk or a closed pipe raises here, not at exit
        except click.exceptions.Exit as exiting:
            return exiting.exit_code
        except SystemExit:  # rich raises it for a closed pipe
            raise OutputClosed from None
        except BaseException:
            if trace:
                traceback.print_exc()
            raise
    except click.ClickException as error:
        where = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "dragoman"
        print_error(usage_message(error), where)
        return 2
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return signals.code or 130
    except CommandStopped as stopped:
        code, message = stopped.args
        with contextlib.suppress(OSError):  # after SIGHUP the terminal is gone
            click.echo(message, err=True)
        return int(code)
    except (OutputClosed, BrokenPipeError):
        silence_stdout()  # or Python would complain at exit
        return 141
    except DragomanError as error:
        print_error(str(error))
        if error.abrupt:
            sys.stderr.flush()
            os._exit(2)
        return 2
    except OSError as error:
        if error.filename is None:
            silence_stdout()  # or Python would write the rest again at exit
        if error.errno == errno.EBADF:
            error = OSError("standard output is closed, so the output is lost; send it to a file or pipe")
        print_error(f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror or error))
        return 2
    except RecursionError:
        print_error(
            "found input that is nested too deeply (JSON, TOML or a pattern), expected at most some hundred levels"
        )
        return 2
    except Exception as error:
        if is_out_of_memory(error):
            print_error(f"not enough memory ({brief(error)}); lower --batch-size, --beam, lengths or model sizes")
            return 2
        from dragoman.commands.installation import CORE

        if isinstance(error, ModuleNotFoundError) and error.name in CORE:
            print_error(f"the package {error.name} is missing: pip install {error.name}; see check --installation")
            return 2
        print_error(f"internal error: {type(error).__name__}: {error}. Add --trace to see where, and please report it")
        return 1
    return code if isinstance(code, int) else 0


def usage_message(error: click.ClickException) -> str:
    """The message of an error of click; an unknown option with the name of a setting leads to its place."""
    if isinstance(error, click.NoSuchOption) and error.ctx is not None:
        from dragoman.base.config import either

        words = settings_called(error.option_name.lstrip("-").replace("-", "_"), error.ctx.command)
        if words:
            return f"no such option {error.option_name}; it is a setting: write {either(words)}"
    return error.format_message()


def settings_called(name: str, command: click.Command) -> list[str]:
    """How the settings of a command with this name are written, at most four: by the last part of the place, the table
    that holds them, or the decoding method."""
    from dragoman.base.config import places_named
    from dragoman.commands.settings import SettingsCommand
    from dragoman.runs.tasks import Config

    if isinstance(command, SettingsCommand):
        if command.schema.has_method and name in command.schema.methods:
            return [f"method={name}"]
        known = list(dict.fromkeys(row.place for row in command.schema.described()))
        tables = {place.rpartition(".")[0] for place in known}
        found = [place for place in known if place.rpartition(".")[2] == name and place not in tables]
        found = found or [place for place in known if place.split(".")[-2:-1] == [name]]
        return [f"{place}=VALUE" for place in found[:4]]
    takes_settings = any(parameter.name == "overrides" for parameter in command.params)
    return [f"{place}=VALUE" for place in places_named(Config, name, "")] if takes_settings else []


def print_error(message: str, where: str = "dragoman") -> None:
    for line in terminal.visible(message).split("\n"):
        click.echo(f"{where}: {line}", err=True)


def show_warning(message: Warning | str, *place: Any, **more: Any) -> None:
    """Print a Python warning as one line, without the place in the code where it was raised."""
    click.echo(f"warning: {terminal.visible(str(message))}", err=True)


def silence_stdout() -> None:
    """Discard all further output."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    run()
