"""A decoding method is one class and one registration: the command line, help, the server and its schema follow."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import pytest
import torch
from torch import Tensor

from dragoman.base import plugins
from dragoman.base.config import Range, setting
from dragoman.base.errors import ConfigError
from dragoman.data.batch import batch_of
from dragoman.data.tokenizers.base import EOS, SOS
from dragoman.decoding.config import SearchConfig
from dragoman.decoding.ensemble import Ensemble
from dragoman.decoding.hypothesis import Hypothesis, suppress_tokens
from dragoman.decoding.method import METHODS, Method, MethodEntry, Request
from dragoman.decoding.scorer import Scorer
from dragoman.decoding.searches import search
from dragoman.serving.config import ModelConfig, ServeConfig
from tests.conftest import TrainedFolder, call
from tests.decoding.test_sampling import model_of
from tests.serving.conftest import serving


@dataclass(frozen=True)
class Contrastive(Method):
    """Contrastive search (Su et al. 2022, eq. 5): probable tokens whose vectors are unlike all vectors before."""

    kind: ClassVar[str] = "contrastive"
    needs_hidden: ClassVar[bool] = True
    candidates: Annotated[int, Range(1, 100)] = setting(3, help="most probable tokens that are compared")
    penalty: Annotated[float, Range(0.0, 1.0)] = setting(0.6, help="weight of the likeness to vectors before")

    @torch.no_grad()
    def search(self, request: Request) -> list[list[Hypothesis]]:
        step, start = request.hidden_step("contrastive search"), request.stepwise("contrastive search").start
        states = start(request.batch)
        scorer = Scorer.from_config(request.config)
        outputs = []
        for row, limit in enumerate(request.limits.tolist()):
            tokens, scores, before = [SOS], [], list[Tensor]()
            state = states.select(torch.tensor([row]))
            while tokens[-1] != EOS:
                logs, hidden, state = step(torch.tensor(tokens[-1:]), state)
                before.append(hidden)
                logs = suppress_tokens(logs, torch.tensor([len(tokens) >= limit]))
                best = logs[0].topk(self.candidates).indices
                _, ahead, _ = step(best, state.select(torch.zeros(len(best), dtype=torch.long)))
                likeness = torch.cosine_similarity(ahead[:, None], torch.cat(before)[None], dim=-1).amax(1)
                worth = (1 - self.penalty) * logs[0, best].exp() - self.penalty * likeness
                worth = worth.masked_fill(logs[0, best].isinf(), -torch.inf)
                tokens.append(int(best[worth.argmax()]))
                scores.append(float(logs[0, tokens[-1]]))
            outputs.append([scorer.hypothesis(tokens[1:], scores)])
        return outputs


@pytest.fixture
def contrastive() -> Iterator[None]:
    entry = plugins.register(MethodEntry(Contrastive, "probable tokens unlike those before"))
    yield
    METHODS.remove(entry)


def test_without_a_penalty_it_is_greedy_search() -> None:
    model, batch = model_of(), batch_of([[4, 5, 6], [7]])
    greedy = search(model, batch, SearchConfig(beam=1, max_length=8), 1.0)
    found = search(model, batch, SearchConfig(max_length=8), 1.0, method=Contrastive(penalty=0.0))
    assert [row[0].tokens for row in found] == [row[0].tokens for row in greedy]
    other = search(model, batch, SearchConfig(max_length=8), 1.0, method=Contrastive(penalty=1.0))
    assert [row[0].tokens for row in other] != [row[0].tokens for row in greedy]


def test_a_model_without_vectors_is_refused() -> None:
    with pytest.raises(ConfigError, match="contrastive reads the vectors of one decoder; Ensemble gives none"):
        search(Ensemble([model_of()] * 2), batch_of([[4]]), SearchConfig(), 1.0, method=Contrastive())


@pytest.mark.usefixtures("contrastive")
def test_a_registered_method_is_a_setting_of_the_command_line(inside: TrainedFolder) -> None:
    inside.write("in.txt", "abc\nba\n")
    greedy = call("predict", inside.run, "in.txt", "--beam", "1")
    result = call("predict", inside.run, "in.txt", "method=contrastive", "method.penalty=0")
    assert (result.code, result.lines, result.err) == (0, greedy.lines, "")
    assert call("evaluate", inside.run, "test.tsv", "method=contrastive", "--json").code == 0
    for words, expected in {
        "method=contrastiv": 'method: found "contrastiv", expected one of sampling',
        "method=contrastive method.penalty=2": "method.penalty: found 2, expected at least 0 and at most 1",
        "method=contrastive method.penality=0": "method.penality: no such setting",
        "method.penalty=0": "method.penalty needs method=contrastive",
        "method=contrastive --sample": "found --sample and method, expected one of them",
        "method=contrastive --beam 3": 'found method = "contrastive" with it, which is no beam search',
    }.items():
        wrong = call("predict", inside.run, "in.txt", *words.split())
        assert wrong.code == 2
        assert expected in wrong.err
        assert wrong.err.count("\n") == 1
    assert "method=contrastive" in call("predict", "--help").out
    listed = call("predict", "--help-settings").out
    assert 'method.penalty = 0.6   (method.kind = "contrastive")' in listed


@pytest.mark.usefixtures("contrastive")
def test_a_registered_method_is_a_field_of_requests(inside: TrainedFolder, tmp_path: Path) -> None:
    with serving(ServeConfig(models=(ModelConfig(str(inside.run), "ab"),)), tmp_path / "spool") as live:
        greedy = live.post("/v1/predict", {"input": "abc", "beam": 1})["outputs"][0]["text"]
        method = {"kind": "contrastive", "penalty": 0}
        assert live.post("/v1/predict", {"input": "abc", "method": method})["outputs"][0]["text"] == greedy
        answer = live.client.post("/v1/predict", json={"input": "abc", "method": {**method, "penalty": 2}})
        assert answer.status_code == 422
        assert answer.json()["error"] == "method: penalty: found 2, expected at least 0 and at most 1"
        answer = live.client.post("/v1/predict", json={"input": "abc", "method": {"kind": "draft", "run": "x"}})
        assert "kind: found 'draft'. Expected one of: contrastive, mbr, sampling." in answer.json()["error"]
        described = json.dumps(live.client.get("/openapi.json").json()["components"]["schemas"]["PredictRequest"])
    assert '"const": "contrastive"' in described
    assert "weight of the likeness to vectors before" in described
    assert '"const": "draft"' not in described
