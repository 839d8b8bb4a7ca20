"""Check a run before training: every data line, lengths, memory, and a trial run on a few examples."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import torch
from torch import nn

from dragoman.auto.estimates import BatchShape, Say, check_memory, plan_warnings, time_lines, training_seconds
from dragoman.auto.options import CheckOptions
from dragoman.auto.profile import describe, profile_pairs
from dragoman.base import DataError, DragomanError, Progress, RunError, WarningLine
from dragoman.classical import FittedModel
from dragoman.data import (
    COLUMNS,
    PROGRESS_EVERY,
    BpttPlan,
    Corpus,
    Example,
    Fault,
    Files,
    LineCounts,
    Pairs,
    columns_advice,
    extract_features,
    file_list,
    paths_of,
    read_examples,
)
from dragoman.data.media import FeatureExtractor, MediaError
from dragoman.inference import MaskFiller, ignore_unknown, load_completer, load_run
from dragoman.runs import (
    MOST,
    Action,
    TrainingPlan,
    check_settings,
    measure_target_lengths,
    plan_with,
    train,
    unknown_token_report,
)
from dragoman.runs.tasks import MEDIA, Config, TranslateConfig, task_of
from dragoman.training import Display, Runtime, VectorsConfig, batch_plan, resolve_device

TRIAL_EXAMPLES = 48


def check(config: Config, say: Say, options: CheckOptions, doing: Progress, folder: Path | None) -> int:
    """Report findings by `say`; returns the number of warnings. DragomanError: the run cannot start.

    `folder` is the run that would be resumed; without one training would create a run. What training refuses, its own
    plan refuses here.
    """
    config.data.check_shuffle()
    runtime = Runtime(resolve_device(config.train.device))
    action: Action = "create" if folder is None else "resume"
    folder = folder or Path(tempfile.gettempdir()) / f"dragoman-{uuid4()}"  # there is none
    resuming = check_settings(config, folder, action, runtime)
    say("configuration: every setting is known and in range")
    files = [config.data.train] + ([config.data.valid] if config.data.valid is not None else [])
    parts = [check_lines(config, part, part is not config.data.train, say, options.show, doing) for part in files]
    if not all(part.tolerated(config.data.faults) for part in parts):
        faults = sum(part.faults.total() for part in parts)
        raise DataError(
            f'{faults:,} lines cannot be used; correct them, or leave such lines out with data.faults="skip"'
        )
    if isinstance(config, TranslateConfig):
        for line in describe(profile_pairs(config.data.train, replace(config.data, faults="skip"), doing)):
            say(line)
    corpus = task_of(config).prepare(config, doing)
    plan = plan_with(corpus, config, folder, action, runtime, resuming)
    warnings = check_plan(plan, runtime.device, say, doing)
    for line in warnings:
        say(line)
    doing("trial run on a few examples", 0)
    check_cycle(config, say)
    return len(warnings)


def check_plan(plan: TrainingPlan, device: torch.device, say: Say, doing: Progress) -> list[str]:
    """Report data, lengths, memory and time of a plan; returns its warnings."""
    config, corpus, model = plan.config, plan.corpus, plan.model
    warnings = [WarningLine(f"warning: {line}") for line in plan.warnings]
    if corpus.source_tokenizer.tags:
        counts = corpus.report["tags"].items()
        say("tags: " + ", ".join(f"{tag} before {count:,} sources" for tag, count in counts))
    if unknown := unknown_token_report(corpus.report):
        say(unknown)
    for line in plan.notes:
        say(f"start: {line}")
    if isinstance(model, FittedModel):
        return warnings
    shapes = (check_text if plan.task.is_language_model else check_lengths)(config, corpus, say)
    check_target_lengths(config, corpus, model, say)
    doing("estimating memory", 0)
    check_memory(config, corpus, shapes, device, say)
    doing("estimating time", 0)
    seconds = training_seconds(model, config, corpus.collator, shapes, device)
    lines = list(time_lines(seconds, config, device))
    say(lines[0])
    return [*warnings, *lines[1:], *(WarningLine(f"warning: {line}") for line in plan_warnings(config, corpus, model))]


def check_lines(
    config: Config, files: Files, several: bool, say: Say, show: int, doing: Progress = lambda what, count: None
) -> LineCounts:
    """Report every faulty line; returns how many lines there are."""
    counts = LineCounts()
    with tempfile.TemporaryDirectory(prefix="dragoman-check-") as folder:  # recordings and images are decoded into it
        alone = replace(config.data, train=files, valid=None)
        example_format = task_of(config).example_format(config)
        example_format = extract_features(Path(folder), alone, config.tokenizer, doing, example_format)
        items = read_examples(config.data, files, several_references=several, example_format=example_format)
        for number, item in enumerate(items):
            if number % PROGRESS_EVERY == 0:
                doing("checking lines", number)
            counts.add(item)
            if isinstance(item, Fault) and counts.faults.total() <= show:
                say(str(item))
    total = counts.faults.total()
    if total > show:
        say(f"… and {total - show:,} more faulty lines")
    if advice := columns_advice(counts.first):
        say(advice)
    shown = [f"{count:,} {kind}" for kind, count in counts.faults.items()] or ["no faults"]
    if counts.normalised:
        shown.append(f"{counts.normalised:,} without their control characters")
    usable = f"{counts.lines - total:,} usable {example_format.unit}s"
    say(f"lines: {', '.join(paths_of(files))}: {usable}, {', '.join(shown)}")
    return counts


def check_lengths(config: Config, corpus: Corpus, say: Say) -> set[BatchShape]:
    """Report lengths and padding; returns the shapes of the batches."""
    for side, column in (("source", corpus.train.source), ("target", corpus.train.target)):
        lengths = column.lengths()
        codec = corpus.source_tokenizer if side == "source" else corpus.target_tokenizer
        if not lengths.any():
            continue  # a text is its own target
        if side == "target" and not codec.is_text:
            say(f"target: {codec.size}")
            continue
        middle, high = np.quantile(lengths, [0.5, 0.95])
        spread = f"median {middle:.0f}, 95 % up to {high:.0f}, longest {lengths.max()}"
        size = "" if codec.size == codec.unit else f"; {codec.size}"
        say(f"lengths: {side} {spread} {codec.unit}{size}")
    too_long = corpus.report["train"]["too_long"]
    if too_long:
        say(f"lengths: {too_long:,} pairs longer than data.max_length = {config.data.max_length} are left out")
    plan = batch_plan(corpus, config.train)
    epoch = plan.epoch(0)
    batches = [epoch[number] for number in range(len(epoch))]
    shapes = [(len(rows), plan.width("source", rows), plan.width("target", rows)) for rows in batches]
    if corpus.collator.loss_terms is None:
        cells, full, side = sum(rows * target for rows, _, target in shapes), plan.target_tokens.sum(), "target"
    else:  # masked tokens are in the sources
        cells = sum(rows * source for rows, source, _ in shapes)
        full, side = corpus.collator.source.padded_lengths(corpus.train.source.lengths()).sum(), "source"
    epochs = config.train.steps * config.train.accumulate / len(epoch)
    say(
        f"batches: {len(epoch):,} an epoch, {1 - full / cells:.1%} of the {side} cells are "
        f"padding; train.steps = {config.train.steps:,} is {epochs:.1f} epochs"
    )
    return set(shapes)


def check_text(config: Config, corpus: Corpus, say: Say) -> set[BatchShape]:
    """Report streams and segments of running text; returns the shape of a batch."""
    segment = config.model.segment
    streams = config.train.batch_tokens // segment
    counts = [corpus.report[part]["target_tokens"] for part in ("train", "valid")]
    say(
        f"text: {counts[0]:,} tokens to learn from, {counts[1]:,} to validate, ends of lines included; "
        f"vocabulary {len(corpus.target_tokenizer):,}"
    )
    groups = config.train.accumulate
    steps = len(BpttPlan(corpus.train.target, streams * groups, segment, config.train.seed))
    say(
        f"segments: {steps:,} steps an epoch, each of {streams * groups} streams of {segment} tokens; train.steps = "
        f"{config.train.steps:,} is {config.train.steps / steps:.1f} epochs"
    )
    return {(streams, segment, segment)}


def check_target_lengths(config: Config, corpus: Corpus, model: nn.Module, say: Say) -> None:
    """Report targets that are too long for a non-autoregressive model; an error if most are. The plan warns of few."""
    lengths = measure_target_lengths(config, model.eval(), corpus)
    if lengths is None:
        return
    say(f"room: {lengths}")
    if lengths.share > MOST:
        raise DragomanError(f"{lengths}, so the model would learn from the others alone: {lengths.advice}")


def trial_examples(config: Config) -> dict[str, list[Example]]:
    """Examples for the trial run by language tag ("" without one); running text needs more lines than pairs."""
    tags = 4 if config.data.tag_column else len(config.data.tags)
    wanted = max(2, TRIAL_EXAMPLES // max(1, tags))
    wanted = 20 * TRIAL_EXAMPLES if task_of(config).is_language_model else wanted
    by_tag: dict[str, list[Example]] = {}
    for entry in file_list(config.data.train):
        items = read_examples(config.data, entry, example_format=task_of(config).example_format(config))
        usable = (item for item in items if isinstance(item, Example) and can_be_read(config, item))
        for item in islice(usable, wanted * max(1, tags)):
            same = by_tag.setdefault(item.tag, [])
            same += [item] * (len(same) < wanted)
    return by_tag


def can_be_read(config: Config, example: Example) -> bool:
    """Whether the recording or image of an example can be decoded; True for text."""
    reader = config.tokenizer.source
    if not isinstance(reader, MEDIA):
        return True
    try:
        FeatureExtractor(reader).encode(example.model_input)
    except MediaError:
        return False
    return True


def check_cycle(config: Config, say: Say) -> None:
    """Train, validate, save, reload and decode with a few examples in a temporary folder."""
    examples = trial_examples(config)
    task = task_of(config)
    example_format = task.example_format(config)
    with tempfile.TemporaryDirectory(prefix="dragoman-check-") as folder:
        parts: list[Pairs] = []
        for tag, chosen in examples.items():
            path = Path(folder) / f"slice{len(parts)}.{'txt' if task.is_language_model else 'jsonl'}"
            rows = [example_format.to_record(example) for example in chosen]
            columns = tuple(rows[0]) if rows and not task.is_language_model else ()
            lines = (row["text"] if task.is_language_model else json.dumps(row) for row in rows)
            path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
            parts.append(Pairs(file=str(path), tag=tag or None))
        data = config.data.without_columns(train=tuple(parts), valid=None, cache=folder)
        data = replace(data, columns=columns)
        decode = 2 if task.searches else config.train.decode  # meaningless without a search
        training = replace(
            config.train, steps=2, epochs=0.0, save_every=1, validate_every=2, decode=decode, log_every=1,
            batch_tokens=max(512, getattr(config.model, "segment", 0)),
            accumulate=1, tensorboard=False, start_from="", vectors=VectorsConfig(),
            optimizer=replace(config.train.optimizer, warmup=1),
        )  # fmt: skip
        run = Path(folder) / "run"
        # Hardly a word is frequent in so few examples.
        sides = {side: getattr(config.tokenizer, side) for side in COLUMNS}
        rare = {side: replace(units, min_count=1) for side, units in sides.items() if hasattr(units, "min_count")}
        units = replace(config.tokenizer, **rare)
        train(replace(config, data=data, tokenizer=units, train=training), run, Display(quiet=True))
        if task.is_language_model:
            once, again = (load_completer(run, config.train.device).complete([""], max_length=8) for _ in range(2))
            if once != again:
                raise RunError("the saved model does not complete a text in the same way when it is loaded again")
            say("cycle: trained 2 steps, validated, saved, reloaded and completed a text")
            return
        predictor: Any = load_run(run, config.train.device)
        codec, longest = predictor.source_tokenizer, data.max_length
        texts: list[str] = []
        for chosen in examples.values():
            inputs = (example.model_input for example in chosen)
            # Recordings and images have limits of their own.
            texts += islice((text for text in inputs if codec.reads_files or len(codec.encode(text)) <= longest), 2)
        outputs: list[Any] = []
        for loaded in (predictor, load_run(run, config.train.device)):
            if isinstance(loaded, MaskFiller):  # these texts have no [MASK]
                outputs.append(loaded.evaluate([example for chosen in examples.values() for example in chosen]))
            else:
                outputs.append(list(loaded.stream(texts, on_unknown=ignore_unknown)))
        if outputs[0] != outputs[1]:
            raise RunError("the saved model does not give the same output when it is loaded again")
    say("cycle: trained 2 steps, validated, saved, reloaded and decoded")
