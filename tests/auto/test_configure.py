"""What is chosen for which data, that it is said, and that the choice learns."""

from __future__ import annotations

import gzip
import json
import random
import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dragoman.auto import profile
from dragoman.auto.checking import check_lines
from dragoman.auto.choices import Choice, finish, table_of
from dragoman.auto.configure import configure, configure_candidates
from dragoman.auto.pairs import choose_pairs
from dragoman.auto.portfolio import (
    PORTFOLIO,
    RULES,
    by_name,
    candidates_for,
    default_candidate,
    phrases_for,
    rules_table,
)
from dragoman.auto.profile import PairProfile, SideProfile, describe, profile_pairs
from dragoman.auto.training import longer_line
from dragoman.base.config import dump, merge
from dragoman.base.errors import ConfigError, DataError
from dragoman.data.config import DataConfig
from dragoman.data.examples import Pairs
from dragoman.data.readers import columns as readers
from dragoman.runs import Run
from dragoman.runs.tasks import config
from dragoman.runs.tasks.table import task_of
from dragoman.training.checkpoints import TrainingState
from tests.conftest import call, words, write_rows


def side(characters: float, tokens: float, **others: Any) -> SideProfile:
    """A profile of one side; without more, of words that are mostly new."""
    usual: dict[str, Any] = {
        "spaced": float(tokens > 1), "alphabet": 40, "types": 10_000, "count": 30_000, "new": 0.05, "length": 5.0,
        "punctuated": 0.1, "longest": (2 * characters, 2 * tokens),
    }  # fmt: skip
    return SideProfile(characters=characters, tokens=tokens, **usual | others)


SYMBOLS: dict[str, Any] = {"types": 39, "count": 320_000, "new": 0.0, "length": 1.7, "punctuated": 0.0}
SENTENCES = PairProfile(29_000, side(62, 12), side(72, 11), shared_letters=0.99)
PHONEMES = PairProfile(100_000, side(7.5, 1), side(17, 6.4, **SYMBOLS))
WORDS = PairProfile(2000, side(6, 1), side(6, 1))
COMMANDS = PairProfile(15_000, side(30, 7, types=13, count=100_000, new=0.0, punctuated=0.0),
                       side(90, 14, types=6, count=200_000, new=0.0, length=6.0, punctuated=0.0))  # fmt: skip
KINDS = {"sentences": SENTENCES, "phonemes": PHONEMES, "words": WORDS, "commands": COMMANDS}


def test_the_page_shows_the_rules() -> None:
    page = (Path(__file__).parents[2] / "docs" / "explanation" / "auto.md").read_text(encoding="utf-8")
    assert rules_table() in page
    named = {name for rule in RULES for name in (rule.model, rule.on_cpus) if name}
    assert named <= {candidate.name for candidate in PORTFOLIO}
    for name in named:
        assert page.count(f"`{name}`") > 1, name  # in the table, and where the name is explained


def chosen(seen: PairProfile) -> tuple[dict[str, Any], config.Config, str]:
    """The table, what it builds, and the reasons as one text."""
    choices = [Choice("data.train", "pairs.tsv"), *choose_pairs(seen)]
    built, reasons = finish(choices, ())
    return table_of(choices), built, "\n".join(reasons)


# ---------------------------------------------------------------------- looking


def test_looking_counts_what_is_there(tmp_path: Path) -> None:
    rows = [("ab cd", "x y"), ("abc", "x"), ("abcde", "y, y y"), ("  padded  ", " z ")] * 3 + [("abc", "new")]
    seen = profile_pairs(str(write_rows(tmp_path / "pairs.tsv", rows)))
    assert seen.pairs == 13
    assert seen.source.characters == pytest.approx((3 * (5 + 3 + 5 + 6) + 3) / 13)
    assert (seen.source.tokens, seen.source.spaced) == (pytest.approx(16 / 13), pytest.approx(3 / 13))
    assert (seen.target.types, seen.target.count) == (5, 22)
    assert seen.target.punctuated == pytest.approx(3 / 22)  # "y,"
    assert seen.duplicates == pytest.approx(8 / 13)
    assert seen.ambiguous == pytest.approx(1 / 4)  # "abc" alone
    assert (seen.identical, seen.leaked, seen.swapped) == (0.0, None, False)


