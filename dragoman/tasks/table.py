"""The list of tasks. A new task is a file in this folder and a line here."""

from __future__ import annotations

from torch import nn

from dragoman.config.table import Table
from dragoman.data.source_reader import SourceReader
from dragoman.data.tokenizers.base import Tokenizer
from dragoman.tasks.base import Config, Task
from dragoman.tasks.caption import Caption
from dragoman.tasks.classify import Classify
from dragoman.tasks.language_model import LanguageModelTask
from dragoman.tasks.masked_language_model import MaskedLanguageModelTask
from dragoman.tasks.regress import Regress
from dragoman.tasks.tag import Tag
from dragoman.tasks.transcribe import Transcribe
from dragoman.tasks.translate import Translate

BUILT_IN: tuple[Task, ...] = (
    Translate(),
    Classify(),
    Regress(),
    Tag(),
    LanguageModelTask(),
    MaskedLanguageModelTask(),
    Transcribe(),
    Caption(),
)
TASKS = Table("task", lambda task: [task.name], BUILT_IN)


def task_of(config: Config) -> Task:
    return TASKS[config.task]


def model_for(config: Config, source: SourceReader, target: Tokenizer) -> nn.Module:
    """The untrained model for these vocabularies."""
    return task_of(config).model(config, source, target)
