"""What changes when a head, a gate or a source word is taken away, or another token is forced."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from dragoman.analysis.attention_layers import attention_layers
from dragoman.analysis.beam_tree import continue_prefixes, next_tokens
from dragoman.analysis.states import record_cells
from dragoman.analysis.subject import Subject, target_log_probabilities
from dragoman.data.tokenizers.base import EOS
from dragoman.decoding.hypothesis import SUPPRESSED_TOKENS
from dragoman.inference.predictor import Predictor
from dragoman.inference.unseen import told_elsewhere
from dragoman.layers.cells import Cell
from dragoman.models.contracts import Decoder

ALTERNATIVES = 3  # tokens that are forced at every step
SATURATED = 1e4  # a pre-activation whose sigmoid is 0 or 1
MAX_OUTPUTS = 64  # changed outputs that are searched for; more take long and are not read


@dataclass(frozen=True)
class Change:
    """One intervention and its effect on the target and on the model's own output."""

    kind: str  # "head", "gate", "word" or "token"
    name: str
    place: tuple[int, ...]  # (layer, head), (cell, block, value), (word,) or (step, token)
    score: float  # log p of the subject's target afterwards; of a forced token that of its own continuation
    difference: float  # log p afterwards − before
    tokens: tuple[float, ...]  # difference of each target token
    output: str | None  # the model's output afterwards; None: not searched for


