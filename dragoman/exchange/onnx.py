"""Export a run as two ONNX graphs: the encoder, and one step of the decoder with its caches.

The encoder graph maps source tokens to the static part of the decoder's state, and to the initial states of recurrent
layers. The decoder graph maps tokens and state to log-probabilities and new caches. Keys and values have a fixed
capacity that the caller chooses; the position of the new token is an input. Recurrences over the source become Scan.
"""

from __future__ import annotations

import json
import logging
import shutil
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from dragoman.base import MissingExtraError
from dragoman.data.tokenizers import EOS, PAD, SOS
from dragoman.decoding import SUPPRESSED_TOKENS
from dragoman.exchange import onnx_greedy
from dragoman.inference.engine import Exporter, encoder_decoder, not_encoder_decoder
from dragoman.models import EncoderDecoder, State
from dragoman.models.layers import Sinusoidal, alignment_layer, observe_attention
from dragoman.runs import Run

# Kinds of parts that become a graph.
ENCODERS = ("transformer", "recurrent")
DECODERS = (*ENCODERS, "luong", "fixed-context", "hard-attention", "edit-transducer", "copy-transducer")
POSITIONS = ("sinusoidal", "learned", "none", "rotary", "relative-bias")
LONGEST = 1024  # positions of sinusoids in a graph


ROWS = 32  # decoded together


class OnnxExporter(Exporter):
    """The exporter of `dragoman export --to onnx`."""

    name = "onnx"
    about = "encoder.onnx and decoder.onnx with greedy.py for onnxruntime: Transformers, recurrent models, transducers"

    def blockers(self, run: Run) -> list[str]:
        return model_blockers(run.config.model)

    def export(self, run: Run, path: Path, options: Mapping[str, str]) -> None:
        model = encoder_decoder(run)
        path.mkdir()
        graphs = write_graphs(model, path)
        (path / "tokenizer").mkdir()
        for side, tokenizer in zip(("source", "target"), run.tokenizers(), strict=True):
            tokenizer.save(path / "tokenizer", side)
        table = {
            "special": {"pad": PAD, "sos": SOS, "eos": EOS},
            "suppressed": list(SUPPRESSED_TOKENS),
            "prompt": list(model.config.prompt),
            "length_ratio": run.data["length_ratio"],
            "caches": graphs.caches,
        }
        (path / "config.json").write_text(json.dumps(table, indent=2) + "\n", encoding="utf-8")
        shutil.copyfile(onnx_greedy.__file__, path / "greedy.py")

    def decode(self, run: Run, path: Path, sources: Sequence[Sequence[int]]) -> list[list[int]]:
        return decode_greedily(onnx_greedy.GreedyDecoder(path), sources)


def decode_greedily(decoder: onnx_greedy.GreedyDecoder, sources: Sequence[Sequence[int]]) -> list[list[int]]:
    """The outputs of any number of sources."""
    parts = [sources[first : first + ROWS] for first in range(0, len(sources), ROWS)]
    return [tokens for part in parts for tokens in decoder.decode(part)]


def model_blockers(config: Any) -> list[str]:
    if config.kind != "encoder-decoder":
        return [not_encoder_decoder(config)]
    return [
        *stack_blockers("model.encoder", config.encoder, ENCODERS),
        *stack_blockers("model.decoder", config.decoder, DECODERS),
    ]


def stack_blockers(place: str, stack: Any, kinds: tuple[str, ...]) -> Iterator[str]:
    """Every setting of an encoder or decoder that keeps it from becoming a graph."""
    parts = [("kind", stack, kinds)]
    if stack.kind == "transformer":
        parts += [("attention", stack.attention, ("full",)), ("positions", stack.positions, POSITIONS)]
    for name, part, known in parts:
        if part.kind not in known:
            expected = ", ".join(map(repr, known))
            yield f"{place}.{name}: found {part.kind!r}, expected {'one of ' if len(known) > 1 else ''}{expected}"


class EncoderGraph(nn.Module):
    """Source tokens → the tensors of the first state that do not depend on the capacity."""

    def __init__(self, model: EncoderDecoder, kept: list[bool], capacity: int) -> None:
        super().__init__()
        self.model, self.kept, self.capacity = model, kept, capacity

    def forward(self, source: Tensor) -> tuple[Tensor, ...]:
        leaves = pytree.tree_leaves(first_state(self.model, source, self.capacity)[:2])
        return tuple(leaf for leaf, kept in zip(leaves, self.kept, strict=True) if kept)


