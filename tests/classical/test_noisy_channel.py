"""The noisy channel: outputs ranked by a reverse run and an n-gram language model, all without gradients."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from tests.conftest import call


def test_a_reverse_run_and_ngrams_rank_outputs(tmp_path: Path, cached: Path) -> None:
    random.seed(6)
    words = sorted({"".join(random.choices("abcde", k=random.randint(2, 6))) for _ in range(250)})
    rows = [(word, word.upper().replace("E", random.choice("EI"))) for word in words]
    files = {name: tmp_path / name for name in ("ahead.tsv", "back.tsv", "text.txt")}
    files["ahead.tsv"].write_text("".join(f"{one}\t{other}\n" for one, other in rows))
    files["back.tsv"].write_text("".join(f"{other}\t{one}\n" for one, other in rows))
    files["text.txt"].write_text("".join(f"{other.replace('I', 'E')}\n" for _, other in rows))
    for name, run in (("ahead.tsv", "ahead"), ("back.tsv", "back")):
        assert call("train", files[name], "preset=ngram-transducer", "--run", tmp_path / run).code == 0
    settings = ("task=language-model", "model.kind=ngram", "tokenizer.source.kind=characters", "model.order=2")
    assert call("train", files["text.txt"], *settings, "--run", tmp_path / "ngrams").code == 0
    ranked = ("--beam", "6", f"rerank.runs={tmp_path / 'back'}", f"rerank.runs={tmp_path / 'ngrams'}")
    plain, channel = (
        json.loads(call("predict", tmp_path / "ahead", "--json", "--n-best", "2", *more, stdin=b"bed\n").out)
        for more in (("--beam", "6"), (*ranked, "rerank.weights=1", "rerank.weights=5"))
    )
    assert channel["text"] == "BED"  # the language model never saw an I
    scores = {one["text"]: one["score"] for one in (plain, *plain["alternatives"])}
    assert channel["score"] != pytest.approx(scores.get("BED", 0.0))
    told = call("train", files["ahead.tsv"], "preset=memorise", "--run", tmp_path / "table")
    assert told.code == 0
    refused = call("predict", tmp_path / "ahead", "--beam", "4", f"rerank.runs={tmp_path / 'table'}", stdin=b"bed\n")
    assert (refused.code, "needs probabilities" in refused.err) == (2, True)