@contextmanager
def masked_head(module: nn.Module, head: int) -> Iterator[None]:
    """Let one head of an attention module contribute nothing inside the block."""
    output, heads = getattr(module, "output", None), int(getattr(module, "heads", 1))
    if isinstance(output, nn.Module):

        def without(_: nn.Module, arguments: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            joined = arguments[0].clone()
            depth = joined.shape[-1] // heads
            joined[..., head * depth : (head + 1) * depth] = 0.0
            return (joined, *arguments[1:])

        handle: Any = output.register_forward_pre_hook(without)
    else:  # one head whose output is the context itself
        handle = module.register_forward_hook(lambda module, arguments, context: torch.zeros_like(context))
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def frozen_gate(cell: Cell, gate: str, value: int) -> Iterator[None]:
    """Hold a gate of a cell at 0 or 1 inside the block, for all its units."""
    block = cell.block_names.index(gate)
    rows = slice(block * cell.width, (block + 1) * cell.width)
    before = cell.bias.data[rows].clone()
    cell.bias.data[rows] = SATURATED if value else -SATURATED
    try:
        yield
    finally:
        cell.bias.data[rows] = before


def what_if(subject: Subject) -> list[Change]:
    """Mask every head, freeze every gate at 0 and at 1, and leave out every source word, one at a time."""
    with torch.no_grad():
        before = subject.log_probabilities()
        changes = [*_heads(subject, before), *_gates(subject, before), *_words(subject, before)]
    if isinstance(subject.loaded, Predictor):
        changes = [*_with_outputs(subject, changes), *_forced_tokens(subject, before)]
    return changes


def _forced_tokens(subject: Subject, before: Tensor) -> Iterator[Change]:
    """At every step the most probable other tokens, each forced after the target's own beginning."""
    table = next_tokens(subject, ALTERNATIVES + 1)
    loaded = subject.loaded
    if table is None or not isinstance(loaded, Predictor) or subject.source is None:
        return
    target = subject.batch.target[0].tolist()
    places: list[tuple[int, int]] = []
    for step, row in enumerate(table.tokens.tolist()):
        others = [token for token in row if token not in (target[step], *SUPPRESSED_TOKENS, EOS)]
        places += [(step, token) for token in others[:ALTERNATIVES]]
    continued = continue_prefixes(loaded, subject.source.text, [[*target[:step], token] for step, token in places])
    pieces = loaded.codec.target_of(subject.source.text).pieces
    for (step, token), one in zip(places, continued, strict=True):
        name = f"{step + 1}: {pieces([token])[0]} for {pieces([target[step]])[0]}"
        yield Change("token", name, (step, token), one.total, one.total - float(before.sum()), (), one.text)


def _change(kind: str, name: str, place: tuple[int, ...], before: Tensor, after: Tensor) -> Change:
    difference = (after - before).double().tolist()
    return Change(kind, name, place, float(after.sum()), sum(difference), tuple(difference), None)


def _heads(subject: Subject, before: Tensor) -> Iterator[Change]:
    modules = dict(subject.model.named_modules())
    for number, layer in enumerate(attention_layers(subject)):
        # The posteriors of a word aligner are no module's; a decoder that shows weights of its own has no head to mask.
        if isinstance(modules.get(layer.name), Decoder | None):
            continue
        for head in range(layer.weights.shape[0]):
            with masked_head(modules[layer.name], head):
                after = subject.log_probabilities()
            yield _change("head", f"{layer.name} head {head + 1}", (number, head), before, after)


def _cells(subject: Subject) -> list[tuple[str, Cell]]:
    with record_cells(subject.model) as recorded:
        subject.model.score(subject.batch)
    return [(name, steps.cell) for name, steps in recorded.items()]


def _gates(subject: Subject, before: Tensor) -> Iterator[Change]:
    for number, (name, cell) in enumerate(_cells(subject)):
        for block, gate in enumerate(cell.block_names):
            for value in (0, 1) if gate.endswith("gate") else ():
                with frozen_gate(cell, gate, value):
                    after = subject.log_probabilities()
                yield _change("gate", f"{name} {gate} = {value}", (number, block, value), before, after)


def without_word(subject: Subject, word: int) -> str | None:
    """The source text without one of its words; None: the axis has no such words."""
    axis = subject.source
    if axis is None or not axis.text.strip():
        return None
    if axis.unit == "letter":  # its words are the tokens
        spans = subject.loaded.source_tokenizer.spans(axis.text) if isinstance(subject.loaded, Predictor) else []
        if not 1 < len(spans) == len(axis.words) - 1:
            return None
        return axis.text[: spans[word][0]] + axis.text[spans[word][1] :]
    words = [word for word in axis.words if word != "<eos>"]
    if " ".join(words) != " ".join(axis.text.split()) or len(words) < 2:
        return None
    return " ".join(one for index, one in enumerate(words) if index != word)


def _words(subject: Subject, before: Tensor) -> Iterator[Change]:
    loaded = subject.loaded
    if not isinstance(loaded, Predictor) or loaded.reads_files:
        return
    assert subject.source is not None
    for word, name in enumerate(subject.source.words):
        text = None if name == "<eos>" else without_word(subject, word)
        if text is None or name.startswith("<2"):
            continue
        changed = loaded.collator.collate(loaded.codec.encode_sources([text])).to(loaded.device)
        batch = replace(changed, target=subject.batch.target)
        after = target_log_probabilities(subject.model, batch)[0]
        yield _change("word", name, (word,), before, after)


def _with_outputs(subject: Subject, changes: list[Change]) -> list[Change]:
    """The changes with the model's own output under each, the strongest first until there are enough."""
    loaded, modules = subject.loaded, dict(subject.model.named_modules())
    assert isinstance(loaded, Predictor)
    assert subject.source is not None
    layers, cells = attention_layers(subject), _cells(subject)
    strongest = {id(change) for change in sorted(changes, key=lambda change: change.difference)[:MAX_OUTPUTS]}
    out = []
    for change in changes:
        text = subject.source.text
        if id(change) not in strongest:
            out.append(change)
            continue
        if change.kind == "word":
            output = _greedy_text(loaded, without_word(subject, change.place[0]) or text)
        elif change.kind == "head":
            with masked_head(modules[layers[change.place[0]].name], change.place[1]):
                output = _greedy_text(loaded, text)
        else:
            _, cell = cells[change.place[0]]
            with frozen_gate(cell, cell.block_names[change.place[1]], change.place[2]):
                output = _greedy_text(loaded, text)
        out.append(replace(change, output=output))
    return out


def _greedy_text(loaded: Predictor, text: str) -> str:
    return next(loaded.stream([text], beam=1, n_best=1, engine="torch", on_unknown=told_elsewhere)).text
