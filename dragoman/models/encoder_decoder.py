"""The encoder-decoder: any encoder with any decoder, teacher forcing or scheduled sampling."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from dragoman.data import Batch
from dragoman.data.tokenizers import PAD
from dragoman.models.config import (
    TIES,
    EncoderDecoderConfig,
    FullSoftmaxConfig,
    PartitionedSoftmaxConfig,
    TeacherForcingConfig,
)
from dragoman.models.contracts import BaseModel, Encoder, Loss, Memory, State, TokenScores
from dragoman.models.heads.decoder_head import TokenWriter, teacher_inputs
from dragoman.models.heads.softmax import SoftmaxCriterion, full_loss, full_precision, token_scores
from dragoman.models.layers.embeddings import Embedding, Side, WordDropout, build_embedding
from dragoman.models.layers.linear import output_layer
from dragoman.models.registry import (
    build_decoder,
    build_encoder,
)


class EncoderDecoder(TokenWriter, BaseModel):
    """Encodes a source and writes a target one token after another."""

    decodes = "stepwise"
    steps_in_graphs = True
    encoder: Encoder

    def __init__(
        self,
        config: EncoderDecoderConfig,
        source_vocabulary: int,
        target_vocabulary: int,
        *,
        tags: int = 0,
        space: int | None = None,
    ) -> None:
        """The last `tags` words of the source vocabulary are language tags; `space` is the token between words."""
        super().__init__()
        self.config, self.prompt = config, config.prompt
        self.num_steps = 0  # training steps done, for scheduled sampling
        ties = TIES[config.tie]
        self.target_vocabulary = target_vocabulary
        first_tag = source_vocabulary - tags
        assert first_tag == target_vocabulary or 0 not in ties[1:], "tied tables need one vocabulary"
        self.source_dropout = WordDropout(config.word_dropout, first_tag, space)
        self.target_dropout = WordDropout(config.word_dropout)
        sides: tuple[Side, ...] = ("source", "target") if ties[1] == 0 else ("source",)
        source = build_embedding(source_vocabulary, config.encoder.embedding, PAD, space, tags, sides)
        target: Embedding = source
        if ties[1] == 1:
            target = build_embedding(target_vocabulary, config.decoder.embedding, PAD)
        self.encoder = build_encoder(config.encoder, source)
        decoder = build_decoder(config.decoder, target, self.encoder.width)
        table = None if ties[2] == 2 else (source, target)[ties[2]].weight
        assert table is None or isinstance(table, nn.Parameter)
        layer = output_layer(decoder.width, target_vocabulary, table, bias=config.output_bias, tags=tags)
        self.set_decoder(decoder, layer)
        self.copied: Tensor | None
        self.register_buffer("copied", None, persistent=False)  # (V,) the target token that copies a source token
        decoder.connect(self.encoder, share_cells=config.share_cells)

    @property
    def has_unused_parameters(self) -> bool:
        return "values" in self.decoder.unused_memory

    @property
    def graph_blockers(self) -> list[str]:
        blockers = super().graph_blockers
        if not isinstance(self.config.forcing, TeacherForcingConfig):
            blockers.append(f"model.forcing {self.config.forcing.kind!r} changes from step to step")
        if isinstance(self.config.softmax, PartitionedSoftmaxConfig):
            blockers.append(f"model.softmax {self.config.softmax.kind!r} has a vocabulary for every part of the corpus")
        return blockers

    def set_step(self, step: int) -> None:
        self.num_steps = step

    def encode(self, source: Tensor, mask: Tensor, copies: Tensor | None = None, read: Tensor | None = None) -> Memory:
        """The memory of sources (B, S); copies (B, S) as in `Batch`; `read`: the sources with some tokens hidden."""
        memory = self.encoder(self.source_dropout(source if read is None else read), mask)
        if self.copied is not None and self.encoder.entries_are_tokens:
            length = memory.mask.shape[1]
            tokens = self.copied[source[:, :length]]
            if copies is not None:
                copies = copies[:, :length]
                tokens = torch.where(copies > 0, self.target_vocabulary - 1 + copies, tokens)
            memory = memory._replace(tokens=tokens)
        return memory

    def _hidden(self, inputs: Tensor, state: State) -> Tensor:
        """Hidden vectors (N, T, D) after the decoder reads inputs (N, T), with truncated back-propagation if set."""
        if not self.config.truncate:
            return self.decoder(inputs, self.decoder.without_cache(state))[0]
        outputs = []
        for chunk in torch.split(inputs, self.config.truncate, 1):
            hidden, state = self.decoder(chunk, state)
            outputs.append(hidden)
            state = state.detach()
        return torch.cat(outputs, 1)

    def _teacher_inputs(self, target: Tensor) -> Tensor:
        return self.target_dropout(teacher_inputs(target))

    def _scheduled_sampling(self, teacher: Tensor, state: State, probability: float, passes: int) -> Tensor:
        """Hidden vectors; each input is the teacher's with this probability, else sampled from the model.

        Bengio et al. 2015 sample word by word (passes = 0); Duckworth et al. 2019 sample all words in parallel.
        """
        keep = (torch.rand(teacher.shape, device=teacher.device) < probability) | (teacher == PAD)
        keep[:, 0] = True  # <sos>

        def sample(hidden: Tensor) -> Tensor:
            with torch.no_grad():
                probabilities = full_precision(self.output(hidden)).softmax(-1)
                return torch.multinomial(probabilities.flatten(0, 1), 1).view(hidden.shape[:2])

        if passes:
            inputs = teacher
            for _ in range(passes):
                with torch.no_grad():
                    sampled = sample(self._hidden(inputs, state))
                inputs = torch.where(keep, teacher, sampled.roll(1, 1))
            return self._hidden(inputs, state)
        outputs: list[Tensor] = []
        for index in range(teacher.shape[1]):
            token = teacher[:, index : index + 1]
            if index:
                token = torch.where(keep[:, index : index + 1], token, sample(outputs[-1]))
                if self.config.truncate and index % self.config.truncate == 0:
                    state = state.detach()
            hidden, state = self.decoder(token, state)
            outputs.append(hidden)
        return torch.cat(outputs, 1)

    def logits(self, batch: Batch) -> Tensor:
        """Logits (B, T, V) of every target token, given the true tokens before it."""
        return self.output(self._hidden(self._teacher_inputs(batch.target), self.start(batch)))

    def forward(self, batch: Batch) -> Loss:
        """Summed cross-entropy over real target tokens and their number."""
        forcing, target, criterion = self.config.forcing, batch.target, self._criterion(batch)
        state, inputs = self.start(batch), self._teacher_inputs(target)
        if isinstance(forcing, TeacherForcingConfig) and not self.config.truncate:
            return Loss(self.decoder.loss(inputs, target, state, criterion), (target != PAD).sum())
        probability = forcing.teacher_probability(self.num_steps) if self.training else 1.0
        if probability >= 1.0:
            hidden = self._hidden(inputs, state)
        else:
            hidden = self._scheduled_sampling(inputs, state, probability, forcing.passes)
        return Loss(self.decoder.loss_of(hidden, target, criterion), (target != PAD).sum())

    def _criterion(self, batch: Batch) -> SoftmaxCriterion:
        criterion = SoftmaxCriterion(self.output, self.cross_entropy)
        if not self.training:
            return criterion
        config = self.config
        return replace(criterion, softmax=config.softmax, smoothing=config.label_smoothing, words=batch.words)

    def scored_losses(self, batch: Batch, read: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
        """The loss of every target token (B, T), as `forward` sums it, and the log-probabilities (B, T, V).

        `read`: sources (B, S) and shifted targets (B, T) with some tokens hidden, which encoder and decoder read.
        """
        source, inputs = read if read is not None else (None, teacher_inputs(batch.target))
        memory = self.encode(batch.source.data, batch.source.mask, batch.copies, source)
        return self.decoder.scored_losses(
            self.target_dropout(inputs), batch.target, self.start_from(memory), self._criterion(batch)
        )

    def token_losses(self, target: Tensor, state: State) -> Tensor:
        """−log p of every token of targets (N, T), 0 on padding; a source may have several hypotheses."""
        hidden = self._hidden(self._teacher_inputs(target), state)
        return full_loss(FullSoftmaxConfig(), hidden, target, self.output, 0.0)

    def start(self, batch: Batch, capacity: int | None = None) -> State:
        return self.start_from(self.encode(batch.source.data, batch.source.mask, batch.copies), capacity)

    def score(self, batch: Batch) -> TokenScores:
        return token_scores(self.logits(batch), batch.target)
