"""The encoder-decoder: any encoder with any decoder, and the loss over target tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor, nn

from dragoman.config.settings import Range, Share, setting
from dragoman.data.batch import Batch
from dragoman.data.tokenizers.base import PAD, SOS, UNK
from dragoman.layers.embeddings import Embedding, TokenEmbedding, build_embedding, word_dropout
from dragoman.layers.linear import FirstRowsLinear
from dragoman.models.base import BaseModel
from dragoman.models.contracts import Decoder, Encoder, Loss, Memory, State, TokenScores
from dragoman.models.decoders.fixed_context import FixedContextDecoder, FixedContextDecoderConfig
from dragoman.models.decoders.monotone import MonotoneDecoder, MonotoneDecoderBase
from dragoman.models.decoders.pointer_generator import PointerGenerator, PointerGeneratorConfig
from dragoman.models.decoders.recurrent_parts import RecurrentDecoderBase
from dragoman.models.decoders.transformer import TransformerDecoder
from dragoman.models.encoders.recurrent import RecurrentEncoder, RecurrentEncoderConfig
from dragoman.models.heads.softmax import (
    CrossEntropy,
    FullSoftmaxConfig,
    PartitionedSoftmaxConfig,
    SoftmaxConfig,
    connect_output,
    full_loss,
    full_precision,
    log_probabilities,
    summed_loss,
    token_scores,
)
from dragoman.models.registry import (
    DecoderConfig,
    EncoderConfig,
    build_decoder,
    build_encoder,
    encoder_graph_blockers,
)
from dragoman.models.scheduled_sampling import ForcingConfig, TeacherForcingConfig
from dragoman.models.transformer import TransformerConfig

# Which of three weight matrices are one: source embeddings, target embeddings, output layer.
TIES = {
    "none": (0, 1, 2),
    "inputs": (0, 0, 2),
    "target": (0, 1, 1),
    "source": (0, 1, 0),
    "all": (0, 0, 0),
}


@dataclass(frozen=True)
class EncoderDecoderConfig:
    """An encoder and an autoregressive decoder."""

    kind: ClassVar[str] = "encoder-decoder"
    tie: Literal["none", "inputs", "target", "source", "all"] = setting(
        "target",
        help="weight tying: target embeddings with the output layer (target), source with target embeddings (inputs), "
        "source embeddings with the output layer (source), all three (all), or none",
    )
    output_bias: bool = setting(False, help="the output layer has a bias")
    word_dropout: Share = setting(0.0, help="share of input tokens replaced by <unk> during training")
    label_smoothing: Share = setting(0.1, help="share of the target probability spread over the vocabulary")
    softmax: SoftmaxConfig = setting(
        FullSoftmaxConfig(), help="softmax over all words, or in training over a sample or those of a part"
    )
    forcing: ForcingConfig = setting(TeacherForcingConfig(), help="teacher forcing or scheduled sampling")
    truncate: Annotated[int, Range(0, None)] = setting(
        0, help="truncated back-propagation through time: stop gradients every n target tokens; 0: never"
    )
    share_cells: bool = setting(False, help="encoder and decoder share their recurrent layers")
    prompt: tuple[int, ...] = setting(
        (), help="token ids that the decoder reads before <sos>; of imported models such as M2M-100"
    )
    encoder: EncoderConfig = setting(TransformerConfig(), help="encoder of the source")
    decoder: DecoderConfig = setting(TransformerConfig(), help="decoder of the target")

    def problems(self) -> Iterator[str]:
        names = ("the encoder's embeddings", "the decoder's embeddings", "the decoder's output")
        widths = (self.encoder.embedding, self.decoder.embedding, self.decoder.output_width)
        ties = TIES[self.tie]
        for index in (1, 2):
            first = ties.index(ties[index])
            if widths[index] != widths[first]:
                yield (
                    f"tie: {self.tie!r} needs equal sizes, found {widths[first]} for {names[first]} "
                    f"and {widths[index]} for {names[index]}"
                )
            elif first != index and widths[index] == 0:
                yield f"tie: {self.tie!r} needs learned embeddings, found one-hot vectors (embedding = 0)"
        mixes = isinstance(self.decoder, MonotoneDecoderBase | PointerGeneratorConfig)
        if mixes and not isinstance(self.softmax, FullSoftmaxConfig):
            yield f"softmax: found {self.softmax.kind!r}, expected 'full' with decoder.kind = {self.decoder.kind!r}"
        if isinstance(self.decoder, RecurrentDecoderBase):
            yield from self._recurrent_problems(self.decoder)
        elif self.share_cells:
            yield "share_cells: found true, expected a recurrent encoder and a recurrent decoder"

    def _recurrent_problems(self, decoder: RecurrentDecoderBase) -> Iterator[str]:
        """Errors in how a recurrent decoder goes with the encoder and with the other settings."""
        encoder = self.encoder if isinstance(self.encoder, RecurrentEncoderConfig) else None
        if encoder is not None and not (
            (encoder.cell, encoder.layers, encoder.width) == (decoder.cell, decoder.layers, decoder.width)
            and encoder.direction in ("forward", "backward")
            and not encoder.widths
        ):
            encoder = None  # its cells are not those of the decoder
        if decoder.begin == "copy" and encoder is None:
            yield (
                "decoder.begin: 'copy' needs a recurrent encoder of one direction with the decoder's cell, layers "
                "and width"
            )
        if self.share_cells:
            if encoder is None or not isinstance(decoder, FixedContextDecoderConfig):
                yield (
                    "share_cells: found true, expected a recurrent encoder of one direction and a fixed-context "
                    "decoder with the same cell, layers and width"
                )
            elif not (encoder.embedding == decoder.embedding > 0 and decoder.context == "start"):
                yield 'share_cells: found true, expected equal embedding sizes above 0 and decoder.context = "start"'
            elif (encoder.residual_from, encoder.norm) != (decoder.residual_from, False):
                yield "share_cells: found true, expected equal residual_from and an encoder without norm"
        in_chunks = self.truncate or getattr(self.forcing, "passes", 1) == 0
        if decoder.variational and decoder.dropout and in_chunks:
            yield (
                "decoder.variational: found true, but truncate and word-by-word forcing run a sequence in chunks, each "
                "with a mask of its own; expected false, or forcing.passes above 0"
            )
        if decoder.residual_from == 1 or decoder.residual_from > decoder.layers:
            yield (
                f"decoder.residual_from: found {decoder.residual_from}, expected 0 or from 2 to the number of layers "
                f"({decoder.layers})"
            )


class EncoderDecoder(BaseModel):
    """Encodes a source and writes a target one token after another."""

    encoder: Encoder
    decoder: Decoder

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
        self.config = config
        self.num_steps = 0  # training steps done, for scheduled sampling
        ties = TIES[config.tie]
        self.source_vocabulary, self.first_tag = source_vocabulary, source_vocabulary - tags
        assert self.first_tag == target_vocabulary or 0 not in ties[1:], "tied tables need one vocabulary"
        self.space = space
        source = build_embedding(source_vocabulary, config.encoder.embedding, PAD, space)
        if tags and isinstance(source, TokenEmbedding):
            source.first_tag = self.first_tag
        target: Embedding = source
        if ties[1] == 1:
            target = build_embedding(target_vocabulary, config.decoder.embedding, PAD)
        self.encoder = build_encoder(config.encoder, source)
        self.decoder = build_decoder(config.decoder, target, self.encoder.width)
        self.cross_entropy = CrossEntropy()
        layer = FirstRowsLinear if tags else nn.Linear  # the rows after the vocabulary are tags of the source
        output = layer(self.decoder.width, target_vocabulary, bias=config.output_bias)
        if config.output_bias:
            nn.init.zeros_(output.bias)
        if ties[2] == 2:
            nn.init.normal_(output.weight, std=self.decoder.width**-0.5)
        else:
            table = (source, target)[ties[2]]
            assert isinstance(table.weight, nn.Parameter)
            output.weight = table.weight
        self.output = connect_output(self.decoder, output)
        self.copied: Tensor | None
        self.register_buffer("copied", None, persistent=False)  # (V,) the target token that copies a source token
        if getattr(config.decoder, "begin", "") == "copy":
            assert isinstance(self.encoder, RecurrentEncoder)
            self.encoder.keep_states()
        if config.share_cells:
            assert isinstance(self.encoder, RecurrentEncoder)
            assert isinstance(self.decoder, FixedContextDecoder)
            self.decoder.stack.cells = self.encoder.cells()

    @property
    def max_positions(self) -> int | None:
        limit = self.decoder.max_positions
        return None if limit is None else limit - len(self.config.prompt)

    @property
    def has_unused_parameters(self) -> bool:
        """Whether encoder weights get no gradient because the decoder does not attend."""
        return "values" in self.decoder.unused_memory

    @property
    def graph_blockers(self) -> list[str]:
        blockers = encoder_graph_blockers(self.config.encoder)
        if not isinstance(self.config.forcing, TeacherForcingConfig):
            blockers.append(f"model.forcing {self.config.forcing.kind!r} changes from step to step")
        if isinstance(self.config.softmax, PartitionedSoftmaxConfig):
            blockers.append(f"model.softmax {self.config.softmax.kind!r} has a vocabulary for every part of the corpus")
        return blockers

    def set_step(self, step: int) -> None:
        self.num_steps = step

    def encode(self, source: Tensor, mask: Tensor) -> Memory:
        copies = None
        if isinstance(self.decoder, PointerGenerator):
            source, copies = source % self.source_vocabulary, source // self.source_vocabulary
        seen = source
        if self.training:
            share = self.config.word_dropout
            seen = word_dropout(source, share, UNK, keep_below=4, keep_from=self.first_tag, keep=self.space)
        memory = self.encoder(seen, mask)
        if self.copied is not None and getattr(self.encoder, "entries_are_tokens", True):
            length = memory.mask.shape[1]
            tokens = self.copied[source[:, :length]]
            if copies is not None and isinstance(self.decoder, PointerGenerator):
                copies = copies[:, :length]
                tokens = torch.where(copies > 0, self.decoder.vocabulary - 1 + copies, tokens)
            memory = memory._replace(tokens=tokens)
        return memory

    def _hidden(self, inputs: Tensor, state: State) -> Tensor:
        """Hidden vectors (N, T, D) after the decoder reads inputs (N, T), with truncated back-propagation if set."""
        if not self.config.truncate:
            if isinstance(self.decoder, TransformerDecoder | PointerGenerator) and not self.config.prompt:
                state = self.decoder.without_cache(state)
            return self.decoder(inputs, state)[0]
        outputs = []
        for chunk in torch.split(inputs, self.config.truncate, 1):
            hidden, state = self.decoder(chunk, state)
            outputs.append(hidden)
            state = state.detach()
        return torch.cat(outputs, 1)

    def _teacher_inputs(self, target: Tensor) -> Tensor:
        """The decoder's inputs under teacher forcing: <sos> and all target tokens but the last."""
        inputs = torch.cat([target.new_full((target.shape[0], 1), SOS), target[:, :-1]], 1)
        return word_dropout(inputs, self.config.word_dropout, UNK, keep_below=4) if self.training else inputs

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
        out: Tensor = self.output(self._hidden(self._teacher_inputs(batch.target), self.start(batch)))
        return out

    def forward(self, batch: Batch) -> Loss:
        """Summed cross-entropy over real target tokens and their number."""
        config, target = self.config, batch.target
        state = self.start(batch)
        inputs = self._teacher_inputs(target)
        smoothing = config.label_smoothing if self.training else 0.0
        real = target != PAD
        if isinstance(self.decoder, PointerGenerator) and self._plain_forcing():
            state = state if config.prompt else self.decoder.without_cache(state)
            losses = self.decoder.losses(inputs, target, state, smoothing)
            return Loss((losses * real).sum(), real.sum())
        if self._sums_alignments():
            assert isinstance(self.decoder, MonotoneDecoder)
            return Loss((self.decoder.losses(inputs, target, state) * real).sum(), real.sum())
        probability = config.forcing.teacher_probability(self.num_steps) if self.training else 1.0
        if isinstance(config.forcing, TeacherForcingConfig) or probability >= 1.0:
            hidden = self._hidden(inputs, state)
        else:
            hidden = self._scheduled_sampling(inputs, state, probability, config.forcing.passes)
        if isinstance(self.decoder, PointerGenerator):
            total = (self.decoder.losses_of(hidden, target, smoothing) * real).sum()
        elif self.training:
            total = summed_loss(config.softmax, hidden, target, self.output, smoothing, self.cross_entropy, batch.words)
        else:
            total = summed_loss(FullSoftmaxConfig(), hidden, target, self.output, 0.0, self.cross_entropy)
        return Loss(total, real.sum())

    def _sums_alignments(self) -> bool:
        """Whether the decoder computes the loss itself, over the target tokens alone."""
        smooths = self.training and self.config.label_smoothing
        return isinstance(self.decoder, MonotoneDecoder) and self._plain_forcing() and not smooths

    def _plain_forcing(self) -> bool:
        """Whether one call of the decoder reads the whole target."""
        return isinstance(self.config.forcing, TeacherForcingConfig) and not self.config.truncate

    def token_losses(self, target: Tensor, state: State) -> Tensor:
        """−log p of every token of targets (N, T), 0 on padding; a source may have several hypotheses."""
        hidden = self._hidden(self._teacher_inputs(target), state)
        losses: Tensor = full_loss(FullSoftmaxConfig(), hidden, target, self.output, 0.0)
        return losses

    def start(self, batch: Batch, capacity: int | None = None) -> State:
        """Encode the sources and make the state before the first target token."""
        prompt = self.config.prompt
        capacity = capacity if capacity is None else capacity + len(prompt)
        state = self.decoder.start(self.encode(batch.source, batch.source_mask), capacity)
        if prompt:
            tokens = batch.source.new_tensor(prompt).expand(len(batch.source), -1)
            state = self.decoder(tokens, state)[1]
        return state

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        scores, state = self.scores(tokens, state)
        return log_probabilities(scores), state

    def scores(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """Like `step`, with logits (N, V)."""
        hidden, state = self.decoder(tokens if tokens.dim() == 2 else tokens[:, None], state)
        return self._possible(self.output(hidden[:, -1]), state), state

    def read(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        hidden, state = self.decoder(tokens, state)
        return log_probabilities(self._possible(self.output(hidden), state)), state

    def _possible(self, scores: Tensor, state: State) -> Tensor:
        """The scores (N, …, V), −∞ for tokens that cannot follow."""
        return self.decoder.suppress_absent(scores, state) if isinstance(self.decoder, PointerGenerator) else scores

    def score(self, batch: Batch) -> TokenScores:
        return token_scores(self.logits(batch), batch.target)
