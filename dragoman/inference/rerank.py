"""Rerank n-best lists by the scores of other runs: reverse models and language models."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from dragoman.base import ConfigError, RunError
from dragoman.data.tokenizers import check_tag
from dragoman.decoding import RerankModel
from dragoman.inference.completer import Completer
from dragoman.inference.loaded import Seq2SeqRun
from dragoman.inference.long_inputs import OnWarning, warn_caller
from dragoman.inference.prediction import Prediction
from dragoman.inference.target_scores import QUIET, score_pairs
from dragoman.inference.training_data import DIRECTION_MARGIN, similarity, training_texts
from dragoman.runs import Run

MIN_SIMILARITY = 0.35  # of texts in one language, see `similarity`


class Reranker:
    """Sorts the outputs of an n-best list by their score plus the weighted scores of other runs.

    The score of a run is a mean log-probability per token. A reverse run, trained from target to source, scores the
    source given the output: an output that says too little or something else makes the source improbable (Li et al.
    2016, eq. 8). A language model scores the output itself. Together they are the noisy channel. Either may have its
    own tokenizer.
    """

    def __init__(self, models: RerankModel | Sequence[RerankModel], device: str = "auto") -> None:
        models = [models] if isinstance(models, RerankModel) else models
        self.models = [(open_model(model, device, alone=len(models) == 1), model) for model in models]

    def checked(self, first: Seq2SeqRun, on_warning: OnWarning | None = None) -> Reranker:
        """This reranker; an error for runs that cannot score the outputs of `first`, a warning for unlike texts."""
        for run, _ in self.models:
            if first.reads_files and not isinstance(run, Completer):
                raise ConfigError(
                    f"{run.run.folder}: found a reverse run, but {first.run.folder} reads files, which no run writes; "
                    'expected a run of "language-model"'
                )
            check_direction(first.run, run.run, on_warning)
        return self

    def ranked(self, sources: Sequence[str], predictions: Sequence[Prediction], n_best: int) -> list[Prediction]:
        """The predictions with their alternatives sorted anew, `n_best` of each; `score` becomes the sum."""
        lists = [[output, *output.alternatives] for output in predictions]
        indices = [index for index, source in enumerate(sources) if source.strip()]
        pairs = [(output.text, sources[index]) for index in indices for output in lists[index]]
        added = map(math.fsum, zip(*(weighted(*model, pairs) for model in self.models), strict=True))
        out = list(predictions)
        for index in indices:
            summed = [replace(output, score=output.score + next(added), alternatives=()) for output in lists[index]]
            best, *others = sorted(summed, key=lambda output: -output.score)[:n_best]
            out[index] = replace(best, alternatives=tuple(others))
        return out


def open_model(model: RerankModel, device: str, alone: bool = True) -> Seq2SeqRun | Completer:
    """The run that a rerank model names, checked; it may be open already.

    Beside others a language model may have a tag, which is for them.
    """
    if not math.isfinite(model.weight):
        raise ConfigError(f"rerank_weight: found {model.weight}, expected a finite number")
    run = model.run
    if not isinstance(run, Seq2SeqRun | Completer):
        folder = Run(run)
        if folder.task.head_decoder is not None:
            raise ConfigError(
                f'rerank.runs needs a reverse run or a language model; {folder.folder} has task = "{folder.task.name}"'
            )
        run = Completer(folder, device) if folder.task.is_language_model else Seq2SeqRun(folder, device)
    tag = model.tag
    if isinstance(run, Completer):
        if tag is not None and alone:
            raise ConfigError(f"tag: found {tag!r}, but {run.run.folder} is a language model, which has no tags")
        return run
    if run.likelihood == "none":
        raise ConfigError(
            f'rerank.runs needs probabilities, which model.kind = "{run.config.model.kind}" does not have'
        )
    if run.reads_files:
        raise ConfigError(
            f'rerank.runs needs a reverse run or a language model; {run.run.folder} has task = "{run.config.task}", '
            "which reads files"
        )
    if tag is not None:
        check_tag(tag, run.tags)
    elif run.tags:
        known = ", ".join(run.tags)
        raise ConfigError(f"{run.run.folder}: found no tag, expected rerank.tag (tag=…), one of {known}")
    return run


def check_direction(first: Run, other: Run, on_warning: OnWarning | None = None) -> None:
    """Check, by samples of the training data, that `other` can score the outputs of `first`.

    A reverse run reads what `first` writes and writes what it reads; a language model writes what `first` writes.
    """
    is_model = other.task.is_language_model
    same_files = not is_model and other.config.data.train == first.config.data.train
    if same_files and other.config.data.columns == first.config.data.columns:
        raise same_direction(first, other)
    mine, theirs = training_texts(first), training_texts(other)
    if mine is None or theirs is None:
        return
    scored = theirs.targets if is_model else theirs.sources  # what it takes outputs of `first` for
    to_target, to_source = similarity(scored, mine.targets), similarity(scored, mine.sources)
    if is_model:
        if max(to_target, MIN_SIMILARITY) + DIRECTION_MARGIN < to_source:
            raise RunError(
                f"rerank.runs {other.folder}: found a language model of the source of {first.folder}, expected one of "
                "its target: it scores outputs"
            )
    else:
        same = to_source + similarity(theirs.targets, mine.targets)
        if (
            same > to_target + similarity(theirs.targets, mine.sources) + DIRECTION_MARGIN
            and to_source > MIN_SIMILARITY
        ):
            raise same_direction(first, other)
    if to_target < MIN_SIMILARITY:
        kind = "a language model of" if is_model else "a run that reads"
        warn_caller(
            on_warning,
            f"rerank.runs {other.folder}: this seems to be {kind} other texts than the outputs of {first.folder} "
            f"(similarity {to_target:.2f}, of one language usually {MIN_SIMILARITY} or more); its scores may mean "
            "nothing",
        )


def same_direction(first: Run, other: Run) -> RunError:
    neural = not any(getattr(run.config.model, "fitted", False) for run in (first, other))
    return RunError(
        f"rerank.runs {other.folder}: found a run of the same direction as {first.folder}, expected one trained from "
        "target to source, or a language model of the target"
        + ("; runs of the same direction go with ensemble.runs" if neural else "")
    )


def weighted(run: Seq2SeqRun | Completer, model: RerankModel, pairs: Sequence[tuple[str, str]]) -> list[float]:
    """The weighted scores of one run for pairs (output, source).

    A reverse run scores 0 for a source that is longer than it can write. It is then 0 for all outputs of that source,
    so their order stays that of the forward model.
    """
    if not model.weight:
        return [0.0] * len(pairs)
    if isinstance(run, Completer):
        scores = [score.score for score in run.score([output for output, _ in pairs], QUIET)]
    else:
        longest = run.model.max_positions or math.inf
        found = score_pairs(run, pairs, model.tag)
        scores = [0.0 if len(score.tokens) > longest else score.score for score in found]
    # An output that a run cannot give at all comes last, with a negative weight too.
    return [score if score == -math.inf else model.weight * score for score in scores]
