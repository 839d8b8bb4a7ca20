"""The whole configuration of a run: preset, then file, then `place=value`, through one strict loader."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from dragoman.config import settings
from dragoman.config.settings import setting
from dragoman.data.corpus import DataConfig, Files, TokenizersConfig, tags_of
from dragoman.data.examples import Pairs
from dragoman.data.media.audio import AudioConfig
from dragoman.data.media.images import LineImageConfig, PictureConfig
from dragoman.data.tokenizers.labels import NumbersConfig, RunTokenizerConfig
from dragoman.data.tokenizers.tokenizer import CharactersConfig
from dragoman.decoding.config import SearchConfig
from dragoman.errors import ConfigError, hint, nearest
from dragoman.layers.augmentation import LineChangesConfig, MaskingConfig, NoAugmentationConfig, PictureChangesConfig
from dragoman.layers.pooling import TimeAttentionConfig
from dragoman.layers.positions import LearnedConfig
from dragoman.models.captioner import CaptionerConfig
from dragoman.models.classifier import ClassifierConfig
from dragoman.models.elmo import BiLMConfig
from dragoman.models.encoder_decoder import EncoderDecoderConfig
from dragoman.models.encoders.character_words import CharacterWordsConfig
from dragoman.models.encoders.frames import FramesConfig
from dragoman.models.encoders.images import PatchesConfig, ResNetConfig, TorchvisionConfig
from dragoman.models.language_model import LanguageModelConfig
from dragoman.models.masked_lm import MaskedLMConfig
from dragoman.models.non_autoregressive import NonAutoregressiveConfig
from dragoman.models.tagger import TaggerConfig
from dragoman.models.transcriber import JointAttentionConfig, TranscriberConfig
from dragoman.scoring.metric import OutputKind, Units
from dragoman.scoring.registry import checkpoint_metrics, metrics_by_name, metrics_for
from dragoman.training.config import TrainConfig
from dragoman.training.objectives import LikelihoodConfig, MinimumRiskConfig


@dataclass(frozen=True)
class Config:
    """Everything a run is a function of, besides the data itself."""

    data: DataConfig = setting(help="where the examples are")
    task: Literal[
        "translate",
        "classify",
        "regress",
        "tag",
        "language-model",
        "masked-language-model",
        "transcribe",
        "caption",
    ] = setting("translate", help="the shape of the problem")
    tokenizer: TokenizersConfig = setting(TokenizersConfig(), help="how text becomes tokens")
    model: (
        EncoderDecoderConfig
        | NonAutoregressiveConfig
        | ClassifierConfig
        | TaggerConfig
        | LanguageModelConfig
        | MaskedLMConfig
        | BiLMConfig
        | TranscriberConfig
        | CaptionerConfig
    ) = setting(EncoderDecoderConfig(), help="what is trained; without a kind the usual one of the task")
    train: TrainConfig = setting(TrainConfig(), help="how it is trained")
    search: SearchConfig = setting(SearchConfig(), help="how its output is found")

    def problems(self) -> Iterator[str]:
        """What the tables cannot say one by one."""
        fitting = MODELS[self.task]
        if not isinstance(self.model, fitting):
            kinds = " or ".join(f'"{one.kind}"' for one in fitting)
            yield f'model.kind: found "{self.model.kind}", but task = "{self.task}" needs {kinds}'
            return
        metrics = task_metrics(self.task, self.data.units)
        if self.train.metric not in metrics and self.train.metric in task_metrics(self.task, "phonemes"):
            yield f'train.metric: found "{self.train.metric}", which needs data.units = "phonemes"'
        elif self.train.metric not in metrics:
            match = nearest(self.train.metric, metrics) if self.train.metric not in metrics_by_name() else None
            yield (
                f'train.metric: found "{self.train.metric}", but task = "{self.task}" has {", ".join(metrics)}'
                + (f". Did you mean '{match}'?" if match else "")
            )
        if isinstance(self.model, LanguageModelConfig):
            yield from running_problems(self, self.model)
            return
        encoder, source = self.model.encoder, self.tokenizer.source
        units = source.units if isinstance(source, RunTokenizerConfig) else source.kind
        if isinstance(encoder, CharacterWordsConfig) and units not in (CharactersConfig.kind, ""):
            yield (
                f"model.encoder: {encoder.kind!r} reads characters, found tokenizer.source = {units!r}; "
                'set tokenizer.source.kind = "characters"'
            )
        if isinstance(self.model, TranscriberConfig | CaptionerConfig):
            yield from media_problems(self, self.model)
            return
        if self.data.media or isinstance(source, AudioConfig | LineImageConfig | PictureConfig):
            place = "data.media" if self.data.media else f'tokenizer.source: found "{source.kind}", which'
            yield f'{place} goes with task = "transcribe" or "caption"; found task = "{self.task}"'
        elif isinstance(self.model, EncoderDecoderConfig | NonAutoregressiveConfig):
            yield from searched_problems(self, self.model)
        else:
            yield from direct_problems(self, self.model)


# Which models fit a task, the usual one first.
MODELS: dict[str, tuple[Any, ...]] = {
    "translate": (EncoderDecoderConfig, NonAutoregressiveConfig),
    "classify": (ClassifierConfig,),
    "regress": (ClassifierConfig,),
    "tag": (TaggerConfig,),
    "language-model": (LanguageModelConfig,),
    "masked-language-model": (MaskedLMConfig, BiLMConfig),
    "transcribe": (TranscriberConfig,),
    "caption": (CaptionerConfig,),
}
# Defaults of a task that are not those of a setting: CTC's texts are ranked by their whole probability.
OWN_DEFAULTS: dict[str, dict[str, Any]] = {"transcribe": {"search": {"length_penalty": 0.0}}}
# What a task puts out, which decides its metrics; a task that is missing here puts out text.
OUTPUTS: dict[str, OutputKind] = {
    "classify": "labels",
    "regress": "numbers",
    "tag": "tags",
    "language-model": "likelihood",
    "masked-language-model": "masked tokens",
}


def task_metrics(task: str, units: Units = "words") -> tuple[str, ...]:
    """What `train.metric` may be for a task, loss first."""
    return checkpoint_metrics(OUTPUTS.get(task, units))


def media_problems(config: Config, model: TranscriberConfig | CaptionerConfig) -> Iterator[str]:
    """What settings of a task that reads recordings or pictures cannot say one by one."""
    source, encoder, task = config.tokenizer.source, model.encoder, f'task = "{config.task}"'
    fitting = READ_BY[type(encoder)]
    if not isinstance(source, fitting):
        kinds = " or ".join(f'"{one.kind}"' for one in fitting)
        yield f'tokenizer.source: found "{source.kind}", but model.encoder.kind = "{encoder.kind}" reads {kinds}'
        return
    if config.tokenizer.target is None or isinstance(config.tokenizer.target, NumbersConfig):
        found = config.tokenizer.target.kind if config.tokenizer.target else "nothing"
        yield f'tokenizer.target: found {found} with {task}, expected units of text, such as "characters"'
    if not isinstance(source, CHANGED_BY[type(model.augment)]):
        yield f'model.augment: found "{model.augment.kind}", which does not go with tokenizer.source "{source.kind}"'
    if isinstance(encoder, PatchesConfig) and isinstance(source, PictureConfig) and source.size % encoder.size:
        yield f"model.encoder.size: found {encoder.size}, expected a divisor of tokenizer.source.size = {source.size}"
    if not isinstance(config.train.objective, LikelihoodConfig):
        yield f'train.objective: found "{config.train.objective.kind}", which reads tokens; {task} has none'
    if tags_of(config.data.train):
        yield f'data.train: found a tag, which goes with task = "translate" alone; found {task}'
    if isinstance(model, CaptionerConfig):
        decoder: Any = model.decoder
    else:
        decoder = model.attention_decoder.decoder if isinstance(model.attention_decoder, JointAttentionConfig) else None
    place, most = reach(decoder)
    if most is not None and config.data.max_length >= most:
        where = "decoder" if isinstance(model, CaptionerConfig) else "attention_decoder.decoder"
        yield (
            f"data.max_length: found {config.data.max_length}, but model.{where}.{place} = {most} tokens, <eos> "
            f"included; expected at most {most - 1}"
        )


# What encoders of features read, and which changes suit which features.
READ_BY: dict[type, tuple[Any, ...]] = {
    FramesConfig: (AudioConfig, LineImageConfig),
    ResNetConfig: (PictureConfig,),
    PatchesConfig: (PictureConfig,),
    TorchvisionConfig: (PictureConfig,),
}
CHANGED_BY: dict[type, tuple[Any, ...]] = {
    NoAugmentationConfig: (AudioConfig, LineImageConfig, PictureConfig),
    MaskingConfig: (AudioConfig, LineImageConfig),
    LineChangesConfig: (LineImageConfig,),
    PictureChangesConfig: (PictureConfig,),
}


def direct_problems(
    config: Config, model: ClassifierConfig | TaggerConfig | MaskedLMConfig | BiLMConfig
) -> Iterator[str]:
    """What settings of a task that is answered directly cannot say one by one."""
    task = f'task = "{config.task}"'
    numbers = isinstance(config.tokenizer.source, NumbersConfig)
    if numbers and config.task != "regress":
        yield f'tokenizer.source: found "numbers", which only task = "regress" reads; found {task}'
    if config.tokenizer.target is not None and not (
        config.task == "regress" and isinstance(config.tokenizer.target, NumbersConfig)
    ):
        wanted = 'kind = "numbers" or nothing' if config.task == "regress" else "nothing: it needs no units of its own"
        yield f"tokenizer.target: found {config.tokenizer.target.kind!r} with {task}, expected {wanted}"
    if not isinstance(config.train.objective, LikelihoodConfig):
        yield f'train.objective: found "{config.train.objective.kind}", which samples outputs; {task} has none'
    # What has no meaning here must not be set; a default that is written out cannot be told from one that is not.
    for place, found, usual in (
        ("train.decode", config.train.decode, TrainConfig().decode),
        ("data.units", config.data.units, "words"),
        ("search", config.search, SearchConfig()),
    ):
        if found != usual:
            yield f"{place}: goes with a search, and {task} is answered without one; leave it out"
    if tags_of(config.data.train):
        yield f'data.train: found a tag, which goes with task = "translate" alone; found {task}'
    encoder = model.encoder
    if numbers and (isinstance(encoder, CharacterWordsConfig) or encoder.embedding == 0):
        yield "model.encoder: reads numbers, expected an embedding of at least 1 and no 'character-words'"
    if numbers and isinstance(model, ClassifierConfig | TaggerConfig) and model.word_dropout:
        yield f"model.word_dropout: found {model.word_dropout}, expected 0: numbers are no words"
    ends = 0 if numbers else 1 + getattr(model, "pairs", False)  # <eos>
    place, most = reach(encoder)
    bounds = [(f"encoder.{place}", most)]
    if isinstance(model, ClassifierConfig):
        texts = max(1, len(config.data.columns) - 1)
        if model.texts == "apart" and texts != 2:
            yield 'model.texts: found "apart", expected two texts: name both in data.columns, and the target last'
        if config.task == "regress" and model.label_smoothing:
            yield f"model.label_smoothing: found {model.label_smoothing}, expected 0: a number is no label"
        if isinstance(model.pooling, TimeAttentionConfig) and model.pooling.steps:
            bounds.append(("pooling.steps", model.pooling.steps))
    for place, most in bounds:
        if most is not None and config.data.max_length + ends > most:
            yield (
                f"data.max_length: found {config.data.max_length}, but model.{place} = {most}"
                f"{', <eos> included' if ends else ''}; expected at most {most - ends}"
            )


def running_problems(config: Config, model: LanguageModelConfig) -> Iterator[str]:
    """What settings of a language model cannot say one by one."""
    task = f'task = "{config.task}"'
    if isinstance(config.tokenizer.source, NumbersConfig):
        yield f'tokenizer.source: found "numbers", which only task = "regress" reads; found {task}'
    if config.tokenizer.target is not None:
        yield f"tokenizer.target: found {config.tokenizer.target.kind!r} with {task}, expected nothing: it has one text"
    if not isinstance(config.train.objective, LikelihoodConfig):
        yield f'train.objective: found "{config.train.objective.kind}", which goes with pairs; found {task}'
    usual = DataConfig(train="")
    for place, found, default in (
        ("train.decode", config.train.decode, TrainConfig().decode),
        ("search", config.search, SearchConfig()),
        *((f"data.{name}", getattr(config.data, name), getattr(usual, name))
          for name in ("units", "columns", "header", "max_length")),
    ):  # fmt: skip
        if found != default:
            yield f"{place}: has no meaning for {task}, which reads one running text; leave it out"
    if tags_of(config.data.train):
        yield f'data.train: found a tag, which goes with task = "translate" alone; found {task}'
    if config.train.batch_tokens < model.segment:
        yield (
            f"train.batch_tokens: found {config.train.batch_tokens}, expected at least model.segment = "
            f"{model.segment}: it is cut into lanes of so many tokens"
        )


def searched_problems(config: Config, model: EncoderDecoderConfig | NonAutoregressiveConfig) -> Iterator[str]:
    """What settings of a task that is answered by search cannot say one by one."""
    for side, units in (("source", config.tokenizer.source), ("target", config.tokenizer.target)):
        if isinstance(units, NumbersConfig):
            yield f'tokenizer.{side}: found "numbers", which only task = "regress" reads'
    encoder = model.encoder
    if model.tie not in ("none", "target") and config.tokenizer.target is not None:
        yield (
            f"model.tie: {model.tie!r} needs one vocabulary for both sides; leave tokenizer.target out, "
            f'or set model.tie = "{"none" if isinstance(model, NonAutoregressiveConfig) else "target"}"'
        )
    if isinstance(model, NonAutoregressiveConfig) and isinstance(config.train.objective, MinimumRiskConfig):
        yield 'train.objective: "minimum-risk" samples token by token; model.kind = "non-autoregressive" cannot'
    sides: dict[str, Any] = {"encoder": encoder}
    if isinstance(model, EncoderDecoderConfig):  # an instant model's decoder reads positions, not tokens
        sides["decoder"] = model.decoder
    for side, stack in sides.items():
        place, most = reach(stack)
        if most is not None and config.data.max_length >= most:
            yield (
                f"data.max_length: found {config.data.max_length}, but model.{side}.{place} = {most} tokens, <eos> "
                f"included; expected at most {most - 1}"
            )
    if isinstance(config.train.objective, MinimumRiskConfig) and isinstance(model, EncoderDecoderConfig):
        for name, chosen in (("forcing", model.forcing), ("softmax", model.softmax)):
            if chosen.kind not in ("teacher", "full"):
                yield f"model.{name}: found {chosen.kind!r}, which minimum-risk training does not use; leave it out"
        if (metric := config.train.objective.metric) not in metrics_for(config.data.units):
            yield f'train.objective.metric: found "{metric}", which needs data.units = "phonemes"'


def encoder_of(config: Config) -> Any:
    """The settings of what reads the source; None where there is no source."""
    return getattr(config.model, "encoder", None)


def reach(stack: Any) -> tuple[str, int | None]:
    """The setting that bounds the tokens a stack can read, and the bound; None: any number."""
    if isinstance(getattr(stack, "positions", None), LearnedConfig):
        return "positions.max_positions", stack.positions.max_positions
    return "max_positions", getattr(stack, "max_positions", None)


def preset_names() -> list[str]:
    """The presets that come with the package."""
    folder = resources.files("dragoman.config") / "presets"
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))


def preset_text(name: str) -> str:
    """The TOML text of a preset."""
    names = preset_names()
    if name not in names:
        raise ConfigError(f"preset: found {name!r}, no such preset. {hint(name, names)}")
    return (resources.files("dragoman.config") / "presets" / f"{name}.toml").read_text(encoding="utf-8")


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
    if "tokenizer" not in merged and (tokenizers := started_tokenizers(merged)):
        merged["tokenizer"] = tokenizers
    task, model = merged.get("task"), merged.get("model", {})
    if isinstance(task, str) and task in MODELS and isinstance(model, Mapping) and "kind" not in model:
        merged["model"] = {"kind": MODELS[task][0].kind, **model}
    if isinstance(task, str) and task in OWN_DEFAULTS:
        merged = settings.merge(OWN_DEFAULTS[task], merged)
    return settings.build(Config, merged)


def started_folder(table: Mapping[str, Any]) -> str:
    """The run that a table of settings starts from; empty where there is none, or no run: who opens it says so."""
    train = table.get("train")
    start = train.get("start_from") if isinstance(train, Mapping) else None
    folder = start.get("run") if isinstance(start, Mapping) else start
    return folder if isinstance(folder, str) and folder and (Path(folder) / "config.toml").is_file() else ""


def started_tokenizers(table: Mapping[str, Any]) -> dict[str, Any]:
    """The tokenizers of the run that another one starts from; none where it has none to give."""
    folder, task = started_folder(table), table.get("task", "translate")
    if not folder:
        return {}
    theirs = settings.read_toml(Path(folder) / "config.toml").get("tokenizer", {})
    assert isinstance(theirs, Mapping)
    found: dict[str, Any] = {}
    for side in ("source", "target"):
        if not isinstance(units := theirs.get(side), Mapping):
            continue
        if units.get("kind") == NumbersConfig.kind:
            found[side] = dict(units)
        elif side == "source" or task == "translate":
            found[side] = {"kind": RunTokenizerConfig.kind, "run": folder, "side": side}
    return found


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
    media = str(Path(data.media).absolute()) if data.media else ""
    start: Any = config.train.start_from
    if isinstance(start, str):
        start = str(Path(start).absolute()) if start else ""
    else:
        start = replace(start, run=str(Path(start.run).absolute()))

    def units(one: Any) -> Any:
        return replace(one, run=str(Path(one.run).absolute())) if isinstance(one, RunTokenizerConfig) else one

    tokenizer = config.tokenizer
    return replace(
        config,
        data=replace(data, train=each(data.train), valid=valid, media=media, cache=cache),
        tokenizer=replace(tokenizer, source=units(tokenizer.source), target=units(tokenizer.target)),
        train=replace(config.train, start_from=start),
    )
