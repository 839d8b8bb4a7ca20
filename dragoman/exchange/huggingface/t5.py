"""T5, T5 v1.1, mT5 and ByT5 (Raffel et al. 2020), and what `dragoman export` writes as a T5."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch

from dragoman.base import DataError
from dragoman.data import DataConfig, TokenizersConfig
from dragoman.data.tokenizers import (
    BYTE_TOKENS,
    SOS,
    SPECIALS,
    BytesConfig,
    ByteTokenizer,
    SentencePieceConfig,
    SentencePieceTokenizer,
)
from dragoman.exchange.huggingface.checkpoint import Checkpoint
from dragoman.exchange.huggingface.family import Imported, Names, TokenOrder, layer_names, read_names
from dragoman.exchange.huggingface.translation import search_settings, sentence_piece, vocabularies_of
from dragoman.models import EncoderDecoderConfig, TransformerConfig
from dragoman.models.layers import RelativeBiasConfig
from dragoman.runs.tasks import TranslateConfig
from dragoman.training import TrainConfig

# feed_forward_proj → (activation, gated); of several names the export writes the first
FEED_FORWARD: dict[str, tuple[Any, bool]] = {
    "relu": ("relu", False),
    "gelu": ("gelu", False),
    "gelu_new": ("gelu-tanh", False),
    "silu": ("silu", False),
    "gated-relu": ("relu", True),
    "gated-gelu": ("gelu-tanh", True),  # their name for the approximation
    "gated-gelu_new": ("gelu-tanh", True),
    "gated-gelu_python": ("gelu", True),
    "gated-silu": ("silu", True),
}


def read_t5(checkpoint: Checkpoint, options: Mapping[str, str]) -> Imported:
    """A pre-norm Transformer with RMS norm, a bias of relative positions, no other biases and unscaled scores.

    Their decoder starts with <pad>. The first T5 ties its output layer and divides its input by √d. Our tied table is
    theirs divided by √d, and our input multiplies by √d, so that both agree. Our <sos> is a second <pad>, which a bias
    keeps from being chosen; it is not trained, since T5 has no biases.
    """
    size, width = checkpoint.vocabulary("shared.weight"), checkpoint.size("d_model")
    (source, source_tokens), (target, target_tokens) = read_tokenizers(checkpoint, size)
    # T5 v1.1 and mT5 have an output layer of their own and do not scale; transformers 5 says so in another setting.
    scaled = checkpoint.setting("tie_word_embeddings", bool, True)
    scaled = checkpoint.setting("scale_decoder_outputs", bool, scaled)
    shared = checkpoint.tensor("shared.weight", (size, width))
    inputs, outputs, head = (
        checkpoint.tensor(name, (size, width)) if name in checkpoint.names() else shared
        for name in ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight")
    )
    tie: Literal["all", "inputs", "none"] = "all" if torch.equal(head, outputs) else "inputs"
    if source_tokens != target_tokens or not torch.equal(inputs, outputs):
        tie = "none"
    encoder = stack(checkpoint, checkpoint.size("num_layers", most=1000), tie == "all" and scaled)
    decoder = stack(
        checkpoint, checkpoint.size("num_decoder_layers", encoder.layers, most=1000), tie == "all" and scaled
    )
    weights = read_names(checkpoint, names("encoder", encoder) | names("decoder", decoder))
    # The scale of T5's output layer: in the tied table, or in the output layer itself.
    scale = width**-0.5 if scaled else 1.0
    weights["encoder.input.embedding.weight"] = source_tokens.table(inputs) * (scale if tie == "all" else 1.0)
    if tie != "all":
        weights["decoder.input.embedding.weight"] = target_tokens.table(outputs)
        weights["output.weight"] = target_tokens.table(head) * scale
    weights["output.bias"] = target_tokens.output_bias(None)
    biased = bool(weights["output.bias"].any())
    units = BytesConfig() if isinstance(source, ByteTokenizer) else SentencePieceConfig()
    config = TranslateConfig(
        data=DataConfig(train=str(checkpoint.folder.absolute())),
        tokenizer=TokenizersConfig(units, None if source is target else units),
        model=EncoderDecoderConfig(tie=tie, output_bias=biased, encoder=encoder, decoder=decoder),
        search=search_settings(checkpoint.generation),
        train=TrainConfig(freeze=("output.bias",) if biased else ()),
    )
    return Imported(config, source, target, weights)


def read_tokenizers(
    checkpoint: Checkpoint, size: int
) -> Sequence[tuple[SentencePieceTokenizer | ByteTokenizer, TokenOrder]]:
    """The tokenizers of source and target and their tokens; `dragoman export` writes files of Marian's tokenizer."""
    if (checkpoint.folder / "source.spm").exists():
        orders = vocabularies_of(checkpoint, size, tied=False)
        return [
            (sentence_piece(checkpoint, f"{side}.spm", order.names), order)
            for side, order in zip(("source", "target"), orders, strict=True)
        ]
    is_bytes = not (checkpoint.folder / "spiece.model").exists()
    ids = [checkpoint.setting(f"{name}_token_id", int, default) for name, default in (("pad", 0), ("eos", 1))]
    start = checkpoint.setting("decoder_start_token_id", int, ids[0])
    tokens = byte_tokens(checkpoint, size, start) if is_bytes else piece_tokens(checkpoint, size)
    order = TokenOrder(tuple(tokens), ids[0], tokens.index("<unk>") if "<unk>" in tokens else 2, start, ids[1])
    if is_bytes:
        return [(ByteTokenizer(BytesConfig()), order)] * 2
    return [(sentence_piece(checkpoint, "spiece.model", order.names), order)] * 2


