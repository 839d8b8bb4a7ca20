"""Export a Transformer as a `T5ForConditionalGeneration`: pre-norm with RMS norm, a bias of relative positions and no
other biases.

T5 does not scale its scores: the factor of ours goes into the query weights. It has one table for source and target,
and an output layer that is this table, divided by √d, or one of its own. transformers 5 also reads a table for each of
encoder and decoder.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from dragoman.data import SourceReader
from dragoman.data.tokenizers import EOS, PAD, SOS, SPECIALS, UNK, ByteTokenizer, Tokenizer
from dragoman.exchange.huggingface.family import NEVER, Converted, split_names
from dragoman.exchange.huggingface.t5 import FEED_FORWARD, names
from dragoman.inference.engine import encoder_decoder, stacks_of, transformer_blockers
from dragoman.models import EncoderDecoder, TransformerConfig
from dragoman.models.layers import RelativeBiasConfig
from dragoman.runs import Run

# Our setting → the values that the class can express.
EXPRESSED: dict[str, tuple[Any, ...]] = {
    "norm": ("pre",),
    "norm_kind": ("rms",),
    "bias": (False,),
    "score": ("scaled-dot", "dot"),
    "embedding_norm": (False,),
}
# Settings that both sides have in common, and the value that counts.
COMMON = {
    **{name: name for name in ("width", "heads", "feedforward", "activation", "gated", "positions")},
    "head_width": "depth",
    "norm_epsilon": "epsilon",
}
PROJECTIONS = {settings: name for name, settings in reversed(FEED_FORWARD.items())}


def model_blockers(config: Any) -> Iterator[str]:
    yield from transformer_blockers(config, EXPRESSED)
    both = {side: getattr(config, side, None) for side in ("encoder", "decoder")}
    stacks = {side: stack for side, stack in both.items() if isinstance(stack, TransformerConfig)}
    for side, stack in stacks.items():
        if not isinstance(stack.positions, RelativeBiasConfig):
            yield f"model.{side}.positions: found {stack.positions.kind!r}, expected 'relative-bias'"
        if stack.key_heads not in (0, stack.heads):
            yield f"model.{side}.key_heads: found {stack.key_heads}, expected 0"
    if len(stacks) == 2:
        for name, value in COMMON.items():
            if getattr(stacks["encoder"], value) != getattr(stacks["decoder"], value):
                yield f"model.encoder.{name}: found another than model.decoder.{name}, expected the same"


def weight_blockers(run: Run) -> Iterator[str]:
    """What a T5 cannot express of a run whose settings it can: it has no biases to hide tokens or to prefer them."""
    source, target = map(len, run.tokenizers())
    if target < source:
        yield (
            f"tokenizer.target: found {target} tokens beside {source} of the source, expected as many or more, "
            "or one vocabulary for both sides"
        )
    if run.config.model.output_bias:
        bias = output_bias(encoder_decoder(run))
        allowed = bias == 0
        allowed[SOS] |= never(bias)[SOS]
        if not bool(allowed.all()):
            yield "model.output_bias: found a trained bias, expected false, or train.freeze=output.bias of imported T5"


def output_bias(model: EncoderDecoder) -> Tensor:
    """The bias of the output layer (V,), zeros if it has none."""
    bias = model.output.bias
    return bias.detach() if isinstance(bias, Tensor) else torch.zeros(model.target_vocabulary)


def never(bias: Tensor) -> Tensor:
    """The tokens (V,) that an imported model does not have and never chooses."""
    return bias < NEVER / 2


class TokenIds(NamedTuple):
    """Our token of every id of theirs. An imported T5 starts with <pad>, so that our <sos> has no id of its own."""

    order: tuple[int, ...]
    starts_with_pad: bool

    @property
    def inputs(self) -> list[int]:
        """The rows of the input table: what stands where <pad> does is read as the start alone."""
        return [SOS if self.starts_with_pad and token == PAD else token for token in self.order]

    @property
    def start(self) -> int:
        return self.order.index(PAD if self.starts_with_pad else SOS)


def token_ids(tokenizer: SourceReader, starts_with_pad: bool) -> TokenIds:
    """ByT5 has its special tokens in a fixed order, and can have more of them behind the bytes."""
    first = (PAD, EOS, UNK) if isinstance(tokenizer, ByteTokenizer) else (PAD, UNK, SOS, EOS)
    order = [*first, *range(len(SPECIALS), len(tokenizer)), *({SOS} - {*first})]
    return TokenIds(tuple(token for token in order if token != SOS or not starts_with_pad), starts_with_pad)


@torch.no_grad()
def convert(model: EncoderDecoder, source: SourceReader, target: Tokenizer) -> Converted:
    stacks = stacks_of(model.config)
    starts_with_pad = bool(never(output_bias(model))[SOS])
    ids = [token_ids(tokenizer, starts_with_pad) for tokenizer in (source, target)]
    own = {name: tensor.detach().float() for name, tensor in model.named_parameters(remove_duplicate=False)}

    def unscaled(name: str, weight: Tensor) -> Tensor:
        stack = stacks[name.partition(".")[0]]
        scaled = stack.score == "scaled-dot" and name.endswith(".q.weight")
        return weight * stack.depth**-0.5 if scaled else weight

    weights = split_names(own, names("encoder", stacks["encoder"]) | names("decoder", stacks["decoder"]), unscaled)
    tables = [own[f"{side}.input.embedding.weight"][rows.inputs] for side, rows in zip(stacks, ids, strict=True)]
    tables = [
        table * table.shape[1] ** 0.5 if stack.scale_embedding else table
        for table, stack in zip(tables, stacks.values(), strict=True)
    ]
    output = own["output.weight"][list(ids[1].order)]
    tables[0] = F.pad(tables[0], (0, 0, 0, len(output) - len(tables[0])))
    weights["shared.weight"] = tables[1]
    if not torch.equal(*tables):
        weights |= {f"{side}.embed_tokens.weight": table for side, table in zip(stacks, tables, strict=True)}
    tied = torch.equal(output * output.shape[1] ** 0.5, tables[1])
    if not tied:
        weights["lm_head.weight"] = output
    config = config_table(stacks, ids[1]) | {"vocab_size": len(output), "tie_word_embeddings": tied}
    return Converted(config, weights, (ids[0].order, ids[1].order))


def config_table(stacks: dict[str, TransformerConfig], ids: TokenIds) -> dict[str, Any]:
    encoder, decoder = stacks["encoder"], stacks["decoder"]
    assert isinstance(encoder.positions, RelativeBiasConfig)
    return {
        "architectures": ["T5ForConditionalGeneration"],
        "model_type": "t5",
        "is_encoder_decoder": True,
        "d_model": encoder.width,
        "d_kv": encoder.depth,
        "d_ff": encoder.feedforward,
        "num_layers": encoder.layers,
        "num_decoder_layers": decoder.layers,
        "num_heads": encoder.heads,
        "relative_attention_num_buckets": encoder.positions.buckets,
        "relative_attention_max_distance": encoder.positions.distance,
        "dropout_rate": encoder.dropout,
        "layer_norm_epsilon": encoder.epsilon,
        "feed_forward_proj": PROJECTIONS[encoder.activation, encoder.gated],
        "pad_token_id": ids.order.index(PAD),
        "eos_token_id": ids.order.index(EOS),
        "decoder_start_token_id": ids.start,
        "use_cache": decoder.layers <= encoder.layers,  # the cache of `generate` has a place for each encoder layer
        "dtype": "float32",
    }
