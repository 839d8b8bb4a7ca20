"""`dragoman check` warns of plans that would run but make no sense, and refuses a model that cannot fit."""

from __future__ import annotations

import re

from torch import nn

from dragoman.training.capacity import count_parameters, is_unusual
from tests.clock import takes_at_most
from tests.conftest import SMALL, TrainedFolder, call


def test_check_warns_of_a_senseless_plan(inside: TrainedFolder) -> None:
    result = call(
        "check", "pairs.tsv", *SMALL, "model.encoder.width=512", "model.decoder.width=512", "train.steps=50000",
        "train.optimizer.warmup=60000", "tokenizer.source.kind=words",
    )  # fmt: skip
    assert result.code == 0, result.err
    assert "train.optimizer.warmup = 60,000 exceeds train.steps = 50,000" in result.out
    assert "parameters for 269 training examples" in result.out
    assert "reads the training data" in result.out
    assert "most sources are a single token (words)" in result.out
    assert "time: about " in result.out
    # A slow machine adds the warning of a long training.
    assert re.fullmatch(r"the run can start, but see the warnings \([45]\)", result.lines[-1])


def test_a_model_beyond_the_memory_is_refused_before_it_is_built(inside: TrainedFolder) -> None:
    huge = ("pairs.tsv", "model.encoder.width=1000000000", "model.encoder.heads=1")
    for result in (call("check", *huge), call("train", *huge, "--run", "huge")):
        assert result.code == 2
        assert "lower model sizes such as model.encoder.width" in result.err
    assert not (inside.folder / "huge").exists()


def test_a_model_of_endless_layers_is_refused_at_once(inside: TrainedFolder) -> None:
    """Layers take time to build, even without memory."""
    with takes_at_most(10):
        for layers, message in ((10**6, "found 1000000, expected at least 1 and at most 10000"), (10**4, "at least ")):
            for kind in ("transformer", "recurrent"):
                settings = (f"model.encoder.kind={kind}", f"model.encoder.layers={layers}", "model.encoder.width=4096")
                result = call("check", "pairs.tsv", *settings)
                assert result.code == 2
                assert message in result.err


def test_parameters_are_counted_without_memory() -> None:
    assert count_parameters(lambda: nn.Linear(30, 40)) == 30 * 40 + 40
    assert count_parameters(lambda: nn.Linear(1 << 40, 1 << 40)) >= 1 << 60


def test_a_huge_size_inside_a_list_is_unusual() -> None:
    assert is_unusual({"encoder": {"widths": [64, 1 << 31]}})
    assert is_unusual({"embedding": {"kernels": [[1, 8], [2, 1 << 31]]}})
    assert not is_unusual({"encoder": {"widths": [64, 128], "name": "a"}})
