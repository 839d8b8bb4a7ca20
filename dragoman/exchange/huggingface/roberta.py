"""RoBERTa (Liu et al. 2019): BERT with byte-level BPE, positions from 2 on and no next-sentence prediction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from dragoman.errors import DataError
from dragoman.exchange.huggingface.bert import (
    blocks,
    encoder_settings,
    head_names,
    masked_settings,
    output_bias,
    tables,
)
from dragoman.exchange.huggingface.checkpoint import Checkpoint
from dragoman.exchange.huggingface.family import Imported, Vocabulary, read_names
from dragoman.exchange.huggingface.tokenizer_files import byte_pieces, token_id

FIRST_POSITION = 2  # their padding has position 1
HEAD = {"transform": "lm_head.dense", "transform_norm": "lm_head.layer_norm"}


class Roberta:
    """Our <sos> is <s>, our <eos> is </s>, which is there twice between two texts."""

    def read(self, checkpoint: Checkpoint, options: Mapping[str, str]) -> Imported:
        tokens, make = byte_pieces(checkpoint, checkpoint.vocabulary("roberta.embeddings.word_embeddings.weight"))
        ids = [token_id(tokens, name, checkpoint.folder) for name in ("<pad>", "<unk>", "<s>", "</s>", "<mask>")]
        vocabulary = Vocabulary(tokens, *ids[:4])
        tokenizer = make(vocabulary.names)
        encoder = replace(encoder_settings(checkpoint, FIRST_POSITION), separators=2)
        if encoder.activation != "gelu":
            raise DataError(f"{checkpoint.folder}: hidden_act: found {encoder.activation!r}, expected 'gelu'")
        weights = read_names(checkpoint, blocks("roberta", encoder.layers) | head_names(HEAD))
        weights |= tables(checkpoint, "roberta", vocabulary, ids[4], encoder)
        weights["output.bias"] = output_bias(checkpoint, vocabulary, "lm_head", "lm_head.decoder.weight")
        config = masked_settings(checkpoint, tokenizer.config, encoder, next_sentence=False)
        return Imported(config, tokenizer, tokenizer, weights)
