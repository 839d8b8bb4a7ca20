"""Worked numbers: those of the textbooks, as printed there, and brute force where a reader brings other numbers."""

from __future__ import annotations

import itertools
import json
import math
import random
import re
import shlex
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

import dragoman
from dragoman.base.errors import ConfigError, DataError, DragomanError
from dragoman.lecture import write_toys
from dragoman.lecture.worked_numbers import WORKED, worked, worked_names, worked_settings
from tests.conftest import call


def results(name: str, *values: str) -> dict[str, Any]:
    return worked(name, values).results


def test_every_calculation_works_out_the_textbooks_numbers() -> None:
    for name in WORKED:
        found = worked(name)
        assert found.lines
        assert json.loads(json.dumps(found.as_dict()))["results"]
        assert worked_names()[name].endswith(".")
        assert worked_settings(name)


def test_attention() -> None:
    found = results("attention")
    assert found["scaled"] == [[14.0, 12.0]]
    assert found["weights"][0] == pytest.approx([0.88, 0.12], abs=5e-3)
    own = results("attention", "queries=1,0;0,1", "keys=1,0;0,1;1,1", "values=1,2;3,4;5,6")
    powers = [math.exp(one / math.sqrt(2)) for one in (1, 0, 1)]
    shares = [one / sum(powers) for one in powers]
    assert own["weights"][0] == pytest.approx(shares)
    assert own["output"][0] == pytest.approx(
        [shares[0] + 3 * shares[1] + 5 * shares[2], 2 * shares[0] + 4 * shares[1] + 6 * shares[2]]
    )


def test_positions_of_width_four() -> None:
    table = results("positions")["positions"]
    for place, row in enumerate(table):
        assert row == pytest.approx([math.sin(place), math.cos(place), math.sin(place / 100), math.cos(place / 100)])


def test_gates_share_all_of_a_state() -> None:
    assert results("gates")["weights"] == pytest.approx([0.36, 0.36, 0.18, 0.1])
    assert sum(results("gates", "update=0.1,0.9,0.3,0.6")["weights"]) == pytest.approx(1)


