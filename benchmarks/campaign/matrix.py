"""Every command on every kind of run: each ends well, or with an error of one line; never with an internal error.

The commands and their arguments come from the table of commands, the exporters from theirs. The kinds of runs come from
the presets, made small, and from the tasks' own cases in the tests. So a new command or preset is in the matrix at
once; an argument that has no value here is an error before the first case.

python benchmarks/campaign/matrix.py [--only PATTERN] [--processes P] [--seconds S] [--output FAILURES]

PATTERN is a regular expression of cases, such as "export .* hmm".
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import random
import re
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import click

from benchmarks.campaign.lanes import Lanes, Outcome, add_options, scratch
from dragoman.base import config as settings
from dragoman.commands.root import cli
from dragoman.exchange import EXPORTERS
from dragoman.runs import Run
from dragoman.runs.tasks import TASKS
from dragoman.runs.tasks.config import build, preset_names, preset_table
from tests.conftest import call, quiet_machine, words, write_rows
from tests.runs.tasks import test_labels_end_to_end as labels
from tests.runs.tasks import test_language_model as language_models
from tests.runs.tasks import test_masked_language_model as masked
from tests.runs.tasks import test_media_end_to_end as media

MAX_SECONDS = 120
FEW = ("train.steps=2", "train.validate_every=2", "train.save_every=2", "train.log_every=1")
SHORT = (*FEW, "train.batch_tokens=256", "train.metric=loss", "train.device=cpu", "train.minutes=0", "train.epochs=0")
SMALL = {"heads": 2, "max_positions": 1000}
LARGEST = 16  # of the other sizes of models

# Arguments of commands by name; RUN is the run, DATA the data that it was trained on, NEW a path that does not exist.
ARGUMENTS: dict[str, tuple[str, ...]] = {
    "run": ("RUN",), "words": ("DATA",), "what": ("DATA",), "corrections": ("DATA",), "overrides": (), "ids": (),
    "action": ("list",), "folder": ("RUN",), "file": ("DATA",), "suite": (), "text": ("a word",), "texts": ("a word",),
    "systems": ("RUN", "RUN"), "hypotheses": ("DATA",), "references": ("DATA",), "gold": ("DATA",),
    "hypothesis": ("DATA",), "name": (), "shell": ("bash",), "task": (), "files": ("DATA",),
    "topic": ("hmm",), "values": (),
}  # fmt: skip
OPTIONS: dict[str, tuple[str, ...]] = {"--output": ("NEW",), "--run": ("NEW",), "--to": tuple(EXPORTERS)}
# What some commands need beside their arguments, to end soon.
MORE = {
    "train": ("train.start_from=RUN", "task=TASK", "--run", "NEW", *SHORT), "adapt": FEW,
    "curve": (*SHORT, "--run", "NEW"), "distil": ("--run", "NEW", *SHORT), "repl": ("--plain",), "bench": (),
}  # fmt: skip
# Further ways to call a command.
CALLS = (
    "train RUN train.steps=4", "train RUN", "check RUN", "predict RUN DATA --json",
    "predict RUN DATA --beam 3 --n-best 2",
    "predict RUN DATA method=sampling", "evaluate RUN DATA --json --intervals", "inspect RUN word -o NEW.html",
    "info RUN --json", "translate RUN text.md", "complete RUN the", "adapt RUN --rollback",
    "compare RUN RUN --test DATA",
    "train DATA train.start_from=RUN --run NEW train.steps=2", "align RUN DATA --json", "bench RUN",
    "predict RUN DATA --shards NEW", "terms DATA", "attention RUN word -o NEW.svg",
)  # fmt: skip
LEFT_OUT = {"serve": "never ends", "demo": "trains a model of its own", "completion": "reads no run"}


def command_lines() -> list[str]:
    """One line for every command and every value of a required option, and the further ones."""
    lines = []
    for name in cli.commands:
        if name in LEFT_OUT:
            continue
        command = cli.commands[name]
        parts = [[name]]
        for parameter in command.params:
            if isinstance(parameter, click.Argument):
                assert parameter.name in ARGUMENTS, f"{name}: give the argument {parameter.name} a value in {__file__}"
                parts = [[*line, *ARGUMENTS[parameter.name]] for line in parts]
            elif parameter.required:
                flag = max(parameter.opts, key=len)
                assert flag in OPTIONS, f"{name}: give the option {flag} a value in {__file__}"
                parts = [[*line, flag, value] for line in parts for value in OPTIONS[flag]]
        lines += ["\t".join([*line, *MORE.get(name, ())]) for line in parts]
    return [*lines, *(line.replace(" ", "\t") for line in CALLS)]


def smaller(table: dict[str, Any]) -> dict[str, Any]:
    """The same settings of a model with small sizes."""

    def small(key: str, value: Any) -> Any:
        if isinstance(value, dict):
            return smaller(value)
        if isinstance(value, list):
            return [small(key, item) for item in value]
        return min(value, SMALL.get(key, LARGEST)) if type(value) is int else value

    return {key: small(key, value) for key, value in table.items()}


def configurations(place: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The kinds of runs, each with its configuration."""
    write_rows(place / "pairs.tsv", [(word, word.upper()) for word in words(330)])
    files = {"classify": "classify.train.tsv", "regress": "series.train.tsv"}
    for preset in preset_names():
        table = preset_table(preset)
        file = place / files.get(str(table.get("task")), "pairs.tsv")
        whole = settings.as_table(build(settings.merge(table, {"data": {"train": str(file)}})))
        yield preset, whole | {"model": smaller(whole["model"])}
    for module in (labels, masked, media):
        module.write_data(place)
    (place / "text.txt").write_text(language_models.some_text(200, 1), encoding="utf-8")
    cases = (
        (labels, labels.CASES),
        (masked, masked.MODELS),
        (media, media.CASES),
        (language_models, language_models.CASES),
    )
    for module, names in cases:
        for name in names:
            yield (
                f"{module.__name__.rpartition('test_')[2].removesuffix('_end_to_end')}-{name}",
                module.table(name, place),
            )
    hmm = settings.merge(labels.table("tag", place), {"model": {"kind": "hmm"}})
    yield "labels-hmm", hmm | {"model": {"kind": "hmm"}}


