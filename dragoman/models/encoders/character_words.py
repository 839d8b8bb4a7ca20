"""Characters in, words inside (FIELD F4, F5): one vector a word from its characters, Kim et al. 2016."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor, nn

from dragoman.config.settings import Range, Share, Size, setting
from dragoman.data.tokenizers.base import EOS, PAD
from dragoman.layers.convolution import CharacterConvolution
from dragoman.layers.embeddings import TokenEmbedding
from dragoman.models.contracts import Encoder, Memory
from dragoman.models.encoders.recurrent import RecurrentEncoderConfig
from dragoman.models.encoders.sequence import SequenceEncoderConfig, encoder_of_vectors


@dataclass(frozen=True)
class CharacterWordsConfig:
    """Source characters, cut at spaces into words, for an encoder of words; no word is ever unknown to it."""

    kind: ClassVar[str] = "character-words"
    embedding: Size = setting(16, help="size of the character embeddings")
    kernels: tuple[Size, ...] = setting((1, 2, 3, 4, 5, 6), help="characters that the convolutions see")
    filters: tuple[Size, ...] = setting((25, 50, 75, 100, 125, 150), help="outputs of each of these convolutions")
    highways: Annotated[int, Range(0)] = setting(1, help="highway layers on a word's vector")
    longest_word: Size = setting(64, help="characters beyond this many of a word are not read")
    hashed: Annotated[int, Range(0)] = setting(
        0, help="also a learned vector of each whole word, found by a hash of its characters among so many; 0: none"
    )
    hashed_forms: tuple[Literal["word", "folded", "beginning", "ending"], ...] = setting(
        ("word",),
        help="what of a word is hashed: as it stands, in lower case, its first and its last three letters",
    )
    hashed_dropout: Share = setting(0.0, help="share of words whose hashed vector is left out while training")
    dropout: Share = setting(0.0, help="on a word's vector")
    inner: SequenceEncoderConfig = setting(RecurrentEncoderConfig(), help="what reads the words' vectors")

    def problems(self) -> Iterator[str]:
        """What the fields cannot say one by one."""
        if not self.kernels:
            yield "kernels: found none, expected at least one"
        elif len(self.filters) != len(self.kernels):
            yield f"filters: found {len(self.filters)} numbers, expected one for each of {len(self.kernels)} kernels"
        if self.inner.embedding == 0:
            yield "inner.embedding: found 0, expected a size: words made of characters have no number of their own"
        if not self.hashed_forms or len(set(self.hashed_forms)) < len(self.hashed_forms):
            yield f"hashed_forms: found {list(self.hashed_forms)}, expected at least one, each once"
        if self.hashed_dropout and not self.hashed:
            yield f"hashed_dropout: found {self.hashed_dropout}, expected 0 without hashed vectors"


def spelled(source: Tensor, mask: Tensor, space: int | None, longest: int, first_tag: int | None = None) -> Tensor:
    """The characters of every word: (B, S) → (B, W, L), PAD where there is none.

    Spaces belong to no word, however many there are and wherever they stand; <eos> is a word of its own, and so is a
    tag, whose ids start at `first_tag`.
    """
    inside = mask if space is None else mask & (source != space)
    alone = source == EOS if first_tag is None else (source == EOS) | (source >= first_tag)
    before = torch.cat([torch.zeros_like(inside[:, :1]), (inside & ~alone)[:, :-1]], 1)
    begins = inside & (~before | alone)
    word = begins.cumsum(1) - 1  # (B, S) which word a character is in
    here = torch.arange(source.shape[1], device=source.device).expand_as(source)
    place = here - torch.where(begins, here, 0).cummax(1).values  # where it stands in its word
    kept = inside & (place < longest)
    words = max(1, int(begins.sum(1).max()))
    letters = max(1, int(torch.where(kept, place + 1, 0).max()))
    # What is not kept is thrown into one cell too many.
    cell = torch.where(kept, word * letters + place, words * letters)
    table = source.new_full((source.shape[0], words * letters + 1), PAD)
    return table.scatter(1, cell, source)[:, :-1].reshape(-1, words, letters)


class HashedWords(nn.Module):
    """A vector of each whole word, without a vocabulary: words are hashed into a table that begins with zeros.

    So a word that training never saw adds nothing, or what a word adds that shares its row. Other forms of a word may
    add a vector each: lower case, beginning, ending. While training some are left out, so that the characters learn to
    do without.
    """

    def __init__(self, rows: int, width: int, dropout: float, forms: Sequence[str] = ("word",)) -> None:
        super().__init__()
        self.rows, self.dropout, self.forms = rows, dropout, tuple(forms)
        self.weight = nn.Parameter(torch.zeros(rows, width))

    def forward(self, letters: Tensor, folded: Tensor | None = None) -> Tensor:
        """Characters (B, W, L), PAD after a word's last → (B, W, D); `folded` (V,): every character in lower case."""
        found: Tensor | None = None
        for form in self.forms:
            number = hash_of(form_of(form, letters, folded), salt=FORMS.index(form))
            part = nn.functional.embedding(number % self.rows, self.weight)
            if self.training and self.dropout:
                part = part * (torch.rand_like(part[:, :, :1]) >= self.dropout)
            found = part if found is None else found + part
        assert found is not None
        return found


