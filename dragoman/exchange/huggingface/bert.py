"""BERT (Devlin et al. 2019) and RoBERTa (Liu et al. 2019): fill [MASK], and start classify and tag from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from dragoman.data.config import DataConfig, TokenizersConfig
from dragoman.data.tokenizers.load import ImportedConfig
from dragoman.data.tokenizers.word_piece import WordPieceTokenizer
from dragoman.errors import DataError
from dragoman.exchange.huggingface.checkpoint import Checkpoint
from dragoman.exchange.huggingface.family import Imported, Names, TokenOrder, layer_names, linear, read_names
from dragoman.exchange.huggingface.marian import activation
from dragoman.exchange.huggingface.tokenizer_files import byte_pieces, token_id, word_pieces
from dragoman.models.encoders.bert import BertEncoderConfig
from dragoman.models.masked_lm import MaskedLMConfig
from dragoman.tasks.language_model import MaskedLanguageModelTaskConfig

HEAD = {"transform": "cls.predictions.transform.dense", "transform_norm": "cls.predictions.transform.LayerNorm"}
ROBERTA_HEAD = {"transform": "lm_head.dense", "transform_norm": "lm_head.layer_norm"}
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
    """Our <sos> is [CLS], our <eos> is [SEP]. Our [MASK] has a vector of its own, a copy of its row of the table.

    The next-sentence head is read where the folder has it.
    """
    size = checkpoint.vocabulary("bert.embeddings.word_embeddings.weight")
    tokens, make = word_pieces(checkpoint, size)
    ids = [token_id(tokens, f"[{name}]", checkpoint.folder) for name in ("PAD", "UNK", "CLS", "SEP", "MASK")]
    vocabulary = TokenOrder(tokens, *ids[:4])
    tokenizer: WordPieceTokenizer = make(vocabulary.names)
    following = all(f"{name}.weight" in checkpoint.names() for name in NEXT.values())
    encoder = encoder_settings(checkpoint, first_position=0)
    names = blocks("bert", encoder.layers) | head_names(HEAD | (NEXT if following else {}))
    weights = read_names(checkpoint, names)
    if following:  # their label 0 means that the second text follows, ours is 1
        weights |= {f"next_sentence.{part}": weights[f"next_sentence.{part}"].flip(0) for part in ("weight", "bias")}
    weights |= tables(checkpoint, "bert", vocabulary, ids[4], encoder)
    decoder = "cls.predictions.decoder.weight"
    weights["output.bias"] = output_bias(checkpoint, vocabulary, "cls.predictions", decoder)
    config = masked_settings(checkpoint, tokenizer.config, encoder, following)
    return Imported(config, tokenizer, tokenizer, weights)


def read_roberta(checkpoint: Checkpoint, options: Mapping[str, str]) -> Imported:
    """BERT with byte-level BPE, positions from 2 on and no next-sentence prediction.

    Our <sos> is <s>, our <eos> is </s>, which is there twice between two texts.
    """
    tokens, make = byte_pieces(checkpoint, checkpoint.vocabulary("roberta.embeddings.word_embeddings.weight"))
    ids = [token_id(tokens, name, checkpoint.folder) for name in ("<pad>", "<unk>", "<s>", "</s>", "<mask>")]
    vocabulary = TokenOrder(tokens, *ids[:4])
    tokenizer = make(vocabulary.names)
    encoder = replace(encoder_settings(checkpoint, ROBERTA_FIRST_POSITION), separators=2)
    if encoder.activation != "gelu":
        raise DataError(f"{checkpoint.folder}: hidden_act: found {encoder.activation!r}, expected 'gelu'")
    weights = read_names(checkpoint, blocks("roberta", encoder.layers) | head_names(ROBERTA_HEAD))
    weights |= tables(checkpoint, "roberta", vocabulary, ids[4], encoder)
    weights["output.bias"] = output_bias(checkpoint, vocabulary, "lm_head", "lm_head.decoder.weight")
    config = masked_settings(checkpoint, tokenizer.config, encoder, next_sentence=False)
    return Imported(config, tokenizer, tokenizer, weights)


def masked_settings(
    checkpoint: Checkpoint, tokenizer: ImportedConfig, encoder: BertEncoderConfig, next_sentence: bool
) -> MaskedLanguageModelTaskConfig:
    longest = max(1, min(256, encoder.max_positions - 1 - encoder.separators))  # without the <eos> of two texts
    return MaskedLanguageModelTaskConfig(
        data=DataConfig(train=str(checkpoint.folder.absolute()), max_length=longest),
        tokenizer=TokenizersConfig(tokenizer),
        model=MaskedLMConfig(next_sentence=next_sentence and encoder.segments > 1, encoder=encoder),
    )


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


def blocks(prefix: str, layers: int) -> Names:
    norm = linear("encoder.embedding_norm", f"{prefix}.embeddings.LayerNorm")
    return norm | layer_names("encoder.blocks", f"{prefix}.encoder.layer", layers, LAYER)


def head_names(layers: Mapping[str, str]) -> Names:
    return {name: theirs for ours, their in layers.items() for name, theirs in linear(ours, their).items()}


def tables(
    checkpoint: Checkpoint, prefix: str, vocabulary: TokenOrder, mask: int, encoder: BertEncoderConfig
) -> dict[str, Tensor]:
    """Embeddings of tokens, positions, segments and [MASK]."""
    shape = (len(vocabulary.tokens), encoder.width)
    words = checkpoint.tensor(f"{prefix}.embeddings.word_embeddings.weight", shape)
    count = checkpoint.size("max_position_embeddings")
    positions = checkpoint.tensor(f"{prefix}.embeddings.position_embeddings.weight", (count, encoder.width))
    return {
        "encoder.embedding.weight": vocabulary.table(words),
        "encoder.positions": positions[count - encoder.max_positions - 1 :],
        "encoder.segments": checkpoint.tensor(f"{prefix}.embeddings.token_type_embeddings.weight"),
        "mask_vector": words[mask],
    }


def output_bias(checkpoint: Checkpoint, vocabulary: TokenOrder, head: str, decoder: str) -> Tensor:
    """The bias of the output layer, whose matrix must be the table of token embeddings."""
    if decoder in checkpoint.names():
        prefix = "bert" if head.startswith("cls") else "roberta"
        table = checkpoint.tensor(f"{prefix}.embeddings.word_embeddings.weight")
        if not torch.equal(checkpoint.tensor(decoder), table):
            raise DataError(f"{checkpoint.folder}: found an output layer of its own, expected the table of embeddings")
    return vocabulary.table(checkpoint.tensor(f"{head}.bias", (len(vocabulary.tokens),)))
