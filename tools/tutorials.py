"""Make pages and notebooks of the tutorials. The source of each is docs/tutorials/NAME.py, which is also its script.

python tools/tutorials.py                     write NAME.md and NAME.ipynb; outputs of unchanged cells are kept
python tools/tutorials.py --record NAME...    run the sources in new folders; keep their outputs and pictures

A source has cells in the percent format. `# %% [markdown]` is prose, `# %%` is Python. A cell of `sh("command")` alone
becomes a console block of the page and `!command` in the notebook. `# %% [script]` is for the script alone. The picture
`![…](NAME/x.png)` is the file x.png that the tutorial writes.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
import record_tour

FOLDER = record_tour.ROOT / "docs" / "tutorials"
HEADER = re.compile(r"^# %%(?: \[(\w+)\])?\n", re.MULTILINE)
PICTURE = re.compile(r"(?<=\]\()(\w[\w-]*)/([\w.-]+\.png)(?=\))")


@dataclass(frozen=True)
class Cell:
    """Prose, Python, commands or code of the script alone."""

    kind: str  # markdown, python, console, script
    text: str

    @property
    def commands(self) -> list[str]:
        return self.text.splitlines()


def names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.py"))


def read(name: str) -> list[Cell]:
    """The cells of a source."""
    before, *parts = HEADER.split((FOLDER / f"{name}.py").read_text(encoding="utf-8"))
    assert not before.strip(), f"{name}.py: found text before the first cell"
    return [make_cell(kind or "python", text.strip()) for kind, text in zip(parts[::2], parts[1::2], strict=True)]


def make_cell(kind: str, text: str) -> Cell:
    if kind == "markdown":
        lines = text.splitlines()
        assert all(line == "#" or line.startswith("# ") for line in lines), f"no comment: {text}"
        return Cell(kind, "\n".join(line[2:] for line in lines))
    assert kind in ("python", "script"), f"found [{kind}], expected markdown or script"
    commands = [command_of(node) for node in ast.parse(text).body]
    if kind == "script" or None in commands:
        assert kind == "script" or not any(commands), f"commands have cells of their own: {text}"
        return Cell(kind, text)
    joined = "\n".join(command for command in commands if command)
    assert not set("{}$!") & set(joined), f"notebooks would replace variables in {joined}"
    return Cell("console", joined)


def command_of(node: ast.stmt) -> str | None:
    """The command of `sh("command")`; None for any other statement."""
    if not (isinstance(node, ast.Expr) and isinstance(call := node.value, ast.Call)):
        return None
    return str(ast.literal_eval(call.args[0])) if ast.unparse(call.func) == "sh" else None


def execute(cells: list[Cell], run: Callable[[str], str]) -> list[list[str] | None]:
    """Execute cells in the current folder; for each what its commands, or its statements, print, and None for prose."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    here = str(Path.cwd())  # cells may work in another folder
    sys.path.insert(0, here)  # a script and a notebook also find the modules beside them
    outputs: list[list[str] | None] = []
    try:
        for cell in cells:
            if cell.kind == "python":
                with contextlib.redirect_stdout(io.StringIO()) as printed:
                    exec(compile(cell.text, "<tutorial>", "exec"), namespace)
                outputs.append([record_tour.shortened(printed.getvalue())])
            else:
                outputs.append([run(command) for command in cell.commands] if cell.kind == "console" else None)
    finally:
        sys.path.remove(here)
    return outputs


def record(name: str) -> None:
    """Run a tutorial in a new folder; write its notebook, page and pictures."""
    cells, here = read(name), Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder) / name
        work.mkdir()
        run = record_tour.shell(work)
        os.environ.update(
            {"DRAGOMAN_CACHE": str(work / ".cache"), "PATH": f"{work / '.bin'}{os.pathsep}{os.environ['PATH']}"}
        )
        os.chdir(work)
        try:
            outputs = execute(cells, run)
        finally:
            os.chdir(here)
        for picture in pictures(cells):
            (FOLDER / name).mkdir(exist_ok=True)
            (FOLDER / name / picture).write_bytes((work / picture).read_bytes())
    write(name, cells, outputs)


