"""Whisper (Radford et al. 2023): recordings to text, or to English text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from dragoman.data.config import DataConfig, TokenizersConfig
from dragoman.data.media.audio import WhisperMelConfig
from dragoman.data.media.feature_extractor import FeatureExtractor
from dragoman.data.tokenizers.byte_level_bpe import ByteLevelBPEConfig
from dragoman.errors import DataError
from dragoman.exchange.huggingface.checkpoint import Checkpoint
from dragoman.exchange.huggingface.family import Imported, Names, TokenOrder, bart_layers, linear
from dragoman.exchange.huggingface.m2m100 import language
from dragoman.exchange.huggingface.marian import search_settings, transformer
from dragoman.exchange.huggingface.tokenizer_files import byte_pieces, token_id
from dragoman.exchange.huggingface.wav2vec2 import feature_settings
from dragoman.layers.positions import LearnedConfig
from dragoman.models.encoders.frames import Conv1dSubsamplingConfig, FramesConfig
from dragoman.models.speech_to_text import SpeechToTextConfig
from dragoman.tasks.media import TranscribeConfig
from dragoman.training.config import TrainConfig

LANGUAGE = re.compile(r"<\|([a-z]{2,3})\|>")
SPECIAL = re.compile(r"<\|.*\|>|<unused \d+>")  # control tokens and timestamps, which are no text
MULTILINGUAL = 51_865  # tokens of the smallest multilingual vocabulary
ENCODER_POSITIONS = "encoder.inner.input.positions.table"
BATCH_RECORDINGS = 8
FEATURES = {"sampling_rate": 16_000, "n_fft": 400, "hop_length": 160}


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
    special = [index for index, token in enumerate(tokens) if SPECIAL.fullmatch(token)]
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
