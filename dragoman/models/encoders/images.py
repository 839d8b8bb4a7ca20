"""Image encoders: ResNet, patches and torchvision networks. The memory has one entry per cell of a grid, row by row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman.base import ConfigError, DragomanError, MissingExtraError, hint
from dragoman.base.config import Depth, Share, Size, setting
from dragoman.data.media import COLOURS
from dragoman.models.config import TransformerConfig
from dragoman.models.contracts import Encoder, Memory
from dragoman.models.encoders.sequence import SequenceEncoderConfig, encoder_of_vectors, vector_scale
from dragoman.models.layers.config import LearnedConfig
from dragoman.models.layers.convolution import NonLocal
from dragoman.models.layers.linear import glorot

GROUPS = 8


@dataclass(frozen=True)
class ResNetConfig:
    """A small residual network (He et al. 2016); every stage halves height and width."""

    kind: ClassVar[str] = "resnet"
    channels: tuple[Size, ...] = setting((32, 64, 128, 256), help="channels of every stage")
    blocks: Depth = setting(2, help="residual blocks per stage")
    width: Size = setting(256, help="size of the memory")
    non_local: bool = setting(False, help="a non-local block after the last stage (Wang et al. 2018)")
    dropout: Share = setting(0.1, help="dropout on the memory")

    def problems(self) -> Iterator[str]:
        if not self.channels:
            yield "channels: found none, expected at least one stage"
        for size in self.channels:
            if size % GROUPS:
                yield f"channels: found {size}, expected multiples of {GROUPS} (groups of the group norms)"


@dataclass(frozen=True)
class PatchesConfig:
    """Image patches as a sequence of vectors, as in the Vision Transformer (Dosovitskiy et al. 2021)."""

    kind: ClassVar[str] = "patches"
    size: Size = setting(8, help="pixels per side of a patch; must divide the image size")
    dropout: Share = setting(0.0, help="dropout on the patch vectors")
    inner: SequenceEncoderConfig = setting(
        TransformerConfig(layers=4, width=256, heads=4, feedforward=1024, positions=LearnedConfig(max_positions=1024)),
        help="encoder of the patches",
    )

    def problems(self) -> Iterator[str]:
        if self.inner.embedding == 0:
            yield "inner.embedding: found 0 (one-hot tokens), expected a size: the inner encoder reads vectors"


@dataclass(frozen=True)
class TorchvisionConfig:
    """A torchvision network up to its last pooling, pretrained or with random weights."""

    kind: ClassVar[str] = "torchvision"
    name: str = setting("resnet18", help="name in torchvision, such as resnet50, mobilenet_v3_small or convnext_tiny")
    weights: Literal["trained", "none"] = setting(
        "trained", help="trained: torchvision downloads its weights when a run starts; none: random weights"
    )
    width: Size = setting(256, help="size of the memory")
    dropout: Share = setting(0.1, help="dropout on the memory")


ImageEncoderConfig = ResNetConfig | PatchesConfig | TorchvisionConfig


def colours(source: Tensor) -> Tensor:
    """Rows of pixels (B, H, W·3) → channels (B, 3, H, W)."""
    rows, height, _ = source.shape
    return source.view(rows, height, -1, COLOURS).permute(0, 3, 1, 2)


def pixels(source: Tensor) -> Tensor:
    """Rows of pixels (B, H, W·3) from 0 to 1 → channels (B, 3, H, W) centred at 0."""
    return (colours(source) - 0.5) * 4


class ResidualBlock(nn.Module):
    """relu(x + norm(conv(relu(norm(conv(x)))))); the first convolution may have a stride.

    Group norm (Wu and He 2018) in place of batch norm keeps the images of a batch independent.
    """

    def __init__(self, inputs: int, channels: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, channels, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.first_norm, self.second_norm = nn.GroupNorm(GROUPS, channels), nn.GroupNorm(GROUPS, channels)
        same = inputs == channels and stride == 1
        # A kernel of 1 with a stride skips pixels, so `forward` leaves them out. With the stride in the convolution,
        # oneDNN in torch 2.13 corrupts memory: 8 channels that are last in memory, two or more threads.
        self.stride = stride
        self.shortcut = nn.Identity() if same else nn.Conv2d(inputs, channels, 1, bias=False)
        for layer in (self.first, self.second):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        nn.init.zeros_(self.second_norm.weight)  # a block starts as the identity, which trains better

    def forward(self, x: Tensor) -> Tensor:
        """(B, I, H, W) → (B, C, H', W')."""
        y = F.relu(self.first_norm(self.first(x)))
        return F.relu(self.shortcut(x[:, :, :: self.stride, :: self.stride]) + self.second_norm(self.second(y)))


class GridEncoder(Encoder):
    """A memory (B, h·w, D) of a feature map; all entries are real, and the final state is their mean."""

    def add_projection(self, channels: int, config: ResNetConfig | TorchvisionConfig) -> None:
        self.width = config.width
        self.project = nn.Linear(channels, config.width)
        self.norm = nn.LayerNorm(config.width)
        self.dropout = nn.Dropout(config.dropout)
        glorot(self.project)

    def memory(self, x: Tensor) -> Memory:
        """The memory of a feature map (B, C, h, w)."""
        entries = self.dropout(self.norm(self.project(x.flatten(2).transpose(1, 2))))
        real = torch.ones(entries.shape[:2], dtype=torch.bool, device=entries.device)
        return Memory(keys=entries, values=entries, mask=real, final=(entries.mean(1),))


class ResNetEncoder(GridEncoder):
    """The last feature map of a small residual network."""

    def __init__(self, config: ResNetConfig, features: int) -> None:
        super().__init__()
        first, *_ = config.channels
        self.stem = nn.Conv2d(COLOURS, first, 3, 1, 1)
        stages: list[nn.Module] = []
        channels = first
        for size in config.channels:
            for number in range(config.blocks):
                stages.append(ResidualBlock(channels, size, 2 if number == 0 else 1))
                channels = size
        if config.non_local:
            stages.append(NonLocal(channels))
        self.stages = nn.Sequential(*stages)
        self.add_projection(channels, config)

    def forward(self, source: Tensor, mask: Tensor) -> Memory:
        """source (B, H, W·3); all rows of an image are real, so the mask (B, H) is ignored."""
        return self.memory(self.stages(F.relu(self.stem(pixels(source)))))


class TorchvisionEncoder(GridEncoder):
    """The last feature map of a torchvision network, projected to the width of the memory.

    Its batch norms always use their stored statistics, which keeps the images of a batch independent.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, config: TorchvisionConfig, features: int) -> None:
        super().__init__()
        self.config = config
        self.trunk = trunk_of(config.name, None)
        # Mean and deviation of ImageNet's colours, which all torchvision networks expect.
        self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406])[:, None, None], persistent=False)
        self.register_buffer("deviation", torch.tensor([0.229, 0.224, 0.225])[:, None, None], persistent=False)
        side = features // COLOURS
        self.eval()
        with torch.no_grad():
            channels = self.trunk(torch.zeros(1, COLOURS, side, side)).shape[1]
        self.add_projection(channels, config)
        self.train()

    def train(self, mode: bool = True) -> TorchvisionEncoder:
        """Switch the mode; the network itself stays in evaluation mode."""
        super().train(mode)
        self.trunk.eval()
        return self

    def load_pretrained(self) -> str:
        """Load torchvision's weights if the settings say so; return a line for the log."""
        if self.config.weights == "none":
            return ""
        self.trunk.load_state_dict(trunk_of(self.config.name, "DEFAULT").state_dict())
        fold_norms(self.trunk)
        count = sum(weight.numel() for weight in self.trunk.parameters())
        return f"{count:,} weights of torchvision's {self.config.name}"

    def forward(self, source: Tensor, mask: Tensor) -> Memory:
        """source (B, H, W·3); the mask is ignored."""
        return self.memory(self.trunk((colours(source) - self.mean) / self.deviation))


