"""Tokenizers as JSON for `dragoman/web/offline/tokenizers.js`."""

from __future__ import annotations

import base64
import json
from typing import Any

from dragoman.base import MissingExtraError
from dragoman.data import SourceReader
from dragoman.data.tokenizers import (
    ByteLevelBPETokenizer,
    SentencePieceTokenizer,
    SubwordTokenizer,
    VocabularyTokenizer,
)

KINDS = ("subwords", "words", "characters", "bytes", "sentencepiece", "wordpiece", "byte-level-bpe")
ALGORITHMS = {1: "unigram", 2: "bpe"}  # model_type of a SentencePiece file


def tokenizer_spec(tokenizer: SourceReader) -> dict[str, Any]:
    """Settings, vocabulary and rules of a text tokenizer, whatever wraps it."""
    inner = tokenizer.innermost
    spec: dict[str, Any] = json.loads(tokenizer.contents()[0])
    if isinstance(inner, VocabularyTokenizer):
        spec["tokens"] = inner.pieces(range(len(inner)))
    if isinstance(inner, SubwordTokenizer | SentencePieceTokenizer):
        spec["model"] = sentencepiece_spec(inner.model)
    if isinstance(inner, SentencePieceTokenizer):
        spec["codes"] = sorted(inner.codes)
    if isinstance(inner, ByteLevelBPETokenizer):
        spec["merges"] = str(inner.contents()[2]).splitlines()
    return spec


def tokenizer_blockers(tokenizer: SourceReader, side: str) -> list[str]:
    """Why a page cannot read or write texts with a tokenizer."""
    inner = tokenizer.innermost
    if inner.kind not in KINDS:
        return [f"tokenizer.{side}.kind: found {inner.kind!r}, expected one of {', '.join(map(repr, KINDS))}"]
    if isinstance(inner, SubwordTokenizer | SentencePieceTokenizer):
        kind = parsed(inner.model).trainer_spec.model_type
        if kind not in ALGORITHMS:
            return [f"tokenizer.{side}: found a SentencePiece model of type {kind}, expected unigram or BPE"]
    return []


def parsed(model: bytes) -> Any:
    try:
        from sentencepiece import sentencepiece_model_pb2
    except ImportError:
        raise MissingExtraError("dragoman export --to web", "protobuf", "export") from None
    messages: Any = sentencepiece_model_pb2
    return messages.ModelProto.FromString(model)


def sentencepiece_spec(model: bytes) -> dict[str, Any]:
    """What encoding and decoding need of a SentencePiece file."""
    proto = parsed(model)
    trainer, normalizer = proto.trainer_spec, proto.normalizer_spec
    return {
        "pieces": [piece.piece for piece in proto.pieces],
        "scores": [float(f"{piece.score:.9g}") for piece in proto.pieces],  # nine digits tell all float32 apart
        "types": [piece.type for piece in proto.pieces],
        "algorithm": ALGORITHMS[trainer.model_type],
        "byte_fallback": trainer.byte_fallback,
        "unk_surface": trainer.unk_surface,
        "whitespace_as_suffix": trainer.treat_whitespace_as_suffix,
        "add_dummy_prefix": normalizer.add_dummy_prefix,
        "remove_extra_whitespaces": normalizer.remove_extra_whitespaces,
        "charsmap": base64.b64encode(normalizer.precompiled_charsmap).decode("ascii"),
    }
