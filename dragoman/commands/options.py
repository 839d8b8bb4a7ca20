"""Command-line options that several commands share; nothing heavy is imported here."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import click

from dragoman.errors import DataError

Function = TypeVar("Function", bound=Callable[..., Any])


class MetricOption(click.Option):
    """An option that takes a metric; its help lists the registered ones when it is shown."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """The names come from the registry, which `dragoman --help` need not import."""
        from dragoman.scoring import registry

        record = super().get_help_record(ctx)
        assert record is not None
        names = {**registry.metrics_for("words"), **registry.metrics_for("phonemes")}
        costs = registry.segment_cost_metrics()
        return record[0], record[1].replace("METRICS", ", ".join(names)).replace("COSTS", ", ".join(costs))


# Each gives one entry of `how`, which companions.py understands.
DECODING = {
    "sample": click.option(
        "--sample", is_flag=True,
        help="Draw the output by chance, as likely as the model says; predict --n-best draws several, each told once.",
    ),
    "temperature": click.option(
        "--temperature", type=click.FloatRange(0.0, min_open=True),
        help="For --sample and --mbr: draw from p^(1/temperature). Above 1 is more varied. [default: 1]",
    ),
    "top_k": click.option(
        "--top-k", type=click.IntRange(1), help="For --sample and --mbr: draw among so many most probable tokens."
    ),
    "top_p": click.option(
        "--top-p", type=click.FloatRange(0.0, 1.0, min_open=True),
        help="For --sample and --mbr: draw among the fewest tokens that together have this probability.",
    ),
    "seed": click.option(
        "--seed", type=int,
        help="For --sample and --mbr: other seeds, other outputs; equal inputs draw equally. [default: 0]",
    ),
    "mbr": click.option(
        "--mbr", type=click.IntRange(2), metavar="SAMPLES",
        help="Minimum Bayes risk: draw so many outputs and take the one most like the others.",
    ),
    "mbr_metric": click.option(
        "--mbr-metric", cls=MetricOption, help="Which metric compares outputs: COSTS. [default: chrf]"
    ),
    "ensemble": click.option(
        "--ensemble", "ensemble", multiple=True, metavar="RUN",
        help="Average with this run, of any architecture but with the same vocabularies; may be repeated.",
    ),
    "average": click.option(
        "--average", type=click.Choice(["probability", "log"]),
        help="How runs are averaged: mean of probabilities or of their logarithms. [default: probability]",
    ),
    "rerank": click.option(
        "--rerank", metavar="RUN", multiple=True,
        help="Sort the --beam outputs anew by how well this run, trained from target to source, leads back; or, if it "
        "is a language model of the target, by how well they read. May be repeated.",
    ),
    "rerank_weight": click.option(
        "--rerank-weight", type=float, multiple=True,
        help="Score = own + weight × that of the --rerank run, each a mean a token; one for each. [default: 1]",
    ),
    "rerank_tag": click.option(
        "--rerank-tag", metavar="TAG", help="What the --rerank run shall write, where it learned several languages."
    ),
    "draft": click.option(
        "--draft", metavar="RUN",
        help="Greedy search in fewer calls: this small run with the same vocabularies proposes, the large one checks.",
    ),
    "draft_tokens": click.option(
        "--draft-tokens", type=click.IntRange(1), help="Tokens the draft proposes at a time. [default: 4]"
    ),
    "decoding_mode": click.option(
        "--decoding-mode", type=click.Choice(["ctc", "attention", "joint"]),
        help="How a transcriber decodes; attention and joint need model.attention_decoder. [default: ctc]",
    ),
    "ctc_weight": click.option(
        "--ctc-weight", type=click.FloatRange(0.0, 1.0, min_open=True, max_open=True),
        help="With --decoding-mode joint: the share of CTC in the score. [default: 0.3]",
    ),
    "language_model": click.option(
        "--language-model", metavar="FILE|RUN",
        help="Help CTC's search by n-grams of the tokens of a text file, or by a run of language-model with the same "
        "vocabulary.",
    ),
    "language_model_weight": click.option(
        "--language-model-weight", type=click.FloatRange(0.0, min_open=True),
        help="What log p of the language model counts. [default: 0.3]",
    ),
    "language_model_bonus": click.option(
        "--language-model-bonus", type=float, help="What every token written is given beside. [default: 0]"
    ),
    "language_model_order": click.option(
        "--language-model-order", type=click.IntRange(1), help="The n of n-grams of a text file. [default: 5]"
    ),
    "exhaustive": click.option(
        "--exhaustive", type=click.IntRange(0), metavar="LENGTH",
        help="Look at every output of up to so many tokens: exact, for small vocabularies; predict --json "
        "adds probability.",
    ),
    "shortlist": click.option(
        "--shortlist", metavar="FILE",
        help="Write only target tokens that the source's tokens are likely to need: a FILE of dragoman shortlist, or "
        "auto, the run's own. Faster with a large vocabulary.",
    ),
}  # fmt: skip


def engine_options(function: Any) -> Any:
    """Adds the choice of what searches."""
    engine = click.option(
        "--engine", type=click.Choice(["auto", "torch", "ctranslate2"]), default="auto", show_default=True,
        help="What searches. ctranslate2 (dragoman[fast]) is several times faster on a CPU; auto takes it where it "
        "gives the same text.",
    )  # fmt: skip
    precision = click.option(
        "--precision", type=click.Choice(["float32", "bfloat16", "int8"]), default="float32", show_default=True,
        help="Of the numbers: bfloat16 on a GPU and int8 with ctranslate2 are faster; the text may differ a little.",
    )  # fmt: skip
    return engine(precision(function))


def decoding_options(function: Any) -> Any:
    """Adds the options of decoding to a command, which gets them as one table, `how`."""

    @functools.wraps(function)
    def gathered(**given: Any) -> Any:
        how = {name: given.pop(name) for name in DECODING}
        return function(how=how, **given)

    for option in reversed(DECODING.values()):
        gathered = option(gathered)
    return gathered


tag_option = click.option(
    "--tag", help="What to write, such as de, where one model learned several languages; dragoman info shows which."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
device_option = click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda or cuda:N.")
beam_option = click.option(
    "--beam", type=click.IntRange(1), help="Hypotheses kept side by side; 1 is greedy. [default: the run's]"
)
length_penalty_option = click.option(
    "--length-penalty", type=click.FloatRange(0.0), help="Rank hypotheses by Σ log p / t^penalty. [default: the run's]"
)
# Each is named as the setting of search that it sets.
SEARCH_OPTIONS = {
    "normalisation": click.option(
        "--normalisation", type=click.Choice(["power", "gnmt", "none"]),
        help="Divide Σ log p by t^penalty, ((5 + t) / 6)^penalty, or nothing. [default: the run's]",
    ),
    "coverage_penalty": click.option(
        "--coverage-penalty", type=click.FloatRange(0.0),
        help="What an output leaves unread of its source costs this much; needs attention. [default: the run's]",
    ),
    "stop": click.option(
        "--stop", type=click.Choice(["complete", "certain"]),
        help="Stop when as many outputs as the beam are complete, or when no open one can win. [default: the run's]",
    ),
    "min_length": click.option(
        "--min-length", type=click.IntRange(0),
        help="Fewest tokens of an output, if its length limit allows it. [default: the run's]",
    ),
    "max_length": click.option(
        "--max-length", type=click.IntRange(0),
        help="Most tokens of an output; 0 follows the length of the input. [default: the run's]",
    ),
    "no_repeat_ngram": click.option(
        "--no-repeat-ngram", type=click.IntRange(0), help="Write no N tokens in a row twice. [default: the run's]"
    ),
    "beam_groups": click.option(
        "--beam-groups", type=click.IntRange(1),
        help="Divide the beam into so many groups that keep away from each other's tokens, for an --n-best that "
        "differs; divides --beam. [default: the run's]",
    ),
    "diversity_penalty": click.option(
        "--diversity-penalty", type=click.FloatRange(0.0),
        help="With --beam-groups: what each use of a token by an earlier group costs. [default: the run's]",
    ),
}  # fmt: skip
CONTROL_OPTIONS = (
    click.option("--prefix", help="Every output begins with this text."),
    click.option("--forbid", multiple=True, help="No output holds this text, inside words either. Repeat for more."),
    click.option("--require", multiple=True, help="Every output holds this phrase. Repeat for more."),
    click.option("--pattern", help="Every output matches this regular expression as a whole."),
    click.option("--allow", metavar="FILE", help="Every output is one of the lines of FILE."),
    click.option(
        "--terminology", metavar="FILE",
        help="Source and target terms, tab-separated: where an input has the first, its output holds the second.",
    ),
    click.option(
        "--placeholders", is_flag=True, help="Keep tags, {variables}, addresses of an input, each as often as it comes."
    ),
)  # fmt: skip


def options(several: Iterable[Any]) -> Callable[[Function], Function]:
    """Several options of a command, in this order in its help."""

    def add(function: Function) -> Function:
        for option in reversed(tuple(several)):
            function = option(function)
        return function

    return add


def search_settings(given: dict[str, Any]) -> dict[str, Any]:
    """The settings of search among the arguments of a command, as far as they were given."""
    return {name: given[name] for name in SEARCH_OPTIONS if given.get(name) is not None}


def control_settings(given: dict[str, Any]) -> dict[str, Any]:
    """What is asked of every output among the arguments of a command, with the files it names read."""
    from dragoman.data.readers.lines import read_lines
    from dragoman.decoding.constraints.source import Terminology

    table = {name: given[name] for name in ("prefix", "pattern", "placeholders")}
    table |= {name: list(given[name]) for name in ("forbid", "require")}
    for name in ("forbid", "require"):  # twice the same does not ask for two of them: better to say so
        if twice := next((one for one in table[name] if table[name].count(one) > 1), None):
            raise DataError(f"--{name}: found '{twice}' twice, expected each phrase once")
    for name in ("prefix", "pattern"):
        if table[name] == "":
            raise DataError(f"--{name}: found nothing, expected text")
    table["allow"] = None if given["allow"] is None else list(read_lines(given["allow"]))
    if table["allow"] == []:
        raise DataError(f"{given['allow']}: found no line, expected the outputs that are allowed, one a line")
    table["terminology"] = None if given["terminology"] is None else Terminology.read(given["terminology"])
    return table


metric_option = click.option(
    "--metric", "metrics", cls=MetricOption, multiple=True, metavar="NAME",
    help="METRICS or all; may be given several times. [default: those for any text and language]",
)  # fmt: skip
evaluation_metric_option = click.option(
    "--metric", "metrics", cls=MetricOption, multiple=True, metavar="NAME",
    help="METRICS or all; labels, numbers and tags have metrics of their own; may be given several times. "
    "[default: those usual for the task]",
)  # fmt: skip
units_option = click.option(
    "--units", type=click.Choice(["words", "phonemes"]), default="words", show_default=True,
    help="What the space-separated symbols are; phonemes print PER, and WER by whole lines.",
)  # fmt: skip
draws_option = click.option(
    "--draws", type=click.IntRange(10), default=1000, show_default=True, help="Draws of intervals and p-values."
)
seed_option = click.option(
    "--seed", "--draws-seed", "seed", type=click.IntRange(0), default=1, show_default=True, help="Seed of the draws."
)
# Next to options of decoding, where --seed is that of the outputs; without a default, so that idle ones are noticed.
INTERVAL_OPTIONS = (
    click.option("--intervals", is_flag=True, help="Add 95 % confidence intervals, by bootstrap over segments."),
    click.option("--draws", type=click.IntRange(10), help="Draws of --intervals. [default: 1000]"),
    click.option("--draws-seed", type=click.IntRange(0), help="Seed of the draws of --intervals. [default: 1]"),
)


def interval_settings(given: dict[str, Any]) -> dict[str, Any]:
    """What was said of intervals among the arguments of a command."""
    table = {name: given[name] for name in ("draws", "draws_seed") if given[name] is not None}
    if table and not given["intervals"]:
        raise DataError(f"--{next(iter(table)).replace('_', '-')} needs --intervals")
    return {"intervals": given["intervals"], **table}


# For runs that read recordings or pictures.
skip_unreadable_option = click.option(
    "--skip-unreadable", is_flag=True, help="Leave out and count recordings or pictures that cannot be read."
)
media_option = click.option(
    "--media", metavar="PLACE", help="Folder or archive that the files of a manifest are in. [default: the run's]"
)
