"""Language models from a text to perplexities and completions, by the command line, in seconds."""

from __future__ import annotations

import gzip
import json
import math
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import dragoman
from dragoman.base import config as settings
from dragoman.base.errors import ConfigError, DataError, Interrupted
from dragoman.data.tokenizers.base import EOS, UNK
from dragoman.decoding.sampling import Sampling
from dragoman.inference.completer import Completer
from dragoman.inference.load import load_completer
from dragoman.runs import train
from dragoman.runs.tasks.config import Config, build
from dragoman.training.checkpoints import Checkpoints, read_tensors
from dragoman.training.display import Display
from tests.conftest import call, quiet_machine
from tests.processes import two_processes


def some_text(lines: int, seed: int) -> str:
    """Sentences whose next word is easily told, with empty lines between them."""
    draw = random.Random(seed)
    written = []
    for _ in range(lines):
        name = draw.choice(("anna", "otto", "bob"))
        written.append(draw.choice(("", f"{name} sees {name}", f"the cat of {name} sleeps", "a dog runs and runs")))
    return "".join(f"{line}\n" for line in written)


SMALL = {"layers": 1, "width": 24, "heads": 2, "feedforward": 32, "dropout": 0.1}
CASES: dict[str, dict[str, Any]] = {
    "lstm": {
        "tokenizer": {"source": {"kind": "words", "split": "spaces"}},
        "model": {
            "segment": 9, "embedding_dropout": 0.1, "output_dropout": 0.1, "activation_penalty": 1.0,
            "change_penalty": 0.5,
            "stack": {
                "kind": "recurrent", "layers": 2, "embedding": 16, "width": 24, "weight_dropout": 0.2,
                "input_dropout": 0.1, "dropout": 0.1,
            },
        },
    },
    "memory": {
        "tokenizer": {"source": {"kind": "subwords", "vocab_size": 290}},
        "model": {"segment": 16, "memory": 16, "stack": {"kind": "transformer", "positions": "rotary", **SMALL}},
    },
    "characters": {
        "tokenizer": {"source": {"kind": "characters"}},
        "model": {
            "segment": 24,
            "stack": {"kind": "transformer", "positions": {"kind": "learned", "max_positions": 30}, **SMALL},
        },
    },
}  # fmt: skip


def table(name: str, folder: Path, **train: Any) -> dict[str, Any]:
    case = {"task": "language-model", "data": {"train": str(folder / "text.txt"), "holdout": 60}, **CASES[name]}
    quick = {
        "steps": 60, "validate_every": 30, "save_every": 10, "log_every": 10, "batch_tokens": 200, "average": "ema",
        "device": "cpu",
        "optimizer": {"learning_rate": 2e-2, "warmup": 5},
    }  # fmt: skip
    return settings.merge(case, {"train": quick | train})


