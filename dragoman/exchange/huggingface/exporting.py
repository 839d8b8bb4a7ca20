"""Export a Transformer as a folder that `AutoModelForSeq2SeqLM` and `AutoTokenizer` of transformers open.

A model with a bias of relative positions becomes a T5. With sinusoids a post-norm model becomes a Marian, a pre-norm
model a Pegasus: these two classes have tied or untied tables and any number of layers. Both compute all sines first. A
model with alternating sines and cosines is written with its hidden units in another order, which changes no output.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional as F

from dragoman.data import SourceReader
from dragoman.data.tokenizers import (
    EOS,
    PAD,
    SOS,
    SPECIALS,
    UNK,
    ByteTokenizer,
    SentencePieceTokenizer,
    SubwordTokenizer,
    Tokenizer,
)
from dragoman.decoding import SUPPRESSED_TOKENS
from dragoman.exchange.huggingface import t5_exporting
from dragoman.exchange.huggingface.family import Converted, bart_layers, split_names
from dragoman.inference.engine import PLAIN, Exporter, encoder_decoder, stacks_of, transformer_blockers
from dragoman.models import EncoderDecoder, TransformerConfig
from dragoman.models.layers import RelativeBiasConfig, SinusoidalConfig, sinusoids
from dragoman.runs import Run

ACTIVATIONS = {"silu": "swish", "relu": "relu", "gelu": "gelu", "gelu-tanh": "gelu_new"}
TOKENIZER_FILES = {"source": "source.spm", "target": "target.spm"}
NEVER = -1e9  # logit of a row that pads the smaller vocabulary
POSITIONS = 1024  # rows of the position table that transformers computes
# Our setting → the only value that both classes can express.
EXPRESSED = PLAIN | {"gated": (False,), "norm_kind": ("layer",), "bias": (True,), "score": ("scaled-dot",)}


class HuggingFaceExporter(Exporter):
    """The exporter of `dragoman export --to huggingface`."""

    name = "huggingface"
    about = "a folder for transformers (Marian, Pegasus or T5 class), for Transformers with sub-words that translate"

    def blockers(self, run: Run) -> list[str]:
        config, tokenizers = run.config.model, run.tokenizers()
        reasons = [*t5_exporting.model_blockers(config)] if is_t5(config) else model_blockers(config)
        are_bytes = all(isinstance(tokenizer, ByteTokenizer) for tokenizer in tokenizers)
        for side, tokenizer in zip(TOKENIZER_FILES, tokenizers, strict=True):
            if not isinstance(tokenizer, SubwordTokenizer | SentencePieceTokenizer) and not (
                is_t5(config) and are_bytes
            ):
                reasons.append(f"tokenizer.{side}: found {tokenizer.kind!r}, expected 'subwords' without language tags")
        if is_t5(config) and not reasons:
            reasons += t5_exporting.weight_blockers(run)
        return reasons

    def export(self, run: Run, path: Path, options: Mapping[str, str]) -> None:
        path.mkdir()
        model, (source, target) = encoder_decoder(run), run.tokenizers()
        converted = (t5_exporting.convert if is_t5(model.config) else convert)(model, source, target)
        tables = {"config": converted.config, "generation_config": generation_table(converted, run)}
        for name, table in tables.items():
            (path / f"{name}.json").write_text(json.dumps(table, indent=2) + "\n", encoding="utf-8")
        tensors = {name: tensor.contiguous().clone() for name, tensor in converted.weights.items()}
        save_file(tensors, path / "model.safetensors", {"format": "pt"})
        write_tokenizer(path, (source, target), converted.tokens)


def is_t5(config: Any) -> bool:
    stacks = [getattr(config, side, None) for side in ("encoder", "decoder")]
    return any(isinstance(getattr(stack, "positions", None), RelativeBiasConfig) for stack in stacks)


def convert(model: EncoderDecoder, source: SourceReader, target: Tokenizer) -> Converted:
    """The run as a Marian or Pegasus."""
    return Converted(config_table(model, source, target), weights(model), (range(len(source)), range(len(target))))


def model_blockers(config: Any) -> list[str]:
    reasons = transformer_blockers(config, EXPRESSED)
    both = {side: getattr(config, side, None) for side in ("encoder", "decoder")}
    stacks = {side: stack for side, stack in both.items() if isinstance(stack, TransformerConfig)}
    for side, stack in stacks.items():
        if not isinstance(stack.positions, SinusoidalConfig) or stack.positions.layout == "fairseq":
            expected = "'sinusoidal' (Marian, Pegasus) or 'relative-bias' (T5)"
            reasons.append(f"model.{side}.positions: found {stack.positions.kind!r}, expected {expected}")
        if stack.key_heads not in (0, stack.heads):
            reasons.append(f"model.{side}.key_heads: found {stack.key_heads}, expected 0")
    if len(stacks) == 2:
        for name in ("width", "norm", "activation", "scale_embedding", "positions"):
            if getattr(stacks["encoder"], name) != getattr(stacks["decoder"], name):
                reasons.append(f"model.encoder.{name}: found another than model.decoder.{name}, expected the same")
    return reasons


def config_table(model: EncoderDecoder, source: SourceReader, target: Tokenizer) -> dict[str, Any]:
    encoder = stacks_of(model.config)["encoder"]
    pre_norm = encoder.norm == "pre"
    table: dict[str, Any] = {
        "architectures": ["PegasusForConditionalGeneration" if pre_norm else "MarianMTModel"],
        "model_type": "pegasus" if pre_norm else "marian",
        "is_encoder_decoder": True,
        "vocab_size": max(len(source), len(target)),
        "d_model": encoder.width,
        "activation_function": ACTIVATIONS[encoder.activation],
        "scale_embedding": encoder.scale_embedding,
        "max_position_embeddings": POSITIONS,
        "dropout": encoder.dropout,
        "attention_dropout": encoder.attention_dropout,
        "activation_dropout": encoder.feedforward_dropout,
        "tie_word_embeddings": model.config.tie == "all",
        "pad_token_id": PAD,
        "bos_token_id": SOS,
        "decoder_start_token_id": SOS,
        "eos_token_id": EOS,
        "forced_eos_token_id": EOS,
        "dtype": "float32",
    }
    for side, stack in stacks_of(model.config).items():
        table |= {
            f"{side}_layers": stack.layers,
            f"{side}_attention_heads": stack.heads,
            f"{side}_ffn_dim": stack.feedforward,
        }
    return table


def generation_table(converted: Converted, run: Run) -> dict[str, Any]:
    """The content of generation_config.json: our search settings as far as `generate` has them."""
    search, config = run.config.search, converted.config
    same = {name: config[name] for name in config if name.endswith("_token_id") or name == "use_cache"}
    suppressed = [index for index, token in enumerate(converted.tokens[1]) if token in SUPPRESSED_TOKENS]
    return same | {
        "num_beams": search.beam,
        "length_penalty": search.length_penalty if search.normalisation == "power" else 0.0,
        "early_stopping": False,
        "max_length": 512,
        "bad_words_ids": [[index] for index in suppressed],
    }


@torch.no_grad()
def weights(model: EncoderDecoder) -> dict[str, Tensor]:
    stacks, names = stacks_of(model.config), dict[str, tuple[str, ...]]()
    pre_norm = stacks["encoder"].norm == "pre"
    for side, stack in stacks.items():
        names |= bart_layers(side, stack.layers, pre_norm)
    own = {name: tensor.detach().float() for name, tensor in model.named_parameters(remove_duplicate=False)}
    order = unit_order(stacks["encoder"])
    out = split_names(own, names, lambda name, part: reordered(name, part, order))
    tables = {
        "model.shared.weight": own["encoder.input.embedding.weight"],
        "model.encoder.embed_tokens.weight": own["encoder.input.embedding.weight"],
        "model.decoder.embed_tokens.weight": own["decoder.input.embedding.weight"],
        "lm_head.weight": own["output.weight"],
    }
    size = max(len(table) for table in tables.values())
    bias = own.get("output.bias", torch.zeros(model.output.out_features))
    out["final_logits_bias"] = F.pad(bias, (0, size - len(bias)), value=NEVER)[None]
    for name in list(tables)[: 1 if model.config.tie == "all" else None]:
        out[name] = F.pad(reordered("embedding", tables[name], order), (0, 0, 0, size - len(tables[name])))
    if pre_norm:  # Pegasus reads its sinusoids from the file; Marian computes them
        for side, stack in stacks.items():
            out[f"model.{side}.embed_positions.weight"] = sinusoids(POSITIONS, stack.width, "halves").float()
    return out


def unit_order(config: TransformerConfig) -> Tensor | None:
    """The order of hidden units that puts all sines first; None: it is that already."""
    assert isinstance(config.positions, SinusoidalConfig)
    if config.positions.layout == "halves":
        return None
    return torch.cat([torch.arange(0, config.width, 2), torch.arange(1, config.width, 2)])


# Their layers that read, write or scale hidden units of the residual stream.
READ = ("q_proj.weight", "k_proj.weight", "v_proj.weight", "fc1.weight", "embedding")
WRITE = ("out_proj.weight", "out_proj.bias", "fc2.weight", "fc2.bias", "norm.weight", "norm.bias")


def reordered(name: str, tensor: Tensor, order: Tensor | None) -> Tensor:
    if order is None:
        return tensor
    if name.endswith(READ):
        return tensor[:, order]
    return tensor[order] if name.endswith(WRITE) else tensor


def write_tokenizer(folder: Path, tokenizers: tuple[SourceReader, Tokenizer], tokens: Sequence[Sequence[int]]) -> None:
    """The files of MarianTokenizer: a SentencePiece model for each side and the ids of the pieces; of ByT5Tokenizer.

    `tokens` are ours by their ids.
    """
    table: dict[str, Any] = {"pad_token": SPECIALS[PAD], "unk_token": SPECIALS[UNK], "eos_token": SPECIALS[EOS]}
    if SOS in tokens[1]:
        table["bos_token"] = SPECIALS[SOS]  # decoded texts begin with it, and special tokens can be left out
    if isinstance(tokenizers[0], ByteTokenizer):
        table |= {"tokenizer_class": "ByT5Tokenizer", "extra_ids": 0}
    else:
        vocabularies = []
        for name, tokenizer, order in zip(TOKENIZER_FILES.values(), tokenizers, tokens, strict=True):
            assert isinstance(tokenizer, SubwordTokenizer | SentencePieceTokenizer), name
            (folder / name).write_bytes(tokenizer.model)
            vocabularies.append({piece: index for index, piece in enumerate(tokenizer.pieces(order))})
        separate = vocabularies[0] != vocabularies[1]
        for name, pieces in zip(("vocab.json", "target_vocab.json")[: 1 + separate], vocabularies, strict=False):
            (folder / name).write_text(json.dumps(pieces, ensure_ascii=False) + "\n", encoding="utf-8")
        table |= {
            "tokenizer_class": "MarianTokenizer",
            "separate_vocabs": separate,
            "model_max_length": POSITIONS,
            "source_lang": "",
            "target_lang": "",
        }
    (folder / "tokenizer_config.json").write_text(json.dumps(table, indent=2) + "\n", encoding="utf-8")
