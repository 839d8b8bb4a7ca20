"""The list of tasks. A new task is a class in this folder and a late entry here."""

from __future__ import annotations

from dragoman.config.table import Table
from dragoman.tasks.base import Config, Task


def _translate() -> Task:
    from dragoman.tasks.translate import Translate

    return Translate()


def _classify() -> Task:
    from dragoman.tasks.labels import Classify

    return Classify()


def _regress() -> Task:
    from dragoman.tasks.labels import Regress

    return Regress()


def _tag() -> Task:
    from dragoman.tasks.labels import Tag

    return Tag()


def _language_model() -> Task:
    from dragoman.tasks.language_model import LanguageModelTask

    return LanguageModelTask()


def _masked_language_model() -> Task:
    from dragoman.tasks.language_model import MaskedLanguageModelTask

    return MaskedLanguageModelTask()


def _transcribe() -> Task:
    from dragoman.tasks.media import Transcribe

    return Transcribe()


def _caption() -> Task:
    from dragoman.tasks.media import Caption

    return Caption()


TASKS: Table[str, Task] = Table(
    "task",
    lambda task: [task.name],
    late={
        "translate": _translate, "classify": _classify, "regress": _regress, "tag": _tag,
        "language-model": _language_model, "masked-language-model": _masked_language_model,
        "transcribe": _transcribe, "caption": _caption,
    },
)  # fmt: skip


def task_of(config: Config) -> Task:
    return TASKS[config.task]
