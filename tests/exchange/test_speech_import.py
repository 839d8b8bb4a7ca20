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
from transformers import GenerationMixin

from dragoman.base.errors import ConfigError, DataError
from dragoman.data.media.audio import WhisperMelConfig
from dragoman.data.media.feature_extractor import FeatureExtractor
from dragoman.data.tokenizers.base import PAD
from dragoman.exchange.huggingface.importing import import_model
from dragoman.exchange.options import ImportOptions
from dragoman.inference.load import load_run
from dragoman.models.captioner import SpeechToText
from dragoman.models.transcriber import Transcriber
from dragoman.runs import Run
from dragoman.runs.tasks.config import from_table
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
    memory = ours.encode(batch.source.data, batch.source.mask)
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
    memory = ours.encode(batch.source.data.double(), batch.source.mask)
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
        import_model(tmp_path / "model", ImportOptions(str(tmp_path / "run")))


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


# ---------------------------------------------------------------------- Whisper


@pytest.mark.parametrize(
    ("features", "fft", "hop", "seconds"), [(80, 400, 160, 30), (128, 400, 160, 30), (5, 200, 80, 1)]
)
def test_features_are_those_of_whisper(recordings: Path, features: int, fft: int, hop: int, seconds: int) -> None:
    theirs = transformers.WhisperFeatureExtractor(features, RATE, hop, seconds, fft)
    config = WhisperMelConfig(RATE, False, features, fft, hop, seconds)
    for path, wave in zip(files(recordings), samples(recordings), strict=True):
        expected = theirs(wave, sampling_rate=RATE).input_features[0].T
        np.testing.assert_allclose(FeatureExtractor(config).encode(str(path)), expected, rtol=0, atol=1e-6)


def whisper_prompt(case: Case) -> list[int]:
    return [index for name, index in case.ids.items() if name.startswith("<prompt ")]


@pytest.mark.parametrize("seed", SEEDS)
def test_whisper_has_their_logits_gradients_and_texts(tmp_path: Path, recordings: Path, seed: int) -> None:
    case, run = imported(tmp_path, "whisper", seed)
    ours, rows = run.model(torch.device("cpu")), their_ids(case, run)
    assert isinstance(ours, SpeechToText)
    loaded: Any = load_run(tmp_path / "run", "cpu")
    here, tokenizer = rows >= 0, loaded.target_tokenizer
    assert int((~here).sum()) == 3, "<pad>, <unk> and <sos> are ours"
    sources = loaded.source_tokenizer.encode_batch(files(recordings))
    batch = loaded.collator.collate(sources, [tokenizer.encode(text) for text in SPOKEN])
    features = torch.from_numpy(np.stack(sources)).transpose(1, 2)
    start = torch.tensor(whisper_prompt(case)).expand(3, -1)
    inputs = torch.cat([start, rows[batch.target[:, :-1]].clamp(min=0)], 1)
    real, skipped = batch.target != PAD, start.shape[1] - 1

    def logits(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        memory = ours.encode(batch.source.data.to(dtype), batch.source.mask)
        found = ours.decoder_head.logits(memory, batch.target)
        theirs = case.theirs(input_features=features.to(dtype), decoder_input_ids=inputs).logits[:, skipped:]
        return found[real][:, here], theirs[real][:, rows[here]]

    torch.testing.assert_close(*logits(torch.float32), **CLOSE)
    ours.double()
    case.theirs.double()
    ours.get_parameter("encoder.inner.input.positions.table").requires_grad_(False)  # like theirs
    for one in logits(torch.float64):
        one.logsumexp(-1).sum().backward()
    gradients_agree(ours, case, tmp_path, rows)
    case.theirs.float()
    whisper_texts_agree(case, tmp_path, recordings, features, rows)


def whisper_texts_agree(case: Case, tmp_path: Path, recordings: Path, features: Tensor, rows: Tensor) -> None:
    """Greedy and beam search with their rule of when to stop; rows without <eos> at the limit are left out."""
    own = json.loads((tmp_path / "model" / "generation_config.json").read_text())
    prompt, longest, end = whisper_prompt(case), 15, case.ids["<eos>"]
    tokenizer = Run(tmp_path / "run").tokenizers()[1]
    our_id = {int(row): index for index, row in enumerate(rows.tolist()) if row >= 0}
    for beams in (1, 4):
        loaded = load_run(tmp_path / "run", "cpu", beam=beams, max_length=longest, stop="complete", length_penalty=0.0)
        found = loaded.predict(files(recordings))
        output = GenerationMixin.generate(
            case.theirs, features, decoder_input_ids=torch.tensor(prompt).expand(3, -1), num_beams=beams,
            suppress_tokens=own["suppress_tokens"], begin_suppress_tokens=own["begin_suppress_tokens"],
            early_stopping=beams > 1, max_new_tokens=longest + 1, do_sample=False, length_penalty=0.0, use_cache=False,
        )  # fmt: skip
        for row, tokens in enumerate(output[:, len(prompt) :].tolist()):
            ends = end in tokens[:longest]
            if beams == 1 or ends:
                text = tokens[: tokens.index(end)] if ends else tokens[:longest]
                assert text
                assert found[row].text == tokenizer.decode([our_id[token] for token in text]), (beams, row)


def test_whisper_splits_texts_as_transformers_does(tmp_path: Path) -> None:
    case, run = imported(tmp_path, "whisper", 0)
    theirs = transformers.WhisperTokenizer(
        str(tmp_path / "model" / "vocab.json"), str(tmp_path / "model" / "merges.txt")
    )  # fmt: skip
    ours, rows = run.tokenizers()[1], their_ids(case, run)
    for text in ("the cat sat on the mat", "Grüße, it's 12 o'clock!"):
        expected = theirs(" " + text, add_special_tokens=False).input_ids
        assert rows[ours.encode(text)].tolist() == expected
        assert ours.decode(ours.encode(text)) == text == theirs.decode(expected).removeprefix(" ")


def test_an_imported_whisper_predicts_evaluates_and_is_fine_tuned(tmp_path: Path, recordings: Path) -> None:
    imported(tmp_path, "whisper", 3)
    run, manifest = tmp_path / "run", recordings / "manifest.tsv"
    assert call("predict", run, manifest).lines == [one.text for one in load_run(run, "cpu").predict(files(recordings))]
    assert "wer" in str(json.loads(call("evaluate", run, manifest, "--json").out))
    call("train", manifest, "task=transcribe", "--run", tmp_path / "fine", f"train.start_from={run}",
         "train.steps=1", f"data.valid={manifest}", "-q")  # fmt: skip
    before, after = (Run(one).model(torch.device("cpu")).state_dict() for one in (run, tmp_path / "fine"))
    assert before.keys() == after.keys()
    changed = [name for name in before if not torch.equal(before[name], after[name])]
    assert "encoder.subsampling.layers.0.weight" in changed
    assert "encoder.inner.input.positions.table" not in changed


def test_multilingual_models_need_a_language(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    BUILDERS["whisper"](tmp_path / "model", 0)
    with pytest.raises(DataError, match="source_language=…: found nothing, expected one of en, de"):
        import_model(tmp_path / "model", ImportOptions(str(tmp_path / "run")))
    with pytest.raises(DataError, match="target_language=…: found de, expected en"):
        import_model(tmp_path / "model", ImportOptions(str(tmp_path / "run"), "en", "de"))
