"""A run in memory: its configuration, tokenizers and model, on a device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dragoman.errors import RunError
from dragoman.inference.unseen import UnseenText
from dragoman.kernels.weight_layout import lay_out_for_decoding
from dragoman.runs import Run
from dragoman.training.runtime import resolve_device


class LoadedRun:
    """A run whose outputs are texts found by a search."""

    def __init__(self, run: Run, device: str = "auto", precision: str = "float32") -> None:
        """Precision "bfloat16" halves the weights on a GPU; any other leaves them in float32."""
        if run.task.is_language_model:
            raise RunError(f"{run.folder}: this run is a language model; use `dragoman complete`")
        if run.task.head_decoder is not None:
            raise RunError(
                f'{run.folder}: found task = "{run.task.name}", which needs no search; expected task = "translate", '
                '"transcribe" or "caption"'
            )
        self.run, self.config = run, run.config
        self.device = resolve_device(device)
        self.source_tokenizer, self.target_tokenizer = run.tokenizers()
        self.unseen = UnseenText(run, self.source_tokenizer)
        self.codec = run.task.example_format(run.config).codec(self.source_tokenizer, self.target_tokenizer)
        self.collator = run.task.collator(run.config, self.source_tokenizer)
        self.half = precision == "bfloat16"
        self.model: Any = run.model(self.device)
        if self.half:
            self.model.bfloat16()
        lay_out_for_decoding(self.model)
        self.length_ratio = float(run.data["length_ratio"])  # target tokens for one source token, in training

    def __repr__(self) -> str:
        return describe(self, self.run, self.model, self.device)

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags a source may begin with, such as "de"; empty for a run trained without tags."""
        return self.source_tokenizer.tags


def describe(one: object, run: Run, model: Any, device: Any) -> str:
    """What a person sees of an open run: its folder, task, size and device."""
    parameters = sum(parameter.numel() for parameter in model.parameters()) if hasattr(model, "parameters") else 0
    return f"<{type(one).__name__} {run.folder}: {run.task.name}, {parameters:,} parameters on {device}>"


def opened(run: str | Path | LoadedRun, device: str = "auto", precision: str = "float32") -> LoadedRun:
    """A run that may be open already."""
    return run if isinstance(run, LoadedRun) else LoadedRun(Run(run), device, precision)


def check_vocabularies(first: LoadedRun, other: LoadedRun, purpose: str) -> None:
    """Raise an error if the token ids of the two runs mean different things."""
    for side in ("source", "target"):
        mine, theirs = (getattr(run, f"{side}_tokenizer") for run in (first, other))
        if mine.fingerprint() != theirs.fingerprint():
            raise RunError(
                f"{other.run.folder}: found a {side} vocabulary of {len(theirs):,} {theirs.kind}, expected the very "
                f"same as in {first.run.folder} ({len(mine):,} {mine.kind}): {purpose} needs runs trained with the "
                "same data.train and tokenizer settings"
            )
