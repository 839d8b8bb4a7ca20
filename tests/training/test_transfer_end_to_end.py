"""Runs that start from other runs, freeze and rates, from the configuration to the weights."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from dragoman.base.config import merge
from dragoman.base.errors import ConfigError, DragomanError, RunError
from dragoman.data.tokenizers.load import RunTokenizerConfig
from dragoman.runs import Run, pretrained, train
from dragoman.runs.tasks.config import build
from dragoman.training.checkpoints import read_tensors
from dragoman.training.display import Display
from dragoman.training.transfer import TransferReport
from tests.conftest import call, quiet_machine

STACK = {"layers": 1, "width": 16, "heads": 2, "feedforward": 32, "dropout": 0.1}
QUICK = {
    "steps": 4, "validate_every": 2, "save_every": 2, "log_every": 1, "batch_tokens": 200, "decode": 2,
    "optimizer": {"learning_rate": 1e-2, "warmup": 1},
}  # fmt: skip
LETTERS = "abcdefgh"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A translation run and data for others."""
    place = tmp_path_factory.mktemp("transfer")
    words = [LETTERS[start:] + LETTERS[:start] for start in range(8)]
    pairs = [(one + other, other + one) for one in words for other in words]
    (place / "pairs.tsv").write_text("".join(f"{left}\t{right}\n" for left, right in pairs))
    labelled = (f"{left}\t{'early' if left < right else 'late'}\n" for left, right in pairs)
    (place / "labels.tsv").write_text("".join(labelled))
    others = (f"{left}\t{'x' if left < right else 'y'}\n" for left, right in pairs)
    (place / "others.tsv").write_text("".join(others))
    (place / "more.tsv").write_text("".join(f"{left}z\t{right}z\n" for left, right in pairs))
    with quiet_machine(place / "cache"):
        run(translate(place), place / "first")
        yield place


def translate(folder: Path, data: str = "pairs", **more: Any) -> dict[str, Any]:
    table = {
        "data": {"train": str(folder / f"{data}.tsv"), "holdout": 8},
        "model": {"tie": "all", "encoder": STACK, "decoder": STACK},
        "train": QUICK,
    }
    if not more.get("train", {}).get("start_from"):
        table["tokenizer"] = {"source": {"kind": "characters"}}
    return merge(table, more)


def classify(folder: Path, data: str = "labels", **more: Any) -> dict[str, Any]:
    training = {key: value for key, value in QUICK.items() if key != "decode"}
    table = {
        "task": "classify",
        "data": {"train": str(folder / f"{data}.tsv"), "holdout": 8},
        "model": {"encoder": {"kind": "transformer", **STACK}},
        "train": training,
    }
    return merge(table, more)


def run(table: dict[str, Any], place: Path, *overrides: str) -> Run:
    train(build(table, overrides), place, Display(quiet=True))
    return Run(place)


def weights(found: Run, step: int | None = None) -> dict[str, Tensor]:
    path = found.folder / "checkpoints" / f"{step:08d}" / "weights.safetensors" if step else found.weights_path()
    return dict(read_tensors(path))


def start(folder: Path, *parts: str, **more: Any) -> dict[str, Any]:
    return {"train": {"start_from": {"run": str(folder / "first"), "parts": [*parts], **more}}}


def same(left: Tensor, right: Tensor) -> bool:
    """Equal but for what the smallest step adds to a zero."""
    return bool((left - right).abs().max() < 1e-18)


STILL = {"steps": 1, "optimizer": {"learning_rate": 1e-20}}  # one step that moves nothing


@pytest.mark.parametrize(
    ("parts", "taken"),
    [(("encoder",), r"encoder\."), (("decoder",), r"decoder\.|encoder\.input\.embedding"), (("all",), ""),
     (("embeddings",), r"encoder\.input\.embedding"), (("encoder.blocks",), r"encoder\.blocks\.")],
)  # fmt: skip
def test_the_parts_that_are_named_come_over_and_no_others(
    folder: Path, tmp_path: Path, parts: tuple[str, ...], taken: str
) -> None:
    """All tables of this model are one, so a part with a table brings it for all."""
    made = merge(translate(folder, **start(folder, *parts)), {"train": STILL})
    old, new = weights(Run(folder / "first")), weights(run(made, tmp_path / "new"))
    fresh = weights(run(merge(translate(folder), {"train": STILL}), tmp_path / "fresh"))
    assert old.keys() == new.keys() == fresh.keys()
    for name in new:
        expected = old if re.match(taken, name) else fresh
        assert same(new[name], expected[name]), name


