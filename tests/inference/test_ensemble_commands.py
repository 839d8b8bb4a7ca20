"""Every command and option that takes a run, with a run folder that is an ensemble: the whole of it, or a refusal.

A command that computes must use all members alike: `Calls` counts what each of them encodes. A new command must be
added to one of the tables below.
"""

from __future__ import annotations

import contextlib
import json
import math
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from dragoman.base.errors import ConfigError, DragomanError, RunError
from dragoman.commands.root import cli
from dragoman.data.tokenizers.base import EOS, SOS
from dragoman.decoding.constraints.spec import ConstrainedInput
from dragoman.decoding.options import DecodingOptions, RerankModel
from dragoman.decoding.speculative import Draft
from dragoman.exchange.registry import EXPORTERS
from dragoman.inference.load import load_predictor, load_run
from dragoman.inspect.options import InspectOptions
from dragoman.models.encoder_decoder import EncoderDecoder
from dragoman.runs import Run
from dragoman.runs.folder import member_folders, write_members
from dragoman.serving.config import ModelConfig, ServeConfig
from dragoman.serving.models import BatchWork, ServedModel
from tests.conftest import SMALL, CommandResult, call, own_copy, quiet_machine, words, write_rows

TEXTS = ["abc def", "hid", "jab fee cab"]


@dataclass(frozen=True)
class Place:
    """A folder with pairs, an ensemble of three members, and the same with the direction reversed."""

    folder: Path

    @property
    def run(self) -> Path:
        return self.folder / "three"

    @property
    def member(self) -> Path:
        """The member that refusals name."""
        return self.run / "trials" / "second"


def train_ensemble(folder: Path, data: Path, *settings: str) -> Path:
    """A run folder with two more members inside; few steps, so that the members disagree."""
    few = (
        "train.steps=40",
        "train.validate_every=40",
        "train.decode=9",
        "train.optimizer.warmup=9",
        "train.device=cpu",
    )
    more = (*settings, "train.optimizer.learning_rate=2e-2", "train.average.kind=none", *few)
    for seed, path in enumerate((folder, folder / "trials" / "second", folder / "trials" / "third"), 1):
        result = call("train", data, "--run", path, *SMALL, *more, f"train.seed={seed}")
        assert result.code == 0, result.err
    write_members(folder, ["trials/second", "trials/third"])
    return folder


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = own_copy(tmp_path_factory, "ensembles", train_ensembles)
    with quiet_machine(folder / "cache"), contextlib.chdir(folder):
        yield Place(folder)


def train_ensembles(folder: Path) -> None:
    some = words(600, longest=4)
    rows = [(" ".join(some[i : i + 3]), " ".join(some[i : i + 3]).upper()) for i in range(0, 600, 3)]
    with quiet_machine(folder / "cache"), contextlib.chdir(folder):
        write_rows(folder / "pairs.tsv", rows)
        write_rows(folder / "back.tsv", [(target, source) for source, target in rows])
        write_rows(folder / "test.tsv", rows[:24])
        (folder / "in.txt").write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
        (folder / "in.md").write_text("abc *def* hid\n", encoding="utf-8")
        (folder / "suite.toml").write_text('[[case]]\nsource = "abc def"\nmax_ratio = 100\n', encoding="utf-8")
        for name, data in (("three", "pairs.tsv"), ("back", "back.tsv")):
            train_ensemble(folder / name, folder / data)


@pytest.fixture(autouse=True)
def inside(place: Place) -> Iterator[None]:
    with contextlib.chdir(place.folder):
        yield


