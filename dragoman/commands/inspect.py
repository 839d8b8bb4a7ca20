"""`dragoman info`, `inspect`, `attention`, `probe` and `calibrate`: see what a run is and does."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from dragoman.analysis.options import InspectOptions
from dragoman.analysis.views import VIEWS
from dragoman.commands.checks import refuse_options, require_search
from dragoman.commands.inputs import pair_files
from dragoman.commands.options import beam_option, device_option, json_option, tag_option
from dragoman.commands.printing import as_utf8, print_message, print_unseen, print_warning
from dragoman.data.examples import Pairs
from dragoman.data.readers.lines import read_lines
from dragoman.errors import DataError


@click.command()
@click.argument("run")
@click.option("--depth", type=click.IntRange(1), default=3, help="Levels of layers to list.")
@click.option("--plot", help="Also draw the training curve to this .png, .svg or .pdf file.")
@json_option
def info(run: str, depth: int, plot: str | None, as_json: bool) -> None:
    """Show a run: its model, data and training curve.

    \b
    dragoman info runs/my
    dragoman info runs/my --depth 5 --plot curve.png
    """
    from dragoman.analysis.figures import check_plot_path
    from dragoman.reports.plots import draw_curves
    from dragoman.reports.run_summary import curve_labels, print_run_information, run_information
    from dragoman.runs import Run

    opened = Run(run)
    if plot is not None:
        check_plot_path(plot)
        opened.check_single("--plot draws the curve of one")
    information = run_information(run, depth)
    if as_json:
        click.echo(json.dumps(information))
    else:
        print_run_information(information)
        leaderboard = Path(run) / "leaderboard.md"  # of a run that a search made
        if leaderboard.is_file():
            click.echo(f"\nsearch:\n{leaderboard.read_text(encoding='utf-8').rstrip()}")
    if plot is not None:
        title = opened.folder.resolve().name
        print_message(f"curve: {draw_curves(opened.metrics(), plot, *curve_labels(opened), title)}")


@click.command()
@click.argument("run")
@click.argument("text")
@click.option("--target", help="Explain this output instead of the run's own prediction.")
@click.option(
    "--output", "-o", default="inspect.html", metavar="FILE",
    help="A page (.html), all numbers (.json), or one figure (.svg, .png, .pdf).",
)  # fmt: skip
@click.option(
    "--view", "kind", metavar="NAME",
    help="The figure of .svg, .png or .pdf, the first view of a page, or the only one in .json. [default: the first]",
)  # fmt: skip
@click.option("--layer", metavar="NAME", help="Layer of --view attention, states or positions. [default: the last]")
@click.option(
    "--cell", metavar="LAYER,HEAD,ROW",
    help="Print the attention of one position as a worked sum instead: numbers from 1, or names of layer and token.",
)  # fmt: skip
@click.option(
    "--beside", metavar="RUN",
    help="Put another run beside it: a folder; untrained: the same run before training; no-positions: without them.",
)  # fmt: skip
@click.option(
    "--training-pairs", type=click.IntRange(1), metavar="N",
    help="Add the view training, of so many training pairs. [default: 1000 with --view training or --state]",
)  # fmt: skip
@click.option(
    "--state",
    metavar="TOKEN",
    help="Print the training pairs with the decoder states nearest to that before an output token (number or name).",
)
@beam_option
@tag_option
@device_option
def inspect(
    run: str,
    text: str,
    target: str | None,
    output: str,
    kind: str | None,
    layer: str | None,
    cell: str | None,
    beside: str | None,
    training_pairs: int | None,
    state: str | None,
    beam: int | None,
    tag: str | None,
    device: str,
) -> None:
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
    from dragoman.reports.inspection import attention_sum, inspect_to, states_near

    as_utf8()
    options = InspectOptions(target, (), beside, training_pairs, beam, tag, device)
    if cell is not None:
        refuse_options(None, {"run", "text", "target", "cell", "tag", "device"}, "does not go with --cell")
        click.echo(attention_sum(run, text, cell, options))
    elif state is not None:
        known = {"run", "text", "target", "state", "training_pairs", "tag", "device"}
        refuse_options(None, known, "does not go with --state")
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
@tag_option
def attention(run: str, texts: tuple[str, ...], out: str, tag: str | None) -> None:
    """Draw the attention of each output token over the input.

    \b
    dragoman attention runs/my "a line" "another" --output seen.svg
    dragoman attention runs/captions beach.jpg --output seen.png     attention over the picture
    dragoman attention runs/speech news.wav --output words.png      when each word was said

    For a run that captions or transcribes, TEXT is the path of a file; several give seen-1.png, seen-2.png, …
    """
    from dragoman.analysis.attention import attention_map
    from dragoman.analysis.figures import check_plot_path
    from dragoman.inference.load import load_predictor
    from dragoman.inference.unseen import UnseenInputs
    from dragoman.reports.plots import draw_attention

    check_plot_path(out)
    require_search("attention", run, '"translate", "transcribe" or "caption"')
    predictor = load_predictor(run)
    usable = [text for text in texts if text.strip()]
    if not usable:
        raise DataError("found only empty text, expected text to draw attention for")
    if predictor.reads_files:
        from dragoman.models.transcriber import Transcriber
        from dragoman.reports.media_plots import draw_caption_attention, draw_ctc_alignments

        refuse_options(predictor.run, {"run", "texts", "out"}, 'goes with texts; {run} has task = "{task}"')
        draw = draw_ctc_alignments if isinstance(predictor.model, Transcriber) else draw_caption_attention
        for path in draw(predictor, usable, out):
            click.echo(path)
        return
    read, unknown = list(predictor.read_as(usable, tag)), UnseenInputs()
    for number, text in enumerate(read, 1):
        if surfaces := predictor.unseen(text):
            unknown.add(number, surfaces)
    click.echo(draw_attention([attention_map(predictor, text) for text in read], out))
    print_unseen(unknown)


@click.command()
@click.argument("run")
@click.option(
    "--probe", "names", multiple=True, metavar="NAME",
    help="repetition, copying, length, gender or stereotype; may be repeated. [default: all that suit the run]",
)  # fmt: skip
@click.option("--sentences", metavar="FILE", help="Source sentences for repetition and length.")
@click.option("--templates", metavar="FILE", help="Your own probes instead: templates, word lists and forms (.toml).")
@click.option("--examples", type=click.IntRange(0), default=2, help="Examples to show of each kind.")
@beam_option
@tag_option
@json_option
@device_option
def probe(
    run: str,
    names: tuple[str, ...],
    sentences: str | None,
    templates: str | None,
    examples: int,
    beam: int | None,
    tag: str | None,
    as_json: bool,
    device: str,
) -> None:
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
    from dragoman.analysis.probes import PROBES, probe_texts, run_probes, suitable_probes
    from dragoman.analysis.template_probes import read_template_probes, run_template_probes
    from dragoman.inference.inputs import StreamOptions
    from dragoman.inference.load import load_predictor
    from dragoman.reports.text_tables import probe_lines, template_lines
    from dragoman.runs import Run

    if sentences is not None and names and all(PROBES[name].english for name in names if name in PROBES):
        raise DataError(f"--sentences is for the probes of repetition and length: found {', '.join(names)}")
    require_search("probe", run, text=True)
    if templates is not None:
        refuse_options(None, {"run", "templates", "examples", "beam", "tag", "as_json", "device"}, "or --templates")
        own = read_template_probes(templates)
    else:
        texts, warning = probe_texts(Run(run), None if sentences is None else list(read_lines(sentences)))
        chosen = suitable_probes(names, texts)
        if warning:
            print_warning(warning)
        if skipped := [name for name in PROBES if not names and name not in chosen]:
            print_message(f"skipped: {', '.join(skipped)}; their inputs are English, which this run does not read")
    predictor = load_predictor(run, device)
    reports = StreamOptions(on_warning=print_warning, input_name="probe input {}".format)

    def outputs(sources: Sequence[str]) -> list[str]:
        return [output.text for output in predictor.stream(sources, stream=reports, tag=tag, beam=beam)]

    results: Sequence[Any]
    if templates is not None:
        results = run_template_probes(outputs, own, examples)
        lines = template_lines(results)
    else:
        results = run_probes(outputs, chosen, texts=texts, examples=examples)
        lines = probe_lines(results)
    as_utf8()
    if as_json:
        click.echo(json.dumps([result.as_dict() for result in results], ensure_ascii=False))
    else:
        click.echo("\n".join(lines))


@click.command()
@click.argument("run")
@pair_files(reason="name FILE, or both --source and --target, or neither for the pairs that training set aside")
@click.option("--plot", help="Also draw the reliability diagram to this .png, .svg or .pdf file.")
@click.option("--risk-plot", help="Also draw the risk-coverage curve: wrong outputs against the share that is kept.")
@click.option(
    "--error-rate", type=click.FloatRange(0.0, 1.0), metavar="R",
    help="Say which --min-confidence of predict, translate and serve leaves this share of wrong outputs.",
)  # fmt: skip
@click.option("--bins", type=click.IntRange(1), default=15, help="Bins of the reliability diagram.")
@click.option("--batch-size", type=click.IntRange(1), default=32, help="Pairs in a batch.")
@tag_option
@json_option
@device_option
def calibrate(
    run: str,
    files: str | Pairs | None,
    plot: str | None,
    risk_plot: str | None,
    error_rate: float | None,
    bins: int,
    batch_size: int,
    tag: str | None,
    as_json: bool,
    device: str,
) -> None:
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
    from dragoman.analysis import calibration as confidence
    from dragoman.analysis.figures import check_plot_path
    from dragoman.inference.load import load_predictor
    from dragoman.reports.plots import draw_reliability, draw_risk_coverage
    from dragoman.scoring.calibration import at_error_rate

    for picture in (plot, risk_plot):
        if picture is not None:
            check_plot_path(picture)
    require_search("calibrate", run, text=True)
    predictor = load_predictor(run, device)
    rows = None if files is None else confidence.read_rows(predictor, files, tag)
    calibration = confidence.calibrate(predictor, rows, bins=bins, batch_size=batch_size)
    path = confidence.save_calibration(predictor, calibration)
    curve = calibration.outputs.risk
    chosen = None if error_rate is None else at_error_rate(curve, error_rate)
    if as_json:
        named = {} if error_rate is None else {"min_confidence": chosen._asdict() if chosen else None}
        click.echo(json.dumps(calibration.as_dict() | named))
    else:
        click.echo("\n".join((*calibration.lines(), f"written: {path}")))
        if error_rate is not None:
            lowest = min(curve, key=lambda point: point.error)
            unreachable = f"no min_confidence leaves at most {error_rate:.1%} wrong outputs; the best: {lowest}"
            click.echo(str(chosen) if chosen is not None else unreachable)
    if plot is not None:
        panels = {
            "tokens, as trained": calibration.before.reliability,
            "tokens, calibrated": calibration.after.reliability,
            "outputs, as trained": calibration.outputs.before,
            "outputs, calibrated": calibration.outputs.after,
        }
        print_message(f"picture: {draw_reliability(panels, plot, title=Path(run).name)}")
    if risk_plot is not None:
        print_message(f"picture: {draw_risk_coverage(curve, risk_plot, title=Path(run).name)}")
