"""Report every token of an output as soon as it is chosen, for greedy search and sampling."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from dragoman.decoding.greedy import TokenChooser, argmax_token, greedy_search
from dragoman.decoding.hypothesis import Hypothesis
from dragoman.decoding.method import OpenMethod, Request
from dragoman.decoding.sampling import Sampling, sample_key, token_sampler
from dragoman.decoding.scorer import Scorer

OnToken = Callable[[int, float], None]  # gets a token and its log-probability; an exception ends the search


def observed(choose: TokenChooser, on_token: OnToken) -> TokenChooser:
    """A choice of tokens that reports the token of its first row."""

    def chosen(log_probabilities: Tensor, rows: Tensor, length: int) -> Tensor:
        tokens = choose(log_probabilities, rows, length)
        token = int(tokens[0])
        on_token(token, float(log_probabilities[0, token]))
        return tokens

    return chosen


@dataclass(frozen=True, eq=False)
class TokenStream(OpenMethod):
    """A decoding method: greedy search or sampling of one source that reports its tokens one by one."""

    on_token: OnToken
    sampling: Sampling | None = None  # None: greedy

    @torch.no_grad()
    def search(self, request: Request) -> list[list[Hypothesis]]:
        """The one hypothesis of the one source."""
        model = request.stepwise("streaming")
        assert len(request.batch.source) == 1, "tokens of several sources could not be told apart"
        choose: TokenChooser = argmax_token
        if self.sampling is not None:
            source = request.batch.source.data[0][request.batch.source.mask[0]].flatten().tolist()
            choose = token_sampler([sample_key(self.sampling.seed, source, 0)], self.sampling)
        outputs = greedy_search(
            model.step,
            model.start(request.batch),
            request.limits,
            Scorer.from_config(request.config),
            choose=observed(choose, self.on_token),
        )
        return [outputs]
