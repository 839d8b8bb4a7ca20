"""Which weights a run trains: frozen ones, learning-rate factors, and low-rank adapters (LoRA)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

from dragoman.base import ConfigError, hint
from dragoman.models.layers import Linear, LoRALinear, merge
from dragoman.training.config import LoRAConfig, RateConfig

MAX_NAMES_SHOWN = 6


def abbreviated(names: Sequence[str]) -> str:
    """The first few names, and how many more there are."""
    more = len(names) - MAX_NAMES_SHOWN
    return ", ".join(names[:MAX_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")


def top_modules(names: Iterable[str]) -> list[str]:
    """The distinct first components of dotted names."""
    return list(dict.fromkeys(name.partition(".")[0] for name in names))


def is_matched(name: str, pattern: str) -> bool:
    """Whether a weight is named by a module name, its own name or a pattern."""
    return name == pattern or name.startswith(f"{pattern}.") or fnmatchcase(name, pattern)


def matching(model: nn.Module, pattern: str, place: str) -> list[nn.Parameter]:
    """The weights that a name or pattern matches; ConfigError if there are none."""
    if not pattern.strip():
        raise ConfigError(
            f'{place}: found {pattern!r}, expected the beginning of names, or a pattern ("*": all weights)'
        )
    names = dict(model.named_parameters(remove_duplicate=False))
    matched = [part for name, part in names.items() if is_matched(name, pattern)]
    if not matched:
        near = {*top_modules(names), *(name.rpartition(".")[0] for name in names)}
        raise ConfigError(f"{place}: no weight is called {pattern!r}. {hint(pattern, near)}")
    return matched


def freeze(model: nn.Module, patterns: Sequence[str]) -> list[str]:
    """Exclude weights from training; returns the names of all frozen weights, a shared one under its first name."""
    for pattern in patterns:
        for part in matching(model, pattern, "train.freeze"):
            part.requires_grad_(False)
    frozen = [name for name, part in model.named_parameters() if not part.requires_grad]
    if len(frozen) == len(list(model.parameters())):
        raise ConfigError(f"train.freeze: found {list(patterns)}, which freezes all weights")
    return frozen


def rate_factors(model: nn.Module, rates: Sequence[RateConfig]) -> dict[str, float]:
    """The learning-rate factor of every weight, by its first name; the last matching entry counts."""
    factors: dict[int, float] = {}
    for number, rate in enumerate(rates):
        place = f"train.rates[{number}].names"
        matched = matching(model, rate.names, place)
        if not any(part.requires_grad for part in matched):
            raise ConfigError(f"{place}: found {rate.names!r}, whose weights are all frozen by train.freeze")
        factors |= {id(part): rate.factor for part in matched}
    return {name: factors.get(id(part), 1.0) for name, part in model.named_parameters()}


BASE = "base.safetensors"  # the frozen weights of a run with adapters; its checkpoints hold only what is trained


def add_adapters(model: nn.Module, config: LoRAConfig, seed: int) -> int:
    """Put adapters into a model and freeze all other weights; returns how many. The seed determines A."""
    layers = {name: layer for name, layer in model.named_modules() if type(layer) is Linear}
    chosen: dict[str, Linear] = {}
    for pattern in config.modules:
        matched = {name: layer for name, layer in layers.items() if is_matched(name, pattern)}
        if not matched:
            parts = {name.partition(".")[0] for name in layers} | {name.rpartition(".")[2] for name in layers}
            if not layers:
                raise ConfigError("train.lora: this model has no linear layers of Transformers, expected some")
            raise ConfigError(f"train.lora.modules: no linear layer is called {pattern!r}. {hint(pattern, parts)}")
        chosen |= matched
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
