"""`dragoman serve`: an HTTP server for trained runs."""

from __future__ import annotations

import os
from dataclasses import replace

import click

from dragoman.commands.settings import Schema, Settings, SettingsCommand
from dragoman.config.overrides import nested
from dragoman.config.settings import as_table, build, merge
from dragoman.errors import ConfigError, MissingExtraError
from dragoman.serving.config import ModelConfig, ServeConfig

OPUS_CAT_PORT = 8500
SCHEMA = Schema(ServeConfig, without=("models",))


@click.command(cls=SettingsCommand, schema=SCHEMA, several="runs")
@click.argument("words", nargs=-1, metavar="[RUN]... [PLACE=VALUE]...")
@click.option("--config", "config_file", metavar="FILE", help="Settings as TOML; those of the command line go first.")
@click.option("--languages", "pairs", multiple=True, metavar="SOURCE:TARGET",
              help="Language codes of a RUN, such as de:en, in the order of the runs.")  # fmt: skip
@click.option("--opus-cat", is_flag=True, help="Listen where plug-ins of OPUS-CAT look for a server: port 8500.")
@click.option("--memory", "memories", multiple=True, metavar="FILE",
              help="Translation memory (.tsv, .tmx) of a RUN, in the order of the runs.")  # fmt: skip
def serve(
    runs: tuple[str, ...],
    config_file: str | None,
    pairs: tuple[str, ...],
    memories: tuple[str, ...],
    opus_cat: bool,
    settings: Settings,
) -> None:
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
    try:
        import fastapi  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("a server", str(error.name), "serve") from None
    from dragoman.serving.server import serve as run_server

    config = server_config(runs, config_file, pairs, settings, memories)
    if opus_cat and "port" not in settings.spelled:
        config = replace(config, port=OPUS_CAT_PORT)
    run_server(config, lambda line: click.echo(line, err=True))


def server_config(
    runs: tuple[str, ...],
    config_file: str | None,
    pairs: tuple[str, ...],
    settings: Settings,
    memories: tuple[str, ...] = (),
) -> ServeConfig:
    from dragoman.serving.config import load_config

    table = as_table(load_config(config_file) if config_file is not None else ServeConfig())
    models = [*table.pop("models"), *map(as_table, named_models(runs, pairs, memories))]  # type: ignore[misc]
    if not models:
        raise ConfigError("found no run to serve, expected RUN or models in --config")
    for place in settings.spelled:
        table = merge(table, nested(place.split("."), settings.value(place)))
    if (token := os.environ.get("DRAGOMAN_TOKEN")) and "token" not in settings.spelled:
        table["token"] = token
    return build(ServeConfig, table | {"models": models})


def named_models(runs: tuple[str, ...], pairs: tuple[str, ...], memories: tuple[str, ...]) -> list[ModelConfig]:
    if len(memories) > len(runs):
        raise ConfigError(f"found {len(runs)} RUN and {len(memories)} times --memory, expected at most one for each")
    if pairs and len(pairs) != len(runs):
        raise ConfigError(f"found {len(runs)} RUN and {len(pairs)} times --languages, expected one for each or none")
    models = []
    named = [*memories, *[""] * (len(runs) - len(memories))]
    for run, pair, memory in zip(runs, pairs or [":"] * len(runs), named, strict=True):
        source, colon, target = pair.partition(":")
        if not colon:
            raise ConfigError(f"--languages: found '{pair}', expected SOURCE:TARGET such as de:en")
        models.append(ModelConfig(run, source=source, target=target, memory=memory))
    return models
