"""A beam search as a tree, with what would have followed every pruned branch; and the distributions of each step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dragoman.base import DragomanError
from dragoman.data import Batch
from dragoman.data.tokenizers import EOS, SOS
from dragoman.decoding import COMPLETE, KEPT, Scorer, limits_for, suppress_tokens
from dragoman.inference import Predictor, ignore_unknown
from dragoman.inspect.views.figures import BLUE, GREEN, GREY, INK, MAX_INCHES, chosen, new_figure, one_line_labels
from dragoman.inspect.views.subject import Subject
from dragoman.inspect.views.view import View
from dragoman.models import decodes

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
    nodes = list(predictor.trace(text, on_unknown=ignore_unknown, **options))
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


def beam_view(subject: Subject) -> View | None:
    loaded = subject.loaded
    if not isinstance(loaded, Predictor) or not hasattr(subject.model, "step") or subject.source is None:
        return None
    if decodes(subject.model) == "parallel" and getattr(subject.model, "attention_decoder", None) is None:
        return None
    try:
        tree = beam_tree(loaded, subject.source.text, subject.options.beam)
    except DragomanError:  # a search without steps
        return None
    return View(
        "beam",
        "Beam search",
        "Beam search keeps the most probable beginnings of an output and continues each of them. Solid branches were "
        "kept, grey ones pruned with the reason; pick a grey one to see how the output would have gone on from there.",
        tree,
    )


NUMBERS = (  # of a branch
    {"name": "sums", "key": "score", "about": "Σ log p"},
    {"name": "scores", "key": "normalised", "about": "score"},
)


def draw_beam(view: View, layer: str | None) -> Any:
    """The kept and finished branches as a tree, and pruned ones in grey where there are few.

    The layer "scores" shows normalised scores, by which the search ranks; "sums" shows Σ log p.
    """
    measure = chosen(NUMBERS, layer)
    nodes = {node["number"]: node for node in view.data["nodes"]}
    shown = [node for node in nodes.values() if len(nodes) <= 120 or node["fate"] in ("kept", "complete")]
    children: dict[int, list[int]] = {}
    for node in sorted(shown, key=lambda node: -node["score"]):
        children.setdefault(node["parent"], []).append(node["number"])
    lines: dict[int, float] = {}
    free = 0
    stack: list[tuple[int, bool]] = [(0, False)]
    while stack:
        number, ready = stack.pop()
        own = children.get(number, [])
        if own and not ready:
            stack.append((number, True))
            stack += [(child, False) for child in reversed(own)]
        elif own:
            lines[number] = lines[own[0]]
        else:
            lines[number], free = float(free), free + 1
    steps = max((node["step"] for node in shown), default=1)
    drawing = new_figure(min(MAX_INCHES, max(5.0, 1.5 + 0.95 * steps)), min(MAX_INCHES, 0.8 + 0.24 * free))
    axes = drawing.subplots()
    for node in shown:
        kept = node["fate"] in ("kept", "complete")
        parent = nodes.get(node["parent"])
        begin = (0, lines[0]) if parent is None else (parent["step"] + 0.42, lines[parent["number"]])
        colour = GREEN if node["fate"] == "complete" else BLUE if kept else GREY
        axes.plot((begin[0], node["step"] - 0.42), (begin[1], lines[node["number"]]), color=colour, lw=1)
        text = f"{one_line_labels([node['piece']])[0][:8]} {node[measure['key']]:.2f}"
        box = {"boxstyle": "round,pad=0.15", "fc": "white", "ec": colour, "lw": 0.8}
        ink = INK if kept else "#7b8794"
        axes.text(node["step"], lines[node["number"]], text, ha="center", va="center", fontsize=7, color=ink, bbox=box)
    axes.set_xlim(-0.2, steps + 0.7)
    axes.set_ylim(free, -1)
    axes.set_yticks([])
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_xlabel(f"step; each box: token and {measure['about']} (green: finished, grey: pruned)", fontsize=9)
    axes.spines[["top", "right", "left"]].set_visible(False)
    return drawing
