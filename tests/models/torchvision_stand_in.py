"""A small torchvision: three networks made as its own are, for machines that do not have it."""

from __future__ import annotations

import sys
from collections import OrderedDict
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

TRAINED = 7  # the seed of the weights that can be "downloaded"


def residual() -> nn.Module:
    """Parts in the order and with the names of torchvision's residual networks."""
    parts = [("conv1", nn.Conv2d(3, 6, 3, 2, 1, bias=False)), ("bn1", nn.BatchNorm2d(6)), ("relu", nn.ReLU())]
    parts += [("layer4", nn.Conv2d(6, 8, 3, 2, 1)), ("avgpool", nn.AdaptiveAvgPool2d(1)), ("fc", nn.Linear(8, 5))]
    return nn.Sequential(OrderedDict(parts))


class WithFeatures(nn.Module):
    """A network whose convolutions are called `features`, as in torchvision's MobileNet, VGG or ConvNeXt."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 4, 3, 4, 1), nn.BatchNorm2d(4), nn.Dropout(0.5))
        self.classifier = nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        """Not called."""
        out: Tensor = self.classifier(self.features(x).mean((2, 3)))
        return out


NETWORKS: dict[str, Any] = {
    "resnet18": residual,
    "mobilenet_v3_small": WithFeatures,
    "vit_b_16": lambda: nn.Linear(3, 5),
}


def get_model(name: str, weights: str | None = None) -> nn.Module:
    """The part of `torchvision.models` that the encoder uses."""
    with torch.random.fork_rng():
        if weights is not None:
            assert weights == "DEFAULT"
            torch.manual_seed(TRAINED)
        network: nn.Module = NETWORKS[name]()
        for part in network.modules():
            if weights is not None and isinstance(part, nn.BatchNorm2d):  # what it saw while it was trained
                part.running_mean = torch.rand_like(part.running_mean)  # type: ignore[arg-type]
                part.running_var = torch.rand_like(part.running_var) + 0.5  # type: ignore[arg-type]
    return network


def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `import torchvision` find this module."""
    package, models = ModuleType("torchvision"), ModuleType("torchvision.models")
    models.get_model = get_model  # type: ignore[attr-defined]
    models.list_models = lambda module: list(NETWORKS)  # type: ignore[attr-defined]
    package.models = models  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torchvision", package)
    monkeypatch.setitem(sys.modules, "torchvision.models", models)
