"""A new model that starts with what another run has learned (FIELD G7): which parts, and do both speak alike?"""

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
    Vocabularies,
    all_named_weights,
    renamed,
    transfer,
)

Codecs = tuple[Tokenizer, Tokenizer]  # of sources and targets
SIDES = ("source", "target")
ANSWERING = ("output", "chain")  # parts that know labels


def side_of(name: str) -> int:
    """Whose tokens a table has rows for: those of the source (0) or of the target (1)."""
    return 0 if name.startswith("encoder") else 1


def bare(codec: Any) -> Any:
    """A tokenizer without the separator or the tags around it."""
    while hasattr(codec, "inner"):
        codec = codec.inner
    return codec


def load_whole_model(
    model: nn.Module, weights: Mapping[str, Tensor], theirs: Codecs, ours: Codecs, run: str
) -> TransferReport:
    """Give a model all weights of a run with the same task: everything must fit."""
    for side, old, new in zip(SIDES, theirs, ours, strict=True):
        if old.fingerprint() != new.fingerprint():
            raise other_vocabulary(run, setting_of(side, ours), side, old)
    names = [name for name, _ in model.named_parameters()]
    load_weights(
        model, {name: weights[name] for name in weights if name in names or name not in all_named_weights(model)}
    )
    return TransferReport(tuple(names), (), (), (), sum(part.numel() for part in model.parameters()))


def load_parts(
    model: nn.Module, weights: Mapping[str, Tensor], theirs: Codecs, ours: Codecs, start: StartFromConfig
) -> TransferReport:
    """Give a model the parts of another run that are asked for, where names and shapes fit."""
    vocabularies: list[Vocabularies] = []
    unfit: list[str] = []
    for there, here in sorted(tables(model, weights, start.parts)):
        old, new = theirs[there], ours[here]
        if isinstance(old, LabelVocabulary | NumberScaler) or isinstance(new, LabelVocabulary | NumberScaler):
            if old.fingerprint() != new.fingerprint():  # what answers with other labels must learn anew
                unfit = [name for name in weights if name.partition(".")[0] in ANSWERING]
            continue
        same = bare(old).fingerprint() == bare(new).fingerprint()
        if not same and not start.by_token:
            otherwise = "; or match rows by token: start_from.by_token = true"
            raise other_vocabulary(start.run, setting_of(SIDES[here], ours), SIDES[there], old, otherwise)
        if not same or len(old) != len(new):  # a separator or tags stand after the vocabulary
            vocabularies.append(Vocabularies(old.pieces(range(len(old))), new.pieces(range(len(new)))))
    for part in start.parts:
        if unfit and part.partition(":")[0].partition(".")[0] in ANSWERING:
            raise RunError(
                f"train.start_from.parts: found {part!r}, which knows what {start.run} answers with, and these data "
                "have other labels or numbers; leave it out"
            )
    fitting = {name: part for name, part in weights.items() if name not in unfit}
    found = transfer(model, fitting, start.parts, vocabularies, start.run)
    shared = {part.data_ptr() for part in fitting.values()}  # a table may have another name too
    return found._replace(unused=(*found.unused, *(name for name in unfit if weights[name].data_ptr() not in shared)))


def tables(model: nn.Module, weights: Mapping[str, Tensor], parts: Sequence[str]) -> set[tuple[int, int]]:
    """Of which sides' tokens or labels rows go over, there and here."""
    own = all_named_weights(model)
    found = set()
    for name in weights:
        for part in parts:
            new = renamed(name, part)
            if new in own and any(fnmatchcase(new, table) for table in (*TABLES, "chain.*")):
                found.add((side_of(name), side_of(new)))
    return found


def setting_of(side: str, ours: Codecs) -> str:
    """Which setting of tokenizer gives a side its units: the source's, where both have one vocabulary."""
    return "source" if ours[0].fingerprint() == ours[1].fingerprint() else side


def other_vocabulary(run: str, here: str, there: str, theirs: Tokenizer, otherwise: str = "") -> RunError:
    """What to do where a run speaks other tokens: those of its side `there` are needed `here`."""
    if isinstance(theirs, LabelVocabulary):
        labels = ", ".join(theirs.names[:12])
        return RunError(
            f"train.start_from: {run} has other labels ({labels}) than these data; take what does not know labels: "
            f'start_from = {{ run = "{run}", parts = ["encoder"] }}'
        )
    return RunError(
        f"train.start_from: {run} has another {here} vocabulary than these data; use its own: leave the table "
        f'tokenizer out, or set tokenizer.{here} = {{ kind = "run", run = "{run}", side = "{there}" }}{otherwise}'
    )
