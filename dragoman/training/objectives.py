"""What training makes small: the truth's surprise, or the expected cost of what the model would write (FIELD G6)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from dragoman.config.settings import Range, setting
from dragoman.data.batch import Batch, RiskCandidates, pad_tokens
from dragoman.data.corpus import Corpus
from dragoman.data.tokenizers.base import EOS, PAD
from dragoman.decoding.config import SearchConfig
from dragoman.decoding.greedy import greedy_search
from dragoman.decoding.search import limits_for
from dragoman.errors import hint
from dragoman.scoring.registry import segment_cost_metrics


@dataclass(frozen=True)
class LikelihoodConfig:
    """The probability of the true target, token by token."""

    kind: ClassVar[str] = "likelihood"


@dataclass(frozen=True)
class MinimumRiskConfig:
    """The expected cost of sampled outputs under any metric (Shen et al. 2016); start from a trained model."""

    kind: ClassVar[str] = "minimum-risk"
    metric: str = setting(
        "bleu", help=f"what an output costs, 1 − score or an error rate: {', '.join(segment_cost_metrics())}"
    )
    samples: Annotated[int, Range(2, None)] = setting(8, help="outputs drawn for every source")
    sharpness: Annotated[float, Range(0.0, None, exclusive_minimum=True)] = setting(
        0.005, help="α: outputs count by p^α; small values let unlikely outputs speak"
    )
    reference: bool = setting(True, help="the true target is one of the outputs compared")

    def problems(self) -> Iterator[str]:
        """A metric that does not exist or cannot score a single output."""
        if self.metric not in (metrics := segment_cost_metrics()):
            yield f"metric: found {self.metric!r}. {hint(self.metric, metrics)}"


ObjectiveConfig = LikelihoodConfig | MinimumRiskConfig


class Likelihood:
    """The batch as it is: the model's own loss."""

    def __init__(self, config: LikelihoodConfig, corpus: Corpus) -> None:
        pass

    def prepare(self, model: Any, batch: Batch) -> Batch:
        """What the model's loss is computed on."""
        return batch


class MinimumRisk:
    """Draws candidates and prices them; the model weighs them by their probability.

    Costs are multiplied by the number of reference tokens, so that the sum over a step divided by its tokens is the
    mean cost, long sources counting more, as they do in corpus metrics.
    """

    def __init__(self, config: MinimumRiskConfig, corpus: Corpus) -> None:
        self.config = config
        self.tokenizer = corpus.target_tokenizer
        self.ratio: float = corpus.report["length_ratio"]

    def prepare(self, model: Any, batch: Batch) -> Batch:
        """The same sources with k candidates each; drawn from torch's random state, which the step has seeded."""
        references = [[token for token in row if token not in (PAD, EOS)] for row in batch.target.tolist()]
        drawn = self._draw(model, batch)
        count = self.config.samples + self.config.reference
        rows: list[list[int]] = []
        texts, truths = [], []
        for place, reference in enumerate(references):
            candidates = drawn[place * self.config.samples : (place + 1) * self.config.samples]
            rows += [reference, *candidates] if self.config.reference else candidates
            truth = self.tokenizer.decode(reference)
            texts += [self.tokenizer.decode(row) for row in rows[-count:]]
            truths += [[truth]] * count
        costs = segment_cost_metrics()[self.config.metric].costs(texts, truths)
        risks = torch.tensor(costs, dtype=torch.float32).view(-1, count)
        risks *= torch.tensor([[len(row) + 1.0] for row in references])
        for place in range(len(references)):
            seen: set[tuple[int, ...]] = set()
            for rank, row in enumerate(map(tuple, rows[place * count : (place + 1) * count])):
                if row in seen:  # drawn twice, counts once
                    risks[place, rank] = torch.inf
                seen.add(row)
        device = batch.target.device
        candidates_of_batch = RiskCandidates(risks.to(device), self.config.sharpness)
        return Batch(batch.source, batch.source_mask, pad_tokens(rows).to(device), candidates_of_batch)

    def _draw(self, model: Any, batch: Batch) -> list[list[int]]:
        was_training = model.training
        model.eval()
        rows = torch.arange(batch.source.shape[0], device=batch.source.device).repeat_interleave(self.config.samples)
        with torch.no_grad():
            state = model.start(batch).select(rows)
        limits = limits_for(batch, SearchConfig(), self.ratio)
        if model.max_positions is not None:
            limits = limits.clamp(max=model.max_positions)
        found = greedy_search(model.step, state, limits[rows], choose=draw_tokens)
        model.train(was_training)
        return [list(hypothesis.tokens[:-1]) for hypothesis in found]


def draw_tokens(log_probabilities: Tensor, place: Tensor, length: int) -> Tensor:
    """One token a row, each as likely as the model says (FIELD H2)."""
    return torch.multinomial(log_probabilities.softmax(-1), 1)[:, 0]  # of what is allowed, however unlikely


OBJECTIVES: dict[type, Any] = {LikelihoodConfig: Likelihood, MinimumRiskConfig: MinimumRisk}
