"""`dragoman info`, `inspect`, `attention`, `probe` and `calibrate`: see what a run is and does."""

from __future__ import annotations

import json

import click

from dragoman.commands.checks import refuse_options
from dragoman.commands.from_record import options_of
from dragoman.commands.inputs import pair_files
from dragoman.commands.options import json_option
from dragoman.commands.printing import as_utf8, print_json, print_message, print_warning
from dragoman.data import Pairs
from dragoman.inspect import AttentionOptions, CalibrateOptions, InfoOptions, InspectOptions, ProbeOptions
from dragoman.inspect.views import VIEWS


@click.command()
@click.argument("run")
@options_of(InfoOptions)
@json_option
def info(run: str, options: InfoOptions, as_json: bool) -> None:
    """Show a run: its model, data and training curve.

    \b
    dragoman info runs/my
    dragoman info runs/my --depth 5 --plot curve.png
    """
    from dragoman.inspect.measure import info as information_of

    information = information_of(run, options)
    if as_json:
        click.echo(json.dumps(information))
    else:
        information.show()
    if options.plot is not None:
        print_message(f"curve: {options.plot}")


@click.command()
@click.argument("run")
@click.argument("text")
@click.option(
    "--output", "-o", default="inspect.html", metavar="FILE",
    help="A page (.html), all numbers (.json), or one figure (.svg, .png, .pdf).",
)  # fmt: skip
@click.option(
    "--view", "kind", metavar="NAME",
    help="The figure of .svg, .png or .pdf, the first view of a page, or the only one in .json. [default: the first]",
)  # fmt: skip
@click.option(
    "--layer", metavar="NAME",
    help="Layer of --view attention, inside or states; part of positions, or sum; table of tables; of beam: scores or "
    "sums. [default: the last]",
)  # fmt: skip
@click.option(
    "--cell", metavar="LAYER,HEAD,ROW",
    help="Print the attention of one position as a worked sum instead: numbers from 1, or names of layer and token.",
)  # fmt: skip
@click.option(
    "--state", metavar="TOKEN",
    help="Print the training pairs with the decoder states nearest to that before an output token (number or name).",
)  # fmt: skip
@options_of(InspectOptions)
def inspect(
    run: str, text: str, options: InspectOptions, output: str, kind: str | None, layer: str | None, cell: str | None,
    state: str | None,
) -> None:  # fmt: skip
    """See inside a run: what it does with a text, as a page.

    The page is one file and needs no network.

    \b
    VIEWS

    A run has the views that its model has parts for. TEXT is the path of a file for a run that captions or transcribes.

    \b
    dragoman inspect runs/my "ein kleiner Hund" --output page.html
    dragoman inspect runs/my "ein kleiner Hund" --target "a big dog" --output page.html
    dragoman inspect runs/my "ein kleiner Hund" --view attention --output attention.svg
    dragoman inspect runs/my "ein kleiner Hund" --view lens --output page.html      a page that opens there
    dragoman inspect runs/my "ein kleiner Hund" --beside untrained --output page.html    before and after training
    dragoman inspect runs/my "ein kleiner Hund" --output numbers.json
    dragoman inspect runs/my "ein kleiner Hund" --cell 1,2,3         layer 1, head 2, third token
    dragoman inspect runs/my "ein kleiner Hund" --state 2            training pairs near the second output token
    """
    from dragoman.inspect.views import attention_sum, inspect_to, states_near

    as_utf8()
    known = {"run", "text", "target", "tag", "device"}
    if cell is not None:
        refuse_options(None, {*known, "cell"}, "does not go with --cell")
        click.echo(attention_sum(run, text, cell, options))
    elif state is not None:
        refuse_options(None, {*known, "state", "training_pairs"}, "does not go with --state")
        click.echo(states_near(run, text, state, options))
    else:
        for note in inspect_to(output, run, text, options, kind, layer).notes:
            print_message(f"note: {note}")
        click.echo(output)


listing = "\n    ".join(f"{name:<12}{view.about}" for name, view in VIEWS.items())
inspect.help = str(inspect.help).replace("VIEWS", listing)


@click.command()
@click.argument("run")
@click.argument("texts", nargs=-1, required=True, metavar="TEXT...")
@click.option("-o", "--output", "out", default="attention.png", help="Picture to write: .png, .svg or .pdf.")
@options_of(AttentionOptions)
def attention(run: str, texts: tuple[str, ...], out: str, options: AttentionOptions) -> None:
    """Draw the attention of each output token over the input.

    \b
    dragoman attention runs/my "a line" "another" --output seen.svg
    dragoman attention runs/captions beach.jpg --output seen.png     attention over the picture
    dragoman attention runs/speech news.wav --output words.png      when each word was said

    For a run that captions or transcribes, TEXT is the path of a file; several give seen-1.png, seen-2.png, …
    """
    from dragoman.inspect.views import attention as draw_attention

    pictures = draw_attention(run, texts, out, options)
    for path in pictures.paths:
        click.echo(path)
    print_warning(pictures.unseen.message())


@click.command()
@click.argument("run")
@options_of(ProbeOptions)
@json_option
def probe(run: str, options: ProbeOptions, as_json: bool) -> None:
    """Probe a run with texts that test its robustness.

    It counts the failures of each probe.

    \b
    repetition   one word many times: does the output repeat, or invent?
    copying      names and numbers: does the output keep them?
    length       one word, one sentence, many: is the output in proportion?
    gender       he and she with the same occupation: what else changes?
    stereotype   nurse, programmer, …: which gender does the output choose where the source has none?

    The inputs of copying, gender and stereotype are English, so these need a run with English sentences as source.
    repetition and length take others from the training data, or from --sentences. A run that reads single words has no
    probes.

    \b
    dragoman probe runs/my
    dragoman probe runs/my --probe copying --examples 5 --beam 1
    dragoman probe runs/my --probe length --sentences german.txt
    dragoman probe runs/my --templates malay.toml       he or she for Malay "dia"?
    """
    from dragoman.inspect.measure import probe as probe_run

    results = probe_run(run, options, note=print_message, warn=print_warning)
    as_utf8()
    if as_json:
        print_json([result.as_dict() for result in results])
    else:
        click.echo("\n".join("\n".join((*result.lines(), "")) for result in results))


@click.command()
@click.argument("run")
@pair_files(reason="name FILE, or both --source and --target, or neither for the pairs that training set aside")
@options_of(CalibrateOptions)
@json_option
def calibrate(run: str, files: str | Pairs | None, options: CalibrateOptions, as_json: bool) -> None:
    """Calibrate a run's confidences.

    Of the tokens with a confidence of 80 %, 80 % should be right.

    calibrate fits one temperature for tokens (Guo et al. 2017) and a scale for whole outputs (Platt 1999) on the pairs
    of FILE, or on those that training set aside, and writes both to calibration.json in the run folder. predict --json
    then also prints token_confidences, and confidence: the probability that the whole output is the reference. The
    outputs do not change. More training changes the weights: calibrate again after it.

    \b
    dragoman calibrate runs/my                          on the pairs that training set aside
    dragoman calibrate runs/my held-out.tsv --plot reliability.png
    dragoman calibrate runs/my --error-rate 0.05        which --min-confidence leaves 5 % wrong outputs
    echo "a line" | dragoman predict runs/my --json     now with confidences
    """
    from dragoman.inspect.measure import calibrate as calibrate_run

    found = calibrate_run(run, files, options)
    click.echo(json.dumps(found.as_dict()) if as_json else "\n".join(found.lines()))
    for picture in filter(None, (options.plot, options.risk_plot)):
        print_message(f"picture: {picture}")
