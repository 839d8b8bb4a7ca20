"""Error rates, exact match, BLEU and chrF against jiwer and sacreBLEU."""

from __future__ import annotations

import json
import logging
import random
import subprocess
import sys
from functools import partial
from pathlib import Path

import jiwer
import pytest
import sacrebleu
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.base.errors import DataError
from dragoman.base.version import __version__
from dragoman.scoring.registry import metrics_for
from dragoman.scoring.report import score_table

ROOT = Path(__file__).resolve().parents[2]
WORDS = [
    "The",
    "the",
    "cat",
    "dog's",
    "sat,",
    "on",
    "(a)",
    "mat.",
    "1,5",
    "Straße",
    "語る",
    "naïve",
    "!",
    "ok",
]


def counts(metric: str, hypotheses: list[str], references: list[list[str]]) -> list[tuple[float, ...]]:
    """The statistics of every segment: edits and reference length, or matches and 1."""
    return [tuple(row) for row in metrics_for("words")[metric].statistics(hypotheses, references).rows.tolist()]


def rate(metric: str, hypotheses: list[str], references: list[list[str]]) -> float:
    return score_table(hypotheses, references, [metric])[metric]


def sentence(draw: random.Random, shortest: int = 1) -> str:
    return " ".join(draw.choices(WORDS, k=draw.randint(shortest, 12)))


def corrupted(draw: random.Random, text: str) -> str:
    return " ".join(draw.choice(WORDS) if draw.random() < 0.2 else word for word in text.split())


def corpus(seed: int, segments: int, references: int) -> tuple[list[str], list[list[str]]]:
    draw = random.Random(seed)
    truth = [sentence(draw) for _ in range(segments)]
    hypotheses = [corrupted(draw, text) + draw.choice(["", " cat", " the end"]) for text in truth]
    return hypotheses, [[text] + [corrupted(draw, text) for _ in range(references - 1)] for text in truth]


@pytest.mark.parametrize("seed", range(5))
def test_error_rates_equal_jiwer(seed: int) -> None:
    hypotheses, references = corpus(seed, segments=60, references=1)
    hypotheses[3] = ""
    hypotheses[4] = "  the   cat "
    single = [texts[0] for texts in references]
    assert rate("wer", hypotheses, references) == pytest.approx(jiwer.wer(single, hypotheses), abs=1e-12)
    assert rate("cer", hypotheses, references) == pytest.approx(jiwer.cer(single, hypotheses), abs=1e-12)


def test_error_rates_keep_segment_statistics() -> None:
    hypotheses, references = ["a b c", "x", ""], [["a c"], ["x"], ["p q"]]
    assert counts("wer", hypotheses, references) == [(1, 2), (0, 1), (2, 2)]
    assert rate("wer", hypotheses, references) == 3 / 5
    assert counts("cer", [" a b\n"], [["a  b"]]) == [(1, 4)]


def test_error_rate_takes_the_closest_and_of_those_the_longest_reference() -> None:
    assert counts("wer", ["a b c"], [["x y z", "a b", "a b c d", "a"]]) == [(1, 4)]
    # Closest means fewest edits, even where another reference would give the smaller rate (2/4 < 1/1).
    assert counts("wer", ["a b"], [["a b c d", "a"]]) == [(1, 1)]


def test_error_rate_without_reference_symbols() -> None:
    assert rate("wer", [""], [[" "]]) == 0.0
    assert rate("wer", ["a b"], [[""]]) == 2.0 == jiwer.wer([""], ["a b"])
    # One empty reference among others changes only the sum.
    assert rate("wer", ["a b", "c"], [[""], ["c"]]) == 2.0


def test_error_rate_may_exceed_one() -> None:
    assert rate("wer", ["a b c"], [["x"]]) == 3.0


@given(st.lists(st.text("ab ", max_size=8), min_size=1, max_size=4), st.text("ab ", max_size=8))
@settings(deadline=None)
def test_another_reference_never_adds_edits(texts: list[str], hypothesis: str) -> None:
    for metric in ("wer", "cer"):
        fewest = min(counts(metric, [hypothesis], [[text]])[0][0] for text in texts)
        assert counts(metric, [hypothesis], [texts])[0][0] == fewest


