"""Export a trained Transformer as a CTranslate2 model folder, which decodes several times faster on a CPU.

CTranslate2 names the tensors of a layer in its specification; the export copies every parameter of our model to the
tensor that computes the same. CTranslate2's own sinusoids start at position 1 and have other wave lengths, so
the export writes ours as a table.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dragoman.base import ConfigError, make_folder, make_temporary, move, remove_folder, write_bytes
from dragoman.data import SourceReader
from dragoman.data.tokenizers import EOS, SOS, UNK, SentencePieceTokenizer, SubwordTokenizer, Tokenizer
from dragoman.decoding import SUPPRESSED_TOKENS
from dragoman.inference.engine.ctranslate2 import (
    COPIES,
    IMPOSSIBLE,
    MADE_FROM,
    POSITIONS,
    blockers,
    check_exportable,
    copies,
    folder_of,
    made_from,
    names,
    origin,
    package,
    translator,
    written_folder,
)
from dragoman.inference.engine.exporter import Exporter, encoder_decoder, stacks_of
from dragoman.models import (
    DecoderBlock,
    EncoderBlock,
    EncoderDecoder,
    TransformerConfig,
    TransformerDecoder,
    TransformerEncoder,
)
from dragoman.models.layers import FeedForward, RotaryConfig, sinusoids
from dragoman.runs import Run

# ---------------------------------------------------------------------- parameters to tensors of the specification


def array(tensor: Tensor) -> NDArray[np.float32]:
    """A float32 copy: CTranslate2 quantises arrays in place."""
    return np.array(tensor.detach().cpu().float().numpy(), copy=True, order="C")


def set_linear(spec: Any, layer: nn.Linear) -> None:
    spec.weight = array(layer.weight)
    if layer.bias is not None:
        spec.bias = array(layer.bias)


def set_norm(spec: Any, norm: nn.Module) -> None:
    """CTranslate2 takes a norm without beta for an RMS norm, so a layer norm without bias gets a beta of zeros."""
    assert isinstance(norm, nn.LayerNorm | nn.RMSNorm)
    assert norm.weight is not None
    spec.gamma = array(norm.weight)
    if isinstance(norm, nn.LayerNorm):
        spec.beta = array(torch.zeros_like(norm.weight) if norm.bias is None else norm.bias)


def set_feed_forward(spec: Any, layer: FeedForward) -> None:
    if layer.gate is not None:
        set_linear(spec.linear_0, layer.gate)
        set_linear(spec.linear_0_noact, layer.widen)
    else:
        set_linear(spec.linear_0, layer.widen)
    set_linear(spec.linear_1, layer.narrow)


def set_self_attention(spec: Any, config: TransformerConfig, attention: Any) -> None:
    set_linear(spec.linear[0], attention.project)  # queries, keys and values, one matrix in both programs
    set_linear(spec.linear[1], attention.output)
    if config.positions.kind == "relative-bias":
        spec.relative_attention_bias = array(attention.relative.table)
        spec.relative_attention_max_distance = np.dtype("int32").type(attention.relative.distance)
    elif config.positions.kind == "relative":
        table = attention.relative.table  # (k+1 or 2k+1, d): a decoder has no vectors for what is ahead
        missing = 2 * attention.relative.distance + 1 - table.shape[0]
        spec.relative_position_keys = array(torch.cat([table, table.new_zeros(missing, table.shape[1])]))
        del spec.relative_position_values  # ours are keys only


def set_cross_attention(spec: Any, attention: Any) -> None:
    """In CTranslate2 keys and values are one matrix."""
    set_linear(spec.linear[0], attention.query)
    spec.linear[1].weight = array(torch.cat([attention.key.weight, attention.value.weight]))
    if attention.key.bias is not None:
        spec.linear[1].bias = array(torch.cat([attention.key.bias, attention.value.bias]))
    set_linear(spec.linear[2], attention.output)


def set_positions(spec: Any, config: TransformerConfig, stack: Any) -> None:
    """The position table that is added to the embeddings."""
    kind = config.positions.kind
    if kind == "learned":
        spec.position_encodings.encodings = array(stack.input.positions.table)
    elif kind == "sinusoidal":
        spec.position_encodings.encodings = array(sinusoids(POSITIONS, config.width, stack.input.positions.layout))
    elif kind == "none":
        spec.position_encodings.encodings = np.zeros((POSITIONS, config.width), np.float32)


def options(config: TransformerConfig) -> dict[str, Any]:
    activations = package().specs.Activation
    out = {
        "pre_norm": config.norm == "pre",
        "rms_norm": config.norm_kind == "rms",
        "ffn_glu": config.gated,
        "activation": {
            "relu": activations.RELU,
            "gelu": activations.GELU,
            "gelu-tanh": activations.GELUTanh,
            "silu": activations.SWISH,
        }[config.activation],
        "num_heads_kv": config.key_heads if config.key_heads not in (0, config.heads) else None,
        "relative_position": config.positions.kind == "relative",
        "relative_attention_bias": config.positions.kind == "relative-bias",
    }
    if isinstance(config.positions, RotaryConfig):
        out |= {"rotary_dim": 0, "rotary_interleave": False, "rotary_base": config.positions.base}
    return out


def stack_spec(kind: str, config: TransformerConfig, stack: TransformerEncoder | TransformerDecoder) -> Any:
    spec = getattr(package().specs, kind)(config.layers, config.heads, **options(config))
    spec.scale_embeddings = config.scale_embedding
    set_positions(spec, config, stack)
    if config.norm == "pre":
        set_norm(spec.layer_norm, stack.norm)
    for layer, block in zip(spec.layer, stack.blocks, strict=True):
        assert isinstance(block, EncoderBlock | DecoderBlock)
        attentions = [layer.self_attention]
        set_self_attention(layer.self_attention, config, block.attention)
        set_norm(layer.self_attention.layer_norm, block.attention_norm)
        if isinstance(block, DecoderBlock):
            attentions.append(layer.attention)
            set_cross_attention(layer.attention, block.cross)
            set_norm(layer.attention.layer_norm, block.cross_norm)
        if config.score == "dot":
            for attention in attentions:
                attention.queries_scale = np.float32(1.0)
        set_norm(layer.ffn.layer_norm, block.feedforward_norm)
        set_feed_forward(layer.ffn, block.feedforward)
    return spec


def decoder_spec(config: TransformerConfig, decoder: TransformerDecoder, output: nn.Linear) -> Any:
    """The specification of the decoder; an embedding shared with the source may end in tags, which are never output."""
    spec = stack_spec("TransformerDecoderSpec", config, decoder)
    table = decoder.input.embedding.weight[: output.out_features]
    spec.embeddings.weight = array(torch.cat([table, table.new_zeros(len(copies()), table.shape[1])]))
    spec.projection.weight, spec.projection.bias = map(array, with_copies(output))
    return spec


def with_copies(output: nn.Linear) -> tuple[Tensor, Tensor]:
    """Weights and biases of an output layer that never chooses some tokens, but keeps their share of the softmax.

    Our own search forbids these tokens after the softmax. CTranslate2 would forbid them before it, and rank by other
    scores. So each such token gets no probability, and many copies share what it had: too many for one to be chosen.
    """
    never = list(SUPPRESSED_TOKENS)
    weight = output.weight.detach()[: output.out_features].float().clone()
    bias = weight.new_zeros(weight.shape[0]) if output.bias is None else output.bias.detach().float().clone()
    extra, extra_bias = (part[never].repeat_interleave(COPIES, 0) for part in (weight, bias))
    weight[never] = 0.0
    bias[never] = IMPOSSIBLE
    return torch.cat([weight, extra]), torch.cat([bias, extra_bias - math.log(COPIES)])


# ---------------------------------------------------------------------- folders


def export(model: EncoderDecoder, tokenizers: Sequence[SourceReader], folder: Path, precision: str) -> None:
    check_exportable(model.config)
    stacks = stacks_of(model.config)
    assert isinstance(model.encoder, TransformerEncoder)
    assert isinstance(model.decoder, TransformerDecoder)
    assert isinstance(model.output, nn.Linear)
    encoder = stack_spec("TransformerEncoderSpec", stacks["encoder"], model.encoder)
    encoder.embeddings[0].weight = array(model.encoder.input.embedding.weight)
    decoder = decoder_spec(stacks["decoder"], model.decoder, model.output)
    spec = package().specs.TransformerSpec(encoder, decoder)
    source, target = map(names, tokenizers)
    spec.register_source_vocabulary(source)
    spec.register_target_vocabulary([*target, *copies()])
    spec.config.unk_token = target[UNK]
    spec.config.bos_token = spec.config.decoder_start_token = target[SOS]
    spec.config.eos_token = target[EOS]
    spec.config.add_source_eos = True
    spec.validate()
    spec.optimize(quantization=precision)
    make_folder(folder)
    spec.save(str(folder))


def exported(
    run: Path, weights: Path, model: EncoderDecoder, tokenizers: tuple[SourceReader, Tokenizer], precision: str
) -> Path:
    """The model folder of a run, written when it is first needed and again when the weights have changed.

    It is inside the run folder, or in a temporary folder if the run folder cannot be written.
    """
    if (folder := written_folder(run, weights, precision)) is not None:
        return folder
    folder, table = folder_of(run, precision), origin(weights)
    try:
        beside = make_temporary(run, f".{folder.name}.")
    except OSError:
        beside = folder = Path(tempfile.mkdtemp(prefix="dragoman-"))
    try:
        export(model, tokenizers, beside, precision)
        write_bytes(beside / MADE_FROM, json.dumps(made_from(table, beside)).encode())
        if beside != folder:
            replace_folder(beside, folder)
    except BaseException:
        remove_folder(beside)
        raise
    return folder


def replace_folder(beside: Path, folder: Path) -> None:
    """Replace a folder by another; if two processes do so at once, the later one wins."""
    old = beside.with_name(beside.name + ".old")
    for _ in range(10):
        with suppress(FileNotFoundError):
            move(folder, old)
        remove_folder(old)
        try:
            move(beside, folder)
            return
        except OSError:
            if not folder.exists():
                raise
    raise ConfigError(f"{folder}: cannot be replaced; other processes keep writing it")


OTHER_README = """# A model for CTranslate2

