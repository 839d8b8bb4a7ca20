"""The options of the verbs that look at a run. Nothing heavy is imported, so that --help is quick."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from dragoman.config.settings import Range, setting
from dragoman.decoding.config import MAX_BEAM

TRAINING_PAIRS = 1_000  # that the view `training` looks through


@dataclass(frozen=True)
class InspectOptions:
    """What `inspect` shows of a text, and beside which other run."""

    target: str | None = setting(None, help="Explain this output instead of the run's own prediction.")
    views: tuple[str, ...] = setting((), help="compute these views alone, with those that their pages draw from")
    beside: str | None = setting(
        None,
        help="Put another run beside it: a folder; untrained: the same run before training; "
        "no-positions: without them.",
    )
    training_pairs: Annotated[int, Range(1)] | None = setting(
        None, help="Add the view training, of so many training pairs. [default: 1000 with --view training or --state]"
    )
    beam: Annotated[int, Range(1, MAX_BEAM)] | None = setting(
        None, help="Beam width; 1 is greedy search. [default: the run's]"
    )
    tag: str | None = setting(
        None, help="Target tag, such as de, for a run trained with several; dragoman info lists them."
    )
    device: str = setting("auto", help="auto, cpu, cuda, cuda:N or mps.")
