"""The vectors of tokens: nearest neighbours by cosine, and a projection onto two principal components."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from dragoman.data import Tokens
from dragoman.data.tokenizers import SPECIALS
from dragoman.inference import Completer
from dragoman.inspect.views.subject import Subject
from dragoman.inspect.views.view import View
from dragoman.models.layers import token_tables

NEIGHBOURS = 8
MAX_TOKENS = 40  # of the text
OTHERS = 100  # further tokens in the projection, the first of the vocabulary


class Neighbours(NamedTuple):
    """Of one table of embeddings."""

    name: str
    tokens: list[str]  # different tokens of the text
    neighbours: list[list[str]]  # of each, nearest first
    cosines: Tensor  # (tokens, NEIGHBOURS)
    points: list[str]  # tokens of the text, their neighbours, others
    groups: list[int]  # of every point: 0 in the text, 1 a neighbour, 2 another token
    places: Tensor  # (points, 2) on the first two principal components of the whole table
    explained: float  # share of the variance that these two components have


def nearest(table: Tensor, ids: list[int], count: int = NEIGHBOURS) -> tuple[Tensor, Tensor]:
    """Cosines and ids (n, count) of the rows nearest to these; special tokens and the row itself are left out."""
    unit = table / table.norm(dim=1, keepdim=True).clamp(min=1e-12)
    cosines = unit[ids] @ unit.T
    cosines[:, : len(SPECIALS)] = -torch.inf
    cosines[range(len(ids)), ids] = -torch.inf
    found = cosines.topk(max(1, min(count, len(table) - len(SPECIALS) - 1)), 1)
    return found.values, found.indices


def principal_components(table: Tensor) -> tuple[Tensor, float]:
    """The first two principal components (D, 2) of the rows, and the share of the variance that they have."""
    centred = table.double() - table.double().mean(0)
    values, vectors = torch.linalg.eigh(centred.T @ centred)
    first = vectors[:, -2:].flip(1)
    first = first * torch.where(first.abs().max(0).values == first.max(0).values, 1.0, -1.0)  # a sign that stays
    return first.float(), float(values[-2:].sum() / values.sum().clamp(min=1e-30))


@torch.no_grad()
def neighbours(subject: Subject) -> list[Neighbours]:
    """Of every table of embeddings that reads the source or the target; a shared table counts once."""
    loaded: Any = subject.loaded
    found: list[Neighbours] = []
    for name, sides, weight in token_tables(subject.model):
        if weight.shape[1] < 2:
            continue
        reads_source = "source" in sides and subject.source is not None
        row = subject.batch.source.data if reads_source else subject.batch.target
        if (reads_source and not isinstance(subject.batch.source, Tokens)) or row.dim() != 2:
            continue
        if isinstance(loaded, Completer):
            tokenizer = loaded.tokenizer
        else:
            tokenizer = loaded.source_tokenizer if reads_source else loaded.target_tokenizer
        table = weight.detach().float().cpu()[: len(tokenizer)]
        ids = [token for token in dict.fromkeys(row[0].tolist()) if len(SPECIALS) <= token < len(table)][:MAX_TOKENS]
        if not ids or len(table) < len(SPECIALS) + 3:
            continue
        cosines, near = nearest(table, ids)
        plane, explained = principal_components(table[len(SPECIALS) :])
        around = [token for token in dict.fromkeys(near.flatten().tolist()) if token not in ids]
        more = [token for token in range(len(SPECIALS), len(table)) if token not in {*ids, *around}][:OTHERS]
        shown = [*ids, *around, *more]
        groups = [0] * len(ids) + [1] * len(around) + [2] * len(more)
        centre = table[len(SPECIALS) :].mean(0)
        found.append(
            Neighbours(
                name, tokenizer.pieces(ids), [tokenizer.pieces(line) for line in near.tolist()], cosines,
                tokenizer.pieces(shown), groups, (table[shown] - centre) @ plane, explained,
            )
        )  # fmt: skip
    return found


def embeddings_view(subject: Subject) -> View | None:
    """The vectors of the text's tokens among those of the vocabulary."""
    if not (tables := neighbours(subject)):
        return None
    return View(
        "embeddings",
        "Embeddings",
        "Tokens that a model uses alike have vectors that point the same way: the bars are the cosines of the nearest "
        "ones. The picture shows the vectors on their first two principal components, which keep only a part of the "
        "distances.",
        {"tables": [table._asdict() for table in tables]},
    )