def test_the_sample_is_spread_over_the_whole_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are often sorted by length."""
    monkeypatch.setattr(profile, "EXAMINED", 10)
    rows = [("ab", "x y")] * 50 + [("much longer", "than those before")] * 50
    seen = profile_pairs(str(write_rows(tmp_path / "pairs.tsv", rows)))
    assert seen.pairs == 100
    assert 6 <= seen.source.characters <= 7


@pytest.mark.parametrize("header", [False, True])
def test_blocks_of_a_large_file_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, header: bool) -> None:
    rows: list[tuple[str, ...]] = [(f"a{number} b c", f"{number} z") for number in range(30_000)]
    path = write_rows(tmp_path / "large.tsv", [("source", "target")] * header + rows)
    options = DataConfig(train=str(path), header=header)
    whole = profile_pairs(str(path), options)
    monkeypatch.setattr(readers, "LARGE_FILE", 10_000)
    monkeypatch.setattr(readers, "SAMPLED_BYTES", 200)
    found = profile_pairs(str(path), options)
    assert found.pairs == whole.pairs == 30_000
    assert 1000 < found.source.count / 3 < 10_000
    for name in ("spaced", "tokens", "punctuated"):
        assert getattr(found.source, name) == getattr(whole.source, name)
    assert found.source.characters == pytest.approx(whole.source.characters, abs=0.05)
    assert found.targets > 1000
    # One that is mostly faults, or compressed, is read whole.
    path.write_text("a,b\n" * 5000, encoding="utf-8")
    with pytest.raises(DataError, match="found 1 column"):
        profile_pairs(str(path))
    with gzip.open(tmp_path / "large.tsv.gz", "wt", encoding="utf-8") as file:
        file.writelines(f"{random.random()}\t{random.random()}\n" for _ in range(2000))
    assert profile_pairs(str(tmp_path / "large.tsv.gz")).pairs == 2000


def test_both_files_of_a_pair_are_looked_at(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("one\ntwo\nthree\n")
    (tmp_path / "b").write_text("1\n2\n3\n")
    seen = profile_pairs(Pairs(str(tmp_path / "a"), str(tmp_path / "b")))
    assert (seen.pairs, seen.target.characters) == (3, 1.0)


def test_faults_and_emptiness_are_told(tmp_path: Path) -> None:
    path = tmp_path / "pairs.tsv"
    path.write_bytes(b"a\tb\n" + b"no column\n" * 7)
    with pytest.raises(DataError, match=r"pairs.tsv:2: found 1 column.*\(and 4 more\)"):
        profile_pairs(str(path))
    path.write_bytes(b"a\tb\n")
    with pytest.raises(DataError, match="found 1 pairs, expected at least 2"):
        profile_pairs(str(path))


@pytest.mark.parametrize("task", ["translate", "classify", "regress", "tag", "transcribe"])
def test_surplus_columns_are_to_be_chosen_from(tmp_path: Path, task: str) -> None:
    """Leaving such lines out would leave none."""
    path = tmp_path / "all.tsv"
    path.write_text("".join(f"a{number}\tb\tc\n" for number in range(40)) + "short\n")
    asked = [f"task={task}"]
    told = r'\(and 38 more\)\. Choose among the 3 columns with data\.columns, such as \["1", "2"\].*\["1", "2", "3"\]'
    if task == "tag":
        told = r'\(and 38 more\)\. Choose word and tag among the 3 columns with data\.columns, such as \["1", "3"\]'
    with pytest.raises(DataError, match=rf"all.tsv:1: found 3 columns, expected 2.*{told}"):
        configure(str(path), asked)
    table = config.build(
        {"task": task, "data": {"train": str(path), "cache": str(tmp_path / "cache")}} | UNITS.get(task, {})
    )
    with pytest.raises(DataError, match=told):
        task_of(table).prepare(table)
    said: list[str] = []
    check_lines(table, str(path), False, said.append, 3)
    assert any("with data.columns" in line for line in said)
    path.write_text("a\tb\tc\n" + "lonely\n" * 5)  # few of the faults: choosing would not help
    with pytest.raises(
        DataError, match=r"\. Every line has a fault: correct them, or name another file or other columns"
    ):
        configure(str(path), asked)


UNITS: dict[str, dict[str, Any]] = {
    "transcribe": {"tokenizer": {"source": {"kind": "audio"}, "target": {"kind": "characters"}}},
}


def test_pairs_are_looked_at_as_the_settings_say(tmp_path: Path) -> None:
    """What an error names as a remedy is one."""
    path = tmp_path / "all.tsv"
    path.write_text("".join(f"a{number}\tb\tc d e f\n" for number in range(40)))
    made, _ = configure(str(path), ['data.columns=["1", "3"]'])
    assert made.data.columns == ("1", "3")
    with pytest.raises(ConfigError, match=r"columns: found x, expected two"):
        configure(str(path), ["data.columns=x"])
    path.write_text("".join(f"a{number}\t{number}\n" for number in range(40)) + "lonely\n")
    for task in ("translate", "classify", "regress"):
        with pytest.raises(DataError, match=r"all.tsv:41: found 1 column"):
            configure(str(path), [f"task={task}"])
        assert configure(str(path), [f"task={task}", "data.faults=skip"])[0].data.faults == "skip"


# ---------------------------------------------------------------------- choosing


def test_pronunciation_is_recognised() -> None:
    table, built, reasons = chosen(PHONEMES)
    assert table["tokenizer"] == {
        "source": {"kind": "characters"},
        "target": {"kind": "words", "split": "spaces"},
    }
    assert built.data.units == "phonemes"
    assert built.train.metric == "per"
    assert "symbols between spaces, because only 39 different ones occur" in reasons
    assert "scored as phonemes" in reasons


@pytest.mark.parametrize(
    ("place", "change"),
    [
        ("source", {"spaced": 0.9}),  # sentences are not pronounced word by word
        ("target", {"length": 7.0}),  # words, however few
        ("target", {"types": 900}),
        ("target", {"spaced": 0.2}),
        ("target", {"count": 100, "new": 0.05}),  # hardly any comes back
    ],
)
def test_other_targets_are_not_called_phonemes(place: str, change: dict[str, Any]) -> None:
    changed = replace(getattr(PHONEMES, place), **change)
    _, built, reasons = chosen(replace(PHONEMES, **{place: changed}))
    assert built.data.units == "words"
    assert built.train.metric != "per"
    assert "phonemes" not in reasons


def test_a_closed_set_of_words_stays_words() -> None:
    table, built, reasons = chosen(COMMANDS)
    assert {side["kind"] for side in table["tokenizer"].values()} == {"words"}
    assert (built.data.units, built.train.metric) == ("words", "wer")
    assert "source: words between spaces, because only 13 different ones occur" in reasons
    lemma_and_tags = replace(COMMANDS.source, tokens=2.0)  # an atom for each lemma could not be inflected
    assert lemma_and_tags.unit == "characters"
    assert replace(COMMANDS.source, punctuated=0.8).unit == "subwords"  # "name[The Eagle],"


@pytest.mark.parametrize(("added", "unit"), [(7, "characters"), (20, "subwords")])
def test_both_sides_of_short_sentences_have_the_same_unit(tmp_path: Path, added: int, unit: str) -> None:
    """Sources have less than 24 characters and targets more; the mean decides."""
    some = words(2000, longest=5)
    rows = [(" ".join(some[n : n + 4]), " ".join(some[n + 1 : n + 5]) + " " + "x" * added) for n in range(1900)]
    seen = profile_pairs(str(write_rows(tmp_path / "short.tsv", rows)))
    assert seen.source.characters <= 24 < seen.target.characters
    assert seen.source.unit == seen.target.unit == unit


def test_words_get_characters_and_a_small_regularised_model() -> None:
    table, built, reasons = chosen(WORDS)
    assert {side["kind"] for side in table["tokenizer"].values()} == {"characters"}
    for stack in (built.model.encoder, built.model.decoder):
        assert stack.width <= 256
        assert 0.1 <= stack.dropout <= 0.5
    assert built.model.tie == "target"  # two vocabularies cannot share a table
    assert built.train.metric == "cer"
    assert reasons.count("because the texts are short (6 characters on average)") == 2
    joint, built, reasons = chosen(replace(WORDS, shared_letters=0.95))
    assert joint["tokenizer"] == {"source": {"kind": "characters"}}
    assert built.model.tie == "all"
    assert "source and target: one vocabulary of characters" in reasons


def test_the_vocabulary_fits_the_corpus() -> None:
    sizes = []
    for pairs in (500, 8000, 29_000, 200_000, 4_000_000):
        table, built, reasons = chosen(replace(SENTENCES, pairs=pairs))
        assert table["tokenizer"].keys() == {"source"}
        assert built.model.tie == "all"  # one vocabulary for both sides
        sizes.append(built.tokenizer.source.vocab_size)
        assert f"one vocabulary of {sizes[-1]:,} BPE sub-words, because these are {pairs:,} sentences" in reasons
    assert sizes == sorted(sizes)
    assert sizes[0] < 1000 < 3000 < sizes[2] < 6000
    assert sizes[-1] == 32_000
    _, built, _ = chosen(replace(SENTENCES, shared_letters=0.1))  # two scripts
    assert built.tokenizer.target is not None


@pytest.mark.parametrize(
    ("copied", "order", "unchanged", "preset"),
    [
        (0.9, 0.95, 0.54, "copy-transducer-small"), (0.9, 0.95, 0.0, "luong-2015-small"),
        (0.9, 0.2, 0.54, "luong-2015-small"), (0.4, 0.95, 0.2, "luong-2015-small"),
    ],
)  # fmt: skip
def test_sentences_of_which_many_do_not_change_get_a_model_that_copies(
    copied: float, order: float, unchanged: float, preset: str
) -> None:
    table, built, reasons = chosen(replace(SENTENCES, copied=copied, monotone=order, identical=unchanged))
    assert table["preset"] == preset
    shown = unchanged if preset.startswith("copy") else copied
    assert f"because {shown:.0%}".replace("%", " %") in reasons
    assert built.model.label_smoothing == (0.0 if preset.startswith("copy") else 0.1)


@pytest.mark.parametrize("gpu", [False, True])
def test_few_edited_sentences_get_a_model_that_copies_from_the_first_step(gpu: bool) -> None:
    """From 1,000 pairs models that must learn to copy do not learn it."""
    edited = replace(SENTENCES, copied=0.6, monotone=0.8, identical=0.0)
    presets = [default_candidate(replace(edited, pairs=pairs), gpu) for pairs in (50, 2000, 2001, 60_000)]
    assert [one.preset.partition("-")[0] for one in presets if one] == ["copy", "copy", "luong", "luong"]
    letters = replace(WORDS, copied=0.6, monotone=0.8, source=side(50, 2), target=side(50, 2))
    assert default_candidate(letters, gpu).preset != "copy-transducer-small"  # few short pairs are another matter
    _, _, reasons = chosen(replace(edited, pairs=1000))
    assert "because 1,000 pairs are few, and 60 % of the target is copied in order" in reasons


INFLECTION = replace(WORDS, features=" ;", source=side(27, 2), target=side(14, 1.4), copied=0.6, monotone=0.6)


@pytest.mark.parametrize(
    ("kind", "pairs", "cpu", "gpu"),
    [
        (replace(WORDS, copied=0.8, monotone=0.9), 800, "wu-2019", "wu-2019"),
        (replace(WORDS, copied=0.1, monotone=0.9), 800, "makarov-2020", "makarov-2020"),
        (replace(WORDS, copied=0.1, monotone=0.9), 8000, "wu-2019", "wu-2019"),
        (INFLECTION, 1000, "makarov-2020", "makarov-2020"),
        (INFLECTION, 10_000, "luong-256-unsmoothed", "luong-512-unsmoothed"),
        (WORDS, 40_000, "luong-256-unsmoothed", "luong-512-unsmoothed"),
        (PHONEMES, 100_000, "transformer-small-large-batch", "transformer-small-large-batch"),
    ],
)
def test_short_sequences_get_the_model_that_the_study_found(kind: PairProfile, pairs: int, cpu: str, gpu: str) -> None:
    seen = replace(kind, pairs=pairs)
    for is_gpu, name in ((False, cpu), (True, gpu)):
        first = candidates_for(seen, is_gpu)[0]
        assert first.name == name
        assert f"model: {name} (preset {first.preset}), because" in "\n".join(
            choice.why for choice in choose_pairs(seen, gpu=is_gpu)
        )


def test_the_usual_model_is_that_of_the_device(tmp_path: Path) -> None:
    path = str(write_rows(tmp_path / "pairs.tsv", [(word, word[::-1]) for word in words(12_000)]))
    reasons = {device: "\n".join(configure(path, [f"train.device={device}"])[1]) for device in ("cpu", "cuda")}
    assert "model: luong-256-unsmoothed" in reasons["cpu"]
    assert "model: luong-512-unsmoothed" in reasons["cuda"]


@pytest.mark.parametrize(("names", "formal"), [("town{}", True), ("place{}", False), ("all", False)])
def test_queries_with_words_of_their_question_get_a_pointer(names: str, formal: bool, tmp_path: Path) -> None:
    """The names of queries are those of the questions, or others, or there are none."""
    rows = [("how many people are there in all of the cities ?", "SELECT count(*) FROM people ;")] * 2000
    for number in range(0, 2000, 7):
        city = names.format(number)
        rows[number] = (f"how many people live in town{number} ?", f'SELECT count(*) FROM people WHERE city="{city}" ;')
    seen = profile_pairs(write_rows(tmp_path / "pairs.tsv", rows))
    assert seen.formal == formal
    names_by_device = [[one.name for one in candidates_for(seen, gpu)] for gpu in (False, True)]
    assert not formal or [found[0] for found in names_by_device] == ["pointer-generator-256", "pointer-generator"]
    assert not formal or all("pointer-transformer" in found[:3] for found in names_by_device)
    _, built, reasons = chosen(seen)
    assert (built.tokenizer.target is None and built.tokenizer.source.kind == "words") == formal
    if formal:
        assert built.model.decoder.kind == "pointer-generator"
        assert "formal language" in reasons
        assert "words and punctuation marks" in "\n".join(describe(seen))


@pytest.mark.parametrize("edit", [str, lambda text: text.replace(" uh ", " ")])
def test_edited_texts_are_not_formal(edit: Callable[[str], str], tmp_path: Path) -> None:
    """With few words nearly all are known, and the new ones are in the source."""
    draw = random.Random(1)
    sources = [" ".join(f"{draw.choice(['a', 'b', 'c'])}{draw.randrange(300)}" for _ in range(12)) for _ in range(800)]
    sources = [text.replace(" ", " uh ", 3) for text in sources]
    seen = profile_pairs(write_rows(tmp_path / "pairs.tsv", [(text, edit(text)) for text in sources]))
    assert not seen.formal


def test_texts_without_spaces_are_not_called_short() -> None:
    _, built, reasons = chosen(replace(SENTENCES, source=replace(SENTENCES.source, spaced=0.0)))
    assert built.tokenizer.source.kind == "characters"
    assert built.tokenizer.target is not None
    assert built.tokenizer.target.kind == "subwords"
    assert "source: characters, because no spaces divide the texts into words" in reasons


def test_long_texts_are_not_left_out() -> None:
    _, built, reasons = chosen(replace(SENTENCES, target=replace(SENTENCES.target, longest=(1400.0, 120.0))))
    assert built.data.max_length == 512
    assert "length: up to 512 tokens" in reasons


def test_the_model_grows_with_the_corpus() -> None:
    sizes = [10_000, 29_000, 200_000, 1_000_000, 10_000_000]
    found = [chosen(replace(SENTENCES, pairs=pairs)) for pairs in sizes]
    presets = [table["preset"] for table, _, _ in found]
    assert presets == ["transformer-small"] * 3 + ["transformer-base"] * 2
    assert [built.model.encoder.width for _, built, _ in found] == [128, 256, 256, 512, 512]
    assert [built.model.encoder.gated for _, built, _ in found] == [True, True, True, False, False]
    assert [built.train.optimizer.learning_rate for _, built, _ in found][1:4] == [3e-3, 3e-3, 7e-4]
    batches = [built.train.batch_tokens for _, built, _ in found]
    assert batches == sorted(batches)


@pytest.mark.parametrize(
    ("pairs", "gpu", "objective", "weight"),
    [(10_000, True, "r-drop", 5.0), (29_000, True, "r-drop", 1.0), (90_000, True, "likelihood", 0.0),
     (10_000, False, "likelihood", 0.0), (29_000, False, "likelihood", 0.0)],
)  # fmt: skip
def test_r_drop_is_for_few_sentences_on_a_gpu(pairs: int, gpu: bool, objective: str, weight: float) -> None:
    """On CPUs, where the usual training is shorter, it lost; with many sentences there is little to learn by heart."""
    choices = [Choice("data.train", "pairs.tsv"), *choose_pairs(replace(SENTENCES, pairs=pairs), gpu=gpu)]
    built, reasons = finish(choices, ())
    found = built.train
    assert (found.objective.kind, getattr(found.objective, "weight", 0.0)) == (objective, weight)
    assert any(reason.startswith("objective: R-drop") for reason in reasons) == (weight > 0)
    if weight:
        assert found.objective.warmup == found.steps // 4
        for given in ("likelihood", "simcut"):
            chosen, told = finish(choices, [f"train.objective.kind={given}"])
            assert chosen.train.objective.kind == given
            assert f"objective: {given}, as train.objective says" in told
        assert reasons == [choice.why for choice in choices if choice.why]
        for given, warmup in (([], found.steps // 4), (["train.objective.warmup=7"], 7)):
            shorter, _ = finish(choices, ["train.steps=400", *given])
            assert shorter.train.objective.warmup == (7 if given else 100)
            assert finish(choices, given)[0].train.objective.warmup == warmup


@pytest.mark.parametrize(
    ("given", "rate", "norm"),
    [
        ("layers=2", 3e-3, "rms"),
        ("dropout=0.1", 3e-3, "rms"),
        ("width=300", 1e-3, "layer"),
        ("attention=linear", 1e-3, "layer"),
        ("norm=post", 1e-3, "layer"),
        ("kind=recurrent", 1e-3, "layer"),
    ],
)
def test_overrides_of_sizes_keep_the_usual_transformer(
    given: str, rate: float, norm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its learning rate and its kinds of layers were measured together; other parts lead to the plain Transformer."""
    monkeypatch.setattr("dragoman.auto.configure.profile_pairs", lambda *given: replace(SENTENCES, pairs=29_000))
    path = write_rows(tmp_path / "pairs.tsv", [("a", "b")])
    sides = ("encoder",) if "recurrent" in given else ("encoder", "decoder")
    built, reasons = configure(str(path), [f"model.{side}.{given}" for side in sides])
    assert any(reason.startswith("model: transformer-t5") for reason in reasons) == (norm == "rms")
    assert built.train.optimizer.learning_rate == rate
    assert built.model.decoder.norm_kind == norm


