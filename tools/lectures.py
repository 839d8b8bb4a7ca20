"""Make docs/how-to/lectures.md and the notebooks in docs/lectures from the table of `dragoman lecture`.

python tools/lectures.py    after a change of dragoman/lecture/
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import tutorials
from tutorials import Cell

from dragoman.lecture.runs import RUNS
from dragoman.lecture.table import Figure, Topic
from dragoman.lecture.topics import TOPICS

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGE, NOTEBOOKS = DOCS / "how-to" / "lectures.md", DOCS / "lectures"
COLAB = "https://colab.research.google.com/github/OWNER/dragoman/blob/main/docs/lectures"
INTRODUCTION = """# Draw the figures of a lecture

`dragoman lecture` makes a folder with sample files, tiny runs and all figures of this page, and an `index.html`: for
each topic its figures, the command that drew each, and a question whose answer the page checks. The answers are
computed from the numbers behind the figures. Everything is made up by the code, so no network is needed. All topics
take about two minutes on two idle cores; after a stop the same command makes the rest. `dragoman lecture attention`
makes one topic, and `--slow` adds the figures that take minutes each, marked here with *slow*.

```console
$ dragoman lecture
$ dragoman lecture attention --output course
$ dragoman lecture --list
```

Every command of this page runs as it is written in that folder, and on your own run and data as well. A page (`.html`)
needs no network; `--view NAME` says where it opens, and with `.json` in place of `.html` the same command writes the
numbers. [inspect](inspect.md) says how to read the views; [worked numbers](worked-numbers.md) need no run. To draw all
figures yourself, make the files and runs alone:

```console
$ dragoman lecture --files-only
```

The same in Python, with the answers that the page checks:

```python
import dragoman

lecture = dragoman.make_lecture("hmm", dragoman.LectureOptions(output="course"))
print(lecture.page, lecture.figures["viterbi.svg"].answer)
```

## Runs

The folder has a configuration for each run, which a student can read and change.

| run | what it is | command |
|---|---|---|
"""
FILES = """
The files are small: `pairs.tsv` and `test.tsv` have a German and an English sentence on each line; `source.txt` and
`ref.txt` are the columns of `test.tsv`; `out.txt` and `other.txt` have the outputs of two made-up systems. `words.tsv`
has tags of words, `numbers.tsv` series of numbers, `text.txt` sentences. In `recordings.tsv` and `hello.wav` every
letter is a tone; `sounds.tsv` tags tones; `pictures.tsv`, `beach.png` and `clips.tsv` show balls and boats.
`probes.toml` has templates of a probe ([scoring](../reference/scoring.md#error-analysis)).
"""


def page() -> str:
    rows = [f"| `{name}` | {run.about} | `dragoman train {name}.toml` |\n" for name, run in RUNS.items()]
    return INTRODUCTION + "".join(rows) + FILES + "".join(map(section, TOPICS.values()))


def section(topic: Topic) -> str:
    rows = [
        f"| {figure.title}{' (*slow*)' * figure.slow} | `dragoman {figure.command}` |\n" for figure in topic.figures
    ]
    return (
        f"\n## {topic.title}\n\n{topic.about} `dragoman lecture {topic.name}`, the "
        f"[notebook](../lectures/{topic.name}.ipynb), or [run it in Colab]({COLAB}/{topic.name}.ipynb).\n\n"
        f"| figure | command |\n|---|---|\n{''.join(rows)}"
    )


INSTALL = """import importlib.util
import subprocess
import sys

if importlib.util.find_spec("dragoman") is None:  # as in Colab
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "dragoman[plots,media]"], check=True)"""


def cells(topic: Topic) -> list[Cell]:
    """The notebook of a topic: each figure by its command, a question, and the answer from the figure's numbers."""
    make = f'import os\n\nimport dragoman\n\nlecture = dragoman.make_lecture("{topic.name}")\nos.chdir(lecture.folder)'
    made = [
        Cell("markdown", f"# {topic.title}\n\n{topic.about}\n\n[Run in Colab]({COLAB}/{topic.name}.ipynb)"),
        Cell("python", INSTALL),
        Cell("markdown", "Sample files, tiny runs and the figures: this takes from seconds to two minutes."),
        Cell("python", make),
    ]
    for figure in topic.figures:
        made += figure_cells(figure)
    notes = ["## For who teaches", "What to ask:", bullets(topic.ask), "What students often get wrong:"]
    return [*made, Cell("markdown", "\n\n".join([*notes, bullets(topic.mistakes)]))]


def figure_cells(figure: Figure) -> list[Cell]:
    title = figure.title[0].upper() + figure.title[1:]
    if figure.slow:
        return [Cell("markdown", f"## {title}\n\nThis takes minutes:\n\n```\ndragoman {figure.command}\n```")]
    shown = [Cell("python", f'lecture.show("{figure.name}")')] if figure.file else []
    return [
        Cell("markdown", f"## {title}"),
        Cell("console", f"dragoman {figure.command}"),
        *shown,
        Cell("markdown", f"**{figure.question}** Answer before you run the next cell."),
        Cell("python", f'print(lecture.figures["{figure.name}"].answer)'),
    ]


def bullets(items: tuple[str, ...]) -> str:
    return "\n".join(f"- {item}" for item in items)


def notebook(topic: Topic) -> str:
    made = cells(topic)
    return tutorials.notebook(made, [None] * len(made))


def main() -> None:
    PAGE.write_text(page(), encoding="utf-8")
    NOTEBOOKS.mkdir(exist_ok=True)
    for topic in TOPICS.values():
        (NOTEBOOKS / f"{topic.name}.ipynb").write_text(notebook(topic), encoding="utf-8")


if __name__ == "__main__":
    main()
