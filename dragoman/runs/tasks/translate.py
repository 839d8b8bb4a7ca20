"""Task `translate`: text to text by search, autoregressive or not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple

from dragoman.base import ConfigError, Mend, Problem
from dragoman.base.config import Table, imported, setting
from dragoman.classical import TRANSDUCERS, build_transducer
from dragoman.data import SourceReader, TokenizersConfig
from dragoman.data.formats import ExampleFormat, pair_format
from dragoman.data.tokenizers import PAD, SPECIALS, NumbersConfig, RunTokenizerConfig, SentencePieceConfig, Tokenizer
from dragoman.models import DecoderTraits, EncoderDecoderConfig, decoder_traits, decodes
from dragoman.runs.tasks.base import Config, Starter, Task, too_long

if TYPE_CHECKING:
    from torch import Tensor, nn


class NetworkEntry(NamedTuple):
    """A kind of neural model: its settings, and its class."""

    config: Any
    model: Callable[..., nn.Module]  # (config, source vocabulary, target vocabulary, tags=…, space=…)


NETWORKS: Table[str, NetworkEntry] = Table(
    "model",
    lambda entry: [entry.config.kind],
    late={
        "encoder-decoder": imported(
            NetworkEntry, "dragoman.models.encoder_decoder:EncoderDecoderConfig,EncoderDecoder"
        ),
        "non-autoregressive": imported(
            NetworkEntry, "dragoman.models.non_autoregressive:NonAutoregressiveConfig,NonAutoregressive"
        ),
    },
    configs={"encoder-decoder": EncoderDecoderConfig},
)


@dataclass(frozen=True)
class TranslateConfig(Config):
    """Pairs of text."""

    task: Literal["translate"] = setting("translate", help="the kind of problem")
    model: Annotated[Any, NETWORKS, TRANSDUCERS] = setting(EncoderDecoderConfig(), help="the model to train")
    uses_tags = True
    may_resplit = True

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        model = self.model
        if self.data.reads_more:
            yield from self.context_problems()
        if isinstance(self.tokenizer.target, NumbersConfig):
            yield 'tokenizer.target: found "numbers", which only task = "regress" reads'
        if model.kind in TRANSDUCERS:
            if model.kind == "copy" and self.tokenizer.target is not None:
                yield Problem(
                    'model.kind: "copy" needs one vocabulary for both sides; leave tokenizer.target out, or take '
                    'preset = "copy" for its bytes',
                    Mend("tokenizer.target", None, "target: the tokenizer of the source"),
                )
            yield from self.unused_settings(
                ["train.start_from", "train.vectors"], f'has no meaning for model.kind = "{model.kind}"'
            )
            return
        if model.tie not in ("none", "target") and not may_share_vocabulary(self.tokenizer):
            yield (
                f"model.tie: {model.tie!r} needs one vocabulary for both sides; leave tokenizer.target out, "
                f'or set model.tie = "{"none" if model.kind == "non-autoregressive" else "target"}"'
            )
        yield from too_long(self, "encoder", model.encoder)
        if model.kind == "encoder-decoder":  # a non-autoregressive decoder reads positions, not tokens
            yield from too_long(self, "decoder", model.decoder)

    def context_problems(self) -> Iterator[str]:
        """What reads a source token by token from its first to its last cannot skip the sentences before it."""
        name = "context" if self.data.context else "memory"
        found = f"data.{name}: found {getattr(self.data, name):g}, expected 0"
        if self.model.kind in TRANSDUCERS:
            yield f'{found} for model.kind = "{self.model.kind}", which reads single texts'
        elif (decoder := decoder_of(self)) is not None and decoder.own_likelihood:
            yield f'{found} for model.decoder.kind = "{self.model.decoder.kind}"; take one with attention'
        elif self.model.kind == "non-autoregressive":
            yield f"{found} for a non-autoregressive model, whose outputs are as long as its sources"
        if getattr(self.tokenizer.source, "features", ""):
            yield f"{found} for sources with features"
        if self.data.hallucinate:
            yield f"{found} with data.hallucinate"
        if self.data.memory and self.tokenizer.target is not None:
            yield f"{found} with tokenizer.target: sources have text of both languages; leave tokenizer.target out"


def may_share_vocabulary(tokenizer: TokenizersConfig) -> bool:
    """Whether source and target may have one vocabulary: one tokenizer, or both of one imported model."""
    source, target = tokenizer.source, tokenizer.target
    if isinstance(source, RunTokenizerConfig) and isinstance(target, RunTokenizerConfig):
        return source.run == target.run
    return target is None or (isinstance(source, SentencePieceConfig) and isinstance(target, SentencePieceConfig))


def decoder_of(config: Config) -> type[DecoderTraits] | None:
    """What the decoder of an autoregressive model declares; None for a model without one."""
    return decoder_traits(config.model.decoder) if config.model.kind == "encoder-decoder" else None


def build_model(
    config: Config, source_vocabulary: int, target_vocabulary: int, *, tags: int = 0, space: int | None = None
) -> nn.Module:
    """The untrained model for vocabularies of these sizes; `space` is the id of the token between words."""
    network = NETWORKS.of(config.model).model
    return network(config.model, source_vocabulary, target_vocabulary, tags=tags, space=space)


def set_lower_case(model: nn.Module, source: SourceReader) -> nn.Module:
    """Tell an encoder that builds words from characters which tokens are each other's lower case."""
    encoder: Any = getattr(model, "encoder", None)
    if encoder is not None and encoder.reads_lower_case:
        import torch

        pieces = source.pieces(range(len(source)))
        ids = {piece: number for number, piece in enumerate(pieces)}
        lower = [ids.get(piece.lower(), number) for number, piece in enumerate(pieces)]  # its own id if there is none
        encoder.embedding.folded = torch.tensor(lower)  # (V,)
    return model


