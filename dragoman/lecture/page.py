"""The page of a lecture, index.html: topics, figures, commands, questions."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dragoman.base import atomic_write
from dragoman.lecture.runs import RUNS
from dragoman.lecture.table import DrawnFigure
from dragoman.lecture.topics import TOPICS
from dragoman.lecture.toys import write_toys
from dragoman.web import build_page

PAGE, TOYS = "index.html", "toys.html"


def write_page(folder: Path, drawn: Mapping[str, DrawnFigure], first: str | None) -> Path:
    """Write the page of what is drawn, which opens at the topic `first`, and the toys that it links to."""
    write_toys(folder / TOYS, follow_link=False)
    data = {
        "first": first or next(iter(TOPICS)),
        "toys": TOYS,
        "topics": [topic_data(name, drawn) for name in TOPICS],
    }
    path = folder / PAGE
    with atomic_write(path, follow_link=False) as file:
        file.write_text(build_page("Lecture", "lecture-page", data, beside=True), encoding="utf-8", newline="\n")
    return path


def topic_data(name: str, drawn: Mapping[str, DrawnFigure]) -> dict[str, Any]:
    topic = TOPICS[name]
    figures = []
    for row in topic.figures:
        one = drawn.get(row.name)
        entry: dict[str, Any] = {"title": row.title, "command": f"dragoman {row.command}", "slow": row.slow}
        if one is not None:
            entry |= {"file": one.file, "text": one.text, "question": one.question, "answer": answer_data(one)}
        figures.append(entry)
    return {
        "name": name, "title": topic.title, "about": topic.about, "ask": topic.ask, "mistakes": topic.mistakes,
        "runs": [{"command": f"dragoman train {run}.toml", "about": RUNS[run].about} for run in topic.runs],
        "figures": figures,
    }  # fmt: skip


def answer_data(drawn: DrawnFigure) -> dict[str, Any]:
    """The answer for the page; choices in an order that does not tell the right one."""
    answer = drawn.answer
    data: dict[str, Any] = {"right": answer.right, "text": answer.text, "why": answer.why}
    if isinstance(answer.right, str):
        return {**data, "choices": sorted({answer.right, *answer.others})}
    whole = answer.digits == 0 and float(answer.right).is_integer()
    return {**data, "digits": answer.digits, "tolerance": 0 if whole else 10.0**-answer.digits}
