"""Character-aware word encoder (Kim et al. 2016): a character CNN gives one vector per word to any encoder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor, nn

from dragoman.base.config import Range, Share, Size, setting
from dragoman.data.tokenizers import EOS, PAD
from dragoman.models.contracts import Encoder, Memory
from dragoman.models.encoders.recurrent import RecurrentEncoderConfig
from dragoman.models.encoders.sequence import SequenceEncoderConfig, encoder_of_vectors
from dragoman.models.layers.convolution import CharacterConvolution
from dragoman.models.layers.embeddings import TokenEmbedding


@dataclass(frozen=True)
class CharacterWordsConfig:
    """A character CNN over the words of the source, then an encoder of words; no word is out of vocabulary."""

    kind: ClassVar[str] = "character-words"
    embedding: Size = setting(16, help="size of the character embeddings")
    kernels: tuple[Size, ...] = setting((1, 2, 3, 4, 5, 6), help="kernel sizes of the convolutions, in characters")
    filters: tuple[Size, ...] = setting((25, 50, 75, 100, 125, 150), help="output channels of each kernel size")
    highways: Annotated[int, Range(0)] = setting(1, help="highway layers on the word vector")
    longest_word: Size = setting(64, help="characters read of each word; the rest is cut off")
    hashed: Annotated[int, Range(0)] = setting(
        0, help="rows of a table of learned word vectors, indexed by a hash of the word; 0: none"
    )
    hashed_forms: tuple[Literal["word", "folded", "beginning", "ending"], ...] = setting(
        ("word",),
        help="what is hashed: the word as written, in lower case (folded), its first or its last three letters",
    )
    hashed_dropout: Share = setting(0.0, help="share of words whose hashed vector is dropped during training")
    dropout: Share = setting(0.0, help="dropout on the word vectors")
    inner: SequenceEncoderConfig = setting(RecurrentEncoderConfig(), help="encoder of the word vectors")

    def problems(self) -> Iterator[str]:
        if not self.kernels:
            yield "kernels: found none, expected at least one"
        elif len(self.filters) != len(self.kernels):
            yield f"filters: found {len(self.filters)} numbers, expected one for each of {len(self.kernels)} kernels"
        if self.inner.embedding == 0:
            yield "inner.embedding: found 0 (one-hot tokens), expected a size: the inner encoder reads vectors"
        if not self.hashed_forms or len(set(self.hashed_forms)) < len(self.hashed_forms):
            yield f"hashed_forms: found {list(self.hashed_forms)}, expected at least one and no duplicates"
        if self.hashed_dropout and not self.hashed:
            yield f"hashed_dropout: found {self.hashed_dropout}, expected 0 without hashed vectors"


def split_words(source: Tensor, mask: Tensor, space: int | None, longest: int, first_tag: int | None = None) -> Tensor:
    """Split characters (B, S) at spaces into words (B, W, L), padded with PAD.

    Any number of spaces separates two words. <eos> and language tags (ids from `first_tag`) are words of their own.
    """
    inside = mask if space is None else mask & (source != space)
    alone = source == EOS if first_tag is None else (source == EOS) | (source >= first_tag)
    before = torch.cat([torch.zeros_like(inside[:, :1]), (inside & ~alone)[:, :-1]], 1)
    begins = inside & (~before | alone)
    word = begins.cumsum(1) - 1  # (B, S) index of the character's word
    position = torch.arange(source.shape[1], device=source.device).expand_as(source)
    offset = position - torch.where(begins, position, 0).cummax(1).values  # index of the character in its word
    kept = inside & (offset < longest)
    words = max(1, int(begins.sum(1).max()))
    letters = max(1, int(torch.where(kept, offset + 1, 0).max()))
    # All other characters go to one extra cell, which is cut off.
    cell = torch.where(kept, word * letters + offset, words * letters)
    table = source.new_full((source.shape[0], words * letters + 1), PAD)
    return table.scatter(1, cell, source)[:, :-1].reshape(-1, words, letters)


class HashedWords(nn.Module):
    """Hash embeddings of whole words, without a vocabulary; the table is initialised with zeros.

    A word not seen in training adds zero, or the vector of a word with the same hash. Other forms of the word (lower
    case, prefix, suffix) may add a vector each. Dropout makes the characters learn to do without.
    """

    powers: Tensor  # (longest + 1,)

    def __init__(
        self, rows: int, width: int, dropout: float, forms: Sequence[str] = ("word",), longest: int = 64
    ) -> None:
        super().__init__()
        self.rows, self.dropout, self.forms = rows, dropout, tuple(forms)
        self.weight = nn.Parameter(torch.zeros(rows, width))
        powers = torch.tensor([pow(BASE, exponent, PRIME) for exponent in range(longest + 1)])
        self.register_buffer("powers", powers, persistent=False)

    def forward(self, letters: Tensor, folded: Tensor | None = None) -> Tensor:
        """Characters (B, W, L) → (B, W, D); `folded` (V,) maps every character to lower case."""
        total: Tensor | None = None
        for form in self.forms:
            hashes = hash_of(form_of(form, letters, folded), FORMS.index(form), self.powers)
            vectors = nn.functional.embedding(hashes % self.rows, self.weight)
            if self.training and self.dropout:
                vectors = vectors * (torch.rand_like(vectors[:, :, :1]) >= self.dropout)
            total = vectors if total is None else total + vectors
        assert total is not None
        return total


FORMS = ("word", "folded", "beginning", "ending")
AFFIX = 3  # characters of a prefix or suffix
BASE, PRIME = 1_000_003, 2_147_483_647  # of the hash; products of letters and powers fit into 64 bits


def form_of(form: str, letters: Tensor, folded: Tensor | None) -> Tensor:
    """Characters (B, W, L) of a form of each word, padded with PAD."""
    if form == "word":
        return letters
    if folded is not None:
        letters = folded[letters]
    if form == "beginning":
        return letters[:, :, :AFFIX]
    if form == "ending":
        index = torch.arange(letters.shape[2], device=letters.device)
        return letters.masked_fill(index < (letters != PAD).sum(2, keepdim=True) - AFFIX, PAD)
    return letters


def hash_of(letters: Tensor, salt: int, powers: Tensor) -> Tensor:
    """Polynomial hash (B, W) modulo a prime, with the salt as the first letter; padding does not change it.

    `powers` are those of the base. All letters at once: a loop over them would fix the longest word of an exported
    graph.
    """
    real = letters != PAD
    count = real.sum(2)
    right = count[:, :, None] - real.cumsum(2)  # letters to the right of each
    return (salt * powers[count] + (letters * powers[right] % PRIME * real).sum(2)) % PRIME


class CharacterWordsEncoder(Encoder):
    """A character CNN and an encoder of words; the memory has one entry per word."""

    entries_are_tokens = False
    reads_lower_case = True
    graph_blockers = ("model.encoder 'character-words' counts the words of a batch on the CPU",)
    inner: Encoder

    def __init__(self, config: CharacterWordsConfig, embedding: TokenEmbedding) -> None:
        super().__init__()
        self.embedding, self.longest = embedding, config.longest_word
        self.characters = CharacterConvolution(embedding.width, config.kernels, config.filters, config.highways)
        self.project = nn.Linear(self.characters.width, config.inner.embedding)
        self.hashed = (
            HashedWords(
                config.hashed, config.inner.embedding, config.hashed_dropout, config.hashed_forms, config.longest_word
            )
            if config.hashed
            else None
        )
        self.dropout = nn.Dropout(config.dropout)
        self.inner = encoder_of_vectors(config.inner)
        self.width = self.inner.width

    def forward(self, source: Tensor, mask: Tensor) -> Memory:
        """Characters (B, S), mask (B, S), or those of words (B, W, L) without a use for the mask → memory of (B, W).

        Exported graphs read words: how many there are follows from the characters, which no graph can express.
        """
        letters = source
        if source.dim() == 2:
            letters = split_words(source, mask, self.embedding.space, self.longest, self.embedding.first_tag)
        real = letters != PAD
        words = self.characters(self.embedding(letters).flatten(0, 1), real.flatten(0, 1))
        words = self.project(self.dropout(words)).view(*letters.shape[:2], -1)  # (B, W, D)
        if self.hashed is not None:
            words = words + self.hashed(letters, self.embedding.folded)
        return self.inner(words, real[:, :, 0])
