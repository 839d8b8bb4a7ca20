"""Training objectives: maximum likelihood, or minimum risk (expected cost of sampled outputs; Shen et al. 2016)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Protocol

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
    """Maximum likelihood: the negative log-probability of the reference, token by token."""

    kind: ClassVar[str] = "likelihood"


@dataclass(frozen=True)
class MinimumRiskConfig:
    """Minimum risk training (Shen et al. 2016): the expected cost of sampled outputs. Start from a trained model."""

    kind: ClassVar[str] = "minimum-risk"
    metric: str = setting(
        "bleu", help=f"cost of an output, 1 − score or an error rate: {', '.join(segment_cost_metrics())}"
    )
    samples: Annotated[int, Range(2, None)] = setting(8, help="sampled outputs per source")
    sharpness: Annotated[float, Range(0.0, None, exclusive_minimum=True)] = setting(
        0.005, help="α: an output counts in proportion to p^α; small values give unlikely outputs more weight"
    )
    reference: bool = setting(True, help="add the reference to the sampled outputs")

    def problems(self) -> Iterator[str]:
        """A metric that does not exist or cannot score a single output."""
        if self.metric not in (metrics := segment_cost_metrics()):
            yield f"metric: found {self.metric!r}. {hint(self.metric, metrics)}"


ObjectiveConfig = LikelihoodConfig | MinimumRiskConfig


class Objective(Protocol):
    """Prepares batches so that the model's loss is the objective."""

    def prepare(self, model: Any, batch: Batch) -> Batch:
        """The batch that the model computes its loss on."""


class Likelihood:
    """The model's own loss on the batch itself."""

    def __init__(self, config: LikelihoodConfig | None = None, corpus: Corpus | None = None) -> None:
        pass

    def prepare(self, model: Any, batch: Batch) -> Batch:
        return batch


class MinimumRisk:
    """Samples candidates and computes their costs; the model's loss weights the costs by probability.

    Each cost is multiplied by the number of reference tokens. The sum over a step divided by its tokens is then the
    mean cost, in which long sources count more, as they do in corpus-level metrics.
    """

    def __init__(self, config: MinimumRiskConfig, corpus: Corpus) -> None:
        self.config = config
        self.tokenizer = corpus.codec.target_of(None)
        self.ratio: float = corpus.report["length_ratio"]

    def prepare(self, model: Any, batch: Batch) -> Batch:
        """The same sources with k candidates each, sampled from torch's random state, which the step has seeded."""
        references = [[token for token in row if token not in (PAD, EOS)] for row in batch.target.tolist()]
        samples = self._sample(model, batch)
        count = self.config.samples + self.config.reference
        rows: list[list[int]] = []
        outputs, expected = [], []
        for index, reference in enumerate(references):
            candidates = samples[index * self.config.samples : (index + 1) * self.config.samples]
            rows += [reference, *candidates] if self.config.reference else candidates
            outputs += [self.tokenizer.decode(row) for row in rows[-count:]]
            expected += [[self.tokenizer.decode(reference)]] * count
        costs = segment_cost_metrics()[self.config.metric].costs(outputs, expected)
        risks = torch.tensor(costs, dtype=torch.float32).view(-1, count)
        risks *= torch.tensor([[len(row) + 1.0] for row in references])
        for index in range(len(references)):
            seen: set[tuple[int, ...]] = set()
            for rank, row in enumerate(map(tuple, rows[index * count : (index + 1) * count])):
                if row in seen:  # a candidate that was sampled twice counts once
                    risks[index, rank] = torch.inf
                seen.add(row)
        device = batch.target.device
        candidates_of_batch = RiskCandidates(risks.to(device), self.config.sharpness)
        return Batch(batch.source, batch.source_mask, pad_tokens(rows).to(device), candidates_of_batch)

    def _sample(self, model: Any, batch: Batch) -> list[list[int]]:
        was_training = model.training
        model.eval()
        rows = torch.arange(batch.source.shape[0], device=batch.source.device).repeat_interleave(self.config.samples)
        with torch.no_grad():
            state = model.start(batch).select(rows)
        limits = limits_for(batch, SearchConfig(), self.ratio)
        if model.max_positions is not None:
            limits = limits.clamp(max=model.max_positions)
        hypotheses = greedy_search(model.step, state, limits[rows], choose=sample_tokens)
        model.train(was_training)
        return [list(hypothesis.tokens[:-1]) for hypothesis in hypotheses]


def sample_tokens(log_probabilities: Tensor, position: Tensor, length: int) -> Tensor:
    """Sample one token per row from the model's distribution."""
    return torch.multinomial(log_probabilities.softmax(-1), 1)[:, 0]


OBJECTIVES: dict[type, Any] = {LikelihoodConfig: Likelihood, MinimumRiskConfig: MinimumRisk}
