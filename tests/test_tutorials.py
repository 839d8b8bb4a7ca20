"""The tutorials: pages and notebooks are those of the sources, and every source runs, with short trainings."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dragoman.cli import guarded

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import record_tour  # noqa: E402
import tutorials  # noqa: E402

NAMES = [
    "architectures", "dataframe", "fine_tune", "labels", "language_pair", "plugin", "pronunciation", "reading",
]  # fmt: skip
FAST = ("dataframe", "language_pair")  # the others take longer and run in `make campaign`
OWN_PROCESS = "plugin"  # what it registers would stay; it trains for seconds
SHORT = (
    (r"train\.steps=\d+", "train.steps=4"),
    (r"train\.validate_every=\d+", "train.validate_every=4"),
    (r"--steps \d+", "--steps 4"),
    (r"(dragoman adapt .*)", r"\1 train.steps=4"),
)


def shortened(cell: tutorials.Cell) -> tutorials.Cell:
    text = cell.text
    for pattern, replacement in SHORT if cell.kind == "console" else SHORT[:1]:
        text = re.sub(pattern, replacement, text)
    return tutorials.Cell(cell.kind, text)


def in_process(command: str) -> str:
    """Run a command of Dragoman without a new process, which would import torch again."""
    words = shlex.split(command)
    assert words[0] == "dragoman"
    outputs = io.StringIO()
    outputs.reconfigure = lambda **options: None  # type: ignore[attr-defined]
    with contextlib.redirect_stdout(outputs), contextlib.redirect_stderr(outputs):
        code = guarded(words[1:])
    assert code == 0, f"$ {command}\n{outputs.getvalue()[-3000:]}"
    return outputs.getvalue()


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A new folder to work in, with `dragoman` on the path."""
    folder = tmp_path / "work"
    folder.mkdir()
    record_tour.shell(folder)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PATH", f"{folder / '.bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("DRAGOMAN_CACHE", str(tmp_path / "cache"))
    return folder


def test_there_are_eight() -> None:
    assert tutorials.names() == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_page_and_notebook_are_up_to_date(name: str) -> None:
    """Else: python tools/tutorials.py, and after a change of code python tools/tutorials.py --record NAME."""
    cells = tutorials.read(name)
    outputs = tutorials.recorded(name, cells)
    for cell, texts in zip(cells, outputs, strict=True):
        if cell.kind in ("python", "console"):
            assert texts is not None, f"not recorded: {cell.text}"
            assert len(texts) == (len(cell.commands) if cell.kind == "console" else 1)
    assert (tutorials.FOLDER / f"{name}.md").read_text(encoding="utf-8") == tutorials.page(name, cells, outputs)
    assert (tutorials.FOLDER / f"{name}.ipynb").read_text(encoding="utf-8") == tutorials.notebook(cells, outputs)


@pytest.mark.parametrize("name", NAMES)
def test_pages_tell_what_a_reader_needs(name: str) -> None:
    page = (tutorials.FOLDER / f"{name}.md").read_text(encoding="utf-8")
    assert "**You need**" in page
    assert page.index("## What could go wrong") < page.index("## Where to go on")
    for picture in tutorials.pictures(tutorials.read(name)):
        assert (tutorials.FOLDER / name / picture).read_bytes().startswith(b"\x89PNG")


def test_notebooks_have_the_form_of_nbformat_4() -> None:
    for name in NAMES:
        notebook = json.loads((tutorials.FOLDER / f"{name}.ipynb").read_text(encoding="utf-8"))
        assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
        assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
        for cell in notebook["cells"]:
            text = "".join(cell["source"])
            if cell["cell_type"] == "code":
                assert {"execution_count", "outputs", "metadata"} <= cell.keys()
                ast.parse(re.sub(r"^!.*", "pass", text, flags=re.MULTILINE))
            else:
                assert set(re.findall(r"attachment:([\w.-]+)", text)) == set(cell.get("attachments", {}))


def marked(names: list[str], *fast: str) -> list[object]:
    return [name if name in fast else pytest.param(name, marks=pytest.mark.slow) for name in names]


@pytest.mark.page
@pytest.mark.parametrize("name", marked([name for name in NAMES if name != OWN_PROCESS], *FAST))
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_source_runs(name: str, work: Path) -> None:
    """Every cell in order, with four training steps."""
    cells = [shortened(cell) for cell in tutorials.read(name)]
    outputs = tutorials.execute(cells, in_process)
    for cell, texts in zip(cells, outputs, strict=True):
        assert cell.kind != "console" or all(texts or []), f"found a command without output: {cell.text}"
    for picture in tutorials.pictures(cells):
        assert (work / picture).stat().st_size > 1000


@pytest.mark.page
@pytest.mark.parametrize("name", marked(NAMES, OWN_PROCESS))
@pytest.mark.timeout(3600)
def test_script_runs_in_full(name: str, work: Path) -> None:
    """As a reader runs it: the script alone, in an empty folder."""
    shutil.copy(tutorials.FOLDER / f"{name}.py", work)
    done = subprocess.run([sys.executable, f"{name}.py"], cwd=work, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def test_cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prose, Python and commands; outputs stay with unchanged cells, and a changed cell is not recorded."""
    monkeypatch.setattr(tutorials, "FOLDER", tmp_path)
    script, python, console = "sh = print", "x = 2\nprint(x)", 'sh("one")\nsh("two")'
    source = (
        f"# %% [markdown]\n# # Title\n#\n# Prose.\n\n# %% [script]\n{script}\n\n# %%\n{python}\n\n# %%\n{console}\n"
    )
    (tmp_path / "name.py").write_text(source)
    cells = tutorials.read("name")
    assert [cell.kind for cell in cells] == ["markdown", "script", "python", "console"]
    outputs = tutorials.execute(cells, lambda command: f"<{command}>\n")
    assert outputs == [None, None, ["2\n"], ["<one>\n", "<two>\n"]]
    tutorials.write("name", cells, outputs)
    page = (tmp_path / "name.md").read_text()
    assert page.startswith("# Title\n\n*This tutorial is also a [script](name.py)")
    assert page.endswith("```text\n2\n```\n\n```console\n$ one\n<one>\n$ two\n<two>\n```\n")
    assert tutorials.recorded("name", cells) == outputs
    (tmp_path / "name.py").write_text(source.replace("two", "three"))
    assert tutorials.recorded("name", tutorials.read("name")) == [None, None, ["2\n"], None]
    (tmp_path / "name.py").write_text(f"# %% [markdown]\n# # Title\n\n# %%\n{console}\n\n# %%\n{console}\n")
    cells, twice = tutorials.read("name"), [None, ["1\n", "2\n"], ["3\n", "4\n"]]
    tutorials.write("name", cells, twice)
    assert tutorials.recorded("name", cells) == twice
