"""Fine-tuning with low-rank adapters: against peft, merged, resumed, and with a score of general text."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from dragoman.base.config import merge
from dragoman.base.errors import ConfigError
from dragoman.data.batch import batch_of
from dragoman.exchange.registry import export_run
from dragoman.inference.load import load_run
from dragoman.models.config import EncoderDecoderConfig, TransformerConfig
from dragoman.models.encoder_decoder import EncoderDecoder
from dragoman.models.layers.linear import Linear, LoRALinear
from dragoman.runs import Run, train
from dragoman.runs.tasks.config import build
from dragoman.training.checkpoints import read_tensors
from dragoman.training.config import LoRAConfig
from dragoman.training.display import Display
from dragoman.training.optimizer import load_weights
from dragoman.training.trained_weights import add_adapters, merged_weights, saved_weights
from tests.conftest import quiet_machine

STACK = {"layers": 1, "width": 16, "heads": 2, "feedforward": 32, "dropout": 0.1}
QUICK = {
    "steps": 4, "validate_every": 2, "save_every": 2, "log_every": 1, "batch_tokens": 200,
    "optimizer": {"learning_rate": 1e-2, "warmup": 1},
}  # fmt: skip
LETTERS = "abcdefgh"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A trained run, and pairs of another kind."""
    folder = tmp_path_factory.mktemp("lora")
    words = [LETTERS[start:] + LETTERS[:start] for start in range(8)]
    pairs = [(one, other) for one in words for other in words]
    (folder / "copy.tsv").write_text("".join(f"{one}\t{other}{one}\n" for one, other in pairs))
    (folder / "turn.tsv").write_text("".join(f"{one}\t{one[::-1]}\n" for one, _ in pairs))
    units = {"source": {"kind": "subwords", "vocab_size": 300}}
    with quiet_machine(folder / "cache"):
        fit(folder, "base", "copy", tokenizer=units, model={"tie": "all", "encoder": STACK, "decoder": STACK})
        yield folder


def fit(folder: Path, name: str, pairs: str, **more: Any) -> Path:
    table = merge({"data": {"train": str(folder / f"{pairs}.tsv"), "holdout": 8}, "train": QUICK}, more)
    train(build(table), folder / name, Display(quiet=True))
    return folder / name


def adapted(folder: Path, name: str, **more: Any) -> Path:
    settings = {
        "model": {"tie": "all", "encoder": STACK, "decoder": STACK},
        "train": {"start_from": str(folder / "base"), "lora": {"rank": 2, "dropout": 0.1}},
        "data": {"general": str(folder / "copy.tsv")},
    }
    return fit(folder, name, "turn", **merge(settings, more))


@pytest.mark.slow  # peft alone takes seconds to import
def test_layers_are_those_of_peft() -> None:
    """The same sums and gradients as peft's layer."""
    from peft import LoraConfig as TheirConfig
    from peft import get_peft_model

    torch.manual_seed(1)
    plain = torch.nn.Sequential(torch.nn.Linear(7, 5))
    ours_layer = Linear(7, 5)
    ours_layer.load_state_dict(plain[0].state_dict())
    theirs = get_peft_model(plain, TheirConfig(r=3, lora_alpha=12, target_modules=["0"]))
    ours = LoRALinear(ours_layer, 3, 12.0, 0.0)
    layer = theirs.base_model.model[0]
    with torch.no_grad():
        ours.lora_B.normal_()
        layer.lora_A.default.weight.copy_(ours.lora_A)
        layer.lora_B.default.weight.copy_(ours.lora_B)
    x = torch.randn(4, 7)
    torch.testing.assert_close(ours(x), theirs(x))
    ours(x).square().sum().backward()
    theirs(x).square().sum().backward()
    torch.testing.assert_close(ours.lora_A.grad, layer.lora_A.default.weight.grad)
    torch.testing.assert_close(ours.lora_B.grad, layer.lora_B.default.weight.grad)


def test_an_adapter_adds_a_product_to_the_matrix() -> None:
    """W + (α / r) B A, and its gradients."""
    torch.manual_seed(1)
    layer = LoRALinear(Linear(7, 5), 3, 12.0, 0.0)
    torch.nn.init.normal_(layer.lora_B)
    x = torch.randn(4, 7)
    closed = torch.nn.functional.linear(x, layer.weight + 4.0 * layer.lora_B @ layer.lora_A, layer.bias)
    torch.testing.assert_close(layer(x), closed)
    parts = (layer.lora_A, layer.lora_B)
    found, expected = (torch.autograd.grad(y.square().sum(), parts) for y in (layer(x), closed))
    torch.testing.assert_close(found, expected)


def tiny() -> EncoderDecoder:
    torch.manual_seed(2)
    stack = TransformerConfig(layers=2, width=8, heads=2, feedforward=12, dropout=0.0, gated=True)
    return EncoderDecoder(EncoderDecoderConfig(tie="all", encoder=stack, decoder=stack), 20, 20).eval()


