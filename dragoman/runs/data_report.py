"""The lines that describe the data before training: counts, vocabularies, labels, faults, unknown tokens."""

from __future__ import annotations

from typing import Any

from dragoman.data.collate import PAIR_COLLATOR
from dragoman.data.corpus import Corpus
from dragoman.tasks.base import Task
from dragoman.training.display import Display

MIN_UNKNOWN_SHARE = 0.01  # smaller shares of unknown tokens are not reported
MAX_LABELS = 20


def vocabulary_sizes(corpus: Corpus) -> str:
    """The sizes of source and target vocabulary."""
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
    if train["too_long"]:
        left_out["longer than data.max_length"] = train["too_long"]
    if left_out:
        display.warning("left out: " + ", ".join(f"{count:,} {kind}" for kind, count in left_out.items()))
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
