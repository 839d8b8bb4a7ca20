"""A beam search as a tree, with what would have followed every pruned branch; and the distributions of each step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dragoman.analysis.subject import Subject, mask_distributions
from dragoman.data.batch import Batch
from dragoman.data.tokenizers.base import EOS, SOS
from dragoman.decoding.hypothesis import suppress_tokens
from dragoman.decoding.scorer import Scorer
from dragoman.decoding.search import limits_for
from dragoman.decoding.trace import COMPLETE, KEPT
from dragoman.inference.labeler import MaskFiller
from dragoman.inference.predictor import Predictor
from dragoman.inference.unseen import told_elsewhere

MAX_CONTINUED = 400  # pruned nodes with a continuation in a file


@dataclass(frozen=True)
class GreedyContinuation:
    """The greedy continuation of a prefix."""

    tokens: tuple[int, ...]  # after the prefix, with <eos>
    token_scores: tuple[float, ...]
    total: float  # Σ log p of prefix and continuation
    score: float  # normalised as the search does
    text: str


def prefix_of(nodes: Sequence[dict[str, Any]], number: int) -> list[int]:
    """The tokens from the start to a node."""
    tokens: list[int] = []
    while number:
        node = nodes[number - 1]
        tokens.append(node["token"])
        number = node["parent"]
    return tokens[::-1]


def beam_tree(predictor: Predictor, text: str, beam: int | None) -> dict[str, Any]:
    """The nodes of a search (see decoding/trace.py), and greedy continuations of the most probable pruned ones."""
    options: dict[str, Any] = {} if beam is None else {"beam": beam}
    nodes = list(predictor.trace(text, on_unknown=told_elsewhere, **options))
    pruned = [node for node in nodes if node["fate"] not in (KEPT, COMPLETE) and node["token"] != EOS]
    pruned = sorted(pruned, key=lambda node: -node["score"])[:MAX_CONTINUED]
    prefixes = [prefix_of(nodes, node["number"]) for node in pruned]
    continuations = continue_prefixes(predictor, text, prefixes)
    pieces = predictor.codec.target_of(text).pieces
    shown = [
        {"pieces": pieces(each.tokens), "text": each.text, "total": each.total, "score": each.score}
        for each in continuations
    ]
    numbers = [node["number"] for node in pruned]
    beam = beam or predictor.search.beam
    return {"beam": beam, "nodes": nodes, "continuations": dict(zip(numbers, shown, strict=True))}


@torch.no_grad()
def continue_prefixes(predictor: Predictor, text: str, prefixes: Sequence[Sequence[int]]) -> list[GreedyContinuation]:
    """The greedy continuation of each prefix (token ids) of an output for a text."""
    batch = predictor.collator.collate(predictor.codec.encode_sources([text])).to(predictor.device)
    config = predictor.search
    limit = int(limits_for(batch, config, predictor.length_ratio)[0])
    if predictor.model.max_positions is not None:
        limit = min(limit, predictor.model.max_positions)
    scorer = Scorer.from_config(config)
    out: list[GreedyContinuation | None] = [None] * len(prefixes)
    by_length: dict[int, list[int]] = defaultdict(list)
    for index, prefix in enumerate(prefixes):
        by_length[len(prefix)].append(index)
    for length, indices in by_length.items():
        rows = torch.tensor([[SOS, *prefixes[index]] for index in indices], device=predictor.device)
        for index, (before, after) in zip(
            indices, _greedy(predictor, batch, rows, max(limit, length + 1)), strict=True
        ):
            tokens, scores = tuple(token for token, _ in after), tuple(score for _, score in after)
            hypothesis = scorer.hypothesis((*prefixes[index], *tokens), (*before, *scores))
            text_ = predictor.codec.target_of(text).decode([*prefixes[index], *tokens])
            out[index] = GreedyContinuation(tokens, scores, hypothesis.score, hypothesis.normalised, text_)
    return [continuation for continuation in out if continuation is not None]


def _greedy(
    predictor: Predictor, batch: Batch, rows: Tensor, limit: int
) -> list[tuple[list[float], list[tuple[int, float]]]]:
    """(scores of the prefix, continuation) of every row; rows (N, 1 + P) begin with <sos>."""
    model = predictor.model
    state = model.start(batch).expand(len(rows))
    read, state = model.read(rows, state)  # (N, 1 + P, V)
    before = read[:, :-1].gather(2, rows[:, 1:, None])[:, :, 0].tolist()
    written: list[list[tuple[int, float]]] = [[] for _ in rows]
    open_ = torch.ones(len(rows), dtype=torch.bool, device=rows.device)
    log_probabilities, length = read[:, -1], rows.shape[1]
    while True:
        at_limit = torch.full_like(open_, length >= limit)
        tokens = suppress_tokens(log_probabilities.clone(), at_limit).argmax(1)
        chosen = log_probabilities.gather(1, tokens[:, None])[:, 0]
        for index in open_.nonzero()[:, 0].tolist():
            written[index].append((int(tokens[index]), float(chosen[index])))
        open_ = open_ & (tokens != EOS)
        if not bool(open_.any()):
            return list(zip(before, written, strict=True))
        log_probabilities, state = model.step(tokens.masked_fill(~open_, EOS), state)
        length += 1


@dataclass(frozen=True)
class NextTokenTable:
    """The most probable tokens at every step of a target."""

    tokens: Tensor  # (T, K) ids, most probable first
    logits: Tensor  # (T, K) log-probabilities, which are logits up to a constant
    temperatures: tuple[float, ...]
    rest: Tensor  # (T, temperatures) log Σ exp(logit / temperature) of all other tokens
    chosen: Tensor  # (T,) the target's token ids


TEMPERATURES = tuple(round(0.1 + 0.05 * index, 2) for index in range(59))  # 0.1 … 3.0


@torch.no_grad()
def next_tokens(subject: Subject, count: int = 40) -> NextTokenTable | None:
    """The distribution of every step, teacher-forced with the target, or of every [MASK]; None: there are none.

    `rest` makes every probability after a change of temperature exact although only the top tokens are kept.
    """
    model, batch = subject.model, subject.batch
    if isinstance(subject.loaded, MaskFiller):
        log_probabilities = mask_distributions(model, batch)[0].float().cpu()  # (masks, V)
    elif not hasattr(model, "read") or not hasattr(model, "start") or batch.target.dim() != 2:
        return None
    else:
        inputs = torch.cat([batch.target.new_full((1, 1), SOS), batch.target[:, :-1]], 1)
        try:
            log_probabilities = model.read(inputs, model.start(batch))[0][0].float().cpu()  # (T, V)
        except AssertionError:  # CTC alone has no steps
            return None
    possible = int((log_probabilities > -torch.inf).sum(1).min())
    top, tokens = log_probabilities.topk(min(count, possible), 1)
    others = log_probabilities.scatter(1, tokens, -torch.inf)
    rest = torch.stack([(others / temperature).logsumexp(1) for temperature in TEMPERATURES], 1)
    return NextTokenTable(tokens, top, TEMPERATURES, rest, batch.target[0].cpu())
