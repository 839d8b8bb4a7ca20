"""Adapt a run to corrected outputs, and keep the new version only if it is better.

The corrections are mixed with general pairs, so that the model does not forget (mixed fine-tuning: Chu, Dabre and
Kurohashi 2017). Held-out corrections and general text then judge the old and the new version by paired bootstrap.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dragoman.auto.distillation import write_rows
from dragoman.auto.options import AdaptOptions
from dragoman.base import (
    ConfigError,
    DataError,
    DragomanError,
    RunError,
    digest,
    hint,
    make_folder,
    refuse_links,
    remove_folder,
    write_text,
)
from dragoman.base import config as settings
from dragoman.classical import FittedModel
from dragoman.data import (
    CorrectionLog,
    Example,
    Fault,
    FaultError,
    TrainValidSplit,
    make_example,
    source_hash,
)
from dragoman.data.cleaning import Profile, Report, Rule, Settings, chosen_rules, judge
from dragoman.data.readers import (
    READERS,
    ReadOptions,
    check_file,
    compression_of,
    looks_like_header,
    read_pairs,
    suffix_of,
)
from dragoman.documents import FORMATS, MAX_BYTES, open_document
from dragoman.inference import as_examples, load_predictor
from dragoman.runs import (
    Run,
    Version,
    add_version,
    current_version,
    list_versions,
    locked,
    train,
    use_version,
    versions_folder,
)
from dragoman.runs.tasks import Config, build
from dragoman.scoring import References, SystemScore, TextMetric, bootstrap, compare, metrics_by_name, metrics_for
from dragoman.training import Display, read_tensors

# --- corrections: read, filtered, some set aside to judge with

FEWEST = 20  # usable corrections: with fewer nothing can be said of the result
TESTED, VALIDATED = 0.2, 0.1  # shares that judge the new version, and that choose its checkpoint
MISTAKEN = 0.01  # a rule that rejects more of a run's own training pairs says nothing about its corrections
SETTINGS = Settings()


class Corrections(NamedTuple):
    """Usable corrections in three parts, no source in two of them."""

    train: list[Example]
    valid: list[Example]
    test: list[Example]
    report: Report  # of what was filtered out

    @property
    def usable(self) -> int:
        return len(self.train) + len(self.valid) + len(self.test)


def read_corrections(data: str | Path | Iterable[object], options: ReadOptions) -> Iterator[Example | Fault]:
    """The pairs (source, correction) of a file or of Python rows.

    Lines may be source and correction, or source, output and correction. Of PO and XLIFF files only those translations
    count that a person has translated or reviewed.
    """
    if not isinstance(data, str | Path):
        return iter(as_examples(data))
    path = Path(data)
    check_file(path)
    if suffix_of(path) in FORMATS and suffix_of(path) not in READERS and suffix_of(path) != ".txt":
        return confirmed_pairs(path, options)
    return read_pairs(path, with_layout(path, options))


def accepted_corrections(run: Run, folder: str, tag: str | None) -> Iterator[Example | Fault]:
    """The pairs of a server's corrections of this run, those that a reviewer has accepted.

    A run is known by its folder, or by its weights where the folder has moved since.
    """
    weights = {run.weights_digest(), *(version.digest for version in list_versions(run))}
    place = str(run.folder.resolve())
    log = CorrectionLog(folder)
    accepted = log.read("accepted")
    ours = [item for item in accepted if item.tag == (tag or "") and (item.run == place or item.weights in weights)]
    if not ours:
        others = sorted({f"{item.run}{f' with tag {item.tag}' if item.tag else ''}" for item in accepted})
        found = f"accepted corrections only of {', '.join(others)}" if others else "no accepted correction"
        raise DataError(
            f"{log.path}: found {found}, expected some of {place}{f' with tag {tag}' if tag else ''}; look at them "
            f"with: dragoman corrections list {folder}"
        )
    return pairs_of(((item.source, item.correction, f"correction {item.id}") for item in ours), log.path, ReadOptions())


def with_layout(path: Path, options: ReadOptions) -> ReadOptions:
    """Column 3 is the correction of a file with three columns; a first line of names is no correction."""
    rows = READERS.of(path).first_rows(path)
    if not options.header and looks_like_header(rows) and not READERS.of(path).skips_header(rows[0]):
        options = replace(options, header=True)
    if not options.columns and rows and all(len(row) == 3 for row in rows):
        return replace(options, columns=("1", "3"))
    return options


def confirmed_pairs(path: Path, options: ReadOptions) -> Iterator[Example | Fault]:
    if compression_of(path):
        raise DataError(f"{path}: found a compressed document, expected a plain one")
    if path.stat().st_size > MAX_BYTES:
        raise DataError(f"{path}: found {path.stat().st_size:,} bytes, expected at most {MAX_BYTES:,}")
    confirmed = list(open_document(str(path), path.read_bytes()).confirmed())
    yield from pairs_of(confirmed, path, options)
    if not confirmed:
        raise DataError(
            f"{path}: found no translation that a person has confirmed, expected some: entries of PO files that are "
            "not fuzzy, targets of XLIFF files with approved or a state such as translated, reviewed or final"
        )


def pairs_of(texts: Iterable[tuple[str, str, str]], path: Path, options: ReadOptions) -> Iterator[Example | Fault]:
    """Pairs of source and correction, each with its place in a file; white space becomes single spaces."""
    for number, (source, target, place) in enumerate(texts, 1):
        try:
            yield make_example(
                " ".join(source.split()), [" ".join(target.split())], str(path), number, options.max_characters
            )
        except FaultError as fault:
            yield fault.at(f"{path}: {place}")


def filter_corrections(items: Sequence[Example | Fault], usual: Sequence[Example]) -> tuple[list[Example], Report]:
    """The corrections that pass the rules of `clean`, and a report of the others.

    What is usual are the run's own training pairs, not the corrections: those may be few, or sent by strangers.
    """
    profile = Profile()
    for example in usual:
        profile.add(example.source, example.references[0])
    rules = [rule for rule in chosen_rules(("contradiction",), ()) if accepts_training_pairs(rule, profile, usual)]
    report, kept = Report(rules), []
    for verdict in judge(lambda: iter(items), rules, SETTINGS, lambda doing, count: None, profile):
        report.add(verdict)
        if not verdict.rule and isinstance(verdict.item, Example):
            kept.append(verdict.item)
    return kept, report


def accepts_training_pairs(rule: Rule, profile: Profile, usual: Sequence[Example]) -> bool:
    """Whether a rule accepts the training pairs of a run: one that corrects spelling has sources as targets."""
    check = rule.build(profile, SETTINGS)
    if check is None or not usual:
        return True
    return sum(bool(check(example.source, example.references[0])) for example in usual) <= MISTAKEN * len(usual)


def prepare_corrections(
    items: Iterable[Example | Fault], usual: Sequence[Example], tag: str | None, name: str
) -> Corrections:
    """Filter corrections and split them by a hash of their source, so that later corrections move few of them."""
    every = [item._replace(tag=tag) if tag and isinstance(item, Example) else item for item in items]
    kept, report = filter_corrections(every, usual)
    if len(kept) < FEWEST:
        reasons = ", ".join(f"{rule} {count:,}" for rule, count in report.rejected.most_common()) or "none"
        faults = [str(item) for item in every if isinstance(item, Fault)]
        first = f"; first fault: {faults[0]}" if faults else ""
        raise DataError(
            f"{name}: found {len(kept):,} usable corrections, expected {FEWEST} or more (rejected: {reasons}){first}"
        )
    kept.sort(key=source_hash)
    tested, validated = (math.ceil(share * len(kept)) for share in (TESTED, VALIDATED))
    aside = tested + validated
    return Corrections(kept[aside:], kept[tested:aside], kept[:tested], report)


# --- the new version

LARGE = 30_000_000  # parameters from which adapters are trained: the weights of a version would take long to write
EPOCHS = 10  # at most: the validation part of the corrections decides
STEPS_PER_EPOCH = 10  # at least, so that a few corrections are not one single batch
SMALLEST_BATCH = 256  # tokens
# The whole model: at most the rate of the run; 5e-4 gained more and cost general text. Adapters start from zero beside
# frozen weights and need more: the rate of an imported run, 5e-5, is one for all its weights and taught them nothing.
RATES = {"whole": 2e-4, "adapters": 1e-3}
POOL = 20_000  # general pairs, of which every epoch takes others
JUDGED = 4_000  # general pairs that judge, at most; 520 of them did not show a loss of 0.7 chrF that 1,000 did
LOSS = 1.0  # points of the metric: a version with a lower score is not kept unless a larger loss is ruled out
PROFILED = 5_000  # general pairs that say what is usual
SIGNIFICANT = 0.05


class General(NamedTuple):
    """Text like that of the training data."""

    train: list[Example]
    test: list[Example]


class Judgement(NamedTuple):
    """The old and the new version on the same texts, by one metric or several; the first decides."""

    segments: int
    scores: dict[str, tuple[float, float, float]]  # before, after, p-value
    better: bool
    significant: bool
    ruled_out: float  # points: with a confidence of 95 % the new version loses less than this by the first metric

    @property
    def worse(self) -> bool:
        before, after, _ = next(iter(self.scores.values()))
        return not self.better and before != after

    @property
    def bound(self) -> str:
        """What the texts can say about a loss."""
        name = metrics_by_name()[next(iter(self.scores))].label
        return f"a loss of {self.ruled_out:.1f} points of {name} or more is ruled out (95 %)"

    def __str__(self) -> str:
        metrics = metrics_by_name()
        return ", ".join(
            f"{name} {metrics[name].format(before)} → {metrics[name].format(after)} (p = {p:.3f})"
            for name, (before, after, p) in self.scores.items()
        )


@dataclass(frozen=True)
class Adaptation:
    """The result of `adapt`."""

    kept: bool  # whether the new version is in use now
    version: int | None  # that is in use; None: the run was never adapted
    corrections: int  # usable ones
    rejected: dict[str, int]  # corrections that were filtered out, by rule
    method: str
    held_out: Judgement
    general: Judgement

    @property
    def reason(self) -> str:
        """Why the new version was not kept; empty if it was."""
        if not self.held_out.better:
            return "it is not better on held-out corrections"
        if self.general.significant and self.general.worse:
            return "it is significantly worse on general text"
        return "" if self.kept else f"general text leaves room for a loss of {self.general.ruled_out:.1f} points"

    def as_dict(self) -> dict[str, Any]:
        table = asdict(self) | {"reason": self.reason}
        for name in ("held_out", "general"):
            judged = getattr(self, name)
            scores = {
                metric: dict(zip(("before", "after", "p"), three, strict=True))
                for metric, three in judged.scores.items()
            }
            table[name] = {"segments": judged.segments, "ruled_out": judged.ruled_out, **scores}
        return table


def adapt(
    folder: str | Path, data: str | Path | Iterable[object], options: AdaptOptions, display: Display
) -> Adaptation:
    """Make a new version of a run from corrections; the old one stays in use unless the new one is better."""
    run = Run(folder)
    weights = check_adaptable(run, options)
    name = str(data) if isinstance(data, str | Path) else "corrections"
    general = read_general(run, options, display)
    if options.from_server:
        items: Iterable[Example | Fault] = accepted_corrections(run, name, options.tag)
    else:
        columns = tuple(name.strip() for name in (options.columns or "").split(",") if name.strip())
        items = read_corrections(data, ReadOptions(columns, options.header))
    corrections = prepare_corrections(items, general.train[:PROFILED], options.tag, name)
    held_out = {example.model_input for example in (*corrections.test, *corrections.valid)}
    general = General([pair for pair in general.train if pair.model_input not in held_out], general.test)
    method = options.method
    if method == "auto":  # adapters for a large model that has layers for them; the whole model learns more
        is_large = sum(weights.values()) >= LARGE and any(".blocks." in name for name in weights)
        method = "adapters" if is_large else "whole"
    rejected = dict(corrections.report.rejected.most_common())
    display.info(
        f"corrections: {corrections.report.total:,} read, {corrections.usable:,} usable"
        + (f" (rejected: {', '.join(f'{rule} {count:,}' for rule, count in rejected.items())})" if rejected else ""),
        f"{len(corrections.train):,} to train on, {len(corrections.valid):,} to choose the checkpoint, "
        f"{len(corrections.test):,} to judge; general pairs: {len(general.train):,} to mix in, "
        f"{len(general.test):,} to judge",
        f"method: {'adapters' if method == 'adapters' else 'the whole model'}",
    )
    with locked(run.folder):
        work = versions_folder(run) / "work"
        config = write_work(run, work, corrections, general, method, options)
        train(config, work / "run", display)
        display.close()
        judged = [
            judge_versions(run, work / "run", texts, options.device) for texts in (corrections.test, general.test)
        ]
        kept = judged[0].better and (not judged[1].worse or (judged[1].ruled_out < LOSS and not judged[1].significant))
        result = Adaptation(kept, None, corrections.usable, rejected, method, *judged)
        details = {key: value for key, value in result.as_dict().items() if key not in ("kept", "version")}
        entry = add_version(run, Run(work / "run").weights_path() if kept else None, name, details)
        (work / "key").unlink()  # or a command killed while it removes the run would go on with the rest of it
        remove_folder(work)
        if kept:
            use_version(run, entry)  # last: the same command, given again, would adapt the new version
    used: Version | None = entry if kept else current_version(run)
    return replace(result, version=used.number if used else None)


def check_adaptable(run: Run, options: AdaptOptions) -> dict[str, int]:
    """Refuse a run that cannot learn from corrections; returns the sizes of its weights by name."""
    task = run.task
    if not task.searches or run.config.reads_media:
        raise RunError(
            f'{run.folder}: found task = "{task.name}"; adapt needs a run from text to text, as of task = "translate"'
        )
    if run.config.data.reads_more:
        raise RunError(f"{run.folder}: found data.context or data.memory, expected neither: a correction has none")
    run.check_single("corrections adapt one")
    refuse_links(versions_folder(run))
    source, target = run.tokenizers()
    if isinstance(task.model(run.config, source, target), FittedModel):
        raise RunError(
            f'{run.folder}: model.kind = "{run.config.model.kind}" is fitted, not trained by gradients; add the '
            "corrections to its data and train it anew"
        )
    if (options.tag or "") not in (source.tags or ("",)):
        found = f"'{options.tag}'" if options.tag else "none"
        expected = (
            f". {hint(options.tag or '', source.tags)}" if source.tags else ", expected none: the run has no tags"
        )
        raise ConfigError(f"tag: found {found} for corrections of {run.folder}{expected}")
    return {name: tensor.numel() for name, tensor in read_tensors(run.weights_path()).items()}


def read_general(run: Run, options: AdaptOptions, display: Display) -> General:
    """A sample of the general pairs to mix in, and others to judge by."""
    data = run.config.data
    if options.general is not None:
        data = data.without_columns(train=options.general, valid=None, holdout=JUDGED)
    try:
        split = TrainValidSplit(data, display.preparing, run.task.example_format(run.config))
        pool = sample(split.train("reading general pairs"), POOL)
        judged = sorted(split.valid("reading general pairs"), key=source_hash)[:JUDGED]
    except (DragomanError, OSError) as error:
        if options.general is not None:
            raise
        raise DataError(
            f"{error}. adapt mixes in training pairs of {run.folder} and judges by its validation pairs; where these "
            "are gone, name a file of general pairs with --general"
        ) from None
    finally:
        display.close()
    if options.general is not None and options.tag:
        pool, judged = ([pair._replace(tag=options.tag) for pair in part] for part in (pool, judged))
    return General(pool, judged)


def sample(examples: Iterable[Example], size: int) -> list[Example]:
    """So many examples at random, always the same ones (reservoir sampling)."""
    draw, kept = random.Random(1), list[Example]()
    for number, example in enumerate(examples):
        if number < size:
            kept.append(example)
        elif (place := draw.randrange(number + 1)) < size:
            kept[place] = example
    draw.shuffle(kept)
    return kept


def write_work(
    run: Run, work: Path, corrections: Corrections, general: General, method: str, options: AdaptOptions
) -> Config:
    """Write the data of the adaptation; returns its configuration. An interrupted one with the same data goes on."""
    make_folder(versions_folder(run))
    staged = make_folder(work / "data")
    share = min(1000.0, max(0.001, options.mix * len(corrections.train) / max(1, len(general.train))))
    entries: list[dict[str, Any]] = []
    for name, examples, weight in (("corrections", corrections.train, 1.0), ("general", general.train, share)):
        for tag in sorted({example.tag for example in examples}) if options.mix or name == "corrections" else ():
            path = staged / f"{name}{f'-{tag}' if tag else ''}.jsonl"
            write_rows(path, [(pair.source, *pair.references) for pair in examples if pair.tag == tag])
            entries.append({"file": str(path.absolute()), "weight": weight} | ({"tag": tag} if tag else {}))
    path = staged / "valid.jsonl"
    write_rows(path, [(pair.source, *pair.references) for pair in corrections.valid])
    valid: Any = {"file": str(path.absolute()), "tag": options.tag} if options.tag else str(path.absolute())
    table = adapted_table(run, entries, valid, method, tokens_of(run, corrections) * (1 + options.mix))
    device = () if options.device == "auto" else (f"train.device={options.device}",)
    config = build(table, [*options.overrides, *device])
    files = [digest(path) for path in sorted(staged.iterdir())]
    origin = json.dumps([run.weights_digest(), files, settings.as_table(config)], sort_keys=True, default=str)
    key = hashlib.blake2b(origin.encode(), digest_size=16).hexdigest()
    if not (work / "key").is_file() or (work / "key").read_text() != key:
        remove_folder(work / "run")
        write_text(work / "key", key)
    return config


def tokens_of(run: Run, corrections: Corrections) -> int:
    """The tokens of the longer side of all corrections."""
    source, target = run.tokenizers()
    return sum(
        max(len(source.encode(pair.source)), len(target.encode(pair.references[0]))) for pair in corrections.train
    )


def adapted_table(run: Run, entries: list[dict[str, Any]], valid: Any, method: str, tokens: float) -> dict[str, Any]:
    """The settings of the run, for a short training that starts from its weights."""
    table: dict[str, Any] = settings.as_table(run.config)
    own, train_table = run.config.train, dict(table["train"])
    batch = min(own.batch_tokens, max(SMALLEST_BATCH, int(tokens / STEPS_PER_EPOCH)))
    epoch = max(1, round(tokens / batch))
    rate = RATES[method] if method == "adapters" else min(own.optimizer.learning_rate, RATES[method])
    dropped = ("lora", "objective", "average", "rates", "vectors")
    for name in (*dropped, "freeze") if method == "adapters" else dropped:  # an imported T5 stays one
        train_table.pop(name, None)
    train_table |= {
        "start_from": str(run.folder.absolute()), "steps": EPOCHS * epoch, "epochs": 0.0, "minutes": 0.0,
        "batch_tokens": batch, "accumulate": 1, "validate_every": epoch, "save_every": epoch, "log_every": epoch,
        "metric": "loss", "decode": 0, "patience": 3, "tensorboard": False,
        "optimizer": settings.as_table(own.optimizer)
        | {"learning_rate": rate, "schedule": "cosine", "warmup": epoch},
    }  # fmt: skip
    if method == "adapters":
        train_table["lora"] = {"rank": 16, "alpha": 32.0}
    data = dict(table["data"]) | {"train": entries, "valid": valid, "header": False, "hallucinate": 0}
    for name in ("columns", "general", "tag_column", "document_column"):
        data.pop(name, None)
    others = {name: value for name, value in table.items() if name != "tokenizer"}  # that of the run is taken over
    return others | {"train": train_table, "data": data}


def judge_versions(run: Run, adapted: Path, texts: Sequence[Example], device: str) -> Judgement:
    """Compare both versions on the same texts by the metric of the run."""
    units = run.config.data.units
    known = metrics_for(units)
    first = run.config.train.metric if run.config.train.metric in known else "chrf"
    names = tuple(dict.fromkeys((first, *(name for name in ("bleu", "chrf") if first in ("bleu", "chrf")))))
    inputs = [example.model_input for example in texts]
    systems = {
        name: [prediction.text for prediction in load_predictor(folder, device, split_long=False).predict(inputs)]
        for name, folder in (("before", run.folder), ("after", adapted))
    }
    compared = compare(systems, [list(example.references) for example in texts], names, units=units)
    before, after = ({score.metric: score for score in compared if score.system == name} for name in systems)

    def versus(score: SystemScore) -> tuple[float, float, float]:
        assert score.versus is not None, "the second system is compared with the first"
        return before[score.metric].score, score.score, score.versus.bootstrap

    scores = {name: versus(after[name]) for name in names}
    verdict = after[first].versus
    assert verdict is not None
    return Judgement(
        len(texts), scores, verdict.better, verdict.bootstrap < SIGNIFICANT,
        largest_loss(known[first], systems, [list(example.references) for example in texts]),
    )  # fmt: skip


def largest_loss(metric: TextMetric, systems: Mapping[str, Sequence[str]], references: References) -> float:
    """The upper bound of the loss from the first system to the second, in points, one-sided at 95 %; at least 0."""
    first, second = (bootstrap(metric, metric.statistics(outputs, references)) for outputs in systems.values())
    losses = (first - second) if metric.higher_is_better else (second - first)
    return max(0.0, metric.scale * float(np.quantile(losses, 0.95)))
