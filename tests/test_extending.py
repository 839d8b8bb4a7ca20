"""The recipes of docs/how-to/extending/, each one file beside the package: they train, predict and keep the laws."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from dragoman import testing

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "docs" / "how-to" / "extending"
RECIPES = (
    "decoder", "encoder", "objective", "metric", "reader", "decoding method", "constraint", "task", "exporter",
    "document format",
)  # fmt: skip
PAGES = [(FOLDER / f"{name.replace(' ', '-')}.md").read_text(encoding="utf-8") for name in ("index", *RECIPES)]
BLOCKS = [found for page in PAGES for found in re.findall(r"^```(\w+)\n(.*?)^```", page, re.DOTALL | re.MULTILINE)]
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


def commands_of_the_page() -> list[list[str]]:
    """The words of all commands of the page after `dragoman`, in order."""
    lines = [line for kind, block in BLOCKS if kind == "console" for line in block.splitlines()]
    assert all(line.startswith("$ dragoman ") for line in lines)
    return [shlex.split(line.replace("()", "'()'"))[2:] for line in lines]


def run(work: Path, *arguments: str) -> str:
    """Run Python in a folder and return what it printed."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "DRAGOMAN_CACHE": str(work / "cache"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, *arguments], cwd=work, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files of all recipes and the data of the page."""
    folder = tmp_path_factory.mktemp("extending")
    for kind, block in BLOCKS:
        first, _, code = block.partition("\n")
        if kind == "python":
            folder.joinpath(first.removeprefix("# ")).write_text(code, encoding="utf-8")
    run(folder, "nested.py")
    rows = [line.split("\t") for line in (folder / "nested.tsv").read_text(encoding="utf-8").splitlines()]
    files = {
        "test.tsv": "".join("\t".join(row) + "\n" for row in rows[:12]),
        "nested.glossary": "# words\n" + "".join(f"{source} = {target}\n" for source, target in rows[:40]),
        "words.txt": "abc\nfed\nb\n",
        "words.properties": "# a comment\nfirst.key = abc\nsecond=fed  \n",
        "outputs.txt": "a b c\nc d\n",
        "references.txt": "b a\nc d\n",
    }
    for name, text in files.items():
        folder.joinpath(name).write_text(text, encoding="utf-8")
    return folder


def test_every_recipe_is_complete() -> None:
    assert {path.stem for path in FOLDER.glob("*.md")} == {"index", *(name.replace(" ", "-") for name in RECIPES)}
    for name, section in zip(RECIPES, PAGES[1:], strict=True):
        assert re.match(rf"# Add an? {name}\n", section)
        kinds = re.findall(r"^```(\w+)$", section, re.MULTILINE)
        assert kinds == ["python", "console"], section[:40]
        assert section.count("dragoman.register(") == 1, section[:40]
        laws = set(re.findall(r"`(check_\w+)`", section))
        assert len(laws) == 1, section[:40]
        assert hasattr(testing, laws.pop()), section[:40]


@pytest.mark.page
def test_every_command_of_the_page(work: Path) -> None:
    commands = commands_of_the_page()
    arguments = [[*words, *SHORT] if "train" in words else words for words in commands]
    results = json.loads(run(work, "-P", "-c", DRIVER, json.dumps(arguments)).splitlines()[-1])
    printed = {}
    for words, (code, out, error) in zip(commands, results, strict=True):
        assert code == 0, (words, error)
        printed[re.sub(r"--import \w+ ", "", " ".join(words))] = out
    assert 'kind = "dot-gru"' in printed["new translate model.decoder.kind=dot-gru"]
    assert len(printed["predict runs/decoder words.txt --beam 4"].splitlines()) == 3
    assert len(printed["predict runs/decoder words.txt method=confident-end"].splitlines()) == 3
    assert len(printed["predict runs/reader nested.glossary"].splitlines()) == 40
    assert printed["score outputs.txt references.txt --metric word_f1 --intervals"].startswith("word F1")
    assert "88.89 %" in printed["score outputs.txt references.txt --metric word_f1 --intervals"]
    assert "word F1" in printed["evaluate runs/encoder test.tsv --metric word_f1"]
    assert 'task = "spell"' in printed["new spell"]
    assert {"CER", "exact"} <= {line.split()[0] for line in printed["evaluate runs/spell test.tsv"].splitlines()}
    assert "BLEU" not in printed["evaluate runs/spell test.tsv"]
    for line in printed["predict runs/encoder words.txt constraints.constrain=balanced=()"].splitlines():
        depths = [line[:end].count("(") - line[:end].count(")") for end in range(len(line) + 1)]
        assert min(depths) == depths[-1] == 0, line
    assert "numpy: weights.npz" in " ".join(printed["export --help"].split())  # lines may break anywhere
    assert {path.name for path in (work / "exported").iterdir()} == {"weights.npz", "source.txt", "target.txt"}
    translated = (work / "words.out.properties").read_text(encoding="utf-8")
    assert re.fullmatch(r"# a comment\nfirst\.key = .*\nsecond=.*  \n", translated)
    needed = json.loads((work / "runs" / "decoder" / "run.json").read_text(encoding="utf-8"))["plugins"]
    assert [plugin["module"] for plugin in needed] == ["dot_gru"]


def test_the_recipes_are_clean(work: Path) -> None:
    files = [path.name for path in work.glob("*.py") if path.name not in ("nested.py", "test_mine.py")]
    options = ["--isolated", "--line-length", "120"]
    run(work, "-m", "ruff", "check", *options, "--select", "E,F,W,UP,B", *files)
    run(work, "-m", "ruff", "format", *options, "--check", *files)


@pytest.mark.slow
def test_the_recipes_keep_the_laws(work: Path) -> None:
    run(work, "-c", "import test_mine; test_mine.test_laws()")


def test_recipes_and_the_example_import_the_public_names_alone() -> None:
    code = [block for kind, block in BLOCKS if kind == "python"]
    code += [path.read_text(encoding="utf-8") for path in (ROOT / "examples" / "plugin").rglob("*.py")]
    imported = set(re.findall(r"^\s*(?:from|import) (dragoman[\w.]*)", "\n".join(code), re.MULTILINE))
    own = {"dragoman_example"}
    assert imported - own <= {"dragoman", "dragoman.extend", "dragoman.testing"}
    assert {"dragoman", "dragoman.extend"} <= imported


def test_every_name_for_plug_ins_is_there() -> None:
    """And one that is not is an error of an attribute."""
    from dragoman import extend

    assert len(dir(extend)) > 50
    assert all(getattr(extend, name) is not None for name in dir(extend))
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = extend.Nothing
