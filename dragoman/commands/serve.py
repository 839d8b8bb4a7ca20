"""`dragoman serve`: an HTTP server for trained runs."""

from __future__ import annotations

import os
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import click

from dragoman.errors import ConfigError, MissingExtraError

if TYPE_CHECKING:
    from dragoman.serving.config import ModelConfig, ServeConfig


@click.command()
@click.argument("runs", nargs=-1, metavar="[RUN]...")
@click.option("--config", "config_file", metavar="FILE", help="Settings as TOML; options on the command line go first.")
@click.option("--host", help="Address to listen on; 0.0.0.0 is every network interface. [default: 127.0.0.1]")
@click.option("--port", type=click.IntRange(0, 65_535), help="Port to listen on; 0 takes a free one. [default: 5000]")
@click.option("--workers", type=click.IntRange(1), help="Processes, each with its own copy of the models. [default: 1]")
@click.option("--batch-size", type=click.IntRange(1), help="Sentences computed together at most. [default: 32]")
@click.option("--queue", type=click.IntRange(1), help="Sentences that may wait; more are answered 503. [default: 512]")
@click.option(
    "--wait", type=click.FloatRange(0), help="Seconds of expected waiting above which the answer is 503. [default: 4]"
)
@click.option("--languages", "pairs", multiple=True, metavar="SOURCE:TARGET",
              help="Language codes of a RUN, such as de:en, in the order of the runs.")  # fmt: skip
@click.option("--token", help="Secret that requests must bring; better in the variable DRAGOMAN_TOKEN.")
@click.option("--cors", multiple=True, metavar="ORIGIN", help="Origin whose pages may call it. May be repeated.")
@click.option(
    "--base-url",
    metavar="URL",
    help="Address of the server in links of its answers, behind a proxy. [default: its own]",
)
@click.option("--engine", type=click.Choice(["auto", "torch", "ctranslate2"]), help="What computes. [default: auto]")
@click.option("--device", metavar="auto|cpu|cuda|cuda:N", help="Where to compute. [default: auto]")
@click.option("--page/--no-page", default=None, help="Whether / is a web page for people. [default: page]")
def serve(runs: tuple[str, ...], config_file: str | None, pairs: tuple[str, ...], **given: Any) -> None:
    """Serve trained runs over HTTP, with a web page at /.

    \b
    dragoman serve runs/de-en                          http://127.0.0.1:5000
    dragoman serve runs/de-en runs/en-de --port 8000
    dragoman serve runs/my --languages de:en --workers 4
    dragoman serve --config serve.toml

    The server speaks its own API for every task (/v1/predict, described at /openapi.json), that of LibreTranslate
    (/translate) and parts of OpenAI's (/v1/completions, /v1/audio/transcriptions). It listens on this machine alone
    unless --host says otherwise. SIGTERM lets it finish what it has accepted.
    """
    try:
        import fastapi  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("a server", str(error.name), "serve") from None
    from dragoman.serving.server import serve as run_server

    config = server_config(runs, config_file, pairs, given)
    run_server(config, lambda line: click.echo(line, err=True))


def server_config(
    runs: tuple[str, ...], config_file: str | None, pairs: tuple[str, ...], given: dict[str, Any]
) -> ServeConfig:
    """The settings of a file, changed by options of the command line."""
    from dragoman.config.settings import as_table, build
    from dragoman.serving.config import ServeConfig, load_config

    config = load_config(config_file) if config_file is not None else ServeConfig()
    models = list(config.models) + named_models(runs, pairs)
    if not models:
        raise ConfigError("found no run to serve, expected RUN or models in --config")
    typed = {name: value for name, value in given.items() if value is not None and value != ()}
    if token := os.environ.get("DRAGOMAN_TOKEN"):
        typed.setdefault("token", token)
    limits = {name: typed.pop(name) for name in ("queue", "wait") if name in typed}
    config = replace(config, models=tuple(models), limits=replace(config.limits, **limits))
    known = {field.name for field in fields(ServeConfig)}
    assert not typed.keys() - known
    return build(ServeConfig, as_table(config) | typed)


def named_models(runs: tuple[str, ...], pairs: tuple[str, ...]) -> list[ModelConfig]:
    """The runs of the command line with their languages."""
    from dragoman.serving.config import ModelConfig

    if pairs and len(pairs) != len(runs):
        raise ConfigError(f"found {len(runs)} RUN and {len(pairs)} times --languages, expected one for each or none")
    found = []
    for run, pair in zip(runs, pairs or [":"] * len(runs), strict=True):
        source, colon, target = pair.partition(":")
        if not colon:
            raise ConfigError(f"--languages: found '{pair}', expected SOURCE:TARGET such as de:en")
        found.append(ModelConfig(run, source=source, target=target))
    return found
