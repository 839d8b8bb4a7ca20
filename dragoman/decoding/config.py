"""The settings of a search: the `search` section of a run's configuration."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from dragoman.base.config import Range, setting

StopRule = Literal["ahead", "complete", "certain"]
Average = Literal["probability", "log"]  # what an ensemble averages: probabilities, or their logarithms
DEFAULT_AVERAGE: Average = "probability"

# Far more than anyone uses; beyond them a search would take all memory.
MAX_BEAM, MAX_TOKENS, MAX_SAMPLES = 1000, 100_000, 10_000


@dataclass(frozen=True)
class SearchConfig:
    """How beam search finds and ranks outputs."""

    beam: Annotated[int, Range(1, MAX_BEAM)] = setting(5, help="beam width; 1 is greedy search")
    length_penalty: Annotated[float, Range(0.0, 10.0)] = setting(
        1.0, help="a hypothesis of t tokens scores Σ log p / t^penalty; 0 does not normalise"
    )
    normalisation: Literal["power", "gnmt", "none"] = setting(
        "power", help="what Σ log p is divided by: t^penalty, ((5 + t) / 6)^penalty (Wu et al. 2016), or nothing"
    )
    coverage_penalty: Annotated[float, Range(0.0, 1000.0)] = setting(
        0.0, help="β: weight of the penalty for source tokens without attention (Wu et al. 2016, eq. 14)"
    )
    stop: StopRule = setting(
        "ahead",
        help="ends once a beam is complete (complete) and no open hypothesis leads (ahead) or can win (certain)",
    )
    num_complete: Annotated[int, Range(0, MAX_BEAM)] = setting(
        0,
        help="complete hypotheses after which a beam may end (stop = complete, ahead); 0: as many as the beam is wide",
    )
    min_length: Annotated[int, Range(0, MAX_TOKENS)] = setting(
        0, help="minimum number of output tokens, if the length limit allows it"
    )
    no_repeat_ngram: Annotated[int, Range(0, MAX_TOKENS)] = setting(
        0, help="no n-gram of so many tokens occurs twice in an output; 0: any may"
    )
    beam_groups: Annotated[int, Range(1, MAX_BEAM)] = setting(
        1, help="groups of diverse beam search, which avoid each other's tokens; must divide the beam"
    )
    diversity_penalty: Annotated[float, Range(0.0, 1000.0)] = setting(
        0.5, help="with beam_groups: what each use of a token by an earlier group costs (Vijayakumar et al. 2016)"
    )
    max_length: Annotated[int, Range(0, MAX_TOKENS)] = setting(
        0, help="maximum number of output tokens; 0 derives it from the source length and the ratio in training"
    )

    def limit(self, length: Any, ratio: float) -> Any:
        """The maximum number of output tokens for a source of this length, <eos> included; an int or a tensor."""
        return length * 0 + self.max_length + 1 if self.max_length else length * math.ceil(ratio * 16) // 16 + 12
