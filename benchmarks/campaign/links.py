"""Put a symbolic link at every path that a command writes in a folder of a stranger; nothing of the user's may change.

Each command runs once to see which paths it writes (an audit hook sees those of Python, the folder's content those of
native code). Then it runs once for every such path and every kind of link: to a file of the user's, to a folder of the
user's, and to nothing. It must end well or with one line and exit code 2, and the files that the links lead to must
stay as they are. A pipe in place of every file that a command writes or finds must not stop it for ever either.

python benchmarks/campaign/links.py [--only COMMAND] [--processes P] [--seconds S] [--output FAILURES]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.campaign.lanes import Lanes, Outcome, add_options, scratch
from dragoman.data import Correction, CorrectionLog
from dragoman.runs import Run, add_version
from tests.training.kill_driver import Driver, ended, fork

LINKS = ("a file", "a folder", "nothing")
PIPE = "a pipe"
MAX_SECONDS = 120
FEW = ["train.patience=0", "train.batch_tokens=4096"]
SHORT = ["train.steps=4", "train.save_every=2", "train.validate_every=2", "train.log_every=2", "train.decode=2"]
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
Arguments = Callable[[Path], list[str]]
PREPARED = ("fit", "search", "rollback", "accept")  # commands with a folder of their own


class Watch:
    """Notes the paths under a folder that this process writes, renames or creates. A hook cannot be removed again."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.written = f"{folder}/", set[str]()
        sys.addaudithook(self)

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITING:
            self.add(arguments[0])
        elif event in ("os.rename", "os.mkdir", "os.remove", "os.rmdir", "shutil.copyfile", "os.link", "os.chmod"):
            for path in arguments[:2]:
                self.add(path)

    def add(self, path: Any) -> None:
        if isinstance(path, str | os.PathLike) and str(path).startswith(self.folder):
            self.written.add(str(path).removeprefix(self.folder).rstrip("/"))


class DirectPool:
    """In place of the processes of a search: jobs run here, since these processes have everything imported."""

    def __init__(self, workers: int) -> None: ...

    def __enter__(self) -> DirectPool:
        return self

    def __exit__(self, *error: object) -> None: ...

    def outcomes(self, jobs: Iterable[Any], *limits: Any) -> Iterator[tuple[Any, Any]]:
        from dragoman.auto.search.worker import run_job

        return ((job, run_job(job)) for job in jobs)


