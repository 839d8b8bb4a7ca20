"""Runs that help each other, from the command line and from Python: ensembles, drafts, reranking, and every method."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import dragoman
from dragoman.base.errors import ConfigError, RunError
from dragoman.data.batch import batch_of
from dragoman.data.tokenizers.base import EOS
from dragoman.decoding.exhaustive import Exhaustive
from dragoman.decoding.mbr import MinimumBayesRisk
from dragoman.decoding.options import DecodingOptions, RerankModel
from dragoman.decoding.sampling import Sampling
from dragoman.decoding.speculative import Draft, Speculative
from dragoman.inference import rerank
from dragoman.inference.completer import Completer
from dragoman.inference.predictor import Prediction, Predictor
from dragoman.inference.rerank import Reranker
from dragoman.inference.target_scores import TargetScore
from tests.conftest import CommandResult, call, quiet_machine, words, write_rows

QUICK = ("train.steps=60", "train.validate_every=60", "train.decode=5", "train.optimizer.warmup=10")
SMALL = (
    "preset=transformer-tiny", "model.encoder.width=16", "model.decoder.width=16", "model.encoder.layers=1",
    "model.decoder.layers=1", "model.encoder.feedforward=24", "model.decoder.feedforward=24", *QUICK,
    "train.optimizer.learning_rate=1e-2", "search.beam=4",
)  # fmt: skip
RECURRENT = (
    "preset=rnn-attention-small", "model.encoder.embedding=12", "model.encoder.width=16", "model.decoder.embedding=12",
    "model.decoder.width=16", "model.decoder.attention.width=12", *QUICK, "train.optimizer.learning_rate=1e-2",
)  # fmt: skip
LETTERS = ("tokenizer.source.kind=characters", "tokenizer.target.kind=characters", "model.tie=target")
INPUTS = words(12, seed=9, longest=5, letters="abcd")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Transformer and an LSTM with one vocabulary, a reverse run, and a run with another vocabulary."""
    place = tmp_path_factory.mktemp("companions")
    some = words(200, longest=5, letters="abcd")
    write_rows(place / "pairs.tsv", [(word, word.upper()) for word in some])
    write_rows(place / "back.tsv", [(word.upper(), word) for word in some])
    write_rows(place / "other.tsv", [(f"{word}e", word.upper()) for word in some])
    write_rows(place / "test.tsv", [(word, word.upper()) for word in INPUTS])
    (place / "in.txt").write_text("".join(f"{word}\n" for word in INPUTS), encoding="utf-8")
    with quiet_machine(place / "cache"), contextlib.chdir(place):
        for name, data, options in (
            ("large", "pairs", SMALL),
            ("small", "pairs", RECURRENT),
            ("back", "back", SMALL),
            ("other", "other", SMALL),
        ):
            result = call("train", f"{data}.tsv", *options, *LETTERS, "--run", name, "--quiet")
            assert result.code == 0, result.err
        (place / "upper.txt").write_text("".join(f"{word.upper()}\n" for word in some), encoding="utf-8")
        small = ("train.steps=60", "model.stack.width=32", "model.stack.heads=2", "model.stack.layers=1")
        result = call("train", "upper.txt", "task=language-model", *small, "--run", "reader", "--quiet")
        assert result.code == 0, result.err
    return place


@pytest.fixture(autouse=True)
def inside_folder(folder: Path) -> Iterator[None]:
    with quiet_machine(folder / "cache"), contextlib.chdir(folder):
        yield


@pytest.fixture
def large() -> Predictor:
    return dragoman.load("large")


def predicted(*options: str) -> list[str]:
    result = call("predict", "large", "in.txt", *options)
    assert result.code == 0, result.err
    return result.lines


def texts(predictions: list[Prediction]) -> list[str]:
    return [one.text for one in predictions]


# ---------------------------------------------------------------------- sampling, risk, everything


def test_sampling_from_the_command_line_is_sampling_from_python(large: Predictor) -> None:
    lines = predicted("--sample", "method.temperature=1.5", "method.top_k=6", "method.top_p=0.9", "--seed", "3")
    method = Sampling(temperature=1.5, top_k=6, top_p=0.9, seed=3)
    assert lines == texts(large.predict(INPUTS, method=method, batch_size=1))
    assert lines == texts(large.predict(INPUTS[::-1], method=method, batch_size=5))[::-1]
    assert lines != predicted("--sample", "method.temperature=1.5", "method.top_k=6", "method.top_p=0.9", "--seed", "4")
    assert lines != predicted()
    rows = [json.loads(line) for line in predicted("--sample", "method.temperature=2", "--n-best", "7", "--json")]
    sizes = set()
    for row in rows:
        together = [row, *row["alternatives"]]
        sizes.add(len(together))
        assert len({tuple(one["tokens"]) for one in together}) == len(together)
        assert [one["score"] for one in together] == sorted((one["score"] for one in together), reverse=True)
    assert max(sizes) > 4  # more than the beam of the run