@torch.no_grad()
def fold_norms(network: nn.Module) -> None:
    """Fold the statistics of all batch norms into their weights and biases; outputs stay the same.

    A run stores parameters only, so running statistics would be lost when it is loaded.
    """
    for norm in network.modules():
        if isinstance(norm, nn.BatchNorm2d):
            assert norm.running_mean is not None
            assert norm.running_var is not None
            deviation = (norm.running_var + norm.eps).sqrt()
            norm.bias.sub_(norm.weight * norm.running_mean / deviation)
            norm.weight.mul_((1 + norm.eps) ** 0.5 / deviation)
            norm.reset_running_stats()  # mean 0 and variance 1


def trunk_of(name: str, weights: str | None) -> nn.Module:
    """A torchvision network up to its last pooling: images (B, 3, H, W) → (B, C, h, w)."""
    try:
        from torchvision import models
    except ImportError:
        raise MissingExtraError('model.encoder.kind = "torchvision"', "torchvision") from None
    known = models.list_models(module=models)
    if name not in known:
        raise ConfigError(f"model.encoder.name: torchvision has no {name!r}. {hint(name, known)}")
    try:
        network = models.get_model(name, weights=weights)
    except OSError as error:
        raise DragomanError(f"the weights of torchvision's {name} could not be downloaded: {error}") from None
    if hasattr(network, "features"):
        trunk: nn.Module = network.features
    elif hasattr(network, "layer4"):  # a ResNet: all but pooling and output
        trunk = nn.Sequential(*list(network.children())[:-2])
    else:
        raise ConfigError(
            f"model.encoder.name: found {name!r}, which ends in no feature map; expected a convolutional network "
            "such as resnet18, mobilenet_v3_small or convnext_tiny"
        )
    return trunk


class PatchesEncoder(Encoder):
    """A linear projection of every patch, then a sequence encoder."""

    inner: Encoder

    def __init__(self, config: PatchesConfig, features: int) -> None:
        super().__init__()
        size = config.inner.embedding
        side = features // COLOURS
        assert side % config.size == 0, f"patches of {config.size} pixels do not divide an image of {side}"
        self.patches = nn.Conv2d(COLOURS, size, config.size, config.size)
        self.dropout = nn.Dropout(config.dropout)
        self.scale = vector_scale(config.inner)
        self.inner = encoder_of_vectors(config.inner)
        self.width = self.inner.width

    def forward(self, source: Tensor, mask: Tensor) -> Memory:
        """source (B, H, W·3); the mask is ignored."""
        x = self.patches(pixels(source)).flatten(2).transpose(1, 2)  # (B, h·w, E)
        real = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
        return self.inner(self.dropout(x) * self.scale, real)
