"""The rate of words that do not exist."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dragoman.base import DataError
from dragoman.scoring.word_list import invalid_words
from tests.conftest import call


def test_words_of_outputs_that_a_list_lacks() -> None:
    texts = ["The dag, don’t bark 3 times! The dag sleeps.", "Well-known Bernd", ""]
    known = ["the\t12", "don't", "bark", "times", "sleeps", "Bernd", ""]
    found = invalid_words(texts, known)  # the dag don't bark times the dag sleeps well-known Bernd
    assert (found.words, found.invalid) == (10, 3)
    assert found.examples == [("dag", 2), ("Well-known", 1)]
    assert found.rate == pytest.approx(0.3)
    assert invalid_words(["bernd"], known).invalid == 1  # a name in small letters is no word of the list
    assert invalid_words(["12 ..."], known).rate == 0
    with pytest.raises(DataError, match="empty"):
        invalid_words(texts, ["", " "])


def test_the_rate_by_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("out.txt").write_text("the dag\nthe dog\n")
    Path("ref.txt").write_text("the dog\nthe dog\n")
    Path("words.txt").write_text("the\ndog\n")
    assert call("score", "out.txt", "--words", "words.txt").lines[:2] == ["invalid words      25.00%   1 of 4", "dag"]
    both = json.loads(call("score", "out.txt", "ref.txt", "--words", "words.txt", "--metric", "wer", "--json").out)
    assert (both["invalid_words"]["rate"], both["wer"]) == (0.25, 0.25)
    for arguments in (("out.txt",), ("out.txt", "--words", "words.txt", "--metric", "wer")):
        told = call("score", *arguments)
        assert (told.code, "found no references; expected a file of them, or --words alone" in told.err) == (2, True)
