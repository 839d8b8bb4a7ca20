"""`dragoman check`: every fault by its place, lengths, memory, one whole cycle, and an honest exit code."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

from dragoman.auto import CheckOptions, estimates
from dragoman.auto import checking as checking
from dragoman.base.errors import DataError, DragomanError, RunError
from dragoman.data.batching import BatchPlan, read_batch
from dragoman.data.corpus import prepare_corpus
from dragoman.runs import train
from dragoman.runs.tasks import config
from dragoman.runs.tasks.config import Config
from dragoman.runs.tasks.translate import build_model
from tests.conftest import SMALL, CommandResult, call, words, write_rows

pytestmark = pytest.mark.usefixtures("cached")

LENGTHS = {"shortest": 1, "longest": 40}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An own folder, for temporary files too."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    return tmp_path


def check(*arguments: str | Path) -> CommandResult:
    return call("check", *arguments, *SMALL)


def pairs(count: int = 60, **lengths: int) -> list[tuple[str, ...]]:
    return [(word, word[: 1 + len(word) // 2]) for word in words(count, **lengths)]


def built(path: Path | str = "pairs.tsv", *overrides: str, **model: Any) -> Config:
    table = {"data": {"train": str(path)}, "tokenizer": {"source": {"kind": "characters"}}, "model": model}
    return config.build(table, [*SMALL, *overrides] if not model else overrides)


# ---------------------------------------------------------------------- lines

# A line, and what is said of it.
FAULTS = [
    (b"caf\xe9\tx", "found byte 0xe9 at offset 3 of the line, expected UTF-8"),
    (b"only one", "found 1 column, expected 2 with a tab between them"),
    (b"one\ttwo\tthree", "found 3 columns, expected 2"),
    (b"", "blank line"),
    (b"something\t", "the target is empty, expected text"),
    (b"  \tsomething", "the source is empty, expected text"),
    (b"a\x07b\tc", "found U+0007 at offset 1 of the source, expected no control characters"),
    (b"a\tb\x00c", "found U+0000 at offset 1 of the target, expected no control characters"),
    (b"x" * 10_001 + b"\ty", "the source has 10001 characters, expected at most 10000"),
]


def test_every_fault_is_named_by_file_and_line(here: Path) -> None:
    good = [("\t".join(pair)).encode() for pair in pairs()]
    lines, expected = [], []
    for number, (fault, words_) in enumerate(FAULTS):
        lines += [*good[number * 3 : number * 3 + 3], fault]
        expected.append(f"pairs.tsv:{len(lines)}: {words_}")
    # These are no faults: a byte order mark, carriage returns, and a line separator inside a line.
    lines += ["line\u2028separator\tno line\u2028break".encode(), b"last\tline without end"]
    (here / "pairs.tsv").write_bytes(b"\xef\xbb\xbf" + b"\r\n".join(lines))
    table = here / "my.toml"
    table.write_text('[data]\ntrain = "pairs.tsv"\n[tokenizer.source]\nkind = "characters"\n')
    said = check("my.toml")
    assert said.code == 2
    assert [line for line in said.lines if line.startswith("pairs.tsv:")] == expected
    summary = next(line for line in said.lines if line.startswith("lines: "))
    assert f"{len(FAULTS) * 3 + 2} usable pairs" in summary
    assert "2 wrong-columns, 1 blank-line" in summary
    assert said.err == (
        f'dragoman: {len(FAULTS)} lines cannot be used; correct them, or leave such lines out with data.faults="skip"\n'
    )
    few = check("my.toml", "--show", "2")
    assert few.code == 2
    assert [line for line in few.lines if line.startswith("pairs.tsv:")] == expected[:2]
    assert f"… and {len(FAULTS) - 2} more faulty lines" in few.lines
    skipping = check("my.toml", "data.faults=skip")
    assert skipping.code == 0, skipping.err
    assert skipping.lines[-1].startswith("the run can start")  # 10,000 steps are many for so few pairs
    assert expected[0] in skipping.lines


def test_the_trial_cycle_takes_words_however_rare_they_are(here: Path) -> None:
    rows = [(f"w{number % 60} w{number % 59}", f"v{number % 60}") for number in range(3000)]
    write_rows(here / "pairs.tsv", rows)
    words = '{kind = "words", min_count=40}'
    said = check("pairs.tsv", f"tokenizer.source={words}", f"tokenizer.target={words}")
    assert said.code == 0, said.err
    assert said.lines[-1] == "all is well"


def test_settings_of_another_kind_are_not_lost_in_silence(here: Path) -> None:
    write_rows(here / "pairs.tsv", pairs())
    lines = ["[data]", 'train = "pairs.tsv"', "[model.encoder]", 'kind = "recurrent"', "width = 16", "embedding = 8"]
    (here / "my.toml").write_text("\n".join(lines))
    said = check("my.toml", "model.encoder.kind=transformer")
    assert said.code == 0, said.err
    lost = "model.encoder.embedding, settings of another kind of model.encoder"
    assert f"left out of my.toml: {lost}" in said.lines[0]


def test_a_file_alone_is_told_every_fault_too(here: Path) -> None:
    write_rows(here / "pairs.tsv", [*pairs(), ("abc",), ("", "b"), ("bcd",), ("cde",), ("def",)])
    said = check("pairs.tsv")
    assert said.code == 2
    count = len(pairs())
    assert [line.split(":")[1] for line in said.lines if line.startswith("pairs.tsv:")] == [
        str(count + number) for number in range(1, 6)
    ]
    assert said.err.splitlines()[-1].startswith("dragoman: 5 lines cannot be used; correct them, or leave")
    assert check("pairs.tsv", "data.faults=stop").err.startswith(f"dragoman: pairs.tsv:{count + 1}: found 1 column")
    assert check("pairs.tsv", "data={train='pairs.tsv', faults='skip'}").lines[-1] == "all is well"


def test_validation_lines_are_checked_and_may_have_several_references(here: Path) -> None:
    write_rows(here / "pairs.tsv", pairs())
    write_rows(here / "valid.tsv", [("abc", "a", "b"), ("bcd",)])
    said = checked_lines(built("pairs.tsv", "data.valid=valid.tsv"))
    assert "valid.tsv:2: found 1 column, expected 2 or more with a tab between them" in said[0]
    assert not any(line.startswith(("pairs.tsv:", "valid.tsv:1")) for line in said[0])
    assert isinstance(said[1], DataError)


def checked_lines(config: Config) -> tuple[list[str], DragomanError | None]:
    said: list[str] = []
    try:
        checking.check(config, said.append, CheckOptions(), lambda what, count: None, None)
    except DragomanError as error:
        return said, error
    return said, None


# ---------------------------------------------------------------------- lengths


def test_lengths_and_epochs_are_counted(here: Path) -> None:
    write_rows(here / "pairs.tsv", [("a" * size, "b" * size) for size in range(1, 101)])
    said, error = checked_lines(built("pairs.tsv", "data.max_length=80", "train.batch_tokens=300", "train.steps=70"))
    assert error is None
    store = prepare_corpus(built("pairs.tsv", "data.max_length=80").data, built().tokenizer).train
    longest = int(store.source.lengths().max())
    assert 70 < longest <= 80
    assert any(f"longest {longest} tokens; vocabulary 6" in line for line in said)
    assert any("pairs longer than data.max_length = 80 are left out" in line for line in said)
    epoch = BatchPlan(store, 300, 1).epoch(0)
    assert f"batches: {len(epoch)} an epoch" in " ".join(said)
    assert f"train.steps = 70 is {70 / len(epoch):.1f} epochs" in " ".join(said)


def test_the_batches_looked_at_are_no_wider_than_those_of_training(here: Path) -> None:
    """A row as long as a model reads at most is no longer when its length is rounded up."""
    write_rows(here / "pairs.tsv", [("a" * size, "b" * size) for size in range(1, 67)])
    chosen = built("pairs.tsv", "train.batch_tokens=300")
    corpus = prepare_corpus(chosen.data, chosen.tokenizer)
    plan = BatchPlan(corpus.train, 300, chosen.train.seed)
    epoch = plan.epoch(0)
    batches = [read_batch(corpus.train, epoch[number], plan) for number in range(len(epoch))]
    widths = {(len(batch.source), batch.source.data.shape[1], batch.target.shape[1]) for batch in batches}
    assert checking.check_lengths(chosen, corpus, lambda line: None) == widths
    write_rows(here / "same.tsv", [("a" * 60 + letter, letter) for letter in "abcdefghij" * 4])
    positions = {"kind": "learned", "max_positions": 62}
    encoder = {"kind": "transformer", "positions": positions, "width": 8, "heads": 2, "layers": 1}
    decoder = {"kind": "transformer", "width": 8, "heads": 2, "layers": 1}
    said, error = checked_lines(
        built("same.tsv", "data.max_length=61", "train.batch_tokens=256", encoder=encoder, decoder=decoder)
    )
    assert error is None, said


# ---------------------------------------------------------------------- memory

RECURRENT = {
    "encoder": {"kind": "recurrent", "layers": 2, "embedding": 24, "width": 32},
    "decoder": {
        "kind": "recurrent",
        "layers": 1,
        "embedding": 24,
        "width": 32,
        "attention": {"kind": "additive", "width": 16},
    },
}
TRANSFORMER = {
    side: {"kind": "transformer", "layers": 2, "width": 32, "heads": 4, "feedforward": 96}
    for side in ("encoder", "decoder")
}


def measured(config: Config) -> int:
    """Bytes the largest real batch of the corpus keeps for its backward pass."""
    corpus = prepare_corpus(config.data, config.tokenizer)
    torch.manual_seed(0)
    model = build_model(config, len(corpus.source_tokenizer), len(corpus.target_tokenizer)).train()
    own = {part.untyped_storage().data_ptr() for part in (*model.parameters(), *model.buffers())}
    plan = BatchPlan(corpus.train, config.train.batch_tokens, config.train.seed)
    largest = 0
    for epoch in (plan.epoch(0), plan.epoch(1)):
        for number in range(len(epoch)):
            kept: dict[int, int] = {}

            def keep(tensor: torch.Tensor, kept: dict[int, int] = kept) -> torch.Tensor:
                storage = tensor.untyped_storage()
                if storage.data_ptr() not in own:
                    kept[storage.data_ptr()] = storage.nbytes()
                return tensor

            with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
                loss = model(read_batch(corpus.train, epoch[number], plan))
            largest = max(largest, sum(kept.values()))
            del loss
    return largest


@pytest.mark.parametrize(
    ("rows", "model"),
    [
        (pairs(300, **LENGTHS), TRANSFORMER),
        (pairs(300, **LENGTHS), RECURRENT),
        # One long source among short ones: the batch with most cells is not the one with the longest row.
        ([*pairs(400), ("abcdefghij" * 20, "a")], TRANSFORMER),
        # Fewer pairs than a batch could hold.
        (pairs(12), TRANSFORMER),
    ],
    ids=["transformer", "recurrent", "an outlier", "few pairs"],
)
def test_memory_is_what_the_largest_batch_takes(here: Path, rows: list[tuple[str, ...]], model: dict[str, Any]) -> None:
    write_rows(here / "pairs.tsv", rows)
    chosen = built("pairs.tsv", "train.batch_tokens=900", **model)
    corpus = prepare_corpus(chosen.data, chosen.tokenizer)
    said: list[str] = []
    shapes = checking.check_lengths(chosen, corpus, said.append)
    sizes = len(corpus.source_tokenizer), len(corpus.target_tokenizer)
    memory = {shape: estimates.batch_memory(build_model(chosen, *sizes).train(), shape) for shape in shapes}
    assert max(memory.values()) == pytest.approx(measured(chosen), rel=0.3)
    estimates.check_memory(chosen, corpus, shapes, torch.device("cpu"), said.append)
    found = re.search(r"the largest batch \((\d+) rows of (\d+) and (\d+) tokens\)", said[-1])
    assert found
    assert memory[int(found[1]), int(found[2]), int(found[3])] == max(memory.values())


def test_memory_counts_weights_gradients_moments_and_average(here: Path) -> None:
    write_rows(here / "pairs.tsv", pairs(12))
    wide = {"kind": "transformer", "layers": 1, "width": 512, "heads": 1, "feedforward": 2048}
    for average, copies in (("none", 4), ("ema", 5)):
        chosen = built("pairs.tsv", f"train.average.kind={average}", encoder=wide, decoder=wide)
        corpus = prepare_corpus(chosen.data, chosen.tokenizer)
        said: list[str] = []
        shapes = checking.check_lengths(chosen, corpus, said.append)
        estimates.check_memory(chosen, corpus, shapes, torch.device("cpu"), said.append)
        found = re.search(
            r"memory: ([\d,]+) parameters; .* needs about ([\d.]+) GiB of [\d.]+ GiB free on cpu", said[-1]
        )
        assert found
        parameters = int(found[1].replace(",", ""))
        assert parameters > 7_000_000
        least = parameters * 4 * copies + measured(chosen)
        assert float(found[2]) * 2**30 == pytest.approx(least, abs=0.006 * 2**30)


def test_a_batch_that_does_not_fit_is_refused(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_rows(here / "pairs.tsv", pairs(300, **LENGTHS))
    monkeypatch.setattr(estimates, "available_memory", lambda device: 4 * 2**20)
    said, error = checked_lines(built("pairs.tsv", "train.batch_tokens=8000"))
    assert any(line.startswith("memory: ") for line in said)
    assert not any(line.startswith("cycle: ") for line in said)
    assert "the largest batch needs about" in str(error)
    assert "lower train.batch_tokens (now 8000) or data.max_length" in str(error)
    _, error = checked_lines(built("pairs.tsv", "train.batch_tokens=60"))
    assert error is None


def test_free_memory_is_what_this_process_may_use() -> None:
    free = estimates.available_memory(torch.device("cpu"))
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 2**27 < free < total


# ---------------------------------------------------------------------- the cycle


def test_the_cycle_leaves_nothing_but_the_token_store(here: Path) -> None:
    write_rows(here / "pairs.tsv", pairs())
    before = sorted(path for path in here.rglob("*"))
    said = check("pairs.tsv")
    assert said.code == 0, said.err
    assert said.lines[-2:] == ["cycle: trained 2 steps, validated, saved, reloaded and decoded", "all is well"]
    assert said.lines[0].startswith("source and target: one vocabulary of characters, because")
    after = [path for path in here.rglob("*") if "cache" not in path.relative_to(here).parts]
    assert sorted(after) == before


def test_a_cycle_that_breaks_is_found(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_rows(here / "pairs.tsv", pairs())

    def forgetful(config: Config, folder: Path, *rest: Any) -> Any:
        progress = train(config, folder, *rest)
        (folder / "weights.safetensors").write_bytes(b"")
        return progress

    monkeypatch.setattr(checking, "train", forgetful)
    said, error = checked_lines(built())
    assert isinstance(error, RunError)
    assert "weights.safetensors: damaged" in str(error)
    assert "all is well" not in said
    assert list((here / "temporary").iterdir()) == []


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["train.device=cuda"], "device: found 'cuda', but no GPU"),
        (["train.precision=bfloat16"], "train.precision: found bfloat16 on device 'cpu', expected float32 or auto"),
        (["data.max_length=1"], "no pair is left for the train part"),
        (
            ["model.encoder.positions.kind=learned", "model.encoder.positions.max_positions=3"],
            "52 longer than data.max_length = 2 tokens",
        ),
        (["train.stesp=3"], "train.stesp: no such setting. Did you mean 'train.steps'?"),
    ],
)
def test_what_would_fail_later_fails_now(here: Path, overrides: list[str], expected: str) -> None:
    write_rows(here / "pairs.tsv", pairs(shortest=3))
    said = check("pairs.tsv", *overrides)
    assert said.code == 2
    assert said.err.count("\n") == 1
    assert expected in said.err
    assert "all is well" not in said.out


REFUSED = [
    ["train.vectors.source=none.vec"],
    ["train.vectors.source=narrow.vec"],
    ["train.vectors.target=broken.vec"],
    ["train.vectors.source=other.vec"],
    ["train.start_from=none"],
    ["train.start_from={run='trained', parts=['encodr']}", "tokenizer.source={kind='run', run='trained'}"],
    ["train.objective={kind='token-distillation', teachers=['none']}"],
    ["train.objective={kind='token-distillation', teachers=['trained']}", "data.max_length=50"],
    ["train.freeze=['encodr']"],
    ["train.freeze=['*']"],
    ["train.rates=[{names='encodr', factor=2.0}]"],
    ["train.rates=[{names='encoder', factor=2.0}]", "train.freeze=['encoder']"],
    ["train.lora={rank=2}"],
    ["train.lora={rank=2, modules=['encodr']}", "train.start_from=trained"],
    ["data.general=none.tsv"],
    ["data.valid=none.tsv"],
    ["data.valid=empty.tsv"],
    ["data.max_length=1"],
    ["train.precision=bfloat16"],
    ["train.shard=on"],
    ["train.device=cuda"],
    ["model.encoder.positions.kind=learned", "model.encoder.positions.max_positions=3"],
    ["tokenizer.source={kind='run', run='none'}"],
]


@pytest.mark.parametrize("overrides", REFUSED, ids=" ".join)
def test_check_refuses_what_training_refuses_with_the_same_line(here: Path, overrides: list[str]) -> None:
    write_rows(here / "pairs.tsv", pairs(shortest=3))
    letters = "abcdefghij"
    (here / "narrow.vec").write_text("".join(f"{letter} 1 2 3\n" for letter in letters))
    (here / "broken.vec").write_text("a 1 2 3\nb 1 x 3\n")
    (here / "other.vec").write_text("ж" + " 1" * 32 + "\n")
    (here / "empty.tsv").write_text("")
    if "trained" in str(overrides):
        write_rows(here / "others.tsv", [("xyz" * (number % 5 + 1), "uvw" * (number % 7 + 1)) for number in range(60)])
        trained = call("train", "others.tsv", "--run", "trained", "train.steps=2", "train.validate_every=2", *SMALL)
        assert trained.code == 0, trained.err
    refused = call("train", "pairs.tsv", "--run", "run", *SMALL, *overrides)
    assert refused.code == 2, refused.err
    assert not (here / "run").exists()
    said = call("check", "pairs.tsv", *SMALL, *overrides)
    assert (said.code, said.err.splitlines()[-1]) == (2, refused.err.splitlines()[-1])
    assert "all is well" not in said.out


@pytest.mark.parametrize("overrides", [["model.decoder.width=64", "model.tie=none"], ["data.holdout=7"]], ids=" ".join)
def test_check_of_a_run_refuses_what_cannot_be_resumed(here: Path, overrides: list[str]) -> None:
    write_rows(here / "pairs.tsv", pairs(shortest=3))
    assert call("train", "pairs.tsv", "--run", "run", "train.steps=2", "train.validate_every=2", *SMALL).code == 0
    refused, said = call("train", "run", *overrides), call("check", "run", *overrides)
    assert refused.code == 2
    assert (said.code, said.err.splitlines()[-1]) == (2, refused.err.splitlines()[-1])
    write_rows(here / "pairs.tsv", pairs(70, shortest=3))
    refused, said = call("train", "run"), call("check", "run")
    assert (said.code, said.err.splitlines()[-1]) == (refused.code, refused.err.splitlines()[-1]) == (2, said.err[:-1])
