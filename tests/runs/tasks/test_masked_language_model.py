"""Masked language models from a file of texts to tasks that start from them, by the command line."""

from __future__ import annotations

import hashlib
import json
import math
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dragoman.base import config as settings
from dragoman.base.errors import DataError
from dragoman.data.batching import BatchPlan, read_batch
from dragoman.data.formats.texts import MaskedTextFormat, split_evenly
from dragoman.data.tokenizers.base import EOS, PAD
from dragoman.data.tokenizers.load import train_tokenizer
from dragoman.data.tokenizers.words import WordsConfig
from dragoman.inference.labeler import MaskFiller
from dragoman.inference.load import load_run
from dragoman.runs import Run, train
from dragoman.runs.tasks.config import build
from dragoman.runs.tasks.table import task_of
from dragoman.training.display import Display
from dragoman.training.validation import MaskedLMValidator
from tests.conftest import call, quiet_machine

SOUNDS = {"dog": "barks", "cat": "meows", "cow": "moos", "bird": "sings", "frog": "croaks", "lion": "roars"}
SIZES = ("big", "small", "old", "young")
BERT = {
    "kind": "bert", "layers": 2, "width": 32, "heads": 2, "feedforward": 64, "max_positions": 22, "dropout": 0.0,
    "attention_dropout": 0.0,
}  # fmt: skip
ELMO = {"kind": "elmo", "layers": 1, "width": 24, "dropout": 0.0}
QUICK: dict[str, Any] = {
    "steps": 220, "validate_every": 110, "save_every": 110, "log_every": 20, "batch_tokens": 256,
    "optimizer": {"learning_rate": 5e-3, "warmup": 20},
}  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {
    "masked": {"encoder": BERT},
    "pairs": {"next_sentence": True, "encoder": BERT},
    "bilm": {"kind": "bilm", "encoder": ELMO},
}


def sentence(draw: random.Random) -> list[str]:
    animal = draw.choice(list(SOUNDS))
    return ["the", draw.choice(SIZES), animal, SOUNDS[animal], "at", "the", draw.choice(SIZES), animal]


def write_data(folder: Path) -> None:
    draw = random.Random(3)
    for part, count in (("train", 500), ("test", 80)):
        texts = [sentence(draw) for _ in range(count)]
        (folder / f"{part}.txt").write_text("".join(" ".join(text) + "\n" for text in texts))
        # A text that follows another speaks of the same animal.
        doubles = (f"{' '.join(text[:4])}\n{' '.join(text[4:])}\n\n" for text in texts)
        (folder / f"pairs.{part}.txt").write_text("".join(doubles))
        labelled = []
        for _ in range(120 if part == "train" else count):
            text, right = sentence(draw), draw.random() < 0.5
            if not right:
                text[3] = draw.choice([sound for sound in SOUNDS.values() if sound != text[3]])
            labelled.append(f"{' '.join(text)}\t{'good' if right else 'bad'}\n")
        (folder / f"labels.{part}.tsv").write_text("".join(labelled))
        halves = (line.replace(" at the ", "\tthe ") for line in labelled)
        (folder / f"halves.{part}.tsv").write_text("".join(halves))
        kinds = {"the": "DET", "at": "ADP", **dict.fromkeys(SIZES, "ADJ"), **dict.fromkeys(SOUNDS, "NOUN")}
        words = ("".join(f"{word}\t{kinds.get(word, 'VERB')}\n" for word in text) + "\n" for text in texts[:60])
        (folder / f"tags.{part}.tsv").write_text("".join(words))


