"""BERT (Devlin et al. 2019): a masked language model, to fill [MASK] and to start classify and tag from."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from dragoman.data.config import DataConfig, TokenizersConfig
from dragoman.data.tokenizers.load import ImportedConfig
from dragoman.data.tokenizers.word_piece import WordPieceTokenizer
from dragoman.errors import DataError
from dragoman.exchange.huggingface.checkpoint import Checkpoint
from dragoman.exchange.huggingface.family import Imported, Names, Vocabulary, linear, read_names
from dragoman.exchange.huggingface.marian import activation
from dragoman.exchange.huggingface.tokenizer_files import token_id, word_pieces
from dragoman.models.encoders.bert import BertEncoderConfig
from dragoman.models.masked_lm import MaskedLMConfig
from dragoman.tasks.masked_language_model import MaskedLanguageModelTaskConfig

HEAD = {"transform": "cls.predictions.transform.dense", "transform_norm": "cls.predictions.transform.LayerNorm"}
NEXT = {"pooler": "bert.pooler.dense", "next_sentence": "cls.seq_relationship"}


class Bert:
    """Our <sos> is [CLS], our <eos> is [SEP]. Our [MASK] has a vector of its own, a copy of its row of the table."""

    def read(self, checkpoint: Checkpoint, options: Mapping[str, str]) -> Imported:
        """With the next-sentence head where the folder has it."""
        size = checkpoint.vocabulary("bert.embeddings.word_embeddings.weight")
        tokens, make = word_pieces(checkpoint, size)
        ids = [token_id(tokens, f"[{name}]", checkpoint.folder) for name in ("PAD", "UNK", "CLS", "SEP", "MASK")]
        vocabulary = Vocabulary(tokens, *ids[:4])
        tokenizer: WordPieceTokenizer = make(vocabulary.names)
        following = all(f"{name}.weight" in checkpoint.names() for name in NEXT.values())
        encoder = encoder_settings(checkpoint, first_position=0)
        names = blocks("bert", encoder.layers) | head_names(HEAD | (NEXT if following else {}))
        weights = read_names(checkpoint, names)
        if following:  # their label 0 means that the second text follows, ours is 1
            weights |= {
                f"next_sentence.{part}": weights[f"next_sentence.{part}"].flip(0) for part in ("weight", "bias")
            }
        weights |= tables(checkpoint, "bert", vocabulary, ids[4], encoder)
        decoder = "cls.predictions.decoder.weight"
        weights["output.bias"] = output_bias(checkpoint, vocabulary, "cls.predictions", decoder)
        config = masked_settings(checkpoint, tokenizer.config, encoder, following)
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
        dropout=float(checkpoint.setting("hidden_dropout_prob", (float, int), 0.1)),
        attention_dropout=float(checkpoint.setting("attention_probs_dropout_prob", (float, int), 0.1)),
        activation=activation(checkpoint, "hidden_act"),
        max_positions=max(1, checkpoint.size("max_position_embeddings") - first_position - 1),  # without [CLS]
        segments=checkpoint.size("type_vocab_size"),
        norm_epsilon=float(checkpoint.setting("layer_norm_eps", float, 1e-12)),
    )


def blocks(prefix: str, layers: int) -> Names:
    """The blocks of BERT and RoBERTa."""
    names = linear("encoder.embedding_norm", f"{prefix}.embeddings.LayerNorm")
    for layer in range(layers):
        ours, theirs = f"encoder.blocks.{layer}", f"{prefix}.encoder.layer.{layer}"
        parts = (f"{theirs}.attention.self.{part}" for part in ("query", "key", "value"))
        names |= linear(f"{ours}.attention.project", *parts)
        names |= linear(f"{ours}.attention.output", f"{theirs}.attention.output.dense")
        names |= linear(f"{ours}.attention_norm", f"{theirs}.attention.output.LayerNorm")
        names |= linear(f"{ours}.feedforward.widen", f"{theirs}.intermediate.dense")
        names |= linear(f"{ours}.feedforward.narrow", f"{theirs}.output.dense")
        names |= linear(f"{ours}.feedforward_norm", f"{theirs}.output.LayerNorm")
    return names


def head_names(layers: Mapping[str, str]) -> Names:
    return {name: theirs for ours, one in layers.items() for name, theirs in linear(ours, one).items()}


def tables(
    checkpoint: Checkpoint, prefix: str, vocabulary: Vocabulary, mask: int, encoder: BertEncoderConfig
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


def output_bias(checkpoint: Checkpoint, vocabulary: Vocabulary, head: str, decoder: str) -> Tensor:
    """The bias of the output layer, whose matrix must be the table of token embeddings."""
    if decoder in checkpoint.names():
        prefix = "bert" if head.startswith("cls") else "roberta"
        table = checkpoint.tensor(f"{prefix}.embeddings.word_embeddings.weight")
        if not torch.equal(checkpoint.tensor(decoder), table):
            raise DataError(f"{checkpoint.folder}: found an output layer of its own, expected the table of embeddings")
    return vocabulary.table(checkpoint.tensor(f"{head}.bias", (len(vocabulary.tokens),)))
