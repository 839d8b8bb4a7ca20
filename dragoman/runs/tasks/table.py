"""The list of tasks. A new task is a class in this folder and a late entry here."""

from __future__ import annotations

from dragoman.base.config import Table, imported
from dragoman.runs.tasks.base import Config, Task


def new(task: type[Task]) -> Task:
    return task()


TASKS: Table[str, Task] = Table(
    "task",
    lambda task: [task.name],
    late={
        "translate": imported(new, "dragoman.runs.tasks.translate:Translate"),
        "classify": imported(new, "dragoman.runs.tasks.labels:Classify"),
        "regress": imported(new, "dragoman.runs.tasks.labels:Regress"),
        "tag": imported(new, "dragoman.runs.tasks.labels:Tag"),
        "language-model": imported(new, "dragoman.runs.tasks.language_model:LanguageModelTask"),
        "masked-language-model": imported(new, "dragoman.runs.tasks.language_model:MaskedLanguageModelTask"),
        "transcribe": imported(new, "dragoman.runs.tasks.media:Transcribe"),
        "caption": imported(new, "dragoman.runs.tasks.media:Caption"),
    },
)


def task_of(config: Config) -> Task:
    return TASKS[config.task]
