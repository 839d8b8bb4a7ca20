"""wav2vec 2.0 with a CTC output layer (Baevski et al. 2020): recordings to text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from dragoman.data.config import DataConfig, TokenizersConfig
from dragoman.data.media.audio import WaveformConfig
from dragoman.data.media.feature_extractor import FeatureExtractor
from dragoman.data.tokenizers.characters import CTCCharactersConfig, CTCCharacterTokenizer
from dragoman.decoding.config import SearchConfig
from dragoman.errors import DataError
from dragoman.exchange.huggingface.checkpoint import Checkpoint
from dragoman.exchange.huggingface.family import (
    NEVER,
    Imported,
    Names,
    TokenOrder,
    layer_names,
    linear,
    read_names,
    tokens_by_id,
)
from dragoman.exchange.huggingface.marian import activation
from dragoman.layers.convolutional_positions import ConvolutionalPositionsConfig
from dragoman.layers.positions import NoPositionsConfig
from dragoman.models.encoders.frames import FramesConfig
from dragoman.models.encoders.waveform import WaveformConvolutionsConfig
from dragoman.models.transcriber import TranscriberConfig
from dragoman.models.transformer import TransformerConfig
from dragoman.tasks.media import TranscribeConfig
from dragoman.training.config import TrainConfig

SPECIAL = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "word_delimiter_token": "|"}
LAYER = {
    "attention.project": "attention.q_proj attention.k_proj attention.v_proj",
    "attention.output": "attention.out_proj",
    "attention_norm": "layer_norm",
    "feedforward.widen": "feed_forward.intermediate_dense",
    "feedforward.narrow": "feed_forward.output_dense",
    "feedforward_norm": "final_layer_norm",
}
BATCH_SECONDS = 60


def read_wav2vec2(checkpoint: Checkpoint, options: Mapping[str, str]) -> Imported:
    """Convolutions over the waveform, positions by a convolution, a Transformer, and CTC whose blank is <pad>.

    The tokens are characters with `|` between words. A recording is read as if it were alone in its batch. LayerDrop
    and the masking of pre-training are left out.
    """
    for name in ("add_adapter", "adapter_attn_dim"):
        if found := checkpoint.config.get(name):
            raise DataError(f"{checkpoint.folder}: {name}: found {found!r}, expected none: adapters (MMS) cannot go")
    size = checkpoint.vocabulary("lm_head.weight")
    vocabulary, tokenizer = characters(checkpoint, size)
    encoder = encoder_settings(checkpoint)
    assert isinstance(encoder.subsampling, WaveformConvolutionsConfig)
    extractor = feature_settings(checkpoint)
    media = WaveformConfig(
        sample_rate=extractor.get("sampling_rate", 16_000),
        normalise=extractor.get("do_normalize", True),
        min_samples=encoder.subsampling.receptive_field,
    )
    config = TranscribeConfig(
        data=DataConfig(train=str(checkpoint.folder.absolute()), max_length=1024),
        tokenizer=TokenizersConfig(media, tokenizer.config),
        model=TranscriberConfig(encoder=encoder),
        search=SearchConfig(beam=1, length_penalty=0.0),
        train=TrainConfig(batch_tokens=BATCH_SECONDS * 16_000),
    )
    weights = read_names(checkpoint, parameter_names(checkpoint, encoder), flat_magnitude)
    weights["ctc.upsample.split.weight"] = vocabulary.table(checkpoint.tensor("lm_head.weight"))
    bias = vocabulary.table(checkpoint.tensor("lm_head.bias", (size,)))
    weights["ctc.upsample.split.bias"] = bias.masked_fill(torch.tensor(vocabulary.rows) < 0, NEVER)
    return Imported(config, FeatureExtractor(media), tokenizer, weights)


def feature_settings(checkpoint: Checkpoint) -> dict[str, Any]:
    """The settings of the feature extractor, which transformers 5 may keep inside of those of the processor."""
    settings = checkpoint.json("preprocessor_config.json", optional=True)
    if settings is None:
        settings = (checkpoint.json("processor_config.json", optional=True) or {}).get("feature_extractor")
    return settings if isinstance(settings, dict) else {}


def characters(checkpoint: Checkpoint, size: int) -> tuple[TokenOrder, CTCCharacterTokenizer]:
    """The vocabulary, whose word delimiter is our space."""
    table = checkpoint.json("vocab.json") | (checkpoint.json("added_tokens.json", optional=True) or {})
    tokens = tokens_by_id(table, size, f"{checkpoint.folder}/vocab.json")
    settings = checkpoint.json("tokenizer_config.json", optional=True) or {}
    unk, start, eos, space = (special_token(checkpoint, settings, name) for name in SPECIAL)
    ids = [tokens.index(token) if token in tokens else None for token in (unk, start, eos)]
    vocabulary = TokenOrder(tokens, checkpoint.setting("pad_token_id", int, 0), *ids)
    characters = [" " if token == space else token for token in vocabulary.names]
    return vocabulary, CTCCharacterTokenizer(CTCCharactersConfig(bool(settings.get("do_lower_case"))), characters)


def special_token(checkpoint: Checkpoint, settings: Mapping[str, Any], name: str) -> str:
    """A special token by its name: the text of it, or an object with that as its content."""
    value = settings.get(name) or SPECIAL[name]
    token = value.get("content") if isinstance(value, dict) else value
    if not isinstance(token, str):
        raise DataError(f"{checkpoint.folder}/tokenizer_config.json: {name}: found {str(value)[:40]}, expected a text")
    return token


def encoder_settings(checkpoint: Checkpoint) -> FramesConfig:
    """Convolutions, positions and Transformer. Published as "base" (group, post-norm) and "large" (layer, pre-norm)."""
    norm: Any = checkpoint.setting("feat_extract_norm", str, "group")
    inner: Any = activation(checkpoint, "feat_extract_activation")
    epsilon = checkpoint.setting("layer_norm_eps", float, 1e-5)
    channels, kernels, strides = (sizes(checkpoint, f"conv_{name}") for name in ("dim", "kernel", "stride"))
    if not len(channels) == len(kernels) == len(strides):
        raise DataError(f"{checkpoint.folder}: conv_dim, conv_kernel, conv_stride: expected as many numbers of each")
    stable = checkpoint.setting("do_stable_layer_norm", bool, False)
    kinds = ("hidden", "attention", "activation", "feat_proj")
    dropout = {kind: checkpoint.number(f"{kind}_dropout", 0.1) for kind in kinds}
    return FramesConfig(
        subsampling=WaveformConvolutionsConfig(
            channels, kernels, strides, norm, checkpoint.setting("conv_bias", bool, False), inner, epsilon
        ),
        dropout=dropout["feat_proj"],
        positions=ConvolutionalPositionsConfig(
            checkpoint.size("num_conv_pos_embeddings"), checkpoint.size("num_conv_pos_embedding_groups"), inner
        ),
        inner=TransformerConfig(
            layers=checkpoint.size("num_hidden_layers", most=1000),
            width=checkpoint.size("hidden_size"),
            heads=checkpoint.size("num_attention_heads"),
            feedforward=checkpoint.size("intermediate_size"),
            dropout=dropout["hidden"],
            attention_dropout=dropout["attention"],
            feedforward_dropout=dropout["activation"],
            norm="pre" if stable else "post",
            activation=activation(checkpoint, "hidden_act"),
            positions=NoPositionsConfig(),
            embedding_norm=not stable,
            norm_epsilon=epsilon,
        ),
    )


def sizes(checkpoint: Checkpoint, name: str) -> tuple[int, ...]:
    values = checkpoint.setting(name, list)
    if not values or not all(type(size) is int and 1 <= size <= 100_000 for size in values):
        raise DataError(f"{checkpoint.folder / 'config.json'}: {name}: found {values!r}, expected convolution sizes")
    return tuple(values)


def parameter_names(checkpoint: Checkpoint, encoder: FramesConfig) -> Names:
    convolutions, stack = encoder.subsampling, encoder.inner
    assert isinstance(convolutions, WaveformConvolutionsConfig)
    assert isinstance(stack, TransformerConfig)
    front, theirs = "encoder.subsampling", "wav2vec2.feature_extractor.conv_layers"
    names = linear(f"{front}.norm", "wav2vec2.feature_projection.layer_norm")
    names |= linear(f"{front}.project", "wav2vec2.feature_projection.projection")
    for index in range(len(convolutions.channels)):
        parts = ("weight", "bias") if convolutions.bias else ("weight",)
        names |= linear(f"{front}.layers.{index}", f"{theirs}.{index}.conv", parts=parts)
        if convolutions.norm == "layer" or index == 0:
            names |= linear(f"{front}.norms.{index}", f"{theirs}.{index}.layer_norm")
    convolved = "wav2vec2.encoder.pos_conv_embed.conv"
    older = f"{convolved}.weight_g" in checkpoint.names()
    magnitude, direction = ("weight_g", "weight_v") if older else (f"parametrizations.weight.original{n}" for n in "01")
    for ours, their in {"bias": "bias", "magnitude": magnitude, "direction": direction}.items():
        names[f"encoder.positions.{ours}"] = (f"{convolved}.{their}",)
    names |= linear(f"encoder.inner.{'norm' if stack.norm == 'pre' else 'input.norm'}", "wav2vec2.encoder.layer_norm")
    return names | layer_names("encoder.inner.blocks", "wav2vec2.encoder.layers", stack.layers, LAYER)


def flat_magnitude(name: str, tensor: Tensor) -> Tensor:
    """Their magnitudes are (1, 1, K), ours (K)."""
    return tensor.flatten() if name.endswith(("weight_g", "original0")) else tensor
