"""Export a Transformer as a folder that `AutoModelForSeq2SeqLM` and `AutoTokenizer` of transformers open.

A post-norm model becomes a Marian, a pre-norm model a Pegasus: these two classes have sinusoids, tied or untied tables
and any number of layers. Both compute all sines first. A model with alternating sines and cosines is
written with its hidden units in another order, which changes no output.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional as F

from dragoman.data.source_reader import SourceReader
from dragoman.data.tokenizers.base import EOS, PAD, SOS, SPECIALS, UNK, Tokenizer
from dragoman.data.tokenizers.subwords import SentencePieceTokenizer, SubwordTokenizer
from dragoman.decoding.hypothesis import SUPPRESSED_TOKENS
from dragoman.exchange.exporter import PLAIN, Exporter, encoder_decoder, stacks_of, transformer_blockers
from dragoman.exchange.huggingface.family import bart_layers
from dragoman.layers.positions import SinusoidalConfig, sinusoids
from dragoman.models.encoder_decoder import EncoderDecoder
from dragoman.models.transformer import TransformerConfig
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
    about = "a folder for transformers (Marian or Pegasus class), for Transformers with sub-words that translate"

    def blockers(self, run: Run) -> list[str]:
        reasons = model_blockers(run.config.model)
        for side, tokenizer in zip(TOKENIZER_FILES, run.tokenizers(), strict=True):
            if not isinstance(tokenizer, SubwordTokenizer | SentencePieceTokenizer):
                reasons.append(f"tokenizer.{side}: found {tokenizer.kind!r}, expected 'subwords' without language tags")
        return reasons

    def export(self, run: Run, path: Path, options: Mapping[str, str]) -> None:
        path.mkdir()
        model, (source, target) = encoder_decoder(run), run.tokenizers()
        config = config_table(model, source, target)
        for name, table in {"config": config, "generation_config": generation_table(config, run)}.items():
            (path / f"{name}.json").write_text(json.dumps(table, indent=2) + "\n", encoding="utf-8")
        save_file(weights(model), path / "model.safetensors", {"format": "pt"})
        write_tokenizer(path, source, target)


def model_blockers(config: Any) -> list[str]:
    reasons = transformer_blockers(config, EXPRESSED)
    both = {side: getattr(config, side, None) for side in ("encoder", "decoder")}
    stacks = {side: stack for side, stack in both.items() if isinstance(stack, TransformerConfig)}
    for side, stack in stacks.items():
        if not isinstance(stack.positions, SinusoidalConfig) or stack.positions.layout == "fairseq":
            reasons.append(f"model.{side}.positions: found {stack.positions.kind!r}, expected 'sinusoidal'")
        if stack.key_heads not in (0, stack.heads):
            reasons.append(f"model.{side}.key_heads: found {stack.key_heads}, expected 0")
    if len(stacks) == 2:
        for name in ("width", "norm", "activation", "scale_embedding", "positions"):
            if getattr(stacks["encoder"], name) != getattr(stacks["decoder"], name):
                reasons.append(f"model.encoder.{name}: found another than model.decoder.{name}, expected the same")
    return reasons


def config_table(model: EncoderDecoder, source: SourceReader, target: Tokenizer) -> dict[str, Any]:
    encoder = stacks_of(model)["encoder"]
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
    for side, stack in stacks_of(model).items():
        table |= {
            f"{side}_layers": stack.layers,
            f"{side}_attention_heads": stack.heads,
            f"{side}_ffn_dim": stack.feedforward,
        }
    return table


def generation_table(config: dict[str, Any], run: Run) -> dict[str, Any]:
    """The content of generation_config.json: our search settings as far as `generate` has them."""
    search = run.config.search
    ids = {name: config[name] for name in config if name.endswith("_token_id")}
    return ids | {
        "num_beams": search.beam,
        "length_penalty": search.length_penalty if search.normalisation == "power" else 0.0,
        "early_stopping": False,
        "max_length": 512,
        "bad_words_ids": [[token] for token in SUPPRESSED_TOKENS],
    }


@torch.no_grad()
def weights(model: EncoderDecoder) -> dict[str, Tensor]:
    stacks, names = stacks_of(model), dict[str, tuple[str, ...]]()
    pre_norm = stacks["encoder"].norm == "pre"
    for side, stack in stacks.items():
        names |= bart_layers(side, stack.layers, pre_norm)
    own = {name: tensor.detach().float() for name, tensor in model.named_parameters(remove_duplicate=False)}
    order = unit_order(stacks["encoder"])
    out: dict[str, Tensor] = {}
    for ours, theirs in names.items():
        for name, part in zip(theirs, own[ours].chunk(len(theirs)), strict=True):
            out[name] = reordered(name, part, order)
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
    return {name: tensor.contiguous().clone() for name, tensor in out.items()}


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


def write_tokenizer(folder: Path, source: SourceReader, target: Tokenizer) -> None:
    """The files of MarianTokenizer: a SentencePiece model for each side and the ids of the pieces."""
    separate = source.pieces(range(len(source))) != target.pieces(range(len(target)))
    vocabularies = {"vocab.json": source, **({"target_vocab.json": target} if separate else {})}
    for (side, name), tokenizer in zip(TOKENIZER_FILES.items(), (source, target), strict=True):
        assert isinstance(tokenizer, SubwordTokenizer | SentencePieceTokenizer), side
        (folder / name).write_bytes(tokenizer.model)
    for name, tokenizer in vocabularies.items():
        pieces = {piece: index for index, piece in enumerate(tokenizer.pieces(range(len(tokenizer))))}
        (folder / name).write_text(json.dumps(pieces, ensure_ascii=False) + "\n", encoding="utf-8")
    table = {
        "tokenizer_class": "MarianTokenizer",
        "separate_vocabs": separate,
        "pad_token": SPECIALS[PAD],
        "unk_token": SPECIALS[UNK],
        "bos_token": SPECIALS[SOS],  # decoded texts begin with it, and special tokens can be left out
        "eos_token": SPECIALS[EOS],
        "model_max_length": POSITIONS,
        "source_lang": "",
        "target_lang": "",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(table, indent=2) + "\n", encoding="utf-8")
