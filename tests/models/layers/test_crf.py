"""The conditional random field against an enumeration of all paths, in float64."""

from __future__ import annotations

import math
from itertools import pairwise, product

import pytest
import torch
from torch import Tensor

from dragoman.models.layers.crf import LinearChainCRF

CLOSE = {"rtol": 0.0, "atol": 1e-10}
TAGS = 3
LENGTHS = [4, 1, 3, 2]


@pytest.fixture
def chain() -> LinearChainCRF:
    torch.manual_seed(3)
    made = LinearChainCRF(TAGS).double()
    for part in made.parameters():
        part.data = torch.randn_like(part)
    return made


@pytest.fixture
def scores() -> Tensor:
    torch.manual_seed(4)
    return torch.randn(len(LENGTHS), max(LENGTHS), TAGS, dtype=torch.float64)


MASK = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]


def paths(chain: LinearChainCRF, scores: Tensor, length: int) -> dict[tuple[int, ...], float]:
    """The score of every path of a row, by the definition."""
    found = {}
    first, last, between = (part.detach() for part in (chain.first, chain.last, chain.transitions))
    for path in product(range(TAGS), repeat=length):
        total = float(first[path[0]] + last[path[-1]])
        total += sum(float(scores[place, tag]) for place, tag in enumerate(path))
        total += sum(float(between[one, other]) for one, other in pairwise(path))
        found[path] = total
    return found


def test_partition_scores_and_marginals_are_sums_over_all_paths(chain: LinearChainCRF, scores: Tensor) -> None:
    partition, marginals = chain.log_partition(scores, MASK).detach(), chain.marginals(scores, MASK)
    for row, length in enumerate(LENGTHS):
        every = paths(chain, scores[row], length)
        whole = torch.tensor(list(every.values()), dtype=torch.float64).logsumexp(0)
        torch.testing.assert_close(partition[row], whole, **CLOSE)
        tags = torch.full((1, max(LENGTHS)), -1)
        for path, total in every.items():
            tags[0, :length] = torch.tensor(path)
            one = chain.score(scores[row : row + 1], tags, MASK[row : row + 1])[0].detach()
            assert float(one) == pytest.approx(total, abs=1e-10)
        for place in range(length):
            for tag in range(TAGS):
                share = sum(math.exp(total - whole) for path, total in every.items() if path[place] == tag)
                assert float(marginals[row, place, tag]) == pytest.approx(share, abs=1e-10)


def test_viterbi_finds_the_best_of_all_paths(chain: LinearChainCRF) -> None:
    for seed in range(20):
        torch.manual_seed(seed)
        scores = torch.randn(len(LENGTHS), max(LENGTHS), TAGS, dtype=torch.float64)
        found = chain.viterbi(scores, MASK)
        for row, length in enumerate(LENGTHS):
            every = paths(chain, scores[row], length)
            assert tuple(found[row, :length].tolist()) == max(every, key=lambda path: every[path])


def test_probabilities_of_all_paths_sum_to_one_and_have_right_gradients(chain: LinearChainCRF, scores: Tensor) -> None:
    row = scores[2:3, :3]
    mask = torch.ones(1, 3, dtype=torch.bool)
    logs = [chain.log_probability(row, torch.tensor([path]), mask) for path in product(range(TAGS), repeat=3)]
    torch.testing.assert_close(torch.cat(logs).exp().sum(), torch.tensor(1.0, dtype=torch.float64), **CLOSE)
    tags = torch.tensor([[0, 2, 1, 1], [2, -1, -1, -1], [1, 1, 0, -1], [0, 2, -1, -1]])
    assert torch.autograd.gradcheck(lambda x: chain.log_probability(x, tags, MASK), scores.requires_grad_())


def test_padding_changes_nothing(chain: LinearChainCRF, scores: Tensor) -> None:
    wider = torch.cat([scores, torch.full((4, 3, TAGS), 1e3, dtype=torch.float64)], 1)
    mask = torch.nn.functional.pad(MASK, (0, 3))
    torch.testing.assert_close(chain.log_partition(wider, mask), chain.log_partition(scores, MASK), **CLOSE)
    assert chain.viterbi(wider, mask)[:, :4].tolist() == chain.viterbi(scores, MASK).tolist()