@pytest.mark.parametrize(
    ("layers", "counts"),
    [
        ("rnn:1x2,dense:2x1", (8, 3)),
        ("rnn:1x2,attention:2x20,dense:2x1", (8, 22, 3)),
        ("lstm:74x256,lstm:78x256,dense:256x78", (338_944, 343_040, 20_046)),
        ("lstm:1x100,lstm:100x100,dense:100x2", (40_800, 80_400, 202)),
        ("embedding:20000x128,lstm:128x128,dense:128x1", (2_560_000, 131_584, 129)),
        ("coupled-lstm:74x256", (3 * 338_944 // 4,)),
    ],
)
def test_parameters(layers: str, counts: tuple[int, ...]) -> None:
    found = results("parameters", f"layers={layers}")
    assert tuple(found["layers"].values()) == counts
    assert found["total"] == sum(counts)


def test_fibonacci_is_exact() -> None:
    found = results("fibonacci", "count=78")
    expected = [1, 1]
    while len(expected) < 78:
        expected.append(expected[-1] + expected[-2])
    assert found["numbers"] == expected
    assert found["parameters"] == 11
    assert results("fibonacci", "start=2,1", "count=6")["numbers"] == [2, 1, 3, 4, 7, 11]  # Lucas
    assert results("fibonacci", "weights=1,2", "count=6")["numbers"] == [1, 1, 3, 5, 11, 21]  # Jacobsthal


def test_edit_distances_of_the_books() -> None:
    for left, right, one, two in (
        ("INTENTION", "EXECUTION", 5, 8), ("Hello", "Hella", 1, 2), ("monkey", "money", 1, 1), ("flaw", "lawn", 2, 2)
    ):  # fmt: skip
        given = (f"left={left}", f"right={right}")
        assert results("edit-distance", *given)["distance"] == one
        assert results("edit-distance", *given, "substitution=2")["distance"] == two


# Jurafsky and Martin, Speech and Language Processing, 3rd edition, chapter 2: the table with substitutions of cost 2.
BOOK = """0 1 2 3 4 5 6 7 8 9
1 2 3 4 5 6 7 6 7 8
2 3 4 5 6 7 8 7 8 7
3 4 5 6 7 8 7 8 9 8
4 3 4 5 6 7 8 9 10 9
5 4 5 6 7 8 9 10 11 10
6 5 6 7 8 9 8 9 10 11
7 6 7 8 9 10 9 8 9 10
8 7 8 9 10 11 10 9 8 9
9 8 9 10 11 12 11 10 9 8"""


def test_a_printed_table_is_compared_with_its_arithmetic() -> None:
    rows = [[int(cell) for cell in line.split()] for line in BOOK.splitlines()]
    found = worked("edit-distance", {"substitution": 2, "printed": rows})
    assert found.results["table"] == rows
    assert found.lines[-1] == "the printed table is right"
    rows[4][5] = 6
    found = worked("edit-distance", {"substitution": 2, "printed": rows})
    assert found.results["wrong"] == [[4, 5, 6, 7]]
    assert found.lines[-1] == "printed[4][5]: found 6, expected min(7 + 2, 8 + 1, 6 + 1) = 7"


def collapsed(path: tuple[str, ...]) -> str:
    return "".join(symbol for symbol, _ in groupby(path) if symbol != "-")


def test_ctc_collapses_and_counts_as_brute_force_does() -> None:
    found = results("ctc")
    assert found["text"] == "Hello"
    assert found["paths"] == math.comb(29, 10) == 20_030_010
    assert found["narrow_paths"] == math.comb(25, 6) == 177_100
    for path in ("aab--", "a-a-b", "ab-ba-", "------"):
        symbols = sorted(set(path))
        paths = ["".join(one) for one in itertools.product(symbols, repeat=len(path))]
        text = collapsed(tuple(path))
        own = [one for one in paths if collapsed(tuple(one)) == text]
        # Blanks in one run at the end, and one run between each two equal neighbours.
        narrow = 0
        for one in own:
            runs = [symbol for symbol, _ in groupby(one)]
            inside = [place for place, symbol in enumerate(runs[:-1]) if symbol == "-"]
            narrow += all(place > 0 and runs[place - 1] == runs[place + 1] for place in inside)
        found = results("ctc", f"path={path}")
        assert (found["text"], found["paths"], found["narrow_paths"]) == (text, len(own), narrow), path


def test_ctc_frames_sum_all_paths() -> None:
    found = results("ctc-frames")
    assert (found["best_text"], found["best_path_probability"]) == ("", pytest.approx(0.36))
    assert found["probability"] == pytest.approx(0.64)
    rows = [(0.2, 0.5, 0.3), (0.4, 0.4, 0.2), (0.1, 0.2, 0.7), (0.3, 0.6, 0.1)]
    frames = ";".join(",".join(map(str, row)) for row in rows)
    for text in ("a", "ab", "aa", "aba"):
        own = results("ctc-frames", "symbols=-ab", f"frames={frames}", f"text={text}")
        paths = [one for one in itertools.product("-ab", repeat=4) if collapsed(one) == text]
        chances = [math.prod(row["-ab".index(symbol)] for row, symbol in zip(rows, one, strict=True)) for one in paths]
        assert own["probability"] == pytest.approx(sum(chances))
        assert own["paths"] == len(paths)


def test_viterbi_is_the_best_of_all_paths() -> None:
    found = results("viterbi")
    assert found["path"] == ["Healthy", "Healthy", "Fever"]
    assert found["probability"] == pytest.approx(0.01512)
    assert list(found["table"]) == [
        pytest.approx([0.3, 0.084, 0.00588]),
        pytest.approx([0.04, 0.027, 0.01512]),
    ]
    # Jurafsky and Martin, chapter on HMMs: ice creams 3 1 3, states hot and cold.
    ice = results(
        "viterbi", "states=hot,cold", "symbols=one,two,three", "start=0.8,0.2", "transitions=0.6,0.4;0.5,0.5",
        "emissions=0.2,0.4,0.4;0.5,0.4,0.1", "seen=three,one,three",
    )  # fmt: skip
    paths = {}
    start, moves, seen = (0.8, 0.2), ((0.6, 0.4), (0.5, 0.5)), ((0.4, 0.2, 0.4), (0.1, 0.5, 0.1))
    for path in itertools.product((0, 1), repeat=3):
        chance = start[path[0]] * moves[path[0]][path[1]] * moves[path[1]][path[2]]
        paths[path] = chance * math.prod(seen[state][step] for step, state in enumerate(path))
    best = max(paths, key=lambda path: paths[path])
    assert ice["path"] == [("hot", "cold")[state] for state in best]
    assert ice["probability"] == pytest.approx(paths[best])
    assert ice["likelihood"] == pytest.approx(sum(paths.values()))
    assert [row[0] for row in ice["table"]] == pytest.approx([0.32, 0.02])  # as printed


def test_ibm_model_1_as_koehn_prints_it() -> None:
    """Koehn, Statistical Machine Translation (2010), figure 4.4."""
    found = results("ibm1")["probabilities"]
    assert len(found) == 10
    for words, values in {
        "the | das": (0.25, 0.5, 0.6364, 0.7479), "book | das": (0.25, 0.25, 0.1818, 0.1208),
        "house | das": (0.25, 0.25, 0.1818, 0.1313), "a | ein": (0.25, 0.5, 0.5714, 0.6534),
        "book | ein": (0.25, 0.5, 0.4286, 0.3466), "the | Haus": (0.25, 0.5, 0.4286, 0.3466),
    }.items():  # fmt: skip
        assert found[words] == pytest.approx(list(values), abs=5e-5)
    with_null = results("ibm1", "empty_word=true")["probabilities"]
    for column in range(4):
        for source in ("NULL", "das", "Buch"):
            assert sum(row[column] for name, row in with_null.items() if name.endswith(f"| {source}")) <= 1 + 1e-9


def test_label_bias() -> None:
    found = results("label-bias")
    assert found["memm"] == pytest.approx([0.6, 0.4])
    left, right = 0.6 * 0.9 * 0.1 * 0.9, 0.4 * 0.9 * 0.9 * 0.9
    assert found["crf"] == pytest.approx([left / (left + right), right / (left + right)])
    assert (found["memm_word"], found["crf_word"]) == ("rib", "rob")
    assert results("label-bias", "word=rib")["crf_word"] == "rib"


def test_bleu_by_hand() -> None:
    """Koehn's example; his slides print 52 %, since they multiply by 6/7 in place of e^(1 − 7/6)."""
    found = results("bleu")
    assert (found["matches"], found["totals"]) == ([6, 4, 2, 1], [6, 5, 4, 3])
    mean = (1 * 4 / 5 * 2 / 4 * 1 / 3) ** 0.25
    assert found["score"] == pytest.approx(100 * math.exp(1 - 7 / 6) * mean)
    assert round(100 * 6 / 7 * mean) == 52
    clipped = results(
        "bleu", "hypothesis=the the the the the the the", 'reference=["The cat", "the cat is on the mat"]'
    )
    assert (clipped["matches"][0], clipped["totals"][0]) == (2, 7)  # Papineni et al. 2002


def test_a_beam_by_hand() -> None:
    found = results("beam")
    assert (found["greedy"]["text"], found["greedy"]["probability"]) == ("a end", pytest.approx(0.24))
    assert found["beam"] == found["best"]
    assert (found["best"]["text"], found["best"]["probability"]) == ("b end", pytest.approx(0.36))
    fates = {(node["step"], node["piece"], round(math.exp(node["score"]), 4)): node["fate"] for node in found["nodes"]}
    assert fates[2, "end", 0.36] == "complete"
    assert fates[1, "b", 0.4] == "kept"


def random_beam(draw: random.Random) -> list[str]:
    after = ["", "a", "b", "a b"]
    rows = []
    for _ in after:
        weights = [draw.random() for _ in range(4)]
        rows.append([weight / sum(weights) for weight in weights])
    table = ";".join(",".join(f"{share:.6f}" for share in row) for row in rows)
    return ["tokens=a,b,c", f"after={','.join(after)}", f"next={table}"]


def test_the_best_of_all_outputs_is_brute_force() -> None:
    draw = random.Random(3)
    for penalty in (0.0, 1.0):
        values = [*random_beam(draw), "length=4", f"length_penalty={penalty}", "width=16"]
        found = worked("beam", values)
        rules = dict(zip(found.settings["after"], found.settings["next"], strict=True))  # type: ignore[index]
        scores = {}
        for size in range(4):
            for words in itertools.product("abc", repeat=size):
                total = 0.0
                for place in range(size + 1):
                    ends = (" ".join(words[first:place]) for first in range(place + 1))
                    row = next(rules[end] for end in ends if end in rules)
                    total += math.log(row["abc".index(words[place]) if place < size else 3])
                scores[" ".join((*words, "end"))] = total / (size + 1) ** penalty
        best = max(scores, key=lambda text: scores[text])
        assert found.results["best"]["text"] == best
        assert found.results["best"]["score"] == pytest.approx(scores[best])
        assert found.results["beam"]["text"] == best  # as wide as all prefixes


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("atention", "", "no such calculation 'atention'. Did you mean 'attention'?"),
        ("attention", "score=3", "score: "),
        ("attention", "queries=1,0", "keys: found none, expected a row each"),
        ("attention", "scores=", "scores: found"),
        ("attention", "scores=a,b", "scores[0]: found"),
        ("attention", "depth=0", "depth: found 0, expected at least 1"),
        ("positions", "width=1000", "width: found 1000, expected at least 1 and at most 64"),
        ("parameters", "layers=lstn:2x3", "layers[0]: found 'lstn:2x3', expected"),
        ("parameters", "layers=lstm:2", "expected two sizes"),
        ("gates", "update=[2]", "update[0]: found 2, expected a gate from 0 to 1"),
        ("fibonacci", "start=[1]", "start: found 1, expected two numbers"),
        ("viterbi", "start=0.5,0.6", "start: found probabilities with the sum 1.1, expected 1"),
        ("viterbi", "start=[0.5]", "start[0]: found 1 numbers, expected 2"),
        ("viterbi", "seen=hot", "seen[0]: found 'hot', expected one of normal, cold, dizzy"),
        ("viterbi", "emissions=0.5,0.5", "emissions: found 1 rows, expected 2"),
        ("ibm1", "pairs=das Haus", 'pairs[0]: found \'das Haus\', expected "SOURCE / TARGET"'),
        ("ctc", "blank=--", "blank: found '--', expected one symbol"),
        ("ctc-frames", "text=b", "text: found 'b', expected one of a"),
        ("ctc-frames", "frames=0.5,0.4", "frames[0]: found probabilities with the sum 0.9, expected 1"),
        ("label-bias", "word=rab", "word: found 'rab', expected rib or rob"),
        ("beam", "after=a,b,c", 'after: found no row ""'),
        ("beam", "tokens=a,end", "tokens: found a, end, expected different words"),
        ("beam", "length=13", "length: found 13, expected at least 1 and at most 12"),
        ("bleu", "hypothesis=", "hypothesis: found 0 words, expected 1 to 200"),
        ("edit-distance", "printed=1,2", "printed: found 1 rows, expected 10"),
        ("edit-distance", f"left={'x' * 300}", "left: found 301 characters, expected 1 to 200"),
    ],
)  # fmt: skip
def test_wrong_values_are_one_line(name: str, value: str, message: str) -> None:
    with pytest.raises(DragomanError) as caught:
        worked(name, [value] if value else [])
    assert message in str(caught.value)
    assert isinstance(caught.value, ConfigError | DataError)


