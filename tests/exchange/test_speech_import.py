"""Imported models of speech against transformers: features, logits, gradients, tokenizers and written text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
import transformers
from torch import Tensor

from dragoman.errors import ConfigError, DataError
from dragoman.exchange.huggingface.importing import import_folder
from dragoman.inference.load import load_run
from dragoman.models.transcriber import Transcriber
from dragoman.runs import Run
from dragoman.tasks.config import from_table
from tests.conftest import call
from tests.exchange.families import BUILDERS, Case
from tests.exchange.test_huggingface_parity import CLOSE, SEEDS, gradients_agree, imported, their_ids

RATE = 16_000
SPOKEN = ["A CHAT", "THE RED TEA", "NO"]


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three recordings of different lengths, and a manifest."""
    folder, random = tmp_path_factory.mktemp("recordings"), np.random.default_rng(0)
    for name, seconds in (("a", 0.11), ("b", 0.06), ("c", 0.083)):
        time = np.arange(int(seconds * RATE)) / RATE
        tones = sum(np.sin(2 * np.pi * random.uniform(100, 4000) * time + random.uniform(0, 6)) for _ in range(4))
        soundfile.write(folder / f"{name}.wav", 0.1 * tones + 0.05 * random.normal(size=len(time)), RATE)
    rows = zip("abc", SPOKEN, strict=True)
    (folder / "manifest.tsv").write_text("".join(f"{name}.wav\t{text}\n" for name, text in rows))
    return folder


def files(recordings: Path) -> list[str]:
    return [str(recordings / f"{name}.wav") for name in "abc"]


def samples(recordings: Path) -> list[Any]:
    return [soundfile.read(path, dtype="float32")[0] for path in files(recordings)]


# ---------------------------------------------------------------------- wav2vec 2.0


def their_ctc_logits(case: Case, folder: Path, recordings: Path) -> list[Tensor]:
    """Each recording alone: with a group norm their padding would change the outputs."""
    extractor = transformers.Wav2Vec2FeatureExtractor.from_pretrained(folder)
    dtype = next(case.theirs.parameters()).dtype
    inputs = [extractor(one, sampling_rate=RATE, return_tensors="pt").input_values for one in samples(recordings)]
    return [case.theirs(one.to(dtype)).logits[0] for one in inputs]


@pytest.mark.parametrize("seed", SEEDS)
def test_wav2vec2_has_their_logits_gradients_and_texts(tmp_path: Path, recordings: Path, seed: int) -> None:
    case, run = imported(tmp_path, "wav2vec2", seed)
    ours, rows = run.model(torch.device("cpu")), their_ids(case, run)
    assert isinstance(ours, Transcriber)
    loaded = load_run(tmp_path / "run", "cpu")
    batch = loaded.collator.collate(loaded.source_tokenizer.encode_batch(files(recordings)))  # type: ignore[attr-defined]
    here = rows >= 0
    assert set(rows[here].tolist()) == set(range(case.theirs.config.vocab_size))
    expected = their_ctc_logits(case, tmp_path / "model", recordings)
    memory = ours.encode(batch.source, batch.source_mask)
    found, mask = ours.ctc.upsample(memory.values, memory.mask)
    for row, theirs in enumerate(expected):
        assert int(mask[row].sum()) == len(theirs)
        torch.testing.assert_close(found[row][mask[row]][:, here], theirs[:, rows[here]], **CLOSE)
    tokenizer = transformers.Wav2Vec2CTCTokenizer.from_pretrained(tmp_path / "model")
    texts = [tokenizer.decode(one.argmax(-1)) for one in expected]
    assert any(texts)
    assert [one.text for one in loaded.predict(files(recordings))] == texts
    ours.double()
    case.theirs.double()
    memory = ours.encode(batch.source.double(), batch.source_mask)
    found, mask = ours.ctc.upsample(memory.values, memory.mask)
    found[mask][:, here].logsumexp(-1).sum().backward()
    sum(one.logsumexp(-1).sum() for one in their_ctc_logits(case, tmp_path / "model", recordings)).backward()  # type: ignore[union-attr]
    gradients_agree(ours, case, tmp_path, rows)


@pytest.mark.parametrize("seed", [1, 3, 6])
def test_wav2vec2_splits_texts_as_transformers_does(tmp_path: Path, seed: int) -> None:
    case, run = imported(tmp_path, "wav2vec2", seed)
    theirs = transformers.Wav2Vec2CTCTokenizer.from_pretrained(tmp_path / "model")
    ours, rows = run.tokenizers()[1], their_ids(case, run)
    for text in ("the tea", "a cat's hat", "TEA or chat", "x  y", "straße, ok"):
        assert rows[ours.encode(text)].tolist() == theirs(text).input_ids, text
        assert len(ours.spans(text)) == len(ours.encode(text))
    assert ours.decode(ours.encode(" no tea ")) == theirs.decode(theirs(" no tea ").input_ids, group_tokens=False)


def test_an_imported_wav2vec2_predicts_evaluates_and_is_fine_tuned(tmp_path: Path, recordings: Path) -> None:
    imported(tmp_path, "wav2vec2", 1)
    run, manifest = tmp_path / "run", recordings / "manifest.tsv"
    predicted = call("predict", run, manifest).lines
    assert predicted == [one.text for one in load_run(run, "cpu").predict(files(recordings))]
    scores = json.loads(call("evaluate", run, manifest, "--json").out)
    assert "wer" in str(scores)
    call("train", str(manifest), "task=transcribe", "--run", str(tmp_path / "fine"), f"train.start_from={run}",
         "train.steps=1", f"data.valid={manifest}", "-q")  # fmt: skip
    before, after = (Run(one).model(torch.device("cpu")).state_dict() for one in (run, tmp_path / "fine"))
    assert before.keys() == after.keys()
    changed = [name for name in before if not torch.equal(before[name], after[name])]
    assert "encoder.positions.direction" in changed
    assert "encoder.subsampling.layers.0.weight" in changed
    assert Run(tmp_path / "fine").config.train.optimizer.learning_rate == pytest.approx(5e-5)


def test_adapters_are_refused(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    BUILDERS["wav2vec2"](tmp_path / "model", 0)
    path = tmp_path / "model" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"add_adapter": True}))
    with pytest.raises(DataError, match="add_adapter: found True"):
        import_folder(tmp_path / "model", tmp_path / "run")


def test_samples_and_the_convolutions_that_read_them_go_together() -> None:
    table = {
        "task": "transcribe",
        "data": {"train": "x.tsv"},
        "tokenizer": {"source": {"kind": "waveform"}, "target": {"kind": "characters"}},
    }
    with pytest.raises(ConfigError, match=r'found "conv2d" with tokenizer\.source "waveform"'):
        from_table(table)
    table["model"] = {
        "kind": "transcriber",
        "encoder": {"kind": "frames", "subsampling": {"kind": "waveform", "kernels": [20, 3, 3, 3, 3, 2, 2]}},
    }
    with pytest.raises(ConfigError, match="min_samples: found 400, expected at least 410"):
        from_table(table)
