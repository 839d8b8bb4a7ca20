"""Words that no vocabulary has, copied from source to output: every search, and all that reads its outputs."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from dragoman.inference.evaluation import as_examples
from dragoman.inference.load import load_predictor
from dragoman.inference.predictor import Predictor
from tests.conftest import CommandResult, call, quiet_machine, write_rows

COMMON = (
    "tokenizer.source.kind=words", "tokenizer.source.min_count=3", "model.tie=target", "train.batch_tokens=500",
    "train.steps=80", "train.validate_every=80", "train.decode=5", "train.optimizer.warmup=10",
    "train.optimizer.learning_rate=1e-2", "train.average.kind=none", "model.label_smoothing=0.0",
)  # fmt: skip
RECURRENT = (
    "preset=pointer-generator-small", "model.encoder.width=32", "model.encoder.embedding=16",
    "model.decoder.inner.embedding=16", "model.decoder.inner.width=32", "model.encoder.dropout=0.0",
    "model.decoder.inner.dropout=0.0",
)  # fmt: skip
TRANSFORMER = ("preset=pointer-transformer-small",) + tuple(
    f"model.{side}.{name}"
    for side in ("encoder", "decoder.inner")
    for name in ("layers=1", "width=32", "heads=2", "feedforward=64", "dropout=0.0")
)
PLAIN = (
    "preset=transformer-tiny", "model.encoder.width=16", "model.decoder.width=16", "model.encoder.layers=1",
    "model.decoder.layers=1", "model.encoder.feedforward=24", "model.decoder.feedforward=24", "train.steps=20",
)  # fmt: skip


def pairs(count: int, seed: int) -> list[tuple[str, ...]]:
    """Sentences with one or two names, which change places; hardly any name occurs twice."""
    rng, rows = random.Random(seed), list[tuple[str, ...]]()
    for _ in range(count):
        first, second = ("".join(rng.choice("bdfgklmn") + rng.choice("aeiou") for _ in range(5)) for _ in range(2))
        rows.append(
            rng.choice(
                [
                    (f"{first} called {second} today .", f"today {second} was called by {first} ."),
                    (f"ask {first} about {second} .", f"about {second}, {first} must be asked ."),
                    (f"{first} is here .", f"here is {first} ."),
                ]
            )
        )
    return rows


UNSEEN = pairs(60, seed=2)
TEXT, EXPECTED = "Zork called Bibi today .", "today Bibi was called by Zork ."


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Two runs with a pointer and one without, of the same vocabulary."""
    place = tmp_path_factory.mktemp("copying")
    write_rows(place / "pairs.tsv", pairs(400, seed=1))
    write_rows(place / "test.tsv", UNSEEN)
    with quiet_machine(place / "cache"), contextlib.chdir(place):
        for name, options in (("recurrent", RECURRENT), ("transformer", TRANSFORMER), ("plain", PLAIN)):
            said = call("train", "pairs.tsv", "--run", name, *COMMON, *options)
            assert said.code == 0, said.err
        yield place


@pytest.fixture(scope="module", params=["recurrent", "transformer"])
def run(request: pytest.FixtureRequest, folder: Path) -> Predictor:
    return load_predictor(folder / request.param, "cpu")


def said(*arguments: str) -> CommandResult:
    out = call(*arguments)
    assert out.code == 0, out.err
    return out


def exact(run: Predictor, **options: object) -> float:
    found = run.predict([source for source, _ in UNSEEN], **options)  # type: ignore[arg-type]
    return sum(one.text == target for one, (_, target) in zip(found, UNSEEN, strict=True)) / len(UNSEEN)


@pytest.mark.parametrize("beam", [1, 4])
def test_names_that_training_never_had_are_copied_to_their_places(run: Predictor, beam: int) -> None:
    assert exact(run, beam=beam) > 0.9


