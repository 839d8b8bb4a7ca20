"""Hostile commands: what a user can type, name or damage, each with its expected outcome.

A command may succeed or be refused with exit code 2 and an explanation. It must never end in an internal error, hang,
change its inputs, or answer fewer lines than it was given. `benchmarks/hostile_commands.py` runs all of them, the
tests a part.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dragoman.base.errors import ConfigError
from dragoman.cli import cli
from dragoman.commands.settings import SettingsCommand
from dragoman.decoding.schema import accepted_at, from_text

REFUSED, ANY = frozenset({2}), frozenset({0, 2})


@dataclass(frozen=True)
class Case:
    """One command, the exit codes that it may have, and a text that standard error then has."""

    arguments: tuple[str, ...]
    codes: frozenset[int] = REFUSED
    message: str = ""
    stdin: bytes = b""
    answers: int | None = None  # lines of output if the command succeeds

    @property
    def name(self) -> str:
        """The command, shortened."""
        return " ".join(argument[:30] for argument in self.arguments)


FILES: dict[str, bytes] = {
    "empty.tsv": b"",
    "blank.tsv": b"\n\n\n",
    "binary.tsv": bytes(range(256)) * 40,
    "latin1.tsv": "caf\xe9\tCAF\xc9\n".encode("latin-1") * 30,
    "nul.tsv": b"a\x00b\tAB\n" * 30,
    "one-column.tsv": b"abc\n" * 30,
    "five-columns.tsv": b"a\tb\tc\td\te\n" * 30,
    "half.tsv": b"abc\t\n\tABC\n" * 30,
    "bom.tsv": b"\xef\xbb\xbf",
    "one-pair.tsv": b"abc\tABC\n",
    "same.tsv": b"abc\tABC\n" * 30,
    "broken.jsonl": b'{"source": "abc", "target": \n' * 5,
    "deep.jsonl": b"[" * 50_000 + b"\n",
    "numbers.jsonl": b'{"source": 1, "target": 2}\n' * 5,
    "list.json": b"[]",
    "not.parquet": b"PAR1 no",
    "not.gz": b"no gzip",
    "no.toml": b"[data\n",
    "unknown.toml": b'[data]\ntrain = "pairs.tsv"\n[modle]\nkind = 1\n',
    "deep.toml": b"x = " + b"[" * 5000,
}
INPUTS: dict[str, bytes] = {
    "empty": b"", "blank": b"\n\n", "controls": b"a\x07b\n", "emoji": "😀👨‍👩‍👧\n".encode(), "rtl": "שלום\n".encode(),
    "combining": ("a" + "\u0301" * 300 + "\n").encode(), "long": b"a" * 20_000 + b"\nab\n", "tag": b"<2de> abc\n",
    "specials": b"<eos> <pad> <unk>\n", "tabs": b"a\tb\tc\n", "crlf": b"ab\r\ncd\r\n", "no end": b"ab",
    "many": b"ab\n" * 300, "spaces": b"   \n",
}  # fmt: skip
SETTINGS = (
    "train.steps=0",
    "train.steps=-1",
    "train.steps=x",
    "train.steps=1.5",
    "train.steps=nan",
    "train.steps=",
    "train.steps",
    "steps=5",
    "train.stepz=5",
    "train.learning_rate=1",
    "model.kind=nothing",
    "model.encoder.kind=nothing",
    "model.encoder.layers=0",
    "model.encoder.layers=-3",
    "model.encoder.width=7",
    "model.encoder.width=1000000000",
    "model.encoder.heads=0",
    "model.encoder.dropout=2",
    "model.encoder.dropout=-1",
    "model.encoder.dropout=nan",
    "model.encoder.dropout=inf",
    "preset=nothing",
    "preset=",
    "preset=5",
    "task=nothing",
    "task=",
    "data.columns=a",
    'data.columns=["0","1"]',
    'data.columns=["9","1"]',
    "data.valid=nowhere.tsv",
    "data.header=maybe",
    "data.holdout=0",
    "data.max_length=0",
    "data.faults=ignore",
    "data.cache=/proc/none",
    "tokenizer.source.kind=none",
    "tokenizer.source.vocab_size=1",
    "train.metric=nothing",
    "train.device=cuda:99",
    "train.device=tpu",
    "train.precision=int4",
    "train.optimizer.learning_rate=-1",
    "train.optimizer.learning_rate=inf",
    "train.optimizer.warmup=-1",
    "train.batch_tokens=0",
    "train.accumulate=0",
    "train.clip=-1",
    "train.start_from=nowhere",
    'train.freeze=["nothing"]',
    "search.beam=0",
    "search.beam=100000000",
    "search.length_penalty=300",
    "search.coverage_penalty=1e308",
    "search.stop=never",
    "=5",
    "a.b.c.d.e=5",
    "train..steps=5",
    "train.average.kind=all",
    "train.patience=-1",
    "train.validate_every=0",
    "train.save_every=0",
)
OUTPUTS = (
    "evaluate RUN test2.tsv --output test2.tsv",
    "evaluate RUN test2.tsv --output RUN/config.toml",
    "evaluate RUN test2.tsv --output nowhere/out.txt",
    "evaluate RUN test2.tsv --output .",
    "evaluate RUN test2.tsv --output RUN/best/x",
    "evaluate RUN test2.tsv --output pairs.tsv",
    "predict RUN test2.tsv beam_trace=test2.tsv",
    "predict RUN test2.tsv beam_trace=RUN/run.json",
    "predict RUN test2.tsv beam_trace=nowhere/x",
    "info RUN --plot RUN/data.json",
    "info RUN --plot curve.gif",
    "attention RUN abc --output RUN/lock",
    "attention RUN abc --output x.bmp",
    "attention RUN",
    "attention RUN ''",
    "score test2.tsv test2.tsv --by-length --plot test2.tsv",
    "calibrate RUN one-pair.tsv",
    "calibrate RUN empty.tsv",
    "shortlist RUN --output RUN/weights.safetensors",
    "export RUN RUN --format ctranslate2",
    "export RUN out --format nothing",
    "train pairs.tsv --run pairs.tsv",
    "train pairs.tsv --run /proc/none",
    "train RUN preset=transformer-tiny",
    "train RUN model.encoder.layers=7",
    "train RUN train.steps=1",
    "complete RUN abc",
    "probe RUN --probe nothing",
    "align RUN nowhere.tsv",
    "new nothing",
    "presets nothing",
    "predict nowhere",
    "predict pairs.tsv",
    "predict RUN/tokenizer",
    "evaluate RUN",
    "evaluate",
    "nothing",
    "prdict RUN",
    "predict RUN test2.tsv --n-best 2",
    "predict RUN test2.tsv method.temperature=1",
    "predict RUN test2.tsv --sample method=mbr method.samples=2",
    "predict RUN test2.tsv --tag de",
    "predict RUN test2.tsv method=draft method.run=nowhere",
    "predict RUN test2.tsv ensemble.runs=nowhere",
    "predict RUN test2.tsv rerank.runs=nowhere",
    "predict RUN test2.tsv constraints.allow=nowhere",
    "predict RUN test2.tsv constraints.pattern=(",
    "predict RUN test2.tsv constraints.terminology=nowhere",
    "predict RUN test2.tsv method=shortlist method.file=nowhere",
    "predict RUN test2.tsv constraints.constrain=x",
    "predict RUN test2.tsv constraints.constrain=nothing=x",
    "predict RUN test2.tsv data.media=x",
    "predict RUN test2.tsv data.skip_unreadable=true",
    "predict RUN test2.tsv method=ctc method.mode=joint",
)
DAMAGES: dict[str, bytes | None] = {
    "config.toml": b"[", "run.json": b"{}", "data.json": b"[]", "tokenizer/source.json": b"[" * 50_000,
    "weights.safetensors": b"short", "metrics.jsonl": b'5\n{"step": []}\n\xff\n', "calibration.json": b"{}",
    "tokenizer/target.json": None, "checkpoints": None,
}  # fmt: skip
NUMBERS = ("-1", "1000000000", "1e308", "nan", "x", "")


def prepare(folder: Path) -> None:
    """Write the files that the cases name into a folder that has pairs.tsv."""
    for name, content in FILES.items():
        (folder / name).write_bytes(content)
    (folder / "test2.tsv").write_text("ab\tAB\ncd\tCD\n")
    for name, to in (("loop.tsv", "loop.tsv"), ("dangling.tsv", "gone")):
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(to)
    (folder / "pipe.tsv").unlink(missing_ok=True)
    os.mkfifo(folder / "pipe.tsv")


def number_cases(run: str) -> Iterator[Case]:
    """Every number setting of predict and evaluate with numbers that it does not take."""
    for name in ("predict", "evaluate"):
        command = cli.commands[name]
        assert isinstance(command, SettingsCommand)
        settings_class = command.schema.settings_class(methods=False)
        for setting in command.schema.static:
            expected = accepted_at(settings_class, setting.place)
            assert expected is not None
            for number in NUMBERS if {int, float} & {*expected.scalars} else ():
                try:
                    command.schema.read({setting.place: (setting.place, from_text(expected, number))})
                except ConfigError:
                    yield Case((name, run, "test2.tsv", f"{setting.place}={number}"), REFUSED)


def cases(run: str) -> Iterator[Case]:
    """All cases for a trained run of pairs of text; paths are relative to the folder of `prepare`."""
    files = [*FILES, "nowhere.tsv", ".", "loop.tsv", "dangling.tsv", "pipe.tsv"]
    for file in files:
        lines = "" if file.endswith((".tsv", ".jsonl")) else "found|expected|such"
        refused_by = REFUSED if file not in ("same.tsv", "one-pair.tsv", "five-columns.tsv") else ANY
        for command in ("train", "check"):
            yield Case((command, file, *(("--run", "never") if command == "train" else ())), ANY, lines)
        yield Case(("evaluate", run, file), refused_by)
        if file != "pipe.tsv":  # it would wait for a writer, as cat does
            yield Case(("predict", run, file), ANY)
            yield Case(("score", file, file), ANY)
        yield Case(("calibrate", run, file), refused_by if file != "same.tsv" else ANY)
    for name, content in INPUTS.items():
        yield Case(("predict", run), frozenset({0}), "", content, content.count(b"\n") + (name == "no end"))
    for setting in SETTINGS:
        for command in ("train", "check"):
            codes = ANY if setting in ("data.cache=/proc/none", "data.holdout=0") else REFUSED
            yield Case((command, "pairs.tsv", setting, *(("--run", "never") if command == "train" else ())), codes)
    for line in OUTPUTS:
        yield Case(tuple("" if word == "''" else word.replace("RUN", run) for word in line.split()))
    yield from number_cases(run)


def damaged_cases(run: Path, copy: Path) -> Iterator[Case]:
    """Commands with a damaged copy of a run; the copy is made anew for each damage."""
    for name, content in DAMAGES.items():
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(run, copy)
        path = copy / name
        if content is not None:
            path.write_bytes(content)
        elif path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
        for command in (("predict", "test2.tsv"), ("info",), ("evaluate", "test2.tsv")):
            yield Case((command[0], str(copy), *command[1:]), ANY)
        yield Case(("train", str(copy), "train.steps=101"), ANY)
