"""The list of tasks. A new task is a class in this folder and an entry here."""

from __future__ import annotations

from dragoman.config.table import Table
from dragoman.tasks.base import Config, Task
from dragoman.tasks.labels import Classify, Regress, Tag
from dragoman.tasks.language_model import LanguageModelTask, MaskedLanguageModelTask
from dragoman.tasks.media import Caption, Transcribe
from dragoman.tasks.translate import Translate

BUILT_IN: tuple[Task, ...] = (
    Translate(), Classify(), Regress(), Tag(), LanguageModelTask(), MaskedLanguageModelTask(), Transcribe(), Caption(),
)  # fmt: skip
TASKS = Table("task", lambda task: [task.name], BUILT_IN)


def task_of(config: Config) -> Task:
    return TASKS[config.task]
