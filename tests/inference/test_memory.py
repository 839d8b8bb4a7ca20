"""A translation memory: exact matches are taken as they are and marked, fuzzy ones are those of brute force."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from rapidfuzz.distance import Levenshtein

import dragoman
from dragoman.base.errors import ConfigError, DataError
from dragoman.data.translation_memory import TranslationMemory, words_and_signs
from tests.conftest import TrainedFolder, call, words


@pytest.fixture
def memory(inside: TrainedFolder) -> Path:
    return inside.write("memory.tsv", "abc\told\nabc\tfrom memory\nfhg\tother\n")


def test_exact_matches_are_taken_and_marked(inside: TrainedFolder, memory: Path) -> None:
    run = dragoman.load(inside.run)
    plain = run.predict(["abc", "abd", "", "fhg"])
    outputs = run.predict(["abc", "abd", "", "fhg"], memory=memory)
    assert [output.text for output in outputs] == ["from memory", plain[1].text, "", "other"]
    assert [output.from_memory for output in outputs] == [True, False, False, True]
    assert outputs[0].as_table()["memory"] == {"score": 1.0, "source": "abc", "target": "from memory"}
    shown = call("predict", inside.run, "--memory", memory, "--json", stdin=b"abc\nabd\n")
    assert [json.loads(line).get("memory", {}).get("score") for line in shown.lines] == [1.0, None]
    assert "1 outputs are those of the memory" in shown.err
    # What a caller demands of outputs goes before the memory.
    assert run.predict(["abc"], memory=memory, prefix="A")[0].text.startswith("A")


def test_a_match_has_as_many_alternatives_as_are_asked_for(inside: TrainedFolder, memory: Path) -> None:
    run = dragoman.load(inside.run)
    searched = run.predict(["abc"], beam=4, n_best=4)[0]
    match, other = run.predict(["abc", "abd"], beam=4, n_best=4, memory=memory)
    assert (match.text, match.from_memory, len(match.alternatives)) == ("from memory", True, 3)
    assert [one.text for one in match.alternatives] == [searched.text, *[one.text for one in searched.alternatives[:2]]]
    assert not any(one.alternatives or one.from_memory for one in match.alternatives)
    assert len(other.alternatives) == 3
    # One of the search that says the same is no alternative.
    same = inside.write("same.tsv", f"abc\t{searched.text}\n")
    match = run.predict(["abc"], beam=4, n_best=4, memory=same)[0]
    assert [one.text for one in match.alternatives] == [one.text for one in searched.alternatives]
    shown = call("predict", inside.run, "--memory", memory, "--json", "--beam", 4, "--n-best", 4, stdin=b"abc\n")
    table = json.loads(shown.lines[0])
    assert (table["text"], len(table["alternatives"])) == ("from memory", 3)


def test_documents_say_what_the_memory_had(inside: TrainedFolder, memory: Path, tmp_path: Path) -> None:
    units = "".join(f'<trans-unit id="{text}"><source>{text}</source></trans-unit>' for text in ("abc", "abd"))
    file = tmp_path / "a.xlf"
    file.write_text(f'<xliff version="1.2"><file source-language="en"><body>{units}</body></file></xliff>')
    result = call("translate", inside.run, file, "-o", tmp_path / "b.xlf", "--memory", memory)
    assert result.code == 0, result.err
    assert "1 from memory" in result.err
    written = (tmp_path / "b.xlf").read_text()
    assert 'state-qualifier="exact-match">from memory<' in written
    assert written.count("mt-suggestion") == 1


def test_fuzzy_matches_are_those_of_brute_force() -> None:
    draw, vocabulary = random.Random(1), words(60)
    segments = [" ".join(draw.choices(vocabulary, k=draw.randint(3, 12))) for _ in range(400)]
    memory = TranslationMemory((text, text.upper()) for text in segments)
    for text in draw.sample(segments, 60):
        query = text.split()
        query[draw.randrange(len(query))] = draw.choice(vocabulary)
        changed = " ".join(query)
        best = max(Levenshtein.normalized_similarity(query, other.split()) for other in segments)
        found = memory.fuzzy(changed, 0.5)
        assert (found[0].score if found else 0.0) == pytest.approx(best if best >= 0.5 else 0.0)
        assert all(match.target == match.source.upper() for match in found)


def test_texts_that_are_nearly_the_same() -> None:
    memory = TranslationMemory([("Press  Start.", "a"), ("按下按钮", "b"), ("Ünïcode", "c")])
    assert memory.exact("Press Start. ") == "a"
    assert memory.exact("press start.") is None
    assert memory.fuzzy("press start.")[0].score == 0.99
    assert memory.fuzzy("按下按键")[0].target == "b"
    assert memory.exact("ünïcode") is None
    assert memory.fuzzy("") == memory.fuzzy("nothing of it") == []
    assert words_and_signs("Don't stop 按下!") == ["don", "'", "t", "stop", "按", "下", "!"]


def test_mistakes(inside: TrainedFolder, tmp_path: Path) -> None:
    run = dragoman.load(inside.run)
    with pytest.raises(DataError, match=r"missing\.tsv"):
        run.predict(["a"], memory="missing.tsv")
    with pytest.raises(DataError, match="needs a source and a target in every line"):
        run.predict(["a"], memory=inside.write("one.tsv", "a\n"))
    with pytest.raises(DataError, match="found no pair"):
        run.predict(["a"], memory=inside.write("empty.tsv", ""))
    with pytest.raises(ConfigError, match="min_match: found 0"):
        run.predict(["a"], min_match=0.0)
    (tmp_path / "broken.tmx").write_text("<tmx>")
    assert call("predict", inside.run, "--memory", tmp_path / "broken.tmx", stdin=b"a\n").code == 2
    assert call("predict", inside.run, "--memory", inside.run, stdin=b"a\n").code == 2
