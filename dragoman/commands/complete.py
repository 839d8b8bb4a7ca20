"""`dragoman complete`: texts gone on with by a language model; and `evaluate` for such runs."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from itertools import islice
from typing import Any

import click

from dragoman.commands.labels import all_examples, refuse_others, texts_of
from dragoman.commands.options import device_option
from dragoman.commands.printing import as_utf8
from dragoman.commands.progress import progress_bar
from dragoman.errors import ConfigError, DataError

TOGETHER = 1024  # prompts read ahead


@click.command()
@click.argument("run")
@click.argument("prompts", nargs=-1, metavar="[PROMPT]...")
@click.option("--file", metavar="FILE", help="Prompts, one a line, in place of PROMPT; - is standard input.")
@click.option("--max-length", type=click.IntRange(1), default=100, show_default=True, help="Most tokens that follow.")
@click.option("--one-line", is_flag=True, help="Stop where the line ends. Without it the text goes on.")
@click.option("--sample", is_flag=True, help="Draw every token by chance, as likely as the model says.")
@click.option(
    "--temperature", type=click.FloatRange(0.0, min_open=True),
    help="For --sample: draw from p^(1/temperature). Above 1 is more varied. [default: 1]",
)  # fmt: skip
@click.option("--top-k", type=click.IntRange(1), help="For --sample: draw among so many most probable tokens.")
@click.option(
    "--top-p", type=click.FloatRange(0.0, 1.0, min_open=True),
    help="For --sample: draw among the fewest tokens that together have this probability.",
)  # fmt: skip
@click.option("--seed", type=int, help="For --sample: other seeds, other texts. [default: 0]")
@click.option("--samples", type=click.IntRange(1), help="For --sample: so many texts for every prompt. [default: 1]")
@click.option("--allow-unknown", is_flag=True, help="Read what the vocabulary does not have as <unk>.")
@click.option("--batch-size", type=click.IntRange(1), default=64, show_default=True, help="Texts at a time.")
@click.option("--json", "as_json", is_flag=True, help="One object a line: text, score, tokens, token_scores, ended.")
@device_option
def complete(
    run: str,
    prompts: tuple[str, ...],
    file: str | None,
    max_length: int,
    one_line: bool,
    sample: bool,
    samples: int | None,
    allow_unknown: bool,
    batch_size: int,
    as_json: bool,
    device: str,
    **wheel: Any,
) -> None:
    """Go on with texts: what a language model would write after each PROMPT.

    \b
    dragoman complete runs/my "Once upon a time"             the likeliest token, one after another
    dragoman complete runs/my "ROMEO:" --sample --temperature 0.8 --max-length 300 --seed 2
    dragoman complete runs/my "The ship" --sample --top-p 0.9 --samples 5 --one-line
    dragoman complete runs/my --file prompts.txt --one-line > lines.txt
    echo "The ship" | dragoman complete runs/my --json

    Without PROMPT and --file the lines of standard input are prompts; an empty one begins a new line. The prompt is
    printed too. With --one-line every prompt gives one line of output (or --samples lines); without it texts have
    several lines, and an empty line stands between them: --json tells them apart. Texts depend on the prompt and the
    seed, not on the other prompts or the batch size.

    The lines of a FILE.jsonl are objects with "source", the prompt, or texts; there a prompt may have several lines,
    with "\\n" between them.
    """
    given = {name: value for name, value in wheel.items() if value is not None}
    for name, value in (*given.items(), ("samples", samples)):
        if value is not None and not sample:
            raise ConfigError(f"--{name.replace('_', '-')} needs --sample")
    if prompts and file is not None:
        raise DataError(f"found {len(prompts)} PROMPT and --file {file}, expected one of them")
    typed = not prompts and file in (None, "-")
    if typed and sys.stdin is None:
        raise DataError("standard input is closed: give a PROMPT, or name a --file")
    from dragoman.config import settings
    from dragoman.decoding.sampling import Sampling
    from dragoman.inference.load import load_completer

    lines = iter(prompts) if prompts else texts_of(file)
    completer = load_completer(run, device)
    sampling = settings.build(Sampling, given) if sample else None
    as_utf8()
    window = 1 if typed and sys.stdin.isatty() else TOGETHER
    count = written = 0
    while together := list(islice(lines, window)):
        several = completer.complete(
            together,
            max_length=max_length,
            sampling=sampling,
            samples=samples or 1,
            one_line=one_line,
            allow_unknown=allow_unknown,
            batch_size=batch_size,
            first=count + 1,
        )
        for one in (one for found in several for one in found):
            if written and not (one_line or as_json):
                sys.stdout.write("\n")
            sys.stdout.write((one.as_json() if as_json else one.text) + "\n")
            written += 1
        sys.stdout.flush()
        count += len(together)
    if not count:
        raise DataError(f"{file or 'standard input'}: found no line, expected prompts, one a line")


ABOUT = {
    "word_perplexity": ("word perplexity", ".2f", "e^(nats a word), the end of a line is a word"),
    "perplexity": ("token perplexity", ".2f", "comparable with the same tokenizer alone"),
    "character_perplexity": ("character perplexity", ".4f", "the end of a line is a character"),
    "character_nats": ("nats a character", ".4f", ""),
    "byte_bits": ("bits a byte", ".4f", ""),
    "loss": ("loss", ".4f", "nats a token"),
    "token_accuracy": ("token accuracy", ".2%", ""),
}


def evaluate_text(run: Any, files: Any, batch_size: int, as_json: bool, device: str) -> None:
    """How likely a text is."""
    from dragoman.inference.completer import Completer

    refuse_others(
        str(run.folder), run.task.name, {"run", "file", "batch_size", "as_json", "device"},
        "has no meaning for a text: {run} is a language model",
    )  # fmt: skip
    completer = Completer(run, device)
    examples = all_examples(run.config.data, files, run.task.example_format(run.config), "line")
    text = [example.references[0] for example in examples]
    with progress_bar("tokens") if sys.stderr.isatty() else nullcontext() as progress:
        scores = completer.evaluate(text, batch_size=batch_size, progress=progress)
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
