"""Law 6 for every search method: the score of a hypothesis is its teacher-forced score."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dragoman.data.batch import batch_of
from dragoman.decoding.config import SearchConfig
from dragoman.decoding.exhaustive import Exhaustive
from dragoman.decoding.mbr import MinimumBayesRisk
from dragoman.decoding.sampling import Sampling
from dragoman.decoding.scorer import Scorer
from dragoman.decoding.searches import search
from dragoman.decoding.speculative import Speculative
from dragoman.models.config import EncoderDecoderConfig
from dragoman.models.encoder_decoder import EncoderDecoder
from tests.contract.conftest import DECODER_CASES, ENCODER_CASES
from tests.decoding.test_sampling import model_of, spelled
from tests.decoding.test_speculative import some_sources

# A family on either side at least once.
FAMILIES = [
    ("transformer", "transformer"),
    ("transformer-post", "gru"),
    ("recurrent", "recurrent"),
    ("gru", "gnmt"),
    ("plain-backward-norm", "fixed-context"),
    ("convs2s", "convs2s"),
    ("multi-kernel", "luong"),
    ("rotary-rms-gated-grouped", "relative-local"),
    ("linear", "linear"),
    ("gru-before-mean-merge", "relative-bias-segments"),
]
WAYS: dict[str, tuple[dict[str, Any], Any, int]] = {
    "greedy": ({"beam": 1}, None, 1),
    "beam": ({"beam": 5}, None, 5),
    "beam with options": ({"beam": 4, "min_length": 2, "no_repeat_ngram": 2, "normalisation": "gnmt"}, None, 4),
    "groups": ({"beam": 6, "beam_groups": 3, "diversity_penalty": 1.0}, None, 6),
    "sampling": ({}, Sampling(temperature=1.5, top_k=6), 4),
    "top-p": ({}, Sampling(top_p=0.8, seed=3), 2),
    "minimum Bayes risk": ({}, MinimumBayesRisk(samples=8), 2),
    "speculative": ({}, Speculative(model_of(vocabulary=11)), 1),
    "exhaustive": ({}, Exhaustive(length=1), 5),
}


@pytest.mark.parametrize(
    ("kind", "tolerance"), [(torch.float64, 1e-9), pytest.param(torch.float32, 1e-5, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(("encoder", "decoder"), FAMILIES)
def test_scores_are_teacher_forced_scores(encoder: str, decoder: str, kind: torch.dtype, tolerance: float) -> None:
    torch.manual_seed(len(encoder + decoder))
    config = EncoderDecoderConfig(encoder=ENCODER_CASES[encoder], decoder=DECODER_CASES[decoder], tie="none")
    model = EncoderDecoder(config, 11, 11).to(kind).eval()
    with torch.no_grad():
        model.output.weight.mul_(3.0)
    sources = some_sources(5, 12, 11)
    for name, (settings, method, n_best) in WAYS.items():
        if name == "speculative" and kind == torch.float32:
            method = Speculative(model_of(vocabulary=11).float())
        wanted = SearchConfig(**settings, max_length=7)
        found = search(model, batch_of(sources), wanted, 1.0, n_best, method=method, text=spelled)
        pairs = [(source, one) for source, row in zip(sources, found, strict=True) for one in row]
        assert len(pairs) >= len(sources)
        with torch.no_grad():
            read = model.score(batch_of([source for source, _ in pairs], [one.tokens[:-1] for _, one in pairs]))
        for (_, one), row in zip(pairs, read.log_probabilities.tolist(), strict=True):
            assert one.token_scores == pytest.approx(row[: len(one.tokens)], abs=tolerance), name
            assert one.score == pytest.approx(sum(row), abs=10 * tolerance), name


@pytest.mark.parametrize("normalisation", ["power", "gnmt", "none"])
def test_every_method_ranks_by_the_configured_normalisation(normalisation: Any) -> None:
    model, sources = model_of(), some_sources(5, 6, 9)
    for name, (settings, method, n_best) in WAYS.items():
        if name in ("speculative", "minimum Bayes risk"):  # another vocabulary; ranked by risk
            continue
        wanted = SearchConfig(**{**settings, "normalisation": normalisation, "length_penalty": 0.7}, max_length=7)
        for row in search(model, batch_of(sources), wanted, 1.0, n_best, method=method):
            for one in row:
                worth = one.score / Scorer(0.7, normalisation).divisor(len(one.tokens))
                assert one.normalised == pytest.approx(worth), name
    found = search(
        model,
        batch_of(sources),
        SearchConfig(normalisation=normalisation, max_length=7),
        1.0,
        method=Speculative(model),
    )
    for (one,) in found:
        assert one.normalised == pytest.approx(one.score / Scorer(1.0, normalisation).divisor(len(one.tokens)))
