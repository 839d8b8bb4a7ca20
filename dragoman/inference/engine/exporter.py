"""The contract of exporters, and reasons why a model cannot be exported that several formats share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from dragoman.models import EncoderDecoderConfig, TransformerConfig
from dragoman.runs import Run

if TYPE_CHECKING:
    from dragoman.data import Batch
    from dragoman.models import EncoderDecoder

# Settings of a Transformer for which neither CTranslate2 nor Marian has a layer, and the values that go.
PLAIN: dict[str, tuple[Any, ...]] = {"head_width": (0,), "embedding_norm": (False,), "norm_epsilon": (0.0,)}


class Exporter(Protocol):
    """A file format of another program."""

    name: ClassVar[str]  # what `--to` calls it
    about: ClassVar[str]  # one line for help
    options: ClassVar[tuple[str, ...]] = ()  # of `dragoman export` that it reads; a user who gives another is told

    def blockers(self, run: Run) -> list[str]:
        """Every setting of the run that the format cannot express: setting, found, expected. Empty: it can be exported.

        Collect them all, so that a user sees every reason at once.
        """

    def export(self, run: Run, path: Path, options: Mapping[str, str]) -> None:
        """Write the run to a new path: a folder that the exporter makes, or a file.

        `options` are those that the user gave, of the names in `self.options`.
        """

    def decode(self, run: Run, path: Path, sources: Sequence[Sequence[int]]) -> list[list[int]] | None:
        """The target tokens of sources by greedy search in the exported format; None: only other programs can run it.

        Sources and outputs are token ids of the run without <eos>. `dragoman export` compares them with the run itself.
        """
        return None

    def label_outputs(self, run: Run, path: Path, model: Any) -> Callable[[Batch], Any] | None:
        """What replaces `outputs` of the run's classifier or tagger: the same scores by the exported format."""
        return None


def encoder_decoder(run: Run) -> EncoderDecoder:
    """The model of a run whose blockers said that it is one."""
    import torch

    from dragoman.models import EncoderDecoder

    model = run.model(torch.device("cpu"))
    assert isinstance(model, EncoderDecoder)
    return model


def stacks_of(config: EncoderDecoderConfig) -> dict[str, TransformerConfig]:
    """The settings of encoder and decoder, which blockers said are Transformers."""
    stacks = {"encoder": config.encoder, "decoder": config.decoder}
    assert all(isinstance(stack, TransformerConfig) for stack in stacks.values())
    return stacks  # type: ignore[return-value]


def transformer_blockers(config: Any, required: Mapping[str, tuple[Any, ...]]) -> list[str]:
    """Every setting that keeps a model from being an encoder-decoder of plain Transformers with `required` settings."""
    if not isinstance(config, EncoderDecoderConfig):
        return [not_encoder_decoder(config)]
    reasons = [f"model.prompt: found {list(config.prompt)}, expected none"] if config.prompt else []
    for side in ("encoder", "decoder"):
        reasons += stack_blockers(f"model.{side}", getattr(config, side), required)
    return reasons


def not_encoder_decoder(config: Any) -> str:
    return f"model.kind: found {config.kind!r}, expected 'encoder-decoder'"


def stack_blockers(place: str, stack: Any, required: Mapping[str, tuple[Any, ...]]) -> Iterator[str]:
    if not isinstance(stack, TransformerConfig):
        yield f"{place}.kind: found {stack.kind!r}, expected 'transformer'"
        return
    if stack.attention.kind != "full":
        yield f"{place}.attention: found {stack.attention.kind!r}, expected 'full'"
    if stack.positions.kind == "relative-sinusoidal":
        yield f"{place}.positions: found {stack.positions.kind!r}, which no other program has"
    if (merge := getattr(stack.positions, "merge", "sum")) != "sum":
        yield f"{place}.positions.merge: found {merge!r}, expected 'sum'"
    for name, expected in required.items():
        if (value := getattr(stack, name)) not in expected and not is_default(stack, name):
            yield f"{place}.{name}: found {value!r}, expected {' or '.join(map(repr, expected))}"


def is_default(stack: TransformerConfig, name: str) -> bool:
    """Whether a setting of which 0 means the default has the value of the default, as in an imported T5."""
    if name == "head_width":
        return stack.depth * stack.heads == stack.width
    return name == "norm_epsilon" and stack.epsilon == replace(stack, norm_epsilon=0.0).epsilon