def test_merged_weights_give_the_same_model() -> None:
    model, plain = tiny(), tiny()
    count = add_adapters(model, LoRAConfig(rank=3, alpha=5.0, modules=("*.attention.*", "decoder.blocks.1.cross")), 1)
    assert count == 2 * 2 + 2 * 2 + 4
    batch = batch_of([[5, 6, 7], [8]], [[9, 10], [11, 12]])
    torch.testing.assert_close(model.logits(batch), plain.logits(batch))  # B is zero
    trained = saved_weights(model)
    assert all(name.rpartition(".")[2] in ("lora_A", "lora_B") for name in trained)
    with torch.no_grad():
        for parameter in trained.values():
            parameter.normal_(std=0.3)
    load_weights(plain, merged_weights(model, {name: part.detach() for name, part in trained.items()}))
    torch.testing.assert_close(plain.logits(batch), model.logits(batch), rtol=1e-5, atol=1e-5)


def test_places_without_layers_are_errors() -> None:
    with pytest.raises(ConfigError, match=r"train.lora.modules: no linear layer is called 'decodr'.*decoder"):
        add_adapters(tiny(), LoRAConfig(modules=("decodr",)), 1)
    with pytest.raises(ConfigError, match=r"train\.lora\.modules_to_save: no weight is called 'head'"):
        add_adapters(tiny(), LoRAConfig(modules_to_save=("head",)), 1)
    with pytest.raises(ConfigError, match="lora: adapters change trained weights"):
        build({"data": {"train": "x.tsv"}, "train": {"lora": {"rank": 2}}})


def test_a_run_trains_adapters_alone_and_predicts_with_them_merged(place: Path) -> None:
    run = adapted(place, "adapted")
    before, after = (Run(folder).model(torch.device("cpu")).state_dict() for folder in (place / "base", run))
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed
    assert all(".blocks." in name and name.endswith(".weight") and "norm" not in name for name in changed)
    small = read_tensors(run / "checkpoints" / "00000004" / "weights.safetensors")
    assert all("lora_" in name for name in small)
    moments = read_tensors(run / "checkpoints" / "00000004" / "optimizer.safetensors")
    assert all("lora_" in name for name in moments)
    newest = merged_weights(with_adapters(run), small)
    for name, tensor in newest.items():
        if name in changed:
            assert torch.linalg.matrix_rank((tensor - before[name]).double(), atol=1e-6) <= 2
    general = json.loads((run / "general.json").read_text())
    rows = [row for row in Run(run).metrics() if "valid" in row]
    assert general["loss"] > 0
    assert all(row["general"]["loss"] != general["loss"] for row in rows)
    export_run(run, place / "exported", "huggingface")
    assert load_run(run, "cpu").predict(["abcdefgh"])


def with_adapters(run: Path) -> Any:
    config = Run(run).config
    model = copy.deepcopy(Run(run).model(torch.device("cpu")))
    load_weights(model, read_tensors(run / "base.safetensors"))
    add_adapters(model, config.train.lora, config.train.seed)
    return model


def test_a_resumed_run_has_the_same_weights(place: Path) -> None:
    whole = read_tensors(adapted(place, "whole") / "weights.safetensors")
    adapted(place, "parts", train={"steps": 2})
    weights = place / "base" / "weights.safetensors"
    weights.rename(place / "moved")  # the run keeps the frozen weights
    try:
        train(build(json_table(place / "parts", 4)), place / "parts", Display(quiet=True))
    finally:
        (place / "moved").rename(weights)
    resumed = read_tensors(place / "parts" / "weights.safetensors")
    assert whole.keys() == resumed.keys()
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


def json_table(run: Path, steps: int) -> dict[str, Any]:
    from dragoman.base.config import read_toml

    return merge(read_toml(run / "config.toml"), {"train": {"steps": steps}})


def test_new_layers_must_be_trained_whole(place: Path) -> None:
    (place / "labels.tsv").write_text("".join(f"{LETTERS[n:]}x\t{n % 2}\n" for n in range(8)) * 4)
    settings = {
        "task": "classify",
        "model": {"encoder": {"kind": "transformer", **STACK}},
        "train": {"start_from": {"run": str(place / "base"), "parts": ["encoder"]}, "lora": {"rank": 2}},
    }
    with pytest.raises(ConfigError, match=r'output.weight, output.bias were not loaded .*modules_to_save=\["output"\]'):
        fit(place, "labels", "labels", **settings)
    settings["train"]["lora"]["modules_to_save"] = ["output"]  # type: ignore[index]
    fit(place, "labels", "labels", **settings)
    kept = read_tensors(place / "labels" / "checkpoints" / "00000004" / "weights.safetensors")
    assert {"output.weight", "output.bias"} < set(kept)
