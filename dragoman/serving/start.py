"""Start a server for trained runs: the settings of a file, of the caller and of the environment become one."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from dragoman.base import ConfigError, MissingExtraError
from dragoman.base.config import as_table, build, merge, nested, setting
from dragoman.serving.config import ModelConfig, ServeConfig, load_config

OPUS_CAT_PORT = 8500


@dataclass(frozen=True)
class ServeOptions:
    """Which settings a server begins with, and what it knows about its runs."""

    config_file: str | None = setting(
        None, help="settings as TOML; those of the command line go first", flag="--config", metavar="FILE"
    )
    languages: tuple[str, ...] = setting(
        (), help="language codes of a RUN, such as de:en, in the order of the runs", flag="--languages",
        metavar="SOURCE:TARGET",
    )  # fmt: skip
    opus_cat: bool = setting(
        False, help="listen where plug-ins of OPUS-CAT look for a server: port 8500", flag="--opus-cat"
    )
    memories: tuple[str, ...] = setting(
        (), help="translation memory (.tsv, .tmx) of a RUN, in the order of the runs", flag="--memory", metavar="FILE"
    )


def serve(
    runs: Sequence[str],
    options: ServeOptions | None = None,
    settings: Mapping[str, object] | None = None,
    say: Callable[[str], None] = print,
) -> None:
    """Serve trained runs over HTTP until the process is told to end; `settings` are places of `ServeConfig`."""
    try:
        import fastapi  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("a server", str(error.name), "serve") from None
    from dragoman.serving import server

    server.serve(server_config(runs, options or ServeOptions(), settings or {}), say)


def server_config(runs: Sequence[str], options: ServeOptions, settings: Mapping[str, object]) -> ServeConfig:
    table = as_table(load_config(options.config_file) if options.config_file is not None else ServeConfig())
    given = named_models(runs, options.languages, options.memories)
    models = [*table.pop("models"), *map(as_table, given)]  # type: ignore[misc]
    if not models:
        raise ConfigError("found no run to serve, expected RUN or models in --config")
    if options.opus_cat:
        table["port"] = OPUS_CAT_PORT
    if token := os.environ.get("DRAGOMAN_TOKEN"):
        table["token"] = token
    for place, value in settings.items():
        table = merge(table, nested(place.split("."), value))
    return build(ServeConfig, table | {"models": models})


def named_models(runs: Sequence[str], pairs: Sequence[str], memories: Sequence[str]) -> list[ModelConfig]:
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
