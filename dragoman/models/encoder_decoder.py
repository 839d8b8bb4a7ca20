"""Any encoder with any decoder (FIELD C10): the tables of both, and the whole they make."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from dragoman.config.settings import Range, Share, setting
from dragoman.data.batch import Batch, RiskCandidates
from dragoman.data.tokenizers.base import PAD, SOS, UNK
from dragoman.layers.blocks import Embedding, FirstRows, TokenEmbedding, build_embedding, drop_words
from dragoman.models.contracts import Decoder, Encoder, Loss, Memory, State, TokenScores
from dragoman.models.convs2s import ConvS2SDecoder, ConvS2SDecoderConfig
from dragoman.models.decoders.recurrent import (
    FixedContextDecoder,
    FixedContextDecoderConfig,
    LuongDecoder,
    LuongDecoderConfig,
    RecurrentDecoder,
    RecurrentDecoderConfig,
)
from dragoman.models.elmo import ElmoEncoder, ElmoEncoderConfig
from dragoman.models.encoders.bert import BertEncoder, BertEncoderConfig
from dragoman.models.encoders.character_words import CharacterWordsConfig, CharacterWordsEncoder
from dragoman.models.encoders.recurrent import RecurrentEncoder, RecurrentEncoderConfig
from dragoman.models.encoders.table import ROW_ENCODERS, RowEncoderConfig
from dragoman.models.heads.softmax import (
    LOSSES,
    CrossEntropy,
    FullSoftmaxConfig,
    SoftmaxConfig,
    full_precision,
    log_probabilities,
    summed_loss,
)
from dragoman.models.scheduled_sampling import ForcingConfig, TeacherForcingConfig
from dragoman.models.transformer import TransformerConfig, TransformerDecoder

EncoderConfig = RowEncoderConfig | CharacterWordsConfig | BertEncoderConfig | ElmoEncoderConfig
DecoderConfig = (
    TransformerConfig | RecurrentDecoderConfig | FixedContextDecoderConfig | LuongDecoderConfig | ConvS2SDecoderConfig
)

ENCODERS: dict[type, Any] = {
    **ROW_ENCODERS,
    CharacterWordsConfig: CharacterWordsEncoder,
    BertEncoderConfig: BertEncoder,
    ElmoEncoderConfig: ElmoEncoder,
}
DECODERS: dict[type, Any] = {
    TransformerConfig: TransformerDecoder,
    RecurrentDecoderConfig: RecurrentDecoder,
    FixedContextDecoderConfig: FixedContextDecoder,
    LuongDecoderConfig: LuongDecoder,
    ConvS2SDecoderConfig: ConvS2SDecoder,
}
# Which of the three tables are one: source embeddings, target embeddings, output.
TIES = {
    "none": (0, 1, 2),
    "inputs": (0, 0, 2),
    "target": (0, 1, 1),
    "source": (0, 1, 0),
    "all": (0, 0, 0),
}


@dataclass(frozen=True)
class EncoderDecoderConfig:
    """A source reader and a target writer."""

    kind: ClassVar[str] = "encoder-decoder"
    tie: Literal["none", "inputs", "target", "source", "all"] = setting(
        "target",
        help="share tables: target embeddings with the output (target), source embeddings with those of the target "
        "(inputs) or with the output (source), all three, or none",
    )
    output_bias: bool = setting(False, help="one learned number per target word in the output layer")
    word_dropout: Share = setting(0.0, help="share of input tokens replaced by <unk> while training")
    label_smoothing: Share = setting(0.1, help="share of the target probability spread over the vocabulary")
    softmax: SoftmaxConfig = setting(FullSoftmaxConfig(), help="which words the training loss compares")
    forcing: ForcingConfig = setting(TeacherForcingConfig(), help="what the decoder is fed while training")
    truncate: Annotated[int, Range(0, None)] = setting(
        0, help="stop gradients every so many target tokens (truncated back-propagation through time); 0: never"
    )
    share_cells: bool = setting(False, help="encoder and decoder are the same recurrent layers (Sutskever 2014)")
    encoder: EncoderConfig = setting(TransformerConfig(), help="what reads the source")
    decoder: DecoderConfig = setting(TransformerConfig(), help="what writes the target")

    def problems(self) -> Iterator[str]:
        """What the fields cannot say one by one."""
        names = ("the encoder's embeddings", "the decoder's embeddings", "what the decoder writes")
        widths = (self.encoder.embedding, self.decoder.embedding, self.decoder.output_width)
        ties = TIES[self.tie]
        for place in (1, 2):
            first = ties.index(ties[place])
            if widths[place] != widths[first]:
                yield (
                    f"tie: {self.tie!r} needs equal sizes, found {widths[first]} for {names[first]} "
                    f"and {widths[place]} for {names[place]}"
                )
            elif first != place and widths[place] == 0:
                yield f"tie: {self.tie!r} needs learned embeddings, found one-hot vectors (embedding = 0)"
        if isinstance(self.decoder, FixedContextDecoderConfig | RecurrentDecoderConfig | LuongDecoderConfig):
            yield from self._recurrent_problems(self.decoder)
        elif self.share_cells:
            yield "share_cells: found true, expected a recurrent encoder and a recurrent decoder"

    def _recurrent_problems(
        self, decoder: FixedContextDecoderConfig | RecurrentDecoderConfig | LuongDecoderConfig
    ) -> Iterator[str]:
        encoder = self.encoder
        alike = (
            isinstance(encoder, RecurrentEncoderConfig)
            and (encoder.cell, encoder.layers, encoder.width) == (decoder.cell, decoder.layers, decoder.width)
            and encoder.direction in ("forward", "backward")
            and not encoder.widths
        )
        if decoder.begin == "copy" and not alike:
            yield (
                "decoder.begin: 'copy' needs a recurrent encoder of one direction with the decoder's cell, layers "
                "and width"
            )
        if self.share_cells and not (alike and isinstance(decoder, FixedContextDecoderConfig)):
            yield (
                "share_cells: found true, expected a recurrent encoder of one direction and a fixed-context decoder "
                "with the same cell, layers and width"
            )
        elif self.share_cells and not (encoder.embedding == decoder.embedding > 0 and decoder.context == "start"):  # type: ignore[union-attr]
            yield 'share_cells: found true, expected equal embedding sizes above 0 and decoder.context = "start"'
        elif self.share_cells and (encoder.residual_from, encoder.norm) != (decoder.residual_from, False):  # type: ignore[union-attr]
            yield "share_cells: found true, expected equal residual_from and an encoder without norm"
        in_parts = self.truncate or getattr(self.forcing, "passes", 1) == 0
        if decoder.variational and decoder.dropout and in_parts:
            yield (
                "decoder.variational: found true, but truncate and word-by-word forcing run a sequence in parts, each "
                "with a mask of its own; expected false, or forcing.passes above 0"
            )
        if decoder.residual_from == 1 or decoder.residual_from > decoder.layers:
            yield (
                f"decoder.residual_from: found {decoder.residual_from}, expected 0 or from 2 to the number of layers "
                f"({decoder.layers})"
            )


class EncoderDecoder(nn.Module):
    """Reads a source, writes a target one token after another."""

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
        """The last `tags` words of the source vocabulary are tags (FIELD G10); `space` is the token between words."""
        super().__init__()
        self.config = config
        self.steps_before = 0  # training steps, for schedules within the model
        ties = TIES[config.tie]
        self.first_tag = source_vocabulary - tags
        assert self.first_tag == target_vocabulary or 0 not in ties[1:], "tied tables need one vocabulary"
        self.space = space
        source = build_embedding(source_vocabulary, config.encoder.embedding, PAD, space)
        if tags and isinstance(source, TokenEmbedding):
            source.first_tag = self.first_tag
        target: Embedding = source
        if ties[1] == 1:
            target = build_embedding(target_vocabulary, config.decoder.embedding, PAD)
        self.encoder = ENCODERS[type(config.encoder)](config.encoder, source)
        self.decoder = DECODERS[type(config.decoder)](config.decoder, target, self.encoder.width)
        layer = FirstRows if tags else nn.Linear  # a table shared with the source ends in tags: they are not written
        self.output = layer(self.decoder.width, target_vocabulary, bias=config.output_bias)
        self.costs = CrossEntropy()
        if config.output_bias:
            nn.init.zeros_(self.output.bias)
        if ties[2] == 2:
            nn.init.normal_(self.output.weight, std=self.decoder.width**-0.5)
        else:
            table = (source, target)[ties[2]]
            assert isinstance(table.weight, nn.Parameter)
            self.output.weight = table.weight
        if getattr(config.decoder, "begin", "") == "copy":
            assert isinstance(self.encoder, RecurrentEncoder)
            self.encoder.keep_states()
        if config.share_cells:
            assert isinstance(self.encoder, RecurrentEncoder)
            assert isinstance(self.decoder, FixedContextDecoder)
            self.decoder.stack.cells = self.encoder.cells()

    @property
    def max_positions(self) -> int | None:
        """Most tokens it can write; None: any number."""
        return self.decoder.max_positions

    @property
    def has_unused_parameters(self) -> bool:
        """Whether a step may leave some parameters without gradients: a fixed context leaves the memory unread."""
        return isinstance(self.decoder, FixedContextDecoder)

    @property
    def graph_blockers(self) -> list[str]:
        """Why a training step cannot be captured and repeated by the GPU; empty where it can."""
        found = []
        if not isinstance(self.config.forcing, TeacherForcingConfig):
            found.append(f"model.forcing {self.config.forcing.kind!r} changes from step to step")
        if isinstance(self.config.encoder, CharacterWordsConfig):
            found.append("model.encoder 'character-words' counts the words of a batch")
        return found

    def set_step(self, step: int) -> None:
        """Tell the model how many training steps lie behind it."""
        self.steps_before = step

    def encode(self, source: Tensor, mask: Tensor) -> Memory:
        """Read sources (B, S)."""
        if self.training:
            share = self.config.word_dropout
            source = drop_words(source, share, UNK, keep_below=4, keep_from=self.first_tag, keep=self.space)
        return self.encoder(source, mask)

    def _hidden(self, inputs: Tensor, state: State) -> Tensor:
        """What the output layer sees of inputs (N, T) fed as they stand: (N, T, D)."""
        if not self.config.truncate:
            if isinstance(self.decoder, TransformerDecoder):
                state = self.decoder.once(state)
            return self.decoder(inputs, state)[0]
        parts = []
        for part in torch.split(inputs, self.config.truncate, 1):
            hidden, state = self.decoder(part, state)
            parts.append(hidden)
            state = state.detach()
        return torch.cat(parts, 1)

    def _truth(self, target: Tensor) -> Tensor:
        """The decoder's inputs under teacher forcing (FIELD G1): <sos> and all tokens but the last."""
        inputs = torch.cat([target.new_full((target.shape[0], 1), SOS), target[:, :-1]], 1)
        return drop_words(inputs, self.config.word_dropout, UNK, keep_below=4) if self.training else inputs

    def _mixed(self, truth: Tensor, state: State, share: float, passes: int) -> Tensor:
        """Hidden vectors where each input is the truth with probability `share`, else the model's own draw (G2)."""
        keep = (torch.rand(truth.shape, device=truth.device) < share) | (truth == PAD)
        keep[:, 0] = True  # <sos>

        def draw(hidden: Tensor) -> Tensor:
            with torch.no_grad():
                chances = full_precision(self.output(hidden)).softmax(-1)
                return torch.multinomial(chances.flatten(0, 1), 1).view(hidden.shape[:2])

        if passes:
            inputs = truth
            for _ in range(passes):
                with torch.no_grad():
                    own = draw(self._hidden(inputs, state))
                inputs = torch.where(keep, truth, own.roll(1, 1))
            return self._hidden(inputs, state)
        parts: list[Tensor] = []
        for place in range(truth.shape[1]):
            token = truth[:, place : place + 1]
            if place:
                token = torch.where(keep[:, place : place + 1], token, draw(parts[-1]))
                if self.config.truncate and place % self.config.truncate == 0:
                    state = state.detach()
            hidden, state = self.decoder(token, state)
            parts.append(hidden)
        return torch.cat(parts, 1)

    def logits(self, batch: Batch) -> Tensor:
        """Scores of every target token given the true ones before it; (B, T, V)."""
        out: Tensor = self.output(self._hidden(self._truth(batch.target), self.start(batch)))
        return out

    def forward(self, batch: Batch) -> Loss:
        """Summed cross-entropy over real target tokens (FIELD G3, G5) and how many there are."""
        config, target = self.config, batch.target
        state = self.start(batch)
        if batch.candidates is not None:
            return self._expected_risk(batch, batch.candidates, state)
        share = config.forcing.truth(self.steps_before) if self.training else 1.0
        if isinstance(config.forcing, TeacherForcingConfig) or share >= 1.0:
            hidden = self._hidden(self._truth(target), state)
        else:
            hidden = self._mixed(self._truth(target), state, share, config.forcing.passes)
        if self.training:
            total = summed_loss(config.softmax, hidden, target, self.output, config.label_smoothing, self.costs)
        else:
            total = summed_loss(FullSoftmaxConfig(), hidden, target, self.output, 0.0, self.costs)
        return Loss(total, (target != PAD).sum())

    def _expected_risk(self, batch: Batch, candidates: RiskCandidates, state: State) -> Loss:
        """Σ_y Q(y) Δ(y) over the candidates of each source, Q ∝ p(y)^α (FIELD G6; Shen et al. 2016 eq. 8)."""
        sources, count = candidates.costs.shape
        hidden = self._hidden(self._truth(batch.target), state.expand(count))
        losses = LOSSES[FullSoftmaxConfig](FullSoftmaxConfig(), hidden, batch.target, self.output, 0.0)
        none = candidates.costs.isinf()
        scores = -losses.sum(1).view(sources, count) * candidates.alpha
        shares = scores.masked_fill(none, -torch.inf).softmax(1)
        return Loss((shares * candidates.costs.masked_fill(none, 0.0)).sum(), (batch.target != PAD).sum())

    def start(self, batch: Batch, capacity: int | None = None) -> State:
        """Read the sources and stand before the first target token."""
        return self.decoder.start(self.encode(batch.source, batch.source_mask), capacity)

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """Read tokens (N,) or (N, P); give log-probabilities (N, V) of the next one."""
        scores, state = self.scores(tokens, state)
        return log_probabilities(scores), state

    def scores(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """The same before the softmax."""
        hidden, state = self.decoder(tokens if tokens.dim() == 2 else tokens[:, None], state)
        return self.output(hidden[:, -1]), state

    def read(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """Read tokens (N, P); give log-probabilities (N, P, V) of what follows each of them."""
        hidden, state = self.decoder(tokens, state)
        return log_probabilities(self.output(hidden)), state

    def score(self, batch: Batch) -> TokenScores:
        """Log-probability of every target token, and whether it was the first choice."""
        logits = self.logits(batch)
        mask = batch.target != PAD
        chosen = full_precision(logits).log_softmax(-1).gather(-1, batch.target[:, :, None])[:, :, 0]
        return TokenScores(
            log_probabilities=chosen * mask,
            correct=(logits.argmax(-1) == batch.target) & mask,
            mask=mask,
        )
