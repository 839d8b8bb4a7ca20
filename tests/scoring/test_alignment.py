"""Alignment error rate, alignment formats and symmetrization, against hand counts and the published procedure."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest

from dragoman.base.errors import DataError
from dragoman.scoring.alignment import (
    GoldAlignment,
    Links,
    alignment_score,
    links_text,
    parse_alignment,
    read_alignments,
    swap_direction,
)
from dragoman.scoring.symmetrization import METHODS, LinkRows, symmetrize_links, symmetrize_rows
from tests.conftest import call


def test_scores_equal_counts_made_by_hand() -> None:
    """A = {00, 11, 12, 30}, S = {00, 11, 22}, P = S ∪ {12}: |A∩S| = 2, |A∩P| = 3, |A| = 4, |S| = 3."""
    score = alignment_score([parse_alignment("0-0 1-1 1-2 3-0").sure], [parse_alignment("0-0 1-1 2-2 1p2")])
    assert score.as_dict()["precision"] == pytest.approx(3 / 4)
    assert score.as_dict()["recall"] == pytest.approx(2 / 3)
    assert score.error_rate == pytest.approx(1 - 5 / 7)


def test_corpus_scores_come_from_summed_counts_not_from_means() -> None:
    gold = [parse_alignment("0-0"), parse_alignment("0-0 1-1 2-2 3p3")]
    score = alignment_score([parse_alignment("0-1").sure, parse_alignment("0-0 1-1 3-3").sure], gold)
    assert score.error_rate == pytest.approx(1 - (2 + 3) / (4 + 4))
    assert score.as_dict() == {
        "aer": score.error_rate, "precision": 0.75, "recall": 0.5, "links": 4, "sure": 4, "segments": 2,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("found", "gold", "rate"), [("", "", 0.0), ("", "0-0", 1.0), ("0-0", "", 1.0), ("0-0", "0p0", 0.0)]
)
def test_scores_without_links(found: str, gold: str, rate: float) -> None:
    assert alignment_score([parse_alignment(found).sure], [parse_alignment(gold)]).error_rate == rate


def test_without_possible_links_the_rate_is_one_minus_f1() -> None:
    found, gold = parse_alignment("0-0 1-1 4-4").sure, parse_alignment("0-0 1-2 3-3 4-4 5-5")
    score = alignment_score([found], [gold])
    precision, recall = score.as_dict()["precision"], score.as_dict()["recall"]
    f1 = 2 * precision * recall / (precision + recall)
    assert score.error_rate == pytest.approx(1 - f1)


def test_pharaoh_format_is_parsed_and_written() -> None:
    expected = GoldAlignment(frozenset({(0, 0), (2, 1)}), frozenset({(0, 0), (2, 1), (1, 4)}))
    for line, first in (("0-0 1p4 2-1", 0), ("1-1 2p5 3-2", 1), (" 2-1:0.5\t0-0/1e-3  1?4 ", 0)):
        assert parse_alignment(line, first=first) == expected
    assert links_text(expected.sure) == "0-0 2-1"
    assert parse_alignment(links_text(expected.possible)).sure == expected.possible
    assert swap_direction(expected.sure) == {(0, 0), (1, 2)}


def test_the_format_with_one_link_per_line_counts_from_one() -> None:
    lines = ["0001 1 1 S", "0001 3 2", "0001 2 5 P", "0003 1 2 S 0.9", "0003 0 1 S"]
    both = frozenset({(0, 0), (2, 1)})
    assert read_alignments(lines) == [
        GoldAlignment(both, both | {(1, 4)}),
        GoldAlignment(frozenset(), frozenset()),
        GoldAlignment(frozenset({(0, 1)}), frozenset({(0, 1)})),
    ]
    assert read_alignments(["", "0-0"]) == [GoldAlignment(frozenset(), frozenset()), parse_alignment("0-0")]


@pytest.mark.parametrize(
    ("lines", "first", "message"),
    [
        (["0-0", "0-0 1_1"], 0, "gold:2: found '1_1', expected links such as 0-0"),
        (["1-0"], 1, "gold:1: found '1-0', expected words counted from 1"),
        (["2 1 1", "1 1 1"], None, "gold:2: found pair 1 after 2"),
    ],
)
def test_errors_name_file_and_line(lines: list[str], first: int | None, message: str) -> None:
    with pytest.raises(DataError, match=message.replace("(", r"\(")):
        read_alignments(lines, "gold", first)


def plain_grow(forward: Links, backward: Links, sources: int, targets: int) -> set[tuple[int, int]]:
    """The published procedure, over the whole grid in every iteration."""
    links, union = set(forward & backward), forward | backward
    added = True
    while added:
        added = False
        for target, source in itertools.product(range(targets), range(sources)):
            if (source, target) not in links:
                continue
            for across, down in ((-1, 0), (0, -1), (1, 0), (0, 1), (-1, -1), (-1, 1), (1, -1), (1, 1)):
                near = (source + across, target + down)
                free = all(link[0] != near[0] for link in links) or all(link[1] != near[1] for link in links)
                if near in union and free:
                    links.add(near)
                    added = True
    return links


def plain_final(links: Links, forward: Links, backward: Links) -> set[tuple[int, int]]:
    """Links of either direction between words that are both unaligned, added one after the other."""
    out = set(links)
    for link in [*sorted(forward), *sorted(backward)]:
        if all(link[0] != other[0] and link[1] != other[1] for other in out):
            out.add(link)
    return out


def test_symmetrization_equals_the_published_procedure() -> None:
    draw = random.Random(3)
    told_apart = 0
    several = [
        [frozenset((draw.randrange(5), draw.randrange(6)) for _ in range(draw.randint(0, 9))) for _ in range(100)]
        for _ in range(2)
    ]
    rows = {method: list(symmetrize_rows(LinkRows.of(several[0]), LinkRows.of(several[1]), method).rows(100))
            for method in METHODS}  # fmt: skip
    assert rows["intersection"] == [forward & backward for forward, backward in zip(*several, strict=True)]
    assert rows["union"] == [forward | backward for forward, backward in zip(*several, strict=True)]
    for forward, backward, between, final in zip(*several, rows["grow-diag"], rows["grow-diag-final-and"], strict=True):
        assert between == plain_grow(forward, backward, 5, 6) == symmetrize_links(forward, backward, "grow-diag")
        assert final == plain_final(between, forward, backward)
        assert forward & backward <= between <= final <= forward | backward
        for link in final - between:
            assert all(link[0] != other[0] and link[1] != other[1] for other in final - {link})
        told_apart += len({forward & backward, between, final, forward | backward}) == 4
    assert told_apart > 10


def test_the_command_scores_files(tmp_path: Path) -> None:
    (tmp_path / "gold").write_text("1-1 2-2\n3p3 1-2\n")
    (tmp_path / "found").write_text("0-0 1-1\n2-2 1-0\n")
    result = call("score-alignment", tmp_path / "gold", tmp_path / "found", "--gold-from", "1")
    assert (result.code, result.err) == (0, "")
    assert result.lines[0].split() == ["AER", "28.57", "%"]  # 1 − (2 + 3) / (4 + 3)
    swapped_said = call(
        "score-alignment", tmp_path / "gold", tmp_path / "found", "--gold-from", "1", "--swap", "--json"
    )
    assert '"aer": 0.0,' in swapped_said.out
    assert "count from 1" in call("score-alignment", tmp_path / "gold", tmp_path / "found").err
    (tmp_path / "short").write_text("0-0\n")
    result = call("score-alignment", tmp_path / "gold", tmp_path / "short")
    assert result.code == 2
    assert "found 1 alignments, expected 2" in result.err
