"""Read WordPiece and byte-level BPE vocabularies: vocab.txt, vocab.json with merges.txt, or tokenizer.json."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dragoman.base import DataError
from dragoman.data.tokenizers import (
    ByteLevelBPEConfig,
    ByteLevelBPETokenizer,
    WordPieceConfig,
    WordPieceTokenizer,
    parse_merges,
)
from dragoman.exchange.huggingface.checkpoint import Checkpoint
from dragoman.exchange.huggingface.family import tokens_by_id

MAX_MERGES = 10_000_000


def word_pieces(checkpoint: Checkpoint, size: int) -> tuple[tuple[str, ...], Callable[[list[str]], WordPieceTokenizer]]:
    """The tokens by id, and what makes a tokenizer of the tokens in our order."""
    settings = checkpoint.json("tokenizer_config.json", optional=True) or {}
    lower, accents = settings.get("do_lower_case", True), settings.get("strip_accents")
    chinese = settings.get("tokenize_chinese_chars", True)
    if (checkpoint.folder / "vocab.txt").is_file():
        lines = text_file(checkpoint, "vocab.txt").removesuffix("\n").split("\n")
        if len(lines) > size:
            raise DataError(f"{checkpoint.folder}/vocab.txt: found {len(lines):,} tokens, expected {size:,}")
        table: Mapping[str, Any] = {line.rstrip("\r"): index for index, line in enumerate(lines)}
        place = f"{checkpoint.folder}/vocab.txt"
    else:
        place = f"{checkpoint.folder}/tokenizer.json"
        whole = tokenizer_json(checkpoint, "WordPiece")
        table = whole["model"]["vocab"]
        normalizer = whole.get("normalizer") if isinstance(whole.get("normalizer"), dict) else {}
        assert isinstance(normalizer, dict)
        lower, accents = normalizer.get("lowercase", lower), normalizer.get("strip_accents", accents)
        chinese = normalizer.get("handle_chinese_chars", chinese)
    config = WordPieceConfig(bool(lower), bool(lower if accents is None else accents), bool(chinese))
    return tokens_by_id(table, size, place), lambda tokens: WordPieceTokenizer(config, tokens)


def byte_pieces(
    checkpoint: Checkpoint, size: int
) -> tuple[tuple[str, ...], Callable[[list[str]], ByteLevelBPETokenizer]]:
    """The tokens by id, and what makes a tokenizer of the tokens in our order."""
    settings = checkpoint.json("tokenizer_config.json", optional=True) or {}
    prefix = settings.get("add_prefix_space", False)
    if (checkpoint.folder / "merges.txt").is_file():
        table = checkpoint.json("vocab.json") | (checkpoint.json("added_tokens.json", optional=True) or {})
        place = f"{checkpoint.folder}/merges.txt"
        try:
            merges = parse_merges(text_file(checkpoint, "merges.txt").replace("\r\n", "\n"))
        except ValueError as error:
            raise DataError(f"{place}: {error}") from None
    else:
        place = f"{checkpoint.folder}/tokenizer.json"
        whole = tokenizer_json(checkpoint, "BPE")
        table = whole["model"]["vocab"]
        splitter = whole.get("pre_tokenizer")
        prefix = splitter.get("add_prefix_space", prefix) if isinstance(splitter, dict) else prefix
        merges = [as_pair(pair, place) for pair in whole["model"].get("merges", ())]
    tokens = tokens_by_id(table, size, place)
    return tokens, lambda names: ByteLevelBPETokenizer(ByteLevelBPEConfig(bool(prefix)), names, merges)


def as_pair(pair: object, place: str) -> tuple[str, str]:
    """A merge of tokenizer.json: two pieces, or one text with a space between them."""
    parts = pair.split(" ") if isinstance(pair, str) else pair
    if not isinstance(parts, list) or len(parts) != 2 or not all(isinstance(part, str) and part for part in parts):
        raise DataError(f"{place}: merges: found {str(pair)[:40]!r}, expected two pieces")
    return parts[0], parts[1]


def tokenizer_json(checkpoint: Checkpoint, kind: str) -> dict[str, Any]:
    """The content of tokenizer.json, with a vocabulary and its added tokens."""
    place, whole = f"{checkpoint.folder}/tokenizer.json", checkpoint.json("tokenizer.json")
    model = whole.get("model")
    if not isinstance(model, dict) or not isinstance(model.get("vocab"), dict):
        raise DataError(f"{place}: model: found no vocabulary, expected that of {kind}")
    if model.get("type", kind) != kind:
        raise DataError(f"{place}: model.type: found {model['type']!r}, expected {kind!r}")
    added = whole.get("added_tokens", [])
    try:
        model["vocab"] |= {str(token["content"]): token["id"] for token in added}
    except (TypeError, KeyError) as error:
        raise DataError(f"{place}: added_tokens: expected a list of tokens ({error!r})") from None
    if not isinstance(model.get("merges", []), list) or len(model.get("merges", [])) > MAX_MERGES:
        raise DataError(f"{place}: model.merges: expected a list of at most {MAX_MERGES:,} pairs")
    assert isinstance(whole, dict)
    return whole


def text_file(checkpoint: Checkpoint, name: str) -> str:
    try:
        return checkpoint.file(name).decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{checkpoint.folder / name}: not UTF-8 ({error})") from None


def token_id(tokens: tuple[str, ...], name: str, place: object) -> int:
    """The id of a special token; an error if the vocabulary lacks it."""
    if name not in tokens:
        raise DataError(f"{place}: the vocabulary has no {name}")
    return tokens.index(name)
