"""Torchvision image encoders: inputs, pretrained weights, and errors."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from dragoman.base.errors import ConfigError, DragomanError, MissingExtraError
from dragoman.inference.load import load_predictor
from dragoman.models.encoders.images import TorchvisionConfig, TorchvisionEncoder
from dragoman.runs import Run, train
from dragoman.runs.pretrained import load_torchvision_weights
from dragoman.runs.tasks.config import build
from tests.models import torchvision_stand_in
from tests.models.torchvision_stand_in import get_model, stand_in
from tests.runs.tasks.test_media_end_to_end import table, write_data

SIDE = 16


def encoder(name: str = "resnet18", **more: Any) -> TorchvisionEncoder:
    return TorchvisionEncoder(TorchvisionConfig(name=name, width=6, dropout=0.0, **more), 3 * SIDE)


@pytest.mark.parametrize(("name", "places"), [("resnet18", 16), ("mobilenet_v3_small", 16)])
def test_every_grid_cell_is_an_entry_and_images_are_independent(
    name: str, places: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(monkeypatch)
    reader = encoder(name)
    reader.load_pretrained()
    pictures, mask = torch.rand(3, SIDE, 3 * SIDE), torch.ones(3, SIDE, dtype=torch.bool)
    memory = reader.train()(pictures, mask)  # norms and dropout within behave as in use
    assert memory.keys.shape == (3, places, 6)
    for row in range(3):
        alone = reader(pictures[row : row + 1], mask[:1])
        torch.testing.assert_close(alone.keys[0], memory.keys[row])
    network = get_model(name, "DEFAULT").eval()
    colours = pictures.view(3, SIDE, SIDE, 3).permute(0, 3, 1, 2)
    shifted = (colours - torch.tensor([0.485, 0.456, 0.406])[:, None, None]) / torch.tensor([0.229, 0.224, 0.225])[
        :, None, None
    ]
    grid = (
        network.features(shifted)
        if name != "resnet18"
        else network.layer4(  # type: ignore[operator]
            network.relu(network.bn1(network.conv1(shifted)))  # type: ignore[operator]
        )
    )
    expected = reader.norm(reader.project(grid.permute(0, 2, 3, 1).flatten(1, 2)))
    torch.testing.assert_close(memory.values, expected)


def test_the_trunk_is_torchvisions_own(monkeypatch: pytest.MonkeyPatch) -> None:
    models = pytest.importorskip("torchvision.models", reason="torchvision is not installed", exc_type=Exception)
    for name, head in (("resnet18", "fc"), ("mobilenet_v3_small", "classifier")):
        network = models.get_model(name, weights=None).eval()
        monkeypatch.setattr(models, "get_model", lambda name, weights=None, network=network: network)
        reader = TorchvisionEncoder(TorchvisionConfig(name=name), 3 * 64)
        picture = torch.rand(2, 3, 64, 64)
        pooled = reader.trunk(picture).mean((2, 3))
        torch.testing.assert_close(getattr(network, head)(pooled), network(picture), rtol=1e-4, atol=1e-5)
        monkeypatch.undo()


def short_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The settings of a run of two steps that reads pictures by the stand-in."""
    pytest.importorskip("PIL", reason="pictures need pillow (extra 'media')")
    stand_in(monkeypatch)
    write_data(folder)
    case = table("captions", folder)
    case["model"] = {**case["model"], "encoder": {"kind": "torchvision", "width": 8}}
    case["train"] = {**case["train"], "freeze": ["encoder.trunk"], "steps": 2, "validate_every": 2, "save_every": 2}
    train(build(case), folder / "run")
    return case


def test_a_run_takes_trained_weights_once_and_is_loaded_without_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = short_run(tmp_path, monkeypatch)
    asked: list[Any] = []

    def watched(name: str, weights: str | None = None) -> nn.Module:
        asked.append(weights)
        return get_model(name, weights)

    monkeypatch.setattr(sys.modules["torchvision.models"], "get_model", watched)
    model = Run(tmp_path / "run").model(torch.device("cpu"))
    trained = dict(get_model("resnet18", "DEFAULT").named_parameters())
    torch.testing.assert_close(model.encoder.trunk[0].weight, trained["conv1.weight"])  # type: ignore[union-attr, index]
    assert load_predictor(tmp_path / "run").predict([f"{tmp_path}/pictures.tar::test0.png"])[0].text
    case["train"]["steps"] = 4
    train(build(case), tmp_path / "run")  # goes on
    assert set(asked) == {None}


def test_an_opened_run_reads_pictures_as_the_trained_network_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The running statistics of batch norms are no parameters, but must not be lost."""
    short_run(tmp_path, monkeypatch)
    model: Any = Run(tmp_path / "run").model(torch.device("cpu"))
    network: Any = get_model("resnet18", "DEFAULT").eval()
    pictures = torch.randn(2, 3, SIDE, SIDE)
    expected = network.layer4(network.relu(network.bn1(network.conv1(pictures))))
    torch.testing.assert_close(model.encoder.trunk(pictures), expected)


def test_loaded_weights_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch)
    assert load_torchvision_weights(nn.Sequential(encoder())) == ["starts with 614 weights of torchvision's resnet18"]
    assert load_torchvision_weights(nn.Sequential(encoder(weights="none"))) == []


def test_errors_say_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(MissingExtraError, match="pip install torchvision"):
        encoder()
    stand_in(monkeypatch)
    with pytest.raises(ConfigError, match=r"has no 'resnet81'\. Did you mean 'resnet18'"):
        encoder("resnet81")
    with pytest.raises(ConfigError, match="'vit_b_16', which ends in no feature map"):
        encoder("vit_b_16")

    def unreachable() -> nn.Module:
        raise OSError("no network")

    reader = encoder()
    monkeypatch.setitem(torchvision_stand_in.NETWORKS, "resnet18", unreachable)
    with pytest.raises(DragomanError, match="weights of torchvision's resnet18 could not be downloaded: no network"):
        reader.load_pretrained()
