"""Train a tokenizer as its configuration says, or load a saved one."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

from dragoman.base import ConfigError, RunError, hint
from dragoman.base import config as settings
from dragoman.base.config import setting
from dragoman.data.media.feature_extractor import MEDIA_CONFIGS, FeatureExtractor, MediaConfig
from dragoman.data.source_reader import SourceReader
from dragoman.data.tokenizers.base import TextPairTokenizer, Tokenizer
from dragoman.data.tokenizers.byte_level_bpe import ByteLevelBPEConfig, ByteLevelBPETokenizer
from dragoman.data.tokenizers.characters import (
    BytesConfig,
    ByteTokenizer,
    CharactersConfig,
    CharacterTokenizer,
    CTCCharactersConfig,
    CTCCharacterTokenizer,
)
from dragoman.data.tokenizers.context import ContextTokenizer
from dragoman.data.tokenizers.labels import LabelVocabulary
from dragoman.data.tokenizers.language_tags import TAG_NAME, LanguageTagTokenizer
from dragoman.data.tokenizers.numbers import NumberScaler, NumbersConfig
from dragoman.data.tokenizers.subwords import (
    SentencePieceConfig,
    SentencePieceTokenizer,
    SubwordsConfig,
    SubwordTokenizer,
)
from dragoman.data.tokenizers.word_piece import WordPieceConfig, WordPieceTokenizer
from dragoman.data.tokenizers.words import WordsConfig, WordTokenizer


@dataclass(frozen=True)
class RunTokenizerConfig:
    """The tokenizer of another run."""

    kind: ClassVar[str] = "run"
    run: str = setting(help="the folder of that run")
    side: Literal["source", "target"] = setting("source", help="its source tokenizer, or its target tokenizer")

    @property
    def tokenizer_kind(self) -> str:
        """The kind of that tokenizer; empty if its file cannot be read."""
        try:
            return str(json.loads((Path(self.run) / "tokenizer" / f"{self.side}.json").read_bytes())["kind"])
        except (OSError, ValueError, KeyError, TypeError):
            return ""


# Of published models; WordPiece also learns.
ImportedConfig = SentencePieceConfig | WordPieceConfig | ByteLevelBPEConfig | CTCCharactersConfig
TokenizerConfig = WordsConfig | CharactersConfig | SubwordsConfig | BytesConfig | ImportedConfig
TEXT_CONFIGS: dict[str, type[TokenizerConfig]] = {config.kind: config for config in get_args(TokenizerConfig)}
_TRAINED: tuple[type[Tokenizer], ...] = (
    *(WordTokenizer, CharacterTokenizer, SubwordTokenizer, ByteTokenizer, NumberScaler, WordPieceTokenizer),
    *(SentencePieceTokenizer, ByteLevelBPETokenizer, CTCCharacterTokenizer),
)
TOKENIZERS: dict[str, type[Tokenizer]] = {str(tokenizer.kind): tokenizer for tokenizer in _TRAINED}
# Readers that are saved as one JSON file.
_SINGLE_FILE: dict[str, Any] = {
    LabelVocabulary.kind: LabelVocabulary,
    NumberScaler.kind: NumberScaler,
    **dict.fromkeys(MEDIA_CONFIGS, FeatureExtractor),
}


def train_tokenizer(
    config: TokenizerConfig | NumbersConfig | RunTokenizerConfig | MediaConfig, texts: Iterable[str]
) -> Tokenizer:
    """Learn a tokenizer from texts, or take that of another run."""
    if isinstance(config, RunTokenizerConfig):
        return load_run_tokenizer(config)
    return TOKENIZERS[config.kind].train(config, texts)


def load_run_tokenizer(config: RunTokenizerConfig) -> Tokenizer:
    """The text tokenizer of another run, without its language tags or its <sep>."""
    folder = Path(config.run)
    if not (folder / "tokenizer").is_dir():
        raise ConfigError(f"tokenizer.{config.side}.run: found '{folder}', expected the folder of a run")
    tokenizer = load_reader(folder / "tokenizer", config.side).innermost
    if not (isinstance(tokenizer, Tokenizer) and tokenizer.is_text):
        advice = ' (side = "target" may have one)' if config.side == "source" else ""
        raise ConfigError(
            f"tokenizer: the {config.side} of {folder} has {tokenizer.kind}, expected a text tokenizer{advice}"
        )
    return tokenizer


def load_tokenizers(folder: Path) -> tuple[SourceReader, Tokenizer]:
    """What was saved as the source and the target in a folder."""
    return load_reader(folder, "source"), load_tokenizer(folder, "target")


def load_tokenizer(folder: Path, name: str) -> Tokenizer:
    """The tokenizer, label vocabulary or number scaler that was saved as `name` in a folder."""
    reader = load_reader(folder, name)
    if not isinstance(reader, Tokenizer):
        raise RunError(f"{folder}/{name}.json: found {reader.kind}, expected a tokenizer, labels or numbers")
    return reader


def load_reader(folder: Path, name: str) -> SourceReader:
    """The reader that was saved as `name` in a folder: a tokenizer, labels, numbers or a feature extractor."""
    path = Path(folder) / f"{name}.json"
    try:
        table = json.loads(_read_bytes(path))
        kind, expected = str(table["kind"]), table.pop("fingerprint")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise RunError(f"{path}: damaged tokenizer file ({error})") from error
    if kind in TEXT_CONFIGS:
        return _load_text_tokenizer(path, table, expected)
    if kind not in _SINGLE_FILE:
        raise RunError(f"{path}: found the kind '{kind}'. {hint(kind, [*TEXT_CONFIGS, *_SINGLE_FILE])}")
    try:
        reader: SourceReader = _SINGLE_FILE[kind].load(table)
        fingerprint = reader.fingerprint()
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError, ConfigError) as error:
        raise RunError(f"{path}: damaged file of {kind} ({error})") from None
    if fingerprint != expected:
        raise RunError(f"{path}: damaged file of {kind} (it was changed after it was saved)")
    return reader


def _load_text_tokenizer(path: Path, table: dict[str, Any], expected: str) -> Tokenizer:
    content = path  # the file that is read

    def read(suffix: str) -> bytes:
        nonlocal content
        content = path.with_name(f"{path.stem}.{suffix}")
        return _read_bytes(content)

    try:
        tags, has_separator = table.pop("tags", []), table.pop("separator", False)
        context = table.pop("context", None)
        model_digest = table.pop("model_digest", None)  # earlier runs have none
        if not all(TAG_NAME.fullmatch(tag) for tag in tags):
            raise ValueError(f"tags: found {tags}")
        config = settings.build(TEXT_CONFIGS[table["kind"]], table)
        tokenizer = TOKENIZERS[config.kind].from_files(config, read)
        found_digest = tokenizer.model_digest
        if context:
            tokenizer = ContextTokenizer(tokenizer, *map(int, context))
        if tags:
            tokenizer = LanguageTagTokenizer(tokenizer, tags)
        if has_separator:
            tokenizer = TextPairTokenizer(tokenizer)
        fingerprint = tokenizer.fingerprint()
    except (ValueError, TypeError, ConfigError, RuntimeError) as error:
        reason = str(error).replace("\n", "; ")
        if content.suffix == ".model":
            reason = "sentencepiece cannot read it"
        raise RunError(f"{content}: damaged tokenizer file ({reason})") from error
    if fingerprint != expected:
        raise RunError(f"{content}: damaged tokenizer file (it is not the one that {path.name} was saved with)")
    if model_digest not in (None, found_digest):
        raise RunError(f"{content}: damaged tokenizer file (it was changed after it was saved)")
    return tokenizer


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise RunError(f"{path}: tokenizer file cannot be read ({error.strerror})") from error