def copied_ids(source: SourceReader, target: Tokenizer) -> Tensor:
    """For every source token the target token with the same text, PAD where there is none; (V,)."""
    import torch

    ids = {piece: number for number, piece in enumerate(target.pieces(range(len(target)))) if number >= len(SPECIALS)}
    return torch.tensor([ids.get(piece, PAD) for piece in source.pieces(range(len(source)))])


class Translate(Task):
    """Text to text."""

    config: ClassVar[type[Config]] = TranslateConfig
    starter = Starter(
        "pairs of text: translation, spelling correction, normalisation, grapheme-to-phoneme",
        {
            "preset": "transformer-small",
            "data": {"train": "pairs.tsv"},
            "tokenizer": {"source": {"kind": "subwords", "vocab_size": 8000}},
            "train": {"steps": 10_000},
        },
    )

    def example_format(self, config: Config) -> ExampleFormat:
        copies = (decoder := decoder_of(config)) is not None and decoder.copies_words
        return pair_format(config.tokenizer, copies)

    def untrained(self, config: Config, source: int, target: int) -> Any:
        return build_model(config, source, target)

    def model(self, config: Config, source: SourceReader, target: Tokenizer) -> Any:
        if config.model.kind in TRANSDUCERS:
            return build_transducer(config.model, source, target, shared=config.tokenizer.target is None)
        added = len(source) - len(source.innermost)  # tags, and <sep> behind context
        if config.model.tie not in ("none", "target") and len(source) - added != len(target):
            raise ConfigError(
                f"model.tie: {config.model.tie!r} needs one vocabulary for both sides, found {len(source):,} and "
                f'{len(target):,} tokens; set model.tie = "target"'
            )
        model = build_model(config, len(source), len(target), tags=added, space=source.space)
        if decodes(model) == "stepwise":
            model.copied = copied_ids(source, target)
        return set_lower_case(model, source)