def test_a_model_without_a_pointer_copies_none(folder: Path) -> None:
    with pytest.warns(UserWarning, match="60 inputs have characters or words that training did not have"):
        assert exact(load_predictor(folder / "plain", "cpu")) == 0  # type: ignore[arg-type]


def test_the_score_of_an_output_is_that_of_its_text(run: Predictor) -> None:
    """Of every hypothesis, alone and in a batch; the text of a copied word leads to the same token."""
    texts = [TEXT, "ask Zork about Zork .", *(source for source, _ in UNSEEN[:8])]
    together = run.predict(texts, beam=4, n_best=3)
    for text, one in zip(texts, together, strict=True):
        (alone,) = run.predict([text], beam=4, n_best=3)
        assert (alone.text, alone.score) == (one.text, pytest.approx(one.score, abs=1e-4))
        for output in (one, *one.alternatives):
            batch = run.collator.collate(*run.codec.encode_pairs([text], [output.text]))
            with torch.no_grad():
                expected = run.model.score(batch).log_probabilities[0].tolist()
            assert list(output.token_scores) == pytest.approx(expected, abs=1e-4)


def test_reference_loss_knows_which_word_is_copied(run: Predictor) -> None:
    """The loss of names in each other's places is far higher."""
    right = run.loss(as_examples(UNSEEN))
    swapped = [(source, target) for source, target in UNSEEN if "called" in source]
    wrong = []
    for source, target in swapped:
        first, _, second, *_ = source.split()
        wrong.append((source, target.replace(first, "*").replace(second, first).replace("*", second)))
    assert run.loss(as_examples(wrong)).loss > right.loss + 1


def test_every_method_writes_the_words(folder: Path) -> None:
    (folder / "in.txt").write_text(f"{TEXT}\n", encoding="utf-8")
    for options in (
        ("--sample", "method.top_k=1"),
        ("method=mbr", "method.samples=4", "method.temperature=0.2"),
        ("ensemble.runs=transformer",),
        ("method=draft", "method.run=transformer"),
        ("constraints.require=Bibi", "constraints.forbid=nobody"),
        ("constraints.prefix=today Bibi",),
        ("constraints.pattern=today [A-Z][a-z]+ was called by Zork \\.",),
        ("search.beam_groups=2", "--beam", "4"),
        ("search.min_length=5", "search.no_repeat_ngram=2"),
    ):
        assert said("predict", "recurrent", "in.txt", *options).out == f"{EXPECTED}\n", options


def test_forbidden_words_are_not_copied(run: Predictor) -> None:
    (found,) = run.predict([TEXT], beam=4, forbid=["Bibi"])
    assert "Bibi" not in found.text
    (found,) = run.predict([TEXT], beam=4, require=["Zork was"])
    assert "Zork was" in found.text


def test_members_without_a_pointer_leave_an_ensemble_without_copies(folder: Path) -> None:
    for first, second in (("recurrent", "plain"), ("plain", "recurrent")):
        out = said("predict", first, "in.txt", f"ensemble.runs={second}", "--beam", "2")
        assert "Zork" not in out.out
    refused = call("predict", "recurrent", "in.txt", "method=draft", "method.run=plain")
    assert (refused.code, "cannot copy" in refused.err) == (2, True)


def test_reports_name_the_words(folder: Path) -> None:
    said("predict", "recurrent", "in.txt", "beam_trace=trace.jsonl")
    pieces = {node["piece"] for node in json.loads((folder / "trace.jsonl").read_text("utf-8"))["nodes"]}
    assert {"Zork", "Bibi"} <= pieces
    assert said("inspect", "recurrent", TEXT, "--output", "page.html").code == 0
    assert said("calibrate", "recurrent", "test.tsv").code == 0
    assert "confidence" in json.loads(said("predict", "recurrent", "in.txt", "--json").out)
    assert len(said("align", "recurrent", "test.tsv").out.splitlines()) == len(UNSEEN)
    assert json.loads(said("evaluate", "recurrent", "test.tsv", "--json").out)["loss"] < 1
