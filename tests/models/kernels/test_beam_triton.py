"""Kernels of the repeated beam search against the same steps in torch."""

from __future__ import annotations

import pytest
import torch

from dragoman.data.batch import batch_of
from dragoman.data.tokenizers.base import EOS
from dragoman.decoding import cuda_graphs
from dragoman.decoding.beam import BeamOptions, beam_search
from dragoman.decoding.beam_state import (
    NextTokens,
    complete_hypotheses,
    initial_state,
    top_candidates,
    top_next_tokens,
    update,
)
from dragoman.decoding.config import SearchConfig, StopRule
from dragoman.decoding.scorer import NEG_INF
from dragoman.decoding.searches import search
from dragoman.models.config import EncoderDecoderConfig
from dragoman.models.encoder_decoder import EncoderDecoder
from tests.contract.conftest import DECODER_CASES, ENCODER_CASES

pytestmark = pytest.mark.gpu
VOCABULARY = 3000


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [40, 1000, 33_333])
def test_the_best_next_tokens_are_those_of_a_sort(dtype: torch.dtype, size: int) -> None:
    """Also among many equal scores, where the first places come first."""
    from dragoman.models.kernels.beam_triton import best_next

    torch.manual_seed(size)
    for scores in (torch.randn(7, size), (torch.randn(7, size) * 3).round()):
        given = scores.to("cuda", dtype)
        values, tokens, ends = best_next(given, 10, 3, EOS)
        expected = given.float().log_softmax(-1)
        torch.testing.assert_close(ends, expected[:, EOS : EOS + 1], rtol=1e-5, atol=1e-5)
        expected[:, :3] = NEG_INF
        order = expected.sort(dim=1, descending=True, stable=True)
        assert torch.equal(tokens, order.indices[:, :10])
        torch.testing.assert_close(values, order.values[:, :10], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("width", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("stop", ["complete", "ahead", "certain"])
@pytest.mark.parametrize("vocabulary", [7, 40])
def test_a_step_is_settled_as_torch_settles_it(width: int, stop: StopRule, vocabulary: int) -> None:
    from dragoman.models.kernels import beam_triton

    torch.manual_seed(width)
    device, sources, longest = torch.device("cuda"), 60, 9
    most = 1 + width // 2
    limits = torch.randint(1, longest + 1, (sources,), device=device)
    divisors = [1.0, *(length**0.7 for length in range(1, longest + 1))]
    enough = torch.full_like(limits, width)
    mine, theirs = (
        initial_state(limits, (width, width, longest), enough, divisors, stop, torch.float32) for _ in range(2)
    )
    origins, fed = (torch.zeros(sources * width, dtype=torch.long, device=device) for _ in range(2))
    first = torch.arange(sources, device=device)[:, None] * width
    for _ in range(int(limits.max())):
        given = (torch.randn(sources * width, vocabulary, device=device) * 2).log_softmax(-1)
        following = top_next_tokens(given, width)
        candidates = top_candidates(theirs, following)
        theirs, kept = update(theirs, candidates, n_best=most, stop=stop)
        whole = NextTokens(following.scores, following.tokens, following.eos_scores.contiguous())
        beam_triton.update(mine, whole, origins, fed, n_best=most, stop=stop, end=EOS)
        live = theirs.totals > NEG_INF
        for part in ("done", "totals", "greedy", "num_complete", "complete_scores", "length"):
            torch.testing.assert_close(getattr(mine, part), getattr(theirs, part), rtol=1e-6, atol=1e-6)
        for part in ("tokens", "token_scores", "last"):
            assert torch.equal(getattr(mine, part)[live], getattr(theirs, part)[live]), part
        assert torch.equal(origins.view(sources, width)[live], (candidates.parents.gather(1, kept) + first)[live])
        assert torch.equal(fed.view(sources, width)[live], theirs.last[live])
        found, expected = complete_hypotheses(mine, most), complete_hypotheses(theirs, most)
        assert [[one.tokens for one in some] for some in found] == [[one.tokens for one in some] for some in expected]


@pytest.mark.parametrize("decoder", list(DECODER_CASES))
@pytest.mark.parametrize("width", [1, 5])
def test_a_search_in_kernels_writes_what_the_plain_one_writes(decoder: str, width: int) -> None:
    """In float32, over a vocabulary that is read in chunks; sources end at different times."""
    torch.manual_seed(3)
    config = EncoderDecoderConfig(tie="none", encoder=ENCODER_CASES["transformer"], decoder=DECODER_CASES[decoder])
    model = EncoderDecoder(config, VOCABULARY, VOCABULARY).cuda().eval()
    with torch.no_grad():
        for part in model.parameters():
            part.mul_(2.0)
    batch = batch_of([[5 + (row * place) % 900 for place in range(1, 3 + row % 9)] for row in range(40)])
    batch = batch.to(torch.device("cuda"))
    how = SearchConfig(beam=width, max_length=11)
    limits = torch.full((40,), 12, device="cuda")
    expected = beam_search(model.step, model.start(batch), limits, BeamOptions(width))
    for _ in range(cuda_graphs.MIN_USES + 2):
        found = search(model, batch, how, 1.0)
    assert cuda_graphs._DECODERS[model].enabled
    assert cuda_graphs._DECODERS[model].steps, "nothing was captured"
    for mine, theirs in zip(found, expected, strict=True):
        assert mine[0].tokens == theirs[0].tokens
        assert mine[0].normalised == pytest.approx(theirs[0].normalised, abs=1e-4)
