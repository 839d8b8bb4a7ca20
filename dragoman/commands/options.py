"""Command-line options that several commands share, and `DecodingOptions` built from them.

Nothing heavy is imported before a command runs, so that --help is quick.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

from dragoman.errors import ConfigError, DataError

if TYPE_CHECKING:
    from dragoman.decoding.methods import Method
    from dragoman.decoding.options import CTCDecoding, DecodingOptions, Draft, RerankModel, ShortlistFile
    from dragoman.inference.evaluation import EvaluationOptions

# The limits of SearchConfig and of the decoding methods, whose modules --help must not import; a test compares them.
MAX_BEAM, MAX_TOKENS, MAX_SAMPLES = 1000, 100_000, 10_000
Function = TypeVar("Function", bound=Callable[..., Any])


def options(several: Iterable[Any]) -> Callable[[Function], Function]:
    """Several options of a command, in this order in its help."""

    def add(function: Function) -> Function:
        for option in reversed(tuple(several)):
            function = option(function)
        return function

    return add


class ConstrainOption(click.Option):
    """The option `--constrain`; its help lists the registered constraints when it is shown."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """The names come from the registry, which `dragoman --help` need not import."""
        from dragoman.decoding.constraints.registry import CONSTRAINTS

        record = super().get_help_record(ctx)
        assert record is not None
        return record[0], record[1] + " " + "; ".join(f"{one.name}: {one.about}" for one in CONSTRAINTS.values())


class MetricOption(click.Option):
    """An option that takes a metric; its help lists the registered ones when it is shown."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """The names come from the registry, which `dragoman --help` need not import."""
        from dragoman.scoring import registry

        record = super().get_help_record(ctx)
        assert record is not None
        names = {**registry.metrics_for("words"), **registry.metrics_for("phonemes")}
        costs = registry.segment_cost_metrics()
        more = "; ".join(f"{name} needs {needs}" for name, needs in registry.demanding_metrics().items())
        names_shown = f"{', '.join(names)} ({more})"
        return record[0], record[1].replace("METRICS", names_shown).replace("COSTS", ", ".join(costs))


tag_option = click.option(
    "--tag", help="Target tag, such as de, for a run trained with several; dragoman info lists them."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
device_option = click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda or cuda:N.")
beam_option = click.option(
    "--beam", type=click.IntRange(1, MAX_BEAM), help="Beam width; 1 is greedy search. [default: the run's]"
)
batch_size_option = click.option(
    "--batch-size", type=click.IntRange(1, 100_000), default=64, show_default=True, help="Inputs in a batch."
)
skip_unreadable_option = click.option(
    "--skip-unreadable", is_flag=True, help="Leave out and count recordings or pictures that cannot be read."
)
media_option = click.option(
    "--media", metavar="PATH", help="Folder or archive with the files that a manifest names. [default: the run's]"
)

# ---------------------------------------------------------------------- decoding

# Each has the name of a field of SearchConfig and DecodingOptions.
SEARCH_OPTIONS = {
    "beam": beam_option,
    "length_penalty": click.option(
        "--length-penalty", type=click.FloatRange(0.0, 10.0),
        help="Rank hypotheses by Σ log p / length^penalty. [default: the run's]",
    ),
    "normalisation": click.option(
        "--normalisation", type=click.Choice(["power", "gnmt", "none"]),
        help="Divide Σ log p by length^penalty, by ((5 + length) / 6)^penalty, or by nothing. [default: the run's]",
    ),
    "coverage_penalty": click.option(
        "--coverage-penalty", type=click.FloatRange(0.0, 1000.0),
        help="Weight of the penalty for source tokens that got no attention. [default: the run's]",
    ),
    "stop": click.option(
        "--stop", type=click.Choice(["ahead", "complete", "certain"]),
        help="Stop when as many hypotheses as the beam are complete (complete), and no open one would rank above the "
        "best if it ended now (ahead); or when no open one can win (certain). [default: the run's]",
    ),
    "num_complete": click.option(
        "--num-complete", type=click.IntRange(0, MAX_BEAM),
        help="Complete hypotheses after which a beam may end; 0: as many as the beam is wide. [default: the run's]",
    ),
    "min_length": click.option(
        "--min-length", type=click.IntRange(0, MAX_TOKENS), help="Minimum number of output tokens. [default: the run's]"
    ),
    "max_length": click.option(
        "--max-length", type=click.IntRange(0, MAX_TOKENS),
        help="Maximum number of output tokens; 0 derives it from the length of the input. [default: the run's]",
    ),
    "no_repeat_ngram": click.option(
        "--no-repeat-ngram", type=click.IntRange(0, MAX_TOKENS),
        help="Output no n-gram of N tokens twice. [default: the run's]",
    ),
    "beam_groups": click.option(
        "--beam-groups", type=click.IntRange(1, MAX_BEAM),
        help="Diverse beam search: divide the beam into so many groups that avoid each other's tokens. Must divide "
        "--beam. [default: the run's]",
    ),
    "diversity_penalty": click.option(
        "--diversity-penalty", type=click.FloatRange(0.0, 1000.0),
        help="With --beam-groups: what each use of a token by an earlier group costs. [default: the run's]",
    ),
}  # fmt: skip
CONSTRAINT_OPTIONS = {
    "prefix": click.option("--prefix", help="Every output begins with this text."),
    "forbid": click.option(
        "--forbid", multiple=True, help="No output contains this text, not even inside words. May be repeated."
    ),
    "require": click.option("--require", multiple=True, help="Every output contains this phrase. May be repeated."),
    "pattern": click.option("--pattern", help="Every output matches this regular expression as a whole."),
    "constrain": click.option(
        "--constrain", cls=ConstrainOption, multiple=True, metavar="NAME=TEXT",
        help="Every output satisfies the registered constraint NAME. May be repeated.",
    ),
    "allow": click.option("--allow", metavar="FILE", help="Every output is one of the lines of FILE."),
    "terminology": click.option(
        "--terminology", metavar="FILE",
        help="Source and target terms, tab-separated: if an input contains the first, its output contains the second.",
    ),
    "placeholders": click.option(
        "--placeholders", is_flag=True, help="Copy tags, {variables} and addresses of the input to the output."
    ),
}  # fmt: skip
METHOD_OPTIONS = {
    "sample": click.option("--sample", is_flag=True, help="Draw each output at random from the model's distribution."),
    "temperature": click.option(
        "--temperature", type=click.FloatRange(0.0, min_open=True),
        help="With --sample and --mbr: sample from p^(1/temperature). Above 1 is more varied. [default: 1]",
    ),
    "top_k": click.option(
        "--top-k", type=click.IntRange(1), help="With --sample and --mbr: sample among the K most probable tokens."
    ),
    "top_p": click.option(
        "--top-p", type=click.FloatRange(0.0, 1.0, min_open=True),
        help="With --sample and --mbr: sample among the fewest tokens whose probabilities sum to P.",
    ),
    "seed": click.option(
        "--seed", type=int, help="With --sample and --mbr: random seed; equal inputs get equal outputs. [default: 0]"
    ),
    "mbr": click.option(
        "--mbr", type=click.IntRange(2, MAX_SAMPLES), metavar="SAMPLES",
        help="Minimum Bayes risk decoding: draw so many samples and output the one most like the others.",
    ),
    "mbr_metric": click.option(
        "--mbr-metric", cls=MetricOption, help="With --mbr: the metric of likeness: COSTS. [default: chrf]"
    ),
    "draft": click.option(
        "--draft", metavar="RUN",
        help="Speculative greedy decoding: this small run with the same vocabularies proposes tokens, RUN checks them.",
    ),
    "draft_tokens": click.option(
        "--draft-tokens", type=click.IntRange(1, 1000), help="With --draft: tokens proposed at a time. [default: 4]"
    ),
    "exhaustive": click.option(
        "--exhaustive", type=click.IntRange(0, 1000), metavar="LENGTH",
        help="Score every output of up to LENGTH tokens: exact, for small vocabularies. --json adds probability.",
    ),
    "shortlist": click.option(
        "--shortlist", metavar="FILE",
        help="Output only target tokens that are likely for the source: a FILE of dragoman shortlist, or auto for the "
        "run's own. Faster with a large vocabulary.",
    ),
    "decoding_mode": click.option(
        "--decoding-mode", type=click.Choice(["ctc", "attention", "joint"]),
        help="How a transcriber decodes; attention and joint need model.attention_decoder. [default: ctc]",
    ),
    "ctc_weight": click.option(
        "--ctc-weight", type=click.FloatRange(0.0, 1.0, min_open=True, max_open=True),
        help="With --decoding-mode joint: weight of CTC in the score. [default: 0.3]",
    ),
    "language_model": click.option(
        "--language-model", metavar="FILE|RUN",
        help="Shallow fusion in CTC search: n-grams of a text file, or a language-model run with the same vocabulary.",
    ),
    "language_model_weight": click.option(
        "--language-model-weight", type=click.FloatRange(0.0, min_open=True),
        help="With --language-model: weight of its log-probability. [default: 0.3]",
    ),
    "language_model_bonus": click.option(
        "--language-model-bonus", type=float, help="With --language-model: bonus for every output token. [default: 0]"
    ),
    "language_model_order": click.option(
        "--language-model-order", type=click.IntRange(1, 100),
        help="With --language-model FILE: n of the n-grams. [default: 5]",
    ),
}  # fmt: skip
MODEL_OPTIONS = {
    "ensemble": click.option(
        "--ensemble", multiple=True, metavar="RUN",
        help="Average with this run, of any architecture but with the same vocabularies. May be repeated.",
    ),
    "average": click.option(
        "--average", type=click.Choice(["probability", "log"]),
        help="With --ensemble: average probabilities or their logarithms. [default: probability]",
    ),
    "rerank": click.option(
        "--rerank", metavar="RUN", multiple=True,
        help="Rerank the --beam outputs by this run: one trained from target to source, or a language model of the "
        "target. May be repeated.",
    ),
    "rerank_weight": click.option(
        "--rerank-weight", type=float, multiple=True,
        help="Score = own + weight × that of the --rerank run, both means per token; one for each. [default: 1]",
    ),
    "rerank_tag": click.option("--rerank-tag", metavar="TAG", help="Tag for a --rerank run trained with several tags."),
    "engine": click.option(
        "--engine", type=click.Choice(["auto", "torch", "ctranslate2"]), default="auto", show_default=True,
        help="ctranslate2 (dragoman[fast]) is faster on a CPU; auto uses it where it gives the same text.",
    ),
    "precision": click.option(
        "--precision", type=click.Choice(["float32", "bfloat16", "int8"]), default="float32", show_default=True,
        help="bfloat16 on a GPU and int8 with ctranslate2 are faster; texts may differ a little.",
    ),
}  # fmt: skip
# Every decoding option, by the name of its argument; `build_options` turns the arguments into DecodingOptions.
DECODING = {
    **SEARCH_OPTIONS,
    "batch_size": batch_size_option,
    "tag": tag_option,
    **CONSTRAINT_OPTIONS,
    **METHOD_OPTIONS,
    **MODEL_OPTIONS,
}
decoding_options = options(DECODING.values())

# Sections of the help of commands with so many options.
OPTION_GROUPS = {
    "Search": SEARCH_OPTIONS,
    "Constraints on the output": CONSTRAINT_OPTIONS,
    "Decoding methods in place of beam search": METHOD_OPTIONS,
    "Other models and engines": MODEL_OPTIONS,
}


class GroupedCommand(click.Command):
    """A command whose help lists decoding options in sections."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """As click does, one section after the other."""
        sections: dict[str, list[tuple[str, str]]] = {title: [] for title in ("Options", *OPTION_GROUPS)}
        for parameter in self.get_params(ctx):
            if record := parameter.get_help_record(ctx):
                titles = (title for title, group in OPTION_GROUPS.items() if parameter.name in group)
                sections[next(titles, "Options")].append(record)
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


METHODS = {
    "sample": "--sample",
    "mbr": "--mbr",
    "draft": "--draft",
    "exhaustive": "--exhaustive",
    "shortlist": "--shortlist",
}
SAMPLING = ("temperature", "top_k", "top_p", "seed")
# Options that have an effect only with another one.
NEEDS = {
    **dict.fromkeys(SAMPLING, ("sample", "mbr")),
    "mbr_metric": ("mbr",),
    "draft_tokens": ("draft",),
    "average": ("ensemble",),
    "rerank_weight": ("rerank",),
    "rerank_tag": ("rerank",),
    "ctc_weight": ("decoding_mode",),
    "language_model_weight": ("language_model",),
    "language_model_bonus": ("language_model",),
    "language_model_order": ("language_model",),
}


def build_options(given: Mapping[str, Any], *, n_best: int = 1, scores: bool = True) -> DecodingOptions:
    """The decoding options among the arguments of a command, checked."""
    from dragoman.decoding.options import DecodingOptions

    constraints = constraint_values(given)
    typed = {
        name: given[name] for name in DECODING if not (given[name] is None or given[name] is False or given[name] == ())
    }
    check_combination(typed)
    plain = (*SEARCH_OPTIONS, "batch_size", "tag", "ensemble", "average", "engine", "precision")
    return DecodingOptions(
        **{name: typed[name] for name in plain if name in typed},
        **constraints,
        method=method_of(typed),
        rerank=rerank_models(typed),
        n_best=n_best,
        scores=scores,
    )


def flag(name: str) -> str:
    """The option with this argument name, as a user types it."""
    return f"--{name.replace('_', '-')}"


def check_combination(typed: Mapping[str, Any]) -> None:
    """Raise an error for options that exclude each other or have no effect."""
    methods = [METHODS[name] for name in METHODS if name in typed]
    if len(methods) > 1:
        raise ConfigError(f"found {' and '.join(methods)}, expected one of them")
    for name, needed in NEEDS.items():
        if name in typed and not typed.keys() & set(needed):
            raise ConfigError(f"{flag(name)} needs {' or '.join(map(flag, needed))}")
    if methods and "beam" in typed and not typed.keys() & {"rerank", "shortlist"}:
        raise ConfigError(f"found --beam and {methods[0]}, expected one of them")
    transcribing = [flag(name) for name in ("decoding_mode", "language_model") if name in typed]
    if methods and transcribing:
        raise ConfigError(f"found {methods[0]} and {transcribing[0]}, expected one of them")
    if "ctc_weight" in typed and typed["decoding_mode"] != "joint":
        raise ConfigError(f"--ctc-weight needs --decoding-mode joint, found --decoding-mode {typed['decoding_mode']}")
    if typed.get("decoding_mode") == "attention" and "language_model" in typed:
        raise ConfigError("--language-model helps CTC, found --decoding-mode attention; expected ctc or joint")


def method_of(typed: Mapping[str, Any]) -> Method | Draft | ShortlistFile | CTCDecoding | None:
    """The decoding method that options name; None: greedy or beam search."""
    from dragoman.config import settings
    from dragoman.decoding.exhaustive import Exhaustive
    from dragoman.decoding.mbr import MinimumBayesRisk
    from dragoman.decoding.options import CTCDecoding, Draft, LanguageModelFusion, ShortlistFile
    from dragoman.decoding.sampling import Sampling

    sampling = settings.build(Sampling, {name: typed[name] for name in SAMPLING if name in typed})
    if "sample" in typed:
        return sampling
    if "mbr" in typed:
        return MinimumBayesRisk(typed["mbr"], typed.get("mbr_metric", "chrf"), sampling)
    if "exhaustive" in typed:
        return Exhaustive(typed["exhaustive"])
    if "draft" in typed:
        return Draft(typed["draft"], typed.get("draft_tokens", 4))
    if "shortlist" in typed:
        return ShortlistFile(typed["shortlist"])
    if not typed.keys() & {"decoding_mode", "language_model"}:
        return None
    fusion = None
    if "language_model" in typed:
        weight, bonus = typed.get("language_model_weight", 0.3), typed.get("language_model_bonus", 0.0)
        fusion = LanguageModelFusion(typed["language_model"], weight, bonus, typed.get("language_model_order"))
    return CTCDecoding(typed.get("decoding_mode", "ctc"), typed.get("ctc_weight", 0.3), fusion)


def rerank_models(typed: Mapping[str, Any]) -> tuple[RerankModel, ...]:
    """The runs of --rerank with their weights; of several, those that are language models take no tag."""
    from dragoman.decoding.options import RerankModel
    from dragoman.runs import Run

    runs, weights, tag = typed.get("rerank", ()), typed.get("rerank_weight", ()), typed.get("rerank_tag")
    if weights and len(weights) != len(runs):
        raise ConfigError(
            f"found {len(runs)} times --rerank and {len(weights)} times --rerank-weight, expected one for each or none"
        )
    return tuple(
        RerankModel(run, weight, tag if tag is None or len(runs) == 1 or not Run(run).task.is_language_model else None)
        for run, weight in zip(runs, weights or [1.0] * len(runs), strict=True)
    )


def constraint_values(given: Mapping[str, Any]) -> dict[str, Any]:
    """The constraints among the arguments of a command, with the files they name read."""
    from dragoman.data.readers.lines import read_lines
    from dragoman.decoding.constraints.source import Terminology

    values: dict[str, Any] = {name: given[name] for name in ("prefix", "pattern", "placeholders")}
    for name in ("forbid", "require"):
        phrases = list(given[name])
        if twice := next((phrase for phrase in phrases if phrases.count(phrase) > 1), None):
            raise DataError(f"--{name}: found '{twice}' twice, expected each phrase once")
        values[name] = phrases or None
    for name in ("prefix", "pattern"):
        if values[name] == "":
            raise DataError(f"--{name}: found nothing, expected text")
    if given["constrain"]:
        pairs = [entry.partition("=") for entry in given["constrain"]]
        if wrong := next((name for name, _, text in pairs if not text), None):
            raise DataError(f"--constrain: found '{wrong}', expected NAME=TEXT")
        values["constrain"] = {name: text for name, _, text in pairs}
    if given["allow"] is not None:
        values["allow"] = list(read_lines(given["allow"]))
        if not values["allow"]:
            raise DataError(f"{given['allow']}: found no line, expected the allowed outputs, one per line")
    if given["terminology"] is not None:
        values["terminology"] = Terminology.read(given["terminology"])
    return values


# ---------------------------------------------------------------------- scoring

metric_option = click.option(
    "--metric", "metrics", cls=MetricOption, multiple=True, metavar="NAME",
    help="METRICS or all; may be repeated. [default: those for any text and language]",
)  # fmt: skip
units_option = click.option(
    "--units", type=click.Choice(["words", "phonemes"]), default="words", show_default=True,
    help="What the space-separated symbols are; phonemes print PER, and WER by whole lines.",
)  # fmt: skip
draws_option = click.option(
    "--draws",
    type=click.IntRange(10, 100_000),
    default=1000,
    show_default=True,
    help="Draws of the bootstrap and of p-values.",
)
seed_option = click.option(
    "--seed", "--draws-seed", "seed", type=click.IntRange(0), default=1, show_default=True, help="Seed of the draws."
)
# Of `evaluate`, where --seed is that of sampled outputs. Without defaults, so that options without effect are noticed.
EVALUATION_OPTIONS = {
    "metrics": click.option(
        "--metric", "metrics", cls=MetricOption, multiple=True, metavar="NAME",
        help="METRICS or all; labels, numbers and tags have metrics of their own; may be repeated. [default: those "
        "usual for the task]",
    ),
    "intervals": click.option(
        "--intervals", is_flag=True, help="Add 95 % confidence intervals, by bootstrap over segments."
    ),
    "draws": click.option("--draws", type=click.IntRange(10, 100_000), help="With --intervals: draws. [default: 1000]"),
    "draws_seed": click.option(
        "--draws-seed", type=click.IntRange(0), help="With --intervals: seed of the draws. [default: 1]"
    ),
    "skip_unreadable": skip_unreadable_option,
}  # fmt: skip


def build_evaluation(given: Mapping[str, Any]) -> EvaluationOptions:
    """The options of an evaluation among the arguments of a command, checked."""
    from dragoman.inference.evaluation import EvaluationOptions

    typed = {name: given[name] for name in EVALUATION_OPTIONS if given[name] is not None}
    for name in ("draws", "draws_seed"):
        if name in typed and not typed["intervals"]:
            raise DataError(f"{flag(name)} needs --intervals")
    return EvaluationOptions(**typed)