def test_minimum_bayes_risk_from_the_command_line(large: Predictor) -> None:
    lines = predicted("method=mbr", "method.samples=8", "method.metric=cer", "--seed", "1", "method.temperature=1.2")
    found = large.predict(INPUTS, method=MinimumBayesRisk(samples=8, metric="cer", seed=1, temperature=1.2))
    assert lines == texts(found)
    assert all(-5 < one.score <= 0 for one in found)
    assert lines != predicted("--sample", "--seed", "1", "method.temperature=1.2")


def test_exhaustive_search_from_the_command_line(large: Predictor) -> None:
    result = call(
        "predict", "large", "method=exhaustive", "method.length=3", "--json", "--n-best", "1000", stdin=b"ab\n"
    )
    row = json.loads(result.out)
    together = [row, *row["alternatives"]]
    assert len(together) == 1 + 4 + 16 + 64
    assert sum(one["probability"] for one in together) < 1
    with torch.no_grad():
        for one in together[:10]:
            target = large.target_tokenizer.encode(one["text"])
            batch = batch_of([large.source_tokenizer.encode("ab")], [target])
            truth = float(large.model.score(batch).log_probabilities.sum())
            assert math.log(one["probability"]) == pytest.approx(truth, abs=1e-4)
    best = large.predict(["ab"], method=Exhaustive(3))[0]
    assert best.text == row["text"]
    assert best.score >= large.predict(["ab"], beam=4)[0].score - 1e-6 or len(large.predict(["ab"])[0].tokens) > 3


# ---------------------------------------------------------------------- several outputs


@pytest.mark.parametrize("options", [{}, {"beam": 2}, {"beam": 1}, {"beam": 4, "beam_groups": 4}])
def test_the_beam_is_as_wide_as_the_outputs_asked_for(large: Predictor, options: dict[str, int]) -> None:
    wide = large.predict(INPUTS, **options | {"beam": 8 if "beam_groups" in options else 7}, n_best=7)
    assert large.predict(INPUTS, **options, n_best=7) == wide
    settings = [f"search.{name}={value}" for name, value in options.items()]
    rows = [json.loads(line) for line in predicted(*settings, "--n-best", "7", "--json")]
    for row, prediction in zip(rows, wide, strict=True):
        assert [row["text"], *(one["text"] for one in row["alternatives"])] == texts(
            [prediction, *prediction.alternatives]
        )
    assert max(len(prediction.alternatives) for prediction in wide) == 6


# ---------------------------------------------------------------------- ensembles


def test_an_ensemble_from_the_command_line_and_from_python(large: Predictor) -> None:
    for average in ("probability", "log"):
        lines = predicted("ensemble.runs=small", f"ensemble.average={average}")
        assert lines == texts(large.predict(INPUTS, ensemble=["small"], average=average))
    assert texts(dragoman.load(["large", "small"]).predict(INPUTS)) == predicted("ensemble.runs=small")
    alone = large.predict(INPUTS)
    twice = large.predict(INPUTS, DecodingOptions(ensemble=(large,)))
    assert texts(twice) == texts(alone)
    assert [one.score for one in twice] == pytest.approx([one.score for one in alone], abs=1e-4)
    assert not hasattr(large.model, "models")  # an open run stays what it was


def test_an_ensemble_is_evaluated_as_one() -> None:
    scores = {}
    for name, options in (("large", ()), ("both", ("ensemble.runs=small",)), ("twice", ("ensemble.runs=large",))):
        result = call("evaluate", "large", "test.tsv", "--json", *options)
        assert result.code == 0, result.err
        scores[name] = json.loads(result.out)
    assert scores["twice"]["loss"] == pytest.approx(scores["large"]["loss"], abs=1e-4)
    assert scores["both"]["loss"] != pytest.approx(scores["large"]["loss"], abs=1e-3)


# ---------------------------------------------------------------------- drafts


