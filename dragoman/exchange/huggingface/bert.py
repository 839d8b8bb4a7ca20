"""BERT (Devlin et al. 2019) and RoBERTa (Liu et al. 2019): fill [MASK], and start classify and tag from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from dragoman.base import DataError
from dragoman.data import DataConfig, TokenizersConfig
from dragoman.exchange.huggingface.checkpoint import Checkpoint
from dragoman.exchange.huggingface.family import Imported, TokenOrder, layer_names, linear, read_names
from dragoman.exchange.huggingface.tokenizer_files import byte_pieces, token_id, word_pieces
from dragoman.exchange.huggingface.translation import activation
from dragoman.models import MaskedLMConfig
from dragoman.models.encoders import BertEncoderConfig
from dragoman.runs.tasks import MaskedLanguageModelTaskConfig

BERT_HEAD = {"transform": "transform.dense", "transform_norm": "transform.LayerNorm"}
ROBERTA_HEAD = {"transform": "dense", "transform_norm": "layer_norm"}
ROBERTA_FIRST_POSITION = 2  # their padding has position 1
LAYER = {
    "attention.project": "attention.self.query attention.self.key attention.self.value",
    "attention.output": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "feedforward.widen": "intermediate.dense",
    "feedforward.narrow": "output.dense",
    "feedforward_norm": "output.LayerNorm",
}
NEXT = {"pooler": "bert.pooler.dense", "next_sentence": "cls.seq_relationship"}


def read_bert(checkpoint: Checkpoint, options: Mapping[str, str]) -> Imported:
    """Our <sos> is [CLS], our <eos> is [SEP]. The next-sentence head is read where the folder has it."""
    special = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    return read_masked(checkpoint, "bert", word_pieces, special, encoder_settings(checkpoint, first_position=0))


def read_roberta(checkpoint: Checkpoint, options: Mapping[str, str]) -> Imported:
    """BERT with byte-level BPE, positions from 2 on and no next-sentence prediction.

    Our <sos> is <s>, our <eos> is </s>, which is there twice between two texts.
    """
    encoder = replace(encoder_settings(checkpoint, ROBERTA_FIRST_POSITION), separators=2)
    if encoder.activation != "gelu":
        raise DataError(f"{checkpoint.folder}: hidden_act: found {encoder.activation!r}, expected 'gelu'")
    special = ("<pad>", "<unk>", "<s>", "</s>", "<mask>")
    return read_masked(checkpoint, "roberta", byte_pieces, special, encoder)


def read_masked(
    checkpoint: Checkpoint, prefix: str, pieces: Any, special: Sequence[str], encoder: BertEncoderConfig
) -> Imported:
    """The parts that both have. Our mask token has a vector of its own, a copy of its row of the table."""
    embeddings = f"{prefix}.embeddings"
    size = checkpoint.vocabulary(f"{embeddings}.word_embeddings.weight")
    tokens, make = pieces(checkpoint, size)
    *ids, mask = (token_id(tokens, name, checkpoint.folder) for name in special)
    vocabulary = TokenOrder(tokens, *ids)
    tokenizer = make(vocabulary.names)
    is_bert = prefix == "bert"
    head, layers = ("cls.predictions", BERT_HEAD) if is_bert else ("lm_head", ROBERTA_HEAD)
    layers = {ours: f"{head}.{theirs}" for ours, theirs in layers.items()}
    following = is_bert and all(f"{name}.weight" in checkpoint.names() for name in NEXT.values())
    names = linear("encoder.embedding_norm", f"{embeddings}.LayerNorm")
    names |= layer_names("encoder.blocks", f"{prefix}.encoder.layer", encoder.layers, LAYER)
    for ours, theirs in (layers | (NEXT if following else {})).items():
        names |= linear(ours, theirs)
    weights = read_names(checkpoint, names)
    if following:  # their label 0 means that the second text follows, ours is 1
        weights |= {f"next_sentence.{part}": weights[f"next_sentence.{part}"].flip(0) for part in ("weight", "bias")}
    table = checkpoint.tensor(f"{embeddings}.word_embeddings.weight", (size, encoder.width))
    output = f"{head}.decoder.weight"
    if output in checkpoint.names() and not torch.equal(checkpoint.tensor(output), table):
        raise DataError(f"{checkpoint.folder}: found an output layer of its own, expected the table of embeddings")
    count = checkpoint.size("max_position_embeddings")
    positions = checkpoint.tensor(f"{embeddings}.position_embeddings.weight", (count, encoder.width))
    weights |= {
        "encoder.embedding.weight": vocabulary.table(table),
        "encoder.positions": positions[count - encoder.max_positions - 1 :],
        "encoder.segments": checkpoint.tensor(f"{embeddings}.token_type_embeddings.weight"),
        "mask_vector": table[mask],
        "output.bias": vocabulary.table(checkpoint.tensor(f"{head}.bias", (size,))),
    }
    longest = max(1, min(256, encoder.max_positions - 1 - encoder.separators))  # without the <eos> of two texts
    config = MaskedLanguageModelTaskConfig(
        data=DataConfig(train=str(checkpoint.folder.absolute()), max_length=longest),
        tokenizer=TokenizersConfig(tokenizer.config),
        model=MaskedLMConfig(next_sentence=following and encoder.segments > 1, encoder=encoder),
    )
    return Imported(config, tokenizer, tokenizer, weights)


def encoder_settings(checkpoint: Checkpoint, first_position: int) -> BertEncoderConfig:
    """The settings of the encoder; their table of positions has `first_position` rows that no position uses."""
    kind = checkpoint.setting("position_embedding_type", str, "absolute")
    if kind != "absolute":
        raise DataError(f"{checkpoint.folder}: position_embedding_type: found {kind!r}, expected 'absolute'")
    return BertEncoderConfig(
        layers=checkpoint.size("num_hidden_layers", most=1000),
        width=checkpoint.size("hidden_size"),
        heads=checkpoint.size("num_attention_heads"),
        feedforward=checkpoint.size("intermediate_size"),
        dropout=checkpoint.number("hidden_dropout_prob", 0.1),
        attention_dropout=checkpoint.number("attention_probs_dropout_prob", 0.1),
        activation=activation(checkpoint, "hidden_act"),
        max_positions=max(1, checkpoint.size("max_position_embeddings") - first_position - 1),  # without [CLS]
        segments=checkpoint.size("type_vocab_size"),
        norm_epsilon=float(checkpoint.setting("layer_norm_eps", float, 1e-12)),
    )
