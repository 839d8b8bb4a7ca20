"""The portfolio: configurations that a model search tries, as data.

An entry is a preset with overrides and a predicate on the profile of the data. `benchmarks/portfolio_study.py` measures
every entry on many data sets; its results change only this file.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from dragoman.auto.budget import EPOCHS as SENTENCE_EPOCHS
from dragoman.auto.budget import up_to
from dragoman.auto.choices import Choice, chosen
from dragoman.auto.profile import PairProfile, percent
from dragoman.base.config import override
from dragoman.runs.tasks import preset_table

BATCH_TOKENS = ((50_000, 1024), (1_000_000, 2048), (20_000_000, 4096), (math.inf, 8192))  # corpus → batch
SMALL_BATCHES = 200_000  # tokens of a corpus of short pairs up to which a candidate's smallest batch is best
FEWEST_TOKENS = 2_048_000  # that training reads at least, however small the corpus
RECURRENT_LENGTH = 30  # tokens on average above which a Transformer learns faster and more
MOST_STEPS = 6000  # for up to 10,000 short pairs
SENTENCE_STEPS, CPU_SENTENCE_STEPS = 12_000, 6000  # fewest steps on sentences, unless they exceed MOST_EPOCHS
MOST_EPOCHS = 300
FEW_EDITED = 2000  # sentences up to which a model that must learn to copy may fall far behind copying
PHRASES_WITH_GPU = 3000  # sentences above which a neural model trained on a GPU is as good as phrases
FEWEST = 50  # pairs: below, no study says anything
EPOCHS = ((2000, 150), (10_000, 60), (60_000, 40), (200_000, 25), (1_000_000, 12), (math.inf, 5))  # pairs → epochs
SMALL_TRANSFORMER = (
    "model.encoder.layers=2", "model.encoder.width=64", "model.encoder.feedforward=256", "model.encoder.dropout=0.1",
    "model.decoder.layers=2", "model.decoder.width=64", "model.decoder.feedforward=256", "model.decoder.dropout=0.1",
)  # fmt: skip
MODERN = tuple(
    f"model.{side}.{setting}"
    for side in ("encoder", "decoder")
    for setting in ("positions.kind=rotary", "norm_kind=rms", "gated=true", "activation=silu")
)
LIKE_T5 = tuple(
    f"model.{side}.{setting}"
    for side in ("encoder", "decoder")
    for setting in ("positions.kind=relative-bias", "norm_kind=rms", "gated=true", "activation=silu", "bias=false")
)  # as good as the modern layers, and transformers and Argos Translate can run it
MORE_DROPOUT = tuple(
    f"model.{side}.{setting}"
    for side in ("encoder", "decoder")
    for setting in ("attention_dropout=0.1", "feedforward_dropout=0.3")
)
R_DROP = ((20_000, 5.0), (60_000, 1.0))  # sentences → weight; more sentences are not learned by heart
SENTENCES = (*LIKE_T5, *MORE_DROPOUT, "train.optimizer.learning_rate=3e-3")


@dataclass(frozen=True)
class Candidate:
    """A configuration to try: a preset with `place=value` overrides, for data that satisfy `fits`."""

    name: str
    preset: str
    overrides: tuple[str, ...] = ()
    fits: Callable[[PairProfile], bool] = lambda profile: True
    reason: str = ""  # why it is the default model for some data
    smallest_batch: int = 1024  # tokens
    epochs: int = 0  # 0: by the number of pairs
    r_drop: tuple[tuple[float, float], ...] = ()  # pairs → weight of R-drop (Liang et al. 2021) on a GPU
    cpu_steps: int = MOST_STEPS  # without a GPU, for as many pairs: two CPU cores should take about ten minutes

    @property
    def settings(self) -> tuple[str, ...]:
        return (f"preset={self.preset}", *self.overrides)

    def r_drop_weight(self, profile: PairProfile) -> float:
        """The weight of R-drop on a GPU; 0: none."""
        return float(up_to((*self.r_drop, (math.inf, 0.0)), profile.pairs))

    def batch_tokens(self, profile: PairProfile) -> int:
        """Tokens of a batch: small data profit from small batches."""
        tokens = profile.pairs * profile.longer
        if tokens <= SMALL_BATCHES and is_short(profile):
            return self.smallest_batch
        return max(self.smallest_batch, int(up_to(BATCH_TOKENS, tokens)))

    def steps(self, profile: PairProfile, steps_per_epoch: float, gpu: bool) -> int:
        """Training steps: many epochs of small data, few of large ones."""
        epochs: int = self.epochs or up_to(EPOCHS, profile.pairs)
        epochs *= 2 if profile.formal and profile.pairs <= 10_000 else 1
        steps = max(FEWEST_TOKENS // self.batch_tokens(profile), math.ceil(epochs * steps_per_epoch))
        if has_subwords(profile):
            fewest = SENTENCE_STEPS if gpu else CPU_SENTENCE_STEPS
            return max(steps, min(fewest, math.ceil(MOST_EPOCHS * steps_per_epoch)))
        if profile.pairs > 10_000 or not is_short(profile):
            return steps
        return min(steps, MOST_STEPS if gpu else self.cpu_steps)


def dropout(value: float) -> tuple[str, ...]:
    return (f"model.encoder.dropout={value}", f"model.decoder.dropout={value}")


def width(value: int) -> tuple[str, ...]:
    return (f"model.encoder.width={value}", f"model.decoder.width={value}")


def has_subwords(profile: PairProfile) -> bool:
    """Whether a side is sentences, which are read as sub-words."""
    return "subwords" in (profile.source.unit, profile.target.unit)


def is_short(profile: PairProfile) -> bool:
    """Whether both sides are short sequences of characters or symbols."""
    return not has_subwords(profile) and profile.longer <= 60


def is_monotone(profile: PairProfile) -> bool:
    """Whether a model that aligns from left to right may suit; its cost grows with the product of both lengths."""
    return is_short(profile) and profile.longer <= 40 and (profile.monotone >= 0.5 or bool(profile.features))


def is_copied(profile: PairProfile) -> bool:
    return (profile.copied > 0.3 or profile.formal) and profile.source.unit == profile.target.unit


def is_edited(profile: PairProfile) -> bool:
    """Whether targets are edited sources: most is copied, in order."""
    return is_copied(profile) and profile.copied >= 0.6 and profile.monotone >= 0.5


def is_many_short(profile: PairProfile) -> bool:
    """Whether the pairs are a large dictionary of short sequences, which wants large batches."""
    return is_short(profile) and 60_000 < profile.pairs <= 300_000


def are_few_sentences(profile: PairProfile) -> bool:
    """Whether sentences are so few that phrases may beat a neural model, and short: long ones take seconds each."""
    sentences = {profile.source.unit, profile.target.unit} == {"subwords"}
    return sentences and profile.longer <= 40 and profile.pairs <= 20_000


UNSMOOTHED = ("model.label_smoothing=0.0",)
PORTFOLIO = (
    Candidate("phrase-based", "phrase-based", fits=are_few_sentences),
    Candidate("makarov-2020", "makarov-2020-small", fits=is_monotone, smallest_batch=512, cpu_steps=3400),
    Candidate("wu-2019", "wu-2019-small", fits=is_monotone, smallest_batch=512),
    Candidate("luong-256-unsmoothed", "luong-2015-small", (*width(256), *UNSMOOTHED)),
    Candidate("luong-512-unsmoothed", "luong-2015-small", (*dropout(0.5), *UNSMOOTHED)),
    Candidate("luong-256-dropout", "luong-2015-small", (*width(256), *dropout(0.5), *UNSMOOTHED)),
    Candidate("copy-transducer", "copy-transducer-small", fits=is_edited),
    Candidate("convs2s", "convs2s-2017-small"),
    Candidate("transformer-modern", "transformer-small", MODERN, fits=lambda profile: not has_subwords(profile)),
    Candidate("transformer-t5", "transformer-small", SENTENCES, fits=has_subwords, r_drop=R_DROP),
    Candidate("transformer-t5-128", "transformer-small",
              (*width(128), "model.encoder.feedforward=512", "model.decoder.feedforward=512", *SENTENCES),
              fits=has_subwords),
    Candidate("transformer-small", "transformer-small"),
    Candidate("pointer-generator", "pointer-generator-small",
              ("model.encoder.dropout=0.5", "model.decoder.inner.dropout=0.5"), fits=is_copied),
    Candidate("pointer-generator-256", "pointer-generator-small",
              ("model.encoder.width=256", "model.decoder.inner.width=256", "model.encoder.dropout=0.5",
               "model.decoder.inner.dropout=0.5"), fits=lambda profile: profile.formal, cpu_steps=1400),
    Candidate("pointer-transformer", "pointer-transformer-small", fits=is_copied),
    Candidate("luong-512", "luong-2015-small", dropout(0.5)),
    Candidate("transformer-tiny", "transformer-tiny", dropout(0.3)),
    Candidate("transformer-2x64", "transformer-tiny", (*SMALL_TRANSFORMER, "train.optimizer.learning_rate=4e-3"),
              fits=is_short),
    Candidate("luong-256", "luong-2015-small", width(256)),
    Candidate("transformer-small-unsmoothed", "transformer-small", UNSMOOTHED),
    Candidate("convs2s-unsmoothed", "convs2s-2017-small", UNSMOOTHED),
    Candidate("rnn-attention", "rnn-attention-small", dropout(0.3)),
    Candidate("nat-ctc", "nat-ctc-small", fits=is_short),
    Candidate("transformer-small-large-batch", "transformer-small", dropout(0.2), fits=is_many_short,
              smallest_batch=8192, epochs=60),
    Candidate("ngram-transducer", "ngram-transducer", fits=is_monotone),
)  # fmt: skip


def candidates_for(profile: PairProfile, gpu: bool = False) -> list[Candidate]:
    """The entries that fit the data, the default model first; formal targets want pointers."""
    default = default_candidate(profile, gpu)

    def order(candidate: Candidate) -> tuple[bool, bool]:
        points = profile.formal and candidate.preset.startswith("pointer")
        return default is None or candidate.name != default.name, not points

    return sorted((candidate for candidate in PORTFOLIO if candidate.fits(profile)), key=order)


def by_name(name: str) -> Candidate:
    return next(candidate for candidate in PORTFOLIO if candidate.name == name)


@dataclass(frozen=True)
class Rule:
    """A row of the table of default models: which data, and the entry of the portfolio for them."""

    data: str  # what `holds` says, for docs/explanation/auto.md
    holds: Callable[[PairProfile], bool]
    model: str  # "": a Transformer that fits the amount of data
    reason: Callable[[PairProfile], str] = lambda profile: f"there are only {size(profile)}"
    on_cpus: str = ""  # where a CPU would take 1.7 to 2.4 times as long for `model`


def size(profile: PairProfile) -> str:
    return f"{profile.pairs:,} pairs"


def short_reason(profile: PairProfile) -> str:
    return f"there are {size(profile)} of short sequences"


def order_reason(profile: PairProfile) -> str:
    return f"{size(profile)} are few and their order is kept (τ {profile.monotone:.2f})"


def sentence_reason(profile: PairProfile) -> str:
    tip = "; for so few, preset=phrase-based is as good or better, and takes minutes" if phrases_for(profile) else ""
    return f"there are {size(profile)} of sentences{tip}"


def up_to_pairs(most: int, *tests: Callable[[PairProfile], bool]) -> Callable[[PairProfile], bool]:
    return lambda profile: profile.pairs <= most and all(test(profile) for test in tests)


# The first row that holds decides; below FEWEST pairs the last. docs/explanation/auto.md shows this table; a test keeps
# both equal.
RULES = (
    Rule("formal targets, such as queries with names of the question", lambda p: p.formal, "pointer-generator",
         lambda p: "rare words of the targets are copied from the source", "pointer-generator-256"),
    Rule("short pairs in the same order, up to 40 tokens: 5,000 with features, 3,000 others at most 30 % copied",
         up_to_pairs(5000, is_monotone, lambda p: bool(p.features) or (p.pairs <= 3000 and p.copied <= 0.3)),
         "makarov-2020",
         lambda p: f"{size(p)} with features are few" if p.features
         else f"{order_reason(p)}, and the sides have different letters"),
    Rule("up to 10,000 other short pairs in the same order, up to 40 tokens, no features",
         up_to_pairs(10_000, is_monotone, lambda p: not p.features), "wu-2019", order_reason),
    Rule("up to 60,000 other short pairs, up to 30 tokens",
         up_to_pairs(60_000, is_short, lambda p: p.longer <= RECURRENT_LENGTH), "luong-512-unsmoothed", short_reason,
         "luong-256-unsmoothed"),
    Rule("60,000 to 300,000 short pairs", is_many_short, "transformer-small-large-batch", short_reason),
    Rule("sentences, 60 % or more copied in order: up to 2,000, or up to 60,000 if 10 % of the pairs do not change",
         up_to_pairs(60_000, is_edited,  # where copying is hard to beat
                     lambda p: p.identical >= 0.1 or (p.pairs <= FEW_EDITED and has_subwords(p))), "copy-transducer",
         lambda p: f"{percent(p.identical)} of the pairs do not change at all" if p.identical >= 0.1
         else f"{size(p)} are few, and {percent(p.copied)} of the target is copied in order"),
    Rule("500 to 5,000 other sentences (3,000 with a GPU) in about the same order, under 60 % copied, up to 40 tokens",
         up_to_pairs(5000, are_few_sentences, lambda p: p.pairs >= 500 and p.monotone >= 0.5 and not is_edited(p)),
         "phrase-based",
         lambda p: f"{p.pairs:,} sentences are few for a neural model; preset=transformer-small trains one"),
    Rule("up to 60,000 other sentences, more than 30 % copied", up_to_pairs(60_000, is_copied), "luong-512",
         lambda p: f"{percent(p.copied)} of the target is copied from the source"),
    Rule("up to 20,000 other sentences", up_to_pairs(20_000, has_subwords), "transformer-t5", sentence_reason,
         "transformer-t5-128"),
    Rule("up to 300,000 other sentences", up_to_pairs(300_000, has_subwords), "transformer-t5", sentence_reason),
    Rule("up to 60,000 other pairs", up_to_pairs(60_000), "transformer-small",
         lambda p: f"there are {size(p)} of {p.longer:.0f} tokens on average"),
    Rule("everything else, and fewer than 50 pairs", lambda p: True, ""),
)  # fmt: skip


def rule_for(profile: PairProfile, phrases: bool = False) -> Rule:
    """The first row that holds; the one of phrases only where they may be chosen."""
    if profile.pairs < FEWEST:
        return RULES[-1]
    return next(rule for rule in RULES if rule.holds(profile) and (phrases or rule.model != "phrase-based"))


def phrases_for(profile: PairProfile, gpu: bool = False) -> Candidate | None:
    """Phrase-based translation, where the study says that it beats neural models; None elsewhere."""
    rule = rule_for(profile, phrases=True)
    if rule.model != "phrase-based" or (gpu and profile.pairs > PHRASES_WITH_GPU):
        return None
    return with_reason(rule.model, rule.reason(profile))


def default_candidate(profile: PairProfile, gpu: bool = False) -> Candidate | None:
    """What the study says for such data and a GPU or CPUs; None: a Transformer that fits the amount of data."""
    rule = rule_for(profile)
    if not rule.model:
        return None
    reason = rule.reason(profile)
    if rule.on_cpus and gpu and is_short(profile) and not profile.formal:
        reason += " and a GPU"
    name = rule.on_cpus if rule.on_cpus and not gpu else rule.model
    if not name.startswith("transformer-t5"):
        return with_reason(name, reason)
    candidate = with_reason(name, reason, "with relative positions, RMS norm and gated feed-forward layers, ")
    return replace(candidate, epochs=up_to(SENTENCE_EPOCHS, profile.pairs))


def rules_table() -> str:
    rows = ["| data: the first row that holds | model | on CPUs |", "|---|---|---|"]
    for rule in RULES:
        model = f"`{rule.model}`" if rule.model else "a Transformer that grows with the data"
        rows.append(f"| {rule.data} | {model} | {f'`{rule.on_cpus}`' if rule.on_cpus else 'the same'} |")
    return "\n".join(rows)


def is_transformer(candidate: Candidate) -> bool:
    """Whether overrides of parts of a Transformer apply to it."""
    model = preset_table(candidate.preset)["model"]
    return all(model.get(side, {}).get("kind") == "transformer" for side in ("encoder", "decoder"))


def with_reason(name: str, reason: str, parts: str = "") -> Candidate:
    """An entry as the default model, with the reason and what it is made of."""
    return replace(by_name(name), reason=f"{parts}because {reason}")


def candidate_choices(candidate: Candidate) -> list[Choice]:
    """The candidate's settings; encoder and decoder name their kind, so that an override of the kind drops their
    sizes."""
    model = preset_table(candidate.preset)["model"]
    kinds = {side: {"kind": model[side]["kind"]} for side in ("encoder", "decoder") if "kind" in model.get(side, {})}
    return chosen(override({"model": kinds}, candidate.overrides))
