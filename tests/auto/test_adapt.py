"""Adapt a run to corrections: what is filtered, which version is used, and how to go back."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import dragoman
from dragoman.auto.adaptation import adapted_table, read_corrections
from dragoman.auto.judgement import Judgement, largest_loss
from dragoman.base.errors import ConfigError, DataError, RunError
from dragoman.data.cleaning.cleaner import filter_pairs
from dragoman.data.examples import Example
from dragoman.data.readers.base import ReadOptions
from dragoman.documents.registry import open_document
from dragoman.runs import Run
from dragoman.runs.versions import add_version, current_version, list_versions, use_version
from dragoman.scoring.overuse import OverusedWord
from dragoman.scoring.registry import metrics_by_name
from dragoman.training.checkpoints import read_tensors, write_tensors
from tests.conftest import TrainedFolder, call, words, write_rows

FAST = ("train.steps=60", "train.validate_every=20", "train.optimizer.learning_rate=1e-2", "train.patience=0")


def longer_pairs(count: int) -> list[tuple[str, str]]:
    """Words that are longer than those of the trained run, and right: what they teach harms no other."""
    return [(word, word.upper()) for word in words(count, seed=7, shortest=8, longest=9)]


@pytest.fixture(scope="module")
def adapted(trained_folder: TrainedFolder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the trained run, with corrections of longer words than it has learned."""
    folder = tmp_path_factory.mktemp("adapt")
    run = folder / "run"
    shutil.copytree(trained_folder.run, run)
    pairs = longer_pairs(120)
    write_rows(folder / "corrections.tsv", [(source, "output", right) for source, right in pairs])
    return folder


def test_a_better_version_is_kept_listed_and_taken_back(inside: TrainedFolder, adapted: Path) -> None:
    run = adapted / "run"
    before = (run / "weights.safetensors").read_bytes()
    result = call("adapt", run, adapted / "corrections.tsv", *FAST, "--json")
    assert result.code == 0, result.err
    table = json.loads(result.out)
    assert table["kept"], table["reason"]
    assert table["version"] == 2
    assert table["corrections"] == 120
    metric = next(name for name in table["held_out"] if name not in ("segments", "ruled_out"))
    assert table["held_out"]["segments"] == 24
    assert table["held_out"][metric]["before"] != table["held_out"][metric]["after"]
    assert table["general"]["segments"] == 300  # 30 validation pairs and training pairs that are not mixed in
    assert table["overused"] == []
    assert [version.number for version in list_versions(Run(run))] == [1, 2]
    shown = call("info", run)
    assert shown.code == 0, shown.err  # it read the number of a judgement as a metric
    assert "(in use)" in shown.out
    assert f"held-out corrections: {metric} " in shown.out
    assert not (run / "versions" / "work").exists()
    refused = call("train", run, "train.steps=200")
    assert refused.code == 2
    assert "--rollback 1" in refused.err
    assert call("adapt", run, "--rollback").code == 0
    assert (run / "weights.safetensors").read_bytes() == before
    current = current_version(Run(run))
    assert current is not None
    assert current.number == 1
    assert "none before it" in call("adapt", run, "--rollback").err
    assert call("adapt", run, "--rollback", "2").code == 0
    assert "no version 7" in call("adapt", run, "--rollback", "7").err


@pytest.mark.parametrize("name", ["versions", "versions/work", "versions/work/data"])
def test_an_adaptation_follows_no_link_out_of_the_run(
    name: str, trained_folder: TrainedFolder, adapted: Path, tmp_path: Path
) -> None:
    run, mine = tmp_path / "run", tmp_path / "mine"
    shutil.copytree(trained_folder.run, run)
    for kept in ("key", "data/general.jsonl", "run/config.toml", "versions.json"):
        (mine / kept).parent.mkdir(parents=True, exist_ok=True)
        (mine / kept).write_text("precious", encoding="utf-8")
    (run / name).parent.mkdir(parents=True, exist_ok=True)
    (run / name).symlink_to(mine)
    refused = call("adapt", run, adapted / "corrections.tsv", *FAST)
    assert refused.code == 2
    assert f"{name}: found a symbolic link, expected" in refused.err
    assert [path.read_text() for path in mine.rglob("*") if path.is_file()] == ["precious"] * 4