def table(name: str, folder: Path) -> dict[str, Any]:
    stem = "pairs." if name == "pairs" else ""
    data = {"train": str(folder / f"{stem}train.txt"), "valid": str(folder / f"{stem}test.txt"), "max_length": 20}
    tokenizer = {"source": {"kind": "words"}}
    return {
        "task": "masked-language-model",
        "data": data,
        "tokenizer": tokenizer,
        "model": MODELS[name],
        "train": QUICK,
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Every model trained once."""
    place = tmp_path_factory.mktemp("masked")
    write_data(place)
    with quiet_machine(place / "cache"):
        for name in MODELS:
            (place / f"{name}.toml").write_text(settings.dump(build(table(name, place))), encoding="utf-8")
            steps = ["train.steps=150"] if name == "bilm" else []
            result = call("train", place / f"{name}.toml", *steps, "--run", place / name)
            assert result.code == 0, result.err
        yield place


# --- the road


def test_it_learns_what_the_text_tells(folder: Path) -> None:
    """Of eight words two follow from nothing but chance over four: no loss below a quarter of log 4 on average."""
    rows = Run(folder / "masked").metrics()
    losses = [row["loss"] for row in rows if "loss" in row]
    assert losses[0] > 2.5
    assert losses[-1] < 0.6
    found = [row["valid"] for row in rows if "valid" in row][-1]
    assert found["pseudo_perplexity"] == pytest.approx(math.exp(found["loss"]))
    assert found["accuracy"] > 0.6
    bilm = [row["valid"] for row in Run(folder / "bilm").metrics() if "valid" in row][-1]
    assert bilm["loss"] < 1.0
    pairs = [row["valid"] for row in Run(folder / "pairs").metrics() if "valid" in row][-1]
    assert pairs["pair_accuracy"] > 0.8
    assert pairs["loss"] > math.log(pairs["pseudo_perplexity"])  # the loss of pairs is in it


@pytest.mark.parametrize("name", ["masked", "bilm"])
def test_evaluate_is_validation_whatever_the_batches(folder: Path, name: str) -> None:
    valid = [row["valid"] for row in Run(folder / name).metrics() if "valid" in row]
    best = min(valid, key=lambda row: row["loss"])
    for size in ("3", "64"):
        result = call("evaluate", folder / name, folder / "test.txt", "--json", "--batch-size", size)
        assert result.code == 0, result.err
        scores = json.loads(result.out)
        assert scores.pop("segments") == 80
        assert scores == pytest.approx(best, rel=1e-5)


def test_a_mask_is_filled_in(folder: Path) -> None:
    lines = ["the old cow [MASK] at the young cow", "", "the [MASK] lion roars at the old [MASK]"]
    (folder / "in.txt").write_text("\n".join(lines) + "\n")
    result = call("predict", folder / "masked", folder / "in.txt")
    assert result.code == 0, result.err
    first, empty, third, _ = result.out.split("\n")
    assert (first, empty) == ("the old cow moos at the young cow", "")
    assert third.split()[0::2][:1] == ["the"]
    assert third.split()[-1] == "lion"
    assert third.split()[1] in SIZES
    told = [
        json.loads(line) for line in call("predict", folder / "masked", folder / "in.txt", "--json").out.splitlines()
    ]
    assert [len(row.get("masks", [])) for row in told] == [1, 0, 2]
    answers = told[0]["masks"][0]
    assert answers[0]["text"] == "moos"
    assert len(answers) == 5
    assert [one["probability"] for one in answers] == sorted((one["probability"] for one in answers), reverse=True)
    assert answers[0]["probability"] > 0.5
    # Neither neighbours nor padding change an answer.
    alone = load_run(folder / "masked").predict([lines[0]])[0]
    assert alone.details["masks"][0][0]["probability"] == pytest.approx(answers[0]["probability"], rel=1e-4)


def test_words_outside_the_vocabulary_stand_as_they_were_written(folder: Path) -> None:
    found = load_run(folder / "masked").predict(["the old Zebra [MASK] at the [MASK] cow"])[0]
    words = found.text.split()
    assert [*words[:3], *words[4:6], words[7]] == ["the", "old", "Zebra", "at", "the", "cow"]
    assert [words[3], words[6]] == [mask[0]["text"] for mask in found.details["masks"]]


REFUSED: list[tuple[list[str], str]] = [
    (["predict", "masked", "plain.txt"], "plain.txt:1: found no [MASK], expected one or more"),
    (['predict', 'bilm', 'mask.txt'], 'model.kind: found "bilm", which cannot fill [MASK]'),
    (["predict", "masked", "mask.txt", "--beam", "3"], "--beam is for runs that search for an output text"),
    (["predict", "masked", "long.txt"], "found a length of 31, expected at most the 22 of model.encoder.max_positions"),
    (["evaluate", "masked", "test.txt", "--metric", "acuracy"], "Did you mean 'accuracy'?"),
    (["evaluate", "masked", "test.txt", "--metric", "pair_accuracy"], "needs model.next_sentence = true"),
    (["evaluate", "masked", "test.txt", "evaluation.skip_unknown=true"], "is for labels and tags"),
    (["evaluate", "masked", "test.txt", "--output", "o.txt"], "no answers to write"),
    (["train", "masked.toml", "train.metric=bleu", "--run", "x"], "has loss, accuracy"),
    (["train", "masked.toml", "data.max_length=30", "--run", "x"], "model.encoder.max_positions = 22"),
    (["train", "masked.toml", "model.kind=classifier", "--run", "x"], 'expected one of masked-lm, bilm'),
    (["train", "masked.toml", "data.train=labels.train.tsv", "--run", "x"], "data.columns: missing for labels.t"),
    (["train", "masked.toml", "tokenizer.target.kind=words", "--run", "x"], "its targets are not text"),
    (["train", "masked.toml", "search.beam=2", "--run", "x"], "search: configures a search"),
    (["attention", "masked", "test.txt"], 'found task = "masked-language-model"'),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "expected"), REFUSED, ids=lambda value: " ".join(value)[:60])
def test_what_makes_no_sense_is_refused_in_one_line(
    folder: Path, arguments: list[str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    (folder / "plain.txt").write_text("the old cow\n")
    (folder / "mask.txt").write_text("the old [MASK]\n")
    (folder / "long.txt").write_text("the [MASK] " + "cow " * 28 + "\n")
    with quiet_machine(folder / "cache"):
        result = call(*arguments)
    assert result.code == 2
    assert expected in result.err.splitlines()[-1]
    assert not (folder / "x").exists()


def test_check_and_info(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    with quiet_machine(folder / "cache"):
        for name in MODELS:
            result = call("check", f"{name}.toml")
            assert result.code == 0, result.err
            assert result.lines[-1].startswith(("all is well", "the run can start"))
            assert "% of the source cells are padding" in result.out
            assert ("lengths: target" in result.out) == (name == "pairs"), "a text alone is its own target"
            found = call("info", name)
            assert found.code == 0, found.err
            assert "masked-language-model" in found.out
        result = call("train", "train.txt", "task=masked-language-model", "train.steps=2", "--run", "auto")
    assert result.code == 0, result.err
    (told,) = (line for line in result.err.splitlines() if line.startswith("data: "))
    assert re.search(r"; vocabulary \d+$", told), told
    assert "a small BERT" in result.err


@pytest.mark.parametrize("name", list(MODELS))
def test_resume_is_exact_and_masks_are_drawn_anew(folder: Path, name: str, tmp_path: Path) -> None:
    def weights(run: Path) -> str:
        return hashlib.sha256((run / "checkpoints" / "00000006" / "weights.safetensors").read_bytes()).hexdigest()

    with quiet_machine(folder / "cache"):
        for steps in (4, 6):
            train(build(table(name, folder), [f"train.steps={steps}"]), tmp_path / "parts", Display(quiet=True))
        train(build(table(name, folder), ["train.steps=6"]), tmp_path / "whole", Display(quiet=True))
        other = build(table(name, folder), ["train.steps=6", "train.seed=2"])
        train(other, tmp_path / "other", Display(quiet=True))
    assert weights(tmp_path / "parts") == weights(tmp_path / "whole")
    assert weights(tmp_path / "other") != weights(tmp_path / "whole")


# --- data


def test_the_plan_counts_what_the_model_tells(folder: Path) -> None:
    for name in MODELS:
        config = build(table(name, folder))
        with quiet_machine(folder / "cache"):
            corpus = task_of(config).prepare(config)
        model = Run(folder / name).model(torch.device("cpu"))
        plan = BatchPlan(corpus.train, 300, 1, collator=corpus.collator)
        epoch = plan.epoch(0)
        for place in range(3):
            batch = read_batch(corpus.train, epoch[place], plan)
            for training in (True, False):
                assert int(model.train(training)(batch).count) == plan.tokens(epoch[place])


def test_fixed_masks_keep_their_shares_and_spare_ends_and_padding(folder: Path) -> None:
    model: Any = Run(folder / "masked").model(torch.device("cpu"))
    random_rows = np.random.default_rng(0)
    source = torch.full((3000, 22), PAD)
    for row in range(3000):
        length = int(random_rows.integers(1, 21))
        source[row, :length] = torch.from_numpy(random_rows.integers(4, model.vocabulary, length))
        source[row, length] = EOS
    found = model.mask_tokens(source, source != PAD)
    real = found.target != PAD
    assert (source.gather(1, found.positions)[real] >= 4).all()
    count = int(real.sum())
    for seen, share in ((int(found.masked.sum()), 0.8), (int((found.source != source).sum()), 0.1 * 17 / 18)):
        assert abs(seen / count - share) < 4.5 * math.sqrt(share * (1 - share) / count)
    # Rows of twenty tokens: every place is as likely.
    long = source[:, :20].clone()
    long = torch.from_numpy(random_rows.integers(4, model.vocabulary, long.shape))
    seen = torch.bincount(model.mask_tokens(long, long != PAD).positions.flatten(), minlength=20) / 3000
    assert float((seen - 0.15).abs().max()) < 4.5 * math.sqrt(0.15 * 0.85 / 3000)
    # What is hidden of a row follows from the row.
    part = model.mask_tokens(source[500:520, :21], source[500:520, :21] != PAD)
    assert torch.equal(part.masked, found.masked[500:520, :21])
    assert torch.equal(part.source, found.source[500:520, :21])


def test_long_texts_are_cut_and_nothing_is_lost() -> None:
    words = [f"w{number}" for number in range(53)]
    tokenizer = train_tokenizer(WordsConfig(), [" ".join(words)])
    examples: Any = list(MaskedTextFormat(10).read(settings_of("x.txt", " ".join(words)), "x.txt", False))
    rows: Any = MaskedTextFormat(10).encode(examples, tokenizer, tokenizer)
    assert [token for row, _ in rows for token in row] == tokenizer.encode(" ".join(words))
    assert {len(row) for row, _ in rows} == {8, 9}
    assert split_evenly(list(range(7)), 7) == [list(range(7))]


def settings_of(name: str, text: str) -> Any:
    Path(name).write_text(text + "\n")
    return build(
        {"task": "masked-language-model", "data": {"train": name}, "model": {"encoder": {"max_positions": 300}}}
    ).data


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_text_is_paired_with_the_next_until_a_blank_line() -> None:
    text = "a b\nc d e f g h i\nj\n\nk l m n\n \no p"
    data = settings_of("y.txt", text)
    tokenizer = train_tokenizer(WordsConfig(), [text])
    example_format = MaskedTextFormat(8, pairs=True)  # four tokens of each
    examples: Any = list(example_format.read(data, "y.txt", False))
    rows: Any = example_format.encode(examples, tokenizer, tokenizer)
    found = [(tokenizer.decode(first), tokenizer.decode(second)) for first, second in rows]
    assert found == [
        ("a b", "c d e f"), ("c d e", "f g h i"), ("f g h i", "j"), ("k l", "m n"), ("o", "p"),
    ]  # fmt: skip


def test_pairs_need_texts_on_both_sides_of_the_split() -> None:
    Path("few.txt").write_text("01\n10\n11\n")
    table = {
        "task": "masked-language-model",
        "data": {"train": "few.txt", "cache": "cache"},
        "model": {"next_sentence": True},
    }
    config = build({**table, "tokenizer": {"source": "characters"}})
    with pytest.raises(DataError, match=r"^few\.txt: texts: found 3, expected 4 or more"):
        task_of(config).prepare(config)


@pytest.mark.parametrize(("lines", "aside"), [(4, 2), (30, 3), (400, 20)])
def test_no_text_of_a_pair_is_both_learned_from_and_validated_on(lines: int, aside: int) -> None:
    """Every text stands in two pairs, as the first and as the second."""
    texts = [f"01 {number:b}" for number in range(lines)]
    Path("order.txt").write_text("\n".join(texts))
    config = build(
        {
            "task": "masked-language-model",
            "data": {"train": "order.txt", "holdout": 20, "cache": "cache"},
            "tokenizer": {"source": "characters"},
            "model": {"next_sentence": True, "encoder": {"max_positions": 300}},
        }
    )
    corpus = task_of(config).prepare(config)
    learned, validated = (
        {
            corpus.source_tokenizer.decode(row)
            for side in (part.source, part.target)
            for row in side.rows(range(len(part)))
        }
        for part in (corpus.train, corpus.valid)
    )
    assert learned == set(texts[:-aside])
    assert validated == set(texts[-aside:])


def test_columns_hold_texts(tmp_path: Path) -> None:
    Path("z.tsv").write_text("one\ttwo\tlabel\nA b\tc d\t1\ne\tf g\t0\n")
    table = {"train": "z.tsv", "header": True, "columns": ["one", "two"]}
    model = {"encoder": {"max_positions": 300}}
    config = build({"task": "masked-language-model", "data": table, "model": model})
    example_format = task_of(config).example_format(config)
    examples: Any = list(example_format.read(config.data, "z.tsv", False))
    assert [one.source for one in examples] == ["A b", "c d", "e", "f g"]
    assert examples[2].location == "z.tsv:3"
    paired: Any = list(MaskedTextFormat(20, pairs=True).read(config.data, "z.tsv", False))
    assert [(one.source, one.references[0]) for one in paired if one.references[0]] == [("A b", "c d"), ("e", "f g")]
    Path("bad.txt").write_bytes(b"good\n\xff\nfine\x07\n")
    found: Any = list(
        MaskedTextFormat(20).read(
            build({"task": "masked-language-model", "data": {"train": "bad.txt"}, "model": model}).data,
            "bad.txt",
            False,
        )
    )
    assert [one.kind for one in found[1:]] == ["bad-utf8", "control-characters"]


# --- other tasks start from it


def starting(folder: Path, name: str, data: str, **more: Any) -> dict[str, Any]:
    encoder = ELMO if name == "bilm" else BERT
    task = "tag" if data == "tags" else "classify"
    model = {"encoder": encoder, "dropout": 0.0} | ({} if task == "tag" else {"pooling": "last"})
    columns = {"columns": ["1", "2", "3"]} if data == "halves" else {}
    files = {"train": str(folder / f"{data}.train.tsv"), "valid": str(folder / f"{data}.test.tsv"), "max_length": 20}
    made = {
        "task": task,
        "data": {**files, **columns},
        "model": model,
        "train": {**QUICK, "steps": 40, "validate_every": 20, "start_from": str(folder / name)},
    }
    return settings.merge(made, more)


@pytest.mark.parametrize("data", ["labels", "halves", "tags"])
@pytest.mark.parametrize("name", ["masked", "bilm"])
def test_a_classifier_or_tagger_starts_with_the_encoder(folder: Path, name: str, data: str, tmp_path: Path) -> None:
    rate = {"train": {"steps": 1, "optimizer": {"learning_rate": 1e-12}}}
    with quiet_machine(folder / "cache"):
        (tmp_path / "c.toml").write_text(settings.dump(build(starting(folder, name, data, **rate))), encoding="utf-8")
        result = call("train", tmp_path / "c.toml", "--run", tmp_path / "c")
    assert result.code == 0, result.err
    assert "not loaded: output.weight, output.bias" in result.err
    old, new = (
        dict(Run(path).model(torch.device("cpu")).named_parameters()) for path in (folder / name, tmp_path / "c")
    )
    taken = [part for part in new if part.startswith("encoder.")]
    assert taken
    for part in taken:  # with so small a rate they stay what they were
        torch.testing.assert_close(new[part], old[part], rtol=0.0, atol=1e-6)
    theirs, ours = (Run(path).tokenizers()[0] for path in (folder / name, tmp_path / "c"))
    assert getattr(ours, "inner", ours).fingerprint() == theirs.fingerprint()


def test_starting_from_a_masked_model_helps(folder: Path, tmp_path: Path) -> None:
    """Few labels tell what fits what only to a model that knows it already."""
    scores = []
    with quiet_machine(folder / "cache"):
        for start in (str(folder / "masked"), ""):
            made = starting(
                folder, "masked", "labels", train={"start_from": start, "optimizer": {"learning_rate": 2e-3}}
            )
            made["tokenizer"] = {"source": {"kind": "run", "run": str(folder / "masked")}}
            config = build(made, ["train.steps=60", "train.validate_every=60"])
            train(config, tmp_path / f"c{len(scores)}", Display(quiet=True))
            scores.append([row for row in Run(tmp_path / f"c{len(scores)}").metrics() if "valid" in row][-1]["valid"])
    assert scores[0]["accuracy"] > scores[1]["accuracy"] + 0.1


def test_a_filler_is_what_opens_it(folder: Path) -> None:
    assert isinstance(load_run(folder / "masked"), MaskFiller)
    assert isinstance(task_of(Run(folder / "pairs").config).validator(*prepared(folder)), MaskedLMValidator)


def prepared(folder: Path) -> tuple[Any, Any, torch.device]:
    config = build(table("pairs", folder))
    with quiet_machine(folder / "cache"):
        return config, task_of(config).prepare(config), torch.device("cpu")


def test_inspect_shows_the_layers_of_a_masked_model(folder: Path, tmp_path: Path) -> None:
    result = call("inspect", folder / "masked", "the [MASK] runs", "-o", tmp_path / "numbers.json", "--device", "cpu")
    assert result.code == 0, result.err
    assert "layers" in {view["kind"] for view in json.loads((tmp_path / "numbers.json").read_text())["views"]}
