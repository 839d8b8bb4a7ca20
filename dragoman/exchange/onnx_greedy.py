"""Greedy decoding of a model that `dragoman export --to onnx` wrote, with onnxruntime and numpy alone.

Usage: python greedy.py < sources.txt > outputs.txt
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np


class GreedyDecoder:
    """An exported model: encoder.onnx runs once, decoder.onnx once for every token."""

    def __init__(self, folder: str | Path, config: dict[str, Any] | None = None) -> None:
        """`config` is the content of config.json, by default that of the folder."""
        import onnxruntime

        folder = Path(folder)
        self.config = config or json.loads((folder / "config.json").read_text(encoding="utf-8"))
        self.outputs = ["log_probabilities", *(f"new_{cache['name']}" for cache in self.config["caches"])]
        quiet = onnxruntime.SessionOptions()
        quiet.log_severity_level = 3
        self.encoder, self.decoder = (
            onnxruntime.InferenceSession(folder / f"{name}.onnx", quiet, providers=["CPUExecutionProvider"])
            for name in ("encoder", "decoder")
        )
        self.decoder_inputs = {argument.name for argument in self.decoder.get_inputs()}

    def decode(self, sources: Sequence[Sequence[int]], max_length: int = 0) -> list[list[int]]:
        """The target tokens, without <eos>, of every source, whose tokens are given without <eos>."""
        special, rows = self.config["special"], len(sources)
        width = max(map(len, sources)) + 1
        source = np.full((rows, width), special["pad"], np.int64)
        for number, ids in enumerate(sources):
            source[number, : len(ids) + 1] = [*ids, special["eos"]]
        lengths = (source != special["pad"]).sum(1)
        factor = math.ceil(self.config["length_ratio"] * 16)
        limits = np.full(rows, max_length + 1) if max_length else lengths * factor // 16 + 12  # <eos> included
        capacity = int(limits.max()) + len(self.config["prompt"])
        names = [argument.name for argument in self.encoder.get_outputs()]
        state: dict[str, Any] = dict(zip(names, self.encoder.run(None, {"source": source}), strict=True))
        for cache in self.config["caches"]:
            if cache["shape"] is not None:  # keys and values of earlier tokens: none yet
                sizes = {"batch": rows, "capacity": capacity}
                state[cache["name"]] = np.zeros([sizes.get(size, size) for size in cache["shape"]], np.float32)
        position = 0
        for token in self.config["prompt"]:
            self._step(np.full(rows, token, np.int64), position, state)
            position += 1
        tokens: Any = np.full(rows, special["sos"], np.int64)
        written: list[list[int]] = [[] for _ in range(rows)]
        going = np.ones(rows, bool)
        while going.any():
            scores = self._step(tokens, position, state)
            position += 1
            scores[:, self.config["suppressed"]] = -np.inf
            tokens = scores.argmax(1)
            count = position - len(self.config["prompt"])
            for row in np.flatnonzero(going).tolist():
                if tokens[row] == special["eos"] or count >= limits[row]:
                    going[row] = False
                else:
                    written[row].append(int(tokens[row]))
        return written

    def _step(self, tokens: Any, position: int, state: dict[str, Any]) -> Any:
        """Log-probabilities (rows, V) of the next token; the caches in `state` are replaced."""
        feed = {"tokens": tokens, "length": np.array(position, np.int64), **state}
        scores, *caches = self.decoder.run(self.outputs, {name: feed[name] for name in self.decoder_inputs})
        for cache, value in zip(self.config["caches"], caches, strict=True):
            state[cache["name"]] = value
        return scores


class TextCodec:
    """Texts ↔ tokens with the tokenizer files of the export: SentencePiece models and lists of characters."""

    def __init__(self, folder: str | Path, side: str) -> None:
        files = Path(folder) / "tokenizer"
        self.kind = json.loads((files / f"{side}.json").read_text(encoding="utf-8"))["kind"]
        vocabulary = files / f"{side}.vocabulary.jsonl"
        lines = vocabulary.read_text(encoding="utf-8").splitlines() if vocabulary.exists() else []
        self.tokens = [json.loads(line) for line in lines]
        self.ids = {token: index for index, token in enumerate(self.tokens) if index > 3}
        if self.kind in ("subwords", "sentencepiece"):
            import sentencepiece

            self.model: Any = sentencepiece.SentencePieceProcessor(model_file=str(files / f"{side}.model"))
        elif self.kind != "characters":
            raise SystemExit(f"texts of {self.kind!r} need Dragoman; this script reads subwords and characters")

    def encode(self, text: str) -> list[int]:
        if self.kind == "subwords":
            return list(self.model.encode(text))
        parts = self.model.encode(text, out_type=str) if self.kind == "sentencepiece" else text
        return [self.ids.get(part, 1) for part in parts]

    def decode(self, tokens: Sequence[int]) -> str:
        if self.kind == "subwords":
            return str(self.model.decode(list(tokens)))
        if self.kind == "sentencepiece":
            return str(self.model.decode_pieces([self.tokens[token] for token in tokens]))
        return "".join(self.tokens[token] for token in tokens)


def main() -> None:
    folder = Path(__file__).parent
    decoder, source, target = GreedyDecoder(folder), TextCodec(folder, "source"), TextCodec(folder, "target")
    for line in sys.stdin:
        (tokens,) = decoder.decode([source.encode(line.rstrip("\n"))])
        print(target.decode(tokens))


if __name__ == "__main__":
    main()