@pytest.mark.parametrize(("method", "frozen"), [("whole", ["output.bias"]), ("adapters", None)])
def test_what_an_imported_run_keeps_frozen_stays_so(adapted: Path, method: str, frozen: list[str] | None) -> None:
    """T5 has no biases, so a trained one could not be exported; adapters leave all other weights alone."""
    run = Run(adapted / "run")
    run.config = replace(run.config, train=replace(run.config.train, freeze=("output.bias",)))
    assert adapted_table(run, [], None, method, 1000)["train"].get("freeze") == frozen


def test_a_version_is_entered_once_though_its_command_was_killed_before_it_was_used(
    inside: TrainedFolder, tmp_path: Path
) -> None:
    shutil.copytree(inside.run, tmp_path / "run")
    run, new = Run(tmp_path / "run"), tmp_path / "new.safetensors"
    write_tensors(new, {name: 2 * tensor for name, tensor in read_tensors(run.weights_path()).items()})
    entry = add_version(run, new, "c.tsv", {"p": 0.5})
    current = current_version(run)
    assert (entry.number, current and current.number) == (2, 1)
    assert add_version(run, new, "c.tsv", {"p": 0.5}) == entry
    use_version(run, entry)
    assert current_version(run) == entry
    assert "an adaptation was stopped" not in call("info", run.folder).out
    (run.folder / "versions" / "work").mkdir()
    assert "an adaptation was stopped; it goes on with the same command again" in call("info", run.folder).out
    refused = [add_version(run, None, "c.tsv", {"scores": (1, 2)}) for _ in range(2)]
    assert list_versions(run)[1:] == [entry, refused[0]]


def test_a_version_that_forgets_is_not_kept(inside: TrainedFolder, adapted: Path, tmp_path: Path) -> None:
    """Without general pairs the model learns to write JJJ for everything: corrections improve, general text suffers."""
    run = tmp_path / "run"
    shutil.copytree(inside.run, run)
    before = (run / "weights.safetensors").read_bytes()
    pairs = [(word, "JJJ") for word in words(60, seed=9, shortest=8, longest=9)]
    result = dragoman.adapt(run, pairs, *FAST, mix=0.0, quiet=True)
    assert result.held_out.better
    assert result.general.significant
    assert not result.general.better
    assert not result.kept
    assert "worse on general text" in result.reason
    assert "its loss on general text rises" in result.reason
    assert "it overuses jjj (0 → " in result.reason
    assert result.general.segments == 300
    assert result.general.overused[0].after > result.general.overused[0].before
    assert len(result.general.changed) == 10
    assert all("JJJ" in changed.after and changed.before != changed.after for changed in result.general.changed)
    before_score, after_score, _ = next(iter(result.general.scores.values()))
    assert result.general.ruled_out > abs(before_score - after_score) > 0
    few = {"before": ["ab cd"] * 15 + ["x y"] * 5, "after": ["ab cd"] * 14 + ["x y"] * 6}
    chrf = metrics_by_name()["chrf"]
    bounds = [
        largest_loss(chrf, {name: texts * times for name, texts in few.items()}, [["ab cd"]] * 20 * times)
        for times in (1, 10)
    ]
    loss = chrf.score(chrf.statistics(few["before"], [["ab cd"]] * 20)) - chrf.score(
        chrf.statistics(few["after"], [["ab cd"]] * 20)
    )
    assert bounds[0] > bounds[1] > loss > 0  # more pairs rule out smaller losses, and never the one that is there
    assert (run / "weights.safetensors").read_bytes() == before
    (attempt,) = list_versions(Run(run))
    assert not attempt.kept
    assert not attempt.number
    assert "not kept" in call("info", run).out


