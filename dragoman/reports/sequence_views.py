"""Views of sequences: teacher forcing against free running, order, positions and embeddings."""

from __future__ import annotations

from collections.abc import Iterator

from dragoman.analysis.free_running import forcing
from dragoman.analysis.neighbours import neighbours
from dragoman.analysis.order import added_positions, order_effects
from dragoman.analysis.position_pictures import position_pictures
from dragoman.analysis.state_neighbours import state_neighbours
from dragoman.analysis.subject import Subject
from dragoman.inference.predictor import Predictor
from dragoman.layers.positions import sinusoids
from dragoman.models.encoders.bert import BertEncoder
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


def order_view(subject: Subject, beam: int | None) -> Iterator[View]:
    """What another order of the source words does to the target."""
    found = order_effects(subject)
    if found is None:
        return
    off = (
        ""
        if found.off is None
        else " Without positions an encoder of self-attention cannot tell one order from another."
    )
    yield View(
        "order",
        "Order",
        f"Each bar is the change of the {subject.measure} of the same output when the {subject.input_unit}s of the "
        f"input change places.{'' if found.off is None else off}",
        {
            "reorderings": [row._asdict() for row in found.reorderings],
            "off": found.off,
            "measure": subject.measure,
            "unit": subject.input_unit,
        },
    )


def positions_view(subject: Subject, beam: int | None) -> Iterator[View]:
    pictures = position_pictures(subject.model)
    if not pictures:
        return
    encoder, rows = subject.encoder, None
    if isinstance(encoder, BertEncoder) and subject.encoded is not None:
        segments = encoder.segment_of(subject.batch.source.data)[0].tolist()
        rows = {"tokens": subject.encoded.tokens, "segment": segments, "position": list(range(len(segments)))}
    added = None if encoder is None or subject.source is None else added_positions(subject)
    fits = added is not None and subject.source is not None and len(added.total) == len(subject.source)
    yield View(
        "positions",
        "Positions",
        "Position vectors tell equal words at different places apart; each row is a position, each column a dimension. "
        "The curve is the dot product of one position with all others: it falls with the distance.",
        {
            "pictures": pictures,
            "rows": rows,
            "small": sinusoids(8, 4),  # small enough to check by hand
            "added": added._asdict() if added is not None and fits else None,
            "source": None if subject.source is None else subject.source.as_dict(),
        },
    )


def embeddings_view(subject: Subject, beam: int | None) -> Iterator[View]:
    """The vectors of the text's tokens among those of the vocabulary."""
    if not (tables := neighbours(subject)):
        return
    yield View(
        "embeddings",
        "Embeddings",
        "Tokens that a model uses alike have vectors that point the same way: the bars are the cosines of the nearest "
        "ones. The picture shows the vectors on their first two principal components, which keep only a part of the "
        "distances.",
        {"tables": [table._asdict() for table in tables]},
    )


def training_view(subject: Subject, pairs: int) -> View:
    """The training pairs whose decoder states are nearest to those of the output; DataError where there are none."""
    found = state_neighbours(subject, pairs)
    return View(
        "training",
        "Training pairs",
        "Where did it learn this? The decoder's state before a token decides what it writes. These places of the "
        "training data had the nearest states; a distance of 1 is the mean one.",
        {
            "target": subject.target.as_dict(),
            "pairs": found.pairs,
            "states": found.states,
            "neighbours": [[one._asdict() for one in row] for row in found.neighbours],
        },
    )
