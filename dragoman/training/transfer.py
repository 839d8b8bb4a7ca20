"""Transfer learning: copy parts of another run's weights, freeze weights, scale learning rates by name.

Weights are matched by name. A part is a name with everything below it: "encoder" of one run becomes "encoder" of
another, and "stack:decoder" copies the stack of a language model into a decoder. A report lists what was loaded, what
kept its initial weights and what of the other run was not used.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Annotated, NamedTuple

import torch
from torch import Tensor, nn

from dragoman.config.settings import Range, setting
from dragoman.errors import ConfigError, RunError, hint

ALL, EMBEDDINGS = "all", "embeddings"
EMBEDDING_TABLES = "*embedding.weight"
TABLES = ("*embedding.weight", "output.weight", "output.bias")  # one row per token
POSITIONS = ("*.positions", "*positions.table")  # one row per position
MAX_NAMES_SHOWN = 6


@dataclass(frozen=True)
class StartFromConfig:
    """A run whose weights, or parts of them, initialise this one."""

    run: str = setting(help="run folder")
    parts: tuple[str, ...] = setting(
        (ALL,),
        help='parts to load: "all", "encoder", "decoder", "embeddings" or any module name; '
        '"stack:decoder" loads "stack" into "decoder"',
    )
    by_token: bool = setting(False, help="if vocabularies differ, load the embeddings of the tokens that both have")


@dataclass(frozen=True)
class RateConfig:
    """A learning-rate factor for some weights."""

    names: str = setting(help='module or weight name, or a pattern such as "*.attention.*"')
    factor: Annotated[float, Range(0.0, None, exclusive_minimum=True)] = setting(
        0.1, help="multiplies the learning rate of the schedule"
    )


class VocabularyPair(NamedTuple):
    """Two different vocabularies, whose embedding rows are matched by token."""

    theirs: Sequence[str]
    ours: Sequence[str]
    tables: tuple[str, ...] = TABLES

    def hold(self, name: str, theirs: Tensor, ours: Tensor) -> bool:
        """Whether a weight has one row per token in both models."""
        return (
            any(fnmatchcase(name, table) for table in self.tables)
            and (theirs.shape[0], ours.shape[0]) == (len(self.theirs), len(self.ours))
            and theirs.shape[1:] == ours.shape[1:]
        )

    def rows(self) -> tuple[list[int], list[int]]:
        """The rows of the shared tokens, in their vocabulary and in ours."""
        known = {token: row for row, token in enumerate(self.theirs)}
        here = [row for row, token in enumerate(self.ours) if token in known]
        return [known[self.ours[row]] for row in here], here


class TransferReport(NamedTuple):
    """What was loaded, by weight name."""

    loaded: tuple[str, ...]
    partly: tuple[tuple[str, str], ...]  # name, and how much of it
    left: tuple[tuple[str, str], ...]  # name of a weight that kept its initial value, and why
    unused: tuple[str, ...]  # weights of the other run
    numbers: int  # scalars that were loaded

    def table(self) -> list[str]:
        """Per part of the model: how many weights were loaded, or why not; empty if all were loaded."""
        if not self.partly and not self.left:
            return []
        columns = ("loaded", "in part", "not found", "other shape")
        counts: dict[str, list[int]] = {}
        shaped = {name for name, why in self.left if why.startswith("found ")}
        missing = [name for name, _ in self.left if name not in shaped]
        for column, names in enumerate((self.loaded, [name for name, _ in self.partly], missing, sorted(shaped))):
            for name in names:
                counts.setdefault(name.partition(".")[0], [0] * len(columns))[column] += 1
        width = max(4, *map(len, counts))
        rows = [f"{name:<{width}}" + "".join(f"{count:>13}" for count in row) for name, row in counts.items()]
        return [f"{'part':<{width}}" + "".join(f"{column:>13}" for column in columns), *rows]

    def lines(self, run: str) -> list[str]:
        count = len(self.loaded) + len(self.partly)
        out = [f"from {run}: {count} of {count + len(self.left)} weights loaded, {self.numbers:,} numbers"]
        out += self.table()
        out += [f"loaded in part: {name} ({how})" for name, how in self.partly]
        for reason in dict.fromkeys(reason for _, reason in self.left):
            names = [name for name, why in self.left if why == reason]
            out.append(f"not loaded: {some(names)} ({reason})")
        if self.unused:
            out.append(f"not used of {run}: {some(self.unused)}")
        return out


def some(names: Sequence[str]) -> str:
    """The first few names, and how many more there are."""
    more = len(names) - MAX_NAMES_SHOWN
    return ", ".join(names[:MAX_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")


def all_named_weights(model: nn.Module) -> dict[str, Tensor]:
    """All weights of a model; a shared weight is listed under each of its names."""
    return {name: part.detach() for name, part in model.named_parameters(remove_duplicate=False)}


def below(name: str, beginning: str) -> bool:
    """Whether a weight is named by a module name, its own name or a pattern."""
    return name == beginning or name.startswith(f"{beginning}.") or fnmatchcase(name, beginning)


def renamed(name: str, part: str) -> str | None:
    """The name here of a weight of the other run; None if the part does not include it."""
    theirs, _, ours = part.partition(":")
    ours = ours or theirs
    if part == ALL:
        return name
    if part == EMBEDDINGS:
        return name if fnmatchcase(name, EMBEDDING_TABLES) else None
    if name == theirs or name.startswith(f"{theirs}."):
        return ours + name[len(theirs) :]
    return None


@torch.no_grad()
def transfer(
    model: nn.Module,
    weights: Mapping[str, Tensor],  # of the other run: `all_named_weights` of its model
    parts: Sequence[str] = (ALL,),
    vocabularies: Sequence[VocabularyPair] = (),
    run: str = "the run",
) -> TransferReport:
    """Copy the weights of some parts into a model where names and shapes match."""
    own = dict(model.named_parameters(remove_duplicate=False))
    offered: dict[str, Tensor] = {}
    used: dict[str, str] = {}
    for part in parts:
        found = {new: name for name in weights if (new := renamed(name, part)) is not None}
        check_part(part, weights, own, found, run)
        offered |= {new: weights[name] for new, name in found.items()}
        used |= {name: new for new, name in found.items()}
    loaded, partly, left, numbers = [], [], [], 0
    for name, weight in model.named_parameters():
        aliases = [other for other, same in own.items() if same is weight]
        given = next((alias for alias in aliases if alias in offered), None)
        if given is None:
            left.append((name, f"not in the parts loaded from {run}"))
            continue
        theirs, ours = offered[given], own[given]
        change = next((one for one in vocabularies if one.hold(given, theirs, ours)), None)
        if change is not None:
            there, here = change.rows()
            ours[here] = theirs[there].to(ours)
            partly.append((name, f"{len(here):,} of {len(ours):,} tokens, those that both vocabularies have"))
            numbers += len(here) * (ours.numel() // len(ours))
        elif are_position_tables(given, theirs, ours):
            rows = min(len(theirs), len(ours))
            ours[:rows] = theirs[:rows].to(ours)
            partly.append((name, f"{rows:,} of {len(ours):,} positions, the first of both"))
            numbers += rows * (ours.numel() // len(ours))
        elif theirs.shape != ours.shape:
            left.append((name, f"found {shape(theirs)}, expected {shape(ours)}"))
        else:
            ours.copy_(theirs)
            loaded.append(name)
            numbers += ours.numel()
    if not loaded and not partly:
        first = "; ".join(f"{name}: {why}" for name, why in left[:2])
        more = f" (and {len(left) - 2:,} more)" if len(left) > 2 else ""
        raise RunError(
            f"train.start_from: nothing of {run} fits this model: {first}{more}; give both the same sizes "
            f"(dragoman info {run} shows its own)"
        )
    unused = tuple(name for name in weights if used.get(name) not in own)
    return TransferReport(tuple(loaded), tuple(partly), tuple(left), unused, numbers)


def are_position_tables(name: str, theirs: Tensor, ours: Tensor) -> bool:
    """Whether both are position tables of different lengths."""
    named = any(fnmatchcase(name, table) for table in POSITIONS)
    return named and len(theirs) != len(ours) and theirs.shape[1:] == ours.shape[1:]


def shape(part: Tensor) -> str:
    """The shape of a tensor as text."""
    return " × ".join(map(str, part.shape)) or "a number"


def check_part(
    part: str, theirs: Mapping[str, Tensor], ours: Mapping[str, Tensor], found: Mapping[str, str], run: str
) -> None:
    """Refuse a part that one of the two models does not have."""
    first = part.partition(":")[0]
    if not found:
        names = beginnings(theirs)
        raise ConfigError(f"train.start_from.parts: {run} has no weights of {first!r}. {hint(first, names)}")
    if not found.keys() & ours.keys():
        named = part.partition(":")[2] or first
        names = beginnings(ours)
        if part == ALL or any(below(name, named) for name in ours):
            sides = (found, [name for name in ours if part == ALL or below(name, named)])
            theirs_shown, ours_shown = (some(beginnings(side) if part == ALL else list(side)) for side in sides)
            raise ConfigError(
                f"train.start_from.parts: {part!r} of {run} ({theirs_shown}) has no name in common with this "
                f"model ({ours_shown})"
            )
        raise ConfigError(f"train.start_from.parts: this model has no weights of {named!r}. {hint(named, names)}")


def beginnings(names: Iterable[str]) -> list[str]:
    """The distinct first components of dotted names."""
    return list(dict.fromkeys(name.partition(".")[0] for name in names))


# Freezing and learning-rate factors


def matching(model: nn.Module, pattern: str, place: str) -> list[nn.Parameter]:
    """The weights that a name or pattern matches; ConfigError if there are none."""
    if not pattern.strip():
        raise ConfigError(
            f'{place}: found {pattern!r}, expected the beginning of names, or a pattern ("*": all weights)'
        )
    names = dict(model.named_parameters(remove_duplicate=False))
    found = [part for name, part in names.items() if below(name, pattern)]
    if not found:
        near = {*beginnings(names), *(name.rpartition(".")[0] for name in names)}
        raise ConfigError(f"{place}: no weight is called {pattern!r}. {hint(pattern, near)}")
    return found


def freeze(model: nn.Module, patterns: Sequence[str], place: str = "train.freeze") -> list[str]:
    """Exclude weights from training; returns the names of all frozen weights, a shared one under its first name."""
    for pattern in patterns:
        for part in matching(model, pattern, place):
            part.requires_grad_(False)
    frozen = [name for name, part in model.named_parameters() if not part.requires_grad]
    if len(frozen) == len(list(model.parameters())):
        raise ConfigError(f"{place}: found {list(patterns)}, which freezes all weights")
    return frozen


def rate_factors(model: nn.Module, rates: Sequence[RateConfig], place: str = "train.rates") -> dict[str, float]:
    """The learning-rate factor of every weight, by its first name; the last matching entry counts."""
    factors: dict[int, float] = {}
    for number, rate in enumerate(rates):
        found = matching(model, rate.names, f"{place}[{number}].names")
        if not any(part.requires_grad for part in found):
            raise ConfigError(
                f"{place}[{number}].names: found {rate.names!r}, whose weights are all frozen by train.freeze"
            )
        factors |= {id(part): rate.factor for part in found}
    return {name: factors.get(id(part), 1.0) for name, part in model.named_parameters()}