def made_up(count: int) -> list[str]:
    """Words that the training data do not have."""
    return ["".join("ijklmnop"[number // 8**place % 8] for place in range(3)) for number in range(count)]


def content(folder: Path) -> dict[str, bytes | None]:
    """Every path under a folder, with the bytes of the files."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() and not path.is_symlink() else None
        for path in folder.rglob("*")
    }


class Linked:
    """Commands over a folder with one link in it."""

    def __init__(self, folder: Path, only: str) -> None:
        self.driver = Driver(folder, ("ngram",))
        self.cache, self.folder = folder / "cache", folder
        run, config, pairs = folder / "trained", str(self.driver.configs["best"]), str(folder / "pairs.tsv")
        lines, text = folder / "lines.txt", folder / "text.md"
        lines.write_text("abc\nfed\ncab\n", encoding="utf-8")
        text.write_text("abc\n\nfed *cab*\n", encoding="utf-8")
        (folder / "empty").mkdir()
        corrections = folder / "corrections.tsv"
        corrections.write_text("".join(f"{word}\t{word[::-1]}x\n" for word in made_up(60)), encoding="utf-8")
        self.do(["train", config, "--quiet", "--run", str(run), *SHORT, "train.tensorboard=true"])
        engine = ("engine=ctranslate2", "--beam", "1")
        # The folder that a command writes to, and its arguments.
        self.commands: dict[str, tuple[str, Arguments]] = {
            "resume": ("trained", lambda path: ["train", str(path), "--quiet", "train.steps=8"]),
            "restart": ("trained", lambda path: ["train", config, "--restart", "--quiet", "--run", str(path), *SHORT]),
            "fit": ("fitted", lambda path: ["train", str(path), "--quiet"]),
            "search": ("search", lambda path: ["train", str(path), "--quiet"]),
            "predict": ("trained", lambda path: ["predict", str(path), str(lines), *engine]),
            "evaluate": ("trained", lambda path: ["evaluate", str(path), pairs]),
            "calibrate": ("trained", lambda path: ["calibrate", str(path), pairs]),
            "shortlist": ("trained", lambda path: ["shortlist", str(path)]),
            "shards": ("empty", lambda path: ["predict", str(run), str(lines), "--shards", str(path)]),
            "adapt": ("trained", lambda path: ["adapt", str(path), str(corrections), "--quiet", *SHORT, *FEW]),
            "rollback": ("adapted", lambda path: ["adapt", str(path), "--rollback", "1"]),
            "accept": ("log", lambda path: ["corrections", "accept", str(path), "--all"]),
            "distil": ("empty", lambda path: ["distil", str(run), "--quiet", "--run", f"{path}/student", *SHORT]),
            "export": ("empty", lambda path: ["export", str(run), "--to", "ctranslate2", "--output", f"{path}/model"]),
            "translate": ("empty", lambda path: ["translate", str(run), str(text), "-o", str(path)]),
        }
        self.cases: list[tuple[str, str, str]] = []
        for name in [only] if only else self.commands:
            if name in PREPARED:
                self.prepare(name)
            written, template = self.written(*self.template(name)), self.template(name)[0]
            self.cases += [(name, path, link) for path in written for link in LINKS]
            there = [str(path.relative_to(template)) for path in template.rglob("*") if path.is_file()]
            self.cases += [(name, path, PIPE) for path in sorted({*written, *there})]

    def prepare(self, name: str) -> None:
        """Make a run that is as if its training had been killed at the very end."""
        if name == "rollback":
            adapted = self.folder / "adapted"
            shutil.copytree(self.folder / "trained", adapted)
            for label in ("training", "corrections"):
                add_version(Run(adapted), adapted / "weights.safetensors", label, {})
            return
        if name == "accept":
            CorrectionLog(self.folder / "log").create()
            CorrectionLog(self.folder / "log").add(Correction("abc", "fed", "cba", "run", "weights"))
            return
        if name == "fit":
            fitted = self.folder / "fitted"
            self.do(["train", str(self.driver.configs["ngram"]), "--quiet", "--run", str(fitted)])
            (fitted / "weights.safetensors").unlink()
            return
        search = self.folder / "search"
        options = ["--trials", "2", "--ensemble", "2", "--run", str(search), "--quiet", *SHORT, "train.device=cpu"]
        self.do(["train", str(self.folder / "pairs.tsv"), *options])
        table = json.loads((search / "search.json").read_text())
        (search / "search.json").write_text(json.dumps(table | {"done": False}))

    def template(self, name: str) -> tuple[Path, Arguments]:
        """The folder that a case copies, and the arguments of the command for the copy."""
        folder, arguments = self.commands[name]
        return self.folder / folder, arguments

    def do(self, arguments: list[str], watch: Path | None = None) -> tuple[int | None, str, list[str]]:
        """Run a command in a child: exit code, what it said, and which paths under `watch` it wrote."""
        errors, noted = self.folder / f"errors-{os.getpid()}", self.folder / f"written-{os.getpid()}"

        def work() -> int:
            from dragoman.auto.search import run

            os.environ["DRAGOMAN_CACHE"] = str(self.cache)
            run.TrialPool = DirectPool  # type: ignore[assignment,misc]
            sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115
            watched = Watch(watch) if watch is not None else None
            code = self.driver.guarded(arguments)
            noted.write_text("\n".join(sorted(watched.written)) if watched else "", encoding="utf-8")
            return code

        code = ended(fork(work, errors), MAX_SECONDS)
        said = errors.read_text(encoding="utf-8")
        assert watch or code == 0, (arguments, code, said)
        return code, said, noted.read_text(encoding="utf-8").splitlines() if noted.exists() else []

    def written(self, template: Path, arguments: Arguments) -> list[str]:
        """The paths that a command writes in a copy of the folder; those with random names are left out."""
        place = self.folder / "first" / template.name
        shutil.copytree(template, place)
        before = content(place)
        code, said, written = self.do(arguments(place), place)
        assert code == 0, (arguments(place), said)
        after = content(place)
        changed = [path for path in after if after[path] != before.get(path, b"")]
        shutil.rmtree(place.parent)
        return sorted(path for path in {*written, *changed} if path and path != ".")

    def __call__(self, number: int, folder: Path) -> Outcome:
        name, path, link = self.cases[number]
        template, arguments = self.template(name)
        place, mine = folder / template.name, folder / "mine"
        shutil.copytree(template, place)
        (mine / "folder").mkdir(parents=True)
        for kept in ("file", "folder/config.toml", "folder/metrics.jsonl", "folder/00000002.safetensors"):
            (mine / kept).write_text("precious", encoding="utf-8")
        before = content(mine)
        linked = place / path
        linked.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(linked) if linked.is_dir() else linked.unlink(missing_ok=True)
        if link == PIPE:
            os.mkfifo(linked)
        else:
            linked.symlink_to({"a file": mine / "file", "a folder": mine / "folder", "nothing": mine / "new"}[link])
        code, said, _ = self.do(arguments(place), place)
        outcome = {0: "ended well", 2: "refused"}.get(code or 0, "FAILED")
        counts = Counter({f"{name}: {outcome}": 1})
        wrong = ""
        if content(mine) != before:
            wrong = "a file of the user's changed"
        elif code not in (0, 2) or "Traceback" in said or (code == 2 and len(said.splitlines()) > 3):
            wrong = f"exit code {code}: {said[-300:]}"
        return Outcome(counts, f"{name}, {path} → {link}: {wrong}" if wrong else "")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="only this command, such as search")
    parser.add_argument("--every", type=int, default=1, help="only every so many cases")
    add_options(parser)
    arguments = parser.parse_args()
    with scratch("links") as folder:
        linked = Linked(Path(folder).resolve(), arguments.only)
        linked.cases = linked.cases[:: arguments.every]
        report = Lanes("links", Path(folder).resolve(), arguments, 2 * MAX_SECONDS).run(len(linked.cases), linked)
    return report.show()


if __name__ == "__main__":
    sys.exit(main())