Its tokens are {kinds}. `tokenizer/` has their vocabularies, one token a line: CTranslate2 reads and writes them.
"""


class CTranslate2Exporter(Exporter):
    """The exporter of `dragoman export --to ctranslate2`."""

    name = "ctranslate2"
    about = "a model folder of CTranslate2 (float32, float16 or int8), for Transformers that translate"
    options: ClassVar[tuple[str, ...]] = ("precision",)

    def blockers(self, run: Run) -> list[str]:
        return blockers(run.config.model)

    def export(self, run: Run, path: Path, options: Mapping[str, str]) -> None:
        self.export_model(run, path, options.get("precision", "float32"))
        write_tokenizers(path, *run.tokenizers())

    def export_model(self, run: Run, path: Path, precision: str) -> None:
        """Write the model folder alone."""
        export(encoder_decoder(run), run.tokenizers(), path, precision)

    def decode(self, run: Run, path: Path, sources: Sequence[Sequence[int]]) -> list[list[int]]:
        """The outputs of a model folder by CTranslate2's own greedy search, in the precision of its weights.

        CTranslate2 has one limit for all outputs of a batch, the run one for each: an output without end is cut there.
        """
        source, target = map(names, run.tokenizers())
        numbers = {name: number for number, name in enumerate(target)}
        engine = translator(path, compute_type="default")
        limits = [run.config.search.limit(len(tokens) + 1, float(run.data["length_ratio"])) - 1 for tokens in sources]
        outputs = engine.translate_batch(
            [[source[token] for token in tokens] for tokens in sources],
            beam_size=1, max_input_length=0, max_decoding_length=max(limits, default=1),
        )  # fmt: skip
        written = [[numbers[name] for name in output.hypotheses[0] if name in numbers] for output in outputs]
        return [tokens[:limit] for tokens, limit in zip(written, limits, strict=True)]


def write_tokenizers(folder: Path, source: SourceReader, target: Tokenizer) -> None:
    """The files that turn text into tokens and back, and how to use them: CTranslate2 itself reads tokens alone."""
    sides = {"source": source, "target": target}
    if not all(isinstance(tokenizer, SubwordTokenizer | SentencePieceTokenizer) for tokenizer in sides.values()):
        for side, tokenizer in sides.items():
            tokenizer.save(folder / "tokenizer", side)
        kinds = " and ".join(dict.fromkeys(tokenizer.kind for tokenizer in sides.values()))
        write_bytes(folder / "README.md", OTHER_README.format(kinds=kinds).encode())
        return
    for side, tokenizer in sides.items():
        assert isinstance(tokenizer, SubwordTokenizer | SentencePieceTokenizer)
        write_bytes(folder / f"{side}.spm", tokenizer.model)
    prefix = getattr(source.config, "prefix", "") if isinstance(source, SentencePieceTokenizer) else ""
    text = Path(__file__).with_name("ctranslate2_readme.md").read_text(encoding="utf-8")
    write_bytes(folder / "README.md", text.replace("PREFIX", repr([prefix] if prefix else [])).encode())
