"""Speech recognition: wav2vec 2.0 with a CTC output layer (Baevski et al. 2020) and Whisper (Radford et al. 2023)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from dragoman.base import DataError
from dragoman.data import DataConfig, TokenizersConfig
from dragoman.data.media import FeatureExtractor, WaveformConfig, WhisperMelConfig
from dragoman.data.tokenizers import ByteLevelBPEConfig, CTCCharactersConfig, CTCCharacterTokenizer
from dragoman.decoding import SearchConfig
from dragoman.exchange.huggingface.checkpoint import Checkpoint
from dragoman.exchange.huggingface.family import (
    NEVER,
    Imported,
    Names,
    TokenOrder,
    bart_layers,
    layer_names,
    linear,
    read_names,
    tokens_by_id,
)
from dragoman.exchange.huggingface.tokenizer_files import byte_pieces, token_id
from dragoman.exchange.huggingface.translation import activation, language, search_settings, transformer
from dragoman.models import SpeechToTextConfig, TranscriberConfig, TransformerConfig
from dragoman.models.encoders import (
    Conv1dSubsamplingConfig,
    ConvolutionalPositionsConfig,
    FramesConfig,
    WaveformConvolutionsConfig,
)
from dragoman.models.layers import LearnedConfig, NoPositionsConfig
from dragoman.runs.tasks import TranscribeConfig
from dragoman.training import TrainConfig

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
LANGUAGE = re.compile(r"<\|([a-z]{2,3})\|>")
CONTROL = re.compile(r"<\|.*\|>|<unused \d+>")  # control tokens and timestamps, which are no text
MULTILINGUAL = 51_865  # tokens of the smallest multilingual vocabulary
ENCODER_POSITIONS = "encoder.inner.input.positions.table"
BATCH_RECORDINGS = 8
FEATURES = {"sampling_rate": 16_000, "n_fft": 400, "hop_length": 160}


def read_wav2vec2(checkpoint: Checkpoint, options: Mapping[str, str]) -> Imported:
    """Convolutions over the waveform, positions by a convolution, a Transformer, and CTC whose blank is <pad>.

    The tokens are characters with `|` between words. A recording is read as if it were alone in its batch. LayerDrop
    and the masking of pre-training are left out.
    """
    for name in ("add_adapter", "adapter_attn_dim"):
        if value := checkpoint.config.get(name):
            raise DataError(f"{checkpoint.folder}: {name}: found {value!r}, expected none: adapters (MMS) cannot go")
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
        raise checkpoint.wrong(name, repr(values), "convolution sizes")
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


def read_whisper(checkpoint: Checkpoint, options: Mapping[str, str]) -> Imported:
    """A pre-norm Transformer over log-mel frames; keys have no bias.

    Their decoder reads <|startoftranscript|>, a language, a task and <|notimestamps|> before the first word. Ours reads
    the first three as a prompt, and its <sos> is the last. So a run has one language and one task. Of the `options`,
    multilingual models need source_language; target_language = en translates into English.
    """
    size = checkpoint.vocabulary("model.decoder.embed_tokens.weight")
    tokens, make = byte_pieces(checkpoint, size)
    eos, start = (checkpoint.setting(f"{name}_token_id", int) for name in ("eos", "decoder_start"))
    vocabulary = TokenOrder(tokens, None, None, token_id(tokens, "<|notimestamps|>", checkpoint.folder), eos)
    tokenizer = make(vocabulary.names)
    tokenizer.config = ByteLevelBPEConfig(add_prefix_space=True)  # they were trained with a space before each text
    ours = {theirs: index for index, theirs in enumerate(vocabulary.rows)}
    prompt = tuple(ours[index] for index in [start, *language_and_task(checkpoint, tokens, options)])
    special = [index for index, token in enumerate(tokens) if CONTROL.fullmatch(token)]
    suppressed = {*special, *ids(checkpoint, "suppress_tokens", size)} - {eos}
    model = replace(
        model_settings(checkpoint, prompt),
        suppress=tuple(sorted(ours[index] for index in suppressed)),
        suppress_first=tuple(sorted(ours[index] for index in ids(checkpoint, "begin_suppress_tokens", size))),
    )
    media = feature_config(checkpoint)
    longest = max(1, checkpoint.size("max_target_positions") - len(prompt) - 1)  # <sos> is in place of <eos>
    config = TranscribeConfig(
        data=DataConfig(train=str(checkpoint.folder.absolute()), max_length=longest),
        tokenizer=TokenizersConfig(media, tokenizer.config),
        model=model,
        search=search_settings(checkpoint.generation),
        train=TrainConfig(
            batch_tokens=BATCH_RECORDINGS * 2 * checkpoint.size("max_source_positions"), freeze=(ENCODER_POSITIONS,)
        ),
    )
    weights = read_weights(checkpoint)
    table = checkpoint.tensor("model.decoder.embed_tokens.weight", (size, checkpoint.size("d_model")))
    weights["decoder_head.decoder.input.embedding.weight"] = vocabulary.table(table)
    weights["decoder_head.output.bias"] = vocabulary.output_bias(None)
    return Imported(config, FeatureExtractor(media), tokenizer, weights)


def ids(checkpoint: Checkpoint, name: str, size: int) -> list[int]:
    listed = checkpoint.generation.get(name) or []
    return [token for token in listed if type(token) is int and 0 <= token < size] if isinstance(listed, list) else []


def language_and_task(checkpoint: Checkpoint, tokens: tuple[str, ...], options: Mapping[str, str]) -> list[int]:
    """The tokens after the first one; English-only models have none."""
    if not checkpoint.generation.get("is_multilingual", len(tokens) >= MULTILINGUAL):
        return []
    codes = [match[1] for token in tokens if (match := LANGUAGE.fullmatch(token))]
    source = language(checkpoint, options, "source", codes)
    target = options.get("target_language", source)
    if target not in (source, "en"):
        raise DataError(f"{checkpoint.folder}: --target-language: found {target}, expected {source} or en")
    names = (f"<|{source}|>", "<|transcribe|>" if target == source else "<|translate|>")
    return [token_id(tokens, name, checkpoint.folder) for name in names]


def feature_config(checkpoint: Checkpoint) -> WhisperMelConfig:
    """The features; their length must be what the encoder reads."""
    settings = feature_settings(checkpoint)
    numbers = {name: settings.get(name, usual) for name, usual in FEATURES.items()}
    for name, value in numbers.items():
        if type(value) is not int or not 1 <= value <= 1_000_000:
            raise DataError(f"{checkpoint.folder}: {name}: found {value!r}, expected a number of samples")
    rate, fft, hop = numbers.values()
    seconds = 2 * checkpoint.size("max_source_positions") * hop / rate
    return WhisperMelConfig(rate, False, checkpoint.size("num_mel_bins"), fft, hop, seconds)


def model_settings(checkpoint: Checkpoint, prompt: tuple[int, ...]) -> SpeechToTextConfig:
    changes: dict[str, Any] = {
        "norm": "pre",
        "attention_dropout": checkpoint.number("attention_dropout", 0.0),
        "feedforward_dropout": checkpoint.number("activation_dropout", 0.0),
    }
    source, target = (LearnedConfig(checkpoint.size(f"max_{side}_positions")) for side in ("source", "target"))
    # The encoder of vectors cancels the factor of embeddings; their decoder has none.
    inner = replace(transformer(checkpoint, "encoder"), positions=source, scale_embedding=True, **changes)
    decoder = replace(transformer(checkpoint, "decoder"), positions=target, scale_embedding=False, **changes)
    return SpeechToTextConfig(
        output_bias=True,
        label_smoothing=0.0,
        prompt=prompt,
        encoder=FramesConfig(subsampling=Conv1dSubsamplingConfig(), dropout=0.0, inner=inner),
        decoder=decoder,
    )


def read_weights(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """All weights but the table of tokens; a bias of keys, which they do not have, is zero."""
    names: Names = {"decoder_head.decoder.input.positions.table": ("model.decoder.embed_positions.weight",)}
    names[ENCODER_POSITIONS] = ("model.encoder.embed_positions.weight",)
    for side, ours in (("encoder", "encoder.inner"), ("decoder", "decoder_head.decoder")):
        layers = bart_layers(side, checkpoint.size(f"{side}_layers", most=1000), norm=True)
        names |= {f"{ours}{name.removeprefix(side)}": theirs for name, theirs in layers.items()}
    for index in range(2):
        names |= linear(f"encoder.subsampling.layers.{index}", f"model.encoder.conv{index + 1}")

    def tensor(name: str) -> Tensor:
        return torch.zeros(checkpoint.size("d_model")) if name.endswith("k_proj.bias") else checkpoint.tensor(name)

    return {ours: torch.cat([tensor(name) for name in theirs]) for ours, theirs in names.items()}
