"""Classifiers and taggers as one ONNX graph, and the graph in the place of the model that it was made from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from dragoman.data import NO_TAG, Batch, token_batch
from dragoman.data.tokenizers import EOS
from dragoman.exchange.onnx import ENCODERS, prepare, quiet, stack_blockers
from dragoman.models import Classifier, Tagger
from dragoman.models.encoders import CharacterWordsEncoder, split_words

LABEL_GRAPH = "labels.onnx"


class LabelGraph(nn.Module):
    """One text → scores of its label, or of the tag of each word.

    A model of words reads the characters of every word, of <eos> too, which has scores like a word. Any other tagger
    reads the first token of every word as well.
    """

    def __init__(self, model: Classifier | Tagger) -> None:
        super().__init__()
        self.model = model

    def forward(self, source: Tensor, starts: Tensor | None = None) -> Tensor:
        """source (1, S) or (1, W + 1, L), starts (1, W) → (1, K), (1, W, K) or (1, W + 1, K)."""
        if isinstance(self.model, Classifier):
            return self.model.outputs(token_batch(source))
        starts = source.new_zeros(source.shape[:2]) if starts is None else starts
        return self.model.outputs(token_batch(source, torch.stack([torch.zeros_like(starts), starts], 1)))[0]


def label_blockers(config: Any) -> list[str]:
    """Every setting of a classifier or tagger that `write_label_graph` cannot express."""
    if getattr(config, "fitted", False):
        return [f"model.kind: found {config.kind!r}, which is fitted; expected a network"]
    reasons = list(stack_blockers("model.encoder", config.encoder, (*ENCODERS, "character-words")))
    if config.encoder.kind == "character-words":
        reasons += stack_blockers("model.encoder.inner", config.encoder.inner, ENCODERS)
    for name, expected in (("texts", "joined"), ("read", "first")):
        if (value := getattr(config, name, expected)) != expected:
            reasons.append(f"model.{name}: found {value!r}, expected {expected!r}")
    return reasons


def words_of(model: Classifier | Tagger) -> dict[str, Any] | None:
    """How a model of words splits characters into words; None: it reads tokens."""
    encoder: Any = model.encoder
    if not isinstance(encoder, CharacterWordsEncoder):
        return None
    return {"space": encoder.embedding.space, "longest": encoder.longest}


@torch.no_grad()
def write_label_graph(model: Classifier | Tagger, path: Path) -> None:
    """Write the graph of a classifier or tagger: inputs `source` and sometimes `starts`, output `scores`."""
    prepare(model)
    dynamic = torch.export.Dim.DYNAMIC
    inputs = {"source": torch.full((1, 5), EOS)}
    if words_of(model) is not None:
        inputs["source"] = torch.full((1, 5, 7), EOS)
    elif isinstance(model, Tagger):
        inputs["starts"] = torch.tensor([[0, 2, 3]])
    shapes = tuple(dict.fromkeys(range(1, tensor.dim()), dynamic) for tensor in inputs.values())
    with quiet():
        graph = torch.onnx.export(
            LabelGraph(model), tuple(inputs.values()), dynamo=True, verbose=False, dynamic_shapes=shapes,
            input_names=list(inputs), output_names=["scores"],
        )  # fmt: skip
    assert graph is not None
    graph.save(path)


class GraphOutputs:
    """What `outputs` of a classifier or tagger gives for a batch, computed by a graph; assign it to `model.outputs`.

    So validation and prediction run an exported model without knowing of it.
    """

    def __init__(self, model: Classifier | Tagger, graph: Path) -> None:
        import onnxruntime

        quiet = onnxruntime.SessionOptions()
        quiet.log_severity_level = 3
        self.model = model
        self.session = onnxruntime.InferenceSession(graph, quiet, providers=["CPUExecutionProvider"])

    def __call__(self, batch: Batch) -> Any:
        rows = list(self._rows(batch))
        if isinstance(self.model, Classifier):
            return torch.cat(rows)
        return pad_sequence(rows, batch_first=True), batch.target[:, 0] != NO_TAG

    def _rows(self, batch: Batch) -> Iterator[Tensor]:
        words = words_of(self.model)
        for number, (ids, real) in enumerate(zip(batch.source.data, batch.source.mask, strict=True)):
            source = ids[real][None]
            feed = {"source": source if words is None else split_words(source, source >= 0, **words)}
            count = None
            if isinstance(self.model, Tagger):
                tags, starts = batch.target[number]
                count = int((tags != NO_TAG).sum())
                if words is None:
                    feed["starts"] = starts[None, :count]
            scores = self.session.run(["scores"], {name: tensor.numpy() for name, tensor in feed.items()})[0]
            yield torch.from_numpy(scores) if count is None else torch.from_numpy(scores)[0, :count]
