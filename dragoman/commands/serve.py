"""`dragoman serve`: an HTTP server for trained runs."""

from __future__ import annotations

import click

from dragoman.commands.from_record import options_of
from dragoman.commands.printing import print_message
from dragoman.commands.settings import SettingsCommand
from dragoman.decoding import Schema, Settings
from dragoman.serving import ServeConfig, ServeOptions
from dragoman.serving import serve as run_server

SCHEMA = Schema(ServeConfig, without=("models",))


@click.command(cls=SettingsCommand, schema=SCHEMA, several="runs")
@click.argument("words", nargs=-1, metavar="[RUN]... [PLACE=VALUE]...")
@options_of(ServeOptions)
def serve(runs: tuple[str, ...], options: ServeOptions, settings: Settings) -> None:
    """Serve trained runs over HTTP, with a web page at /.

    \b
    dragoman serve runs/de-en                          http://127.0.0.1:5000
    dragoman serve runs/de-en runs/en-de --port 8000
    dragoman serve runs/my --languages de:en --workers 4 search.beam=8
    dragoman serve --config serve.toml limits.queue=64 page=false
    dragoman serve runs/en-fi --opus-cat               for plug-ins of Trados, memoQ, OmegaT, Wordfast

    The server speaks its own API for every task (/v1/predict, described at /openapi.json), those of LibreTranslate
    (/translate), DeepL (/v2/translate) and OPUS-CAT (/MTRestService), and parts of OpenAI's (/v1/completions). It
    listens on this machine alone unless --host says otherwise. SIGTERM lets it finish what it has accepted.
    """
    run_server(runs, options, {place: settings.value(place) for place in settings.spelled}, print_message)