def test_a_draft_changes_nothing_but_the_number_of_calls(large: Predictor) -> None:
    greedy = predicted("--beam", "1")
    result = call("predict", "large", "in.txt", "method=draft", "method.run=small", "method.tokens=3")
    assert result.code == 0
    assert result.lines == greedy
    assert "calls of the model in place of" in result.err
    assert "proposed tokens accepted" in result.err
    options = DecodingOptions(method=Draft(large, 4))
    found = large.predict(INPUTS, options)
    method = large.method(options)
    assert isinstance(method, Speculative)
    assert texts(found) == greedy
    assert method.stats.accepted == method.stats.proposed
    assert method.stats.calls < method.stats.greedy_calls / 2
    assert "in place of" in call("evaluate", "large", "test.tsv", "method=draft", "method.run=small").err


# ---------------------------------------------------------------------- reranking


@pytest.mark.parametrize("weight", [2.0, -2.0])
def test_an_output_that_a_reranker_cannot_give_comes_last(weight: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """A negative weight made it the best, and two rerankers of opposite signs raised an error."""
    scores = [TargetScore(log, ("b",), (log,), (False,)) for log in (-math.inf, -1.0)]
    monkeypatch.setattr(rerank, "score_pairs", lambda *arguments: scores)
    run: Any = SimpleNamespace(model=SimpleNamespace(max_positions=None))
    assert rerank.weighted(run, RerankModel("x", weight), [("a", "b"), ("c", "b")]) == [-math.inf, -weight]


def test_reranking_is_a_plain_sum(large: Predictor) -> None:
    weight = 0.7
    reverse = dragoman.load("back")
    beam = large.predict(INPUTS, n_best=4)
    found = large.predict(INPUTS, n_best=2, rerank=RerankModel(reverse, weight))
    changed = 0
    for source, before, after in zip(INPUTS, beam, found, strict=True):
        plain = []
        for one in (before, *before.alternatives):
            batch = batch_of([reverse.source_tokenizer.encode(one.text)], [reverse.target_tokenizer.encode(source)])
            with torch.no_grad():
                scores = reverse.model.score(batch).log_probabilities[0].tolist()
            plain.append((one.score + weight * sum(scores) / len(scores), one.text))
        plain.sort(reverse=True)
        assert [after.text, *(one.text for one in after.alternatives)] == [text for _, text in plain[:2]]
        assert after.score == pytest.approx(plain[0][0], abs=1e-4)
        changed += after.text != before.text
    assert changed  # the reverse run has a say
    assert predicted("rerank.runs=back", f"rerank.weights={weight}") == texts(found)
    assert predicted("rerank.runs=back", "rerank.weights=0") == predicted()


def test_a_language_model_says_how_well_outputs_read(large: Predictor) -> None:
    weight = 2.0
    reader = dragoman.load("reader")
    assert isinstance(reader, Completer)
    beam = large.predict(INPUTS, n_best=4)
    found = large.predict(INPUTS, n_best=2, rerank=RerankModel(reader, weight))
    changed = 0
    for before, after in zip(beam, found, strict=True):
        plain = []
        for one in (before, *before.alternatives):
            tokens = [EOS, *reader.tokenizer.encode(one.text), EOS]
            with torch.no_grad():
                hidden, _ = reader.model.stack(torch.tensor([tokens[:-1]]), reader.model.stack.start(1))
                scores = reader.model.output(hidden)[0].log_softmax(-1)
            likelihood = sum(float(scores[place, token]) for place, token in enumerate(tokens[1:]))
            plain.append((one.score + weight * likelihood / (len(tokens) - 1), one.text))
        plain.sort(reverse=True)
        assert [after.text, *(one.text for one in after.alternatives)] == [text for _, text in plain[:2]]
        assert after.score == pytest.approx(plain[0][0], abs=1e-4)
        changed += after.text != before.text
    assert changed
    assert predicted("rerank.runs=reader", f"rerank.weights={weight}") == texts(found)
    both = large.predict(INPUTS, rerank=[RerankModel("back", 0.5), RerankModel(reader, weight)])
    options = ("rerank.runs=back", "rerank.weights=0.5", "rerank.runs=reader", f"rerank.weights={weight}")
    assert predicted(*options) == texts(both)


def test_empty_lines_and_samples_can_be_reranked(large: Predictor) -> None:
    reranker = RerankModel("back")
    found = large.predict(["ab", "", "  ", "ba"], rerank=reranker, method=Sampling(temperature=2.0), beam=6)
    assert texts(found)[1:3] == ["", ""]
    samples = large.predict(["ab"], method=Sampling(temperature=2.0), n_best=6)[0]
    assert found[0].text in {samples.text, *(one.text for one in samples.alternatives)}


def test_a_reranker_of_other_texts_is_warned_of(large: Predictor, folder: Path) -> None:
    """Any run and any language model were taken without a word."""
    before = (folder / "upper.txt").read_text(encoding="utf-8")
    try:
        (folder / "upper.txt").write_text("".join(f"{word}\n" for word in words(90, letters="vwxyz")), encoding="utf-8")
        result = call("predict", "large", "in.txt", "rerank.runs=reader", "rerank.weights=0")
        assert result.code == 0
        assert (
            "warning: rerank.runs reader: this seems to be a language model of other texts than the outputs"
            in result.err
        )
        with pytest.warns(UserWarning, match="this seems to be a language model of other texts"):
            large.predict(["ab"], rerank=RerankModel("reader"))
        (folder / "upper.txt").write_text(before.lower(), encoding="utf-8")
        result = call("predict", "large", "in.txt", "rerank.runs=reader")
        assert result.code == 2
        assert (
            "rerank.runs reader: found a language model of the source of large, expected one of its target"
            in result.err
        )
    finally:
        (folder / "upper.txt").write_text(before, encoding="utf-8")


# ---------------------------------------------------------------------- mistakes

MISTAKES = {
    (
        "rerank.runs=small",
    ): "rerank.runs small: found a run of the same direction as large, expected one trained from tar",
    (
        "rerank.runs=other",
    ): "rerank.runs other: found a run of the same direction as large, expected one trained from tar",
    ("--sample", "method=mbr", "method.samples=4"): "found --sample and method, expected one of them",
    ("method.temperature=2",): "method.temperature needs method=sampling or method=mbr",
    ("--seed", "0"): "--seed needs method=sampling or method=mbr",
    ("method.metric=wer",): "method.metric needs method=mbr",
    ("ensemble.average=log",): "ensemble.average: found log for a single run, expected ensemble.runs with it",
    ("rerank.weights=0",): "rerank.weights: found 1 for 0 rerank.runs, expected one for each or none",
    ("method.tokens=2",): "method.tokens needs method=draft",
    ("--sample", "--beam", "3"): 'search.beam: found method = "sampling" with it, which is no beam search',
    ("method=mbr", "method.samples=4", "method.metric=blue"): "method.metric: found 'blue'. Did you mean 'bleu'?",
    ("ensemble.runs=back",): "back: found a run from the targets to the sources of large, expected one of the same ",
    ("ensemble.weights=1",): "ensemble.weights: found 1.0 for a single run, expected ensemble.runs with it",
    ("ensemble.runs=small", "ensemble.weights=1"): "ensemble.weights: found 1, expected one for each of 2 members",
    ("method=draft", "method.run=other"): "a draft needs runs trained with the same data.train and tokenizer settings",
    ("method=draft", "method.run=smal"): "smal: no such run folder. Did you mean 'small'?",
    ("method=draft", "method.run=small", "rerank.runs=back"): "expected 1 with a draft: greedy search has one output",
    ("rerank.runs=reader", "rerank.tag=de"): "reader is a language model, which has no tags",
    ("rerank.runs=reader", "rerank.runs=back", "rerank.weights=1"): "rerank.weights: found 1 for 2 rerank.runs",
    ("ensemble.runs=reader",): "reader: this run is a language model; use `dragoman complete`",
    ("rerank.runs=back", "rerank.tag=de"): "tag: found 'de', but this run was trained without tags",
    ("search.length_penalty=300",): "search.length_penalty: found 300, expected at least 0 and at most 10",
    ("method=exhaustive", "method.length=12"): "over 4 words, expected at most 500,000; a length of 9 fits",
}


@pytest.mark.parametrize("options", MISTAKES, ids=" ".join)
def test_mistakes_are_one_line(options: tuple[str, ...]) -> None:
    result: CommandResult = call("predict", "large", "in.txt", *options)
    assert result.code == 2
    assert MISTAKES[options] in result.err
    assert result.err.count("\n") == 1


def test_mistakes_in_python(large: Predictor) -> None:
    with pytest.raises(ConfigError, match=r"length_penalty: found 300\.0, expected at least 0 and at most 10"):
        large.predict(["ab"], length_penalty=300.0)
    with pytest.raises(ConfigError, match="temperature"):
        large.predict(["ab"], method=Sampling(temperature=0.0))
    with pytest.raises(ConfigError, match=r"top_p: found 1\.5, expected above 0 and at most 1"):
        large.predict(["ab"], method=MinimumBayesRisk(top_p=1.5))
    with pytest.raises(RunError, match="vocabulary"):
        large.companion("other", "a draft")
    with pytest.raises(ConfigError, match="found none"):
        dragoman.load([])
    with pytest.raises(ConfigError, match="without tags"):
        Reranker(RerankModel("back", tag="de"))
