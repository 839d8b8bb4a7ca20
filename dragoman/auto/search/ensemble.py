"""Whether an ensemble is better than its best member alone, on the validation data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dragoman.auto.search.worker import score_of
from dragoman.inference.load import load_predictor
from dragoman.inference.unseen import told_elsewhere
from dragoman.runs import Run
from dragoman.scoring.report import score_table
from dragoman.training.runtime import resolve_device
from dragoman.training.validation.seq2seq import Seq2SeqValidator


def scores_with_others_and_alone(members: Sequence[Path], metric: str) -> tuple[float, float]:
    """The scores of all members as an ensemble, and of the first alone; higher is better.

    Both are measured now, on the inputs that validation decodes and as it decodes them: the weights of a run may be a
    mean over several validations, of which none has their score.
    """
    run = Run(members[0])
    device = resolve_device(run.config.train.device)
    validator = run.task.validator(run.config, run.task.prepare(run.config), device)
    assert isinstance(validator, Seq2SeqValidator), "only models that write token by token are averaged"

    def score(folders: Sequence[Path]) -> float:
        predictor = load_predictor(folders, str(device))
        predictions = predictor.stream(validator.texts, beam=1, scores=False, on_unknown=told_elsewhere)
        outputs = [prediction.text for prediction in predictions]
        return score_of(score_table(outputs, validator.references, (metric,), units=validator.units), metric)

    return score(members), score(members[:1])
