"""Marian: the OPUS-MT models (Tiedemann and Thottingal 2020)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dragoman.data.config import DataConfig, TokenizersConfig
from dragoman.data.tokenizers.sentence_piece import SentencePieceConfig, SentencePieceTokenizer
from dragoman.decoding.config import SearchConfig
from dragoman.errors import DataError
from dragoman.exchange.huggingface.checkpoint import Checkpoint
from dragoman.exchange.huggingface.family import Imported, Vocabulary, bart_layers, read_names, tokens_by_id
from dragoman.layers.positions import SinusoidalConfig
from dragoman.models.encoder_decoder import EncoderDecoderConfig
from dragoman.models.transformer import TransformerConfig
from dragoman.tasks.translate import TranslateConfig

ACTIVATIONS = {"swish": "silu", "silu": "silu", "relu": "relu", "gelu": "gelu", "gelu_new": "gelu-tanh"}


class Marian:
    """A post-norm Transformer with sinusoids. One vocabulary, but a SentencePiece model for each side."""

    def read(self, checkpoint: Checkpoint, options: Mapping[str, str]) -> Imported:
        """Their decoder starts with <pad>, whose embedding is zero in published models."""
        if not checkpoint.setting("share_encoder_decoder_embeddings", bool, True):
            raise DataError(f"{checkpoint.folder}: found separate vocabularies of source and target, expected one")
        size = checkpoint.vocabulary("model.shared.weight")
        tokens = tokens_by_id(checkpoint.json("vocab.json"), size, f"{checkpoint.folder}/vocab.json")
        unk = tokens.index("<unk>") if "<unk>" in tokens else 1
        ids = {name: checkpoint.setting(f"{name}_token_id", int) for name in ("pad", "eos", "decoder_start")}
        vocabulary = Vocabulary(tokens, ids["pad"], unk, ids["decoder_start"], ids["eos"])
        source, target = (sentence_piece(checkpoint, f"{side}.spm", vocabulary.names) for side in ("source", "target"))
        encoder, decoder = (transformer(checkpoint, side) for side in ("encoder", "decoder"))
        config = TranslateConfig(
            data=DataConfig(train=str(checkpoint.folder.absolute())),
            tokenizer=TokenizersConfig(SentencePieceConfig(), SentencePieceConfig()),
            model=EncoderDecoderConfig(tie="all", output_bias=True, encoder=encoder, decoder=decoder),
            search=search_settings(checkpoint.generation),
        )
        weights = read_names(
            checkpoint, bart_layers("encoder", encoder.layers) | bart_layers("decoder", decoder.layers)
        )
        table = checkpoint.tensor("model.shared.weight", (size, encoder.width))
        weights["encoder.input.embedding.weight"] = vocabulary.table(table)
        bias = (
            checkpoint.tensor("final_logits_bias", (1, size))[0] if "final_logits_bias" in checkpoint.names() else None
        )
        weights["output.bias"] = vocabulary.output_bias(bias)
        return Imported(config, source, target, weights)


def sentence_piece(checkpoint: Checkpoint, name: str, tokens: list[str], prefix: str = "") -> SentencePieceTokenizer:
    """The tokenizer of a SentencePiece file of the folder."""
    try:
        return SentencePieceTokenizer(SentencePieceConfig(prefix), checkpoint.file(name), tokens)
    except (RuntimeError, ValueError) as error:
        raise DataError(f"{checkpoint.folder / name}: not a SentencePiece model ({error})") from None


def activation(checkpoint: Checkpoint, name: str) -> Any:
    """Our name of their activation function."""
    theirs = checkpoint.setting(name, str)
    if theirs not in ACTIVATIONS:
        expected = ", ".join(sorted(ACTIVATIONS))
        raise DataError(f"{checkpoint.folder / 'config.json'}: {name}: found {theirs!r}, expected one of {expected}")
    return ACTIVATIONS[theirs]


def transformer(checkpoint: Checkpoint, side: str) -> TransformerConfig:
    """The settings of one stack."""
    return TransformerConfig(
        layers=checkpoint.size(f"{side}_layers", most=1000),
        width=checkpoint.size("d_model"),
        heads=checkpoint.size(f"{side}_attention_heads"),
        feedforward=checkpoint.size(f"{side}_ffn_dim"),
        dropout=float(checkpoint.setting("dropout", (float, int), 0.1)),
        norm="post",
        activation=activation(checkpoint, "activation_function"),
        positions=SinusoidalConfig(layout="halves"),
        scale_embedding=checkpoint.setting("scale_embedding", bool, True),
    )


def search_settings(generation: Mapping[str, Any]) -> SearchConfig:
    """Beam width and length penalty of the published model."""
    beam, penalty = generation.get("num_beams"), generation.get("length_penalty")
    return SearchConfig(
        beam=beam if isinstance(beam, int) and 1 <= beam <= 64 else 5,
        length_penalty=float(penalty) if isinstance(penalty, int | float) and 0 <= penalty <= 10 else 1.0,
    )