def piece_tokens(checkpoint: Checkpoint, size: int) -> list[str]:
    """The pieces of the SentencePiece model, then the sentinels of pre-training, then rows that only pad the table."""
    tokens = [*sentence_piece(checkpoint, "spiece.model", []).model_pieces()[:size]]
    if "<extra_id_0>" not in tokens:  # mT5 has them among its pieces
        tokens += [f"<extra_id_{index}>" for index in reversed(range(100))][: size - len(tokens)]
    return [*tokens, *(f"<unused {index}>" for index in range(len(tokens), size))]


def byte_tokens(checkpoint: Checkpoint, size: int, start: int) -> list[str]:
    """ByT5 (Xue et al. 2022): <pad>, </s>, <unk>, 256 bytes; the sentinels after them are left out, but not a start."""
    tokens = ["<pad>", "</s>", "<unk>", *BYTE_TOKENS]
    if start == len(tokens):
        tokens.append(SPECIALS[SOS])
    if checkpoint.json("tokenizer_config.json", optional=True) is None or size < len(tokens):
        raise DataError(f"{checkpoint.folder}: found neither spiece.model nor the bytes of ByT5, expected one of them")
    return tokens


def stack(checkpoint: Checkpoint, layers: int, scale_embedding: bool) -> TransformerConfig:
    activation, gated = checkpoint.choice("feed_forward_proj", FEED_FORWARD, "relu")
    return TransformerConfig(
        layers=layers,
        width=checkpoint.size("d_model"),
        heads=checkpoint.size("num_heads"),
        head_width=checkpoint.size("d_kv"),
        feedforward=checkpoint.size("d_ff"),
        dropout=checkpoint.number("dropout_rate", 0.1),
        norm_kind="rms",
        norm_epsilon=float(checkpoint.setting("layer_norm_epsilon", float, 1e-6)),
        activation=activation,
        gated=gated,
        bias=False,
        positions=RelativeBiasConfig(
            buckets=checkpoint.size("relative_attention_num_buckets", 32),
            distance=checkpoint.size("relative_attention_max_distance", 128),
        ),
        score="dot",
        scale_embedding=scale_embedding,
    )


def names(side: str, config: TransformerConfig) -> Names:
    """The blocks of a stack; only the first one has the bias of relative positions."""
    last = 2 if side == "decoder" else 1  # of the sub-layers 0 self-attention, 1 cross-attention, 2 feed-forward
    relative = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    norm: Names = {
        f"{side}.blocks.0.attention.relative.table": (relative,),
        f"{side}.norm.weight": (f"{side}.final_layer_norm.weight",),
    }
    layer = {
        "attention.project": "layer.0.SelfAttention.q layer.0.SelfAttention.k layer.0.SelfAttention.v",
        "attention.output": "layer.0.SelfAttention.o",
        "attention_norm": "layer.0.layer_norm",
        "feedforward.widen": f"layer.{last}.DenseReluDense.{'wi_1' if config.gated else 'wi'}",
        "feedforward.narrow": f"layer.{last}.DenseReluDense.wo",
        "feedforward_norm": f"layer.{last}.layer_norm",
    }
    if config.gated:
        layer["feedforward.gate"] = f"layer.{last}.DenseReluDense.wi_0"
    if side == "decoder":
        parts = {"query": "q", "key": "k", "value": "v", "output": "o"}
        layer |= {f"cross.{ours}": f"layer.1.EncDecAttention.{theirs}" for ours, theirs in parts.items()}
        layer["cross_norm"] = "layer.1.layer_norm"
    return norm | layer_names(f"{side}.blocks", f"{side}.block", config.layers, layer, parts=("weight",))
