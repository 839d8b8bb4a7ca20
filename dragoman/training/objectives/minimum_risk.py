"""Minimum risk training: the expected cost of sampled outputs (Shen et al. 2016)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from dragoman.base import hint
from dragoman.base.config import Range, setting
from dragoman.data import Batch, Corpus, pad_tokens
from dragoman.data.tokenizers import EOS, PAD
from dragoman.decoding import SearchConfig, greedy_search, limits_for
from dragoman.models import EncoderDecoderConfig, Loss
from dragoman.scoring import metrics_for, segment_cost_metrics
from dragoman.training.objectives.base import Objective, ObjectiveConfig
from dragoman.training.objectives.consistency import encoder_decoder_conflicts


@dataclass(frozen=True)
class MinimumRiskConfig(ObjectiveConfig):
    """Minimum risk training (Shen et al. 2016): the expected cost of sampled outputs. Start from a trained model."""

    kind: ClassVar[str] = "minimum-risk"
    graph_blocker: ClassVar[str] = 'train.objective "minimum-risk" samples outputs, whose lengths differ'
    shard_blocker: ClassVar[str] = 'train.objective "minimum-risk" samples outputs from a whole model'
    includes: ClassVar[str] = "the expected cost of samples"
    metric: str = setting("bleu", help="cost of an output, 1 − score or an error rate: a metric of `dragoman score`")
    samples: Annotated[int, Range(2, None)] = setting(8, help="sampled outputs per source")
    sharpness: Annotated[float, Range(0.0, None, exclusive_minimum=True)] = setting(
        0.005, help="α: an output counts in proportion to p^α; small values give unlikely outputs more weight"
    )
    reference: bool = setting(True, help="add the reference to the sampled outputs")

    @property
    def memory_factor(self) -> int:
        return self.samples + self.reference  # each of them is a target

    def problems(self) -> Iterator[str]:
        """A metric that does not exist or cannot score a single output."""
        if self.metric not in (metrics := segment_cost_metrics()):
            yield f"metric: found {self.metric!r}. {hint(self.metric, metrics)}"

    def conflicts(self, config: Any) -> Iterator[str]:
        yield from encoder_decoder_conflicts(self.kind, "samples token by token", config)
        if isinstance(config.model, EncoderDecoderConfig) and self.metric not in metrics_for(config.data.units):
            yield f'train.objective.metric: found "{self.metric}", which needs data.units = "phonemes"'


class RiskBatch(NamedTuple):
    """Sources with k candidate targets each, and what each candidate costs."""

    batch: Batch  # its targets (B·k, T) are the candidates
    costs: Tensor  # (B, k); infinite: not a candidate


class MinimumRisk(Objective):
    """Samples candidates, and weights their costs by their probabilities.

    Each cost is multiplied by the number of reference tokens. The sum over a step divided by its tokens is then the
    mean cost, in which long sources count more, as they do in corpus-level metrics.
    """

    def __init__(self, config: MinimumRiskConfig, corpus: Corpus) -> None:
        super().__init__(config)
        self.tokenizer = corpus.codec.target_of(None)
        self.ratio: float = corpus.report["length_ratio"]

    def prepare(self, model: Any, batch: Batch) -> RiskBatch:
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
        for index, row in enumerate(rows):
            if row in rows[index - index % count : index]:  # a candidate that was sampled twice counts once
                risks.view(-1)[index] = torch.inf
        device = batch.target.device
        return RiskBatch(replace(batch, target=pad_tokens(rows).to(device)), risks.to(device))

    def loss(self, model: Any, batch: RiskBatch) -> Loss:
        """Σ_y Q(y) Δ(y) over the candidates of each source, with Q ∝ p(y)^α (Shen et al. 2016, eq. 8)."""
        (sources, count), target = batch.costs.shape, batch.batch.target
        state = model.start(batch.batch).expand(count)  # all candidates share one encoded source
        scores = -model.token_losses(target, state).sum(1).view(sources, count) * self.config.sharpness
        none = batch.costs.isinf()
        shares = scores.masked_fill(none, -torch.inf).softmax(1)
        return Loss((shares * batch.costs.masked_fill(none, 0.0)).sum(), (target != PAD).sum())

    def _sample(self, model: Any, batch: Batch) -> list[list[int]]:
        was_training = model.training
        model.eval()
        rows = torch.arange(len(batch.source), device=batch.source.device).repeat_interleave(self.config.samples)
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