FORMS = ("word", "folded", "beginning", "ending")
PART = 3  # characters of a beginning or an ending


def form_of(form: str, letters: Tensor, folded: Tensor | None) -> Tensor:
    """Characters (B, W, L) of a form, PAD elsewhere."""
    if form == "word":
        return letters
    if folded is not None:
        letters = folded[letters]
    if form == "beginning":
        return letters[:, :, :PART]
    if form == "ending":
        place = torch.arange(letters.shape[2], device=letters.device)
        return letters.masked_fill(place < (letters != PAD).sum(2, keepdim=True) - PART, PAD)
    return letters


def hash_of(letters: Tensor, salt: int) -> Tensor:
    """(B, W): a polynomial modulo a prime, not modulo 2^64: Horner's rule, where padding leaves the number as it is."""
    number = torch.full_like(letters[:, :, 0], salt)
    for place in range(letters.shape[2]):
        letter = letters[:, :, place]
        number = torch.where(letter == PAD, number, (number * 1_000_003 + letter) % 2_147_483_647)
    return number


class CharacterWordsEncoder(nn.Module):
    """Characters to the memory that another encoder makes of their words: one entry a word."""

    inner: Encoder

    def __init__(self, config: CharacterWordsConfig, embedding: TokenEmbedding) -> None:
        super().__init__()
        self.embedding, self.longest = embedding, config.longest_word
        self.characters = CharacterConvolution(embedding.width, config.kernels, config.filters, config.highways)
        self.project = nn.Linear(self.characters.width, config.inner.embedding)
        self.hashed = (
            HashedWords(config.hashed, config.inner.embedding, config.hashed_dropout, config.hashed_forms)
            if config.hashed
            else None
        )
        self.dropout = nn.Dropout(config.dropout)
        self.inner = encoder_of_vectors(config.inner)
        self.width = self.inner.width

    def forward(self, source: Tensor, mask: Tensor) -> Memory:
        """Characters (B, S), mask (B, S) → memory of (B, W)."""
        letters = spelled(source, mask, self.embedding.space, self.longest, self.embedding.first_tag)  # (B, W, L)
        real = letters != PAD
        words = self.characters(self.embedding(letters).flatten(0, 1), real.flatten(0, 1))
        words = self.project(self.dropout(words)).view(*letters.shape[:2], -1)  # (B, W, D)
        if self.hashed is not None:
            words = words + self.hashed(letters, self.embedding.folded)
        return self.inner(words, real[:, :, 0])