def test_exact_matches() -> None:
    hypotheses = ["a b ", "A b", "a  b", "", "c"]
    references = [["x", "\ta b"], ["a b"], ["a b"], ["x", " "], ["x", "y"]]
    assert counts("exact_match", hypotheses, references) == [(1, 1), (0, 1), (0, 1), (1, 1), (0, 1)]


@pytest.mark.parametrize("references", [1, 2, 4])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_bleu_and_chrf_equal_sacrebleu(seed: int, references: int) -> None:
    hypotheses, texts = corpus(seed, segments=40, references=references)
    scores = score_table(hypotheses, texts)
    streams = [list(stream) for stream in zip(*texts, strict=True)]
    assert 5 < scores["bleu"] < 99
    assert scores["bleu"] == pytest.approx(sacrebleu.corpus_bleu(hypotheses, streams).score, abs=1e-9)
    assert scores["chrf"] == pytest.approx(sacrebleu.corpus_chrf(hypotheses, streams).score, abs=1e-9)
    assert scores["segments"] == 40
    assert f"nrefs:{references}|case:mixed|eff:no|tok:13a|smooth:exp|" in scores["signatures"]["bleu"]
    assert f"nrefs:{references}|case:mixed|eff:yes|nc:6|nw:0|space:no|" in scores["signatures"]["chrf"]
    assert scores["signatures"]["bleu"].endswith(f"version:{sacrebleu.__version__}")


def test_references_in_varying_number() -> None:
    hypotheses, texts = corpus(9, segments=40, references=3)
    ragged = [choices[: 1 + number % 3] for number, choices in enumerate(texts)]
    scores = score_table(hypotheses, ragged)
    # A reference given twice changes neither clipped counts, closest length nor best F: ragged = repeated.
    padded = [(choices * 3)[:3] for choices in ragged]
    streams = [list(stream) for stream in zip(*padded, strict=True)]
    assert scores["bleu"] == pytest.approx(sacrebleu.corpus_bleu(hypotheses, streams).score, abs=1e-9)
    assert scores["chrf"] == pytest.approx(sacrebleu.corpus_chrf(hypotheses, streams).score, abs=1e-9)
    assert scores["bleu"] != pytest.approx(score_table(hypotheses, texts)["bleu"], abs=1e-6)
    assert all(signature.startswith("nrefs:var|") for signature in scores["signatures"].values())


def test_order_of_references_does_not_matter() -> None:
    hypotheses, texts = corpus(4, segments=30, references=3)
    ragged = [choices[: 1 + number % 3] for number, choices in enumerate(texts)]
    forwards, backwards = score_table(hypotheses, ragged), score_table(hypotheses, [r[::-1] for r in ragged])
    assert backwards["wer"] == forwards["wer"]
    assert backwards["cer"] == forwards["cer"]
    assert backwards["bleu"] == pytest.approx(forwards["bleu"], abs=1e-9)


def test_scores_of_words() -> None:
    hypotheses, references = ["the cat sat", "a dog ran off"], [["the cat sat"], ["a dog ran"]]
    scores = score_table(hypotheses, references)
    assert scores["wer"] == rate("wer", hypotheses, references) == 1 / 6
    assert scores["cer"] == rate("cer", hypotheses, references) == 4 / 20
    assert scores["exact_match"] == 0.5
    assert "per" not in scores
    own = f"nrefs:1|case:mixed|tok:{{}}|version:dragoman-{__version__}"
    assert scores["signatures"]["wer"] == own.format("space")
    assert scores["signatures"]["cer"] == own.format("char")
    assert scores["signatures"]["exact_match"] == own.format("none")
    assert set(scores["signatures"]) == {"bleu", "chrf", "wer", "cer", "exact_match"}


