"""Searching among the target tokens that a source is likely to need (Jean et al. 2015, section 3.3).

A shortlist knows for every source token its likeliest translations, and the target tokens that are always allowed.
The output layer then computes the tokens that the sources of a batch need together, and each source sees its own of
them alone: so a neighbour changes nothing. Within a search tokens are numbered by their place in that list, which
begins with the special tokens as every vocabulary does.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from dragoman.data.batch import Batch
from dragoman.data.tokenizers.base import EOS, Tokenizer
from dragoman.decoding.hypothesis import Hypothesis
from dragoman.decoding.methods import Request
from dragoman.decoding.search import in_steps
from dragoman.errors import ConfigError, DataError
from dragoman.files import written_whole
from dragoman.models.encoder_decoder import EncoderDecoder
from dragoman.models.heads.softmax import log_probabilities

NAME = "shortlist.safetensors"  # in a run folder
MAKER = "dragoman shortlist RUN"
SPECIAL = EOS + 1  # padding, unknown, start and end: first in every vocabulary


class Narrow(NamedTuple):
    """Where a decoder stands, and which listed tokens each source may use."""

    inner: Any
    listed: Tensor  # (B, K)

    def select(self, rows: Tensor) -> Narrow:
        """Keep, drop or repeat whole sources."""
        return Narrow(self.inner.select(rows), self.listed[rows])

    def reorder(self, rows: Tensor) -> Narrow:
        """Exchange hypotheses within their source."""
        return Narrow(self.inner.reorder(rows), self.listed)

    def expand(self, hypotheses: int) -> Narrow:
        """Give every source this many copies of its one hypothesis."""
        return Narrow(self.inner.expand(hypotheses), self.listed)


class NarrowWriter:
    """A model that writes places in a list of words in place of token ids."""

    def __init__(self, model: EncoderDecoder, words: Tensor, listed: Tensor) -> None:
        """words (K,), listed (B, K)."""
        self.model, self.words, self.listed = model, words, listed
        output = model.output
        self.turned = output.weight.detach()[words].t().contiguous()  # (D, K): a few rows multiply faster with it
        self.bias = None if output.bias is None else output.bias.detach()[words]

    @property
    def max_positions(self) -> int | None:
        """Most tokens it can write; None: any number."""
        return self.model.max_positions

    def start(self, batch: Batch) -> Narrow:
        """Read the sources; the state before the first target token."""
        return Narrow(self.model.start(batch), self.listed)

    def step(self, tokens: Tensor, state: Narrow) -> tuple[Tensor, Narrow]:
        """Read tokens (N,) or (N, P); give log-probabilities (N, K) of the next one."""
        found, after = self._read(tokens if tokens.dim() == 2 else tokens[:, None], state, last=True)
        return found[:, 0], after

    def read(self, tokens: Tensor, state: Narrow) -> tuple[Tensor, Narrow]:
        """Read tokens (N, P); give log-probabilities (N, P, K) of what follows each of them."""
        return self._read(tokens, state, last=False)

    def _read(self, tokens: Tensor, state: Narrow, *, last: bool) -> tuple[Tensor, Narrow]:
        hidden, inner = self.model.decoder(self.words[tokens], state.inner)
        hidden = hidden[:, -1:] if last else hidden
        scores = hidden @ self.turned
        scores = scores if self.bias is None else scores + self.bias  # (N, P, K)
        sources = state.listed.shape[0]
        fan = scores.view(sources, -1, scores.shape[-1]).masked_fill(~state.listed[:, None], float("-inf"))
        return log_probabilities(fan).view_as(scores), Narrow(inner, state.listed)


class Shortlist:
    """A way of searching: greedy or by beam, among the listed tokens."""

    def __init__(self, always: Tensor, likely: Tensor, vocabulary: int) -> None:
        """always (A,) target tokens, likely (source vocabulary, L); the target vocabulary has so many tokens."""
        special = torch.arange(SPECIAL)
        self.always: Tensor = torch.cat([special, always]).unique()  # type: ignore[no-untyped-call]
        self.likely, self.vocabulary = likely, vocabulary

    def listed(self, source: Tensor) -> Tensor:
        """Which target tokens sources (B, S) may use: (B, V)."""
        found = torch.zeros(source.shape[0], self.vocabulary, dtype=torch.bool, device=source.device)
        found[:, self.always.to(source.device)] = True
        found.scatter_(1, self.likely.to(source.device)[source].flatten(1), True)
        return found

    def search(self, request: Request) -> list[list[Hypothesis]]:
        """At most `request.n_best` hypotheses for every source, best first; scores are within a source's own list."""
        model = writer_of(request.model)
        listed = self.listed(request.batch.source)
        words = listed.any(0).nonzero()[:, 0]  # (K,), the special tokens first
        writer = NarrowWriter(model, words, listed[:, words])
        found = in_steps(writer, request.batch, request.limits, request.config, request.n_best)
        names = words.tolist()
        return [
            [one._replace(tokens=tuple(names[token] for token in one.tokens)) for one in hypotheses]
            for hypotheses in found
        ]

    # Files

    def save(self, path: Path, source: Tokenizer, target: Tokenizer) -> None:
        """Write a file that knows which vocabularies it is for."""
        about = {"source": source.fingerprint(), "target": target.fingerprint()}
        with written_whole(path) as beside:
            save_file({"always": self.always, "likely": self.likely.contiguous()}, beside, about)

    @staticmethod
    def load(path: Path, source: Tokenizer, target: Tokenizer) -> Shortlist:
        """Read a file, which must be for these vocabularies."""
        if not path.is_file():
            raise DataError(f"{path}: no such file, expected a shortlist; {MAKER} makes one")
        try:
            with safe_open(path, "pt") as file:
                about, tensors = file.metadata() or {}, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            raise DataError(
                f"{path}: found no shortlist ({error}), expected a file of dragoman shortlist RUN"
            ) from None
        if set(tensors) != {"always", "likely"}:
            found = ", ".join(sorted(tensors)) or "nothing"
            raise DataError(f"{path}: found {found} in it, expected a file of {MAKER}")
        for side, tokenizer in (("source", source), ("target", target)):
            if about.get(side) != tokenizer.fingerprint():
                raise DataError(
                    f"{path}: was made for another {side} vocabulary than the run's {len(tokenizer):,} "
                    f"{tokenizer.kind}, expected a shortlist made with dragoman shortlist from a run that shares it"
                )
        return Shortlist(tensors["always"], tensors["likely"], len(target))


def writer_of(model: Any) -> EncoderDecoder:
    """The model, which must be one with an output layer to narrow."""
    if not isinstance(model, EncoderDecoder):
        raise ConfigError(
            f"shortlist: found {type(model).__name__}, expected one run with an encoder and a decoder "
            '(model.kind = "encoder-decoder")'
        )
    return model
