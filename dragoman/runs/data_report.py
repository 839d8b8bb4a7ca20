"""What is said of the data before training: counts, faults, unknown tokens, targets too long for a model to output."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import nn

from dragoman.base import RunError
from dragoman.data import PAIR_COLLATOR, Corpus, read_batch
from dragoman.models import decodes
from dragoman.runs.tasks.base import Task
from dragoman.runs.tasks.config import Config
from dragoman.training import Display, batch_plan

MIN_UNKNOWN_SHARE = 0.01  # smaller shares of unknown tokens are not reported
MAX_LABELS = 20
SHOWN_FAULTS = 5
EXAMINED_BATCHES = 200  # random batches whose target lengths are checked
MOST = 0.5  # with a larger share of targets too long, a model learns from the minority alone: an error
MANY = 0.01  # a smaller share is not worth a warning


def vocabulary_sizes(corpus: Corpus) -> str:
    source, target = corpus.source_tokenizer.size, corpus.target_tokenizer.size
    if corpus.collator.loss_terms is not None:  # a masked language model predicts its own source tokens
        return source
    both = source.startswith("vocabulary") and target.startswith("vocabulary")
    return f"{source} → {target.removeprefix('vocabulary ') if both else target}"


def print_data_report(display: Display, corpus: Corpus, task: Task, decoded: int = 0) -> None:
    """Show how many examples there are, and what was left out of the files.

    `decoded` is how many validation inputs are decoded; 0: all, or none.
    """
    report = corpus.report
    train, valid = report["train"], report["valid"]
    if task.is_language_model:
        display.info(
            f"data: {train['target_tokens']:,} training tokens in {train['pairs']:,} lines, "
            f"{valid['target_tokens']:,} validation tokens; vocabulary {len(corpus.target_tokenizer):,}"
        )
    else:
        unit = "pairs" if corpus.collator == PAIR_COLLATOR else "examples"
        made_up = f" ({report['made_up']:,} made up)" if report.get("made_up") else ""
        display.info(
            f"data: {train['pairs']:,} training {unit}{made_up}, {valid['pairs']:,} for validation; "
            f"{vocabulary_sizes(corpus)}"
        )
        if task.head_decoder is None and 0 < decoded < valid["pairs"]:
            display.info(
                f"validation: scores of text are those of {decoded:,} inputs (train.decode), the loss is of all"
            )
    if corpus.target_tokenizer.names:
        names = corpus.target_tokenizer.names
        display.info(f"labels: {', '.join(names[:MAX_LABELS])}{', …' if len(names) > MAX_LABELS else ''}")
    if report.get("tags"):
        display.info("tags: " + ", ".join(f"{tag} ({count:,} pairs)" for tag, count in report["tags"].items()))
    left_out = {kind: count for kind, count in report["faults"].items() if count}
    if train.get("too_long"):
        left_out["longer than data.max_length"] = train["too_long"]
    if left_out:
        display.warning("left out: " + ", ".join(f"{count:,} {kind}" for kind, count in left_out.items()))
    for line in (skipped := report.get("skipped", []))[:SHOWN_FAULTS]:
        display.warning(f"  {line}")
    if len(skipped) > SHOWN_FAULTS:
        display.warning(f"  and more; data.json of the run has the first {len(skipped)} (skipped)")
    if normalised := report.get("normalised"):
        display.info(f"normalised: {normalised:,} lines had harmless control characters, which were removed")
    if unknown := unknown_token_report(report):
        display.info(unknown)


def unknown_token_report(report: dict[str, Any]) -> str:
    """The shares of tokens that the vocabulary lacks; empty if all are small or the report does not hold them."""
    parts = {part: report[part].get("unknown", {}) for part in ("train", "valid")}
    sides = [
        side
        for side in ("source", "target")
        if any(shares.get(side, 0) > MIN_UNKNOWN_SHARE for shares in parts.values())
    ]
    if not sides:
        return ""
    one_side = len(parts["train"]) == 1
    shares = (
        f"{parts['train'].get(side, 0):.1%} of the training {'tokens' if one_side else f'{side} tokens'}, "
        f"{parts['valid'].get(side, 0):.1%} of those for validation"
        for side in sides
    )
    return f"unknown to the vocabulary: {'; '.join(shares)}"


class TargetLengths(NamedTuple):
    """The targets that were examined, and those that a non-autoregressive model cannot output: they have no loss."""

    examined: int
    too_long: int
    advice: str

    @property
    def share(self) -> float:
        return self.too_long / max(1, self.examined)

    def __str__(self) -> str:
        return f"{self.too_long:,} of {self.examined:,} targets ({self.share:.1%}) are too long to be written at all"


@torch.no_grad()
def measure_target_lengths(config: Config, model: Any, corpus: Corpus) -> TargetLengths | None:
    """Examine random batches of the training data; None for a model that can output any target.

    RunError if the model can output none of them.
    """
    if decodes(model) != "parallel":
        return None
    plan = batch_plan(corpus, config.train)
    epoch = plan.epoch(0)
    batches = [epoch[number] for number in range(min(EXAMINED_BATCHES, len(epoch)))]
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    possible = sum(int(model.reachable(read_batch(corpus.train, rows, plan).to(device)).sum()) for rows in batches)
    count = sum(len(rows) for rows in batches)
    if not possible:
        raise RunError(f"no target can be written: {model.length_advice}")
    return TargetLengths(count, count - possible, model.length_advice)


def target_length_warning(config: Config, model: nn.Module, corpus: Corpus) -> Iterator[str]:
    """A warning of targets that the model never learns from, because it cannot output them."""
    lengths = measure_target_lengths(config, model.eval(), corpus)
    if lengths is not None and lengths.share > MANY:
        yield f"{lengths}, so the model never learns from them; {lengths.advice}"
