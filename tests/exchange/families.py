"""Random models of transformers with random settings, saved in the layout of published folders."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import sentencepiece
import tokenizers
import torch
import transformers
from safetensors import safe_open
from safetensors.torch import save_file
from tokenizers import models, normalizers, pre_tokenizers, trainers

from dragoman.exchange.huggingface.checkpoint import Checkpoint
from dragoman.exchange.huggingface.importing import FAMILIES

TEXTS = {
    "source": ["the cat sat on the mat", "a dog reads a book", "where is the red house", "I see four green birds"],
    "target": ["die Katze saß auf der Matte", "ein Hund liest ein Buch", "wo ist das rote Haus", "ich sehe vier Vögel"],
}


class Case(NamedTuple):
    """A saved model."""

    theirs: Any
    ids: dict[str, int]  # their id of each of our tokens, and of <start> and <prompt> where they differ from those
    options: Mapping[str, str] = MappingProxyType({})
    factors: Mapping[str, float] = MappingProxyType({})  # our gradient of a table / theirs, where ours is scaled


@lru_cache
def pieces(side: str, size: int, **ids: int) -> bytes:
    """A SentencePiece model."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter((TEXTS.get(side) or TEXTS["source"] + TEXTS["target"]) * 5), model_writer=model,
        vocab_size=size, hard_vocab_limit=False, model_type="unigram", minloglevel=3, **ids,
    )  # fmt: skip
    return model.getvalue()


