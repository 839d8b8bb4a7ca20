"""The list of tasks. A new task is a class in this folder and a late entry here."""

from __future__ import annotations

from dragoman.config.table import Table, imported
from dragoman.tasks.base import Config, Task


def new(task: type[Task]) -> Task:
    return task()


TASKS: Table[str, Task] = Table(
    "task",
    lambda task: [task.name],
    late={
        "translate": imported(new, "dragoman.tasks.translate:Translate"),
        "classify": imported(new, "dragoman.tasks.labels:Classify"),
        "regress": imported(new, "dragoman.tasks.labels:Regress"),
        "tag": imported(new, "dragoman.tasks.labels:Tag"),
        "language-model": imported(new, "dragoman.tasks.language_model:LanguageModelTask"),
        "masked-language-model": imported(new, "dragoman.tasks.language_model:MaskedLanguageModelTask"),
        "transcribe": imported(new, "dragoman.tasks.media:Transcribe"),
        "caption": imported(new, "dragoman.tasks.media:Caption"),
    },
)


def task_of(config: Config) -> Task:
    return TASKS[config.task]