def test_the_command(tmp_path: Any) -> None:
    listed = call("worked").out
    assert all(f"\n{name} " in f"\n{listed}" for name in WORKED)
    assert "0.8808, 0.1192" in call("worked", "attention").out
    found = json.loads(call("worked", "viterbi", "seen=dizzy,cold", "--json").out)
    assert found["settings"]["seen"] == ["dizzy", "cold"]
    assert found["results"] == json.loads(json.dumps(dragoman.worked("viterbi", {"seen": ("dizzy", "cold")}).results))
    wrong = call("worked", "viterbi", "start=1,1")
    assert (wrong.code, wrong.out) == (2, "")
    assert wrong.err.count("\n") == 1
    page = tmp_path / "new" / "toys.html"
    assert call("worked", "beam", "width=3", "--page", page).code == 0
    assert "<title>Toys" in page.read_text()
    both = call("worked", "--page", page, "--json")
    assert json.loads(both.out) == json.loads(call("worked", "--json").out)
    assert both.err == f"page: {page}\n"
    notes = tmp_path / "notes.txt"
    notes.write_text("mine")
    for words in (("worked", "--page", notes), ("worked", "beam", "--page", notes)):
        told = call(*words)
        assert (told.code, told.err.count("\n"), notes.read_text()) == (2, 1, "mine"), told.err
        assert "expected a file that ends in .html" in told.err
    link = tmp_path / "link.html"
    link.symlink_to(notes)
    write_toys(link, follow_link=False)
    assert notes.read_text() == "mine"
    assert not link.is_symlink()
    refused = call("worked", "gates", "--page", tmp_path / "x.html")
    known = "attention, viterbi, beam, ctc, ctc-frames, edit-distance, bleu"
    assert (refused.code, refused.err) == (2, f"dragoman: --page: the page has no gates; it has {known}\n")


PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "worked-numbers.md"
EXAMPLES = re.findall(
    r"^```console\n\$ dragoman (.*)\n((?:.*\n)*?)```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE
)


def test_the_page_shows_what_its_commands_print() -> None:
    assert {shlex.split(command)[1] for command, _ in EXAMPLES} == set(WORKED)
    for command, expected in EXAMPLES:
        assert call(*shlex.split(command)).out.rstrip() == expected.rstrip(), command
