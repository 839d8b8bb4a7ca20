"""Data hallucination: made-up pairs keep affixes and features, and share random stems."""

from __future__ import annotations

from pathlib import Path

import pytest

from dragoman.auto.configure import configure
from dragoman.base.errors import ConfigError
from dragoman.data.config import DataConfig, TokenizersConfig
from dragoman.data.corpus import fingerprint, prepare_corpus
from dragoman.data.examples import Example
from dragoman.data.formats.pairs import hallucinate, shared_runs
from dragoman.data.tokenizers.characters import CharactersConfig
from dragoman.runs.tasks.table import task_of

PAIRS = [("sehen V;PTCP", "gesehen"), ("Haus N;PL", "Hauses"), ("ja X", "no")]
EXAMPLES = [Example(source, (target,), "file", line) for line, (source, target) in enumerate(PAIRS, 1)]
FEATURES = TokenizersConfig(CharactersConfig(features=" ;"))


def test_stems_are_replaced_on_both_sides() -> None:
    made_up = list(hallucinate(EXAMPLES, 200, " ;"))
    assert len(made_up) == 200
    assert len({one.source for one in made_up}) > 150
    for one in made_up:
        stem, features = one.source.split()
        (target,) = one.references
        assert (features, target) in {("V;PTCP", f"ge{stem}"), ("N;PL", f"{stem}es")}  # "ja" has no stem
        assert stem[0].isupper() == (features == "N;PL")  # capital letters stay capital
        assert set(stem.lower()) <= set("sehnhau")
    assert made_up == list(hallucinate(EXAMPLES, 200, " ;"))


def test_features_are_no_stems() -> None:
    assert list(hallucinate([Example("ab PAST;XYZ", ("abPAST",), "file", 1)], 5, " ;")) == []
    assert shared_runs("abcxdef", "abcydef") == [(0, 0, 3), (4, 4, 3)]
    assert shared_runs("ab", "ab") == []


def test_a_corpus_has_made_up_pairs_for_training_alone(tmp_path: Path) -> None:
    file = tmp_path / "pairs.tsv"
    file.write_text("".join(f"{source}\t{target}\n" for source, target in PAIRS), encoding="utf-8")
    data = DataConfig(train=str(file), valid=str(file), hallucinate=50, cache=str(tmp_path / "cache"))
    corpus = prepare_corpus(data, FEATURES)
    assert (corpus.report["train"]["pairs"], corpus.report["made_up"], corpus.report["valid"]["pairs"]) == (53, 50, 3)
    assert corpus.report["train"]["unknown"] == {"source": 0.0, "target": 0.0}
    plain = DataConfig(train=str(file), valid=str(file), cache=str(tmp_path / "cache"))
    assert fingerprint(plain, FEATURES) != fingerprint(data, FEATURES)


def test_models_that_copy_learn_from_them_too(tmp_path: Path) -> None:
    file = tmp_path / "pairs.tsv"
    file.write_text("".join(f"{source}\t{target}\n" for source, target in PAIRS * 5), encoding="utf-8")
    overrides = ["preset=pointer-generator-small", "data.hallucinate=7", f"data.cache={tmp_path / 'cache'}"]
    config, _ = configure(str(file), overrides)
    assert task_of(config).prepare(config).report["made_up"] == 7


def test_other_tasks_refuse_it(tmp_path: Path) -> None:
    file = tmp_path / "labels.tsv"
    file.write_text("good film\tyes\nbad film\tno\n" * 5, encoding="utf-8")
    config, _ = configure(str(file), ["task=classify", "data.hallucinate=5"])
    with pytest.raises(ConfigError, match=r"data\.hallucinate"):
        task_of(config).prepare(config)


@pytest.mark.parametrize(("pairs", "expected"), [(100, 2000), (1000, 0)])
def test_few_inflected_forms_get_made_up_pairs(tmp_path: Path, pairs: int, expected: int) -> None:
    file = tmp_path / "forms.tsv"
    endings = {"V;PST": "te", "V;PRS": "t", "V;PTCP;PST": "end"}
    rows = [
        f"s{chr(97 + number % 26)}o{number}gen {features}\ts{chr(97 + number % 26)}o{number}gen{ending}\n"
        for number in range(pairs // 2)
        for features, ending in list(endings.items())[number % 2 : number % 2 + 2]
    ]
    file.write_text("".join(rows), encoding="utf-8")
    config, reasons = configure(str(file), [])
    assert config.data.hallucinate == expected
    assert any("made-up pairs" in reason for reason in reasons) == bool(expected)
