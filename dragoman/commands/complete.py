"""`dragoman complete`: continue prompts with a language model; and `evaluate` for such runs."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dragoman.base import ConfigError, DataError, progress
from dragoman.base.config import fields_of, setting
from dragoman.commands.checks import PREDICT_ARGUMENTS, refuse_options
from dragoman.commands.inputs import read_examples
from dragoman.commands.options import device_option
from dragoman.commands.printing import as_utf8, print_prompt, print_unseen, print_warning
from dragoman.commands.settings import Schema, Settings, SettingsCommand
from dragoman.data import Pairs
from dragoman.inference import CompletionOptions, CompletionSettings

if TYPE_CHECKING:
    from dragoman.runs import Run

WINDOW = 1024  # prompts read ahead


@dataclass(frozen=True)
class MethodSetting:
    """The choice of tokens, which Python gives as `CompletionOptions.sampling`."""

    method: Any = setting(None, help="how tokens are chosen; none: greedy")


SCHEMA = Schema(CompletionSettings, MethodSetting, kinds=("sampling",))


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
    from dragoman.inference import StreamOptions, UnseenInputs, load_completer, open_inputs

    if settings.samples > 1 and settings.method is None:
        raise ConfigError(f"{settings.spelled['samples']}: needs --sample")
    given = {name: getattr(settings, name) for name in fields_of(CompletionSettings)}
    options = CompletionOptions(**given, sampling=settings.method)
    if prompts and file is not None:
        raise DataError(f"found {len(prompts)} PROMPT and --file {file}, expected one of them")
    typed = not prompts and file in (None, "-")
    if typed and sys.stdin is None:
        raise DataError("standard input is closed: give a PROMPT, or name a --file")
    completer = load_completer(run, device)
    named = None if typed else Path(str(file))
    inputs = open_inputs(completer.run, list(prompts) if prompts else named, warn=print_warning)
    as_utf8()
    interactive = typed and sys.stdin.isatty()
    print_prompt(interactive, "continuation")
    unseen, count, written = UnseenInputs("prompt"), 0, 0
    stream = StreamOptions(
        window=1 if interactive else WINDOW,
        on_warning=print_warning,
        on_unknown=unseen.add,
        input_name="prompt {}".format,
    )
    for completions in completer.stream(inputs, options, stream):
        count += 1
        for completion in completions:
            if written and not (options.one_line or as_json):
                sys.stdout.write("\n")  # an empty line between texts of several lines
            sys.stdout.write((completion.as_json() if as_json else completion.text) + "\n")
            written += 1
        if interactive:
            sys.stdout.flush()
            print_unseen(unseen)
    sys.stdout.flush()
    print_unseen(unseen)
    if not count:
        raise DataError(f"{file or 'standard input'}: found no line, expected prompts, one per line")


ABOUT = {
    "word_perplexity": ("word perplexity", ".2f", "e^(nats per word); the end of a line is a word"),
    "perplexity": ("token perplexity", ".2f", "comparable with the same tokenizer alone"),
    "character_perplexity": ("character perplexity", ".4f", "the end of a line is a character"),
    "character_nats": ("nats per character", ".4f", ""),
    "byte_bits": ("bits per byte", ".4f", ""),
    "loss": ("loss", ".4f", "nats per token"),
    "token_accuracy": ("token accuracy", ".2%", ""),
}


def evaluate_text(
    run: Run, files: str | Pairs, batch_size: int, dynamic: dict[str, Any] | None, as_json: bool, device: str
) -> None:
    from dragoman.inference import Completer, DynamicEvaluation

    places = {f"evaluation.dynamic{name}" for name in ("", "_rate", "_decay", "_segment")}
    allowed = PREDICT_ARGUMENTS - {"data.columns", "data.header"} | places
    refuse_options(run, allowed, "has no meaning for a text: {run} is a language model")
    completer = Completer(run, device)
    text = [example.references[0] for example in read_examples(run, files, "line")]
    learning = None if dynamic is None else DynamicEvaluation(**dynamic)
    with progress("tokens") as done:
        scores = completer.evaluate(text, batch_size=batch_size, progress=done, dynamic=learning)
    as_utf8()
    if as_json:
        click.echo(json.dumps(scores))
        return
    for name, (title, form, about) in ABOUT.items():
        click.echo(f"{title:<22}{format(scores[name], form):>12}   {about}".rstrip())
    counts = (f"{scores[name]:,} {name}" for name in ("tokens", "words", "characters"))
    click.echo(f"{'text':<22}{scores['lines']:>12,}   lines: {', '.join(counts)}, ends of lines included")
    if scores["unknown"]:
        about = "tokens outside the vocabulary, read as <unk>: not comparable with other vocabularies"
        click.echo(f"{'unknown':<22}{scores['unknown']:>12,}   {about}")