def pictures(cells: list[Cell]) -> list[str]:
    return sorted({file for cell in cells if cell.kind == "markdown" for _, file in PICTURE.findall(cell.text)})


def write(name: str, cells: list[Cell], outputs: list[list[str] | None]) -> None:
    (FOLDER / f"{name}.ipynb").write_text(notebook(cells, outputs), encoding="utf-8")
    (FOLDER / f"{name}.md").write_text(page(name, cells, outputs), encoding="utf-8")


def recorded(name: str, cells: list[Cell]) -> list[list[str] | None]:
    """The outputs in the notebook of the cells that have not changed since; None for others.

    Equal cells, such as one evaluation before and one after a training, take theirs in order.
    """
    file = FOLDER / f"{name}.ipynb"
    known: dict[str, list[list[str]]] = {}
    for item in json.loads(file.read_text(encoding="utf-8"))["cells"] if file.exists() else []:
        if item["cell_type"] == "code" and item["execution_count"] is not None:
            outputs = ["".join(output["text"]) for output in item["outputs"]]
            known.setdefault("".join(item["source"]), []).append(outputs)
    waiting = {source: iter(outputs) for source, outputs in known.items()}
    return [
        next(waiting.get(code(cell), iter(())), None) if cell.kind in ("python", "console") else None for cell in cells
    ]


def code(cell: Cell) -> str:
    """The text of a cell of a notebook."""
    return "\n".join(f"!{command}" for command in cell.commands) if cell.kind == "console" else cell.text


def notebook(cells: list[Cell], outputs: list[list[str] | None]) -> str:
    """A notebook (nbformat 4.5), with a stream for each command, so that the page can take them apart."""
    items: list[dict[str, Any]] = []
    for number, (cell, texts) in enumerate(zip(cells, outputs, strict=True), 1):
        if cell.kind == "script":
            continue
        item: dict[str, Any] = {"cell_type": "code", "id": f"cell-{number}", "metadata": {}}
        if cell.kind == "markdown":
            item |= {"cell_type": "markdown", "source": lines_of(PICTURE.sub(r"attachment:\2", cell.text))}
            if found := PICTURE.findall(cell.text):
                item["attachments"] = {file: {"image/png": encoded(FOLDER / name / file)} for name, file in found}
        else:
            streams = [{"name": "stdout", "output_type": "stream", "text": lines_of(text)} for text in texts or []]
            item |= {"execution_count": None if texts is None else number, "source": lines_of(code(cell))}
            item["outputs"] = streams
        items.append(item)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    content = {"cells": items, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(content, ensure_ascii=False, indent=1, sort_keys=True) + "\n"


def lines_of(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def encoded(file: Path) -> str:
    return base64.b64encode(file.read_bytes()).decode() if file.exists() else ""


def page(name: str, cells: list[Cell], outputs: list[list[str] | None]) -> str:
    """The page, with links to script and notebook below its title."""
    blocks = []
    for cell, texts in zip(cells, outputs, strict=True):
        if cell.kind == "markdown":
            blocks.append(cell.text)
        elif cell.kind == "python":
            blocks.append(f"```python\n{cell.text}\n```")
            blocks += [f"```text\n{text}```" for text in texts or [] if text]
        elif cell.kind == "console":
            pairs = zip(cell.commands, texts or [""] * len(cell.commands), strict=True)
            blocks.append("```console\n" + "".join(f"$ {command}\n{text}" for command, text in pairs) + "```")
    title, _, rest = blocks[0].partition("\n")
    links = (
        f"*This tutorial is also a [script]({name}.py) and a [notebook]({name}.ipynb). Its outputs were recorded on "
        "one core of an ARM processor; times differ elsewhere.*"
    )
    return "\n\n".join([title, links, rest.strip(), *blocks[1:]]) + "\n"


def main(arguments: list[str]) -> None:
    if arguments[:1] == ["--record"]:
        for name in arguments[1:] or names():
            record(name)
        return
    for name in names():
        cells = read(name)
        write(name, cells, recorded(name, cells))


if __name__ == "__main__":
    main(sys.argv[1:])
