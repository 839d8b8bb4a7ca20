"""Recurrent encoders, from Sutskever et al. 2014 (reversed source) to GNMT's residual stack (Wu et al. 2016)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from torch import Tensor, nn

from dragoman.base.config import Depth, Range, Share, Size, SizeOrNone, setting
from dragoman.models.contracts import Encoder, Memory
from dragoman.models.kernels.cpu_dropout import Dropout
from dragoman.models.layers.cells import CellConfig, LSTMConfig
from dragoman.models.layers.embeddings import Embedding
from dragoman.models.layers.rnn import Bidirectional, RecurrentLayer, Unidirectional, VariationalDropout
from dragoman.models.traits import CellLayout


@dataclass(frozen=True)
class RecurrentEncoderConfig:
    """A stack of recurrent layers, in one or both directions."""

    kind: ClassVar[str] = "recurrent"
    cell: CellConfig = setting(LSTMConfig(), help="recurrent cell")
    layers: Depth = setting(1, help="number of layers")
    embedding: SizeOrNone = setting(256, help="size of the source embeddings; 0: one-hot vectors without weights")
    width: Size = setting(512, help="size of the layers and of the memory; both directions together")
    widths: tuple[Size, ...] = setting((), help="size of each layer; the last must be width; empty: width for all")
    direction: Literal["both", "forward", "backward", "first-both"] = setting(
        "both",
        help="both: bidirectional layers; forward; backward: the source is reversed; "
        "first-both: only the first layer is bidirectional (GNMT)",
    )
    merge: Literal["concatenate", "mean", "projection"] = setting(
        "concatenate", help="how a bidirectional layer merges its directions; concatenate: each has half the width"
    )
    residual_from: Annotated[int, Range(0, None)] = setting(
        0, help="first layer with a residual connection, where sizes match, counted from 1; 0: none (GNMT: 3)"
    )
    dropout: Share = setting(0.2, help="dropout on embeddings and between layers")
    variational: bool = setting(False, help="one dropout mask for all steps of a row (Gal and Ghahramani 2016)")
    norm: bool = setting(False, help="layer norm on the output of every layer")

    @property
    def sizes(self) -> tuple[int, ...]:
        return self.widths or (self.width,) * self.layers

    @property
    def num_bidirectional(self) -> int:
        """How many layers, from the bottom, are bidirectional."""
        return {"both": self.layers, "first-both": 1}.get(self.direction, 0)

    def problems(self) -> Iterator[str]:
        if self.widths and len(self.widths) != self.layers:
            yield f"widths: found {len(self.widths)}, expected one for each of {self.layers} layers"
        elif self.widths and self.widths[-1] != self.width:
            yield f"width: found {self.width}, expected {self.widths[-1]}, the last of the widths"
        elif self.merge == "concatenate":
            odd = [size for size in self.sizes[: self.num_bidirectional] if size % 2]
            if odd:
                name = "widths" if self.widths else "width"
                yield f"{name}: found {odd[0]}, expected an even number (two directions)"
        if self.residual_from > self.layers:
            yield f"residual_from: found {self.residual_from}, expected at most {self.layers}, the number of layers"


class RecurrentEncoder(Encoder):
    """A stack of recurrent layers; the final states are each layer's output after its last token.

    Final states all have the size of the memory: with `widths`, narrower or wider layers have none.
    """

    def __init__(self, config: RecurrentEncoderConfig, embedding: Embedding) -> None:
        super().__init__()
        self.width = config.width
        self.embedding = embedding
        self.keeps_states = False
        self.dropout = VariationalDropout(config.dropout) if config.variational else Dropout(config.dropout)
        self.layers = nn.ModuleList(self._layer(config, number) for number in range(config.layers))

    def _layer(self, config: RecurrentEncoderConfig, number: int) -> RecurrentLayer:
        inputs, width = (self.embedding.width, *config.sizes)[number : number + 2]
        residual = 0 < config.residual_from <= number + 1 and inputs == width
        if number < config.num_bidirectional:
            return Bidirectional(config.cell, inputs, width, config.merge, self.dropout, residual, config.norm)
        backward = config.direction == "backward"
        return Unidirectional(config.cell, inputs, width, backward, self.dropout, residual, config.norm)

    def forward(self, source: Tensor, mask: Tensor) -> Memory:
        x = self.embedding(source)
        last = []
        for layer in self.layers:
            x, state = layer(x, mask)
            last.append(state)
        final = tuple(state[0] for state in last if state[0].shape[1] == self.width)
        return Memory(keys=x, values=x, mask=mask, final=final, states=tuple(last) if self.keeps_states else ())

    @classmethod
    def cell_layout(cls, config: RecurrentEncoderConfig) -> CellLayout | None:
        if config.direction not in ("forward", "backward") or config.widths:
            return None
        return CellLayout(config.cell, config.layers, config.width, config.embedding, config.residual_from, config.norm)

    def cells(self) -> nn.ModuleList:
        return nn.ModuleList(layer.cell for layer in self._unidirectional_layers())

    def keep_states(self) -> None:
        self.keeps_states = True
        for layer in self._unidirectional_layers():
            layer.whole_state = True

    def _unidirectional_layers(self) -> list[Unidirectional]:
        layers = [layer for layer in self.layers if isinstance(layer, Unidirectional)]
        assert len(layers) == len(self.layers)
        return layers
