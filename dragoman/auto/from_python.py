"""What a Python user gives to `train`: data in memory, parts of a dataset, settings as keywords."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypedDict

from dragoman.auto.configure import as_entry
from dragoman.auto.request import request_of
from dragoman.auto.training import resolve
from dragoman.base import suggestion
from dragoman.base.config import as_table, either, fields_of, inline, places_named
from dragoman.data.readers import as_training_data
from dragoman.runs.tasks import DEFAULT_TASK, TASKS, Config, build
from dragoman.training import Display, OnMetrics, shown_to_caller

if TYPE_CHECKING:
    from dragoman.inference import Completer, Labeler, Predictor

TrainingData: TypeAlias = "Config | Mapping[str, object] | str | Path | Iterable[object]"
Given: TypeAlias = "str | Path | Iterable[object] | None"  # validation or test data
SettingTable: TypeAlias = "Mapping[str, object] | str"
# A dataset of several parts, such as a DatasetDict, by what publishers call them.
PARTS = {"train": ("train",), "valid": ("validation", "valid", "dev", "eval"), "test": ("test",)}


class SettingsKeywords(TypedDict, total=False):
    """Tables of settings as keywords: train={"steps": 200}. Those of `data` are text: "data.columns=a,b"."""

    tokenizer: SettingTable
    model: SettingTable
    train: SettingTable
    search: SettingTable


class TrainKeywords(SettingsKeywords, total=False):
    """The keywords of `dragoman.train`, but for the task."""

    valid: Given
    test: Given
    preset: str | None
    on_metrics: OnMetrics | None
    quiet: bool


ARGUMENTS = ("data", "run", "task", *TrainKeywords.__annotations__)


class Parts(NamedTuple):
    """The data of a training, and those that judge it."""

    train: Any
    valid: Any = None
    test: Any = None


def parts_of(data: Any, valid: Given, test: Given, display: Display) -> Parts:
    """The parts of a dataset that has them, as a Hugging Face DatasetDict; what the caller names counts first."""
    if isinstance(data, Mapping) and "train" in data and not isinstance(data["train"], Mapping | str):
        names = {part: next((name for name in known if name in data), None) for part, known in PARTS.items()}
        if unused := [str(name) for name in data if name not in names.values()]:
            display.info(f"data: found the parts {', '.join(unused[:12])} too, which training does not read")
        own = [None if name is None else data[name] for name in names.values()]
        given = Parts(*own)
        return Parts(given.train, given.valid if valid is None else valid, given.test if test is None else test)
    return Parts(data, valid, test)


def assignments(keywords: Mapping[str, object], task: str | None) -> Iterator[str]:
    """Settings as `place=value`; a TypeError for what is no table of settings."""
    config = TASKS[task if task is not None and task in TASKS else DEFAULT_TASK].config
    tables = [*fields_of(config)]
    for name, value in keywords.items():
        if name.partition(".")[0] not in tables:
            raise TypeError(unknown_keyword(name, value, places_named(config, name, ""), tables))
        yield from assigned(name, value)


def unknown_keyword(name: str, value: object, places: list[str], tables: list[str]) -> str:
    shown = repr(value)[:60]
    if places:  # the usual ones: nearest to the top
        places = [place for place in places if place.count(".") == min(other.count(".") for other in places)]
        ways = [f"{place.partition('.')[0]}={nested_text(place, shown)}" for place in places]
        texts = [f'"{place}={shown}"' for place in places]
        return f"train: found {name}={shown}, which is a setting; write {either(ways)}, or as text {either(texts)}"
    expected = [*dict.fromkeys([*ARGUMENTS, *tables])]
    return f"train: found {name}={shown}, expected an argument or a table of settings{suggestion(name, expected)}"


def nested_text(place: str, value: str) -> str:
    """Python for the table behind the first name of a place: {"steps": 200}."""
    for name in reversed(place.split(".")[1:]):
        value = f'{{"{name}": {value}}}'
    return value


def assigned(place: str, value: Any) -> Iterator[str]:
    """A setting or table as `place=value`, one for each setting."""
    if hasattr(value, "tolist"):  # a number of numpy
        value = value.tolist()
    if is_dataclass(value) and not isinstance(value, type):
        value = as_table(value)
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from assigned(f"{place}.{name}", inner)
    else:
        yield f"{place}={inline(value)}"


def train(
    data: Any,
    run: str | Path | None,
    overrides: Sequence[str] = (),
    *,
    valid: Given = None,
    test: Given = None,
    task: str | None = None,
    on_metrics: OnMetrics | None = None,
    quiet: bool = False,
) -> Predictor | Labeler | Completer:
    """Train a run as a Python program asks for it, open it, and score it on test data."""
    from dragoman.inference import load_run
    from dragoman.runs import train as train_run

    with shown_to_caller(quiet) as display:
        parts = parts_of(data, valid, test, display)
        config, folder = config_and_folder(parts, run, tuple(overrides), display)
        state = train_run(config, folder, display, on_metrics=on_metrics)
        display.info(f"run folder: {folder}")
        opened = load_run(folder)
        if parts.test is not None:
            opened.test_scores = scores_on(opened, parts.test, overrides)
            display.info(f"test: {', '.join(f'{name} {value:.4g}' for name, value in opened.test_scores.items())}")
            if on_metrics is not None:
                scores = {f"test/{name}": value for name, value in opened.test_scores.items()}
                on_metrics(state.step, scores)
    return opened


def config_and_folder(
    parts: Parts, run: str | Path | None, overrides: tuple[str, ...], display: Display
) -> tuple[Config, Path]:
    """The configuration that a training means, and its folder."""
    data, valid, _ = parts
    if valid is not None:
        overrides = (f"data.valid={inline(as_entry(as_training_data(valid, overrides, 'valid')))}", *overrides)
    if run is None and not isinstance(data, str | Path):
        raise TypeError("train needs run=FOLDER when the data are not a file")
    if isinstance(data, Config):
        if overrides:
            raise TypeError("overrides apply to a table or a file; change a Config with dataclasses.replace")
        return data, Path(str(run))
    if isinstance(data, Mapping):
        return build(data, overrides), Path(str(run))
    request = request_of(data, overrides)
    config, reasons = resolve(request, display.preparing)
    display.later(reasons)
    return config, Path(run or request.folder)


def scores_on(opened: Predictor | Labeler | Completer, test: Any, overrides: Sequence[str]) -> dict[str, float]:
    """The scores of a trained run on data that training did not read."""
    if opened.continues and not isinstance(test, str | Path):
        test = Path(str(as_training_data(test, overrides, "test")))
    found: Any = opened.evaluate(test)
    scores = getattr(found, "scores", found)
    return {name: float(value) for name, value in scores.items() if isinstance(value, int | float)}
