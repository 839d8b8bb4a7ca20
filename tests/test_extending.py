"""The six recipes of docs/extending.md: applied to a copy of the package, they train, predict and keep the laws."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
RECIPES = ("decoder", "encoder", "metric", "task", "constraint", "exporter")
SHORT = ["train.steps=4", "train.validate_every=4", "train.decode=4"]

# Runs all commands in one process; prints exit code, standard output and errors of each.
DRIVER = """
import contextlib, io, json, sys
from dragoman.cli import guarded
results = []
for arguments in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    out.reconfigure = err.reconfigure = lambda **options: None
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = guarded(arguments)
    results.append([code, out.getvalue(), err.getvalue()])
print(json.dumps(results))
"""


def apply_diff(root: Path, block: str) -> None:
    """Delete each `-` line; insert each `+` line after the line above it in the block."""
    first, *lines = block.splitlines()
    path = root / first.removeprefix("--- ")
    text = path.read_text(encoding="utf-8").splitlines()
    position = 0
    for line in lines:
        if line.startswith("+"):
            position += 1
            text.insert(position, line[1:])
        else:
            position = text.index(line[1:])
        if line.startswith("-"):
            del text[position]
            position -= 1
    path.write_text("\n".join(text) + "\n", encoding="utf-8")


def console_lines() -> list[list[str]]:
    """The words of all commands of the page, in order."""
    lines = [line for kind, block in BLOCKS if kind == "console" for line in block.splitlines()]
    assert all(line.startswith("$ ") for line in lines)
    return [shlex.split(line[2:].replace("()", "'()'")) for line in lines]


def run(root: Path, *arguments: str) -> str:
    """Run Python with the copy of the package and return what it printed."""
    environment = {**os.environ, "PYTHONPATH": str(root), "DRAGOMAN_CACHE": str(root / "cache"), "OMP_NUM_THREADS": "1"}
    work = root / "work" if arguments[0] == "-c" else root
    done = subprocess.run([sys.executable, *arguments], cwd=work, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def extended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of package and contract tests with all six recipes, and a folder `work` with the data of the page."""
    root = tmp_path_factory.mktemp("extended")
    shutil.copytree(ROOT / "dragoman", root / "dragoman", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "tests" / "contract", root / "tests" / "contract")
    for name in ("pyproject.toml", "tests/__init__.py", "tests/conftest.py"):
        shutil.copy(ROOT / name, root / name)
    work = root / "work"
    work.mkdir()
    for kind, block in BLOCKS:
        first, _, code = block.partition("\n")
        if kind == "diff":
            apply_diff(root, block)
        elif kind == "python":
            path = (work if "/" not in first else root) / first.removeprefix("# ")
            path.write_text(code, encoding="utf-8")
    run(root, "-c", (work / "nested.py").read_text(encoding="utf-8"))
    rows = [line.split("\t") for line in (work / "nested.tsv").read_text(encoding="utf-8").splitlines()]
    (work / "test.tsv").write_text("".join("\t".join(row) + "\n" for row in rows[:12]), encoding="utf-8")
    (work / "words.txt").write_text("abc\nfed\nb\n", encoding="utf-8")
    (work / "outputs.txt").write_text("a b c\nc d\n", encoding="utf-8")
    (work / "references.txt").write_text("b a\nc d\n", encoding="utf-8")
    return root


def test_every_recipe_is_complete() -> None:
    assert tuple(re.findall(r"^## An? (\w+)$", PAGE, re.MULTILINE)) == RECIPES
    for section in re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]:
        kinds = re.findall(r"^```(\w+)$", section, re.MULTILINE)
        assert kinds == ["python", "diff", "console"], section[:40]


def test_every_command_of_the_page(extended: Path) -> None:
    commands = [words[1:] for words in console_lines() if words[0] == "dragoman"]
    arguments = [[*words, *SHORT] if words[0] == "train" else words for words in commands]
    results = json.loads(run(extended, "-c", DRIVER, json.dumps(arguments)).splitlines()[-1])
    printed = {" ".join(words): out for words, (_, out, _) in zip(commands, results, strict=True)}
    for words, (code, _, error) in zip(commands, results, strict=True):
        assert code == 0, (words, error)
    assert 'kind = "dot-gru"' in printed["new translate model.decoder.kind=dot-gru"]
    assert len(printed["predict runs/decoder words.txt --beam 4"].splitlines()) == 3
    assert printed["score outputs.txt references.txt --metric word_f1 --intervals"].startswith("word F1")
    assert "88.89 %" in printed["score outputs.txt references.txt --metric word_f1 --intervals"]
    assert "word F1" in printed["evaluate runs/encoder test.tsv --metric word_f1"]
    assert 'task = "spell"' in printed["new spell"]
    assert {"CER", "exact"} <= {line.split()[0] for line in printed["evaluate runs/spell test.tsv"].splitlines()}
    assert "BLEU" not in printed["evaluate runs/spell test.tsv"]
    for line in printed["predict runs/encoder words.txt --constrain balanced=()"].splitlines():
        depths = [line[:end].count("(") - line[:end].count(")") for end in range(len(line) + 1)]
        assert min(depths) == depths[-1] == 0, line
    assert "numpy: weights.npz" in " ".join(printed["export --help"].split())  # lines may break anywhere
    assert {path.name for path in (extended / "work" / "exported").iterdir()} == {
        "weights.npz", "source.txt", "target.txt"
    }  # fmt: skip


def test_the_extended_package_is_clean(extended: Path) -> None:
    run(extended, "-m", "ruff", "check", "dragoman")
    run(extended, "-m", "ruff", "format", "--check", "dragoman")


@pytest.mark.slow
def test_the_new_architectures_inherit_the_laws(extended: Path) -> None:
    """The commands of the page run all pairs; one pair of every law is enough here."""
    commands = [words for words in console_lines() if words[0] == "python"]
    assert commands == [
        ["python", *f"-m pytest tests/contract -k {kind}".split()] for kind in ("dot-gru", "shift-mixer")
    ]
    printed = run(
        extended, "-m", "pytest", "-p", "no:cacheprovider", "tests/contract", "-k",
        "(shift-mixer and dot-gru) or (test_learning and (dot-gru or shift-mixer)) or (test_law_8 and shift-mixer)"
    )  # fmt: skip
    match = re.search(r"(\d+) passed", printed)
    assert match is not None
    assert int(match[1]) >= 15