def test_too_few_general_pairs_are_refused(inside: TrainedFolder, tmp_path: Path) -> None:
    few = write_rows(tmp_path / "few.tsv", [(word, word.upper()) for word in words(299)])
    with pytest.raises(
        DataError, match=r"few\.tsv: found 299 general pairs to judge by, expected 300 or more.*general=…"
    ):
        dragoman.adapt(inside.run, longer_pairs(40), general=few, quiet=True)


@pytest.mark.parametrize(
    ("bad", "harm"),
    [
        ({}, ""),
        ({"significant": True}, "significantly worse"),
        ({"ruled_out": 1.0}, "leaves room for a loss of 1.0 points"),
        ({"rise": 0.03}, "its loss on general text rises from 2.000 to 2.100"),
        ({"overused": [OverusedWord("Hut", 0, 146, 2, 1e-9)]}, "overuses Hut (0 → 146 times, 2 in references)"),
    ],
)
def test_each_sign_of_harm_alone_is_enough(bad: dict[str, Any], harm: str) -> None:
    fine = Judgement(300, {"chrf": (0.4, 0.39, 0.2), "loss": (2.0, 2.1, 0.1)}, False, False, 0.5, 0.01, [], [])
    found = replace(fine, **bad).harm
    assert (harm in found) if harm else found == ""


def test_corrections_are_filtered(inside: TrainedFolder) -> None:
    def pair(source: str, target: str, line: int) -> Example:
        return Example(source, (target,), "c.tsv", line)

    usual = [pair(f"the {word} is here", f"das {word} ist hier", 1) for word in words(50)]
    items = [
        pair("a good house", "ein gutes Haus", 1),
        pair("a good house", "ein gutes  Haus", 2),
        pair("an old dog", "ein alter Hut", 3),
        pair("an old dog", "ein alter Hund", 4),
        pair("a red car", "aaaaaaaa", 5),
        pair("a cat", "ein sehr langer Satz, der mit der Katze nichts zu tun hat, sondern mit vielem anderen", 6),
        pair("we all go home now", "we all go home now", 7),
        pair("a big tree", "большое дерево", 8),
    ]
    kept, report = filter_pairs(items, usual)
    assert [example.line for example in kept] == [1, 4]
    assert set(report.rejected) == {"duplicate", "contradiction", "repetition", "ratio", "copy", "script"}
    same = [pair(f"go to {word} right now", f"go to {word} right now", 1) for word in words(50)]
    kept, _ = filter_pairs(items[6:7], same)  # a run whose targets mostly are the sources
    assert len(kept) == 1


def test_documents_give_what_people_confirmed() -> None:
    po = b'#, fuzzy\nmsgid "one"\nmsgstr "eins?"\n\nmsgid "two"\nmsgstr "zwei"\n\nmsgid "three"\nmsgstr ""\n'
    assert [pair[:2] for pair in open_document("a.po", po).confirmed()] == [("two", "zwei")]
    units = "".join(
        f'<trans-unit id="{number}"{unit}><source>s{number}</source><target{target}>t{number}</target></trans-unit>'
        for number, (unit, target) in enumerate(
            (
                ("", ' state="needs-review-translation"'),
                ("", ' state="translated" state-qualifier="mt-suggestion"'),
                (' approved="yes"', ' state-qualifier="mt-suggestion"'),
                ("", ' state="final"'),
            )
        )
    )
    old = f'<xliff version="1.2"><file source-language="en"><body>{units}</body></file></xliff>'.encode()
    assert [pair[:2] for pair in open_document("a.xlf", old).confirmed()] == [("s2", "t2"), ("s3", "t3")]
    segments = "".join(
        f'<unit id="{state}"><segment state="{state}"><source>a <pc id="1">{state}</pc></source>'
        f"<target>ein {state}</target></segment></unit>"
        for state in ("initial", "translated", "reviewed")
    )
    new = f'<xliff version="2.0" srcLang="en" trgLang="de"><file id="f">{segments}</file></xliff>'.encode()
    assert [pair[:2] for pair in open_document("a.xlf", new).confirmed()] == [
        ("a translated", "ein translated"),
        ("a reviewed", "ein reviewed"),
    ]


