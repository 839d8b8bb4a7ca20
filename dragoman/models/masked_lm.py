"""Masked language models (FIELD A6, K2; Devlin et al. 2019): what stood where a token was hidden.

A row shows 85 % of its tokens as they are. Of the others, 80 % are hidden behind [MASK], 10 % are exchanged for any
token and 10 % left, and all of them are to be told. How many follows from the row's length alone, and the places are
drawn from torch's generator: shapes are the same in every step, and a GPU never has to wait. In validation they follow
from the row itself, whatever stands beside it, so that validations compare.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman.config.settings import Range, Share, setting
from dragoman.data.batch import Batch
from dragoman.data.bptt import Segment
from dragoman.data.tokenizers.base import EOS, PAD, SPECIALS
from dragoman.layers.embeddings import TokenEmbedding
from dragoman.layers.feed_forward import ACTIVATIONS
from dragoman.layers.linear import FirstRowsLinear, Linear, glorot
from dragoman.models.contracts import Loss, Memory, TokenScores
from dragoman.models.encoders.bert import BertEncoder, BertEncoderConfig
from dragoman.models.heads.softmax import CrossEntropy, full_precision


@dataclass(frozen=True)
class MaskedLMConfig:
    """An encoder that learns to tell hidden tokens, for others to start from."""

    kind: ClassVar[str] = "masked-lm"
    share: Annotated[float, Range(0.0, 1.0, exclusive_minimum=True)] = setting(
        0.15, help="share of the tokens that are to be told, at least one of a row"
    )
    masked: Annotated[float, Range(0.0, 1.0)] = setting(0.8, help="of these, the share hidden behind [MASK]")
    exchanged: Annotated[float, Range(0.0, 1.0)] = setting(0.1, help="and the share exchanged for any token")
    label_smoothing: Share = setting(0.0, help="share of the target probability spread over the vocabulary")
    pairs: bool = setting(
        False, help="rows are a text and the one after it; half the seconds are exchanged, and that is to be told too"
    )
    encoder: BertEncoderConfig = setting(BertEncoderConfig(), help="what reads the rows")

    def problems(self) -> Iterator[str]:
        """What the fields cannot say one by one."""
        if self.masked + self.exchanged > 1.0:
            most = 1 - self.masked
            yield f"exchanged: found {self.exchanged}, expected at most {most:g} beside masked = {self.masked}"
        if self.pairs and self.encoder.texts < 2:
            yield f"pairs: found true with encoder.texts = {self.encoder.texts}, expected at least 2"


class MaskedBatch(NamedTuple):
    """A batch with some of its tokens hidden."""

    source: Tensor  # (B, S) what is shown
    hidden: Tensor  # (B, S) where [MASK] is shown in place of it
    places: Tensor  # (B, K) what is to be told
    target: Tensor  # (B, K) what stood there; <pad>: no such place


def num_masked(lengths: NDArray[np.int64], share: float) -> NDArray[np.int64]:
    """How many tokens of rows with so many of text, without <eos>, are to be told."""
    wanted: NDArray[np.int64] = np.floor(lengths * share + 0.5).astype(np.int64)
    return np.minimum(np.maximum(wanted, 1), lengths)


def num_masked_tensor(lengths: Tensor, share: float) -> Tensor:
    """The same of tensors."""
    wanted = (lengths.double() * share + 0.5).floor().long()
    return torch.minimum(wanted.clamp(min=1), lengths)


def max_masked(width: int, share: float) -> int:
    """How many places are told of the longest row of this width."""
    return max(1, int(width * share + 0.5))


class Draw(Protocol):
    """Where chance comes from."""

    def __call__(self, number: int, width: int, /) -> Tensor:
        """(B, width) in [0, 1); each number is another draw."""


GOLDEN = -7046029254386353131  # 2⁶⁴ / φ as a signed number


def scrambled(bits: Tensor) -> Tensor:
    """Every bit of the result depends on every bit of a whole number (splitmix64; Steele et al. 2014)."""

    def shifted(x: Tensor, by: int) -> Tensor:
        return (x >> by) & ((1 << (64 - by)) - 1)  # the sign is a bit like any other

    bits = bits + GOLDEN
    bits = (bits ^ shifted(bits, 30)) * -4658895280553007687
    bits = (bits ^ shifted(bits, 27)) * -7723592293110705685
    return bits ^ shifted(bits, 31)


def row_keys(rows: Tensor, mask: Tensor) -> Tensor:
    """A number for every row (B,) that follows from its real tokens and their places alone."""
    places = torch.arange(rows.shape[1], device=rows.device)
    return (scrambled(rows * GOLDEN + scrambled(places)) * mask).sum(1)


def fixed_noise(keys: Tensor, number: int, width: int) -> Tensor:
    """Numbers in [0, 1) that follow from a key, the number of the draw and their place: (B, width)."""
    places = torch.arange(width, device=keys.device) + (number << 32)
    bits = scrambled(keys[:, None] ^ scrambled(places))
    return ((bits >> 11) & ((1 << 53) - 1)).double() / float(1 << 53)


class MaskedLM(nn.Module):
    """Reads rows with hidden tokens and tells what stood there."""

    def __init__(self, config: MaskedLMConfig, vocabulary: int) -> None:
        super().__init__()
        self.config, self.vocabulary = config, vocabulary
        width = config.encoder.width
        embedding = TokenEmbedding(vocabulary, width, PAD)
        self.encoder = BertEncoder(config.encoder, embedding)
        # Beside the table, which then fits tasks that know no [MASK].
        self.mask_vector = nn.Parameter(torch.randn(width) * width**-0.5)
        self.transform = Linear(width, width)
        self.activation = ACTIVATIONS[config.encoder.activation]
        self.transform_norm = nn.LayerNorm(width)
        self.output = FirstRowsLinear(width, vocabulary)
        self.output.weight = embedding.weight
        self.cross_entropy = CrossEntropy()
        nn.init.zeros_(self.output.bias)
        glorot(self.transform)
        self.pool = Linear(width, width) if config.pairs else None
        self.related = Linear(width, 2) if config.pairs else None
        for linear in (self.pool, self.related):
            if linear is not None:
                glorot(linear)

    # ------------------------------------------------------------------ what every whole has

    @property
    def max_positions(self) -> int | None:
        """It writes nothing."""
        return None

    @property
    def has_unused_parameters(self) -> bool:
        """Every step uses all parameters."""
        return False

    @property
    def graph_blockers(self) -> list[str]:
        """Why a training step cannot be captured and repeated by the GPU; nothing stands in the way."""
        return []

    def set_step(self, step: int) -> None:
        """Nothing here follows a schedule."""

    # ------------------------------------------------------------------ hiding

    def hide(self, source: Tensor, mask: Tensor, wanted: Tensor | None = None) -> MaskedBatch:
        """Draw what is to be told: of every row as many as `told` says, or `wanted` (B,) has."""
        config, device = self.config, source.device
        text = mask & (source != EOS)  # padding and the end of a text are never hidden
        count = text.sum(1)
        slots = max_masked(source.shape[1], config.share)
        if wanted is None:
            wanted = num_masked_tensor(count, config.share)
        else:
            slots = min(slots + 1, source.shape[1])  # of two texts each may be rounded up
        draw = self._draw(source, mask)
        drawn = draw(0, source.shape[1]).masked_fill(~text, 2.0)
        places = drawn.topk(slots, largest=False, sorted=True).indices  # (B, K), sorted: what is no text comes last
        real = torch.arange(slots, device=device) < wanted[:, None]
        target = source.gather(1, places).masked_fill(~real, PAD)
        fate = draw(1, slots)
        masked = real & (fate < config.masked)
        exchanged = real & (fate >= config.masked) & (fate < config.masked + config.exchanged)
        first = len(SPECIALS)
        others = first + (draw(2, slots) * max(1, self.vocabulary - first)).long()
        others = others.clamp(max=self.vocabulary - 1)
        shown = source.scatter(1, places, torch.where(exchanged, others, source.gather(1, places)))
        return MaskedBatch(shown, torch.zeros_like(mask).scatter(1, places, masked), places, target)

    def _draw(self, rows: Tensor, mask: Tensor) -> Draw:
        """While training chance, which every step seeds; else what follows from each row alone."""
        if self.training:
            return lambda number, width: torch.rand(rows.shape[0], width, device=rows.device)
        key = row_keys(rows, mask)
        return lambda number, width: fixed_noise(key, number, width)

    # ------------------------------------------------------------------ training

    def logits(self, memory: Memory, places: Tensor) -> Tensor:
        """Scores of what stands at places (B, K) of a memory: (B, K, V)."""
        seen = memory.values.gather(1, places[:, :, None].expand(-1, -1, memory.values.shape[2]))
        out: Tensor = self.output(self.transform_norm(self.activation(self.transform(seen))))
        return out

    def _rows(self, batch: Batch | Segment) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """What is read (B, S); for pairs whether the second text is the one that follows, and how much is told (B,).

        Of every text as much is told as if it stood alone, and every second text stands in one row: so exchanging them
        changes no count.
        """
        if not self.config.pairs:
            return batch.source, None, None
        first, second = batch.source, batch.target
        partners = partners_of(self._draw(first, first != PAD)(3, 1)[:, 0] >= 0.5)
        follows = partners == torch.arange(len(partners), device=partners.device)
        second = second[partners]
        texts = ((part != PAD) & (part != EOS) for part in (first, second))
        wanted = sum(num_masked_tensor(text.sum(1), self.config.share) for text in texts)
        assert isinstance(wanted, Tensor)
        return joined(first, second), follows, wanted

    def _told(self, batch: Batch | Segment) -> tuple[MaskedBatch, Tensor, Tensor | None, Tensor | None]:
        """What was hidden, the scores for it, and for pairs what is thought of them and what is true."""
        source, follows, wanted = self._rows(batch)
        mask = source != PAD
        masking = self.hide(source, mask, wanted)
        memory = self.encoder(masking.source, mask, masking.hidden, self.mask_vector)
        related = None
        if self.pool is not None and self.related is not None:
            related = self.related(torch.tanh(self.pool(memory.final[0])))  # (B, 2)
        return masking, self.logits(memory, masking.places), related, follows

    def forward(self, batch: Batch | Segment) -> Loss:
        """Summed cross-entropy of what was to be told, and how much that was.

        The loss of a pair is weighed with the tokens to be told of its row: the sum stays one over tokens.
        """
        masking, logits, related, follows = self._told(batch)
        smoothing = self.config.label_smoothing if self.training else 0.0
        total = self.cross_entropy(logits, masking.target, smoothing).sum()
        if related is not None and follows is not None:
            losses = F.cross_entropy(full_precision(related), follows.long(), reduction="none")
            total = total + (losses * (masking.target != PAD).sum(1)).sum()
        return Loss(total, (masking.target != PAD).sum())

    # ------------------------------------------------------------------ asking

    def score(self, batch: Batch | Segment) -> TokenScores:
        """Of the tokens to be told, in any order; the same ones whenever the same batch is scored."""
        return self._scores(*self._told(batch)[:2])

    def relations(self, batch: Batch | Segment) -> tuple[TokenScores, Tensor, Tensor]:
        """The same for pairs, with their summed loss and of how many it was known whether one follows the other."""
        masking, logits, related, follows = self._told(batch)
        assert related is not None
        assert follows is not None
        losses = F.cross_entropy(full_precision(related), follows.long(), reduction="none")
        weighed = (losses * (masking.target != PAD).sum(1)).sum()
        return self._scores(masking, logits), weighed, (related.argmax(1) == follows.long()).sum()

    @staticmethod
    def _scores(masking: MaskedBatch, logits: Tensor) -> TokenScores:
        mask = masking.target != PAD
        chosen = full_precision(logits).log_softmax(-1).gather(-1, masking.target[:, :, None])[:, :, 0]
        return TokenScores(chosen * mask, (logits.argmax(-1) == masking.target) & mask, mask)

    def fill(self, source: Tensor, mask: Tensor, hidden: Tensor) -> Tensor:
        """Log-probabilities (B, S, V) of every place where those marked in `hidden` (B, S) are not shown."""
        memory = self.encoder(source, mask, hidden, self.mask_vector)
        places = torch.arange(source.shape[1], device=source.device).expand_as(source)
        return full_precision(self.logits(memory, places)).log_softmax(-1)


def partners_of(chosen: Tensor) -> Tensor:
    """For every row (B,) the one it takes something from: the chosen ones take in a ring, the others keep their own."""
    rows = torch.arange(len(chosen), device=chosen.device)
    count, rank = chosen.sum(), chosen.cumsum(0) - 1
    ring = rows.new_zeros(len(chosen) + 1)  # the chosen rows in order; the last place is for all others
    ring = ring.scatter(0, torch.where(chosen, rank, len(chosen)), rows)
    return torch.where(chosen, ring[(rank - 1).remainder(count.clamp(min=1))], rows)


def joined(first: Tensor, second: Tensor) -> Tensor:
    """Rows of two sides as one, without padding between: (B, S), (B, T) → (B, S+T)."""
    lengths = (first != PAD).sum(1, keepdim=True)
    width = first.shape[1] + second.shape[1]
    places = torch.arange(width, device=first.device).expand(first.shape[0], -1)
    left = F.pad(first, (0, width - first.shape[1]), value=PAD)
    later = (places - lengths).clamp(min=0, max=second.shape[1] - 1)
    right = second.gather(1, later).masked_fill(places - lengths >= second.shape[1], PAD)
    return torch.where(places < lengths, left, right)
