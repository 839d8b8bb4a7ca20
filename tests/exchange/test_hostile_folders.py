"""Hostile model folders against `dragoman import`: one clear error each, nothing written elsewhere, no long wait."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from dragoman.base.errors import DragomanError
from dragoman.exchange.huggingface.importing import import_model
from dragoman.exchange.options import ImportOptions
from tests.clock import takes_at_most
from tests.exchange.families import BUILDERS

Change = Callable[[Path], Any]
LONGEST = 1.0  # seconds of processor time: the machine may be busy


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """An intact folder of each family."""
    place = tmp_path_factory.mktemp("hostile")
    found = {}
    for family, seed in (
        ("marian", 0),
        ("bert", 0),
        ("gpt2", 1),
        ("roberta", 0),
        ("t5", 0),
        ("m2m_100", 0),
        ("wav2vec2", 0),
        ("whisper", 2),
    ):
        found[family] = place / family
        found[family].mkdir()
        BUILDERS[family](found[family], seed)
    return found


def config(**changes: Any) -> Change:
    def change(folder: Path) -> None:
        table = json.loads((folder / "config.json").read_text()) | changes
        (folder / "config.json").write_text(json.dumps(table))

    return change


def write(name: str, content: str | bytes) -> Change:
    def change(folder: Path) -> None:
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)

    return change


def header(content: bytes, length: int | None = None) -> Change:
    """A safetensors file with this header."""
    return write("model.safetensors", struct.pack("<Q", len(content) if length is None else length) + content)


def tensors(**changes: torch.Tensor) -> Change:
    def change(folder: Path) -> None:
        weights = load_file(folder / "model.safetensors")
        save_file(weights | {name: changes[name] for name in changes}, folder / "model.safetensors")

    return change


def spoiled(part: str, how: Callable[[torch.Tensor], torch.Tensor]) -> Change:
    """The first weight whose name has this part, changed."""

    def change(folder: Path) -> None:
        weights = load_file(folder / "model.safetensors")
        name = next(name for name in sorted(weights) if part in name)
        save_file(weights | {name: how(weights[name])}, folder / "model.safetensors")

    return change


def remove(*names: str) -> Change:
    return lambda folder: [(folder / name).unlink() for name in names]


def link(name: str, target: str) -> Change:
    def change(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(target)

    return change


def shards(table: Any) -> Change:
    def change(folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        (folder / "model.safetensors.index.json").write_text(json.dumps(table))

    return change


def tokenizer(change_table: Callable[[dict[str, Any]], Any]) -> Change:
    def change(folder: Path) -> None:
        table = json.loads((folder / "tokenizer.json").read_text())
        change_table(table)
        (folder / "tokenizer.json").write_text(json.dumps(table))

    return change


DEEP = "[" * 200_000
BIG = {"a": {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 1 << 42]}}
OVERLAP = {
    "a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
    "b": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
}
CASES: list[tuple[str, str, Change]] = [
    # config.json
    ("marian", "deep JSON", write("config.json", DEEP)),
    ("marian", "a list", write("config.json", "[]")),
    ("marian", "no text", write("config.json", b"\xff\xfe\x00")),
    ("marian", "empty", write("config.json", "")),
    ("marian", "a number of a million digits", write("config.json", '{"d_model": ' + "9" * 1_000_000 + "}")),
    ("marian", "a missing file", remove("config.json")),
    ("marian", "an unknown family", config(model_type="../../etc")),
    ("marian", "a family that is no text", config(model_type=["marian"])),
    ("marian", "a negative size", config(d_model=-8)),
    ("marian", "a huge size", config(d_model=10**18)),
    ("marian", "a size that is true", config(encoder_layers=True)),
    ("marian", "a size that is NaN", write("config.json", '{"model_type": "marian", "d_model": NaN}')),
    ("marian", "a large vocabulary", config(vocab_size=9_999_999)),
    ("marian", "many layers", config(encoder_layers=1000)),
    ("marian", "heads that do not divide", config(encoder_attention_heads=7)),
    ("marian", "an unknown activation", config(activation_function="__import__('os')")),
    ("marian", "a token beyond the vocabulary", config(pad_token_id=10**9)),
    ("marian", "a negative token", config(eos_token_id=-1)),
    ("marian", "dropout above one", config(dropout=7.5)),
    ("gpt2", "no positions", config(n_positions=0)),
    ("bert", "relative positions", config(position_embedding_type="relative_key")),
    ("t5", "an unknown feed-forward layer", config(feed_forward_proj="gated-eval")),
    # weights
    ("marian", "no weights", remove("model.safetensors")),
    ("marian", "an empty file", write("model.safetensors", b"")),
    ("marian", "a header longer than the file", header(b"{}", 1 << 40)),
    ("marian", "a header that is no JSON", header(b"x" * 100)),
    ("marian", "a tensor beyond the file", header(json.dumps(BIG).encode())),
    ("marian", "tensors that overlap", header(json.dumps(OVERLAP).encode())),
    ("marian", "NaN", spoiled("fc1.weight", lambda part: part * float("nan"))),
    ("marian", "infinity", spoiled("fc1.weight", lambda part: part / 0)),
    ("marian", "another shape", spoiled("fc1.weight", lambda part: part[:1].clone())),
    ("marian", "a flat table", spoiled("shared.weight", lambda part: part.flatten().clone())),
    ("bert", "an output layer of its own", tensors(**{"cls.predictions.decoder.weight": torch.ones(3, 3)})),
    ("marian", "a shard elsewhere", shards({"weight_map": {"a": "../../../etc/passwd.safetensors"}})),
    ("marian", "an absolute shard", shards({"weight_map": {"a": "/etc/passwd"}})),
    ("marian", "shards that are no table", shards({"weight_map": [1, 2]})),
    ("marian", "a shard that is missing", shards({"weight_map": {"a": "x.safetensors"}})),
    ("marian", "a pickle", lambda folder: (folder / "model.safetensors").rename(folder / "pytorch_model.bin")),
    ("marian", "a link that leads nowhere", link("model.safetensors", "/nowhere/else")),
    ("marian", "a link to itself", link("config.json", "config.json")),
    (
        "marian",
        "a folder in place of weights",
        lambda f: ((f / "model.safetensors").unlink(), (f / "model.safetensors").mkdir()),
    ),
    # tokenizers
    ("marian", "a vocabulary with wrong ids", write("vocab.json", '{"a": 1e99}')),
    ("marian", "a deep vocabulary", write("vocab.json", DEEP)),
    ("marian", "a SentencePiece file of zeros", write("source.spm", b"\0" * 1000)),
    ("marian", "a SentencePiece file of text", write("target.spm", "import os")),
    ("bert", "tokens that are no text", write("vocab.txt", b"\xff\xfe[PAD]")),
    ("bert", "too many tokens", write("vocab.txt", "x\n" * 200_000)),
    ("bert", "no [MASK]", write("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n")),
    ("roberta", "merges of one piece", write("merges.txt", "#version: 0.2\nabc\n")),
    ("roberta", "merges that are no text", write("merges.txt", b"\xff\xff \xff")),
    ("gpt2", "no model", tokenizer(lambda table: table.pop("model"))),
    ("gpt2", "another kind of model", tokenizer(lambda table: table["model"].update(type="Unigram"))),
    ("gpt2", "merges that are numbers", tokenizer(lambda table: table["model"].update(merges=[1, 2, 3]))),
    ("gpt2", "added tokens that are numbers", tokenizer(lambda table: table.update(added_tokens=[7]))),
    ("gpt2", "ids that are text", tokenizer(lambda table: table["model"]["vocab"].update(x="y"))),
    ("t5", "no tokenizer", remove("spiece.model")),
    ("m2m_100", "no languages", lambda folder: None),
    # speech
    ("wav2vec2", "convolutions of text", config(conv_dim=["512", "x"])),
    ("wav2vec2", "too few strides", config(conv_stride=[5])),
    ("wav2vec2", "a huge kernel", config(conv_kernel=[100_000] * 3, conv_dim=[90_000] * 3, conv_stride=[1] * 3)),
    ("wav2vec2", "groups that do not fit", config(num_conv_pos_embedding_groups=7)),
    ("wav2vec2", "another norm", config(feat_extract_norm="batch")),
    ("wav2vec2", "vocabularies of many languages", write("vocab.json", '{"eng": {"a": 1}}')),
    ("wav2vec2", "a delimiter that is a list", write("tokenizer_config.json", '{"unk_token": [[]], "bos_token": 7}')),
    ("wav2vec2", "a rate that is text", write("preprocessor_config.json", '{"sampling_rate": "fast"}')),
    ("whisper", "no hop", write("preprocessor_config.json", '{"hop_length": 0}')),
    ("whisper", "positions without end", config(max_source_positions=999_999, max_target_positions=999_999)),
    ("whisper", "more mel filters than frequencies", config(num_mel_bins=100_000)),
    ("whisper", "many languages, none given", write("generation_config.json", '{"is_multilingual": true}')),
    ("whisper", "an end that is no token", config(eos_token_id=10**9)),
]


@pytest.mark.parametrize(("family", "name", "change"), CASES, ids=[f"{family}: {name}" for family, name, _ in CASES])
def test_a_hostile_folder_is_one_error(
    folders: dict[str, Path], tmp_path: Path, family: str, name: str, change: Change
) -> None:
    place = tmp_path / "place"
    shutil.copytree(folders[family], place / "model")
    change(place / "model")
    before = snapshot(place)
    with takes_at_most(LONGEST), pytest.raises(DragomanError) as caught:
        import_model(place / "model", ImportOptions(str(place / "run")))
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 600
    assert snapshot(place) == before  # neither a run nor a part of one, and nothing beside it


def snapshot(place: Path) -> list[str]:
    return sorted(str(path) for path in place.rglob("*"))


def test_there_are_fifty() -> None:
    assert len(CASES) >= 50