def test_a_classifier_starts_with_a_translators_encoder_and_its_tokenizer(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text("")
    made = merge(classify(folder), {"train": {"start_from": str(folder / "first"), **STILL}})
    config = build(made)
    assert config.tokenizer.source == RunTokenizerConfig(str(folder / "first"), "source")
    assert config.tokenizer.target is None
    new = run(made, tmp_path / "new")
    assert new.tokenizers()[0].fingerprint() == Run(folder / "first").tokenizers()[0].fingerprint()
    old, ours = weights(Run(folder / "first")), weights(new)
    taken = [name for name in ours if name.startswith("encoder.")]
    assert len(taken) > 8
    assert all(same(ours[name], old[name]) for name in taken)
    # A classifier with other labels takes all but what answers; with the same ones that too.
    kept = merge(classify(folder), {"train": {"start_from": {"run": str(new.folder)}, **STILL}})
    again = weights(run(kept, tmp_path / "again"))
    assert all(same(again[name], ours[name]) for name in ours)
    other = merge(classify(folder, "others"), {"train": {"start_from": {"run": str(new.folder)}, "seed": 2, **STILL}})
    third = weights(run(other, tmp_path / "third"))
    assert same(third["encoder.input.embedding.weight"], ours["encoder.input.embedding.weight"])
    assert not same(third["output.weight"], ours["output.weight"])
    with pytest.raises(RunError, match=r"has other labels \(early, late\) than these data"):
        run(merge(other, {"train": {"start_from": str(new.folder)}}), tmp_path / "fourth")


def test_what_came_over_is_told(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dragoman.base import config as settings

    made = merge(classify(folder), {"train": {"start_from": str(folder / "first")}})
    made["model"]["encoder"]["feedforward"] = 24
    (tmp_path / "c.toml").write_text(settings.dump(build(made)), encoding="utf-8")
    result = call("train", tmp_path / "c.toml", "--run", tmp_path / "c")
    assert result.code == 0, result.err
    lines = result.err.splitlines()
    place = next(number for number, line in enumerate(lines) if line.startswith("part "))
    assert lines[place - 1].startswith(f"from {folder / 'first'}: ")
    assert lines[place].split() == ["part", "loaded", "in", "part", "not", "found", "other", "shape"]
    rows = {line.split()[0]: line.split()[1:] for line in lines[place + 1 : place + 3]}
    assert rows["output"] == ["0", "0", "2", "0"]
    assert rows["encoder"][2:] == ["0", "3"]  # both matrices between, and one of their biases
    assert "(found 32 × 16, expected 24 × 16)" in result.err
    checked = call("check", tmp_path / "c.toml")
    assert checked.code == 0, checked.err
    assert "start: part" in checked.out


def test_weights_that_fit_and_mean_something_else_are_told(folder: Path, tmp_path: Path) -> None:
    from dragoman.base import config as settings

    table = merge(classify(folder), {"train": {"start_from": str(folder / "first")}})
    (tmp_path / "c.toml").write_text(settings.dump(build(table)), encoding="utf-8")
    result = call("train", tmp_path / "c.toml", "--run", tmp_path / "same", "--quiet", "model.encoder.dropout=0.3")
    assert (result.code, result.err) == (0, "")
    heads = STACK["heads"]
    wrong = f"other settings: model.encoder.heads was {heads}, is {2 * heads}"
    result = call("train", tmp_path / "c.toml", "--run", tmp_path / "c", "--quiet", f"model.encoder.heads={2 * heads}")
    assert result.code == 0, result.err
    assert result.err.strip() == f"warning: {folder / 'first'} was trained with {wrong}"
    assert f"{wrong}\n" in call("check", tmp_path / "c.toml", f"model.encoder.heads={2 * heads}").out
    # Embeddings mean the same whatever reads them.
    tables = f'train.start_from={{ run = "{folder / "first"}", parts = ["embeddings"] }}'
    result = call(
        "train", tmp_path / "c.toml", "--run", tmp_path / "e", "--quiet", f"model.encoder.heads={2 * heads}", tables
    )
    assert (result.code, result.err) == (0, "")


@pytest.mark.parametrize(("task", "name"), [("translate", "decoder"), ("caption", "decoder_head.decoder")])
def test_parts_under_other_names_are_compared(task: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stack = {"kind": "transformer", **STACK}
    language = build({"task": "language-model", "data": {"train": "a.txt"}, "model": {"stack": stack}})
    monkeypatch.setattr(pretrained, "Run", lambda place: SimpleNamespace(config=language))
    units = {"target": "characters", "source": "characters" if task == "translate" else "picture"}
    config = build(
        {
            "task": task,
            "data": {"train": "a.tsv"},
            "tokenizer": units,
            "model": {"decoder": {**stack, "heads": 4}},
            "train": {"start_from": {"run": "lm", "parts": [f"stack:{name}"]}},
        }
    )
    came = TransferReport((f"{name}.blocks.0.attention.query.weight",), (), (), (), 1)
    warning = f"lm was trained with other settings: model.{name}.heads was 2, is 4"
    assert pretrained.settings_mismatch(config, came) == warning
    assert pretrained.settings_mismatch(config, came._replace(loaded=(f"{name}.embedding.weight",))) == ""


def test_frozen_weights_stay_to_the_bit_and_resume_is_exact(folder: Path, tmp_path: Path) -> None:
    more = {
        "start_from": {"run": str(folder / "first"), "parts": ["encoder"]},
        "freeze": ["encoder"],
        "rates": [{"names": "decoder.blocks", "factor": 0.5}],
        "average": {"kind": "ema"},
    }
    made = translate(folder, train=more)
    whole = run(made, tmp_path / "whole")
    run(made, tmp_path / "parts", "train.steps=2")
    resumed = run(made, tmp_path / "parts")
    old, new = weights(Run(folder / "first")), weights(whole, 4)
    for name in new:
        assert torch.equal(new[name], old[name]) == name.startswith("encoder."), name
    best = weights(whole)
    assert all(torch.equal(best[name], old[name]) for name in best if name.startswith("encoder."))

    def state(found: Run) -> list[str]:
        files = sorted((found.folder / "checkpoints" / "00000004").glob("*.safetensors"))
        return [hashlib.sha256(path.read_bytes()).hexdigest() for path in files]

    assert state(whole) == state(resumed)
    assert len(state(whole)) == 3
    moments = read_tensors(whole.folder / "checkpoints" / "00000004" / "optimizer.safetensors")
    assert moments
    assert not any(name.startswith("encoder.") for name in moments)


def test_a_rate_of_its_own_is_a_step_of_its_own_length(folder: Path, tmp_path: Path) -> None:
    """Adam's first step is as long as its rate, but where gradients are tiny."""
    more = {"steps": 1, "clip": 0.0, "rates": [{"names": "*.blocks.*", "factor": 0.1}]}
    made = translate(folder, train=more)
    made["train"]["optimizer"] = {"learning_rate": 1e-3, "warmup": 0, "epsilon": 1e-30, "schedule": "constant"}
    slow = weights(run(made, tmp_path / "slow"))
    still = translate(folder, train=STILL)
    before = weights(run(still, tmp_path / "before"))
    for name in slow:
        moved = (slow[name] - before[name]).abs()
        expected = 1e-4 if ".blocks." in name else 1e-3
        assert float(moved.max()) == pytest.approx(expected, rel=2e-2), name


def test_wrong_names_and_runs_are_refused_before_anything_is_written(folder: Path, tmp_path: Path) -> None:
    def refused(made: dict[str, Any], kind: type[Exception], message: str) -> None:
        with pytest.raises(kind, match=message):
            run(made, tmp_path / "x")
        assert not (tmp_path / "x").exists()

    refused(translate(folder, train={"freeze": ["encodr"]}), ConfigError, "no weight is called 'encodr'. Did you mean")
    rates = {"rates": [{"names": "decoder"}, {"names": "decoder.bloks"}]}
    refused(translate(folder, train=rates), ConfigError, r"train.rates\[1\].names: no weight is called 'decoder.bloks'")
    refused(
        translate(folder, **start(folder, "encodr")), ConfigError, "has no weights of 'encodr'. Did you mean 'encoder'"
    )
    refused(classify(folder, **start(folder, "decoder")), ConfigError, "this model has no weights of 'decoder'")
    refused(translate(folder, train={"start_from": str(folder / "frist")}), RunError, r"frist: no such run .*first'\?")
    refused(translate(folder, train={"freeze": ["*"]}), ConfigError, "freezes all weights")
    sizes = {"width": 24, "feedforward": 40}
    wide = {"encoder": sizes, "decoder": sizes}
    refused(translate(folder, model=wide, **start(folder, "encoder")), RunError, "nothing of .* fits this model")
    whole = {"train": {"start_from": str(folder / "first")}, "model": {"encoder": {"feedforward": 24}}}
    refused(translate(folder, **whole), RunError, "the weights do not fit the configuration")


def test_other_vocabularies_are_refused_with_the_way_out_or_matched_by_token(folder: Path, tmp_path: Path) -> None:
    made = translate(folder, "more", **start(folder, "encoder"))
    made["tokenizer"] = {"source": {"kind": "characters"}}
    with pytest.raises(RunError, match=r"has another source vocabulary .*tokenizer.source = \{ kind = \"run\""):
        run(made, tmp_path / "x")
    assert not (tmp_path / "x").exists()
    matched = merge(made, {"train": {"start_from": {"by_token": True}, **STILL}})
    new = run(matched, tmp_path / "matched")
    old = Run(folder / "first")
    ours, theirs = new.tokenizers()[0], old.tokenizers()[0]
    table, other = weights(new)["encoder.input.embedding.weight"], weights(old)["encoder.input.embedding.weight"]
    for letter in LETTERS:
        assert same(table[ours.encode(letter)[0]], other[theirs.encode(letter)[0]])
    # Without a tokenizer of its own it takes theirs, which has no z.
    del made["tokenizer"]
    taken = run(made, tmp_path / "taken")
    assert taken.tokenizers()[0].encode("z") == [1]
    assert taken.tokenizers()[0].fingerprint() == theirs.fingerprint()


def test_a_run_goes_on_when_the_other_has_moved(folder: Path, tmp_path: Path) -> None:
    """The units are known by what they are, not by where they were."""
    made = translate(folder, **start(folder, "encoder"))
    first = build(made)
    train(build(made, ["train.steps=2"]), tmp_path / "run", Display(quiet=True))
    units = Run(tmp_path / "run").config.tokenizer.source
    assert isinstance(units, RunTokenizerConfig)
    assert Path(units.run).is_absolute()
    train(first, tmp_path / "run", Display(quiet=True))
    assert (tmp_path / "run" / "checkpoints" / "00000004").is_dir()
    with pytest.raises(ConfigError, match="expected the folder of a run"):
        run(translate(folder, tokenizer={"source": {"kind": "run", "run": str(tmp_path / "no")}}), tmp_path / "y")


def test_word_vectors_begin_a_run_that_then_needs_no_file(folder: Path, tmp_path: Path) -> None:
    file, generator = tmp_path / "vectors.vec", torch.Generator().manual_seed(7)
    vectors = {letter: torch.randn(16, generator=generator) * 5 for letter in LETTERS[:6]}
    lines = (f"{letter} {' '.join(map(str, vector.tolist()))}\n" for letter, vector in vectors.items())
    file.write_text("".join(lines))
    frozen = {"vectors": {"source": str(file), "frozen": True}}
    untied = translate(folder, train=frozen, model={"tie": "none"})
    whole = run(untied, tmp_path / "whole")
    table, units = weights(whole)["encoder.input.embedding.weight"], whole.tokenizers()[0]
    mean = torch.stack(list(vectors.values())).norm(dim=1).mean()
    for letter, vector in vectors.items():  # as in the file, but for one factor, after four steps of training
        torch.testing.assert_close(table[units.encode(letter)[0]], vector / mean)
    train(build(untied, ["train.steps=2"]), tmp_path / "parts", Display(quiet=True))
    file.unlink()
    resumed = run(untied, tmp_path / "parts")
    assert all(same(part, weights(whole)[name]) for name, part in weights(resumed).items())
    file.write_text(f"a {' '.join('1' * 12)}\n")
    one_hot = {"kind": "recurrent", "embedding": 0, "width": 8}
    for more, message in (
        ({"train": {"vectors": {"target": str(file)}}}, "vectors of 12 numbers, expected 16"),
        (
            {"train": {"vectors": {"target": str(tmp_path / "vectors.vex")}}},
            r"no such file. Did you mean 'vectors.vec'\?",
        ),
        ({"train": {"vectors": {"frozen": True}}}, "without a file"),
        ({"train": frozen, "model": {"encoder": one_hot}}, "no embeddings of source"),
    ):
        table = translate(folder, model={"tie": "none"})
        table["model"] |= more.pop("model", {})
        with pytest.raises(DragomanError, match=message):
            run(merge(table, more), tmp_path / "refused")
    assert not (tmp_path / "refused").exists()