def test_the_dropout_of_a_side_is_all_of_its_dropout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman.auto.configure.profile_pairs", lambda *given: replace(SENTENCES, pairs=29_000))
    path = write_rows(tmp_path / "pairs.tsv", [("a", "b")])
    built, _ = configure(str(path), ["model.encoder.dropout=0", "model.decoder.layers=2"])
    sides = (built.model.encoder, built.model.decoder)
    assert [(one.dropout, one.attention_dropout, one.feedforward_dropout) for one in sides] == [
        (0.0, 0.0, 0.0),
        (0.3, 0.1, 0.3),
    ]


@pytest.mark.parametrize(
    ("changed", "overrides", "kind"),
    [
        ({}, [], "phrase-based"),
        ({}, ["train.seed=2", "data.faults=skip"], "phrase-based"),
        ({}, ["train.steps=50"], "encoder-decoder"),
        ({}, ["model.encoder.layers=2"], "encoder-decoder"),
        ({}, ["search.beam=3"], "encoder-decoder"),
        ({}, ["data.general=pairs.tsv"], "encoder-decoder"),
        ({"pairs": 499}, [], "encoder-decoder"),
        ({"pairs": 5001}, [], "encoder-decoder"),
        ({"monotone": 0.3}, [], "encoder-decoder"),
        ({"copied": 0.4}, [], "phrase-based"),
        ({"copied": 0.7}, [], "encoder-decoder"),
        ({"source": side(300, 60)}, [], "encoder-decoder"),
    ],
)
def test_few_sentences_are_translated_by_phrases(
    changed: dict[str, Any], overrides: list[str], kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever sets something of a neural model or of its training gets one."""
    seen = replace(SENTENCES, **{"pairs": 2000, "monotone": 0.7} | changed)
    monkeypatch.setattr("dragoman.auto.configure.profile_pairs", lambda *given: seen)
    path = write_rows(tmp_path / "pairs.tsv", [("a", "b")])
    built, reasons = configure(str(path), overrides)
    assert built.model.kind == kind
    tip = any("preset=phrase-based is as good or better" in reason for reason in reasons)
    assert tip == (bool(overrides) and kind == "encoder-decoder")
    assert configure(str(path), overrides, neural=True)[0].model.kind == "encoder-decoder"
    tried = "phrase-based" in configure_candidates(str(path), ["train.device=cpu"])[0]
    assert tried == ("source" not in changed)  # long sentences take seconds each


def test_a_gpu_needs_phrases_for_fewer_sentences() -> None:
    """With 4,000 pairs and R-drop a neural model is as good, and it can be exported."""
    few, more = (replace(SENTENCES, pairs=pairs, monotone=0.7) for pairs in (3000, 4000))
    assert [phrases_for(seen, gpu) is not None for seen in (few, more) for gpu in (False, True)] == [True] * 3 + [False]


def test_training_starts_with_rate_and_model_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = write_rows(tmp_path / "pairs.tsv", [(word, word[::-1]) for word in words(60)])
    before, _ = configure(str(pairs))
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.toml").write_text(dump(before))
    monkeypatch.setattr("dragoman.auto.configure.profile_pairs", lambda *given: replace(SENTENCES, pairs=29_000))
    monkeypatch.setattr("dragoman.auto.configure.trains_on_gpu", lambda given: True)
    built, reasons = configure(str(pairs), [f"train.start_from={tmp_path / 'run'}"])
    assert built.model == before.model
    assert built.train.objective.kind == "likelihood"  # R-drop was chosen for training from random weights
    assert not any(reason.startswith("objective:") for reason in reasons)
    assert built.train.optimizer.learning_rate == before.train.optimizer.learning_rate
    assert not any(reason.startswith("model:") for reason in reasons)


@pytest.mark.parametrize(("gpu", "width", "most"), [(False, 128, 6000), (True, 256, 12_000)])
def test_few_sentences_are_read_often(gpu: bool, width: int, most: int) -> None:
    """A training has a fixed number of steps at least, unless these would be over 300 epochs."""
    sizes = (60, 500, 2000, 3000, 5000, 20_000)
    found = [table_of(choose_pairs(replace(SENTENCES, pairs=pairs), gpu=gpu)) for pairs in sizes]
    built = [config.build(merge(table, {"data": {"train": "pairs.tsv"}})) for table in found]
    assert {(one.model.encoder.width, one.model.encoder.gated) for one in built} == {(width, True)}
    tokens = [one.train.steps * one.train.batch_tokens for one in built]
    assert tokens == sorted(tokens)
    assert tokens[0] == 2_048_000
    assert built[4].train.steps == most
    assert built[5].train.steps >= most


@pytest.mark.parametrize(("gpu", "every"), [(False, 240), (True, 150)])
def test_cpus_validate_less_often(gpu: bool, every: int) -> None:
    """Not where patience is long: it would never stop training then."""
    seen = replace(WORDS, pairs=8000)
    train = table_of(choose_pairs(seen, gpu=gpu, candidate=by_name("wu-2019")))["train"]
    assert (train["patience"], train["validate_every"]) == (10, every)
    train = table_of(choose_pairs(seen, gpu=gpu, candidate=by_name("luong-256")))["train"]
    assert train["patience"] == 20
    assert train["validate_every"] == train["steps"] // 40


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("pairs", [2, 50, 300, 2000, 5001, 20_001, 300_001, 2_000_000, 50_000_000])
def test_the_budget_is_sane(kind: PairProfile, pairs: int) -> None:
    _, built, reasons = chosen(replace(kind, pairs=pairs))
    train = built.train
    budget = re.search(
        r"budget: ([\d,]+) steps of ([\d,]+) tokens, about (\d+) epochs, validated every (\d+) steps", reasons
    )
    assert budget
    assert [int(number.replace(",", "")) for number in (budget[1], budget[2], budget[4])] == [
        train.steps,
        train.batch_tokens,
        train.validate_every,
    ]
    assert f"{train.patience} validations without a better {train.metric}" in reasons
    epochs = int(budget[3])
    assert epochs >= 5
    assert 1000 <= train.steps <= 3_000_000
    if pairs >= 2000:
        assert epochs <= 250
    # Often enough to stop in time, seldom enough not to spend its time on that.
    assert 20 <= train.validate_every <= 1000
    assert train.patience * train.validate_every <= train.steps / 2
    assert train.save_every == train.validate_every
    assert train.optimizer.warmup <= train.steps / 4
    assert len(reasons.splitlines()) >= 3


# ---------------------------------------------------------------------- learning


@pytest.mark.slow  # the tour of the README learns from a file alone too, in less time
def test_two_thousand_words_are_learned_in_two_minutes(cached: Path, tmp_path: Path) -> None:
    """No configuration, one core: the choices must lead to a model that is right about words it has never seen."""
    some = words(2300, seed=5, shortest=3, longest=5, letters="abcdefghijklmnop")
    random.Random(0).shuffle(some)
    write_rows(tmp_path / "names.tsv", [(word, word.upper()) for word in some[:2000]])
    write_rows(tmp_path / "test.tsv", [(word, word.upper()) for word in some[2000:]])
    started = time.process_time()
    said = call("train", tmp_path / "names.tsv", "--run", tmp_path / "run")
    spent = time.process_time() - started
    assert said.code == 0, said.err
    assert "because the texts are short (4 characters on average)" in said.err
    assert "(stopped early)" in said.err
    scores = json.loads(call("evaluate", tmp_path / "run", tmp_path / "test.tsv", "--json").out)
    assert scores["exact_match"] > 0.9
    assert spent < 120


def test_training_says_that_longer_would_help(cached: Path, tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "pairs.tsv", [(word, word) for word in words(60)])
    common = ("train.validate_every=4", "train.metric=loss", "preset=transformer-tiny")
    said = call("train", rows, "--run", tmp_path / "run", *common, "train.steps=12", "train.save_every=12")
    found = re.search(r"second half of training improved loss from ([\d.]+) to ([\d.]+)", said.err)
    assert found is not None
    assert float(found[2]) < float(found[1])
    assert f"dragoman train {tmp_path / 'run'} train.steps=24" in said.err
    settled = TrainingState(step=12, best=[(-2.0, 4)])
    assert longer_line(str(tmp_path / "run"), Run(tmp_path / "run").config, settled) == ""


FOR_PAIRS = [name for name in config.preset_names() if "task" not in config.preset_table(name)]


@pytest.mark.parametrize("preset", [name for name in FOR_PAIRS if not name.startswith("demo-")])
@pytest.mark.parametrize("seen", KINDS.values(), ids=KINDS)
def test_any_preset_can_be_asked_for(preset: str, seen: PairProfile) -> None:
    built, reasons = finish([Choice("data.train", "pairs.tsv"), *choose_pairs(seen, preset)], ())
    model = built.model
    asked = config.build({"preset": preset, "data": {"train": "pairs.tsv"}}).model
    for part in ("encoder", "decoder"):
        assert getattr(model, part, model) == getattr(asked, part, asked)
    assert f"preset: {preset}, as asked" in reasons


# ---------------------------------------------------------------------- what is asked for on top


def test_faults_are_left_out_where_that_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "rows.tsv"
    path.write_bytes(b"good film\tyes\nno column\nbad film\tno\n" * 3)
    skip = "data.faults=skip"
    for task in ("translate", "classify"):
        with pytest.raises(DataError, match="found 1 column"):
            configure(str(path), [f"task={task}"])
        assert configure(str(path), [f"task={task}", skip])[0].data.faults == "skip"


def test_settings_of_what_is_chosen_can_be_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "tags.tsv"
    path.write_text("a\tD\ndog\tN\n\na\tD\ncat\tN\n\n")
    built, _ = configure(str(path), ["task=tag", "model.encoder.inner.width=48"])
    model: Any = built.model
    assert (model.encoder.kind, model.encoder.inner.width) == ("character-words", 48)
    other, _ = configure(str(path), ["task=tag", "model.encoder.kind=recurrent", "model.encoder.width=48"])
    model = other.model
    assert (model.encoder.kind, model.encoder.width) == ("recurrent", 48)
    path.write_text("good film\tpos\nbad film\tneg\nso so\tneg\n")
    other, _ = configure(str(path), ["task=classify", "model.encoder.kind=transformer"])
    model = other.model
    assert model.encoder.kind == "transformer"
    path.write_text("1 2 3\t4\n2 3 4\t5\n3 4 5\t6\n")
    series, _ = configure(str(path), ["task=regress", "tokenizer.source.scale=standard"])
    assert series.tokenizer.source.kind == "numbers"
    with pytest.raises(ConfigError, match=r"model\.encoder\.widht"):
        configure(str(path), ["task=regress", "model.encoder.widht=48"])


@pytest.mark.parametrize("over", [["model.next_sentence=true"], ["model.kind=bilm"]])
def test_other_ways_to_pretrain_need_one_setting(over: list[str], tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("one line\nanother line\na third\n" * 5)
    configure(str(path), ["task=masked-language-model", *over])


@pytest.mark.parametrize("kind", ["masked-lm", "bilm"])
def test_a_run_to_start_from_says_how_to_read(kind: str, tmp_path: Path) -> None:
    text, rows, run = tmp_path / "text.txt", tmp_path / "rows.tsv", tmp_path / "run"
    text.write_text("one line\nanother line\na third\n" * 5)
    rows.write_text("one line\tyes\nanother line\tno\na third\tno\n" * 5)
    first = [
        "task=masked-language-model", f"model.kind={kind}", "tokenizer.source.kind=characters", "train.steps=2",
        "train.validate_every=2", "model.encoder.layers=1", "model.encoder.width=32", "data.max_length=60",
    ]  # fmt: skip
    assert call("train", text, *first, "--run-folder", run).code == 0
    said = call(
        "train", rows, "task=classify", f"train.start_from={run}", "train.steps=2", "--run-folder", tmp_path / "b"
    )
    assert said.code == 0, said.err
    assert "the encoder of the run it starts from" in said.err
    assert json.loads((tmp_path / "b/data.json").read_text())["train"]["pairs"]
    again = call(
        "train",
        rows,
        "task=classify",
        f"train.start_from={tmp_path}/b",
        "train.steps=2",
        "--run-folder",
        tmp_path / "c",
    )
    assert again.code == 0, again.err


@pytest.mark.parametrize("kind", ["luong", "recurrent", "convs2s"])
def test_a_decoder_of_another_kind_drops_the_automatic_sizes(tmp_path: Path, kind: str) -> None:
    """The automatic sizes are those of a Transformer; `heads` is no setting of the others."""
    rows = [(f"word{number}", f"drow{number}") for number in range(400)]
    path = write_rows(tmp_path / "pairs.tsv", rows)
    chosen, _ = configure(str(path), [f"model.decoder.kind={kind}"])
    assert chosen.model.decoder.kind == kind
    assert chosen.model.encoder.width == 64
    assert chosen.train.optimizer.learning_rate < 4e-3, "that rate is for the automatic model"
    same, _ = configure(str(path), ["model.decoder.layers=1"])
    assert same.model.decoder.width == 64
    assert same.train.optimizer.learning_rate == 4e-3


# ---------------------------------------------------------------------- bad input


def reasons_for(path: Path, rows: list[tuple[str, str]], *overrides: str) -> str:
    return "\n".join(configure(str(write_rows(path, rows)), list(overrides))[1])


def test_senseless_pairs_are_told(tmp_path: Path) -> None:
    same = reasons_for(tmp_path / "same.tsv", [(f"word{number}", "one") for number in range(60)])
    assert "warning: all targets are the same text" in same
    equal = reasons_for(tmp_path / "equal.tsv", [(f"word{number}", f"word{number}") for number in range(60)])
    assert "warning: every source equals its target" in equal
    two = reasons_for(tmp_path / "two.tsv", [("a", "b"), ("c", "d")])
    assert "budget:" in two


def test_swapped_columns_of_the_validation_file_are_told(tmp_path: Path) -> None:
    rows = [(word, " ".join(word.upper())) for word in words(300, seed=2, shortest=3, longest=6, letters="abcdefgh")]
    write_rows(tmp_path / "swapped.tsv", [(target, source) for source, target in rows[:40]])
    write_rows(tmp_path / "straight.tsv", rows[:40])
    said = reasons_for(tmp_path / "pairs.tsv", rows, f"data.valid={tmp_path / 'swapped.tsv'}")
    assert "the columns of data.valid seem to be in the other order" in said
    said = reasons_for(tmp_path / "pairs.tsv", rows, f"data.valid={tmp_path / 'straight.tsv'}")
    assert "in the other order" not in said
    assert "100 % of the validation sources are also training sources" in said


def test_the_order_of_the_pairs_is_measured(tmp_path: Path) -> None:
    some = words(300, seed=4, shortest=4, longest=7, letters="abcdefghijklm")
    kept = profile_pairs(str(write_rows(tmp_path / "kept.tsv", [(word, word.upper()) for word in some])))
    reversed_pairs = [(word, word[::-1].upper()) for word in some]
    turned = profile_pairs(str(write_rows(tmp_path / "turned.tsv", reversed_pairs)))
    assert kept.monotone > 0.9
    assert turned.monotone < -0.5


def test_features_are_recognised(tmp_path: Path) -> None:
    rows = [(f"{word} V;{tense};SG", word + tense.lower()) for word in words(200, seed=5) for tense in ("PST", "PRS")]
    built, reasons = configure(str(write_rows(tmp_path / "forms.tsv", rows)))
    assert built.tokenizer.source.features == " ;"
    assert "whole features" in "\n".join(reasons)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("pairs", [30, 7000, 29_000, 400_000])
def test_a_search_begins_with_the_usual_choice(
    kind: str, pairs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = replace(KINDS[kind], pairs=pairs)
    monkeypatch.setattr("dragoman.auto.configure.profile_pairs", lambda *given: seen)
    path = str(write_rows(tmp_path / "pairs.tsv", [("source", "target"), ("a", "b")]))
    configs, reasons = configure_candidates(path, ["train.device=cpu"])
    usual, why = configure(path, ["train.device=cpu"])
    assert next(iter(configs.values())) == usual
    assert all(one.data.header for one in configs.values())
    assert reasons[0] == why[0] == "header: the first line (source, target) names the columns and is no pair"
    assert len(configs) > 5


@pytest.mark.parametrize("kind", ["non-autoregressive", "ngram-transducer"])
def test_choices_yield_to_the_model_that_the_user_sets(tmp_path: Path, kind: str) -> None:
    """model.tie, model.encoder and model.decoder, which the user never set, were errors."""
    path = write_rows(tmp_path / "pairs.tsv", [(word, word[::-1]) for word in words(300)])
    built, reasons = configure(str(path), [f"model.kind={kind}"])
    assert built.model.kind == kind
    assert f"model: {kind}, as you set it" in reasons
    assert not any(reason.startswith("preset:") for reason in reasons)


def test_mistakes_of_the_user_are_told_as_the_user_made_them(tmp_path: Path) -> None:
    path = str(write_rows(tmp_path / "pairs.tsv", [(word, word[::-1]) for word in words(300)]))
    with pytest.raises(ConfigError, match=r"^model.encoder.heads: found 3"):
        configure(path, ["preset=transformer-tiny", "model.encoder.heads=3"])
    with pytest.raises(ConfigError, match=r"^model.tie: found \"target\""):
        configure(path, ["model.kind=non-autoregressive", "model.tie=target"])


@pytest.mark.parametrize(("task", "sources", "ends"), [("classify", "letters", 1), ("regress", "1 2 3 4", 0)])
def test_a_dense_encoder_reads_as_much_as_it_has_positions(tmp_path: Path, task: str, sources: str, ends: int) -> None:
    rows = [(f"{sources} {number}", str(number % 2)) for number in range(40)]
    path = str(write_rows(tmp_path / "rows.tsv", rows))
    built, reasons = configure(path, [f"task={task}", "model.encoder.kind=dense"])
    assert built.data.max_length == built.model.encoder.max_positions - ends
    assert any(reason.startswith(f"length: up to {32 - ends} tokens") for reason in reasons)
    with pytest.raises(ConfigError, match=r"^data.max_length: found 100"):
        configure(path, [f"task={task}", "model.encoder.kind=dense", "data.max_length=100"])


def test_a_segment_that_the_user_sets_bounds_the_memory(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "text.txt", [(f"{word} {word}",) for word in words(300)])
    built, _ = configure(str(path), ["task=language-model", "model.segment=64"])
    assert (built.model.segment, built.model.memory) == (64, 64)
