"""Published configurations have exactly the published numbers of parameters; no weights are made."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from dragoman.exchange.huggingface.bert import encoder_settings
from dragoman.exchange.huggingface.checkpoint import Checkpoint
from dragoman.exchange.huggingface.gpt2 import stack_settings
from dragoman.exchange.huggingface.speech import encoder_settings as wav2vec2_encoder
from dragoman.exchange.huggingface.speech import model_settings
from dragoman.exchange.huggingface.t5 import stack
from dragoman.exchange.huggingface.translation import transformer
from dragoman.models.captioner import SpeechToText
from dragoman.models.config import EncoderDecoderConfig
from dragoman.models.encoder_decoder import EncoderDecoder
from dragoman.models.language_model import LanguageModel, LanguageModelConfig
from dragoman.models.layers.config import LearnedConfig, SinusoidalConfig
from dragoman.models.masked_lm import MaskedLM, MaskedLMConfig
from dragoman.models.transcriber import Transcriber, TranscriberConfig

OPUS = {
    "vocab_size": 58101, "d_model": 512, "encoder_layers": 6, "decoder_layers": 6, "encoder_attention_heads": 8,
    "decoder_attention_heads": 8, "encoder_ffn_dim": 2048, "decoder_ffn_dim": 2048, "activation_function": "swish",
    "scale_embedding": True,
}  # fmt: skip
NLLB = {
    "vocab_size": 256206, "d_model": 1024, "encoder_layers": 12, "decoder_layers": 12, "encoder_attention_heads": 16,
    "decoder_attention_heads": 16, "encoder_ffn_dim": 4096, "decoder_ffn_dim": 4096, "activation_function": "relu",
    "scale_embedding": True,
}  # fmt: skip
BERT = {
    "vocab_size": 30522, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
    "intermediate_size": 3072, "hidden_act": "gelu", "max_position_embeddings": 512, "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
}  # fmt: skip
GPT2 = {
    "vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12,
    "activation_function": "gelu_new",
}  # fmt: skip
T5_SMALL = {
    "vocab_size": 32128, "d_model": 512, "d_kv": 64, "d_ff": 2048, "num_layers": 6, "num_heads": 8,
    "relative_attention_num_buckets": 32, "feed_forward_proj": "relu",
}  # fmt: skip


WAV2VEC2_BASE = {
    "vocab_size": 32, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
    "intermediate_size": 3072, "hidden_act": "gelu", "feat_extract_norm": "group", "feat_extract_activation": "gelu",
    "conv_dim": [512] * 7, "conv_kernel": [10, 3, 3, 3, 3, 2, 2], "conv_stride": [5, 2, 2, 2, 2, 2, 2],
    "conv_bias": False, "num_conv_pos_embeddings": 128, "num_conv_pos_embedding_groups": 16,
}  # fmt: skip


WHISPER_TINY = {
    "vocab_size": 51865, "d_model": 384, "encoder_layers": 4, "decoder_layers": 4, "encoder_attention_heads": 6,
    "decoder_attention_heads": 6, "encoder_ffn_dim": 1536, "decoder_ffn_dim": 1536, "activation_function": "gelu",
    "num_mel_bins": 80, "max_source_positions": 1500, "max_target_positions": 448,
}  # fmt: skip


def marian(checkpoint: Checkpoint, size: int) -> nn.Module:
    stacks = {side: transformer(checkpoint, side) for side in ("encoder", "decoder")}
    return EncoderDecoder(EncoderDecoderConfig(tie="all", output_bias=True, **stacks), size + 1, size + 1)


def nllb(checkpoint: Checkpoint, size: int) -> nn.Module:
    from dataclasses import replace

    changes: dict[str, Any] = {"norm": "pre", "positions": SinusoidalConfig(layout="fairseq")}
    stacks = {side: replace(transformer(checkpoint, side), **changes) for side in ("encoder", "decoder")}
    return EncoderDecoder(EncoderDecoderConfig(tie="all", output_bias=True, **stacks), size + 1, size + 1)


def t5(checkpoint: Checkpoint, size: int) -> nn.Module:
    layers = stack(checkpoint, checkpoint.size("num_layers"), True)
    config = EncoderDecoderConfig(tie="all", output_bias=True, encoder=layers, decoder=layers)
    return EncoderDecoder(config, size + 1, size + 1)


def bert(checkpoint: Checkpoint, size: int) -> nn.Module:
    return MaskedLM(MaskedLMConfig(next_sentence=True, encoder=encoder_settings(checkpoint, 0)), size)


def gpt2(checkpoint: Checkpoint, size: int) -> nn.Module:
    layers = stack_settings(checkpoint)
    assert isinstance(layers.positions, LearnedConfig)
    return LanguageModel(LanguageModelConfig(stack=layers, segment=layers.positions.max_positions), size + 3)


def wav2vec2(checkpoint: Checkpoint, size: int) -> nn.Module:
    return Transcriber(TranscriberConfig(encoder=wav2vec2_encoder(checkpoint)), 1, size)


def whisper(checkpoint: Checkpoint, size: int) -> nn.Module:
    return SpeechToText(model_settings(checkpoint, (4, 5, 6)), checkpoint.size("num_mel_bins"), size + 2)


@pytest.mark.parametrize(
    ("config", "build", "published", "own"),
    [
        # `own`: what ours has besides: the row of <sos> and the biases that forbid it; for BERT the vector of [MASK].
        (OPUS, marian, 73_886_208, 512 + 58_102),  # transformers also counts its 2 × 512 × 512 constant sinusoids
        (NLLB, nllb, 615_073_792, 1024 + 256_207),
        (T5_SMALL, t5, 60_506_624, 512 + 32_129),
        (BERT, bert, 110_106_428, 768),  # 109,482,240 without the two heads
        (GPT2, gpt2, 124_439_808, 3 * 768 + 50_260),
        # The rows of <pad> and <unk>, the output bias, and the biases of keys in 12 attentions.
        (WHISPER_TINY, whisper, 37_760_640, 2 * 384 + 51_867 + 12 * 384),
        (WAV2VEC2_BASE, wav2vec2, 94_396_320, -768),  # without the vector that pre-training masks with
    ],
    ids=[
        "opus-mt-en-de",
        "nllb-200-distilled-600M",
        "t5-small",
        "bert-base",
        "gpt2",
        "whisper-tiny",
        "wav2vec2-base-960h",
    ],
)
def test_published_models_have_the_published_number_of_parameters(
    tmp_path: Path, config: dict[str, Any], build: Any, published: int, own: int
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    checkpoint = Checkpoint(tmp_path)
    with torch.device("meta"):
        model = build(checkpoint, checkpoint.size("vocab_size"))
    assert sum(parameter.numel() for parameter in model.parameters()) - own == published
