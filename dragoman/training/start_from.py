"""Initialise a model from another run: check that vocabularies and labels match, then copy the weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from torch import Tensor, nn

from dragoman.data.tokenizers.base import Tokenizer
from dragoman.data.tokenizers.labels import LabelVocabulary
from dragoman.data.tokenizers.numbers import NumberScaler
from dragoman.errors import RunError
from dragoman.training.optimizer import load_weights
from dragoman.training.transfer import (
    TABLES,
    StartFromConfig,
    TransferReport,
    VocabularyPair,
    all_named_weights,
    renamed,
    transfer,
)

Tokenizers = tuple[Tokenizer, Tokenizer]  # source and target
SIDES = ("source", "target")
LABEL_PARTS = ("output", "chain")  # parts whose weights depend on the labels


def side_of(name: str) -> int:
    """Whether the rows of a table are source (0) or target (1) tokens."""
    return 0 if name.startswith("encoder") else 1


def inner_tokenizer(tokenizer: Any) -> Any:
    """A tokenizer without the separator or the tags around it."""
    while hasattr(tokenizer, "inner"):
        tokenizer = tokenizer.inner
    return tokenizer


def load_whole_model(
    model: nn.Module, weights: Mapping[str, Tensor], theirs: Tokenizers, ours: Tokenizers, run: str
) -> TransferReport:
    """Load all weights of a run with the same task; everything must match."""
    for side, old, new in zip(SIDES, theirs, ours, strict=True):
        if old.fingerprint() != new.fingerprint():
            raise other_vocabulary(run, setting_of(side, ours), side, old)
    names = [name for name, _ in model.named_parameters()]
    load_weights(
        model, {name: weights[name] for name in weights if name in names or name not in all_named_weights(model)}
    )
    return TransferReport(tuple(names), (), (), (), sum(part.numel() for part in model.parameters()))


def load_parts(
    model: nn.Module, weights: Mapping[str, Tensor], theirs: Tokenizers, ours: Tokenizers, start: StartFromConfig
) -> TransferReport:
    """Load parts of another run where names and shapes match."""
    vocabularies: list[VocabularyPair] = []
    unusable: list[str] = []
    for there, here in sorted(shared_tables(model, weights, start.parts)):
        old, new = theirs[there], ours[here]
        if isinstance(old, LabelVocabulary | NumberScaler) or isinstance(new, LabelVocabulary | NumberScaler):
            if old.fingerprint() != new.fingerprint():  # the layers that predict labels must be trained anew
                unusable = [name for name in weights if name.partition(".")[0] in LABEL_PARTS]
            continue
        same = inner_tokenizer(old).fingerprint() == inner_tokenizer(new).fingerprint()
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
    own = all_named_weights(model)
    found = set()
    for name in weights:
        for part in parts:
            new = renamed(name, part)
            if new in own and any(fnmatchcase(new, table) for table in (*TABLES, "chain.*")):
                found.add((side_of(name), side_of(new)))
    return found


def setting_of(side: str, ours: Tokenizers) -> str:
    """The tokenizer setting of a side: "source" if both sides share one vocabulary."""
    return "source" if ours[0].fingerprint() == ours[1].fingerprint() else side


def other_vocabulary(run: str, here: str, there: str, theirs: Tokenizer, alternative: str = "") -> RunError:
    """The error for a run with another vocabulary: the tokens of its side `there` are needed on side `here`."""
    if isinstance(theirs, LabelVocabulary):
        labels = ", ".join(theirs.names[:12])
        return RunError(
            f"train.start_from: {run} has other labels ({labels}) than these data; load parts without labels: "
            f'start_from = {{ run = "{run}", parts = ["encoder"] }}'
        )
    return RunError(
        f"train.start_from: {run} has another {here} vocabulary than these data; use its own: leave out the table "
        f'tokenizer, or set tokenizer.{here} = {{ kind = "run", run = "{run}", side = "{there}" }}{alternative}'
    )