@pytest.mark.parametrize("name", ["c.tsv", "c.csv"])
def test_three_columns_and_a_header_are_seen(tmp_path: Path, name: str) -> None:
    mark = "\t" if name.endswith("tsv") else ","
    rows = [("source", "output", "correction"), *((word, "x", word.upper()) for word in words(12))]
    (tmp_path / name).write_text("".join(mark.join(row) + "\n" for row in rows))
    pairs = list(read_corrections(tmp_path / name, ReadOptions()))
    assert len(pairs) == 12
    assert all(isinstance(pair, Example) and pair.references == (pair.source.upper(),) for pair in pairs)


@pytest.mark.parametrize(
    ("names", "source", "correction"),
    [
        ("source,correction,score", 0, 1),
        ("source,output,correction", 0, 2),
        ("id,source,correction", 1, 2),
        ("correction,source", 1, 0),
        ("source,output,correction,score", 0, 2),
        ("source,correction score,corrected text", 0, 2),
        ("english,german,corrected", 0, 2),
        ("source,target", 0, 1),
    ],
)
@pytest.mark.parametrize("suffix", ["tsv", "csv"])
def test_names_of_columns_tell_where_corrections_are(
    tmp_path: Path, names: str, source: int, correction: int, suffix: str
) -> None:
    header, mark = names.split(","), "\t" if suffix == "tsv" else ","
    rows = [header, *([f"{word} one {number}" for number in range(len(header))] for word in words(12))]
    path = tmp_path / f"c.{suffix}"
    path.write_text("".join(mark.join(row) + "\n" for row in rows))
    pairs = [pair for pair in read_corrections(path, ReadOptions()) if isinstance(pair, Example)]
    assert [(pair.source, *pair.references) for pair in pairs] == [(row[source], row[correction]) for row in rows[1:]]


@pytest.mark.parametrize("first", ["english\tgerman\tscore\n", ""])
def test_scores_are_no_corrections(tmp_path: Path, first: str) -> None:
    path = tmp_path / "c.tsv"
    path.write_text(first + "".join(f"a {word}\tein {word}\t0.9\n" for word in words(12)))
    with pytest.raises(ConfigError, match=r"c\.tsv:1: found .*columns=1,2"):
        read_corrections(path, ReadOptions())
    assert len(list(read_corrections(path, ReadOptions(("1", "2"), bool(first))))) == 12


@pytest.mark.parametrize("mix", ["nan", "inf", "-inf", "-1", "101"])
def test_the_share_of_general_pairs_is_a_number(inside: TrainedFolder, mix: str) -> None:
    result = call("adapt", inside.run, "pairs.tsv", f"--mix={mix}")
    assert (result.code, "--mix" in result.err, result.err.count("\n")) == (2, True, 1)
    with pytest.raises(ConfigError, match=f"mix: found {float(mix)}, expected a finite number, at least 0 and at most"):
        dragoman.adapt(inside.run, [("a", "b")], mix=float(mix))


def test_mistakes_are_explained(inside: TrainedFolder, tmp_path: Path) -> None:
    few = write_rows(tmp_path / "few.tsv", [("ab", "AB"), ("abc", "ABC")])
    with pytest.raises(DataError, match="found 2 usable corrections, expected 20 or more"):
        dragoman.adapt(inside.run, few, quiet=True)
    with pytest.raises(RunError, match="no such run folder"):
        dragoman.adapt(tmp_path / "nowhere", few, quiet=True)
    with pytest.raises(DataError, match="missing"):
        dragoman.adapt(inside.run, tmp_path / "missing.tsv", quiet=True)
    for arguments, expected in (
        ((), "name a file of corrections"),
        (("--rollback",), "never adapted"),
        ((few, "--tag", "de"), "tag: found 'de'"),
        ((few, "--rollback", "1"), "takes no corrections"),
        ((few, "train.stepz=3"), "usable"),
    ):
        result = call("adapt", inside.run, *arguments)
        assert (result.code, expected in result.err) == (2, True), result.err
