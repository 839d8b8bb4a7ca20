"""What an importer of one family of models provides, and helpers that several families share."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from dragoman.base import DataError
from dragoman.data import SourceReader
from dragoman.data.tokenizers import EOS, PAD, SOS, SPECIALS, UNK, Tokenizer
from dragoman.exchange.huggingface.checkpoint import Checkpoint
from dragoman.runs.tasks import Config

NEVER = -1e3  # bias of a token that the imported model does not have: its probability is 0 in float32
LENGTH_RATIO = 2.0  # target tokens for one source token, which limits the length of outputs; no folder says it


class Imported(NamedTuple):
    """A model read from a folder."""

    config: Config
    source_tokenizer: SourceReader
    target_tokenizer: Tokenizer
    weights: dict[str, Tensor]  # by our parameter names

    @property
    def report(self) -> dict[str, Any]:
        """The content of data.json: there are no training data."""
        return {"train": {}, "valid": {}, "length_ratio": LENGTH_RATIO, "fingerprint": "imported"}


class Converted(NamedTuple):
    """A run as a model of transformers."""

    config: dict[str, Any]  # the content of config.json
    weights: dict[str, Tensor]  # by their names
    tokens: tuple[Sequence[int], Sequence[int]]  # our token of every id of theirs, of source and target


# Reads settings, tokenizers and weights of a folder; the options are languages and other choices of the user.
Family = Callable[[Checkpoint, Mapping[str, str]], Imported]

# Our parameter → theirs, whose rows are concatenated.
Names = dict[str, tuple[str, ...]]


def linear(ours: str, *theirs: str, parts: Sequence[str] = ("weight", "bias")) -> Names:
    return {f"{ours}.{part}": tuple(f"{their}.{part}" for their in theirs) for part in parts}


def layer_names(
    ours: str, theirs: str, layers: int, table: Mapping[str, str], parts: Sequence[str] = ("weight", "bias")
) -> Names:
    """The parameters of all layers of a stack; the table has our parts of a layer and theirs, several with spaces."""
    return {
        name: parameters
        for layer in range(layers)
        for part, several in table.items()
        for name, parameters in linear(
            f"{ours}.{layer}.{part}", *(f"{theirs}.{layer}.{their}" for their in several.split()), parts=parts
        ).items()
    }


BART_LAYER = {
    "attention.project": "self_attn.q_proj self_attn.k_proj self_attn.v_proj",
    "attention.output": "self_attn.out_proj",
    "attention_norm": "self_attn_layer_norm",
    "feedforward.widen": "fc1",
    "feedforward.narrow": "fc2",
    "feedforward_norm": "final_layer_norm",
}
BART_CROSS = {
    "cross.query": "encoder_attn.q_proj",
    "cross.key": "encoder_attn.k_proj",
    "cross.value": "encoder_attn.v_proj",
    "cross.output": "encoder_attn.out_proj",
    "cross_norm": "encoder_attn_layer_norm",
}


def bart_layers(side: str, layers: int, norm: bool = False) -> Names:
    """The blocks of a stack as BART, Marian, M2M-100 and mBART name them, with `norm` that after the last one."""
    table = BART_LAYER | (BART_CROSS if side == "decoder" else {})
    names = layer_names(f"{side}.blocks", f"model.{side}.layers", layers, table)
    return names | (linear(f"{side}.norm", f"model.{side}.layer_norm") if norm else {})


def read_names(
    checkpoint: Checkpoint, names: Names, change: Callable[[str, Tensor], Tensor] | None = None
) -> dict[str, Tensor]:
    """The weights of a table of names; `change` may transform each of theirs (transpose, scale)."""
    weights = {}
    for ours, theirs in names.items():
        parts = [checkpoint.tensor(name) for name in theirs]
        if change is not None:
            parts = [change(name, part) for name, part in zip(theirs, parts, strict=True)]
        weights[ours] = torch.cat(parts) if len(parts) > 1 else parts[0]
    return weights


def split_names(
    weights: Mapping[str, Tensor], names: Names, change: Callable[[str, Tensor], Tensor] | None = None
) -> dict[str, Tensor]:
    """The inverse of `read_names`: their weights by their names; `change` may transform each of them."""
    out = {}
    for ours, theirs in names.items():
        for name, part in zip(theirs, weights[ours].chunk(len(theirs)), strict=True):
            out[name] = part if change is None else change(name, part)
    return out


@dataclass(frozen=True)
class TokenOrder:
    """How the ids of an imported model become ours: <pad>, <unk>, <sos>, <eos>, then all others in their order.

    None: the model has no such token. Ours then has a row of zeros and is never chosen.
    """

    tokens: tuple[str, ...]  # theirs, by id
    pad: int | None
    unk: int | None
    start: int | None  # what their decoder reads first
    eos: int | None
    rows: tuple[int, ...] = field(init=False)  # their id of each of ours, −1 where they have none

    def __post_init__(self) -> None:
        for name in ("pad", "unk", "start", "eos"):
            index = getattr(self, name)
            if index is not None and not 0 <= index < len(self.tokens):
                raise DataError(f"{name}_token_id: found {index!r}, expected an id below {len(self.tokens)}")
        special = {self.pad, self.unk, self.eos} | ({self.start} if self.start_is_special else set())
        rest = [index for index in range(len(self.tokens)) if index not in special]
        first = [-1 if index is None else index for index in (self.pad, self.unk, self.start, self.eos)]
        object.__setattr__(self, "rows", (*first, *rest))

    @property
    def start_is_special(self) -> bool:
        """Whether the start symbol is a token of its own, or <pad> or <eos>; a language code stays a token too."""
        return self.start is not None and bool(re.fullmatch(r"<.*>|\[.*\]", self.tokens[self.start]))

    @property
    def names(self) -> list[str]:
        """The tokens after our special ones."""
        return [self.tokens[index] for index in self.rows[len(SPECIALS) :]]

    def table(self, weight: Tensor) -> Tensor:
        """The rows of a table (V, …) in our order."""
        return torch.cat([weight, torch.zeros_like(weight[:1])])[list(self.rows)]  # −1 is the row of zeros

    def output_bias(self, bias: Tensor | None) -> Tensor:
        """A bias in our order, in which a start symbol that is there a second time is never chosen."""
        out = torch.zeros(len(self.rows)) if bias is None else self.table(bias).clone()
        out[[row < 0 for row in self.rows]] = NEVER
        if self.rows.count(self.rows[SOS]) > 1:
            out[SOS] = NEVER
        return out


def logits_bias(checkpoint: Checkpoint, size: int) -> Tensor | None:
    """Their bias of the output layer, which older folders do not have."""
    name = "final_logits_bias"
    return checkpoint.tensor(name, (1, size))[0] if name in checkpoint.names() else None


def tokens_by_id(table: Mapping[str, Any], size: int, place: str) -> tuple[str, ...]:
    """The tokens of a vocabulary {token: id}; ids without a token get a name that no text has."""
    tokens: list[str | None] = [None] * size
    for token, index in table.items():
        if not isinstance(index, int) or not 0 <= index < size:
            raise DataError(f"{place}: {token!r}: found the id {index!r}, expected a number below {size}")
        tokens[index] = token
    return tuple(f"<unused {index}>" if token is None else token for index, token in enumerate(tokens))


def check_weights(model: nn.Module, weights: Mapping[str, Tensor], folder: object) -> None:
    """Every parameter of the model must be there in its shape; shared ones once."""
    for name, parameter in model.named_parameters():
        if name not in weights:
            raise DataError(f"{folder}: found no weights for {name}")
        if weights[name].shape != parameter.shape:
            found, expected = list(weights[name].shape), list(parameter.shape)
            raise DataError(f"{folder}: {name}: found the shape {found}, expected {expected} from config.json")


assert (PAD, UNK, SOS, EOS) == (0, 1, 2, 3)  # the order of TokenOrder.rows
