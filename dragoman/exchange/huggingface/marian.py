"""Marian: the OPUS-MT models (Tiedemann and Thottingal 2020); and both classes that `dragoman export` writes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch

from dragoman.data.config import DataConfig, TokenizersConfig
from dragoman.data.tokenizers.subwords import SentencePieceConfig, SentencePieceTokenizer
from dragoman.decoding.config import SearchConfig
from dragoman.errors import DataError
from dragoman.exchange.huggingface.checkpoint import Checkpoint
from dragoman.exchange.huggingface.family import (
    Imported,
    TokenOrder,
    bart_layers,
    logits_bias,
    read_names,
    tokens_by_id,
)
from dragoman.layers.positions import SinusoidalConfig
from dragoman.models.encoder_decoder import EncoderDecoderConfig
from dragoman.models.transformer import TransformerConfig
from dragoman.tasks.translate import TranslateConfig

ACTIVATIONS = {"swish": "silu", "silu": "silu", "relu": "relu", "gelu": "gelu", "gelu_new": "gelu-tanh"}


def read_marian(checkpoint: Checkpoint, options: Mapping[str, str], norm: Literal["pre", "post"] = "post") -> Imported:
    """A Transformer with sinusoids and a SentencePiece model for each side.

    Their decoder starts with <pad>, whose embedding is zero in published models, which have one table and one
    vocabulary. Models that `dragoman export` writes may have a table for each of source, target and output layer, and
    then a vocabulary for each side.
    """
    if not checkpoint.setting("share_encoder_decoder_embeddings", bool, True):
        raise DataError(f"{checkpoint.folder}: found separate vocabularies of source and target, expected one")
    tied = checkpoint.setting("tie_word_embeddings", bool, True)
    size = checkpoint.vocabulary("model.shared.weight")
    vocabularies = vocabularies_of(checkpoint, size, tied)
    source, target = (
        sentence_piece(checkpoint, f"{side}.spm", vocabulary.names)
        for side, vocabulary in zip(("source", "target"), vocabularies, strict=True)
    )
    encoder, decoder = (transformer(checkpoint, side, norm) for side in ("encoder", "decoder"))
    pre = norm == "pre"
    names = bart_layers("encoder", encoder.layers, pre) | bart_layers("decoder", decoder.layers, pre)
    weights = read_names(checkpoint, names)
    tables = {"encoder.input.embedding.weight": ("model.shared.weight", vocabularies[0])}
    if not tied:
        tables = {
            "encoder.input.embedding.weight": ("model.encoder.embed_tokens.weight", vocabularies[0]),
            "decoder.input.embedding.weight": ("model.decoder.embed_tokens.weight", vocabularies[1]),
            "output.weight": ("lm_head.weight", vocabularies[1]),
        }
    for ours, (theirs, vocabulary) in tables.items():
        table = checkpoint.tensor(theirs, (size, encoder.width))
        weights[ours] = vocabulary.table(table[: len(vocabulary.tokens)])
    tie: Literal["all", "target", "none"] = "all"
    if not tied:
        same = torch.equal(weights["decoder.input.embedding.weight"], weights["output.weight"])
        tie = "target" if same else "none"
    bias = logits_bias(checkpoint, size)
    weights["output.bias"] = vocabularies[1].output_bias(None if bias is None else bias[: len(vocabularies[1].tokens)])
    config = TranslateConfig(
        data=DataConfig(train=str(checkpoint.folder.absolute())),
        tokenizer=TokenizersConfig(SentencePieceConfig(), SentencePieceConfig()),
        model=EncoderDecoderConfig(tie=tie, output_bias=True, encoder=encoder, decoder=decoder),
        search=search_settings(checkpoint.generation),
    )
    return Imported(config, source, target, weights)


def read_pegasus(checkpoint: Checkpoint, options: Mapping[str, str]) -> Imported:
    """The same with pre-norm layers, as `dragoman export` writes them. Published models have another tokenizer."""
    if not (checkpoint.folder / "source.spm").is_file():
        raise DataError(
            f"{checkpoint.folder}: found a Pegasus without source.spm, expected one that dragoman export wrote"
        )
    return read_marian(checkpoint, options, "pre")


def vocabularies_of(checkpoint: Checkpoint, size: int, tied: bool) -> tuple[TokenOrder, TokenOrder]:
    """The tokens of source and target; a vocabulary of its own may be smaller than the tables, which are padded."""
    separate = not tied and (checkpoint.folder / "target_vocab.json").is_file()
    ids = {name: checkpoint.setting(f"{name}_token_id", int) for name in ("pad", "eos", "decoder_start")}
    vocabularies = []
    for name in ("vocab.json", "target_vocab.json" if separate else "vocab.json"):
        table = checkpoint.json(name)
        tokens = tokens_by_id(table, min(size, len(table)) if separate else size, f"{checkpoint.folder}/{name}")
        unk = tokens.index("<unk>") if "<unk>" in tokens else 1
        vocabularies.append(TokenOrder(tokens, ids["pad"], unk, ids["decoder_start"], ids["eos"]))
    return vocabularies[0], vocabularies[1]


def sentence_piece(checkpoint: Checkpoint, name: str, tokens: list[str], prefix: str = "") -> SentencePieceTokenizer:
    try:
        return SentencePieceTokenizer(SentencePieceConfig(prefix), checkpoint.file(name), tokens)
    except (RuntimeError, ValueError) as error:
        raise DataError(f"{checkpoint.folder / name}: not a SentencePiece model ({error})") from None


def activation(checkpoint: Checkpoint, name: str) -> Any:
    return checkpoint.choice(name, ACTIVATIONS)


def transformer(checkpoint: Checkpoint, side: str, norm: Literal["pre", "post"] = "post") -> TransformerConfig:
    return TransformerConfig(
        layers=checkpoint.size(f"{side}_layers", most=1000),
        width=checkpoint.size("d_model"),
        heads=checkpoint.size(f"{side}_attention_heads"),
        feedforward=checkpoint.size(f"{side}_ffn_dim"),
        dropout=checkpoint.number("dropout", 0.1),
        norm=norm,
        activation=activation(checkpoint, "activation_function"),
        positions=SinusoidalConfig(layout="halves"),
        scale_embedding=checkpoint.setting("scale_embedding", bool, True),
    )


def search_settings(generation: Mapping[str, Any]) -> SearchConfig:
    beam, penalty = generation.get("num_beams"), generation.get("length_penalty")
    return SearchConfig(
        beam=beam if isinstance(beam, int) and 1 <= beam <= 64 else 5,
        length_penalty=float(penalty) if isinstance(penalty, int | float) and 0 <= penalty <= 10 else 1.0,
    )
