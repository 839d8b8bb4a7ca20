"""Fine-tune with LoRA: put adapters into a model, and turn their weights into those of the plain model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor, nn

from dragoman.config.settings import Range, Share, setting
from dragoman.errors import ConfigError, hint
from dragoman.layers.linear import Linear
from dragoman.layers.lora import LoRALinear, merge
from dragoman.training.named_weights import abbreviated, is_matched, matching, top_modules

BASE = "base.safetensors"  # the frozen weights of a run with adapters; its checkpoints hold only what is trained


@dataclass(frozen=True)
class LoRAConfig:
    """Low-rank adapters: only they are trained, and predictions use them merged into the weights."""

    rank: Annotated[int, Range(1, None)] = setting(8, help="r: rows of A and columns of B")
    alpha: Annotated[float, Range(0.0, None, exclusive_minimum=True)] = setting(
        16.0, help="the product of B and A is multiplied by alpha / rank"
    )
    dropout: Share = setting(0.0, help="dropout on the input of the adapters")
    modules: tuple[str, ...] = setting(
        ("*.blocks.*",),
        help='linear layers that get an adapter: names of modules, or patterns such as "*.attention.*"; the default '
        "means all in the blocks of Transformers",
    )
    modules_to_save: tuple[str, ...] = setting(
        (), help='modules that are trained whole besides the adapters, such as a new output layer: ["output"]'
    )

    def problems(self) -> Iterator[str]:
        if not self.modules:
            yield "modules: found an empty list, expected names or patterns of linear layers"


def add_adapters(model: nn.Module, config: LoRAConfig, seed: int) -> int:
    """Put adapters into a model and freeze all other weights; returns how many. The seed determines A."""
    layers = {name: layer for name, layer in model.named_modules() if type(layer) is Linear}
    chosen: dict[str, Linear] = {}
    for pattern in config.modules:
        found = {name: layer for name, layer in layers.items() if is_matched(name, pattern)}
        if not found:
            parts = {name.partition(".")[0] for name in layers} | {name.rpartition(".")[2] for name in layers}
            if not layers:
                raise ConfigError("train.lora: this model has no linear layers of Transformers, expected some")
            raise ConfigError(f"train.lora.modules: no linear layer is called {pattern!r}. {hint(pattern, parts)}")
        chosen |= found
    whole = [
        part for pattern in config.modules_to_save for part in matching(model, pattern, "train.lora.modules_to_save")
    ]
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    for parameter in whole:
        parameter.requires_grad_(True)
    torch.manual_seed(seed)
    for name, layer in chosen.items():
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, LoRALinear(layer, config.rank, config.alpha, config.dropout))
    return len(chosen)


def adapters(model: nn.Module) -> dict[str, LoRALinear]:
    return {name: layer for name, layer in model.named_modules() if isinstance(layer, LoRALinear)}


def check_random_weights(left: Sequence[str], config: LoRAConfig) -> None:
    """Refuse frozen weights that train.start_from did not load: they would stay random."""
    random = [name for name in left if not any(is_matched(name, pattern) for pattern in config.modules_to_save)]
    if random:
        names = ", ".join(f'"{part}"' for part in top_modules(random))
        raise ConfigError(
            f"train.lora: {abbreviated(random)} were not loaded and would stay random; train them whole with "
            f"train.lora.modules_to_save=[{names}]"
        )


def saved_weights(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that checkpoints hold: all; with adapters only those that are trained."""
    only_trained = bool(adapters(model))
    return {name: part for name, part in model.named_parameters() if part.requires_grad or not only_trained}


@torch.no_grad()
def merged_weights(model: nn.Module, saved: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of the plain model, from those that checkpoints hold; the model gives the frozen ones."""
    layers = adapters(model)
    if not layers:
        return dict(saved)
    weights = {name: part.detach().cpu() for name, part in model.named_parameters()}
    weights |= {name: tensor.cpu() for name, tensor in saved.items()}
    for name, layer in layers.items():
        down, up = weights.pop(f"{name}.lora_A"), weights.pop(f"{name}.lora_B")
        weights[f"{name}.weight"] = merge(weights[f"{name}.weight"], down, up, layer.scale)
    return weights
