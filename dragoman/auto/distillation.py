"""Knowledge distillation (Kim and Rush 2016): train one model on the outputs of a run or an ensemble."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from statistics import mean

from dragoman.auto.options import DistilOptions
from dragoman.base import RunError, make_folder, write_text
from dragoman.base import config as settings
from dragoman.data import Example, FaultError, TrainValidSplit, make_example
from dragoman.data.readers import check_file
from dragoman.data.tokenizers import RunTokenizerConfig
from dragoman.inference import Prediction, Predictor, load_predictor, open_inputs
from dragoman.runs import Run, train
from dragoman.runs.tasks import Config, build
from dragoman.scoring import metrics_by_name
from dragoman.training import Display, VectorsConfig, read_tensors, shown_to_caller

ASKED = "unlabelled.json"
CHUNK = 512  # sources that the teacher translates between two reports of progress
DISTIL = DistilOptions()


def distil(
    run: str | Path,
    student: str | Path | None = None,
    *overrides: str,
    options: DistilOptions = DISTIL,
    device: str = "auto",
    quiet: bool = False,
) -> list[str]:
    """Train one model on the outputs of a run or an ensemble; returns lines that compare it with its teacher.

    The folder of the student is `student`, or that of the run with "-student". A student that is there is trained on.
    The inputs of `options.unlabelled` are read as the teacher reads its own. With `options.token_level` the student
    learns the teacher's distributions at every position of its outputs and of the references.
    """
    folder = Path(student) if student is not None else Path(f"{str(run).rstrip('/')}-student")
    data = folder.with_name(f"{folder.name}.data")
    if options.unlabelled is not None:
        check_file(Path(options.unlabelled))
    if options.token_level:
        objective = {"kind": "token-distillation", "teachers": [str(Path(run).absolute())]}
        overrides = (f"train.objective={settings.inline(objective)}", *overrides)
    with shown_to_caller(quiet) as display:
        teacher = load_predictor(run, device)
        if teacher.config.data.has_tags or teacher.config.data.reads_more:
            raise RunError(f"{run}: its sources have tags or a context, which distil does not support")
        valid = write_data(teacher, data, display, options)
        train(student_config(teacher, data, overrides), folder, display)
        taught, learned = (model.evaluate(valid)[0] for model in (teacher, load_predictor(folder, device)))
    names = dict.fromkeys((Run(folder).config.train.metric, "bleu", "chrf", "wer", "exact_match"))
    shown = {name: metrics_by_name()[name].format for name in names if name in taught}
    scores = ", ".join(f"{name} {show(taught[name])} → {show(learned[name])}" for name, show in shown.items())
    before, after = sum(parameters(run.folder) for run in teacher.members), parameters(folder)
    models = f"{len(teacher.members)} model{'s' if len(teacher.members) > 1 else ''}"
    return [
        f"teacher ({models}) → student on the validation pairs: {scores}",
        f"size: {before:,} → {after:,} parameters ({before / max(1, after):.1f} times smaller)",
    ]


def parameters(folder: Path) -> int:
    return sum(tensor.numel() for tensor in read_tensors(Run(folder).weights_path()).values())


def write_data(teacher: Predictor, folder: Path, display: Display, options: DistilOptions) -> list[Example]:
    """Write the student's training pairs (the teacher's outputs beside the references) and the validation pairs."""
    task = teacher.run.task
    split = TrainValidSplit(teacher.config.data, display.preparing, task.example_format(teacher.config))
    valid = list(split.valid("reading validation pairs"))
    # A file of an older student has "" and 0.0 where nothing was unlabelled.
    least = options.min_confidence if options.unlabelled else 0.0
    asked = json.dumps({"unlabelled": options.unlabelled or "", "min_confidence": least})
    if (folder / "train.jsonl").exists():
        if options.unlabelled and not ((made := folder / ASKED).exists() and made.read_text(encoding="utf-8") == asked):
            raise RunError(f"{folder}: made without or with other unlabelled inputs; name another student with --run")
        return valid
    examples = list(split.train("reading"))
    sources = list(dict.fromkeys(example.source for example in examples))
    pairs = usable_pairs(teacher, translated(teacher, sources, display), display)
    pairs += [(example.source, example.references[0]) for example in examples]
    known = {*sources, *(example.source for example in valid)}  # validation must stay new to the student
    given = open_inputs(teacher.run, Path(options.unlabelled), warn=display.warning) if options.unlabelled else ()
    new = list(dict.fromkeys(item.text for item in given if item.text.strip() and item.text not in known))
    outputs = translated(teacher, new, display)
    kept = usable_pairs(teacher, [one for one in outputs if confidence(one[1]) >= least], display)
    if new:
        display.info(
            f"unlabelled: the teacher is confident of its outputs for {len(kept):,} of {len(new):,} new inputs"
        )
    pairs += kept
    make_folder(folder)
    write_text(folder / ASKED, asked)
    write_rows(folder / "valid.jsonl", ((example.source, *example.references) for example in valid))
    write_rows(folder / "train.jsonl", dict.fromkeys(pairs))  # last: with it the data are complete
    return valid


def translated(teacher: Predictor, sources: Sequence[str], display: Display) -> list[tuple[str, Prediction]]:
    out: list[tuple[str, Prediction]] = []
    for first in range(0, len(sources), CHUNK):
        display.preparing("the teacher translates", first)
        chunk = sources[first : first + CHUNK]
        out += zip(chunk, teacher.predict(chunk, split_long=False), strict=True)
    display.close()
    return out


def usable_pairs(
    teacher: Predictor, outputs: Sequence[tuple[str, Prediction]], display: Display
) -> list[tuple[str, str]]:
    """The outputs that a file of pairs can hold: a weak teacher may write nothing, or bytes that are no text."""
    pairs = []
    for source, output in outputs:
        with suppress(FaultError):
            pair = make_example(source, (output.text,), "", 0, teacher.config.data.max_characters)
            pairs.append((pair.source, pair.references[0]))
    if len(pairs) < len(outputs):
        display.info(
            f"{len(outputs) - len(pairs):,} of {len(outputs):,} outputs of the teacher are left out: empty, over-long "
            "or with control characters"
        )
    return pairs


def confidence(output: Prediction) -> float:
    """The geometric mean of the probabilities of the tokens; 1 where the model has no probabilities."""
    return math.exp(mean(output.token_scores)) if output.token_scores else 1.0


def write_rows(path: Path, rows: Iterable[tuple[str, ...]]) -> None:
    tables = ({"source": source, "target": target} for source, target, *_ in rows)
    write_text(path, "".join(json.dumps(table, ensure_ascii=False) + "\n" for table in tables))


def student_config(teacher: Predictor, data: Path, overrides: Sequence[str]) -> Config:
    """The settings of the teacher's first model with its tokenizers, unless overridden."""
    config = teacher.config
    run = str(teacher.run.folder.absolute())
    tokenizers = replace(
        config.tokenizer,
        source=RunTokenizerConfig(run=run, side="source"),
        target=RunTokenizerConfig(run=run, side="target") if config.tokenizer.target is not None else None,
    )
    files = replace(
        config.data, train=str(data / "train.jsonl"), valid=str(data / "valid.jsonl"), columns=(), header=False
    )
    train_settings = replace(config.train, vectors=VectorsConfig())  # the file of the teacher need not exist any more
    table = settings.as_table(replace(config, data=files, tokenizer=tokenizers, train=train_settings))
    return build(table, overrides)
