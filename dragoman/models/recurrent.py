"""The attentional recurrent decoder (FIELD C3): Bahdanau, Cho and Bengio 2015, section 3 and appendix A."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor, nn

from dragoman.layers.attention import AdditiveAttention
from dragoman.layers.blocks import TokenEmbedding
from dragoman.layers.cells import GRUConfig, LSTMConfig, build_cell
from dragoman.models.core import Memory, State
from dragoman.settings import Range, setting

Share = Annotated[float, Range(0.0, 1.0, exclusive_maximum=True)]
Size = Annotated[int, Range(1, None)]


@dataclass(frozen=True)
class RecurrentDecoderConfig:
    """Recurrent layers; the bottom one attends over the memory with additive attention."""

    kind: ClassVar[str] = "recurrent"
    cell: Literal["lstm", "gru"] = setting("lstm", help="recurrent cell")
    layers: Size = setting(1, help="layers in the stack")
    embedding: Size = setting(256, help="size of the target embeddings and of the output vectors")
    width: Size = setting(512, help="size of the recurrent state")
    attention: Size = setting(512, help="inner size of the additive attention")
    dropout: Share = setting(0.2, help="on embeddings, between layers and before the output")


class RecurrentDecoder(nn.Module):
    """s_i = f(s_{i−1}, y_{i−1}, c_i) with c_i attended by s_{i−1}; readout from s_i, y_{i−1} and c_i."""

    maximum = None

    def __init__(self, config: RecurrentDecoderConfig, embedding: TokenEmbedding, memory_width: int) -> None:
        super().__init__()
        self.width = config.embedding  # of what it gives to the output layer
        self.embedding = embedding
        cell = LSTMConfig() if config.cell == "lstm" else GRUConfig()
        self.attention = AdditiveAttention(config.width, memory_width, config.attention)
        inputs = [config.embedding + memory_width] + [config.width] * (config.layers - 1)
        cells = [build_cell(cell, size, config.width) for size in inputs]
        self.cells = nn.ModuleList(cells)
        self.begin = nn.ModuleList(nn.Linear(memory_width, config.width * one.parts) for one in cells)
        self.readout = nn.Linear(config.width + memory_width + config.embedding, config.embedding)
        self.dropout = nn.Dropout(config.dropout)

    def start(self, memory: Memory, capacity: int | None = None) -> State:
        """fixed = (mask, projected keys, values); moving = per layer the cell's state. It needs no capacity."""
        moving = []
        for layer, begin in enumerate(self.begin):
            final = memory.final[min(layer, len(memory.final) - 1)]
            parts = torch.tanh(begin(final))  # (B, parts·D)
            moving.append(tuple(parts.chunk(self.cells[layer].parts, -1)))  # type: ignore[arg-type]
        fixed = (memory.mask, self.attention.key(memory.keys), memory.values)
        return State(fixed=fixed, moving=tuple(moving), length=0)

    def forward(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """tokens (N, T) → hidden (N, T, E)."""
        mask, keys, values = state.fixed
        embedded = self.dropout(self.embedding(tokens))  # (N, T, E)
        moving = list(state.moving)
        outputs, contexts = [], []
        for token in embedded.unbind(1):
            context = self.attention(moving[0][0], keys, values, mask)
            x = torch.cat([token, context], -1)
            for layer, cell in enumerate(self.cells):
                x, moving[layer] = cell(x if layer == 0 else self.dropout(x), moving[layer])
            outputs.append(x)
            contexts.append(context)
        seen = torch.cat([torch.stack(outputs, 1), torch.stack(contexts, 1), embedded], -1)
        hidden = self.dropout(torch.tanh(self.readout(seen)))  # (N, T, E)
        return hidden, state._replace(moving=tuple(moving), length=state.length + tokens.shape[1])
