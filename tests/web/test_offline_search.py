"""Beam search in JavaScript finds the hypotheses of the one in torch: same tokens, same scores, same stop rules."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from dragoman.decoding.beam import BeamOptions, beam_search
from dragoman.decoding.config import SearchConfig
from dragoman.decoding.hypothesis import SUPPRESSED_TOKENS
from dragoman.decoding.scorer import Scorer
from tests.web.javascript import run_javascript

SOURCES, VOCABULARY, LENGTHS = 12, 9, 14
SETTINGS = [
    (SearchConfig(beam=1), 1),
    (SearchConfig(), 1),
    (SearchConfig(), 5),
    (SearchConfig(beam=3, stop="complete", normalisation="gnmt", length_penalty=0.6), 2),
    (SearchConfig(beam=4, stop="certain", length_penalty=0.5), 3),
    (SearchConfig(beam=4, normalisation="none", num_complete=2), 1),
    (SearchConfig(beam=7, max_length=3), 2),
]
# A network whose next token depends on source, place and last token, all from a table of log-probabilities.
SEARCH = """async ({ scores, sizes, cases, table }) => {
  const values = Float32Array.from(scores);
  const [sources, places, vocabulary] = sizes;
  const network = {
    table,
    start: async (rows) => {
      const numbers = { type: "float32", data: Float32Array.from(rows.keys()), shape: [rows.length, 1] };
      return { tensors: new Map([["source", numbers]]), length: 0, rows: rows.length };
    },
    step: async (tokens, state) => {
      const numbers = state.tensors.get("source").data;
      const out = new Float32Array(tokens.length * vocabulary);
      tokens.forEach((token, row) => {
        const first = ((numbers[row] * places + Math.min(state.length, places - 1)) * vocabulary + token) * vocabulary;
        out.set(values.subarray(first, first + vocabulary), row * vocabulary);
      });
      return { state: { ...state, length: state.length + 1 }, scores: out, vocabulary, attention: null };
    },
  };
  const inputs = Array.from({ length: sources }, (_, number) => Array(1 + (number % 4)).fill(5));
  const found = [];
  for (const { settings, nBest } of cases) {
    const options = { settings, nBest, beam: settings.beam, maxLength: settings.max_length };
    found.push(await module_search.search(network, inputs, options));
  }
  return found;
}"""


class TableState(NamedTuple):
    """Which source each row is, and how many tokens it has read."""

    sources: Tensor
    length: int = 0
    hypotheses: int = 1

    def select(self, rows: Tensor) -> TableState:
        offsets = torch.arange(self.hypotheses)
        return self._replace(sources=self.sources[(rows[:, None] * self.hypotheses + offsets).flatten()])

    def reorder(self, rows: Tensor) -> TableState:
        return self._replace(sources=self.sources[rows])

    def expand(self, hypotheses: int) -> TableState:
        return self._replace(sources=self.sources.repeat_interleave(hypotheses), hypotheses=hypotheses)


@pytest.mark.parametrize("sharpness", [1.0, 3.0])
def test_beam_search_equals_the_one_in_torch(tmp_path: Path, sharpness: float) -> None:
    torch.manual_seed(5)
    logits = torch.randn(SOURCES, LENGTHS, VOCABULARY, VOCABULARY) * sharpness
    scores = logits.log_softmax(-1)

    def step(tokens: Tensor, state: TableState) -> tuple[Tensor, TableState]:
        place = min(state.length, LENGTHS - 1)
        return scores[state.sources, place, tokens].clone(), state._replace(length=state.length + 1)

    table = {
        "special": {"pad": 0, "sos": 2, "eos": 3}, "suppressed": list(SUPPRESSED_TOKENS), "length_ratio": 1.3,
        "max_positions": 16,
    }  # fmt: skip
    cases = [{"settings": asdict(config), "nBest": n_best} for config, n_best in SETTINGS]
    data: dict[str, Any] = {"scores": scores.flatten().tolist(), "sizes": [SOURCES, LENGTHS, VOCABULARY]}
    found = run_javascript("search", SEARCH, data | {"cases": cases, "table": table}, tmp_path)
    lengths = torch.tensor([2 + number % 4 for number in range(SOURCES)])
    for (config, n_best), outputs in zip(SETTINGS, found, strict=True):
        limits = config.limit(lengths, 1.3).clamp(max=16)
        state = TableState(torch.arange(SOURCES))
        expected = beam_search(step, state, limits, BeamOptions.of(config, n_best), Scorer.from_config(config))
        for mine, theirs in zip(outputs, expected, strict=True):
            assert [one["tokens"] for one in mine] == [list(one.tokens[:-1]) for one in theirs], config
            assert [one["score"] for one in mine] == pytest.approx([one.normalised for one in theirs], rel=1e-6)
            assert mine[0]["tokenScores"] == pytest.approx(theirs[0].token_scores, rel=1e-6)
