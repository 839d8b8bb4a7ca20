"""Recurrent encoders (FIELD B6–B8): from Sutskever's reversed source to GNMT's residual stack, by settings alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from torch import Tensor, nn

from dragoman.config.settings import Range, Share, Size, SizeOrNone, setting
from dragoman.layers.cells import CellConfig, LSTMConfig
from dragoman.layers.dropout import Dropout
from dragoman.layers.embeddings import Embedding
from dragoman.layers.rnn import Bidirectional, RecurrentLayer, Unidirectional, VariationalDropout
from dragoman.models.contracts import Memory


@dataclass(frozen=True)
class RecurrentEncoderConfig:
    """A stack of recurrent layers over the source."""

    kind: ClassVar[str] = "recurrent"
    cell: CellConfig = setting(LSTMConfig(), help="recurrent cell")
    layers: Size = setting(1, help="layers in the stack")
    embedding: SizeOrNone = setting(256, help="size of the source embeddings; 0: one-hot vectors, nothing to learn")
    width: Size = setting(512, help="size of the layers and of the memory: both directions together")
    widths: tuple[Size, ...] = setting((), help="size of each layer, the last being the width; empty: all the width")
    direction: Literal["both", "forward", "backward", "first-both"] = setting(
        "both",
        help="how layers read: both ways; forward; backward (source reversal); "
        "first-both: the first both ways, the others forward (GNMT)",
    )
    merge: Literal["concatenate", "mean", "projection"] = setting(
        "concatenate", help="two directions into one: side by side, each half the width; or the mean or a map of both"
    )
    residual_from: Annotated[int, Range(0, None)] = setting(
        0, help="first layer that adds its input to its output, where sizes fit; 0: none (GNMT: 3)"
    )
    dropout: Share = setting(0.2, help="on embeddings and between layers")
    variational: bool = setting(False, help="one dropout mask for all steps of a row")
    norm: bool = setting(False, help="layer norm on the outputs of every layer")

    @property
    def sizes(self) -> tuple[int, ...]:
        """The width of each layer."""
        return self.widths or (self.width,) * self.layers

    @property
    def two_ways(self) -> int:
        """How many layers, from the bottom, read both ways."""
        return {"both": self.layers, "first-both": 1}.get(self.direction, 0)

    def problems(self) -> Iterator[str]:
        """What the fields cannot say one by one."""
        if self.widths and len(self.widths) != self.layers:
            yield f"widths: found {len(self.widths)}, expected one for each of {self.layers} layers"
        elif self.widths and self.widths[-1] != self.width:
            yield f"width: found {self.width}, expected {self.widths[-1]}, the last of the widths"
        elif self.merge == "concatenate":
            odd = [size for size in self.sizes[: self.two_ways] if size % 2]
            if odd:
                place = "widths" if self.widths else "width"
                yield f"{place}: found {odd[0]}, expected an even number (two directions)"
        if self.residual_from > self.layers:
            yield f"residual_from: found {self.residual_from}, expected at most {self.layers}, the number of layers"


class RecurrentEncoder(nn.Module):
    """Tokens to memory; its finals are what each layer's cells gave after their last token.

    Only layers as wide as the memory leave a final, so that all of them have its size: every layer unless `widths`
    says otherwise, and always the top one.
    """

    def __init__(self, config: RecurrentEncoderConfig, embedding: Embedding) -> None:
        super().__init__()
        self.width = config.width
        self.embedding = embedding
        self.whole_states = False
        self.dropout = VariationalDropout(config.dropout) if config.variational else Dropout(config.dropout)
        self.layers = nn.ModuleList(self._layer(config, number) for number in range(config.layers))

    def _layer(self, config: RecurrentEncoderConfig, number: int) -> RecurrentLayer:
        inputs, width = (self.embedding.width, *config.sizes)[number : number + 2]
        residual = 0 < config.residual_from <= number + 1 and inputs == width
        if number < config.two_ways:
            return Bidirectional(config.cell, inputs, width, config.merge, self.dropout, residual, config.norm)
        backward = config.direction == "backward"
        return Unidirectional(config.cell, inputs, width, backward, self.dropout, residual, config.norm)

    def forward(self, source: Tensor, mask: Tensor) -> Memory:
        """source (B, S), mask (B, S)."""
        x = self.embedding(source)
        last = []
        for layer in self.layers:
            x, state = layer(x, mask)
            last.append(state)
        final = tuple(state[0] for state in last if state[0].shape[1] == self.width)
        return Memory(keys=x, values=x, mask=mask, final=final, states=tuple(last) if self.whole_states else ())

    def cells(self) -> nn.ModuleList:
        """The cells of layers that read one way, from bottom to top."""
        return nn.ModuleList(layer.cell for layer in self._one_way())

    def keep_states(self) -> None:
        """Leave the cells' whole last states in the memory, for a decoder that goes on from them."""
        self.whole_states = True
        for layer in self._one_way():
            layer.whole_state = True

    def _one_way(self) -> list[Unidirectional]:
        layers = [layer for layer in self.layers if isinstance(layer, Unidirectional)]
        assert len(layers) == len(self.layers)
        return layers
