"""Captured and compiled training steps against plain ones."""

from __future__ import annotations

import inspect
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from dragoman.auto.portfolio import LIKE_T5
from dragoman.base.errors import RunError
from dragoman.base.files import COMPILER_CACHES, set_compiler_caches
from dragoman.models.kernels import short_attention
from dragoman.models.layers import positions
from dragoman.runs import train
from dragoman.training.checkpoints import read_tensors
from dragoman.training.display import Display
from dragoman.training.step import CudaGraphStep, TrainingStep
from tests.conftest import write_rows
from tests.training.conftest import Configure

on_gpu = pytest.mark.gpu
DEEP_HEADS = ("model.encoder.width=32", "model.decoder.width=32")  # heads of 16 numbers, for the attention kernel
STEPS = ("train.steps=40", "train.validate_every=20", "train.save_every=40", "train.device=cuda")


def test_no_caller_forgets_the_step_of_schedules() -> None:
    """Where train.minutes ends training early, a default would be wrong in silence."""
    scheduled = inspect.signature(TrainingStep.__call__).parameters["scheduled"]
    assert scheduled.default is inspect.Parameter.empty


def test_a_step_on_a_cpu_seeds_no_gpu(configure: Configure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seeding a GPU that was not used yet takes as long as a layer: torch writes down the call stack."""
    seeds: list[int] = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeds.append)
    train(configure("train.steps=1"), tmp_path / "short")
    once = len(seeds)
    train(configure("train.steps=3"), tmp_path / "long")
    assert len(seeds) == 2 * once


@on_gpu
@pytest.mark.parametrize("case", ["ema", "recurrent"])
def test_captured_steps_give_the_same_weights(
    configure: Configure, tmp_path: Path, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit, dropout, clipping and average included, and with every shape first plain and then captured."""
    config = configure(*STEPS, "train.compile=graphs", "train.accumulate=1", case=case)
    check_captured_steps(config, tmp_path, monkeypatch)


@on_gpu
def test_captured_steps_with_a_bias_of_positions_give_the_same_weights(
    configure: Configure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    biased, attend_short = [], short_attention.attend_short

    def watched(*given: Any) -> Any:
        biased.append(given[7] is not None)
        return attend_short(*given)

    monkeypatch.setattr(short_attention, "attend_short", watched)
    more = (
        "train.compile=graphs",
        "train.accumulate=1",
        "train.precision=bfloat16",
        "model.encoder.attention_dropout=0.1",
    )
    check_captured_steps(configure(*STEPS, *LIKE_T5, *DEEP_HEADS, *more), tmp_path, monkeypatch)
    assert any(biased), "the kernel did not run"


def check_captured_steps(config: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare a training with one in which no step is captured."""
    weights = {}
    for way in ("captured", "plain"):
        train(config, folder / way)
        weights[way] = read_tensors(folder / way / "checkpoints" / "00000040" / "weights.safetensors")
        monkeypatch.setattr(CudaGraphStep, "_capture", lambda self, batch: None)
    for name, part in weights["plain"].items():
        assert torch.equal(part, weights["captured"][name]), name


@on_gpu
def test_captured_steps_survive_rows_beyond_every_table(
    configure: Configure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of up to 700 tokens come between short ones whose graphs were captured before."""
    positions._TABLES.clear()
    rows = [(" ".join("ab"[i % 2] for i in range(size)), " ".join("cd"[i % 2] for i in range(size)))
            for size in [20] * 12 + [60] * 8 + [320] * 4 + [700] * 3]  # fmt: skip
    write_rows(tmp_path / "long.tsv", rows)
    config = configure(
        *STEPS, "train.compile=graphs", "train.accumulate=1", "data.max_length=800", "train.batch_tokens=1500",
        data=tmp_path / "long.tsv",
    )  # fmt: skip
    check_captured_steps(config, tmp_path, monkeypatch)


@on_gpu
@pytest.mark.parametrize("settings", [(), (*LIKE_T5, *DEEP_HEADS)], ids=["default", "like T5"])
def test_fused_layers_learn_what_plain_ones_learn(
    configure: Configure, tmp_path: Path, settings: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    still = ("model.encoder.dropout=0.0", "model.decoder.dropout=0.0", "model.word_dropout=0.0")
    losses = {}
    for way in ("graphs", "off"):
        more = ("train.accumulate=1", "train.precision=bfloat16", f"train.compile={way}")
        train(configure(*STEPS, *still, *more, *settings), tmp_path / way)
        rows = [json.loads(line) for line in (tmp_path / way / "metrics.jsonl").read_text().splitlines()]
        losses[way] = [row["loss"] for row in rows if "loss" in row]
        monkeypatch.setattr(short_attention, "supports", lambda *given: False)
    # Weights would be too much to ask: where a gradient is noise around zero, Adam makes steps of its sign.
    assert losses["graphs"] != losses["off"]
    assert losses["graphs"] == pytest.approx(losses["off"], rel=1e-2)


@pytest.mark.parametrize(("device", "precision"), [pytest.param("cuda", "bfloat16", marks=on_gpu), ("cpu", "float32")])
def test_activations_that_are_computed_again_have_the_same_dropout(
    device: str, precision: str, configure: Configure, tmp_path: Path
) -> None:
    weights = {}
    settings = (*STEPS, "train.accumulate=1", f"train.precision={precision}", f"train.device={device}")
    for way, more in (("again", ("train.checkpoint_activations=true",)), ("kept", ("train.compile=off",))):
        train(configure(*settings, *more), tmp_path / way)
        weights[way] = read_tensors(tmp_path / way / "checkpoints" / "00000040" / "weights.safetensors")
    for name, part in weights["kept"].items():
        torch.testing.assert_close(part, weights["again"][name], msg=name)


class Listening(Display):
    """Keeps what is said."""

    def __init__(self) -> None:
        super().__init__(quiet=True)
        self.said: list[str] = []

    def info(self, *lines: str) -> None:
        self.said += lines


def test_what_stands_in_the_way_of_graphs_is_told(configure: Configure, tmp_path: Path) -> None:
    display = Listening()
    config = configure("train.compile=graphs", "train.steps=2", "train.accumulate=2", "train.device=cpu")
    train(config, tmp_path / "run", display)
    told = [line for line in display.said if "CUDA graphs" in line]
    assert told == ["plain training steps, without CUDA graphs: there is no GPU; train.accumulate is 2"]
    silent = Listening()
    train(configure("train.steps=2", "train.device=cpu"), tmp_path / "other", silent)
    assert not [line for line in silent.said if "CUDA graphs" in line]


def test_compiled_code_is_kept_for_the_next_run(cached: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's own folder for compiled code is ours once a run compiles, unless the user has named one."""
    from torch._inductor.runtime.cache_dir_utils import cache_dir, triton_cache_dir

    for name in COMPILER_CACHES:
        monkeypatch.setenv(name, "")  # so that it is put back at the end
        monkeypatch.delenv(name)
    set_compiler_caches()
    folder = cached.resolve() / f"compiled-{os.getuid()}"
    assert Path(cache_dir()) == folder / "inductor"
    assert Path(triton_cache_dir(0)) == folder / "triton"
    assert folder.stat().st_mode & 0o777 == 0o700  # a process runs what it finds there
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(cached / "elsewhere"))
    set_compiler_caches()
    assert Path(cache_dir()) == (cached / "elsewhere").absolute()


def test_code_that_others_can_write_is_not_run(cached: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in COMPILER_CACHES:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    folder = cached.resolve() / f"compiled-{os.getuid()}"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    with pytest.raises(RunError, match="other users can write here"):
        set_compiler_caches()
