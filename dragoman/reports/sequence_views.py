"""Views of how a model writes a sequence: teacher forcing against free running."""

from __future__ import annotations

from collections.abc import Iterator

from dragoman.analysis.free_running import forcing
from dragoman.analysis.subject import Subject
from dragoman.inference.predictor import Predictor
from dragoman.reports.view import View


def forcing_view(subject: Subject, beam: int | None) -> Iterator[View]:
    """The right target beside what the model says after right and after its own tokens."""
    if not subject.given or (found := forcing(subject)) is None or subject.source is None:
        return
    assert isinstance(subject.loaded, Predictor)
    pieces = subject.loaded.codec.target_of(subject.source.text).pieces
    yield View(
        "forcing",
        "Teacher forcing",
        "With teacher forcing the model reads the right token at every step, whatever it would have written itself. In "
        "free running it reads its own tokens, so that one error can spread. The picture below puts one wrong token "
        "into the input and shows how much less probable the right tokens become after it.",
        {
            "target": subject.target.as_dict(),
            "forced": pieces(found.forced.tolist()),
            "right_forced": (found.forced == subject.batch.target[0].cpu()).tolist(),
            "log_probabilities": found.forced_scores,
            "free": pieces(found.free.tolist()),
            "right_free": [
                own == right for own, right in zip(found.free.tolist(), subject.batch.target[0].tolist(), strict=False)
            ],
            "errors": pieces(found.errors.tolist()),
            "spread": found.spread,
        },
    )
