"""`dragoman complete`: continue prompts with a language model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import click

from dragoman.base.config import setting
from dragoman.commands.options import device_option
from dragoman.commands.printing import print_lines, print_warning
from dragoman.commands.settings import SettingsCommand
from dragoman.decoding import Schema, Settings
from dragoman.inference import CompletionSettings


@dataclass(frozen=True)
class CompleteSettings(CompletionSettings):
    """The settings of the command; Python gives the choice of tokens as `CompletionOptions.sampling`."""

    method: Any = setting(None, help="how tokens are chosen; none: greedy")

    def problems(self) -> Iterator[str]:
        """Several texts of greedy search, which has one."""
        if self.samples > 1 and self.method is None:
            yield "samples: needs --sample"


SCHEMA = Schema(CompleteSettings, kinds=("sampling",))


@click.command(cls=SettingsCommand, schema=SCHEMA, several="prompts", keep_unknown=True)
@click.argument("run")
@click.argument("words", nargs=-1, metavar="[PROMPT]... [PLACE=VALUE]...")
@click.option("--file", metavar="FILE", help="Prompts, one per line, in place of PROMPT; - is standard input.")
@click.option("--json", "as_json", is_flag=True, help="One object per line: text, score, tokens, token_scores, ended.")
@device_option
def complete(
    run: str, prompts: tuple[str, ...], file: str | None, as_json: bool, device: str, settings: Settings
) -> None:
    """Continue a prompt with a language model.

    \b
    dragoman complete runs/my "Once upon a time"             greedy: the most probable token at every step
    dragoman complete runs/my "ROMEO:" --sample method.temperature=0.8 --max-length 300 --seed 2
    dragoman complete runs/my "The ship" --sample method.top_p=0.9 --samples 5 --one-line
    dragoman complete runs/my --file prompts.txt --one-line > lines.txt
    echo "The ship" | dragoman complete runs/my --json

    Without PROMPT and --file, each line of standard input is a prompt; an empty prompt begins a new line. The output
    includes the prompt. With --one-line every prompt gives one line of output (or --samples lines). Without it a text
    may have several lines, and an empty line separates texts; use --json to tell them apart. A text depends on its
    prompt and the seed, not on other prompts or the batch size.

    A word such as method.temperature=0.8 is a setting, not a prompt; other words with = are prompts.

    Each line of a FILE.jsonl is a text or an object with "source". Such a prompt may have several lines, with "\\n"
    between them.
    """
    from dragoman.inference import CompletedLines, CompletionOptions

    values = dict(vars(settings.values))
    options = CompletionOptions(sampling=values.pop("method"), **values)
    texts = CompletedLines(run, prompts, file, options, as_json=as_json, device=device, warn=print_warning)
    print_lines(texts, texts.lines(), "continuation")
    print_warning(texts.unseen.message())
