"""What the planner chose yields to what the user asked: every kind of the tables, set alone on a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from dragoman.auto.configure import configure
from dragoman.base.errors import ConfigError
from dragoman.models.layers.pooling import POOLINGS
from dragoman.models.registry import DECODERS, ENCODERS
from dragoman.runs.tasks.labels import CLASSIFIERS, REGRESSORS, TAGGERS
from dragoman.runs.tasks.translate import NETWORKS, TRANSDUCERS
from tests.conftest import words, write_rows

PAIRS = [
    *([f"model.kind={kind}"] for kind in (*NETWORKS, *TRANSDUCERS)),
    *([f"model.encoder.kind={kind}"] for kind in ENCODERS),
    *([f"model.decoder.kind={kind}"] for kind in DECODERS),
    *(["model.kind=non-autoregressive", f"model.encoder.kind={kind}"] for kind in ENCODERS),
]
KINDS = {"classify": CLASSIFIERS, "regress": REGRESSORS, "tag": TAGGERS}
LABELS = [
    *([f"task={task}", f"model.encoder.kind={kind}"] for task in ("classify", "regress") for kind in ENCODERS),
    *([f"task={task}", f"model.kind={kind}"] for task, kinds in KINDS.items() for kind in kinds),
    *(["task=classify", f"model.pooling.kind={config.kind}"] for config in POOLINGS),
    *(
        [f"task={task}", "model.pooling.kind=step-weights", "model.pooling.steps=20"]
        for task in ("classify", "regress")
    ),
]


@pytest.mark.parametrize("given", PAIRS, ids=" ".join)
def test_a_kind_for_pairs_can_be_set_alone(given: list[str], tmp_path: Path) -> None:
    path = write_rows(tmp_path / "pairs.tsv", [(word, word[::-1]) for word in words(60)])
    built, _ = configure(str(path), given)
    check(built, given)


@pytest.mark.parametrize("given", LABELS, ids=" ".join)
def test_a_kind_for_labels_can_be_set_alone(given: list[str], tmp_path: Path) -> None:
    rows = [(f"1 2 {number}", "0 1 " * ("task=tag" in given) + str(number % 2)) for number in range(40)]
    path = write_rows(tmp_path / "rows.tsv", rows)
    built, reasons = configure(str(path), given)
    check(built, given)
    if "steps=20" in given[-1]:
        assert built.data.max_length in (19, 20)  # series have no <eos>
        assert f"length: up to {built.data.max_length} tokens, all that the model reads" in reasons


def check(built: object, given: list[str]) -> None:
    for setting in given:
        place, _, value = setting.partition("=")
        found = built
        for name in place.split("."):
            found = getattr(found, name)
        assert str(found) == value


def test_what_the_user_sets_does_not_yield(tmp_path: Path) -> None:
    path = str(write_rows(tmp_path / "pairs.tsv", [(word, word[::-1]) for word in words(60)]))
    for given, message in (
        (["model.encoder.kind=dense", "data.max_length=40"], "data.max_length: found 40"),
        (["model.encoder.kind=character-words", "tokenizer.source.kind=words"], "reads characters"),
        (["model.kind=copy", "tokenizer.target.kind=words"], "needs one vocabulary"),
    ):
        with pytest.raises(ConfigError, match=message):
            configure(path, given)