def written(name: str, folder: Path) -> Config:
    config = build(table(name, folder))
    (folder / f"{name}.toml").write_text(settings.dump(config), encoding="utf-8")
    return config


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Every case trained once."""
    place = tmp_path_factory.mktemp("language-models")
    (place / "text.txt").write_text(some_text(700, 1), encoding="utf-8")
    (place / "test.txt").write_text(some_text(90, 2), encoding="utf-8")
    with quiet_machine(place / "cache"):
        for name in CASES:
            written(name, place)
            result = call("train", place / f"{name}.toml", "--run", place / name)
            assert result.code == 0, result.err
            assert f"dragoman complete {place / name} PROMPT" in result.err + result.out
        yield place


@pytest.fixture(params=CASES, ids=list(CASES))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def numbers(*arguments: str | Path) -> dict[str, Any]:
    result = call(*arguments, "--json", "--device", "cpu")
    assert result.code == 0, result.err
    found: dict[str, Any] = json.loads(result.out)
    return found


def validations(run: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [row["valid"] for row in rows if "valid" in row]


# --- training


def test_training_learns_the_text(folder: Path, name: str) -> None:
    found = numbers("evaluate", folder / name, folder / "test.txt")
    vocabulary = len(load_completer(folder / name, "cpu").tokenizer)
    assert found["loss"] < 0.6 * math.log(vocabulary)  # guessing would have the logarithm
    losses = [row["loss"] for row in validations(folder / name)]
    assert losses[-1] < losses[0]


def test_a_stopped_run_goes_on_to_the_same_bits(folder: Path, name: str, tmp_path: Path) -> None:
    config = build(table(name, folder))

    class Stop(Display):
        def advance(self, step: int) -> None:
            if step == 43:
                raise Interrupted(130, step)

    with quiet_machine(folder / "cache"):
        with pytest.raises(Interrupted):
            train(config, tmp_path / "run", Stop(quiet=True))
        assert Checkpoints(tmp_path / "run").steps()[-1] == 40
        carried = tmp_path / "run/checkpoints/00000040/bptt_state.safetensors"
        assert carried.exists() == (name != "characters")  # which carries nothing over
        if carried.exists():
            assert all(bool(part.abs().sum() > 0) for part in read_tensors(carried).values())
        train(config, tmp_path / "run", Display(quiet=True))
    for file in ("weights.safetensors", "checkpoints/00000060/weights.safetensors"):
        assert (tmp_path / "run" / file).read_bytes() == (folder / name / file).read_bytes()


def test_what_is_carried_matters_for_going_on(folder: Path, tmp_path: Path) -> None:
    """The test above could fail: a run whose carried state was lost ends with other weights."""
    config = build(table("lstm", folder))
    shutil.copytree(folder / "lstm", tmp_path / "run")
    shutil.rmtree(tmp_path / "run/checkpoints/00000060")
    place = tmp_path / "run/checkpoints/00000050"
    from safetensors.torch import save_file

    from dragoman.base.files import digest
    from dragoman.training.checkpoints import checksum

    lost = {key: torch.zeros_like(part) for key, part in read_tensors(place / "bptt_state.safetensors").items()}
    save_file(lost, place / "bptt_state.safetensors")
    progress = json.loads((place / "state.json").read_text())
    del progress["checksum"]
    progress["files"]["bptt_state.safetensors"] = digest(place / "bptt_state.safetensors")
    (place / "state.json").write_text(json.dumps(progress | {"checksum": checksum(progress)}))
    with quiet_machine(folder / "cache"):
        train(config, tmp_path / "run", Display(quiet=True))
    file = "checkpoints/00000060/weights.safetensors"
    assert (tmp_path / "run" / file).read_bytes() != (folder / "lstm" / file).read_bytes()


def test_accumulating_and_two_processes_read_the_same_text(folder: Path, tmp_path: Path) -> None:
    """Groups of streams of one step: one process takes all, or two share them; the checkpoint knows all groups."""
    alone = build(table("lstm", folder, batch_tokens=90, accumulate=2, steps=12, save_every=6, validate_every=12))
    shared = build(table("lstm", folder, batch_tokens=90, accumulate=1, steps=12, save_every=6, validate_every=12))
    with quiet_machine(folder / "cache"):
        train(alone, tmp_path / "alone", Display(quiet=True))
    (tmp_path / "shared.toml").write_text(settings.dump(shared), encoding="utf-8")
    command = ["train", tmp_path / "shared.toml", "--quiet", "--run-folder", tmp_path / "shared"]
    for code, result in two_processes(command, {"DRAGOMAN_CACHE": str(folder / "cache"), "TMPDIR": str(tmp_path)}):
        assert code == 0, result
    place = "checkpoints/00000012"
    for file in ("weights", "bptt_state"):
        mine, theirs = (read_tensors(tmp_path / run / place / f"{file}.safetensors") for run in ("alone", "shared"))
        assert mine.keys() == theirs.keys()
        for part in mine:
            torch.testing.assert_close(theirs[part], mine[part], rtol=1e-4, atol=1e-5)


@pytest.mark.gpu
def test_captured_steps_carry_the_same_state(folder: Path, name: str, tmp_path: Path) -> None:
    places = []
    for way in ("off", "graphs"):
        config = build(table(name, folder, device="cuda", precision="float32", compile=way))
        with quiet_machine(folder / "cache"):
            train(config, tmp_path / way, Display(quiet=True))
        places.append(tmp_path / way / "checkpoints/00000060")
    for file in ("weights.safetensors", "bptt_state.safetensors"):
        if (places[0] / file).exists():
            plain, captured = (read_tensors(place / file) for place in places)
            for part in plain:
                torch.testing.assert_close(captured[part], plain[part], rtol=1e-3, atol=1e-4)


# --- evaluation


def brute_force(completer: Completer, lines: list[str], context: int | None) -> float:
    """Nats of a text: every token from the tokens before it, read from the beginning or in windows of `context`."""
    tokens = [EOS]
    for line in lines:
        tokens += [*completer.tokenizer.encode(line), EOS]
    total = 0.0
    with torch.no_grad():
        for begin in range(0, len(tokens) - 1, context or len(tokens)):
            part = tokens[begin : begin + (context or len(tokens)) + 1]
            stack = completer.model.stack
            hidden, _ = stack(torch.tensor([part[:-1]]), stack.start(1))
            scores = completer.model.output(hidden)[0].double().log_softmax(-1)
            total -= sum(float(scores[place, token]) for place, token in enumerate(part[1:]))
    return total


@pytest.mark.parametrize(("name", "context"), [("lstm", None), ("characters", 24)])
def test_perplexities_are_those_of_a_plain_loop(folder: Path, name: str, context: int | None) -> None:
    lines = (folder / "test.txt").read_text().split("\n")[:-1]
    completer = load_completer(folder / name, "cpu")
    nats = brute_force(completer, lines, context)
    found = numbers("evaluate", folder / name, folder / "test.txt")
    words = sum(len(line.split()) + 1 for line in lines)
    characters = sum(len(line) + 1 for line in lines)
    assert (found["words"], found["characters"], found["lines"]) == (words, characters, len(lines))
    assert found["word_perplexity"] == pytest.approx(math.exp(nats / words), rel=1e-5)
    assert found["perplexity"] == pytest.approx(math.exp(nats / found["tokens"]), rel=1e-5)
    assert found["character_nats"] == pytest.approx(nats / characters, rel=1e-5)
    assert found["character_perplexity"] == pytest.approx(math.exp(nats / characters), rel=1e-5)
    assert found["unknown"] == 0


def test_dynamic_evaluation_goes_on_learning(folder: Path) -> None:
    asked = ("evaluation.dynamic=true", "evaluation.dynamic_segment=10")
    still = numbers("evaluate", folder / "lstm", folder / "test.txt", *asked, "evaluation.dynamic_rate=0")
    found = numbers("evaluate", folder / "lstm", folder / "test.txt", *asked, "evaluation.dynamic_rate=0.001")
    assert still["loss"] == pytest.approx(numbers("evaluate", folder / "lstm", folder / "test.txt")["loss"], rel=1e-4)
    assert found["loss"] < still["loss"] - 1e-3
    assert found["tokens"] == still["tokens"]
    assert call("evaluate", folder / "lstm", folder / "test.txt", "evaluation.dynamic_rate=0.1").code == 2


def test_scores_do_not_depend_on_the_batch(folder: Path, name: str) -> None:
    text = folder / "long.txt"
    text.write_text(some_text(1000, 5), encoding="utf-8")
    found = [numbers("evaluate", folder / name, text, "--batch-size", size) for size in ("1", "64")]
    assert found[1]["loss"] == pytest.approx(found[0]["loss"], rel=1e-5)
    assert found[1]["token_accuracy"] == pytest.approx(found[0]["token_accuracy"], abs=1e-4)


def test_cutting_a_long_text_costs_next_to_nothing(folder: Path) -> None:
    """Streams begin with text of the stream before, so the score is that of one long reading."""
    text = folder / "long.txt"
    text.write_text(some_text(1000, 5), encoding="utf-8")
    nats = brute_force(load_completer(folder / "lstm", "cpu"), text.read_text().split("\n")[:-1], None)
    found = numbers("evaluate", folder / "lstm", text)
    assert found["loss"] == pytest.approx(nats / found["tokens"], rel=1e-3)


def test_unknown_words_are_counted(folder: Path) -> None:
    (folder / "strange.txt").write_text("the cat of zebra sleeps\n\nxyzzy\n", encoding="utf-8")
    result = call("evaluate", folder / "lstm", folder / "strange.txt")
    assert "unknown" in result.out
    assert "not comparable" in result.out
    assert numbers("evaluate", folder / "lstm", folder / "strange.txt")["unknown"] == 2
    assert numbers("evaluate", folder / "memory", folder / "strange.txt")["unknown"] == 0  # spelt in bytes


def test_validation_scores_are_those_of_evaluate(folder: Path, name: str) -> None:
    lines = (folder / "text.txt").read_text().split("\n")[:-1]
    (folder / "last.txt").write_text("".join(f"{line}\n" for line in lines[-60:]))  # what data.holdout set aside
    best = min(validations(folder / name), key=lambda valid: valid["loss"])
    found = numbers("evaluate", folder / name, folder / "last.txt")
    for score, value in best.items():
        assert found[score] == pytest.approx(value, rel=1e-4)


# --- completions


def test_greedy_completions_take_the_likeliest_token_again_and_again(folder: Path, name: str) -> None:
    completer = load_completer(folder / name, "cpu")
    prompts = ["the cat", "", "anna sees anna\na dog"]
    found = completer.complete(prompts, max_length=9)
    for prompt, (one,) in zip(prompts, found, strict=True):
        tokens = [EOS, *completer.encode(prompt, "prompt")]
        begin = len(tokens)
        with torch.no_grad():
            for _ in range(9):
                hidden, _ = completer.model.stack(torch.tensor([tokens]), completer.model.stack.start(1))
                scores = completer.model.output(hidden)[0, -1].log_softmax(-1)
                scores[:3] = -math.inf  # <pad>, <unk> and <sos> are never written
                tokens.append(int(scores.argmax()))
        assert one.text == completer.decode(tokens[1:])
        assert one.tokens == tuple(completer.tokenizer.pieces(tokens[begin:]))
        assert one.text.startswith(prompt)


def test_samples_follow_from_prompt_and_seed(folder: Path, name: str) -> None:
    run = folder / name
    chance = ("--sample", "method.temperature=1.3", "--samples", "3", "--max-length", "8", "--json", "--device", "cpu")
    result = call("complete", run, "the cat", "anna", *chance)
    assert result.code == 0, result.err
    again = call("complete", run, "anna", "the cat", *chance, "--batch-size", "2")
    other = call("complete", run, "the cat", "anna", *chance, "--seed", "1")
    first, second, third = (
        [json.loads(line)["text"] for line in one.out.splitlines()] for one in (result, again, other)
    )
    assert len(first) == 6
    assert first == second[3:] + second[:3]
    assert first != third
    sampling = Sampling(temperature=1.3)
    found = load_completer(run, "cpu").complete(["the cat"], max_length=8, sampling=sampling, samples=3)
    assert [one.text for one in found[0]] == first[:3]


def test_prompts_come_as_arguments_files_or_lines(folder: Path) -> None:
    run = folder / "characters"
    result = call("complete", run, "the", "a", "--max-length", "6", "--one-line")
    (folder / "prompts.txt").write_text("the\na\n")
    assert call("complete", run, "--file", folder / "prompts.txt", "--max-length", "6", "--one-line").out == result.out
    assert call("complete", run, "--max-length", "6", "--one-line", stdin=b"the\na\n").out == result.out
    assert len(result.out.splitlines()) == 2
    whole = call("complete", run, "the", "a", "--max-length", "6")
    assert "\n\na" in whole.out
    assert call("complete", run, "--file", "-", "--max-length", "6", stdin=b"the\na\n").out == whole.out
    lines = b'{"source": "the"}\n"a"\n'  # as predict reads them
    for name, content in (("a.jsonl", lines), ("a.ndjson", lines), ("a.jsonl.gz", gzip.compress(lines))):
        (folder / name).write_bytes(content)
        assert call("complete", run, "--file", folder / name, "--max-length", "6").out == whole.out
    completer = load_completer(run, "cpu")
    one_by_one = completer.complete(["the", "a"], max_length=6)
    for prompts in (folder / "a.jsonl", folder / "prompts.txt", [{"source": "the"}, {"source": "a"}]):
        assert completer.complete(prompts, max_length=6) == one_by_one
    (folder / "a.jsonl").write_text('{"source": "anna\\nthe"}\n')  # a prompt of two lines, which no plain file can have
    assert call("complete", run, "--file", folder / "a.jsonl").out == call("complete", run, "anna\nthe").out


def test_a_line_ends_where_it_ends(folder: Path) -> None:
    found = load_completer(folder / "lstm", "cpu").complete(["the cat of anna sleeps"], max_length=12, one_line=True)
    assert found[0][0].ended
    assert found[0][0].text == "the cat of anna sleeps"
    assert found[0][0].tokens == ("<eos>",)


# --- what goes wrong

REFUSED = [
    (["predict", "lstm"], "dragoman complete"),
    (["evaluate", "lstm", "empty.txt"], "empty.txt: nothing to evaluate: no line was read"),
    (["evaluate", "lstm", "tst.txt"], "Did you mean 'test.txt'?"),
    (["evaluate", "lstm", "bad.txt"], "bad.txt:2: found byte 0xff"),
    (["evaluate", "lstm", "test.txt", "--beam", "3"], "--beam has no meaning for a text"),
    (["evaluate", "lstm", "test.txt", "--metric", "bleu"], "--metric has no meaning for a text"),
    (["evaluate", "lstm", "--source", "test.txt", "--target", "test.txt"], "--source has no meaning for a text"),
    (["complete", "characters", "the žat"], "prompt 1: found 'ž', which is not in the vocabulary of"),
    (["complete", "lstm", "the cat", "the zebra"], "prompt 2: found 'zebra', which is not in the vocabulary"),
    (["complete", "lstm", "--file", "nothing.txt"], "nothing.txt: no such file"),
    (["complete", "lstm", "--file", "empty.txt"], "found no line, expected prompts"),
    (["complete", "lstm", "--file", "pairs.jsonl"], "pairs.jsonl:1: found the field 'target', expected"),
    (["complete", "lstm", "--file", "bad.jsonl"], "bad.jsonl:2: found no JSON"),
    (["complete", "lstm", "--file", "x.parquet"], "x.parquet: cannot be read as Parquet"),
    (["complete", "lstm", "the", "--file", "test.txt"], "expected one of them"),
    (["complete", "lstm", "the", "method.top_k=3"], "method.top_k needs method=sampling"),
    (["complete", "lstm", "the", "--samples", "3"], "--samples: needs --sample"),
    (["complete", "characters", "the", "--max-length", "50"], "expected at most 30 together"),
    (["complete", "lstn", "the"], "Did you mean"),
    (["attention", "lstm", "the"], "this run is a language model; use `dragoman complete`"),
    (["calibrate", "lstm"], "this run is a language model; use `dragoman complete`"),
    (["train", "empty.toml"], "empty.txt: no usable line found"),
    (["train", "empty.toml", "data.train=blank.txt", "tokenizer.source.kind=words"], "blank.txt: no text to learn wo"),
    (["train", "lstm.toml", "data.train=nothing.txt", "--run", "x"], "nothing.txt: no such file"),
    (["train", "lstm.toml", "data.train=one.txt", "--run", "x"], "one.txt: lines: found 1, expected 2 or more"),
    (["train", "lstm.toml", "data.train=pairs.jsonl", "--run", "x"], "expected plain text for a language model"),
    (["train", "lstm.toml", "train.batch_tokens=8", "--run", "x"], "expected at least model.segment = 9"),
    (["train", "lstm.toml", "train.batch_tokens=900000", "--run", "x"], "too few for 100,000 streams"),
    (["train", "lstm.toml", "data.max_length=9", "--run", "x"], "data.max_length: has no meaning"),
    (["train", "lstm.toml", "search.beam=9", "--run", "x"], "search: has no meaning"),
    (["train", "lstm.toml", "train.metric=bleu", "--run", "x"], 'task = "language-model" has loss'),
    (["train", "lstm.toml", "tokenizer.target.kind=words", "--run", "x"], "tokenizer.target: found 'words'"),
    (["train", "lstm.toml", "train.accumulate=2", "--run", "lstm"], "a step was 1 batch"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "message"), REFUSED)
def test_mistakes_are_told_in_one_line(
    folder: Path, arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    Path("empty.txt").write_text("")
    Path("blank.txt").write_text("\n\n\n")
    Path("one.txt").write_text("a line\n")
    Path("pairs.jsonl").write_text('{"source": "a", "target": "b"}\n')
    Path("bad.jsonl").write_text('"a"\nthe cat\n')
    Path("x.parquet").write_text("PAR1\n")
    Path("bad.txt").write_bytes(b"good\nb\xffd\n")
    Path("empty.toml").write_text('task = "language-model"\n[data]\ntrain = "empty.txt"\n')
    with quiet_machine(folder / "cache"):
        result = call(*arguments)
    assert result.code != 0
    assert message in result.err
    assert result.err.strip().splitlines()[-1].startswith("dragoman: ")
    assert result.err.count("dragoman: ") == 1
    assert not Path("x").exists()


def test_python_callers_are_told_too(folder: Path) -> None:
    completer = dragoman.load(folder / "lstm")
    assert isinstance(completer, Completer)
    with pytest.raises(TypeError, match="a list of prompts"):
        completer.complete("the")
    with pytest.raises(TypeError, match="the lines of a text"):
        completer.evaluate("test.txt")
    with pytest.raises(TypeError, match="a list of texts"):
        completer.rate("the cat")
    with pytest.raises(ConfigError, match="samples: found 2"):
        completer.complete(["the"], samples=2)
    with pytest.raises(ConfigError, match="temperature"):
        completer.complete(["the"], sampling=Sampling(temperature=-1.0))
    with pytest.raises(DataError, match="prompt 1: found 'zebra'"):
        completer.complete(["zebra"])
    assert UNK in completer.encode("the zebra", "prompt 1", allow_unknown=True)
    found = completer.complete(["the zebra"], allow_unknown=True, max_length=2)[0][0]
    assert found.text.split()[:2] == ["the", "zebra"]
    assert len(found.text) > len("the zebra")


# --- the other commands


def test_check_info_and_automatic_settings(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with quiet_machine(folder / "cache"):
        for name in CASES:
            result = call("check", folder / f"{name}.toml")
            assert result.code == 0, result.err
            assert "completed a text" in result.out
        with gzip.open("text.txt.gz", "wt") as file:
            file.write((folder / "text.txt").read_text())
        result = call("train", "text.txt.gz", "task=language-model", "train.steps=2", "model.stack.layers=1", "-q")
        assert result.code == 0, result.err
    assert call("complete", "runs/text", "the", "--max-length", "2").code == 0
    result = call("info", folder / "lstm")
    assert result.code == 0, result.err
    assert "640 lines" in result.out
    assert json.loads(call("info", folder / "lstm", "--json").out)["running"]


def test_the_starter_trains(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my.toml").write_text(call("new", "language-model").out, encoding="utf-8")
    shutil.copy(folder / "text.txt", "text.txt")
    with quiet_machine(folder / "cache"):
        small = ("train.steps=2", "train.batch_tokens=256", "tokenizer.source.vocab_size=290")
        result = call("train", "my.toml", *small, "--run", "run", "-q")
    assert result.code == 0, result.err


def test_empty_lines_are_text(folder: Path) -> None:
    """Nothing of a text is left out: its tokens are its words and one <eos> a line, empty ones included."""
    lines = (folder / "text.txt").read_text().split("\n")[:-1]
    counts = json.loads((folder / "lstm/data.json").read_text())
    assert "" in lines
    assert counts["train"]["pairs"] + counts["valid"]["pairs"] == len(lines)
    assert counts["valid"]["pairs"] == 60
    total = counts["train"]["target_tokens"] + counts["valid"]["target_tokens"]
    assert total == sum(len(line.split()) + 1 for line in lines)


def test_inspect_shows_the_surprise_of_every_token(folder: Path, name: str, tmp_path: Path) -> None:
    line = (folder / "test.txt").read_text(encoding="utf-8").splitlines()[0]
    result = call("inspect", folder / name, line, "--output", tmp_path / "numbers.json", "--device", "cpu")
    assert result.code == 0, result.err
    views = {view["kind"]: view["data"] for view in json.loads((tmp_path / "numbers.json").read_text())["views"]}
    assert len(views["surprise"]["bits"]) == len(views["surprise"]["target"]["tokens"])
    assert {"next", "layers"} <= set(views)
