"""Several languages in one model (Johnson et al. 2017), from the files to the output, and all error messages."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import dragoman
from dragoman.base import config as settings
from dragoman.base.errors import ConfigError, DataError, RunError
from dragoman.data.examples import Example
from dragoman.inference.align.attention import attention_map
from dragoman.inference.predictor import Predictor
from dragoman.runs.tasks import config
from tests.conftest import CommandResult, call, quiet_machine, words, write_rows

ANSWERS: dict[str, Callable[[str], str]] = {"same": str, "back": lambda word: word[::-1]}
UNSEEN = words(340, shortest=2, longest=4, letters="abcdef")[300:]


def table(folder: Path) -> dict[str, Any]:
    """One vocabulary for both sides, one table of embeddings, two languages."""
    side = {"kind": "transformer", "layers": 1, "width": 32, "heads": 2, "feedforward": 64, "dropout": 0.0}
    return {
        "data": {
            "train": [
                {"file": str(folder / "same.tsv"), "tag": "same"},
                {"source": str(folder / "word.txt"), "target": str(folder / "back.txt"), "tag": "back"},
            ],
        },
        "tokenizer": {"source": {"kind": "characters"}},
        "model": {"tie": "all", "label_smoothing": 0.0, "encoder": side, "decoder": side},
        "train": {
            "steps": 350,
            "batch_tokens": 512,
            "validate_every": 175,
            "save_every": 175,
            "decode": 20,
            "average": "none",
            "device": "cpu",
            "optimizer": {"learning_rate": 1e-2, "warmup": 50},
        },
        "search": {"beam": 2},
    }


@dataclass(frozen=True)
class Trained:
    """A folder with data and a run, and what training said."""

    folder: Path
    run: Path
    training: CommandResult


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    folder = tmp_path_factory.mktemp("languages")
    some = words(300, shortest=2, longest=4, letters="abcdef")
    write_rows(folder / "same.tsv", [(word, word) for word in some])
    write_rows(folder / "word.txt", [(word,) for word in some])
    write_rows(folder / "back.txt", [(word[::-1],) for word in some])
    write_rows(folder / "test.tsv", [(word, word[::-1]) for word in UNSEEN])
    (folder / "two.toml").write_text(settings.dump(config.build(table(folder))), encoding="utf-8")
    with quiet_machine(folder / "cache"):
        result = call("train", folder / "two.toml", "--run", folder / "run")
    assert result.code == 0, result.err
    return Trained(folder, folder / "run", result)


@pytest.fixture
def here(trained: Trained) -> Iterator[Trained]:
    with quiet_machine(trained.folder / "cache"):
        yield trained


@pytest.fixture
def run(here: Trained) -> Predictor:
    return dragoman.load(here.run)


def test_each_tag_has_its_own_answers(run: Predictor) -> None:
    for tag, answer in ANSWERS.items():
        found = [prediction.text for prediction in run.predict(UNSEEN, tag=tag)]
        right = sum(one == answer(word) for one, word in zip(found, UNSEEN, strict=True))
        assert right >= 0.9 * len(UNSEEN), (tag, found)
    assert run.tags == ("back", "same")


def test_a_tag_in_the_text_is_the_same_and_goes_before(run: Predictor) -> None:
    back, same = run.predict(["abc"], tag="back"), run.predict(["abc"], tag="same")
    assert back != same
    assert run.predict(["<2back> abc", "<2same> abc"]) == [*back, *same]
    assert run.predict(["<2back> abc", "abc", "", "<2back>  "], tag="same")[:2] == [*back, *same]
    assert [one.text for one in run.predict(["", "<2back>  ", " "], tag="same")] == ["", "", ""]
    assert [one.text for one in run.predict([""])] == [""]


def test_no_tag_can_be_written(run: Predictor) -> None:
    size = len(run.target_tokenizer)
    assert len(run.source_tokenizer) == size + 2
    source = torch.tensor([run.source_tokenizer.encode("<2same> abc")])
    hidden = run.model.encode(source, source > 0)
    probabilities, _ = run.model.step(torch.tensor([2]), run.model.decoder.start(hidden))
    assert probabilities.shape == (1, size)
    torch.testing.assert_close(probabilities.exp().sum(), torch.tensor(1.0))


def test_the_command_line(here: Trained) -> None:
    assert "tags: back (300 pairs), same (300 pairs)" in here.training.err
    lines = call("predict", here.run, "--tag", "back", stdin=b"abc\n\n<2same> fed\n")
    assert (lines.code, lines.lines) == (0, ["cba", "", "fed"])
    right, wrong = (
        json.loads(call("evaluate", here.run, here.folder / "test.tsv", "--tag", tag, "--json").out)
        for tag in ("back", "same")
    )
    assert right["exact_match"] > 0.9 > 0.3 > wrong["exact_match"]
    assert right["loss"] < 0.5 < wrong["loss"]
    assert "tags: back (300 pairs), same (300 pairs)" in call("info", here.run).out
    assert json.loads(call("info", here.run, "--json").out)["tags"] == ["back", "same"]
    picture = here.folder / "a.svg"
    assert call("attention", here.run, "abc", "--tag", "back", "--output", picture).code == 0
    assert picture.stat().st_size > 1000


def test_pairs_may_carry_their_own_tags(run: Predictor) -> None:
    mixed = [Example("abc", ("cba",), "x", 1, "back"), Example("fed", ("fed",), "x", 2, "same")]
    scores, predictions = run.evaluate(mixed)
    assert [one.text for one in predictions] == ["cba", "fed"]
    assert scores["exact_match"] == 1.0
    assert run.evaluate([("<2back> abc", "cba")])[0]["loss"] == run.evaluate([("abc", "cba")], tag="back")[0]["loss"]


def test_attention_shows_the_tag(run: Predictor) -> None:
    seen = attention_map(run, "<2back> abc")
    assert seen.source == ("<2back>", "a", "b", "c", "<eos>")


def test_check_proves_every_tag(here: Trained) -> None:
    result = call("check", here.folder / "two.toml")
    assert result.code == 0, result.err
    assert "tags: back before 300 sources, same before 300 sources" in result.out
    assert "cycle: trained 2 steps" in result.out


def test_a_run_stopped_half_way_goes_on_to_the_same_bits(here: Trained, tmp_path: Path) -> None:
    short = ("train.validate_every=4", "train.save_every=4", "train.decode=4")
    assert call("train", here.folder / "two.toml", *short, "train.steps=4", "--run", tmp_path / "a").code == 0
    result = call("train", tmp_path / "a", "train.steps=8")
    assert result.code == 0, result.err
    assert "resuming from step 4" in result.err
    assert call("train", here.folder / "two.toml", *short, "train.steps=8", "--run", tmp_path / "b").code == 0
    first, second = (dragoman.load(tmp_path / name).model.state_dict() for name in "ab")
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_run_goes_on_only_with_its_tags(here: Trained, tmp_path: Path) -> None:
    shutil.copytree(here.run, tmp_path / "run")
    changed = table(here.folder)
    changed["data"]["train"][0]["tag"] = "equal"
    with pytest.raises(RunError, match="the data files or their tags are not those this run was started with"):
        dragoman.train(changed, tmp_path / "run", "train.steps=530", quiet=True)


@pytest.mark.parametrize(
    ("texts", "tag", "error", "message"),
    [
        (["abc"], None, DataError, 'input 1: found no tag, expected one of back, same: name it with --tag (from Python '
         'tag=…), or begin the text with "<2back> "'),
        (["<2same> abc", "", "abc"], None, DataError, "input 3: found no tag"),
        (["<2bak> abc"], None, DataError, "input 1: found the tag 'bak', expected one of back, same. Did you mean "
         "'back'?"),
        (["<2same>abc"], None, DataError, "input 1: found no tag"),
        (["abc"], "sam", ConfigError, "tag: found 'sam', expected one of back, same. Did you mean 'same'?"),
        (["abc"], "", ConfigError, "tag: found '', expected one of back, same"),
        (["abc"], "<2same>", ConfigError, "tag: found '<2same>', expected one of back, same. Did you mean 'same'?"),
    ],
)  # fmt: skip
def test_what_a_tagged_run_cannot_answer(
    here: Trained, run: Predictor, texts: list[str], tag: str | None, error: type[Exception], message: str
) -> None:
    with pytest.raises(error) as caught:
        run.predict(texts, tag=tag)
    assert str(caught.value).startswith(message)
    asked = () if tag is None else ("--tag", tag)
    result = call("predict", here.run, *asked, stdin="\n".join(texts).encode())
    assert (result.code, result.out, result.err) == (2, "", f"dragoman: {caught.value}\n")


def test_pairs_without_a_tag_are_named_by_their_place(here: Trained) -> None:
    result = call("evaluate", here.run, here.folder / "test.tsv")
    assert result.code == 2
    assert result.err.startswith(f"dragoman: {here.folder}/test.tsv:1: found no tag, expected one of back, same")
    assert result.err.count("\n") == 1


def test_an_untagged_run_takes_no_tag(cached: Path, tmp_path: Path) -> None:
    plain = table(tmp_path)
    write_rows(tmp_path / "same.tsv", [(word, word) for word in words(30)])
    plain["data"]["train"] = str(tmp_path / "same.tsv")
    run = dragoman.train(plain, tmp_path / "run", "train.steps=2", "train.validate_every=2", quiet=True)
    assert run.tags == ()
    assert len(run.source_tokenizer.encode("<2same> ab")) == 10  # as any other text
    for tag in ("same", ""):
        with pytest.raises(ConfigError, match="but this run was trained without tags; leave it out"):
            run.predict(["abc"], tag=tag)
    with pytest.raises(ConfigError, match="trained without tags"):
        run.evaluate([Example("abc", ("abc",), "x", 1, "same")])
    result = call("evaluate", tmp_path / "run", tmp_path / "same.tsv", "--tag", "same")
    assert (result.code, result.err.count("\n")) == (2, 1)
    assert "tags" not in call("info", tmp_path / "run").out
