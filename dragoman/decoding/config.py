"""The settings of a search: the `search` section of a run's configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from dragoman.config.settings import Range, setting


@dataclass(frozen=True)
class SearchConfig:
    """How the best output is looked for."""

    beam: Annotated[int, Range(1, None)] = setting(5, help="hypotheses kept side by side; 1 is greedy search")
    length_penalty: Annotated[float, Range(0.0, None)] = setting(
        1.0, help="a hypothesis of t tokens scores Σ log p / t^penalty; 0 does not normalise"
    )
    normalisation: Literal["power", "gnmt", "none"] = setting(
        "power", help="what Σ log p is divided by: t^penalty, ((5 + t) / 6)^penalty (Wu et al. 2016), or nothing"
    )
    coverage_penalty: Annotated[float, Range(0.0, None)] = setting(
        0.0, help="β: what an output leaves unread of its source costs it this much (Wu et al. 2016); needs attention"
    )
    stop: Literal["complete", "certain"] = setting(
        "complete", help="when as many outputs as the beam is wide are complete, or when no open one can still win"
    )
    min_length: Annotated[int, Range(0, None)] = setting(0, help="fewest tokens written, if the length limit allows it")
    no_repeat_ngram: Annotated[int, Range(0, None)] = setting(
        0, help="no n tokens in a row are written twice; 0: they may be"
    )
    beam_groups: Annotated[int, Range(1, None)] = setting(
        1, help="parts of the beam that keep away from each other's tokens, for diverse outputs; divides the beam"
    )
    diversity_penalty: Annotated[float, Range(0.0, None)] = setting(
        0.5, help="with beam_groups: what each use of a token by an earlier group costs (Vijayakumar et al. 2016)"
    )
    max_length: Annotated[int, Range(0, None)] = setting(
        0, help="most tokens written; 0 follows the source's length and the ratio seen in training"
    )
