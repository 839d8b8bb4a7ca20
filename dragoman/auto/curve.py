"""How much more data would help: train on growing parts of the data and extend the curve of their scores."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dragoman.auto.configure import as_entry, configure
from dragoman.auto.options import CurveOptions
from dragoman.auto.search.trial_config import search_metric
from dragoman.auto.trial import train_trial
from dragoman.base import ConfigError, DataError, RunError, atomic_write, make_folder, write_text
from dragoman.base import config as settings
from dragoman.data import Example, Files, file_digest, paths_of, source_hash, usable_examples
from dragoman.data.readers import header_row
from dragoman.inference import ignore_unknown, load_predictor
from dragoman.inspect.measure import draw_learning_curve
from dragoman.inspect.views import check_plot_path
from dragoman.runs import locked
from dragoman.runs.tasks import DEFAULT_TASK, Config, build, load, task_of
from dragoman.scoring import DEFAULT_DRAWS, Curve, CurvePoint, Gain, bootstrap, interval, select_metrics
from dragoman.training import Display

FEWEST = 20  # pairs of the smallest part
MOST_HELD_OUT = 2_000
STATE = "curve.json"
READING = ("data.columns", "data.header", "data.holdout", "data.faults")  # settings that the parts need no more


class Prepared(NamedTuple):
    """The files of a curve."""

    train: list[Path]  # nested, smallest first
    pairs: list[int]
    valid: Path | None  # None: data.valid is given
    test: Path


FAR = 4  # times the data, from which on a prediction is said to be bold


def learning_curve(data: Files, folder: Path, options: CurveOptions, display: Display) -> Curve:
    """Train on every part of the data, judge all on the same texts, and predict what more data would bring.

    `data` are files of pairs, or a configuration (.toml). Trainings that the folder has already are not repeated.
    """
    if isinstance(data, str) and Path(data).is_dir():
        raise DataError(
            f"{data}: found a folder, expected data or a configuration; the settings and data of a run: "
            f"dragoman curve {Path(data) / 'config.toml'}"
        )
    deadline = None if options.seconds is None else time.time() + options.seconds
    if options.plot is not None:
        check_plot_path(options.plot)
    config = given_config(data, options)
    check_data(config)
    if options.metric is not None:
        select_metrics((options.metric,), config.data.units)
    with locked(make_folder(folder)):
        prepared = prepare(config, folder, options, is_config(data), display)
        trained, aside = [], 0.0  # seconds of a size beside its training: preparing, decoding
        for number, (path, pairs) in enumerate(zip(prepared.train, prepared.pairs, strict=True), 1):
            sized, model = sized_config(config, path, prepared.valid, options, is_config(data), display)
            display.info(f"{pairs:,} pairs ({number} of {len(prepared.train)}): {model}")
            left = None
            if deadline is not None:  # more pairs need more steps, so time is shared by pairs
                rest = deadline - time.time() - aside * (len(prepared.train) + 1 - number)
                left = max(0.0, rest) * pairs / sum(prepared.pairs[number - 1 :])
            place, before = folder / f"{number}-of-{len(prepared.train)}", time.time()
            outputs, cut, seconds = train_and_decode(sized, place, prepared.test, left, options.device, display)
            trained.append((model, outputs, cut))
            aside = max(aside, time.time() - before - seconds)
    curve = judge(sized, options, prepared, trained, folder)
    for point in curve.points:
        if point.cut_short:
            display.warning(f"--time ended the training with {point.pairs:,} pairs; it would still improve")
    if options.plot is not None:
        draw_learning_curve(curve, options.plot)
    return curve


def is_config(data: Files) -> bool:
    return isinstance(data, str) and data.lower().endswith(".toml")


def given_config(data: Files, options: CurveOptions) -> Config:
    """The configuration file with its overrides; for files of pairs one that says how to read them."""
    if isinstance(data, str) and is_config(data):
        return load(data, options.overrides)
    reading = [item for item in options.overrides if item.startswith(("data.", "task="))]
    config = build({"data": {"train": as_entry(data)}}, reading)
    return replace(config, data=replace(config.data, header=config.data.header or bool(header_row(data, config.data))))


def check_data(config: Config) -> None:
    """Refuse tasks and files of which a curve of pairs says nothing."""
    if not task_of(config).searches or config.reads_media:
        raise ConfigError(f'task: found "{config.task}"; curve needs pairs of texts, task = "{DEFAULT_TASK}"')
    if config.data.has_tags or config.data.reads_more or config.data.weights:
        raise ConfigError("data: found tags, weights or a context, expected none: draw a curve for each file alone")


def usable(config: Config, files: Files, display: Display, doing: str, several: bool = False) -> Iterator[Example]:
    example_format = task_of(config).example_format(config)
    yield from usable_examples(
        config.data, files, several_references=several, example_format=example_format, progress=display.preparing,
        doing=doing,
    )  # fmt: skip


def prepare(config: Config, folder: Path, options: CurveOptions, whole: bool, display: Display) -> Prepared:
    """Write the parts of the data, unless the folder has them; other data or settings are an error.

    `whole`: the configuration is that of the user, not only how to read the data.
    """
    files = [*paths_of(config.data.train), *paths_of(config.data.valid or ()), *paths_of(options.test or ())]
    told = settings.as_table(config) if whole else options.overrides
    content = [[file_digest(path) for path in files], told, options.parts]
    key = hashlib.blake2b(json.dumps(content, default=str).encode(), digest_size=16).hexdigest()
    names = [folder / "data" / f"train-{number}.jsonl" for number in range(1, len(options.parts) + 1)]
    valid = None if config.data.valid else folder / "data" / "valid.jsonl"
    if (state := folder / STATE).is_file():
        table = json.loads(state.read_text(encoding="utf-8"))
        if table["key"] != key:
            raise RunError(f"{folder}: has the curve of other data or settings; name another folder with --run")
        display.info(f"going on with the curve in {folder}")
    else:
        if others := [path.name for path in folder.iterdir() if path.name not in ("data", "lock", f".{STATE}.part")]:
            raise RunError(f"{folder}: already exists and has no curve (found {others[0]}); name another with --run")
        table = {"key": key, "pairs": write_parts(config, names, valid, options, display)}
        write_text(state, json.dumps(table))  # last: with it the data are complete
    return Prepared(names, table["pairs"], valid, folder / "data" / "test.jsonl")


def held_out_share(total: int) -> float:
    """The share of the data that judges: a tenth, more of few pairs, and no more than suffices."""
    return min(MOST_HELD_OUT, max(total // 10, min(200, total // 5))) / max(1, total)


def write_parts(
    config: Config, names: Sequence[Path], valid: Path | None, options: CurveOptions, display: Display
) -> list[int]:
    """Write nested training parts and what is held out; returns the pairs of each part.

    A hash of the source decides, so pairs of one source stay together and no order of the file matters.
    """
    folder = make_folder(names[0].parent)
    total = sum(1 for _ in usable(config, config.data.train, display, "reading"))
    judged = list(usable(config, options.test, display, "reading test pairs", True)) if options.test else []
    known = {example.source for example in judged}
    test = 0.0 if options.test else held_out_share(total)
    first = test + (held_out_share(total) / 2 if valid else 0.0)  # training pairs have hashes from here on
    counts = [0] * len(names)
    with ExitStack() as stack:
        beside = [
            stack.enter_context(atomic_write(path, follow_link=False)) for path in (*names, *([valid] if valid else ()))
        ]
        written = [stack.enter_context(path.open("w", encoding="utf-8")) for path in beside]
        for example in usable(config, config.data.train, display, "writing parts of the data"):
            place = source_hash(example) / 2**64
            row = json.dumps({"source": example.source, "target": example.references[0]}, ensure_ascii=False) + "\n"
            if place < test:
                judged.append(example)
            elif place < first:
                written[-1].write(row)
            elif example.source not in known:
                for number, part in enumerate(options.parts):
                    if place < first + part * (1 - first):
                        written[number].write(row)
                        counts[number] += 1
    display.close()
    if counts[0] < FEWEST or not judged:
        raise DataError(
            f"{', '.join(paths_of(config.data.train))}: found {total:,} usable pairs, expected about "
            f"{round(1.5 * FEWEST / options.parts[0]):,} or more: the smallest part of a curve needs {FEWEST}"
        )
    # One row for each source: a frequent one is right or wrong as a whole, and draws of rows would not show that.
    references: dict[str, dict[str, None]] = {}
    for example in judged:
        references.setdefault(example.source, {}).update(dict.fromkeys(example.references))
    rows = ({"source": source, "references": list(texts)} for source, texts in references.items())
    write_text(folder / "test.jsonl", "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    return counts


def sized_config(
    config: Config, path: Path, valid: Path | None, options: CurveOptions, whole: bool, display: Display
) -> tuple[Config, str]:
    """The configuration for a part of the data, that of the user or the automatic choice, and its model in words."""
    train, device = str(path.absolute()), () if options.device == "auto" else (f"train.device={options.device}",)
    if whole:
        data = replace(config.data, train=train, valid=str(valid.absolute()) if valid else config.data.valid)
        table = settings.as_table(replace(config, data=replace(data, columns=(), header=False)))
        return build(table, device), f"model: {config.model.kind}, as configured"
    kept = [item for item in options.overrides if not item.startswith(READING)]
    validation = (f"data.valid={json.dumps(str(valid.absolute()))}",) if valid else ()
    sized, reasons = configure(train, (*kept, *validation, *device), display.preparing)
    display.close()
    return sized, next((line for line in reasons if line.startswith(("model:", "preset:"))), "model: as asked")


def train_and_decode(
    config: Config, place: Path, test: Path, seconds: float | None, device: str, display: Display
) -> tuple[list[str], bool, float]:
    """The outputs of a training for the held-out texts, whether time ended it, and the seconds of its training.

    They are read if they are there already.
    """
    done, trained = place.with_name(f"{place.name}.outputs.json"), 0.0
    if not done.is_file():
        if seconds is not None:
            config = replace(config, train=replace(config.train, minutes=max(0.1, seconds / 60)))
        outcome = train_trial(config, place, display)
        trained, cut_short = outcome.seconds + outcome.overhead, seconds is not None and not outcome.complete
        display.close()
        sources = [row["source"] for row in read_rows(test)]
        outputs = load_predictor(place, device, split_long=False).stream(
            sources, scores=False, on_unknown=ignore_unknown, on_refused=lambda number, error: None
        )
        texts = [output.text for output in outputs]
        write_text(done, json.dumps({"outputs": texts, "cut_short": cut_short}, ensure_ascii=False))
    table = json.loads(done.read_text(encoding="utf-8"))
    return table["outputs"], table["cut_short"], trained


def read_rows(path: Path) -> list[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def judge(
    config: Config, options: CurveOptions, prepared: Prepared, trained: list[tuple[str, list[str], bool]], folder: Path
) -> Curve:
    """Score all sizes on the same texts and predict what more pairs would bring."""
    name = options.metric or search_metric(config)
    metric = select_metrics((name,), config.data.units)[name]
    references = [row["references"] for row in read_rows(prepared.test)]
    points, drawn = [], []
    for pairs, (model, outputs, cut_short) in zip(prepared.pairs, trained, strict=True):
        statistics = metric.statistics(outputs, references)
        drawn.append(bootstrap(metric, statistics, DEFAULT_DRAWS))  # the same draws of texts for all sizes
        points.append(CurvePoint(pairs, metric.score(statistics), interval(drawn[-1]), model, cut_short))
    curve = Curve(name, config.data.units, len(references), points, [], folder, np.stack(drawn, axis=1))
    return replace(curve, gains=[curve.gain(more) for more in options.more or (rounded(prepared.pairs[-1]),)])


def rounded(number: int) -> int:
    """The number with two digits and zeros: a prediction needs no more."""
    return round(number, 2 - len(str(number)))


def curve_lines(curve: Curve) -> list[str]:
    """A line for each size, and a sentence for each prediction."""
    metric = curve.text_metric
    lines = [
        f"{point.pairs:,} pairs: {metric.label} {metric.format(point.score)} "
        f"({' to '.join(metric.format(bound) for bound in point.interval)})"
        for point in curve.points
    ]
    return [*lines, *(gain_sentence(gain, curve) for gain in curve.gains)]


def gain_sentence(gain: Gain, curve: Curve) -> str:
    """Such as "10,000 more pairs: about +1.8 BLEU (0.9 to 2.6)"."""
    metric, low_high = curve.text_metric, gain.interval
    middle, low, high = (metric.scale * value for value in (gain.gain, *low_high))
    unit = f"points of {metric.label}" if metric.percent else metric.label
    sentence = f"{gain.more:,} more pairs: about {middle:+.1f} {unit} ({low:.1f} to {high:.1f})"
    if low <= 0 <= high:
        sentence += "; the interval has zero in it: perhaps no gain at all"
    if cut := sum(point.cut_short for point in curve.points):
        sentence += f"; --time ended {cut} of {len(curve.points)} trainings, so this says little about data: allow more"
    times = 1 + gain.more / curve.points[-1].pairs
    if times > FAR:
        sentence += f"; {times:.0f} times the data is far beyond the sizes measured"
    return sentence
