"""`dragoman complete`: continue prompts with a language model; and `evaluate` for such runs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from dragoman.commands.labels import PREDICT_ARGUMENTS, read_examples, refuse_options, texts_of
from dragoman.commands.options import SAMPLING, batch_size_option, device_option, flag
from dragoman.commands.printing import as_utf8, print_prompt
from dragoman.commands.progress import progress_bar
from dragoman.errors import ConfigError, DataError

if TYPE_CHECKING:
    from dragoman.data.examples import Pairs
    from dragoman.decoding.complete import CompletionOptions
    from dragoman.inference.completer import Completed
    from dragoman.runs import Run

WINDOW = 1024  # prompts read ahead


@click.command()
@click.argument("run")
@click.argument("prompts", nargs=-1, metavar="[PROMPT]...")
@click.option("--file", metavar="FILE", help="Prompts, one per line, in place of PROMPT; - is standard input.")
@click.option(
    "--max-length",
    type=click.IntRange(1, 100_000),
    default=100,
    show_default=True,
    help="Maximum number of new tokens.",
)
@click.option("--one-line", is_flag=True, help="Stop at the end of the line. Without it the text continues.")
@click.option("--sample", is_flag=True, help="Draw every token at random from the model's distribution.")
@click.option(
    "--temperature", type=click.FloatRange(0.0, min_open=True),
    help="With --sample: sample from p^(1/temperature). Above 1 is more varied. [default: 1]",
)  # fmt: skip
@click.option("--top-k", type=click.IntRange(1), help="With --sample: sample among the K most probable tokens.")
@click.option(
    "--top-p", type=click.FloatRange(0.0, 1.0, min_open=True),
    help="With --sample: sample among the fewest tokens whose probabilities sum to P.",
)  # fmt: skip
@click.option("--seed", type=int, help="With --sample: random seed. [default: 0]")
@click.option("--samples", type=click.IntRange(1, 10_000), help="With --sample: texts for every prompt. [default: 1]")
@click.option("--allow-unknown", is_flag=True, help="Read words outside the vocabulary as <unk>.")
@batch_size_option
@click.option("--json", "as_json", is_flag=True, help="One object per line: text, score, tokens, token_scores, ended.")
@device_option
def complete(run: str, prompts: tuple[str, ...], file: str | None, as_json: bool, device: str, **given: Any) -> None:
    """Continue a prompt with a language model.

    \b
    dragoman complete runs/my "Once upon a time"             greedy: the most probable token at every step
    dragoman complete runs/my "ROMEO:" --sample --temperature 0.8 --max-length 300 --seed 2
    dragoman complete runs/my "The ship" --sample --top-p 0.9 --samples 5 --one-line
    dragoman complete runs/my --file prompts.txt --one-line > lines.txt
    echo "The ship" | dragoman complete runs/my --json

    Without PROMPT and --file, each line of standard input is a prompt; an empty prompt begins a new line. The output
    includes the prompt. With --one-line every prompt gives one line of output (or --samples lines). Without it a text
    may have several lines, and an empty line separates texts; use --json to tell them apart. A text depends on its
    prompt and the seed, not on other prompts or the batch size.

    Each line of a FILE.jsonl is a text or an object with "source". Such a prompt may have several lines, with "\\n"
    between them.
    """
    from dragoman.inference.load import load_completer

    options = completion_options(given)
    if prompts and file is not None:
        raise DataError(f"found {len(prompts)} PROMPT and --file {file}, expected one of them")
    typed = not prompts and file in (None, "-")
    if typed and sys.stdin is None:
        raise DataError("standard input is closed: give a PROMPT, or name a --file")
    lines = iter(prompts) if prompts else texts_of(file)
    completer = load_completer(run, device)
    as_utf8()
    interactive = typed and sys.stdin.isatty()
    window = 1 if interactive else WINDOW
    print_prompt(interactive, "continuation")
    run_options = {name: given[name] for name in ("allow_unknown", "batch_size")}
    complete_prompts = partial(completer.complete, options=options, **run_options)
    if not write_completions(complete_prompts, lines, window, as_json, separate=not (options.one_line or as_json)):
        raise DataError(f"{file or 'standard input'}: found no line, expected prompts, one per line")


def completion_options(given: dict[str, Any]) -> CompletionOptions:
    """The options of a completion among the arguments of the command."""
    from dragoman.config import settings
    from dragoman.decoding.complete import CompletionOptions
    from dragoman.decoding.sampling import Sampling

    typed = {name: given[name] for name in (*SAMPLING, "samples") if given[name] is not None}
    for name in typed:
        if not given["sample"]:
            raise ConfigError(f"{flag(name)} needs --sample")
    samples = typed.pop("samples", 1)
    sampling = settings.build(Sampling, typed) if given["sample"] else None
    return CompletionOptions(given["max_length"], sampling, samples, given["one_line"])


def write_completions(
    complete_prompts: Callable[..., list[list[Completed]]],
    lines: Iterator[str],
    window: int,
    as_json: bool,
    separate: bool,
) -> int:
    """Write completions of prompts, with `separate` an empty line between them; returns the number of prompts."""
    count = written = 0
    while prompts := list(islice(lines, window)):
        for completions in complete_prompts(prompts, first=count + 1):
            for completion in completions:
                if written and separate:
                    sys.stdout.write("\n")
                sys.stdout.write((completion.as_json() if as_json else completion.text) + "\n")
                written += 1
        sys.stdout.flush()
        count += len(prompts)
    return count


ABOUT = {
    "word_perplexity": ("word perplexity", ".2f", "e^(nats per word); the end of a line is a word"),
    "perplexity": ("token perplexity", ".2f", "comparable with the same tokenizer alone"),
    "character_perplexity": ("character perplexity", ".4f", "the end of a line is a character"),
    "character_nats": ("nats per character", ".4f", ""),
    "byte_bits": ("bits per byte", ".4f", ""),
    "loss": ("loss", ".4f", "nats per token"),
    "token_accuracy": ("token accuracy", ".2%", ""),
}


def evaluate_text(run: Run, files: str | Pairs, batch_size: int, as_json: bool, device: str) -> None:
    """Print the perplexities of a text."""
    from dragoman.inference.completer import Completer

    allowed = PREDICT_ARGUMENTS - {"columns", "header"}
    refuse_options(run, allowed, "has no meaning for a text: {run} is a language model")
    completer = Completer(run, device)
    examples = read_examples(run.config.data, files, run.task.example_format(run.config), "line")
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
