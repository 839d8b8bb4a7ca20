"""Transfer learning: copy the weights of another run, or parts of them, into a new model.

Weights are matched by name. A part is a name with everything below it: "encoder" of one run becomes "encoder" of
another, and "stack:decoder" copies the stack of a language model into a decoder. A report lists what was loaded, what
kept its initial weights and what of the other run was not used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import chain, product
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from dragoman.base import ConfigError, DataError, RunError, hint
from dragoman.data import SourceReader, read_word_vectors
from dragoman.data.tokenizers import SPECIALS, Tokenizer
from dragoman.models.layers import token_tables
from dragoman.training.config import ALL, StartFromConfig, TrainConfig, VectorsConfig
from dragoman.training.optimizer import load_weights
from dragoman.training.trained_weights import abbreviated, freeze, is_matched, rate_factors, top_modules

Tokenizers = tuple[SourceReader, Tokenizer]  # source and target
SIDES = ("source", "target")
EMBEDDINGS = "embeddings"
EMBEDDING_TABLES = "*embedding.weight"
TABLES = ("*embedding.weight", "output.weight", "output.bias")  # one row per token
POSITIONS = ("*.positions", "*positions.table")  # one row per position
LABEL_PARTS = ("output", "chain")  # parts whose weights depend on the labels


def vector_tables(config: VectorsConfig, model: nn.Module) -> Iterator[tuple[str, str, nn.Parameter]]:
    """Side, name and embeddings of every file that is set; ConfigError if the model has none."""
    for side in SIDES:
        if getattr(config, side):
            tables = [(side, name, weight) for name, sides, weight in token_tables(model) if side in sides]
            if not tables:
                raise ConfigError(f"train.vectors.{side}: this model has no embeddings of {side} words")
            yield tables[0]


def freeze_weights(model: nn.Module, config: TrainConfig) -> None:
    """Exclude weights from training as the settings say; an error for a name or a rate of weights that do not exist."""
    vectors = config.vectors
    tables = [name for _, name, _ in vector_tables(vectors, model)] if vectors.frozen else []
    freeze(model, [*config.freeze, *tables])
    rate_factors(model, config.rates)


class VocabularyPair(NamedTuple):
    """Two different vocabularies, whose embedding rows are matched by token."""

    theirs: Sequence[str]
    ours: Sequence[str]


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
        columns = {
            "loaded": self.loaded,
            "in part": [name for name, _ in self.partly],
            "not found": [name for name, why in self.left if not why.startswith("found ")],
            "other shape": sorted(name for name, why in self.left if why.startswith("found ")),
        }
        rows: list[list[object]] = [["part", *columns]]
        for part in top_modules(chain(*columns.values())):
            rows.append([part, *(sum(name.partition(".")[0] == part for name in names) for names in columns.values())])
        width = max(len(str(part)) for part, *_ in rows)
        return [f"{part:<{width}}" + "".join(f"{cell:>13}" for cell in row) for part, *row in rows]

    def lines(self, run: str) -> list[str]:
        count = len(self.loaded) + len(self.partly)
        out = [f"from {run}: {count} of {count + len(self.left)} weights loaded, {self.numbers:,} numbers"]
        out += self.table()
        out += [f"loaded in part: {name} ({how})" for name, how in self.partly]
        for reason in dict.fromkeys(reason for _, reason in self.left):
            names = [name for name, why in self.left if why == reason]
            out.append(f"not loaded: {abbreviated(names)} ({reason})")
        if self.unused:
            out.append(f"not used of {run}: {abbreviated(self.unused)}")
        return out


def all_named_weights(model: nn.Module) -> dict[str, Tensor]:
    """All weights of a model; a shared weight is listed under each of its names."""
    return {name: part.detach() for name, part in model.named_parameters(remove_duplicate=False)}


def own_name(name: str, part: str) -> str | None:
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
        named = {new: name for name in weights if (new := own_name(name, part)) is not None}
        check_part(part, weights, own, named, run)
        offered |= {new: weights[name] for new, name in named.items()}
        used |= {name: new for new, name in named.items()}
    loaded, partly, left, numbers = [], [], [], 0
    for name, weight in model.named_parameters():
        aliases = [other for other, same in own.items() if same is weight]
        given = next((alias for alias in aliases if alias in offered), None)
        if given is None:
            left.append((name, f"not in the parts loaded from {run}"))
            continue
        theirs, ours = offered[given], own[given]
        if (shared := shared_rows(given, theirs, ours, vocabularies)) is not None:
            there, here, share = shared
            ours[here] = theirs[there].to(ours)
            partly.append((name, share))
            numbers += ours[here].numel()
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


def shared_rows(
    name: str, theirs: Tensor, ours: Tensor, vocabularies: Sequence[VocabularyPair]
) -> tuple[list[int], list[int], str] | None:
    """Rows to copy from their table to ours, and how many in words; None if the vocabularies or lengths are equal."""
    if theirs.shape[1:] != ours.shape[1:]:
        return None
    for pair in vocabularies:
        if is_one_of(name, TABLES) and (len(theirs), len(ours)) == (len(pair.theirs), len(pair.ours)):
            known = {token: row for row, token in enumerate(pair.theirs)}
            here = [row for row, token in enumerate(pair.ours) if token in known]
            share = f"{len(here):,} of {len(ours):,} tokens, those that both vocabularies have"
            return [known[pair.ours[row]] for row in here], here, share
    if is_one_of(name, POSITIONS) and len(theirs) != len(ours):
        rows = list(range(min(len(theirs), len(ours))))
        return rows, rows, f"{len(rows):,} of {len(ours):,} positions, the first of both"
    return None


def is_one_of(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def shape(part: Tensor) -> str:
    return " × ".join(map(str, part.shape)) or "a number"


def check_part(
    part: str, theirs: Mapping[str, Tensor], ours: Mapping[str, Tensor], named: Mapping[str, str], run: str
) -> None:
    """Refuse a part that one of the two models does not have."""
    place, (first, _, other) = "train.start_from.parts", part.partition(":")
    target = other or first
    if not named:
        raise ConfigError(f"{place}: {run} has no weights of {first!r}. {hint(first, top_modules(theirs))}")
    if named.keys() & ours.keys():
        return
    here = [name for name in ours if part == ALL or is_matched(name, target)]
    if not here:
        raise ConfigError(f"{place}: this model has no weights of {target!r}. {hint(target, top_modules(ours))}")
    theirs_shown, ours_shown = (abbreviated(top_modules(side) if part == ALL else list(side)) for side in (named, here))
    raise ConfigError(
        f"{place}: {part!r} of {run} ({theirs_shown}) has no name in common with this model ({ours_shown})"
    )


def load_run(
    model: nn.Module, other: nn.Module, theirs: Tokenizers, ours: Tokenizers, start: StartFromConfig, whole: bool
) -> TransferReport:
    """Load the weights of the model of another run: of the `whole` model, or of parts of it."""
    weights = all_named_weights(other)
    if whole:
        return load_whole_model(model, weights, theirs, ours, start.run)
    return load_parts(model, weights, theirs, ours, start)


def load_whole_model(
    model: nn.Module, weights: Mapping[str, Tensor], theirs: Tokenizers, ours: Tokenizers, run: str
) -> TransferReport:
    """Load all weights of a run with the same task; everything must match."""
    for side, old, new in zip(SIDES, theirs, ours, strict=True):
        if old.fingerprint() != new.fingerprint():
            raise other_vocabulary(run, setting_of(side, ours), side, old)
    names = [name for name, _ in model.named_parameters()]
    aliases = all_named_weights(model).keys() - names  # further names of shared weights
    load_weights(model, {name: weight for name, weight in weights.items() if name not in aliases})
    return TransferReport(tuple(names), (), (), (), sum(part.numel() for part in model.parameters()))


def load_parts(
    model: nn.Module, weights: Mapping[str, Tensor], theirs: Tokenizers, ours: Tokenizers, start: StartFromConfig
) -> TransferReport:
    """Load parts of another run where names and shapes match."""
    vocabularies: list[VocabularyPair] = []
    unusable: list[str] = []
    for there, here in sorted(shared_tables(model, weights, start.parts)):
        old, new = theirs[there], ours[here]
        if not (old.is_text and new.is_text):
            if old.fingerprint() != new.fingerprint():  # the layers that predict labels must be trained anew
                unusable = [name for name in weights if name.partition(".")[0] in LABEL_PARTS]
            continue
        same = old.innermost.fingerprint() == new.innermost.fingerprint()
        if not same and not start.by_token:
            alternative = "; or match rows by token: start_from.by_token = true"
            raise other_vocabulary(start.run, setting_of(SIDES[here], ours), SIDES[there], old, alternative)
        if not same or len(old) != len(new):  # separator and tags come after the vocabulary
            vocabularies.append(VocabularyPair(old.pieces(range(len(old))), new.pieces(range(len(new)))))
    for part in start.parts:
        if unusable and part.partition(":")[0].partition(".")[0] in LABEL_PARTS:
            raise RunError(
                f"train.start_from.parts: found {part!r}, which predicts the labels of {start.run}, but these data "
                "have other labels or numbers; leave it out"
            )
    usable = {name: part for name, part in weights.items() if name not in unusable}
    report = transfer(model, usable, start.parts, vocabularies, start.run)
    shared = {part.data_ptr() for part in usable.values()}  # a shared table may be listed under another name
    unused = [name for name in unusable if weights[name].data_ptr() not in shared]
    return report._replace(unused=(*report.unused, *unused))


def shared_tables(model: nn.Module, weights: Mapping[str, Tensor], parts: Sequence[str]) -> set[tuple[int, int]]:
    """(their side, our side) of every table of tokens or labels that is loaded."""
    own, sides = all_named_weights(model), set()
    for name, part in product(weights, parts):
        new = own_name(name, part)
        if new in own and is_one_of(new, (*TABLES, "chain.*")):
            # The tables of an encoder have rows of source tokens (side 0), all others of target tokens (side 1).
            sides.add((int(not name.startswith("encoder")), int(not new.startswith("encoder"))))
    return sides


def setting_of(side: str, ours: Tokenizers) -> str:
    """The tokenizer setting of a side: "source" if both sides share one vocabulary."""
    return "source" if ours[0].fingerprint() == ours[1].fingerprint() else side


def other_vocabulary(run: str, here: str, there: str, theirs: SourceReader, alternative: str = "") -> RunError:
    """The error for a run with another vocabulary: the tokens of its side `there` are needed on side `here`."""
    if theirs.names:
        labels = ", ".join(theirs.names[:12])
        return RunError(
            f"train.start_from: {run} has other labels ({labels}) than these data; load parts without labels: "
            f'start_from = {{ run = "{run}", parts = ["encoder"] }}'
        )
    return RunError(
        f"train.start_from: {run} has another {here} vocabulary than these data; use its own: leave out the table "
        f'tokenizer, or set tokenizer.{here} = {{ kind = "run", run = "{run}", side = "{there}" }}{alternative}'
    )


@torch.no_grad()
def load_vectors(model: nn.Module, tokenizers: Tokenizers, config: VectorsConfig) -> list[str]:
    """Copy word vectors into the tables of a new model; returns a line on each file.

    All vectors of a file get one factor, so that they have the mean length of new embeddings: cosines stay, and so does
    the share that positions and learning rates have beside them. Words without a vector keep their random one.
    """
    lines = []
    for side, name, table in vector_tables(config, model):
        path, place, tokenizer = getattr(config, side), f"train.vectors.{side}", tokenizers[SIDES.index(side)]
        words = tokenizer.pieces(range(len(SPECIALS), len(tokenizer)))[: len(table) - len(SPECIALS)]
        try:
            found = read_word_vectors(path, words, table.shape[1])
        except DataError as error:
            raise DataError(f"{place}: {error}") from None
        rows = [row for row, word in enumerate(words, len(SPECIALS)) if word in found.vectors]
        if not rows:
            raise DataError(
                f"{place}: {path} has none of the {len(words):,} {side} tokens, such as {', '.join(words[:4])!r}; "
                f'word vectors go with tokenizer.{setting_of(side, tokenizers)}.kind = "words"'
            )
        vectors = torch.from_numpy(np.stack([found.vectors[words[row - len(SPECIALS)]] for row in rows]))
        factor = float(1.0 / vectors.norm(dim=1).mean().clamp(min=1e-12))
        table[rows] = (vectors * factor).to(table)
        lines.append(
            f"{place}: {len(rows):,} of {len(words):,} tokens ({len(rows) / len(words):.0%}) have a vector of {path}, "
            f"{len(found.lower):,} of them by their lower-case form; {name} has them × {factor:.3g}, with a mean "
            f"length of 1{', frozen' if config.frozen else ''}"
        )
    return lines
