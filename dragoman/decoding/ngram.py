"""Language models for shallow fusion (`ctc.LMFusion`): an n-gram model of tokens, and a neural one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dragoman.classical.ngram import NGramConfig, NGramModel
from dragoman.classical.rows import Ragged
from dragoman.data.batch import token_batch
from dragoman.data.tokenizers.base import EOS, SOS
from dragoman.decoding.hypothesis import SUPPRESSED_TOKENS
from dragoman.errors import DataError
from dragoman.models.contracts import State, join_tensors

MAX_CACHED = 50_000_000  # log-probabilities that an n-gram model keeps
Text = tuple[int, ...]


class NGramLM:
    """The distribution of the next token after the last n − 1; a `LanguageModelScorer`."""

    def __init__(self, model: NGramModel) -> None:
        self.model = model
        self._cache: dict[Text, Tensor] = {}

    @classmethod
    def of_rows(cls, rows: Iterable[Sequence[int]], vocabulary: int, order: int = 5) -> NGramLM:
        """Count the n-grams of up to `order` tokens in texts (token ids without <eos>)."""
        return cls(NGramModel(NGramConfig(order), vocabulary).fit_rows(Ragged.of(list(rows))))

    def __call__(self, texts: Sequence[Text]) -> Tensor:
        """Log-probabilities (N, V) of the next token of each text, <eos> included; −∞ for tokens never output."""
        return torch.stack([self.next_token(text) for text in texts])

    def next_token(self, text: Text) -> Tensor:
        history = (SOS, *text)[-max(1, self.model.order - 1) :]
        if history not in self._cache:
            if len(self._cache) * self.model.vocabulary > MAX_CACHED:
                self._cache.clear()
            logs = torch.from_numpy(self.model.distribution(history))
            logs[[token for token in SUPPRESSED_TOKENS if token != EOS]] = float("-inf")
            self._cache[history] = logs
        return self._cache[history]


class CachedTexts(NamedTuple):
    """Texts of one length that a neural model has read."""

    rows: dict[Text, int]
    log_probabilities: Tensor  # (N, V) of the next token
    state: State


class NeuralLM:
    """The same by a neural language model, which reads a text as a line of its own.

    Texts of the last call, and those that are one token longer, are not read again from their start.
    """

    def __init__(self, model: Any, name: str = "the language model") -> None:
        """`model` is a LanguageModel in evaluation mode; `name` is for error messages."""
        self.model, self.name = model, name
        self.cached: dict[int, CachedTexts] = {}  # by length

    @torch.no_grad()
    def __call__(self, texts: Sequence[Text]) -> Tensor:
        """Log-probabilities (N, V) of the next token of each text; −∞ for tokens that are never output."""
        by_length: dict[int, list[Text]] = {}
        for text in dict.fromkeys(texts):
            by_length.setdefault(len(text), []).append(text)
        cached: dict[int, CachedTexts] = {}
        for length in sorted(by_length):
            try:
                cached[length] = self._read(by_length[length], cached.get(length - 1))
            except DataError as error:  # longer than the model can read
                raise DataError(f"{self.name}: {error}") from None
        self.cached = cached
        rows = [(cached[len(text)], text) for text in texts]
        out = torch.stack([known.log_probabilities[known.rows[text]] for known, text in rows]).double()
        out[:, [token for token in SUPPRESSED_TOKENS if token != EOS]] = float("-inf")
        return out

    def _read(self, texts: list[Text], shorter: CachedTexts | None) -> CachedTexts:
        """Read texts of one length; `shorter` are texts one token shorter that were read in the same call."""
        length = len(texts[0])
        before = self.cached.get(length)
        parents = [known for known in (shorter, self.cached.get(length - 1)) if known is not None]
        order: list[Text] = []
        outputs: list[Tensor] = []
        states: list[State] = []

        def add(some: list[Text], log_probabilities: Tensor, state: State) -> None:
            order.extend(some)
            outputs.append(log_probabilities.cpu())
            states.append(state)

        rest = texts
        if before is not None and (known := [text for text in rest if text in before.rows]):
            rows = [before.rows[text] for text in known]
            add(known, before.log_probabilities[rows], before.state.select(self._tensor(rows)))
            rest = [text for text in rest if text not in before.rows]
        for parent in parents:
            if grown := [text for text in rest if text[:-1] in parent.rows]:
                state = parent.state.select(self._tensor([parent.rows[text[:-1]] for text in grown]))
                add(grown, *self.model.step(self._tensor([text[-1] for text in grown]), state))
                rest = [text for text in rest if text[:-1] not in parent.rows]
        if rest:
            source = torch.full((len(rest), 1), EOS, device=self._device)  # a line begins where the last one ended
            state = self.model.start(token_batch(source))
            add(rest, *self.model.step(self._tensor([[SOS, *text] for text in rest]), state))
        state = states[0]._replace(
            static=join_tensors([state.static for state in states]),
            cache=join_tensors([state.cache for state in states]),
        )
        return CachedTexts({text: row for row, text in enumerate(order)}, torch.cat(outputs), state)

    @property
    def _device(self) -> torch.device:
        device: torch.device = next(self.model.parameters()).device
        return device

    def _tensor(self, numbers: Any) -> Tensor:
        return torch.tensor(numbers, device=self._device)