def finish(model: Any, folder: Path, seed: int) -> Any:
    """Give all parameters random values, make <eos> likely, save."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1 * torch.randn_like(parameter))
        table = model.get_input_embeddings().weight
        if model.config.eos_token_id is not None:
            table[model.config.eos_token_id] *= 3
    model.eval().save_pretrained(folder)
    return model


def stack_sizes(random: np.random.Generator) -> dict[str, Any]:
    heads = int(random.choice([1, 2, 4]))
    return {
        "d_model": 8 * heads,
        "encoder_layers": int(random.integers(1, 3)),
        "decoder_layers": int(random.integers(1, 3)),
        "encoder_attention_heads": heads,
        "decoder_attention_heads": int(random.choice([1, 2])),
        "encoder_ffn_dim": int(random.integers(5, 40)),
        "decoder_ffn_dim": int(random.integers(5, 40)),
        "scale_embedding": bool(random.integers(0, 2)),
        "dropout": 0.0,
        "attention_dropout": 0.0,
        "activation_dropout": 0.0,
        "init_std": 0.3,
        "max_position_embeddings": 64,
    }


def marian(folder: Path, seed: int) -> Case:
    """In the layout of the OPUS-MT models: <eos> 0, <unk> 1, <pad> last."""
    random = np.random.default_rng(seed)
    for side in TEXTS:
        (folder / f"{side}.spm").write_bytes(pieces(side, 60))
    processors = [sentencepiece.SentencePieceProcessor(model_proto=pieces(side, 60)) for side in TEXTS]
    learned = {p.id_to_piece(i) for p in processors for i in range(3, p.get_piece_size())}
    ids = {token: index for index, token in enumerate(["</s>", "<unk>", *sorted(learned), ">>deu<<", "<pad>"])}
    (folder / "vocab.json").write_text(json.dumps(ids))
    config = transformers.MarianConfig(
        **stack_sizes(random), vocab_size=len(ids), pad_token_id=ids["<pad>"], eos_token_id=0, forced_eos_token_id=0,
        decoder_start_token_id=ids["<pad>"], activation_function=str(random.choice(["swish", "relu", "gelu"])),
    )  # fmt: skip
    model = transformers.MarianMTModel(config)
    with torch.no_grad():
        model.final_logits_bias.copy_(0.3 * torch.randn_like(model.final_logits_bias))
    theirs = finish(model, folder, seed)
    return Case(theirs, ids | {"<eos>": 0, "<start>": ids["<pad>"]})


def multilingual(family: str, folder: Path, seed: int) -> Case:
    """M2M-100 and mBART-50."""
    random = np.random.default_rng(seed)
    (folder / "sentencepiece.bpe.model").write_bytes(pieces("both", 80))
    there = sentencepiece.SentencePieceProcessor(model_proto=pieces("both", 80))
    codes = {"m2m_100": ["__en__", "__de__"], "mbart": ["en_XX", "de_DE"]}[family]
    learned = [there.id_to_piece(index) for index in range(3, there.get_piece_size())]
    ids = {token: index for index, token in enumerate(["<s>", "<pad>", "</s>", "<unk>", *learned, *codes])}
    (folder / "vocab.json").write_text(json.dumps(ids))
    prefix = {"m2m_100": "M2M100", "mbart": "MBart"}[family]
    config = getattr(transformers, f"{prefix}Config")(
        **stack_sizes(random), vocab_size=len(ids), pad_token_id=1, bos_token_id=0, eos_token_id=2,
        decoder_start_token_id=2, activation_function=str(random.choice(["relu", "gelu"])),
    )  # fmt: skip
    theirs = finish(getattr(transformers, f"{prefix}ForConditionalGeneration")(config), folder, seed)
    languages = {"source_language": codes[0].strip("_"), "target_language": codes[1]}
    return Case(theirs, ids | {"<eos>": 2, "<start>": ids[codes[1]], "<prompt>": 2}, languages)


def t5(folder: Path, seed: int) -> Case:
    """T5 (tied and scaled), T5 v1.1 (an output layer of its own) and ByT5."""
    random = np.random.default_rng(seed)
    is_bytes, tied = seed % 4 == 3, bool(random.integers(0, 2))
    if is_bytes:
        (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "ByT5Tokenizer"}')
        ids = {f"<0x{byte:02X}>": byte + 3 for byte in range(256)}
        size = 384
    else:
        content = pieces("both", 80, pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
        (folder / "spiece.model").write_bytes(content)
        there = sentencepiece.SentencePieceProcessor(model_proto=content)
        first = there.get_piece_size()
        size = first + 104
        ids = {there.id_to_piece(index): index for index in range(first)}
        ids |= {f"<extra_id_{99 - index}>": first + index for index in range(100)}
        ids |= {f"<unused {first + 100 + index}>": first + 100 + index for index in range(4)}
    config = transformers.T5Config(
        vocab_size=size, d_model=24, d_kv=int(random.integers(3, 9)), d_ff=int(random.integers(5, 40)),
        num_layers=int(random.integers(1, 3)), num_decoder_layers=int(random.integers(1, 3)), dropout_rate=0.0,
        num_heads=int(random.integers(1, 5)), relative_attention_num_buckets=8, relative_attention_max_distance=20,
        feed_forward_proj=str(random.choice(["relu", "gated-gelu", "gated-silu"])), tie_word_embeddings=tied,
        pad_token_id=0, eos_token_id=1, decoder_start_token_id=0,
    )  # fmt: skip
    theirs = finish(transformers.T5ForConditionalGeneration(config), folder, seed)
    if not tied and seed % 2:  # as published: an output layer of its own, which transformers 5 no longer makes
        theirs.lm_head.weight = torch.nn.Parameter(torch.randn_like(theirs.lm_head.weight))
        save_file({name: tensor.clone() for name, tensor in theirs.state_dict().items()}, folder / "model.safetensors")
    factors = {"encoder.input.embedding.weight": 24.0} if tied else {}
    return Case(theirs, ids | {"<pad>": 0, "<eos>": 1, "<unk>": 2, "<start>": 0}, {}, factors)


def word_piece_tokenizer() -> tokenizers.Tokenizer:
    theirs = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    theirs.normalizer, theirs.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=120, special_tokens=special, show_progress=False)
    theirs.train_from_iterator(TEXTS["source"] * 5, trainer)
    return theirs


def byte_level_tokenizer(special: list[str]) -> tokenizers.Tokenizer:
    theirs = tokenizers.Tokenizer(models.BPE())
    theirs.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=320, initial_alphabet=alphabet, special_tokens=special, show_progress=False
    )
    theirs.train_from_iterator(TEXTS["source"] * 5, trainer)
    return theirs


def write_bpe(folder: Path, tokenizer: tokenizers.Tokenizer, whole: bool) -> dict[str, int]:
    """As tokenizer.json, or as vocab.json and merges.txt."""
    model = json.loads(tokenizer.to_str())["model"]
    ids: dict[str, int] = model["vocab"]
    if whole:
        (folder / "tokenizer.json").write_text(tokenizer.to_str(), encoding="utf-8")
    else:
        (folder / "vocab.json").write_text(json.dumps(ids))
        lines = [" ".join(pair) for pair in model["merges"]]
        (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *lines, ""]), encoding="utf-8")
    return ids


def bert_sizes(random: np.random.Generator) -> dict[str, Any]:
    heads = int(random.choice([1, 2, 4]))
    return {
        "hidden_size": 6 * heads,
        "num_hidden_layers": int(random.integers(1, 4)),
        "num_attention_heads": heads,
        "intermediate_size": int(random.integers(5, 40)),
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "initializer_range": 0.3,
    }


def bert(folder: Path, seed: int) -> Case:
    """With and without the next-sentence head; vocab.txt or tokenizer.json."""
    random = np.random.default_rng(seed)
    tokenizer = word_piece_tokenizer()
    ids = tokenizer.get_vocab()
    if seed % 2:
        (folder / "tokenizer.json").write_text(tokenizer.to_str(), encoding="utf-8")
    else:
        (folder / "vocab.txt").write_text("\n".join(sorted(ids, key=ids.__getitem__)) + "\n", encoding="utf-8")
    config = transformers.BertConfig(
        **bert_sizes(random), vocab_size=len(ids), max_position_embeddings=40,
        hidden_act=str(random.choice(["gelu", "relu", "silu", "gelu_new"])), eos_token_id=None,
    )  # fmt: skip
    kind = transformers.BertForPreTraining if random.integers(0, 2) else transformers.BertForMaskedLM
    theirs = finish(kind(config), folder, seed)
    return Case(
        theirs, ids | {"<pad>": ids["[PAD]"], "<unk>": ids["[UNK]"], "<sos>": ids["[CLS]"], "<eos>": ids["[SEP]"]}
    )


def roberta(folder: Path, seed: int) -> Case:
    """RoBERTa."""
    random = np.random.default_rng(seed)
    ids = write_bpe(folder, byte_level_tokenizer(["<s>", "<pad>", "</s>", "<unk>", "<mask>"]), whole=bool(seed % 2))
    config = transformers.RobertaConfig(
        **bert_sizes(random), vocab_size=len(ids), max_position_embeddings=42, type_vocab_size=1, pad_token_id=1,
        bos_token_id=0, eos_token_id=2, hidden_act="gelu",
    )  # fmt: skip
    theirs = finish(transformers.RobertaForMaskedLM(config), folder, seed)
    return Case(theirs, ids | {"<sos>": ids["<s>"], "<eos>": ids["</s>"]})


def gpt2(folder: Path, seed: int) -> Case:
    """GPT-2."""
    random = np.random.default_rng(seed)
    ids = write_bpe(folder, byte_level_tokenizer(["<|endoftext|>"]), whole=bool(seed % 2))
    heads = int(random.choice([1, 2, 4]))
    config = transformers.GPT2Config(
        vocab_size=len(ids), n_positions=48, n_embd=6 * heads, n_layer=int(random.integers(1, 4)), n_head=heads,
        n_inner=None if seed % 3 else int(random.integers(5, 40)), resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        activation_function=str(random.choice(["gelu_new", "relu", "gelu"])), initializer_range=0.3,
        bos_token_id=ids["<|endoftext|>"], eos_token_id=ids["<|endoftext|>"],
    )  # fmt: skip
    theirs = finish(transformers.GPT2LMHeadModel(config), folder, seed)
    return Case(theirs, ids | {"<eos>": ids["<|endoftext|>"]})


def wav2vec2(folder: Path, seed: int) -> Case:
    """Group and layer norm, post- and pre-norm; special tokens in other places, of the vocabulary or none."""
    random = np.random.default_rng(seed)
    special = [["<pad>", "<s>", "</s>", "<unk>", "|"], ["|", "[UNK]", "[PAD]"]][seed % 4 == 3]
    letters = list("ETAONIHSRDLUMWCFGYPBVK'XJQZ") if seed % 2 else list("etaonihsrdlumwcfgypbvk")
    tokens = [*letters, *special] if seed % 3 == 1 else [*special, *letters]
    ids = {token: index for index, token in enumerate([*tokens, "ch"])}
    pad, unk = ("<pad>", "<unk>") if "<pad>" in ids else ("[PAD]", "[UNK]")
    (folder / "vocab.json").write_text(json.dumps(ids))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({
            "unk_token": unk, "pad_token": pad, "word_delimiter_token": "|", "do_lower_case": seed % 2 == 1,
            "tokenizer_class": "Wav2Vec2CTCTokenizer",
        })
    )  # fmt: skip
    transformers.Wav2Vec2FeatureExtractor(do_normalize=seed % 5 != 0).save_pretrained(folder)
    heads, layers = int(random.choice([1, 2, 4])), int(random.integers(2, 4))
    config = transformers.Wav2Vec2Config(
        vocab_size=len(ids), hidden_size=8 * heads, num_attention_heads=heads, intermediate_size=20,
        num_hidden_layers=int(random.integers(1, 4)), hidden_act=str(random.choice(["gelu", "relu"])),
        conv_dim=[int(random.integers(4, 12)) for _ in range(layers)], conv_bias=bool(random.integers(0, 2)),
        conv_kernel=[10, 3, 2][:layers], conv_stride=[5, 2, 2][:layers], pad_token_id=ids[pad],
        feat_extract_norm=["group", "layer"][seed % 2], do_stable_layer_norm=bool(seed // 2 % 2),
        num_conv_pos_embeddings=int(random.integers(3, 12)), num_conv_pos_embedding_groups=2,
        layer_norm_eps=float(random.choice([1e-5, 1e-6])), layerdrop=0.0, initializer_range=0.3,
        **dict.fromkeys(
            ("hidden_dropout", "activation_dropout", "attention_dropout", "feat_proj_dropout", "final_dropout"), 0.0
        ),
    )  # fmt: skip
    torch.manual_seed(seed)
    theirs = transformers.Wav2Vec2ForCTC(config)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        theirs.lm_head.bias[[ids[name] for name in ("<s>", "</s>", "<unk>", "[UNK]") if name in ids]] = -20.0
    theirs.eval().save_pretrained(folder)
    found = ids | {"<pad>": ids[pad], "<unk>": ids[unk], " ": ids["|"]}
    return Case(
        theirs, found | {ours: ids[name] for ours, name in {"<sos>": "<s>", "<eos>": "</s>"}.items() if name in ids}
    )


def whisper(folder: Path, seed: int) -> Case:
    """Multilingual and English-only; tokenizer.json, or vocab.json and merges.txt; short recordings."""
    random = np.random.default_rng(seed)
    special = ["<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|de|>", "<|translate|>", "<|transcribe|>"]
    special += ["<|startofprev|>", "<|notimestamps|>", "<|0.00|>", "<|0.02|>"]
    ids = write_bpe(folder, byte_level_tokenizer(special), whole=bool(seed % 2))
    multilingual = seed % 3 != 2
    sizes = stack_sizes(random) | {"activation_function": str(random.choice(["gelu", "relu"]))}
    del sizes["max_position_embeddings"]
    config = transformers.WhisperConfig(
        **sizes, vocab_size=len(ids), num_mel_bins=int(random.choice([5, 8])), max_source_positions=15,
        max_target_positions=48, pad_token_id=ids["<|endoftext|>"], bos_token_id=ids["<|endoftext|>"],
        eos_token_id=ids["<|endoftext|>"], decoder_start_token_id=ids["<|startoftranscript|>"],
        suppress_tokens=None, begin_suppress_tokens=None,
    )  # fmt: skip
    theirs = finish(transformers.WhisperForConditionalGeneration(config), folder, seed)
    transformers.WhisperFeatureExtractor(
        feature_size=config.num_mel_bins, hop_length=80, n_fft=200, chunk_length=1
    ).save_pretrained(folder)  # fmt: skip
    task = "<|translate|>" if seed % 3 == 1 else "<|transcribe|>"
    prompt = ["<|startoftranscript|>", *(["<|de|>", task] if multilingual else []), "<|notimestamps|>"]
    generation = {
        "is_multilingual": multilingual, "begin_suppress_tokens": [ids["Ġ"], ids["<|endoftext|>"]],
        "suppress_tokens": [ids[name] for name in special[1:]] + [int(one) for one in random.integers(20, 60, 5)],
    }  # fmt: skip
    (folder / "generation_config.json").write_text(json.dumps(generation))
    options = {"source_language": "de"} if multilingual else {}
    options |= {"target_language": "en"} if seed % 3 == 1 else {}
    found = ids | {"<eos>": ids["<|endoftext|>"], "<start>": ids["<|notimestamps|>"]}
    return Case(theirs, found | {f"<prompt {n}>": ids[name] for n, name in enumerate(prompt)}, options)


BUILDERS: dict[str, Callable[[Path, int], Case]] = {
    "marian": marian,
    "m2m_100": lambda folder, seed: multilingual("m2m_100", folder, seed),
    "mbart": lambda folder, seed: multilingual("mbart", folder, seed),
    "t5": t5,
    "bert": bert,
    "roberta": roberta,
    "gpt2": gpt2,
    "wav2vec2": wav2vec2,
    "whisper": whisper,
}


def their_gradients(case: Case, folder: Path, new: Path) -> dict[str, torch.Tensor]:
    """The gradients of their parameters by our names: they go through the importer like weights."""
    shutil.copytree(folder, new)
    parameters = dict(case.theirs.named_parameters(remove_duplicate=False))
    with safe_open(folder / "model.safetensors", "pt") as file:
        shapes = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    found = {}
    for name, tensor in shapes.items():
        gradient = parameters[name].grad if name in parameters else None
        found[name] = torch.zeros_like(tensor) if gradient is None else gradient.clone()
    save_file(found, new / "model.safetensors")
    with Checkpoint(new) as checkpoint:
        return FAMILIES[checkpoint.family](checkpoint, case.options).weights