class DecoderGraph(nn.Module):
    """Tokens and state → log-probabilities and the new caches; with `attends` the attention over the source too."""

    def __init__(self, model: EncoderDecoder, spec: pytree.TreeSpec, attends: bool = False) -> None:
        super().__init__()
        self.model, self.spec, self.attends = model, spec, attends

    def forward(self, tokens: Tensor, length: Tensor, leaves: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """tokens (N,), length (): tokens read before."""
        static, cache = pytree.tree_unflatten([leaf.clone() for leaf in leaves], self.spec)
        state = State(static, cache, length)
        if not self.attends:
            scores, state = self.model.step(tokens, state)
            return scores, *pytree.tree_leaves(state.cache)
        scores, state, layers = observed_step(self.model, tokens, state)
        weights = alignment_layer(layers).mean(1)[:, 0]  # (N, S)
        heads = torch.cat([layer[:, :, 0] for layer in layers], 1)  # (N, heads of all layers, S)
        return scores, *pytree.tree_leaves(state.cache), weights, heads


def observed_step(model: EncoderDecoder, tokens: Tensor, state: State) -> tuple[Tensor, State, list[Tensor]]:
    """A step, and the weights (N, H, 1, S) of every layer that attends to the source."""
    layers: list[Tensor] = []

    def record(module: nn.Module, weights: Tensor) -> None:
        if getattr(module, "is_cross_attention", False):
            layers.append(weights)

    with observe_attention(record):
        scores, state = model.step(tokens, state)
    return scores, state, layers


def first_state(model: EncoderDecoder, source: Tensor, capacity: int) -> State:
    """The state before the prompt, which the caller feeds token by token."""
    return model.decoder.start(model.encode(source, source != PAD), capacity)


class Graphs(NamedTuple):
    """What a search needs to know of the graphs."""

    caches: list[dict[str, Any]]  # the name of every cache and, if it begins with zeros, its shape
    heads: list[int]  # of every layer that attends to the source; empty: the graphs have no attention


@torch.no_grad()
def write_graphs(model: EncoderDecoder, folder: Path, attention: bool = False) -> Graphs:
    """Write encoder.onnx and decoder.onnx.

    With `attention`, decoder.onnx has the outputs `attention` (N, S), the mean of the heads of the layer that is read
    as an alignment, and `attention_heads` (N, heads of all layers, S), if the model attends to its source tokens.
    """
    prepare(model)
    # Two examples: what differs between their shapes depends on the sizes of the input.
    small, large = (2, 5, 9), (3, 7, 11)  # batch, source, capacity
    states = [first_state(model, torch.full(size[:2], EOS), size[2]) for size in (small, large)]
    leaves, spec = pytree.tree_flatten(tuple(states[0][:2]))
    shapes = [dynamic_shape(*pair) for pair in zip(leaves, pytree.tree_leaves(tuple(states[1][:2])), strict=True)]
    kept = ["capacity" not in shape for shape in shapes]
    count = len(pytree.tree_leaves(states[0].static))
    names = [f"static_{n}" if n < count else f"cache_{n - count}" for n in range(len(leaves))]
    tokens, length = torch.full(small[:1], SOS), torch.tensor(2)
    layers = observed_step(model, tokens, states[0]._replace(length=length))[2] if attention else []
    attends = bool(layers) and all(layer.shape[-1] == small[1] for layer in layers)
    outputs = ["log_probabilities", *(f"new_{name}" for name in names[count:])]
    outputs += ["attention", "attention_heads"] if attends else []
    dynamic = torch.export.Dim.DYNAMIC
    dimensions = tuple({axis: dynamic for axis, size in enumerate(shape) if isinstance(size, str)} for shape in shapes)
    with quiet():
        encoder = torch.onnx.export(
            EncoderGraph(model, kept, small[2]), (torch.full(small[:2], EOS),), dynamo=True, verbose=False,
            dynamic_shapes=({0: dynamic, 1: dynamic},), input_names=["source"],
            output_names=[name for name, is_kept in zip(names, kept, strict=True) if is_kept],
        )  # fmt: skip
        decoder = torch.onnx.export(
            DecoderGraph(model, spec, attends), (tokens, length, tuple(leaves)), dynamo=True, verbose=False,
            dynamic_shapes=({0: dynamic}, None, dimensions), input_names=["tokens", "length", *names],
            output_names=outputs,
        )  # fmt: skip
    assert encoder is not None
    assert decoder is not None
    encoder.save(folder / "encoder.onnx")
    decoder.save(folder / "decoder.onnx")
    rest = zip(names[count:], kept[count:], shapes[count:], strict=True)
    caches = [{"name": name, "shape": None if is_kept else shape} for name, is_kept, shape in rest]
    return Graphs(caches, [layer.shape[1] for layer in layers] if attends else [])


def prepare(model: nn.Module) -> None:
    """Make a model ready for the exporter of torch; an error if a package is missing."""
    try:
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError:
        raise MissingExtraError("dragoman export --to onnx", "onnxscript", "export") from None
    for module in model.modules():
        if isinstance(module, Sinusoidal):
            module.keep_table(LONGEST)
    for parameter in model.parameters():
        parameter.requires_grad_(False)


def dynamic_shape(small: Tensor, large: Tensor) -> list[int | str]:
    """The shape of a tensor in which the sizes of the input are words."""
    names = {(2, 3): "batch", (5, 7): "source", (9, 11): "capacity"}
    return [
        first if first == second else names[first, second]
        for first, second in zip(small.shape, large.shape, strict=True)
    ]


@contextmanager
def quiet() -> Iterator[None]:
    """Without the log lines and warnings of the exporter and its optimiser."""
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)
