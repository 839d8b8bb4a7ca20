"""Ensembles against averages by hand, and minimum Bayes risk against a plain loop."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import pytest
import torch

from dragoman.base.errors import ConfigError
from dragoman.data.batch import batch_of
from dragoman.data.tokenizers.base import SOS
from dragoman.decoding.config import Average, SearchConfig, StopRule
from dragoman.decoding.ensemble import Ensemble
from dragoman.decoding.hypothesis import Hypothesis
from dragoman.decoding.mbr import MinimumBayesRisk, expected_costs, rank
from dragoman.decoding.sampling import draw_samples
from dragoman.decoding.searches import search
from dragoman.models.config import EncoderDecoderConfig
from dragoman.models.encoder_decoder import EncoderDecoder
from dragoman.models.layers.config import LearnedConfig
from dragoman.models.non_autoregressive import NonAutoregressive, NonAutoregressiveConfig
from dragoman.scoring.registry import segment_cost_metrics
from tests.decoding.test_beam import DECODERS, ENCODERS
from tests.decoding.test_beam_options import Options, slow
from tests.decoding.test_sampling import model_of, request_for, spelled

SOURCES = [[5, 6, 7, 8], [8], [4, 6, 5]]
AVERAGES: tuple[Average, ...] = ("probability", "log")


def members() -> list[EncoderDecoder]:
    return [model_of("gru", "lstm", 1), model_of("transformer", "transformer", 2), model_of("gru", "transformer", 3)]


def averaged(rows: list[list[float]], average: str) -> list[float]:
    """Probabilities of one position, by hand."""
    columns = list(zip(*rows, strict=True))
    if average == "probability":
        return [sum(math.exp(one) for one in column) / len(rows) for column in columns]
    products = [math.exp(sum(column)) ** (1 / len(rows)) for column in columns]
    return [one / sum(products) for one in products]


@pytest.mark.parametrize("average", AVERAGES)
def test_a_step_is_the_average_by_hand(average: Average) -> None:
    models, batch = members(), batch_of(SOURCES)
    together = Ensemble(models, average)
    with torch.no_grad():
        state = together.start(batch)
        states = [model.start(batch) for model in models]
        for tokens in ([SOS] * 3, [4, 5, 6], [7, 7, 8]):
            found, state = together.step(torch.tensor(tokens), state)
            each = []
            for index, model in enumerate(models):
                out, states[index] = model.step(torch.tensor(tokens), states[index])
                each.append(out.tolist())
            for row in range(3):
                assert found[row].exp().tolist() == pytest.approx(averaged([one[row] for one in each], average))
                assert found[row].exp().sum().item() == pytest.approx(1.0)


@pytest.mark.parametrize("average", AVERAGES)
def test_a_model_with_itself_is_the_model(average: Average) -> None:
    for model in members():
        together = Ensemble([model] * 3, average)
        for beam in (1, 4):
            config = SearchConfig(beam=beam, max_length=6)
            alone = search(model, batch_of(SOURCES), config, 1.0, beam)
            found = search(together, batch_of(SOURCES), config, 1.0, beam)
            for left, right in zip(alone, found, strict=True):
                assert [one.tokens for one in left] == [one.tokens for one in right]
                for one, other in zip(left, right, strict=True):
                    assert one.token_scores == pytest.approx(other.token_scores, abs=1e-10)


@pytest.mark.parametrize("stop", ["ahead", "complete", "certain"])
@pytest.mark.parametrize("average", AVERAGES)
def test_beam_search_over_an_ensemble_is_the_slow_beam_over_averages_by_hand(average: Average, stop: StopRule) -> None:
    models = members()
    config = SearchConfig(beam=3, max_length=5, stop=stop)
    found = search(Ensemble(models, average), batch_of(SOURCES), config, 1.0, 3)
    for source, row in zip(SOURCES, found, strict=True):

        def guess(prefix: tuple[int, ...], source: list[int] = source) -> list[float]:
            with torch.no_grad():
                each = [
                    model.step(torch.tensor([[SOS, *prefix]]), model.start(batch_of([source])))[0] for model in models
                ]
            return [math.log(one) for one in averaged([out[0].tolist() for out in each], average)]

        expected = slow(guess, 6, Options(3, 1.0, "power", stop, 0, 0, 3))
        assert [one.tokens for one in row] == [one.tokens for one in expected]
        for left, right in zip(row, expected, strict=True):
            assert left.token_scores == pytest.approx(right.parts, abs=1e-10)
            with torch.no_grad():  # and it is what teacher forcing says
                truth = Ensemble(models, average).score(batch_of([source], [left.tokens[:-1]]))
            assert left.token_scores == pytest.approx(truth.log_probabilities[0].tolist(), abs=1e-10)


def test_the_two_averages_differ_and_members_matter() -> None:
    models = members()
    outputs = [
        str([row[0].tokens for row in search(one, batch_of(SOURCES), SearchConfig(beam=3, max_length=5), 1.0)])
        for one in (*models, Ensemble(models), Ensemble(models, "log"))
    ]
    assert len(set(outputs)) >= 4


def test_scores_of_padded_targets_are_masked() -> None:
    batch = batch_of(SOURCES, [[4, 5], [6], [7, 8, 4, 5]])
    with torch.no_grad():
        scores = Ensemble(members()).score(batch)
        alone = Ensemble(members()).score(batch_of(SOURCES[1:2], [[6]]))
    assert scores.mask.sum(1).tolist() == [3, 2, 5]
    assert scores.log_probabilities[1, :2].tolist() == pytest.approx(alone.log_probabilities[0].tolist())
    assert not scores.log_probabilities[1, 2:].any()
    assert not scores.correct[1, 2:].any()


def test_the_member_with_fewest_positions_sets_the_maximum() -> None:
    def learned(max_positions: int) -> EncoderDecoder:
        decoder = replace(DECODERS["transformer"], positions=LearnedConfig(max_positions=max_positions))
        return EncoderDecoder(EncoderDecoderConfig(encoder=ENCODERS["gru"], decoder=decoder), 9, 9)

    assert Ensemble([learned(9), model_of(), learned(7)]).max_positions == 7
    assert Ensemble([model_of()]).max_positions is None


def test_models_that_cannot_be_averaged_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"average: found 'logs'\. Did you mean 'log'"):
        Ensemble(members(), "logs")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="writes all at once"):
        Ensemble([model_of(), NonAutoregressive(NonAutoregressiveConfig(), 9, 9)])  # type: ignore[list-item]
    with pytest.raises(ConfigError, match="found none"):
        Ensemble([])


# ---------------------------------------------------------------------- minimum Bayes risk


@pytest.mark.parametrize("metric", list(segment_cost_metrics()))
def test_minimum_bayes_risk_is_a_plain_loop_over_samples(metric: str) -> None:
    model = model_of()
    method = MinimumBayesRisk(samples=12, metric=metric, seed=3, temperature=0.8)
    request = request_for(model, SOURCES, longest=6, n_best=12)
    samples = draw_samples(request, method, 12, "test")
    for drawn, found in zip(samples, method.search(request), strict=True):
        plain: dict[str, float] = {}
        for one in drawn:
            text = spelled(one.tokens)
            costs = [segment_cost_metrics()[metric].costs([text], [[spelled(other.tokens)]])[0] for other in drawn]
            plain[text] = sum(costs) / len(costs)
        assert {spelled(one.tokens) for one in found} == set(plain)
        for one in found:
            assert -one.normalised == pytest.approx(plain[spelled(one.tokens)])
        assert -found[0].normalised == pytest.approx(min(plain.values()))
        assert [one.normalised for one in found] == sorted((one.normalised for one in found), reverse=True)
        best = method.search(request._replace(n_best=1))
        assert [row[0] for row in best] == [row[0] for row in method.search(request)]


def test_the_typical_output_wins_over_the_most_probable() -> None:
    """Three samples share most words; the most probable one shares none."""
    samples = [
        Hypothesis((token,), (score,), score, score)
        for token, score in ((10, -0.5), (11, -1.0), (12, -1.1), (13, -1.2), (11, -1.0))
    ]
    texts = {10: "w x y z", 11: "a b c d", 12: "a b c e", 13: "a b f d"}
    request = request_for(model_of(), [[5]])._replace(text=lambda tokens: texts[tokens[0]])
    ranked = rank(samples, request, "wer")
    assert [one.tokens[0] for one in ranked] == [11, 12, 13, 10]
    assert -ranked[0].normalised == pytest.approx((1 + 0 + 0.25 + 0.25 + 0) / 5)  # itself twice among the truths
    assert expected_costs(["a"], Counter({"a": 3, "b": 1}), "exact_match") == [0.25]


def test_tokenizations_of_one_text_count_together() -> None:
    samples = [Hypothesis((token,), (score,), score, score) for token, score in ((10, -2.0), (11, -1.0), (12, -0.1))]
    request = request_for(model_of(), [[5]])._replace(text=lambda tokens: {10: "a", 11: "a", 12: "b"}[tokens[0]])
    ranked = rank(samples, request, "exact_match")
    assert [one.tokens for one in ranked] == [(11,), (12,)]
    assert [-one.normalised for one in ranked] == pytest.approx([1 / 3, 2 / 3])


def test_an_unknown_metric_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"metric: found 'chrff'\. Did you mean 'chrf'"):
        MinimumBayesRisk(metric="chrff").open(None, None)
