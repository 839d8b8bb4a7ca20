"""Imported models against transformers itself, with random weights."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
import torch
from safetensors.torch import save_file
from torch.nn import functional as F
from transformers import AutoModelForSeq2SeqLM, MarianConfig, MarianMTModel, MarianTokenizer

from dragoman.data.batch import batch_of
from dragoman.data.tokenizers.base import EOS, PAD
from dragoman.errors import DataError, DragomanError
from dragoman.exchange.huggingface.importing import import_folder
from dragoman.inference.load import load_run
from dragoman.models.encoder_decoder import EncoderDecoder
from dragoman.runs import Run
from dragoman.runs.folder import licence_of
from tests.conftest import call

TEXTS = {
    "source": ["the cat sat on the mat", "a dog reads a book", "where is the red house", "I see four green birds"],
    "target": ["die Katze saß auf der Matte", "ein Hund liest ein Buch", "wo ist das rote Haus", "ich sehe vier Vögel"],
}


def pieces(side: str, size: int) -> bytes:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS[side] * 5),
        model_writer=model,
        vocab_size=size,
        hard_vocab_limit=False,
        model_type="unigram",
        minloglevel=3,
    )
    return model.getvalue()


def shake(model: Any, seed: int) -> None:
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1 * torch.randn_like(parameter))


def marian_folder(folder: Path, seed: int, ending: float = 0.0) -> MarianMTModel:
    """A random Marian in the layout of the OPUS-MT models: <eos> 0, <unk> 1, <pad> last."""
    random = np.random.default_rng(seed)
    torch.manual_seed(seed)
    folder.mkdir()
    for side in ("source", "target"):
        (folder / f"{side}.spm").write_bytes(pieces(side, 60))
    processors = [sentencepiece.SentencePieceProcessor(model_file=str(folder / f"{side}.spm")) for side in TEXTS]
    learned = {p.id_to_piece(i) for p in processors for i in range(3, p.get_piece_size())}
    vocabulary = ["</s>", "<unk>", *sorted(learned), ">>deu<<", "<pad>"]
    (folder / "vocab.json").write_text(json.dumps({token: index for index, token in enumerate(vocabulary)}))
    pad, heads = len(vocabulary) - 1, int(random.choice([1, 2, 4]))
    config = MarianConfig(
        vocab_size=len(vocabulary),
        d_model=8 * heads,
        encoder_layers=int(random.integers(1, 3)),
        decoder_layers=int(random.integers(1, 4)),
        encoder_attention_heads=heads,
        decoder_attention_heads=heads,
        encoder_ffn_dim=int(random.integers(5, 40)),
        decoder_ffn_dim=int(random.integers(5, 40)),
        activation_function=str(random.choice(["swish", "relu", "gelu"])),
        scale_embedding=bool(random.integers(0, 2)),
        dropout=0.0,
        init_std=0.3,
        pad_token_id=pad,
        eos_token_id=0,
        forced_eos_token_id=0,
        decoder_start_token_id=pad,
        num_beams=4,
        max_position_embeddings=64,
    )
    model: MarianMTModel = MarianMTModel(config).eval()
    shake(model, seed)
    with torch.no_grad():
        model.model.shared.weight[pad] = 0.0
        model.final_logits_bias.copy_(0.3 * torch.randn_like(model.final_logits_bias))
        model.final_logits_bias[0, 0] += ending
    model.save_pretrained(folder)
    (folder / "README.md").write_text("---\nlanguage: en\nlicense: cc-by-4.0\n---\n# A model\n")
    return model


@pytest.mark.parametrize("seed", range(6))
def test_marian_has_the_logits_and_gradients_of_transformers(tmp_path: Path, seed: int) -> None:
    theirs = marian_folder(tmp_path / "opus", seed)
    report = import_folder(tmp_path / "opus", tmp_path / "run")
    assert (report.family, report.licence, report.task) == ("marian", "cc-by-4.0", "translate")
    run = Run(tmp_path / "run")
    ours = run.model(torch.device("cpu"))
    assert isinstance(ours, EncoderDecoder)
    tokenizer = MarianTokenizer.from_pretrained(tmp_path / "opus")
    source, target = run.tokenizers()
    batch = batch_of([source.encode(text) for text in TEXTS["source"]], [target.encode(t) for t in TEXTS["target"]])
    inputs = tokenizer(TEXTS["source"], text_target=TEXTS["target"], return_tensors="pt", padding=True)
    assert batch.source_mask.sum(1).tolist() == inputs["attention_mask"].sum(1).tolist()
    labels = inputs["labels"]
    starts = torch.full_like(labels[:, :1], theirs.config.decoder_start_token_id)
    expected = theirs(
        **{k: inputs[k] for k in ("input_ids", "attention_mask")},
        decoder_input_ids=torch.cat([starts, labels[:, :-1]], 1),
    ).logits
    rows = order(run, tokenizer)
    found = ours.logits(batch)
    real = batch.target != PAD
    torch.testing.assert_close(found[real][:, keep(rows)], expected[real][:, theirs_of(rows)], rtol=3e-5, atol=1e-5)

    total, count = ours(batch)
    (total / count).backward()
    masked = labels.masked_fill(labels == theirs.config.pad_token_id, -100)
    F.cross_entropy(expected.flatten(0, 1), masked.flatten()).backward()
    mine = ours.decoder.blocks[0].cross.query.weight.grad
    torch.testing.assert_close(
        mine, theirs.model.decoder.layers[0].encoder_attn.q_proj.weight.grad, rtol=3e-5, atol=1e-5
    )


def order(run: Run, tokenizer: Any) -> list[int]:
    """Their id of each of ours; −1 for <sos>, which they do not have."""
    tokens = run.tokenizers()[1].pieces(range(len(run.tokenizers()[1])))
    special = {"<pad>": tokenizer.pad_token_id, "<unk>": tokenizer.unk_token_id, "<eos>": tokenizer.eos_token_id}
    return [special.get(token, tokenizer.encoder.get(token, -1)) for token in tokens]


def keep(rows: list[int]) -> list[int]:
    return [index for index, row in enumerate(rows) if row >= 0]


def theirs_of(rows: list[int]) -> list[int]:
    return [row for row in rows if row >= 0]


@pytest.mark.parametrize("beams", [1, 4])
def test_marian_writes_what_transformers_writes(tmp_path: Path, beams: int) -> None:
    """At the length limit transformers takes <eos> as certain where ours counts its probability: no such rows."""
    theirs = marian_folder(tmp_path / "opus", 3, ending=4.0)
    tokenizer = MarianTokenizer.from_pretrained(tmp_path / "opus")
    import_folder(tmp_path / "opus", tmp_path / "run")
    found = load_run(tmp_path / "run", "cpu", beam=beams, max_length=15).predict(TEXTS["source"])
    inputs = tokenizer(TEXTS["source"], return_tensors="pt", padding=True)
    bad = [[theirs.config.pad_token_id], [tokenizer.unk_token_id]]
    written = theirs.generate(**inputs, num_beams=beams, max_new_tokens=16, bad_words_ids=bad, early_stopping=False)
    expected = tokenizer.batch_decode(written, skip_special_tokens=True)
    ended = [row for row, tokens in enumerate(written.tolist()) if beams == 1 or 0 in tokens[1:16]]
    assert len(ended) >= 2
    assert [found[row].text for row in ended] == [expected[row] for row in ended]


# ---------------------------------------------------------------------- T5, M2M-100, mBART-50


def logits_agree(
    run_folder: Path, theirs: Any, their_id: dict[str, int], sources: list[str], targets: list[str]
) -> None:
    """Our logits of every target token against theirs; `their_id` names their id of each of our tokens."""
    run = Run(run_folder)
    ours = run.model(torch.device("cpu"))
    assert isinstance(ours, EncoderDecoder)
    source, target = run.tokenizers()
    batch = batch_of([source.encode(text) for text in sources], [target.encode(text) for text in targets])
    tokens = target.pieces(range(len(target)))
    rows = torch.tensor([their_id.get(token, -1) for token in tokens])
    assert int((rows < 0).sum()) <= 1, "only <sos> may be missing there"
    mask = batch.source_mask
    start = torch.full_like(batch.target[:, :1], their_id["<start>"])
    inputs = rows[batch.target[:, :-1]].masked_fill(batch.target[:, :-1] == PAD, their_id["<pad>"])
    prompt = [torch.full_like(start, their_id[name]) for name in ("<prompt>",) if name in their_id]
    expected = theirs(
        input_ids=rows[batch.source],
        attention_mask=mask.long(),
        decoder_input_ids=torch.cat([*prompt, start, inputs], 1),
    ).logits[:, len(prompt) :]
    real, here = batch.target != PAD, rows >= 0
    torch.testing.assert_close(ours.logits(batch)[real][:, here], expected[real][:, rows[here]], rtol=1e-5, atol=1e-5)
    # Step by step, as the search goes.
    state, token = ours.start(batch), batch.target.new_full((len(sources),), 2)
    for index in range(3):
        scores, state = ours.scores(token, state)
        torch.testing.assert_close(scores[:, here], expected[:, index][:, rows[here]], rtol=1e-5, atol=1e-5)
        token = batch.target[:, index]


@pytest.mark.parametrize("seed", range(4))
def test_t5_has_the_logits_of_transformers(tmp_path: Path, seed: int) -> None:
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(seed)
    folder = tmp_path / "t5"
    folder.mkdir()
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter((TEXTS["source"] + TEXTS["target"]) * 5), model_writer=model, vocab_size=70,
        hard_vocab_limit=False, pad_id=0, eos_id=1, unk_id=2, bos_id=-1, minloglevel=3,
    )  # fmt: skip
    (folder / "spiece.model").write_bytes(model.getvalue())
    pieces_there = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    size = pieces_there.get_piece_size()
    config = T5Config(
        vocab_size=size + 104, d_model=24, d_kv=5, d_ff=31, num_layers=2, num_decoder_layers=1 + seed % 2, num_heads=3,
        relative_attention_num_buckets=8, relative_attention_max_distance=20, dropout_rate=0.0,
        feed_forward_proj=("relu", "gated-gelu")[seed // 2], tie_word_embeddings=seed % 2 == 0,
        pad_token_id=0, eos_token_id=1, decoder_start_token_id=0, initializer_factor=1.0,
    )  # fmt: skip
    theirs = T5ForConditionalGeneration(config).eval()
    shake(theirs, seed)
    theirs.save_pretrained(folder)
    if seed == 3:  # as published: an output layer of its own
        theirs.lm_head.weight = torch.nn.Parameter(torch.randn_like(theirs.lm_head.weight))
        save_file({name: tensor.clone() for name, tensor in theirs.state_dict().items()}, folder / "model.safetensors")
    import_folder(folder, tmp_path / "run")
    ids = {pieces_there.id_to_piece(index): index for index in range(size)}
    ids |= {f"<extra_id_{99 - index}>": size + index for index in range(100)}
    ids |= {f"<unused {size + 100 + index}>": size + 100 + index for index in range(4)}
    ids |= {"<pad>": 0, "<eos>": 1, "<unk>": 2, "<start>": 0}
    logits_agree(tmp_path / "run", theirs, ids, TEXTS["source"], TEXTS["target"])


def test_byt5_has_the_logits_of_transformers(tmp_path: Path) -> None:
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(4)
    folder = tmp_path / "byt5"
    config = T5Config(
        vocab_size=384, d_model=24, d_kv=5, d_ff=31, num_layers=1, num_decoder_layers=1, num_heads=3,
        relative_attention_num_buckets=8, relative_attention_max_distance=20, dropout_rate=0.0,
        feed_forward_proj="gated-gelu", pad_token_id=0, eos_token_id=1, decoder_start_token_id=0,
    )  # fmt: skip
    theirs = T5ForConditionalGeneration(config).eval()
    shake(theirs, 4)
    theirs.save_pretrained(folder)
    with pytest.raises(DataError, match="nor the bytes of ByT5"):
        import_folder(folder, tmp_path / "run")
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "ByT5Tokenizer"}')
    import_folder(folder, tmp_path / "run")
    ids = {f"<0x{byte:02X}>": byte + 3 for byte in range(256)} | {"<pad>": 0, "<eos>": 1, "<unk>": 2, "<start>": 0}
    logits_agree(tmp_path / "run", theirs, ids, TEXTS["source"], TEXTS["target"])


@pytest.mark.parametrize("family", ["m2m_100", "mbart"])
def test_multilingual_models_have_the_logits_of_transformers(tmp_path: Path, family: str) -> None:
    from transformers import (
        M2M100Config,
        M2M100ForConditionalGeneration,
        MBartConfig,
        MBartForConditionalGeneration,
    )

    torch.manual_seed(1)
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "sentencepiece.bpe.model").write_bytes(pieces("source", 60))
    there = sentencepiece.SentencePieceProcessor(model_proto=pieces("source", 60))
    codes = ["__en__", "__de__"] if family == "m2m_100" else ["en_XX", "de_DE"]
    vocabulary = ["<s>", "<pad>", "</s>", "<unk>", *(there.id_to_piece(i) for i in range(3, there.get_piece_size()))]
    vocabulary += codes
    table = {token: index for index, token in enumerate(vocabulary)}
    (folder / "vocab.json").write_text(json.dumps(table))
    common: dict[str, Any] = {
        "vocab_size": len(vocabulary), "d_model": 16, "encoder_layers": 2, "decoder_layers": 2,
        "encoder_attention_heads": 2, "decoder_attention_heads": 4, "encoder_ffn_dim": 20, "decoder_ffn_dim": 30,
        "dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0, "max_position_embeddings": 300,
        "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2, "scale_embedding": True,
        "init_std": 0.3,
    }  # fmt: skip
    theirs: Any = (
        M2M100ForConditionalGeneration(M2M100Config(**common, activation_function="relu"))
        if family == "m2m_100"
        else MBartForConditionalGeneration(MBartConfig(**common, activation_function="gelu"))
    ).eval()
    shake(theirs, 5)
    with torch.no_grad():
        theirs.model.shared.weight[1] = 0.0
    theirs.save_pretrained(folder)
    with pytest.raises(DataError, match="--source-language: found nothing, expected one of"):
        import_folder(folder, tmp_path / "run")
    languages = {"source_language": codes[0].strip("_"), "target_language": codes[1]}
    import_folder(folder, tmp_path / "run", languages)
    ids = table | {"<eos>": 2, "<start>": table[codes[1]], "<prompt>": 2}
    logits_agree(tmp_path / "run", theirs, ids, TEXTS["source"], TEXTS["source"][::-1])


# ---------------------------------------------------------------------- exports


@pytest.mark.parametrize(("norm", "tie"), [("pre", "all"), ("pre", "target"), ("post", "all"), ("post", "none")])
def test_transformers_opens_an_exported_run(tmp_path: Path, norm: str, tie: str) -> None:
    from dragoman.exchange.registry import export_run

    run = tiny_run(tmp_path, norm, tie)
    export_run(run, tmp_path / "exported", "huggingface")
    theirs = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "exported").eval()
    tokenizer = MarianTokenizer.from_pretrained(tmp_path / "exported")
    inputs = tokenizer(TEXTS["source"], text_target=TEXTS["target"], return_tensors="pt", padding=True)
    ours = Run(run).model(torch.device("cpu"))
    source, target = Run(run).tokenizers()
    batch = batch_of([source.encode(text) for text in TEXTS["source"]], [target.encode(t) for t in TEXTS["target"]])
    assert inputs["input_ids"].tolist() == batch.source.tolist()
    assert inputs["labels"].tolist() == batch.target.tolist()
    starts = batch.target.new_full((4, 1), 2)
    expected = theirs(
        input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"],
        decoder_input_ids=torch.cat([starts, batch.target[:, :-1]], 1),
    ).logits  # fmt: skip
    found = ours.logits(batch)  # type: ignore[operator]
    torch.testing.assert_close(found, expected[..., : found.shape[-1]], rtol=3e-5, atol=1e-5)
    written = theirs.generate(**{k: inputs[k] for k in ("input_ids", "attention_mask")}, num_beams=1, max_new_tokens=20)
    texts = tokenizer.batch_decode(written, skip_special_tokens=True)
    predicted = load_run(run, "cpu", beam=1, max_length=19).predict(TEXTS["source"])
    assert texts == [one.text for one in predicted]
    assert EOS in written[0].tolist()


def tiny_run(folder: Path, norm: str, tie: str) -> Path:
    from dragoman.runs import train
    from dragoman.tasks.config import build
    from dragoman.training.display import Display

    rows = "".join(f"{s}\t{t}\n" for s, t in zip(TEXTS["source"], TEXTS["target"], strict=True)) * 10
    (folder / "pairs.tsv").write_text(rows, encoding="utf-8")
    side = {
        "kind": "transformer",
        "layers": 1,
        "width": 16,
        "heads": 2,
        "feedforward": 32,
        "norm": norm,
        "dropout": 0.0,
    }
    units = {"kind": "subwords", "vocab_size": 330}
    table = {
        "task": "translate",
        "data": dict.fromkeys(("train", "valid"), str(folder / "pairs.tsv")) | {"cache": str(folder / "cache")},
        "tokenizer": {"source": units} | ({} if tie == "all" else {"target": units | {"vocab_size": 300}}),
        "model": {"tie": tie, "encoder": side, "decoder": side},
        "train": {"steps": 60, "validate_every": 60, "optimizer": {"learning_rate": 0.02, "warmup": 5}},
    }
    train(build(table), folder / "trained", Display(quiet=True))
    return folder / "trained"


def test_a_fine_tuned_run_keeps_the_licence_of_an_imported_one(tmp_path: Path) -> None:
    marian_folder(tmp_path / "opus", 2)
    import_folder(tmp_path / "opus", tmp_path / "run")
    rows = "".join(f"{s}\t{t}\n" for s, t in zip(TEXTS["source"], TEXTS["target"], strict=True)) * 10
    (tmp_path / "pairs.tsv").write_text(rows, encoding="utf-8")
    options = ["train.steps=4", "train.validate_every=4", f"data.cache={tmp_path / 'cache'}", "train.device=cpu"]
    started = call(
        "train", tmp_path / "pairs.tsv", "--run", tmp_path / "tuned", f"train.start_from={tmp_path / 'run'}", *options
    )
    assert started.code == 0, started.err
    assert licence_of(tmp_path / "tuned") == "cc-by-4.0"
    theirs, ours = (Run(tmp_path / name).config.model for name in ("run", "tuned"))
    assert theirs.encoder == ours.encoder


def test_bad_folders_are_one_clear_error(tmp_path: Path) -> None:
    marian_folder(tmp_path / "opus", 1)

    def broken(change: Any, message: str) -> None:
        folder = tmp_path / "broken"
        shutil.copytree(tmp_path / "opus", folder)
        change(folder)
        with pytest.raises(DragomanError, match=message):
            import_folder(folder, tmp_path / "new")
        assert not (tmp_path / "new").exists()
        shutil.rmtree(folder)

    def setting(name: str, value: Any) -> Any:
        def change(folder: Path) -> None:
            table = json.loads((folder / "config.json").read_text()) | {name: value}
            (folder / "config.json").write_text(json.dumps(table))

        return change

    def pickled(folder: Path) -> None:
        (folder / "model.safetensors").rename(folder / "pytorch_model.bin")

    broken(pickled, "pytorch_model.bin, which may hold code and is not opened. Convert it")
    broken(lambda folder: (folder / "config.json").write_text("[" * 100_000), "cannot be read as JSON")
    broken(lambda folder: (folder / "config.json").write_text("[]"), "expected a JSON object")
    broken(lambda folder: (folder / "config.json").unlink(), "no such file; expected a model folder")
    broken(lambda folder: (folder / "model.safetensors").write_bytes(b"x" * 50), "damaged weights")
    broken(lambda folder: (folder / "source.spm").write_bytes(b"x" * 50), "not a SentencePiece model")
    broken(lambda folder: (folder / "vocab.json").write_text('{"a": -5}'), "found the id -5")
    broken(
        setting("model_type", "mariam"), "model_type: found 'mariam', which cannot be imported. Did you mean 'marian'"
    )
    broken(setting("d_model", "8"), "d_model: found '8', expected int")
    broken(setting("d_model", 10**9), "d_model: found 1000000000, expected from 1 to")
    broken(setting("decoder_layers", 900), "the weights have no model.decoder.layers")
    broken(setting("eos_token_id", 10**6), "eos_token_id: found 1000000, expected an id below")
    broken(setting("activation_function", "sine"), "activation_function: found 'sine', expected one of")
    broken(setting("encoder_attention_heads", 3), "heads: found 3, expected a divisor of width")


def test_an_imported_model_goes_back_as_it_came(tmp_path: Path) -> None:
    theirs = marian_folder(tmp_path / "opus", 0, ending=2.0)
    import_folder(tmp_path / "opus", tmp_path / "run")
    shown = call("info", tmp_path / "run")
    assert shown.code == 0, shown.err
    assert "imported: marian, licence cc-by-4.0" in shown.out
    trained = call("train", tmp_path / "run")
    assert trained.code == 2
    assert "fine-tune it in a new run: dragoman train PAIRS.tsv --run NEW train.start_from=" in trained.err
    exported = call("export", tmp_path / "run", "--to", "huggingface", "--output", tmp_path / "back")
    assert exported.code == 0, exported.err
    assert "licence of the imported model: cc-by-4.0" in exported.out
    again = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "back").eval()
    texts = []
    for model, folder in ((theirs, "opus"), (again, "back")):
        tokenizer = MarianTokenizer.from_pretrained(tmp_path / folder)
        inputs = tokenizer(TEXTS["source"], return_tensors="pt", padding=True)
        bad = [[tokenizer.pad_token_id], [tokenizer.unk_token_id]]
        written = model.generate(**inputs, num_beams=1, max_new_tokens=12, bad_words_ids=bad)
        texts.append(tokenizer.batch_decode(written, skip_special_tokens=True))
    assert texts[0] == texts[1]