def test_scores_of_phonemes() -> None:
    hypotheses = ["K AE T", "D AA G", "HH AW S", "AH"]
    references = [["K AE T"], ["D AO G", "D AA G"], ["HH AW Z"], ["EY", "AH B"]]
    scores = score_table(hypotheses, references, units="phonemes")
    assert scores["per"] == rate("wer", hypotheses, references) == 2 / 11
    assert scores["wer"] == 0.5
    assert scores["exact_match"] == 0.5
    assert scores["signatures"]["per"].startswith("nrefs:var|case:mixed|tok:space|")
    assert scores["signatures"]["wer"].startswith("nrefs:var|case:mixed|tok:none|")


def test_phonemes_and_words_differ_only_in_wer_and_per() -> None:
    hypotheses, references = corpus(2, segments=10, references=1)
    words = score_table(hypotheses, references)
    phonemes = score_table(hypotheses, references, units="phonemes")
    assert phonemes["per"] == words["wer"]
    assert phonemes["wer"] == pytest.approx(1 - words["exact_match"])
    assert phonemes["wer"] != words["wer"]
    assert (phonemes["bleu"], phonemes["chrf"], phonemes["cer"]) == (words["bleu"], words["chrf"], words["cer"])


def test_the_table_is_valid_json() -> None:
    words = score_table(["the cat sat on it"], [["the cat sat on it"]])
    assert json.loads(json.dumps(words)) == words
    assert "per" not in words
    assert score_table(["K AE T"], [["K AE P"]], units="phonemes")["per"] == 1 / 3


def test_scores_are_case_sensitive() -> None:
    scores = score_table(["THE CAT SAT ON IT"], [["the cat sat on it"]])
    assert (scores["bleu"], scores["chrf"], scores["exact_match"], scores["wer"]) == (0.0, 0.0, 0.0, 1.0)


@pytest.mark.parametrize(
    "score", [score_table, partial(rate, "wer"), partial(rate, "cer"), partial(rate, "exact_match")]
)
class TestUnusableInput:
    def test_nothing(self, score) -> None:
        with pytest.raises(DataError, match="nothing to score: "):
            score([], [])

    def test_different_counts(self, score) -> None:
        with pytest.raises(DataError, match=r"\b3 hypotheses.*\b2 segments"):
            score(["a", "b", "c"], [["a"], ["b"]])
        with pytest.raises(DataError, match=r"\b0 hypotheses.*\b1 segments"):
            score([], [["a"]])

    def test_segment_without_reference(self, score) -> None:
        with pytest.raises(DataError, match="segment 2: found no reference"):
            score(["a", "b"], [["a"], []])

    def test_bare_string_for_references(self, score) -> None:
        with pytest.raises(DataError, match="segment 1: found a string"):
            score(["cat"], ["cat"])


@pytest.mark.parametrize(
    ("hypothesis", "reference"), [("a b c d .", "a b c d ."), ("K", "K"), ("", "K"), ("K", ""), ("", "")]
)
def test_nothing_is_logged_or_printed(
    hypothesis: str, reference: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level(logging.DEBUG):
        scores = score_table([hypothesis] * 150, [[reference]] * 150, units="phonemes")
    assert caplog.records == []
    assert capfd.readouterr() == ("", "")
    assert scores["bleu"] == pytest.approx(100.0 if hypothesis.endswith(".") else 0.0)


def test_the_silenced_warning_exists(caplog: pytest.LogCaptureFixture) -> None:
    """If sacreBLEU drops its warning, the test above proves nothing."""
    lines = ["a b c d ."] * 150
    loud = sacrebleu.corpus_bleu(lines, [lines])
    assert any("tokenized period" in record.message for record in caplog.records)
    assert score_table(lines, [[line] for line in lines])["bleu"] == pytest.approx(loud.score, abs=1e-9)


def test_import_does_not_pull_in_sacrebleu() -> None:
    code = "import sys, dragoman.scoring; print('sacrebleu' in sys.modules, 'torch' in sys.modules)"
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert (run.stdout.strip(), run.stderr) == ("False False", "")
