"""The position vectors of a model as a picture, with the dot product of positions by their distance."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dragoman.layers.positions import Learned, Sinusoidal, sinusoids
from dragoman.layers.relative_positions import Relative, RelativeBias, RelativePositions


@dataclass(frozen=True)
class PositionPicture:
    """The positions of one part of a model."""

    name: str
    kind: str
    vectors: Tensor | None  # (positions, D) that are added to the embeddings
    dots: Tensor | None  # (positions,) p_0 … of the middle position with every position, as a share of its own square
    bias: Tensor | None  # (H, 2·positions − 1) added to the score of a key at distance −(P−1) … P−1


@torch.no_grad()
def position_pictures(model: nn.Module, positions: int = 64) -> list[PositionPicture]:
    """Every module of a model that encodes positions; rotary ones as the factor that a score keeps by distance."""
    pictures = []
    for name, module in model.named_modules():
        if isinstance(module, Sinusoidal):
            pictures.append(
                _absolute(name, "sinusoidal", sinusoids(positions, module.width, module.layout, torch.float32))
            )
        elif isinstance(module, Learned):
            pictures.append(_absolute(name, "learned", module.table[:positions].detach().float().cpu()))
        elif isinstance(module, RelativePositions) and type(module) is not RelativePositions:
            pictures.append(_relative(name, module, positions))
    return pictures


def _absolute(name: str, kind: str, vectors: Tensor) -> PositionPicture:
    middle = vectors[len(vectors) // 2]
    return PositionPicture(name, kind, vectors, vectors @ middle / (middle @ middle).clamp(min=1e-12), None)


def _relative(name: str, module: RelativePositions, positions: int) -> PositionPicture:
    """The bias of a query of ones for every distance, or the dot product of equal vectors that are rotated apart."""
    kind = type(module).__name__
    heads = module.table.shape[1] if isinstance(module, RelativeBias) else 1
    depth = module.table.shape[1] if isinstance(module, Relative) else 64
    device = next((parameter.device for parameter in module.parameters()), torch.device("cpu"))
    query = torch.ones(1, heads, 1, depth, device=device) * depth**-0.5
    distances = torch.arange(-positions + 1, positions, device=device)
    bias = module.bias(query, distances[None], 1.0)
    if bias is not None:
        return PositionPicture(name, kind, None, None, bias.reshape(-1, len(distances)).float().cpu())
    at = torch.arange(positions, device=device)
    rotated = module.rotate(query.expand(1, heads, positions, depth), at)[0, 0]  # (positions, depth)
    return PositionPicture(name, kind, rotated.float().cpu(), (rotated @ rotated[positions // 2]).float().cpu(), None)
