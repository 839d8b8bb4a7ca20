"""mBART-50 (Tang et al. 2020)."""

from __future__ import annotations

from collections.abc import Mapping

from dragoman.exchange.huggingface.checkpoint import Checkpoint
from dragoman.exchange.huggingface.family import Imported
from dragoman.exchange.huggingface.m2m100 import read_multilingual
from dragoman.layers.positions import LearnedConfig

OFFSET = 2  # rows of their position table that no position uses


class MBart:
    """Like M2M-100, with learned positions and a norm after the embeddings."""

    def read(self, checkpoint: Checkpoint, options: Mapping[str, str]) -> Imported:
        """`options` need source_language and target_language."""
        count = checkpoint.size("max_position_embeddings")
        imported = read_multilingual(checkpoint, options, LearnedConfig(count), embedding_norm=True)
        width = checkpoint.size("d_model")
        for side in ("encoder", "decoder"):
            table = checkpoint.tensor(f"model.{side}.embed_positions.weight", (count + OFFSET, width))
            imported.weights[f"{side}.input.positions.table"] = table[OFFSET:]
        return imported
