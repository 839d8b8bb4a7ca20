"""The whole configuration of a run: preset, then file, then `place=value`, through one strict loader."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from dragoman import settings
from dragoman.data.corpus import DataConfig, Files, TokenizersConfig
from dragoman.data.readers import Pairs
from dragoman.data.tokenizers import CharactersConfig
from dragoman.errors import ConfigError, hint
from dragoman.layers.positions import LearnedConfig
from dragoman.models.characters import CharacterWordsConfig
from dragoman.models.encoder_decoder import EncoderDecoderConfig
from dragoman.models.instant import InstantConfig
from dragoman.search.core import SearchConfig
from dragoman.settings import setting
from dragoman.training.config import TrainConfig
from dragoman.training.objectives import MinimumRiskConfig


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
        if self.model.tie not in ("none", "target") and self.tokenizer.target is not None:
            yield (
                f"model.tie: {self.model.tie!r} needs one vocabulary for both sides; leave tokenizer.target out, "
                f'or set model.tie = "{"none" if isinstance(self.model, InstantConfig) else "target"}"'
            )
        encoder, source = self.model.encoder, self.tokenizer.source
        if isinstance(encoder, CharacterWordsConfig) and not isinstance(source, CharactersConfig):
            yield (
                f"model.encoder: {encoder.kind!r} reads characters, found tokenizer.source = {source.kind!r}; "
                'set tokenizer.source.kind = "characters"'
            )
        if isinstance(self.model, InstantConfig) and isinstance(self.train.objective, MinimumRiskConfig):
            yield 'train.objective: "minimum-risk" draws token by token, which model.kind = "instant" does not write'
        sides: dict[str, Any] = {"encoder": encoder}
        if isinstance(self.model, EncoderDecoderConfig):  # an instant model's decoder reads positions, not tokens
            sides["decoder"] = self.model.decoder
        for side, stack in sides.items():
            place, most = reach(stack)
            if most is not None and self.data.max_length >= most:
                yield (
                    f"data.max_length: found {self.data.max_length}, but model.{side}.{place} = {most} tokens, <eos> "
                    f"included; expected at most {most - 1}"
                )
        if isinstance(self.train.objective, MinimumRiskConfig) and isinstance(self.model, EncoderDecoderConfig):
            for name, chosen in (("forcing", self.model.forcing), ("softmax", self.model.softmax)):
                if chosen.kind not in ("teacher", "full"):
                    yield f"model.{name}: found {chosen.kind!r}, which minimum-risk training does not use; leave it out"
            if self.train.objective.metric == "per" and self.data.units != "phonemes":
                yield 'train.objective.metric: found "per", which needs data.units = "phonemes"'
        if self.train.metric == "per" and self.data.units != "phonemes":
            yield 'train.metric: found "per", which needs data.units = "phonemes"'


def reach(stack: Any) -> tuple[str, int | None]:
    """The setting that bounds the tokens a stack can read, and the bound; None: any number."""
    if isinstance(getattr(stack, "positions", None), LearnedConfig):
        return "positions.maximum", stack.positions.maximum
    return "maximum", getattr(stack, "maximum", None)


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


NOTES = ("about", "authors", "paper", "vocabulary", "parameters")  # for people, not for the loader


def preset_notes(name: str) -> dict[str, Any]:
    """What a preset says about itself: its paper, and its size with a vocabulary."""
    import tomllib

    table = tomllib.loads(preset_text(name))
    return {note: table[note] for note in NOTES}


def preset_table(name: str) -> dict[str, Any]:
    """A preset as a table of settings."""
    import tomllib

    table = tomllib.loads(preset_text(name))
    return {key: value for key, value in table.items() if key not in NOTES}


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

    def absolute(entry: str | Pairs) -> str | Pairs:
        if isinstance(entry, str):
            return str(Path(entry).absolute())
        named = {name: getattr(entry, name) for name in ("source", "target", "file")}
        return replace(entry, **{name: str(Path(path).absolute()) for name, path in named.items() if path is not None})

    def each(files: Files) -> Files:
        return tuple(map(absolute, files)) if isinstance(files, tuple) else absolute(files)

    data = config.data
    valid = None if data.valid is None else each(data.valid)
    cache = str(Path(data.cache).absolute()) if data.cache else ""
    start = config.train.start_from
    return replace(
        config,
        data=replace(data, train=each(data.train), valid=valid, cache=cache),
        train=replace(config.train, start_from=str(Path(start).absolute()) if start else ""),
    )
