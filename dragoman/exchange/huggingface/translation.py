"""Marian (OPUS-MT, Tiedemann and Thottingal 2020) and both classes that `dragoman export` writes; M2M-100 (Fan et al.
2021), NLLB (Costa-jussà et al. 2022) and mBART-50: one model for many languages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from dragoman.base import DataError, suggestion
from dragoman.data import DataConfig, TokenizersConfig
from dragoman.data.tokenizers import EOS, TAG, SentencePieceConfig, SentencePieceTokenizer
from dragoman.decoding import SearchConfig
from dragoman.exchange.huggingface.checkpoint import Checkpoint
from dragoman.exchange.huggingface.family import (
    Imported,
    Names,
    TokenOrder,
    bart_layers,
    linear,
    logits_bias,
    read_names,
    tokens_by_id,
)
from dragoman.models import EncoderDecoderConfig, TransformerConfig
from dragoman.models.layers import LearnedConfig, PositionsConfig, SinusoidalConfig
from dragoman.runs.tasks import TranslateConfig

ACTIVATIONS = {"swish": "silu", "silu": "silu", "relu": "relu", "gelu": "gelu", "gelu_new": "gelu-tanh"}
UNUSED_POSITIONS = 2  # first rows of the position table of mBART
PIECES = ("sentencepiece.bpe.model", "spm.model", "sentencepiece.model")


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


def read_m2m100(checkpoint: Checkpoint, options: Mapping[str, str]) -> Imported:
    """A pre-norm Transformer with sinusoids from position 2 on."""
    return read_multilingual(checkpoint, options, SinusoidalConfig(layout="fairseq"))


def read_mbart(checkpoint: Checkpoint, options: Mapping[str, str]) -> Imported:
    """mBART-50 (Tang et al. 2020): like M2M-100, with learned positions and a norm after the embeddings."""
    count = checkpoint.size("max_position_embeddings")
    imported = read_multilingual(checkpoint, options, LearnedConfig(count), embedding_norm=True)
    shape = (count + UNUSED_POSITIONS, checkpoint.size("d_model"))
    for side in ("encoder", "decoder"):
        table = checkpoint.tensor(f"model.{side}.embed_positions.weight", shape)
        imported.weights[f"{side}.input.positions.table"] = table[UNUSED_POSITIONS:]
    return imported


def read_multilingual(
    checkpoint: Checkpoint, options: Mapping[str, str], positions: PositionsConfig, *, embedding_norm: bool = False
) -> Imported:
    """A model of the M2M-100 or mBART-50 kind; `options` need source_language and target_language.

    The source begins with its language code. Their decoder reads </s> and the code of the target language before the
    first word: ours reads <eos> as a prompt, and its <sos> is that code. So a run has one direction.
    """
    size = checkpoint.vocabulary("model.shared.weight")
    tokens = vocabulary_of(checkpoint, size)
    codes = [token for token in tokens if TAG.fullmatch(token)]
    source_code, target_code = (language(checkpoint, options, side, codes) for side in ("source", "target"))
    ids = {name: checkpoint.setting(f"{name}_token_id", int) for name in ("pad", "eos", "decoder_start")}
    if ids["decoder_start"] != ids["eos"]:
        raise DataError(
            f"{checkpoint.folder}: decoder_start_token_id: found {ids['decoder_start']}, expected eos_token_id = "
            f"{ids['eos']}; models whose decoder starts with a language code (mBART-25) cannot be imported"
        )
    if "<unk>" not in tokens:
        raise DataError(f"{checkpoint.folder}: found no <unk> in the vocabulary, expected one")
    vocabulary = TokenOrder(tokens, ids["pad"], tokens.index("<unk>"), tokens.index(target_code), ids["eos"])
    name = next((name for name in PIECES if (checkpoint.folder / name).exists()), PIECES[0])
    source = sentence_piece(checkpoint, name, vocabulary.names, source_code)
    target = sentence_piece(checkpoint, name, vocabulary.names)
    changes = {"norm": "pre", "positions": positions, "embedding_norm": embedding_norm}
    encoder, decoder = (replace(transformer(checkpoint, side), **changes) for side in ("encoder", "decoder"))  # type: ignore[arg-type]
    longest = min(256, max(1, getattr(positions, "max_positions", 1 << 16) - 1))  # <eos> needs a position too
    config = TranslateConfig(
        data=DataConfig(train=str(checkpoint.folder.absolute()), max_length=longest),
        tokenizer=TokenizersConfig(SentencePieceConfig(source_code), SentencePieceConfig()),
        model=EncoderDecoderConfig(tie="all", output_bias=True, prompt=(EOS,), encoder=encoder, decoder=decoder),
        search=search_settings(checkpoint.generation),
    )
    weights = stacks(checkpoint, encoder, decoder)
    table = checkpoint.tensor("model.shared.weight", (size, encoder.width))
    weights["encoder.input.embedding.weight"] = vocabulary.table(table)
    weights["output.bias"] = vocabulary.output_bias(logits_bias(checkpoint, size))
    return Imported(config, source, target, weights)


def stacks(checkpoint: Checkpoint, encoder: TransformerConfig, decoder: TransformerConfig) -> dict[str, Tensor]:
    names: Names = {}
    for side, stack in (("encoder", encoder), ("decoder", decoder)):
        names |= bart_layers(side, stack.layers, norm=True)
        if stack.embedding_norm:
            names |= linear(f"{side}.input.norm", f"model.{side}.layernorm_embedding")
    return read_names(checkpoint, names)


def vocabulary_of(checkpoint: Checkpoint, size: int) -> tuple[str, ...]:
    """The tokens of tokenizer.json, or of vocab.json with the language codes of M2M-100 after it."""
    tokenizer = checkpoint.json("tokenizer.json", optional=True)
    if tokenizer is None:
        table = checkpoint.json("vocab.json")
        added = checkpoint.json("added_tokens.json", optional=True) or {}
        return tokens_by_id(table | added, size, f"{checkpoint.folder}/vocab.json")
    place = f"{checkpoint.folder}/tokenizer.json"
    try:
        listed = tokenizer["model"]["vocab"]
        table = listed if isinstance(listed, dict) else {token: index for index, (token, _) in enumerate(listed)}
        table |= {str(token["content"]): token["id"] for token in tokenizer.get("added_tokens", [])}
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{place}: expected the vocabulary of a tokenizer ({error!r})") from None
    return tokens_by_id(table, size, place)


def language(checkpoint: Checkpoint, options: Mapping[str, str], side: str, codes: Sequence[str]) -> str:
    """The language code of a side, with or without the underscores of M2M-100."""
    asked = options.get(f"{side}_language", "")
    for code in (asked, f"__{asked}__"):
        if code in codes:
            return code
    shown = ", ".join(codes[:8]) + (f" and {len(codes) - 8} more" if len(codes) > 8 else "")
    raise DataError(
        f"{checkpoint.folder}: --{side}-language: found {asked or 'nothing'}, expected one of {shown or 'no codes'}"
        + (suggestion(asked, codes) if asked else "")
    )
