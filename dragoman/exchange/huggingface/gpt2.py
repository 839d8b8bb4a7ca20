"""GPT-2 (Radford et al. 2019): a language model, to complete and to score texts."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from dragoman.base import DataError
from dragoman.data import DataConfig, TokenizersConfig
from dragoman.exchange.huggingface.checkpoint import Checkpoint
from dragoman.exchange.huggingface.family import Imported, Names, TokenOrder, layer_names, linear, read_names
from dragoman.exchange.huggingface.tokenizer_files import byte_pieces
from dragoman.exchange.huggingface.translation import activation
from dragoman.models import LanguageModelConfig, TransformerConfig
from dragoman.models.layers import LearnedConfig
from dragoman.runs.tasks import LanguageModelTaskConfig
from dragoman.training import TrainConfig

EXPRESSED = {
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "tie_word_embeddings": True,
    "add_cross_attention": False,
}
LAYER = {
    "attention.project": "attn.c_attn",
    "attention.output": "attn.c_proj",
    "attention_norm": "ln_1",
    "feedforward.widen": "mlp.c_fc",
    "feedforward.narrow": "mlp.c_proj",
    "feedforward_norm": "ln_2",
}


def read_gpt2(checkpoint: Checkpoint, options: Mapping[str, str]) -> Imported:
    """A pre-norm Transformer with learned positions. <|endoftext|> is our <eos>, which ends a line of text.

    Their names have the prefix `transformer.`, except in the first published folders.
    """
    for name, expected in EXPRESSED.items():
        if (value := checkpoint.setting(name, bool, expected)) != expected:
            raise DataError(f"{checkpoint.folder}: {name}: found {value}, expected {expected}")
    size = checkpoint.vocabulary("transformer.wte.weight", "wte.weight")
    tokens, make = byte_pieces(checkpoint, size)
    vocabulary = TokenOrder(tokens, None, None, None, checkpoint.setting("eos_token_id", int))
    tokenizer = make(vocabulary.names)
    stack = stack_settings(checkpoint)
    prefix = "transformer." if "transformer.wte.weight" in checkpoint.names() else ""
    weights = read_names(checkpoint, names(prefix, stack.layers), transposed)
    table = checkpoint.tensor(f"{prefix}wte.weight", (size, stack.width))
    weights["stack.input.embedding.weight"] = vocabulary.table(table)
    weights["output.bias"] = vocabulary.output_bias(None)
    assert isinstance(stack.positions, LearnedConfig)
    positions = stack.positions.max_positions
    weights["stack.input.positions.table"] = checkpoint.tensor(f"{prefix}wpe.weight", (positions, stack.width))
    config = LanguageModelTaskConfig(
        data=DataConfig(train=str(checkpoint.folder.absolute())),
        tokenizer=TokenizersConfig(tokenizer.config),
        model=LanguageModelConfig(stack=stack, segment=positions),
        train=TrainConfig(batch_tokens=max(4096, positions)),
    )
    return Imported(config, tokenizer, tokenizer, weights)


def stack_settings(checkpoint: Checkpoint) -> TransformerConfig:
    width = checkpoint.size("n_embd")
    inner = checkpoint.config.get("n_inner")
    return TransformerConfig(
        layers=checkpoint.size("n_layer", most=1000),
        width=width,
        heads=checkpoint.size("n_head"),
        feedforward=4 * width if inner is None else checkpoint.size("n_inner"),
        dropout=checkpoint.number("resid_pdrop", 0.1),
        attention_dropout=checkpoint.number("attn_pdrop", 0.1),
        activation=activation(checkpoint, "activation_function"),
        positions=LearnedConfig(checkpoint.size("n_positions")),
        scale_embedding=False,
        norm_epsilon=float(checkpoint.setting("layer_norm_epsilon", float, 1e-5)),
    )


def names(prefix: str, layers: int) -> Names:
    return linear("stack.norm", f"{prefix}ln_f") | layer_names("stack.blocks", f"{prefix}h", layers, LAYER)


def transposed(name: str, tensor: Tensor) -> Tensor:
    """Their matrices are (inputs, outputs), those of linear layers (outputs, inputs)."""
    return tensor.t() if tensor.dim() == 2 else tensor