class Calls:
    """How often each model encoded a batch; models that were trained in the block are left out."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.counts: Counter[int] = Counter()
        self.kept: dict[int, EncoderDecoder] = {}  # a model that is freed would give its id to the next one
        encode = EncoderDecoder.encode

        def counted(model: EncoderDecoder, *arguments: Any, **keywords: Any) -> Any:
            if not model.training:
                self.kept[id(model)] = model
                self.counts[id(model)] += 1
            return encode(model, *arguments, **keywords)

        patch.setattr(EncoderDecoder, "encode", counted)

    def equal(self, models: int = 3) -> bool:
        """Whether all that encoded come in groups of `models` with equal counts: no member was taken for the whole."""
        groups = Counter(self.counts.values())
        return bool(groups) and all(size % models == 0 for size in groups.values())


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    return Calls(monkeypatch)


# What every command does with a run folder that is an ensemble. A name without a table entry fails the first test.
WHOLE: dict[str, Callable[[Place], CommandResult]] = {
    "predict": lambda place: call("predict", place.run, "in.txt", "--json"),
    "evaluate": lambda place: call("evaluate", place.run, "test.tsv", "--json"),
    "translate": lambda place: call("translate", place.run, "in.md", "-o", "out.md"),
    "back-translate": lambda place: call("back-translate", place.run, "in.txt", "--output", "made.tsv"),
    "compare": lambda place: call(
        "compare", place.run, place.folder / "back", "--test", "test.tsv", "--output", "report.json", "--draws", "10"
    ),
    "align": lambda place: call("align", place.run, "test.tsv"),
    "attention": lambda place: call("attention", place.run, "abc def", "--output", "seen.svg"),
    "probe": lambda place: call("probe", place.run, "--probe", "length", "--sentences", "in.txt"),
    "calibrate": lambda place: call("calibrate", place.run, "test.tsv"),
    "bench": lambda place: call("bench", place.run, "test.tsv", "--rounds", "1", "--pairs", "8"),
    "repl": lambda place: call("repl", place.run, stdin=b"abc def\n"),
    "test": lambda place: call("test", place.run, "suite.toml"),
}
REFUSES: dict[str, Callable[[Place], CommandResult]] = {
    "train": lambda place: call("train", place.run),
    "check": lambda place: call("check", place.run),
    "inspect": lambda place: call("inspect", place.run, "abc def", "--output", "page.html"),
    "shortlist": lambda place: call("shortlist", place.run),
    "adapt": lambda place: call("adapt", place.run, "test.tsv"),
    "export": lambda place: call("export", place.run, "--to", "onnx", "--output", "out"),
}
ELSEWHERE = {"info", "distil", "serve", "complete"}  # tests of their own below
WITHOUT_RUN = {
    "corrections", "clean", "curve", "qa", "score", "score-alignment", "terms", "import", "new", "presets", "demo",
    "schema", "completion", "vectors", "lecture", "worked",
}  # fmt: skip


def test_every_command_is_classified() -> None:
    tables = (set(WHOLE), set(REFUSES), ELSEWHERE, WITHOUT_RUN)
    assert set().union(*tables) == set(cli.commands), "say what a new command does with an ensemble"
    assert sum(map(len, tables)) == len(cli.commands)


@pytest.mark.parametrize("name", WHOLE)
def test_a_command_uses_all_members_alike(place: Place, calls: Calls, name: str) -> None:
    result = WHOLE[name](place)
    assert result.code == 0, result.err
    assert calls.equal(), dict(calls.counts)


def refused(result: CommandResult, place: Place) -> None:
    """One line that says why, and names a member."""
    assert result.code == 2, result.out
    line = result.err.splitlines()[-1]  # `train FILE` tells what it chose from the data first
    assert "found an ensemble of 3 models" in line
    assert str(place.member) in line


@pytest.mark.parametrize("name", REFUSES)
def test_a_command_refuses_an_ensemble_and_names_a_member(place: Place, calls: Calls, name: str) -> None:
    before = {path for path in place.folder.rglob("*") if "cache" not in path.parts}
    refused(REFUSES[name](place), place)
    assert not calls.counts
    assert {path for path in place.folder.rglob("*") if "cache" not in path.parts} - before <= {place.run / "lock"}


@pytest.mark.parametrize("name", EXPORTERS)
def test_every_exporter_refuses_an_ensemble(place: Place, tmp_path: Path, name: str) -> None:
    refused(call("export", place.run, "--to", name, "--output", tmp_path / "out"), place)
    assert not (tmp_path / "out").exists()


def test_training_neither_goes_on_with_an_ensemble_nor_starts_from_one(place: Place, tmp_path: Path) -> None:
    refused(call("train", "pairs.tsv", "--run", place.run, *SMALL), place)
    refused(call("train", place.run, "--restart"), place)
    refused(call("train", "pairs.tsv", "--run", tmp_path / "new", *SMALL, f"train.start_from={place.run}"), place)


def test_complete_refuses(place: Place) -> None:
    result = call("complete", place.run, "abc")
    assert (result.code, len(result.err.splitlines())) == (2, 1)


# ---------------------------------------------------------------------- the whole ensemble, by independent sums


def test_search_scores_and_given_scores_are_the_mean_of_the_members_probabilities(place: Place) -> None:
    """Law 6 for ensembles, against probabilities of members that were opened one by one."""
    predictor = load_predictor(place.run, "cpu")
    models: list[Any] = [
        Run(folder).own_model(torch.device("cpu")) for folder in (place.run, *member_folders(place.run))
    ]
    served = ServedModel(ModelConfig(str(place.run)), ServeConfig(device="cpu"))
    for text in TEXTS:
        prediction = predictor.predict([text], beam=2)[0]
        tokens = [*predictor.target_tokenizer.encode(prediction.text), EOS]
        expected = []
        batch = predictor.collator.collate(predictor.codec.encode_sources([text]))
        for length, token in enumerate(tokens):
            prefix = torch.tensor([[SOS, *tokens[:length]]])
            with torch.no_grad():
                each = [model.step(prefix, model.start(batch))[0][0, token].exp().item() for model in models]
            expected.append(math.log(sum(each) / 3))
        assert list(prediction.token_scores) == pytest.approx(expected, abs=1e-4)
        (scored,) = served.run(BatchWork("", "score"), [(text, prediction.text)])
        assert list(scored.token_scores) == pytest.approx(expected, abs=1e-4)
        loss = predictor.evaluate([(text, prediction.text)])["loss"]
        assert loss == pytest.approx(-sum(expected) / len(expected), abs=1e-4)


def test_a_stored_ensemble_is_the_same_as_one_that_is_named(place: Place) -> None:
    alone = place.folder / "alone"
    shutil.copytree(place.run, alone, ignore=shutil.ignore_patterns("ensemble.json", "trials"))
    others = [argument for folder in member_folders(place.run) for argument in (f"ensemble.runs={folder}",)]
    stored, named = call("predict", place.run, "in.txt", "--json"), call("predict", alone, "in.txt", "--json", *others)
    first = call("predict", alone, "in.txt", "--json")
    assert stored.code == named.code == first.code == 0, stored.err + named.err + first.err
    keys = ("text", "score", "token_scores")
    tables = [
        [{key: json.loads(line)[key] for key in keys} for line in result.lines] for result in (stored, named, first)
    ]
    assert tables[0] == tables[1] != tables[2]


def test_more_runs_join_a_stored_ensemble(place: Place, calls: Calls) -> None:
    """Neither the option nor a call in Python drops the members of the folder."""
    predictor = load_predictor(place.run, "cpu", ensemble=[place.member])
    assert len(predictor.backend(predictor.defaults).model.models) == 4
    plain = load_predictor(place.run, "cpu")
    assert len(plain.backend(DecodingOptions(ensemble=(place.run,))).model.models) == 6
    texts = [one.text for one in plain.predict(TEXTS, ensemble=[place.member])]
    assert texts == [one.text for one in predictor.predict(TEXTS)]


def test_options_that_name_an_ensemble_use_it_whole(place: Place, calls: Calls) -> None:
    back = place.folder / "back"
    load_predictor(place.run, "cpu").predict(TEXTS, beam=3, rerank=RerankModel(back), scores=False)
    assert calls.equal()
    calls.counts.clear()
    load_predictor(place.run, "cpu").predict(TEXTS, method=Draft(place.run))
    assert calls.equal()
    with pytest.raises(DragomanError, match="ctranslate2, which cannot do an ensemble"):
        load_predictor(place.run, "cpu", engine="ctranslate2")


def test_alignment_of_both_directions(place: Place, calls: Calls) -> None:
    result = call("align", place.run, "test.tsv", "--reverse", "back")
    assert result.code == 0, result.err
    assert calls.equal()


def test_distil_learns_from_all_members_and_counts_them(place: Place, calls: Calls) -> None:
    few = ("train.steps=2", "train.validate_every=2", "train.decode=5", "train.device=cpu")
    result = call("distil", place.run, "--run", place.folder / "student", *few)
    assert result.code == 0, result.err
    assert "3.0 times smaller" in result.out + result.err


def test_the_server_scores_aligns_and_continues_with_all_members_and_does_not_inspect(place: Place) -> None:
    served = ServedModel(ModelConfig(str(place.run)), ServeConfig(device="cpu"))
    with pytest.MonkeyPatch.context() as patch:
        calls = Calls(patch)
        for operation, options, item in (
            ("predict", DecodingOptions(), ConstrainedInput("abc def")),
            ("score", None, ("abc def", "ABC DEF")),
            ("align", None, ("abc def", "ABC DEF")),
        ):
            served.run(BatchWork("", operation, options), [item])
            assert calls.equal(), operation
        served.continue_search("abc def", [5])
        assert calls.equal()
    with pytest.raises(ConfigError, match="is an ensemble of 3 models"):
        served.inspect("abc def", InspectOptions())


def test_calibration_is_that_of_the_ensemble_and_ends_with_a_change_of_any_member(place: Place) -> None:
    path = place.run / "calibration.json"
    path.unlink(missing_ok=True)
    result = call("calibrate", place.run, "test.tsv", "--json")
    assert result.code == 0, result.err
    together = json.loads(result.out)["before"]["loss"]
    evaluated = json.loads(call("evaluate", place.run, "test.tsv", "--json").out)["loss"]
    assert together == pytest.approx(evaluated, abs=1e-5)
    predictor = load_predictor(place.run, "cpu")
    assert predictor.predict(["abc"])[0].confidence is not None
    assert predictor.predict(["abc"], average="log")[0].confidence is None  # another model
    assert predictor.predict(["abc"], ensemble=[place.member])[0].confidence is None
    weights = place.member / "weights.safetensors"
    before = weights.read_bytes()
    try:
        weights.write_bytes((place.run / "weights.safetensors").read_bytes())
        assert load_predictor(place.run, "cpu").calibration is None
    finally:
        weights.write_bytes(before)
        path.unlink()


def test_an_ensemble_of_ensembles_and_foreign_members_are_refused(place: Place, tmp_path: Path) -> None:
    nested = shutil.copytree(place.run, tmp_path / "nested")
    write_members(nested / "trials" / "second", ["trials/x"])
    with pytest.raises(RunError, match="expected runs with one model"):
        load_predictor(nested, "cpu")
    shutil.rmtree(nested / "trials")
    shutil.copytree(
        place.folder / "back", nested / "trials" / "second", ignore=shutil.ignore_patterns("ens*", "trials")
    )
    write_members(nested, ["trials/second"])
    with pytest.raises(RunError, match="found a run from the targets to the sources of"):
        load_predictor(nested, "cpu")


def test_info_shows_every_member_and_the_parameters_in_all(place: Place) -> None:
    result = call("info", place.run)
    assert result.code == 0, result.err
    found = json.loads(call("info", place.run, "--json").out)
    folders = [place.run, *member_folders(place.run)]
    assert [one["run"] for one in found["members"]] == [str(folder) for folder in folders]
    alone = [json.loads(call("info", folder, "--json").out)["parameters"] for folder in folders[1:]]
    assert found["parameters"] == 3 * alone[0] == 3 * alone[1]
    assert f"{found['parameters']:,} parameters in an ensemble of 3 models" in result.out
    assert all(f"{folder}: transformer-transformer, {alone[0]:,} parameters" in result.out for folder in folders)
    assert result.out.count("validation alone, at step 40: loss") == 3
    refused(call("info", place.run, "--plot", "curve.png"), place)


def test_a_run_says_how_large_it_is(place: Place) -> None:
    together, alone = repr(load_run(place.run, "cpu")), repr(load_run(place.member, "cpu"))
    assert "parameters in 3 models" in together
    assert "models" not in alone
