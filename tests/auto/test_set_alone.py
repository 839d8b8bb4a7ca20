"""A kind of model, encoder, decoder or pooling that a user sets alone: the planner's own choices yield to it."""

from __future__ import annotations

import random
from dataclasses import replace
from operator import attrgetter
from pathlib import Path

import pytest

from dragoman.auto import CheckOptions
from dragoman.auto.checking import check
from dragoman.auto.configure import configure
from dragoman.base import ConfigError
from dragoman.base.config.fields import accepted, fields_of, type_hints
from dragoman.runs.tasks import TASKS, Config
from tests.auto.test_configure import KINDS
from tests.conftest import words, write_rows

USUAL = ("encoder-decoder", "classifier", "tagger", "masked-lm", "language-model")
PARTS = ("encoder", "decoder", "pooling")
MEDIA = ("resnet", "patches", "torchvision", "frames")
# What no data of a row's kind can have, and the command line that the error names.
REFUSED = {
    **{(data, f"model.encoder.kind={kind}"): "model.encoder.kind=recurrent"
       for data in ("tag", "classify", "regress", "tag series", "classify series", "regress series")
       for kind in MEDIA},
    ("tag", "model.encoder.kind=dense"): "model.encoder.kind=recurrent",
    ("tag series", "model.encoder.kind=dense"): "model.encoder.kind=recurrent",
    ("tag series", "model.kind=hmm"): "model.kind=tagger",
}  # fmt: skip


def settings_of(data: str) -> list[str]:
    """Each kind of model for such data, and each kind of its parts, as somebody would set it alone."""
    found: list[str] = []
    for model in accepted(type_hints(TASKS[data.split()[0]].config)["model"]).tables:
        if (data, model.kind) != ("regress", "kalman"):  # it reads series
            found.append(f"model.kind={model.kind}")
        for part in PARTS if model.kind in USUAL else ():
            tables = accepted(type_hints(model)[part]).tables if part in fields_of(model) else []
            found += [f"model.{part}.kind={table.kind}" for table in tables]
            found += [f"model.{part}.kind={table.kind} model.{part}.steps=20" for table in tables
                      if part == "pooling" and "steps" in fields_of(table)]  # fmt: skip
    return list(dict.fromkeys(found))


def rows(data: str) -> list[tuple[str, ...]]:
    draw = random.Random(1)
    names = words(60, seed=2)
    texts = [" ".join(draw.sample(names, draw.randint(3, 6))) for _ in range(60)]
    series = [" ".join(f"{draw.random():.2f}" for _ in range(12)) for _ in range(60)]
    task, _, form = data.partition(" ")
    sources = {"series": series, "words": names}.get(form, texts)
    if task == "translate":
        return [(source, source[::-1] if form else " ".join(reversed(source.split()))) for source in sources]
    labels = {
        "tag": lambda one: " ".join("NV"[unit < "d"] for unit in one.split()) if form != "series" else one,
        "classify": lambda one: "yes" if "a" in one or one < "0.5" else "no",
        "regress": lambda one: str(len(one)) if form != "series" else one.split()[0],
    }
    return [(one, labels[task](one)) if task in labels else (one,) for one in sources]


DATA = (
    "translate", "translate words", "tag", "tag series", "classify", "classify series", "regress", "regress series",
    "language-model", "masked-language-model",
)  # fmt: skip
ALONE = [(data, setting) for data in DATA for setting in settings_of(data)]


def configured(folder: Path, data: str, *given: str) -> Config:
    task = data.split()[0]
    path = write_rows(folder / ("text.txt" if "model" in task else "rows.tsv"), rows(data))
    config, reasons = configure(str(path), [f"task={task}", *given])
    for setting in given:
        place, _, value = setting.partition("=")
        assert str(attrgetter(place)(config)) == value
    assert all(reasons)
    return config


@pytest.mark.parametrize(("data", "settings"), ALONE, ids=[" ".join(one) for one in ALONE])
def test_what_the_planner_chose_yields_to_a_setting(tmp_path: Path, data: str, settings: str) -> None:
    if (other := REFUSED.get((data, settings))) is None:
        configured(tmp_path, data, *settings.split())
        return
    with pytest.raises(ConfigError) as caught:
        configured(tmp_path, data, settings)
    place, _, kind = settings.partition("=")
    assert kind in str(caught.value)
    assert place.rpartition(".")[0] in str(caught.value)
    assert other in str(caught.value)
    configured(tmp_path, data, other)


@pytest.mark.parametrize("pairs", [30, 29_000])
@pytest.mark.parametrize("kind", KINDS)
def test_choices_for_any_pairs_yield(kind: str, pairs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each default model brings its own preset, tokenizers, objective and tied weights."""
    monkeypatch.setattr("dragoman.auto.configure.profile_pairs", lambda *given: replace(KINDS[kind], pairs=pairs))
    for setting in settings_of("translate"):
        configured(tmp_path, "translate", setting, "train.device=cpu")


@pytest.mark.slow  # minutes: the default sizes of Transformers and BERT
@pytest.mark.parametrize(("data", "settings"), [one for one in ALONE if one not in REFUSED])
def test_what_is_set_alone_trains(cached: Path, tmp_path: Path, data: str, settings: str) -> None:
    said: list[str] = []
    check(configured(tmp_path, data, *settings.split()), said.append, CheckOptions(), lambda *what: None, None)
    assert said


def test_what_the_user_set_stays(tmp_path: Path) -> None:
    """A mend of a setting that the user gave would hide what was asked for."""
    with pytest.raises(ConfigError, match=r"^data.max_length: found 100, but model.pooling.steps = 20"):
        configured(tmp_path, "classify", "model.pooling.kind=step-weights", "data.max_length=100")
    with pytest.raises(ConfigError, match=r"reads characters, found tokenizer.source = 'words'"):
        configured(tmp_path, "classify", "model.encoder.kind=character-words", "tokenizer.source=words")
