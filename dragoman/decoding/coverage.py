"""The attention that hypotheses have paid to each source token, for the coverage penalty (Wu et al. 2016, eq. 14)."""

from __future__ import annotations

from torch import Tensor, nn

from dragoman.decoding.hypothesis import Step
from dragoman.decoding.scorer import Scorer
from dragoman.errors import ConfigError
from dragoman.layers.attention import observe_attention


class CoverageTracker:
    """Sums of the attention weights of the last layer that reads the source, for every open hypothesis."""

    def __init__(self, step: Step, scorer: Scorer, mask: Tensor) -> None:
        self._step = step
        self.scorer = scorer
        self.mask = mask  # (B, S), True = real
        self.total: Tensor | None = None  # (B, k, S) before the last step
        self.newest: Tensor  # (B, k, S) of the last step

    def step(self, tokens: Tensor, state: object) -> tuple[Tensor, object]:
        """Run the model's step and record its attention weights."""
        recorded: list[Tensor] = []

        def record(module: nn.Module, weights: Tensor) -> None:
            if getattr(module, "is_cross_attention", False):
                recorded.append(weights)

        with observe_attention(record):
            out = self._step(tokens, state)
        if not recorded:
            raise ConfigError("search.coverage_penalty: this model does not attend to its source; set the penalty to 0")
        entries = recorded[-1].shape[-1]
        if entries != self.mask.shape[1]:
            raise ConfigError(
                f"search.coverage_penalty: found {entries} encoder outputs for {self.mask.shape[1]} source tokens, "
                "expected one per token; set the penalty to 0 with this encoder"
            )
        # Hypotheses are rows, or side by side in the row of their source: either way their order is the same.
        self.newest = recorded[-1].mean(1).reshape(len(self.mask), -1, entries)
        return out

    def _sum(self) -> Tensor:
        return self.newest if self.total is None else self.total + self.newest

    def scores(self, parents: Tensor) -> Tensor:
        """The coverage term of candidates (B, C) that continue these hypotheses."""
        return self.scorer.coverage(self._sum(), self.mask).gather(1, parents)

    def advance(self, parents: Tensor) -> None:
        """Take the sums of the hypotheses that the search keeps, (B, k)."""
        total = self._sum()
        self.total = total.gather(1, parents[:, :, None].expand(-1, -1, total.shape[2]))

    def select(self, sources: Tensor) -> None:
        self.mask = self.mask.index_select(0, sources)
        if self.total is not None:
            self.total = self.total.index_select(0, sources)
