"""Search among the target tokens that a source is likely to need (Jean et al. 2015, section 3.3).

A shortlist has for every source token its likeliest translations, and the target tokens that are always allowed. The
output layer computes the tokens that all sources of a batch need together, and each source sees only its own: so a
neighbour changes nothing. Within a search a token is its index in that joint list, which begins with the special
tokens as every vocabulary does.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from dragoman.base import ConfigError, DataError, atomic_write
from dragoman.data import Batch, SourceReader
from dragoman.data.tokenizers import EOS, Tokenizer
from dragoman.decoding.hypothesis import Hypothesis
from dragoman.decoding.method import OpenMethod, PathLike, Request
from dragoman.decoding.method_settings import SHORTLIST_MAKER
from dragoman.decoding.method_settings import ShortlistFile as ShortlistFile
from dragoman.decoding.searches import autoregressive_search
from dragoman.models import EncoderDecoder, State
from dragoman.models.heads import log_probabilities

NAME = "shortlist.safetensors"  # in a run folder
SPECIAL = EOS + 1  # padding, unknown, start and end: first in every vocabulary


def open_shortlist(file: PathLike, run: Any, model: Any) -> Shortlist:
    shortlist_model(model)
    path = run.run.folder / NAME if file == "auto" else Path(file)
    return Shortlist.load(path, run.source_tokenizer, run.target_tokenizer)


class ShortlistModel:
    """A model with an output layer over the joint list; its tokens are indices of that list.

    Its state also says which tokens of the joint list each source may use.
    """

    def __init__(self, model: EncoderDecoder, tokens: Tensor, listed: Tensor) -> None:
        """The joint list `tokens` (K,), and which of it each source may use, `listed` (B, K)."""
        self.model, self.tokens, self.listed = model, tokens, listed
        output = model.output
        assert isinstance(output, nn.Linear)
        self.transposed = output.weight.detach()[tokens].t().contiguous()  # (D, K): faster with few rows
        self.bias = None if output.bias is None else output.bias.detach()[tokens]

    @property
    def max_positions(self) -> int | None:
        return self.model.max_positions

    def start(self, batch: Batch) -> State:
        state = self.model.start(batch)
        return state._replace(static=(state.static, self.listed))

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        outputs, after = self._read(tokens if tokens.dim() == 2 else tokens[:, None], state, last=True)
        return outputs[:, 0], after

    def read(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        return self._read(tokens, state, last=False)

    def _read(self, tokens: Tensor, state: State, *, last: bool) -> tuple[Tensor, State]:
        static, listed = state.static
        hidden, after = self.model.decoder(self.tokens[tokens], state._replace(static=static))
        hidden = hidden[:, -1:] if last else hidden
        scores = hidden @ self.transposed
        scores = scores if self.bias is None else scores + self.bias  # (N, P, K)
        by_source = scores.view(listed.shape[0], -1, scores.shape[-1])
        by_source = by_source.masked_fill(~listed[:, None], float("-inf"))
        return log_probabilities(by_source).view_as(scores), after._replace(static=(after.static, listed))


class Shortlist(OpenMethod):
    """A search method: greedy or beam search among the listed tokens."""

    def __init__(self, always: Tensor, likely: Tensor, vocabulary: int) -> None:
        """Target tokens `always` (A,) and `likely` (source vocabulary, L); `vocabulary` is the target's size."""
        special = torch.arange(SPECIAL)
        self.always: Tensor = torch.cat([special, always]).unique()  # type: ignore[no-untyped-call]
        self.likely, self.vocabulary = likely, vocabulary

    def listed(self, source: Tensor) -> Tensor:
        """Which target tokens sources (B, S) may use: (B, V)."""
        listed = torch.zeros(source.shape[0], self.vocabulary, dtype=torch.bool, device=source.device)
        listed[:, self.always.to(source.device)] = True
        listed.scatter_(1, self.likely.to(source.device)[source].flatten(1), True)
        return listed

    def search(self, request: Request) -> list[list[Hypothesis]]:
        """The n best hypotheses of every source; probabilities are relative to the source's own list."""
        model = shortlist_model(request.model)
        listed = self.listed(request.batch.source.data)
        tokens = listed.any(0).nonzero()[:, 0]  # (K,), the special tokens first
        narrow = ShortlistModel(model, tokens, listed[:, tokens])
        outputs = autoregressive_search(narrow, request.batch, request.limits, request.config, request.n_best)
        ids = tokens.tolist()
        return [
            [hypothesis._replace(tokens=tuple(ids[token] for token in hypothesis.tokens)) for hypothesis in hypotheses]
            for hypotheses in outputs
        ]

    # --- Files

    def save(self, path: Path, source: SourceReader, target: Tokenizer) -> None:
        metadata = {"source": source.fingerprint(), "target": target.fingerprint()}
        with atomic_write(path, follow_link=False) as beside:
            save_file({"always": self.always, "likely": self.likely.contiguous()}, beside, metadata)

    @staticmethod
    def load(path: Path, source: SourceReader, target: Tokenizer) -> Shortlist:
        """Read a shortlist, which must be for these vocabularies."""
        if not path.is_file():
            raise DataError(f"{path}: no such file, expected a shortlist; {SHORTLIST_MAKER} makes one")
        try:
            with safe_open(path, "pt") as file:
                metadata, tensors = file.metadata() or {}, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            raise DataError(f"{path}: found no shortlist ({error}), expected a file of {SHORTLIST_MAKER}") from None
        if set(tensors) != {"always", "likely"}:
            names = ", ".join(sorted(tensors)) or "nothing"
            raise DataError(f"{path}: found {names} in it, expected a file of {SHORTLIST_MAKER}")
        for side, tokenizer in (("source", source), ("target", target)):
            if metadata.get(side) != tokenizer.fingerprint():
                raise DataError(
                    f"{path}: was made for another {side} vocabulary than the run's {len(tokenizer):,} "
                    f"{tokenizer.kind}, expected a shortlist made with dragoman shortlist from a run that shares it"
                )
        return Shortlist(tensors["always"], tensors["likely"], len(target))


def shortlist_model(model: Any) -> EncoderDecoder:
    """The model, which must have an output layer that can be restricted."""
    if not isinstance(model, EncoderDecoder):
        raise ConfigError(
            f"shortlist: found {type(model).__name__}, expected one run with an encoder and a decoder "
            '(model.kind = "encoder-decoder")'
        )
    if not isinstance(model.output, nn.Linear):
        raise ConfigError(
            f"shortlist: found model.decoder.kind = {model.config.decoder.kind!r}, whose probabilities are "
            "no single softmax over the target vocabulary, expected a decoder with one output layer"
        )
    return model
