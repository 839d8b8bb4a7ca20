"""The whole configuration of a run: preset, then file, then `place=value`, through one strict loader."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from dragoman import settings
from dragoman.data.corpus import DataConfig, Files, TokenizersConfig
from dragoman.data.readers import Parallel
from dragoman.errors import ConfigError, hint
from dragoman.models.encoder_decoder import EncoderDecoderConfig
from dragoman.models.instant import InstantConfig
from dragoman.search.core import SearchConfig
from dragoman.settings import setting
from dragoman.training.config import TrainConfig


@dataclass(frozen=True)
class Config:
    """Everything a run is a function of, besides the data itself."""

    data: DataConfig = setting(help="where the pairs are")
    task: Literal["translate"] = setting("translate", help="the shape of the problem")
    tokenizer: TokenizersConfig = setting(TokenizersConfig(), help="how text becomes tokens")
    model: EncoderDecoderConfig | InstantConfig = setting(EncoderDecoderConfig(), help="what is trained")
    train: TrainConfig = setting(TrainConfig(), help="how it is trained")
    search: SearchConfig = setting(SearchConfig(), help="how its output is found")

    def problems(self) -> Iterator[str]:
        """What the tables cannot say one by one."""
        if self.model.tie == "all" and self.tokenizer.target is not None:
            yield (
                "model.tie: 'all' needs one vocabulary for both sides; leave tokenizer.target out, "
                'or set model.tie = "target"'
            )
        if self.train.metric == "per" and self.data.units != "phonemes":
            yield 'train.metric: found "per", which needs data.units = "phonemes"'


def preset_names() -> list[str]:
    """The presets that come with the package."""
    folder = resources.files("dragoman") / "presets"
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))


def preset_text(name: str) -> str:
    """The TOML text of a preset."""
    names = preset_names()
    if name not in names:
        raise ConfigError(f"preset: found {name!r}, no such preset. {hint(name, names)}")
    return (resources.files("dragoman") / "presets" / f"{name}.toml").read_text(encoding="utf-8")


def preset_table(name: str) -> dict[str, Any]:
    """A preset as a table of settings."""
    import tomllib

    table = tomllib.loads(preset_text(name))
    table.pop("about", None)
    return table


def build(table: Mapping[str, Any], overrides: Sequence[str] = ()) -> Config:
    """A configuration from a table that may name a preset, with `place=value` settings on top."""
    merged = settings.override(dict(table), list(overrides))
    name = merged.pop("preset", None)
    if name is not None:
        if not isinstance(name, str):
            raise ConfigError(f"preset: found {name!r}, expected the name of a preset")
        # Overrides may name the preset too, so the base is chosen after them and slid underneath.
        merged = settings.merge(preset_table(name), merged)
    return settings.build(Config, merged)


def load(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """A configuration file with `place=value` settings on top."""
    return build(settings.read_toml(path), overrides)


def with_absolute_paths(config: Config) -> Config:
    """The same configuration, to be read from any folder."""

    def absolute(files: Files) -> Files:
        if isinstance(files, Parallel):
            return Parallel(str(Path(files.source).absolute()), str(Path(files.target).absolute()))
        if isinstance(files, tuple):
            return tuple(str(Path(path).absolute()) for path in files)
        return str(Path(files).absolute())

    data = config.data
    valid = None if data.valid is None else absolute(data.valid)
    cache = str(Path(data.cache).absolute()) if data.cache else ""
    return replace(config, data=replace(data, train=absolute(data.train), valid=valid, cache=cache))
