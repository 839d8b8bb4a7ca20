"""Where did a model learn this? The decoder states of the training data that are nearest to those of an output.

The state before a token decides what is written next. Khandelwal et al. 2021 translate with such neighbours; here they
show which training pairs brought the model into the same state.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dragoman.base import DataError
from dragoman.data import Batch
from dragoman.data.tokenizers import PAD
from dragoman.inference import Predictor, training_texts
from dragoman.inspect.options import TRAINING_PAIRS
from dragoman.inspect.views.subject import Subject
from dragoman.inspect.views.view import View

NEAREST = 8
BATCH = 32


class StateNeighbour(NamedTuple):
    """A place in a training pair whose decoder state is near."""

    distance: float  # Euclidean, as a share of the mean distance between this output's states and all others
    token: str  # what the training target has there
    source: str
    before: str  # the tokens of the target before and after it, as text
    after: str


class StateNeighbours(NamedTuple):
    """Nearest first, for every output token."""

    pairs: int
    states: int
    neighbours: list[list[StateNeighbour]]


def has_states(subject: Subject) -> bool:
    """Whether the run writes text from text, by a decoder that gives hidden vectors."""
    decoder = getattr(subject.model, "decoder", None)
    loaded = subject.loaded
    return (
        isinstance(loaded, Predictor)
        and not loaded.reads_files
        and hasattr(decoder, "start")
        and not getattr(decoder, "own_likelihood", True)
    )


@torch.no_grad()
def decoder_states(model: Any, batch: Batch) -> Tensor:
    """The decoder's vector (B, T, D) before every target token."""
    seen: list[Tensor] = []
    hook = model.decoder.register_forward_hook(lambda module, inputs, output: seen.append(output[0]))
    try:
        model.score(batch)
    finally:
        hook.remove()
    return torch.cat(seen, 1)[:, -batch.target.shape[1] :]  # without those of a prompt


def state_neighbours(subject: Subject, pairs: int = TRAINING_PAIRS, nearest: int = NEAREST) -> StateNeighbours:
    """The nearest states for every token of the target, over a sample of the training pairs in their own order."""
    loaded: Any = subject.loaded
    if not has_states(subject):
        raise DataError("training pairs near a decoder state: found a run without a decoder of texts, expected one")
    texts = training_texts(loaded.run)
    if texts is None:
        raise DataError(f"the training data of {loaded.run.folder} cannot be read: no training pair can be shown")
    step = max(1, -(-len(texts.sources) // pairs))
    sources, targets = texts.sources[::step], texts.targets[::step]
    queries = decoder_states(subject.model, subject.batch)[0]
    best = torch.full((len(queries), nearest), torch.inf)
    places = torch.full((len(queries), nearest, 2), -1)  # pair and position
    total, count = torch.zeros(len(queries), dtype=torch.float64), 0
    for first, rows, states in state_batches(loaded, subject.model, sources, targets):
        distances = torch.cdist(queries.float(), states.float()).cpu()  # (T, n)
        total += distances.double().sum(1)
        count += len(states)
        merged = torch.cat([best, distances], 1)
        there = torch.cat([places, (rows + torch.tensor([first, 0])).expand(len(queries), -1, -1)], 1)
        best, order = merged.topk(nearest, 1, largest=False)
        places = there.gather(1, order[:, :, None].expand(-1, -1, 2))
    scale = (total / max(1, count)).clamp(min=1e-12)
    found = [
        [
            _neighbour(loaded, float(distance / mean), sources[pair], targets[pair], place)
            for distance, (pair, place) in zip(row, where, strict=True)
            if pair >= 0
        ]
        for row, where, mean in zip(best.tolist(), places.tolist(), scale.tolist(), strict=True)
    ]
    return StateNeighbours(len(sources), count, found)


def state_batches(
    loaded: Any, model: Any, sources: Sequence[str], targets: Sequence[str]
) -> Iterator[tuple[int, Tensor, Tensor]]:
    """The first pair of each batch, row and position (n, 2) of every real target token, and its state (n, D)."""
    for first in range(0, len(sources), BATCH):
        rows = loaded.codec.encode_pairs(sources[first : first + BATCH], targets[first : first + BATCH])
        batch = loaded.collator.collate(*rows).to(loaded.device)
        real = batch.target != PAD
        yield first, real.nonzero().cpu(), decoder_states(model, batch)[real]


def _neighbour(loaded: Any, distance: float, source: str, target: str, place: int) -> StateNeighbour:
    tokenizer = loaded.codec.target_of(source)
    ids = loaded.codec.encode_pairs([source], [target])[1][0]
    token = tokenizer.pieces([ids[place]])[0] if place < len(ids) else "<eos>"
    return StateNeighbour(
        distance, token, source, tokenizer.decode(ids[:place]).strip(), tokenizer.decode(ids[place + 1 :]).strip()
    )


def neighbour_lines(subject: Subject, found: StateNeighbours, row: str) -> list[str]:
    """The neighbours of one output token as text; `row` is its number from 1, or the token."""
    tokens = subject.target.tokens
    if row in tokens and not row.isdigit():
        place = tokens.index(row)
    elif row.isdigit() and 1 <= int(row) <= len(tokens):
        place = int(row) - 1
    else:
        raise DataError(f"--state: found {row!r}, expected 1 to {len(tokens)}, or one of {' '.join(tokens)}")
    own = tokens[place]
    same = sum(one.token == own for one in found.neighbours[place])
    lines = [
        f"before {own!r} (token {place + 1} of {len(tokens)}): the nearest of {found.states:,} decoder states in "
        f"{found.pairs:,} training pairs; {same} of {len(found.neighbours[place])} write the same token",
        "distance  training target, with [the token written there]; below it the source",
    ]
    for one in found.neighbours[place]:
        lines += [f"{one.distance:8.3f}  {f'{one.before} [{one.token}] {one.after}'.strip()}", f"{'':10}{one.source}"]
    return lines


def training_view(subject: Subject) -> View:
    """The training pairs whose decoder states are nearest to those of the output; DataError where there are none."""
    found = state_neighbours(subject, subject.options.training_pairs or TRAINING_PAIRS)
    return View(
        "training",
        "Training pairs",
        "Where did it learn this? The decoder's state before a token decides what it writes. These places of the "
        "training data had the nearest states; a distance of 1 is the mean one.",
        {
            "target": subject.target.as_dict(),
            "pairs": found.pairs,
            "states": found.states,
            "neighbours": [[one._asdict() for one in row] for row in found.neighbours],
        },
    )
