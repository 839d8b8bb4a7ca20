"""What changes when a head, a gate or a source word is taken away, or another token is forced."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from dragoman.classical import FittedModel
from dragoman.data import Batch
from dragoman.data.tokenizers import EOS
from dragoman.decoding import SUPPRESSED_TOKENS
from dragoman.inference import Predictor, ignore_unknown
from dragoman.inspect.views.attention_layers import attention_layers
from dragoman.inspect.views.beam_tree import continue_prefixes
from dragoman.inspect.views.figures import bars
from dragoman.inspect.views.next_tokens import next_tokens
from dragoman.inspect.views.states import record_cells
from dragoman.inspect.views.subject import Subject
from dragoman.inspect.views.view import View
from dragoman.models import Decoder
from dragoman.models.layers import Cell

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


class Intervention(NamedTuple):
    """Something that is taken away: a part of the model inside `active()`, or a word of the source."""

    kind: str
    name: str
    place: tuple[int, ...]
    active: Callable[[], AbstractContextManager[None]]
    text: str | None = None  # the source without the word


def what_if(subject: Subject) -> list[Change]:
    """Mask every head, freeze every gate at 0 and at 1, and leave out every source word, one at a time."""
    loaded, changes, tried = subject.loaded, list[Change](), list[Intervention]()
    with torch.no_grad():
        before = subject.log_probabilities()
        for intervention in _interventions(subject):
            with intervention.active():
                after = subject.log_probabilities(_batch_without(subject, intervention.text))
            difference = (after - before).double().tolist()
            effect = (float(after.sum()), sum(difference), tuple(difference))
            changes.append(Change(*intervention[:3], *effect, None))
            tried.append(intervention)
    if not isinstance(loaded, Predictor):
        return changes
    assert subject.source is not None
    for index in sorted(range(len(changes)), key=lambda index: changes[index].difference)[:MAX_OUTPUTS]:
        with tried[index].active():
            text = tried[index].text or subject.source.text
            outputs = loaded.stream(
                [text], beam=1, n_best=1, engine="torch", split_long=False, on_unknown=ignore_unknown
            )
            changes[index] = replace(changes[index], output=next(outputs).text)
    return [*changes, *_forced_tokens(subject, loaded, before)]


def _interventions(subject: Subject) -> Iterator[Intervention]:
    modules, loaded = dict(subject.model.named_modules()), subject.loaded
    for number, layer in enumerate(attention_layers(subject)):
        # The posteriors of a word aligner are no module's; a decoder that shows weights of its own has no head to mask.
        if isinstance(modules.get(layer.name), Decoder | None):
            continue
        for head in range(layer.weights.shape[0]):
            masked = partial(masked_head, modules[layer.name], head)
            yield Intervention("head", f"{layer.name} head {head + 1}", (number, head), masked)
    with record_cells(subject.model) as recorded:
        subject.log_probabilities()
    for number, (name, steps) in enumerate(recorded.items()):
        for block, gate in enumerate(steps.cell.block_names):
            for value in (0, 1) if gate.endswith("gate") else ():
                frozen = partial(frozen_gate, steps.cell, gate, value)
                yield Intervention("gate", f"{name} {gate} = {value}", (number, block, value), frozen)
    if not isinstance(loaded, Predictor) or loaded.reads_files:
        return
    assert subject.source is not None
    for word, name in enumerate(subject.source.words):
        text = None if name == "<eos>" or name.startswith("<2") else without_word(subject, word)
        if text is not None:
            yield Intervention("word", name, (word,), nullcontext, text)


def _batch_without(subject: Subject, text: str | None) -> Batch:
    if text is None:
        return subject.batch
    assert isinstance(subject.loaded, Predictor)
    sources = subject.loaded.codec.encode_sources([text])
    return replace(subject.loaded.collator.collate(sources).to(subject.loaded.device), target=subject.batch.target)


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
    return " ".join(other for index, other in enumerate(words) if index != word)


def _forced_tokens(subject: Subject, loaded: Predictor, before: Tensor) -> Iterator[Change]:
    """At every step the most probable other tokens, each forced after the target's own beginning."""
    table = next_tokens(subject, ALTERNATIVES + 1)
    if table is None or subject.source is None:
        return
    target = subject.batch.target[0].tolist()
    places: list[tuple[int, int]] = []
    for step, row in enumerate(table.tokens.tolist()):
        others = [token for token in row if token not in (target[step], *SUPPRESSED_TOKENS, EOS)]
        places += [(step, token) for token in others[:ALTERNATIVES]]
    continued = continue_prefixes(loaded, subject.source.text, [[*target[:step], token] for step, token in places])
    pieces = subject.pieces
    for (step, token), output in zip(places, continued, strict=True):
        name = f"{step + 1}: {pieces([token])[0]} for {pieces([target[step]])[0]}"
        yield Change("token", name, (step, token), output.total, output.total - float(before.sum()), (), output.text)


def what_if_view(subject: Subject) -> View | None:
    if isinstance(subject.model, FittedModel) and not subject.has_likelihood:
        return None  # nothing changes but the output
    changes = what_if(subject)
    if not changes:
        return None
    changed_thing = "predicted value" if subject.writes_numbers else "output's log-probability"
    with torch.no_grad():
        before = float(subject.log_probabilities().sum())
    changed = {change.kind for change in changes}
    texts = {
        "head": "one head is masked",
        "gate": "one gate is held open or shut",
        "word": f"one input {subject.input_unit} is left out",
    }
    kinds = [text for kind, text in texts.items() if kind in changed] or ["another token is forced"]
    forced = "; a forced token shows the output that would have followed it" if "token" in changed else ""
    return View(
        "whatif",
        "What if",
        f"Each bar is the change of the {changed_thing} when {' or '.join(kinds)}. "
        f"A long bar {'' if subject.writes_numbers else 'to the left '}marks a part that this output needs{forced}.",
        {
            "before": before,
            "measure": subject.measure,
            "changes": [asdict(change) for change in changes],
            "target": subject.target.as_dict(),
            "unit": subject.input_unit,
        },
    )


def draw_what_if(view: View, layer: str | None) -> Any:
    changes = [change for change in view.data["changes"] if change["kind"] != "token"]
    changes = sorted(changes, key=lambda change: change["difference"])[:30]
    names = [f"without {change['name']}" if change["kind"] != "gate" else change["name"] for change in changes]
    unit = f"change of {view.data['measure']} of the output"
    return bars(names, [change["difference"] for change in changes], view.title, unit)
