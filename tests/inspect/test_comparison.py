"""What a comparison of runs measures first, and of which layers."""

from __future__ import annotations

from torch import nn

from dragoman.inspect.measure.comparison import System, chosen_metrics, cost_view, time_to_target
from dragoman.inspect.measure.cost import benchmarked_layers
from dragoman.models.layers.cells import LSTMConfig
from dragoman.models.layers.config import FullConfig
from dragoman.models.layers.rnn import Unidirectional
from dragoman.models.layers.self_attention import SelfAttention
from dragoman.runs import Run
from tests.conftest import TrainedFolder


def test_single_words_are_not_ranked_by_bleu(trained_folder: TrainedFolder) -> None:
    """4-gram BLEU of single words is 0 by definition."""
    run = Run(trained_folder.run)
    letters = list(chosen_metrics(run, (), letters=True))
    assert letters[0] not in ("bleu", "chrf")
    assert "bleu" not in letters
    assert {"cer", "exact_match"} <= set(letters)
    assert "bleu" in chosen_metrics(run, (), letters=False)
    assert list(chosen_metrics(run, ("bleu", "cer"), letters=True)) == ["bleu", "cer"]


def test_only_layers_of_the_systems_are_measured() -> None:
    lstm = nn.Sequential(Unidirectional(LSTMConfig(), 4, 4))
    attention = nn.Sequential(SelfAttention(4, 2, config=FullConfig()))
    assert benchmarked_layers(lstm) == ("LSTM",)
    assert benchmarked_layers(attention) == ("self-attention",)
    assert benchmarked_layers(nn.Sequential(nn.Conv1d(2, 2, 3), nn.Linear(2, 2))) == ("convolution",)
    said: list[str] = []
    assert cost_view([System("texts", [], {}, {})], said.append) is None
    assert said == []


def test_no_target_on_different_validation_data() -> None:
    def system(data: str) -> System:
        valid = [(1, 2.0, {"cer": 0.5})]
        return System(data, [], {}, {}, measured={"metric": "cer", "valid": valid, "validation": [data]})

    assert time_to_target([system("a"), system("a")]) == ("cer", 0.5)
    assert time_to_target([system("a"), system("b")]) is None


def test_losses_of_different_tokens_are_no_target() -> None:
    def system(vocabulary: int, **scores: float) -> System:
        measured = {"metric": "loss", "valid": [(1, 2.0, scores)], "validation": [], "vocabulary": vocabulary}
        return System("", [], {}, {}, measured=measured)

    one, other = system(1, loss=3.0, chrf=20.0), system(2, loss=2.0, chrf=10.0)
    assert time_to_target([one, one]) == ("loss", 3.0)
    assert time_to_target([one, other]) == ("chrf", 10.0)
    assert time_to_target([one, system(2, loss=2.0)]) is None