class Matrix:
    """All cases; a run that is not there yet is trained first."""

    def __init__(self, place: Path, only: str, seed: int) -> None:
        self.place = place
        self.lines = command_lines()
        self.tables = dict(configurations(place))
        missing = set(TASKS) - {str(table.get("task", "translate")) for table in self.tables.values()}
        assert not missing, f"no kind of run has the task {', '.join(missing)}"
        (place / "text.md").write_text("A word.\n", encoding="utf-8")
        pattern = re.compile(only)
        cases = [(kind, line) for kind in self.tables for line in self.lines]
        self.cases = [case for case in cases if pattern.search(f"{case[1]} on {case[0]}".replace("\t", " "))]
        random.Random(seed).shuffle(self.cases)  # so that a part of them says something of all

    def train(self) -> None:
        """Train all kinds that are needed."""
        for kind in dict.fromkeys(kind for kind, _ in self.cases):
            config = build(self.tables[kind], SHORT)
            path = self.place / f"{kind}.toml"
            path.write_text(settings.dump(config), encoding="utf-8")
            result = call("train", path, "--run", self.place / "runs" / kind, "--quiet")
            assert result.code == 0, f"{kind}: {result.err}"

    def __call__(self, number: int, folder: Path) -> Outcome:
        kind, line = self.cases[number]
        run = folder / kind
        shutil.copytree(self.place / "runs" / kind, run)
        train = settings.as_table(Run(run).config)["data"]["train"]
        entry = train[0] if isinstance(train, list | tuple) else train
        data = str(entry.get("file") or entry.get("source") if isinstance(entry, dict) else entry)
        values = {"RUN": str(run), "DATA": data, "NEW": str(folder / "new"), "TASK": Run(run).task.name}
        arguments = [re.sub("RUN|DATA|NEW|TASK", lambda name: values[name[0]], part) for part in line.split("\t")]
        with contextlib.chdir(self.place):
            result = call(*arguments, stdin=b"a word\n")
        said = result.err.strip()
        wrong = ""
        if result.code not in (0, 1, 2) or "internal error" in said or "Traceback" in said:
            wrong = f"exit code {result.code}: {said[-300:]}"
        elif result.code and not (said or result.out):
            wrong = f"exit code {result.code} without a word"
        elif result.code == 2 and said.splitlines()[-1].startswith("dragoman") is False:
            wrong = f"exit code 2, last line {said.splitlines()[-1][:200]}"
        counts = Counter({"ended well" if not result.code else f"exit code {result.code}": 1})
        shown = " ".join(line.split("\t")).removesuffix(" ".join(SHORT)).strip()
        return Outcome(counts, f"{shown} on {kind}: {wrong}" if wrong else "", renew=True)  # no threads of other cases


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="only cases that this regular expression finds")
    add_options(parser)
    arguments = parser.parse_args()
    with scratch("matrix") as name:
        place = Path(name).resolve()
        with quiet_machine(place / "cache"):
            matrix = Matrix(place, arguments.only, arguments.seed)
            training = multiprocessing.get_context("fork").Process(target=matrix.train)
            training.start()  # in a process of its own: lanes are forked from this one, which must have no threads
            training.join()
            assert training.exitcode == 0
            report = Lanes("matrix", place, arguments, MAX_SECONDS).run(len(matrix.cases), matrix)
    return report.show()


if __name__ == "__main__":
    sys.exit(main())
