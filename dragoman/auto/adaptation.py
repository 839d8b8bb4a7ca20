"""Adapt a run to corrected outputs, and keep the new version only if it is better.

The corrections are mixed with general pairs, so that the model does not forget (mixed fine-tuning: Chu, Dabre and
Kurohashi 2017). Held-out corrections and general text then judge the old and the new version (`judgement.py`).
"""

from __future__ import annotations

import hashlib
import json
import math
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

from dragoman.auto.distillation import write_rows
from dragoman.auto.judgement import Judgement, judge_versions
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
    remove_file,
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
from dragoman.data.cleaning import Report, filter_pairs
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
from dragoman.inference import as_examples
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
from dragoman.training import Display, read_tensors

# --- corrections: read, filtered, some set aside to judge with

FEWEST = 20  # usable corrections: with fewer nothing can be said of the result
TESTED, VALIDATED = 0.2, 0.1  # shares that judge the new version, and that choose its checkpoint
# Words in the names of columns, the surest first.
SOURCES = ("source", "sources", "src", "input", "sentence", "question", "misspelling")
CORRECTIONS = (
    "correction", "corrections", "corrected", "pe", "edit", "edited", "postedit", "postedited", "fixed", "revised",
    "reviewed", "right", "correct", "human", "reference", "ref", "target", "tgt", "trg", "translation", "output",
)  # fmt: skip
ABOUT = {"score", "id", "index", "by", "author", "user", "date", "time", "comment", "rating", "quality", "language"}
WORD, NUMBER = re.compile("[a-z]+"), re.compile(r"[+-]?\d+(?:[.,]\d+)?\s*%?")


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
    """The columns of source and correction: a first line of names tells; without one column 3 of three corrects."""
    rows = READERS.of(path).first_rows(path)
    if not rows:
        return options
    skipped = READERS.of(path).skips_header(rows[0])
    named = options.header or skipped or looks_like_header(rows)
    options = replace(options, header=named and not skipped)
    if options.columns:
        return options
    names = [WORD.findall(cell.lower()) for cell in rows[0]] if named else []
    source, correction = column_named(names, SOURCES), column_named(names, CORRECTIONS)
    if source is None and names and not ABOUT.intersection(names[0]):
        source = 1
    if source != correction and None not in (source, correction):
        return replace(options, columns=(str(source), str(correction)))
    found = ""
    if named and len(rows[0]) > 2:
        found = f"the columns {', '.join(rows[0])}, expected source and correction among them"
    elif not named and all(len(row) == 3 for row in rows):
        if all(is_number(row[2]) and not is_number(row[1]) for row in rows):
            found = "numbers in column 3, expected corrections"
        else:
            options = replace(options, columns=("1", "3"))
    if found:
        raise ConfigError(f"{path}:1: found {found}; name the two columns with --columns, as in --columns 1,2")
    return options


def column_named(names: Sequence[list[str]], usual: Sequence[str]) -> int | None:
    """The number of the column with the first of the usual names, from 1; what tells about a text is none."""
    found = ((usual.index(word), number) for number, words in enumerate(names, 1)
             for word in words if word in usual and not ABOUT.intersection(words))  # fmt: skip
    return min(found, default=(0, None))[1]


def is_number(text: str) -> bool:
    return bool(NUMBER.fullmatch(text.strip()))


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


def prepare_corrections(
    items: Iterable[Example | Fault], usual: Sequence[Example], tag: str | None, name: str
) -> Corrections:
    """Filter corrections and split them by a hash of their source, so that later corrections move few of them."""
    every = [item._replace(tag=tag) if tag and isinstance(item, Example) else item for item in items]
    kept, report = filter_pairs(every, usual)
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
FEWEST_JUDGED = 300  # general pairs that judge, at least
PROFILED = 5_000  # general pairs that say what is usual


class General(NamedTuple):
    """Text like that of the training data."""

    train: list[Example]
    test: list[Example]

    def beside(self, corrections: Corrections, name: str) -> General:
        """What is left beside corrections, with enough to judge by: where validation pairs are few, training pairs too.

        A correction changes what is right for its source, so no such source judges. Training pairs that judge are not
        mixed in, but for half of them where there are few.
        """
        aside = {example.model_input for example in (*corrections.test, *corrections.valid)}
        learned = {example.model_input for example in corrections.train}
        pool = [pair for pair in self.train if pair.model_input not in aside]
        test = [pair for pair in self.test if pair.model_input not in aside | learned]
        more = [pair for pair in pool if pair.model_input not in learned][: max(0, FEWEST_JUDGED - len(test))]
        if len(test) + len(more) < FEWEST_JUDGED:
            raise DataError(
                f"{name}: found {len(test) + len(more):,} general pairs to judge by, expected {FEWEST_JUDGED} or more: "
                "fewer do not show what a new version forgets; name a file of such pairs with --general"
            )
        taken = {pair.model_input for pair in more[: len(pool) // 2]}
        return General([pair for pair in pool if pair.model_input not in taken], test + more)


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
        return self.general.harm if self.held_out.better else "it is not better on held-out corrections"

    def as_dict(self) -> dict[str, Any]:
        table = {field.name: getattr(self, field.name) for field in fields(self)} | {"reason": self.reason}
        judged = {"held_out": self.held_out.as_dict(), "general": self.general.as_dict()}
        return table | judged | self.general.findings()


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
    general = general.beside(corrections, options.general or str(run.folder))
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
        texts = {"held_out": corrections.test, "general": general.test}
        judged = judge_versions(run, work / "run", texts, options.device)
        kept = judged["held_out"].better and not judged["general"].harm
        result = Adaptation(kept, None, corrections.usable, rejected, method, **judged)
        details = {key: value for key, value in result.as_dict().items() if key not in ("kept", "version")}
        entry = add_version(run, Run(work / "run").weights_path() if kept else None, name, details)
        remove_file(work / "key")  # or a command killed while it removes the run would go on with the rest of it
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
