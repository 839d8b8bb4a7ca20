"""Dragoman: sequence-to-sequence learning from pairs.

    import dragoman

    dragoman.train("pairs.tsv", "runs/x")
    run = dragoman.load("runs/x")
    print(run.predict(["hello"])[0].text)

The names in `__all__` are the public interface. They keep their meaning within a minor version; a name that must go
warns for one minor version first. All other modules may change at any time, but for what docs/how-to/library.md and
docs/how-to/extending/ show.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias, overload

from dragoman.base import (
    ConfigError,
    DataError,
    DragomanError,
    Interrupted,
    MissingExtraError,
    RunError,
    UnseenTextWarning,
    __version__,
    register,
    terminal,
)

if TYPE_CHECKING:
    from typing import Unpack

    from dragoman.auto import (
        Adaptation,
        CheckOptions,
        CompareOptions,
        DemoOptions,
        DistilOptions,
        Given,
        Method,
        SearchOptions,
        SettingsKeywords,
        TrainingData,
        TrainKeywords,
        check,
        compare_systems,
        demo,
        distil,
    )
    from dragoman.auto.search import search
    from dragoman.data import ReviewOptions, review
    from dragoman.data.cleaning import CleanOptions, clean
    from dragoman.decoding import DecodingOptions
    from dragoman.documents import QAOptions, TranslateOptions, qa, translate
    from dragoman.exchange import ExportOptions, ImportOptions, export, import_model
    from dragoman.inference import (
        BackTranslateOptions,
        Completer,
        DecodingKeywords,
        Labeler,
        Prediction,
        Predictor,
        back_translate,
    )
    from dragoman.inference.align import AlignOptions, TermOptions, align, terms
    from dragoman.inspect import (
        BenchOptions,
        CalibrateOptions,
        InfoOptions,
        ProbeOptions,
        ShortlistOptions,
        SuiteOptions,
    )
    from dragoman.inspect.measure import (
        bench,
        calibrate,
        info,
        probe,
        run_suite,
        score_alignment,
        score_files,
        shortlist,
    )
    from dragoman.lecture import Lecture, LectureOptions, WorkedOptions, worked
    from dragoman.scoring import Curve, ScoreAlignmentOptions, ScoreOptions, Scores, compare, score
    from dragoman.serving import ServeOptions, serve
    from dragoman.training import OnMetrics

__all__ = [
    "AlignOptions",
    "BackTranslateOptions",
    "BenchOptions",
    "CalibrateOptions",
    "CheckOptions",
    "CleanOptions",
    "CompareOptions",
    "Completer",
    "ConfigError",
    "DataError",
    "DecodingOptions",
    "DemoOptions",
    "DistilOptions",
    "DragomanError",
    "ExportOptions",
    "ImportOptions",
    "InfoOptions",
    "Interrupted",
    "Labeler",
    "Lecture",
    "LectureOptions",
    "MissingExtraError",
    "Prediction",
    "Predictor",
    "ProbeOptions",
    "QAOptions",
    "ReviewOptions",
    "RunError",
    "ScoreAlignmentOptions",
    "ScoreOptions",
    "Scores",
    "SearchOptions",
    "ServeOptions",
    "ShortlistOptions",
    "SuiteOptions",
    "TermOptions",
    "TranslateOptions",
    "UnseenTextWarning",
    "WorkedOptions",
    "__version__",
    "adapt",
    "align",
    "back_translate",
    "bench",
    "calibrate",
    "check",
    "clean",
    "compare",
    "compare_systems",
    "curve",
    "demo",
    "distil",
    "export",
    "import_model",
    "info",
    "load",
    "make_lecture",
    "probe",
    "qa",
    "register",
    "review",
    "run_suite",
    "score",
    "score_alignment",
    "score_files",
    "search",
    "serve",
    "shortlist",
    "terms",
    "train",
    "translate",
    "worked",
]

terminal.pictures = lambda: import_module("dragoman.inspect.notebook")

# Imported when first used: they need torch, and `import dragoman` should not take its two seconds.
_LATE = {
    "AlignOptions": "dragoman.inference.align.alignments",
    "BackTranslateOptions": "dragoman.inference.back_translation",
    "BenchOptions": "dragoman.inspect.options",
    "CalibrateOptions": "dragoman.inspect.options",
    "CheckOptions": "dragoman.auto.options",
    "CleanOptions": "dragoman.data.cleaning.rules",
    "CompareOptions": "dragoman.auto.compare",
    "Completer": "dragoman.inference.completer",
    "DecodingOptions": "dragoman.decoding.options",
    "DemoOptions": "dragoman.auto.demonstration",
    "DistilOptions": "dragoman.auto.options",
    "ExportOptions": "dragoman.exchange.options",
    "ImportOptions": "dragoman.exchange.options",
    "InfoOptions": "dragoman.inspect.options",
    "Labeler": "dragoman.inference.labeler",
    "Lecture": "dragoman.lecture.making",
    "LectureOptions": "dragoman.lecture.options",
    "Prediction": "dragoman.inference.prediction",
    "Predictor": "dragoman.inference.predictor",
    "ProbeOptions": "dragoman.inspect.options",
    "QAOptions": "dragoman.documents.bilingual",
    "ReviewOptions": "dragoman.data.correction_log",
    "ScoreAlignmentOptions": "dragoman.scoring.options",
    "ScoreOptions": "dragoman.scoring.options",
    "Scores": "dragoman.scoring.report",
    "SearchOptions": "dragoman.auto.options",
    "ServeOptions": "dragoman.serving.start",
    "ShortlistOptions": "dragoman.inspect.options",
    "SuiteOptions": "dragoman.inspect.options",
    "TermOptions": "dragoman.inference.align.alignments",
    "TranslateOptions": "dragoman.documents.files",
    "WorkedOptions": "dragoman.lecture.worked_numbers",
    "align": "dragoman.inference.align.verbs",
    "back_translate": "dragoman.inference.back_translation",
    "bench": "dragoman.inspect.measure.speed",
    "calibrate": "dragoman.inspect.measure.calibration",
    "check": "dragoman.auto.training",
    "clean": "dragoman.data.cleaning.cleaner",
    "compare": "dragoman.scoring.report",
    "compare_systems": "dragoman.auto.compare",
    "demo": "dragoman.auto.demonstration",
    "distil": "dragoman.auto.distillation",
    "export": "dragoman.exchange.export_check",
    "import_model": "dragoman.exchange.huggingface.importing",
    "info": "dragoman.inspect.measure.run_summary",
    "probe": "dragoman.inspect.measure.template_probes",
    "qa": "dragoman.documents.bilingual",
    "review": "dragoman.data.correction_log",
    "run_suite": "dragoman.inspect.measure.suite",
    "score": "dragoman.scoring.report",
    "score_alignment": "dragoman.inspect.measure.scored_files",
    "score_files": "dragoman.inspect.measure.scored_files",
    "search": "dragoman.auto.search.verb",
    "serve": "dragoman.serving.start",
    "shortlist": "dragoman.inspect.measure.shortlists",
    "terms": "dragoman.inference.align.verbs",
    "translate": "dragoman.documents.files",
    "worked": "dragoman.lecture.worked_numbers",
}

Folders: TypeAlias = str | Path | Sequence[str | Path]
SearchTask = Literal["translate", "transcribe", "caption"]
LabelTask = Literal["classify", "tag", "regress", "masked-language-model"]


@overload
def load(
    run: Folders,
    device: str = ...,
    options: DecodingOptions | None = ...,
    *,
    task: SearchTask | None = ...,
    **keywords: Unpack[DecodingKeywords],
) -> Predictor: ...


@overload
def load(run: Folders, device: str = ..., options: None = ..., *, task: LabelTask) -> Labeler: ...


@overload
def load(run: Folders, device: str = ..., options: None = ..., *, task: Literal["language-model"]) -> Completer: ...


def load(
    run: Folders,
    device: str = "auto",
    options: DecodingOptions | None = None,
    *,
    task: str | None = None,
    **keywords: Unpack[DecodingKeywords],
) -> Predictor | Labeler | Completer:
    """Open a trained run to `predict` (a language model: `complete`) and `evaluate`.

    Several runs that share their vocabularies become an ensemble. `options` and keywords such as `beam=8` are the
    defaults of every call.

    The task of the run decides what comes back: a `Predictor` for models that search for a text, a `Labeler` for
    labels, tags and numbers, a `Completer` for language models. A type checker assumes a Predictor; `task="tag"` tells
    it otherwise, and a run with another task is an error then.
    """
    from dragoman.inference import load_run

    opened = load_run(run, device, options, **keywords)
    check_task(opened, task)
    return opened


def check_task(opened: Predictor | Labeler | Completer, task: str | None) -> None:
    if task is not None and opened.run.task.name != task:
        raise RunError(f'{opened.run.folder}: found task = "{opened.run.task.name}", expected "{task}"')


@overload
def train(
    data: TrainingData,
    run: str | Path | None = ...,
    *overrides: str,
    task: SearchTask | None = ...,
    **keywords: Unpack[TrainKeywords],
) -> Predictor: ...


@overload
def train(
    data: TrainingData,
    run: str | Path | None = ...,
    *overrides: str,
    task: LabelTask,
    **keywords: Unpack[TrainKeywords],
) -> Labeler: ...


@overload
def train(
    data: TrainingData,
    run: str | Path | None = ...,
    *overrides: str,
    task: Literal["language-model"],
    **keywords: Unpack[TrainKeywords],
) -> Completer: ...


def train(
    data: TrainingData,
    run: str | Path | None = None,
    *overrides: str,
    valid: Given = None,
    test: Given = None,
    preset: str | None = None,
    task: str | None = None,
    on_metrics: OnMetrics | None = None,
    quiet: bool = False,
    **settings: Unpack[SettingsKeywords],
) -> Predictor | Labeler | Completer:
    """Train a run and open it. Training resumes in an existing run folder.

    `data` is one of:

    - a file of pairs, or several: settings are chosen for the data;
    - pairs in memory: a list or any iterable of (source, target) or of dicts, a pandas or polars DataFrame, a pyarrow
      Table, a Hugging Face Dataset. They are written to a file in the cache first, which training reads and resumes
      with;
    - a dataset of several parts, such as a Hugging Face DatasetDict: `train`, and if it has them `validation` and
      `test`;
    - a configuration: a TOML file, a table of settings, or a `Config`;
    - the folder of a run, which is resumed.

    `valid` are validation data like `data`; they choose the best weights. The trained run is scored on `test`, and
    `run.test_scores` has the result. `on_metrics(step, metrics)` is called with every row of metrics.jsonl, such as
    {"train/loss": 2.1} or {"valid/loss": 2.0}; an exception that it raises ends training.

    Settings are text, as in "train.steps=2000", or tables: `train={"steps": 2000}`. `preset` and `task` are settings,
    too; `task` tells a type checker what comes back, as in `load`. Without `run`, a file `my.toml` or `my.tsv` trains
    in `runs/my`.
    """
    from dragoman.auto import assignments
    from dragoman.auto import train as train_run

    if isinstance(run, str) and "=" in run and not Path(run).exists():
        raise TypeError(
            f"train: found {run!r} as the run folder, which looks like a setting; settings come after the folder: "
            f'train(DATA, "runs/my", {run!r})'
        )
    named = [f"{name}={value}" for name, value in (("task", task), ("preset", preset)) if value is not None]
    overrides = (*named, *assignments(settings, task), *overrides)
    opened = train_run(data, run, overrides, valid=valid, test=test, on_metrics=on_metrics, quiet=quiet)
    check_task(opened, task)
    return opened


def adapt(
    run: str | Path,
    corrections: str | Path | Iterable[object],
    *overrides: str,
    general: str | Path | None = None,
    method: Method = "auto",
    mix: float = 1.0,
    tag: str | None = None,
    device: str = "auto",
    from_server: bool = False,
    quiet: bool = False,
) -> Adaptation:
    """Make a new version of a run from corrected outputs; it is used from now on if it is better.

    `corrections` are a file, or pairs of source and correction; with `from_server` the folder of a server, of which
    accepted corrections of this run count. `general` names pairs to mix in, `mix` of them for each
    correction, and to judge by; by default they come from the data of the run. `method` says what is trained:
    "adapters" or the "whole" model. The result tells whether the new version was kept, and the scores that decided.
    """
    from dragoman.auto import AdaptOptions
    from dragoman.auto import adapt as adapt_run
    from dragoman.training import shown_to_caller

    options = AdaptOptions(
        None if general is None else str(general), method, mix, tag=tag, overrides=overrides, device=device,
        from_server=from_server,
    )  # fmt: skip
    with shown_to_caller(quiet) as display:
        return adapt_run(run, corrections, options, display)


def curve(
    data: str | Path | Iterable[object],
    run: str | Path | None = None,
    *overrides: str,
    more: int | Sequence[int] = (),
    metric: str | None = None,
    seconds: float | None = None,
    test: str | Path | None = None,
    device: str = "auto",
    quiet: bool = False,
) -> Curve:
    """Train on 1/8, 1/4, 1/2 and all of the data, and predict what `more` pairs would bring.

    `data` is a file of pairs, pairs in memory, or a configuration file; the trainings are in the folder `run`, in
    `runs/NAME-curve` for a file. `seconds` limits all trainings together. All sizes are judged by the pairs of `test`,
    or by a part of the data. The result has the measured `points` and the `gains`; `result.gain(10_000)` predicts more.
    """
    from dragoman.auto import CurveOptions, learning_curve
    from dragoman.base import run_name
    from dragoman.data.readers import as_training_data
    from dragoman.training import shown_to_caller

    if run is None and not isinstance(data, str | Path):
        raise TypeError("curve needs run=FOLDER when the data are not a file")
    folder = Path(run) if run is not None else Path("runs") / f"{run_name(str(data))}-curve"
    wanted = (more,) if isinstance(more, int) else tuple(more)
    test = None if test is None else str(test)
    options = CurveOptions(wanted, test, metric, seconds, overrides, device=device)
    with shown_to_caller(quiet) as display:
        return learning_curve(as_training_data(data, overrides), folder, options, display)


def make_lecture(topic: str | None = None, options: LectureOptions | None = None) -> Lecture:
    """Make the companion of a course, or what one topic of it needs: sample files, tiny runs, figures, a page.

    What is finished is not made again. Each figure of the result has its command, and a question with its answer.
    """
    from dragoman.commands.root import cli
    from dragoman.lecture import make_lecture as make

    return make(cli, topic, options)


def __getattr__(name: str) -> object:
    if name in _LATE:
        return getattr(import_module(_LATE[name]), name)
    raise AttributeError(f"module 'dragoman' has no attribute {name!r}")
