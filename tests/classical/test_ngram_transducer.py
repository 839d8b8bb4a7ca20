"""The joint-sequence n-gram transducer: alignment by enumeration, decoding by exhaustive search, and a run."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path

import numpy as np
import pytest

from dragoman.classical.joint_alignment import (
    Chunks,
    Grams,
    Lattice,
    align_jointly,
    groups,
    shapes_of,
)
from dragoman.classical.ngram_transducer import FIRST, NGramTransducer, NGramTransducerConfig
from dragoman.classical.rows import Ragged
from dragoman.data.tokenizers.base import EOS, SOS
from dragoman.data.tokenizers.characters import CharactersConfig, CharacterTokenizer
from tests.conftest import call

SOURCES = [(4, 5, 6), (5, 4), (6, 6, 4, 5), (4,)]
TARGETS = [(7, 8), (8, 7), (9, 7, 8), (7,)]


def cuts(source: tuple[int, ...], target: tuple[int, ...], shapes: list[tuple[int, int]]):  # type: ignore[no-untyped-def]
    """All ways to cut a pair into chunks."""
    if not source and not target:
        yield []
    for a, b in shapes:
        if a <= len(source) and b <= len(target):
            for rest in cuts(source[a:], target[b:], shapes):
                yield [(source[:a], target[:b]), *rest]


def test_expected_counts_are_those_of_all_cuts() -> None:
    left, right = Ragged.of(SOURCES), Ragged.of(TARGETS)
    shapes = shapes_of(2, 2)
    chunks = Chunks(left, right, shapes)
    every = list(groups(left, right, np.arange(len(left))))
    known = np.unique(np.concatenate([Lattice(group, chunks).distinct() for group in every]))
    rng = np.random.default_rng(1)
    probabilities = np.append(rng.random(len(known)), 0.0)
    chance = {chunks.parts(int(number)): probabilities[place] for place, number in enumerate(known)}
    counts, totals = np.zeros(len(probabilities)), np.zeros(len(left))
    for group in every:
        found, logs = Lattice(group, chunks, known).expected(probabilities)
        counts += found
        totals[group.indices] = logs
    expected: dict[object, float] = {}
    for index, (source, target) in enumerate(zip(SOURCES, TARGETS, strict=True)):
        weights = [(np.prod([chance[part] for part in cut]), cut) for cut in cuts(source, target, shapes)]
        total = sum(weight for weight, _ in weights)
        assert totals[index] == pytest.approx(np.log(total))
        for weight, cut in weights:
            for part in cut:
                expected[part] = expected.get(part, 0.0) + float(weight / total)
    for place, number in enumerate(known.tolist()):
        assert counts[place] == pytest.approx(expected.get(chunks.parts(number), 0.0))


def test_long_sequences_of_large_vocabularies_have_places_of_their_own() -> None:
    rows = np.random.default_rng(1).integers(0, 40_000, (30, 9))
    rows[:, 0] = 39_999  # 40,000⁶ is more than 64 bits hold
    grams = Grams(Ragged.of(rows.tolist()), 6)
    places = grams.places(np.arange(30), 4)
    assert (grams.sequences[places] == np.lib.stride_tricks.sliding_window_view(rows, 6, axis=1)).all()


def test_em_never_loses_likelihood() -> None:
    cut = align_jointly(Ragged.of(SOURCES), Ragged.of(TARGETS), shapes_of(2, 2), 8, lambda doing, count: None)
    assert all(later <= earlier + 1e-9 for earlier, later in itertools.pairwise(cut.losses))
    for path, source, target in zip(cut.paths, SOURCES, TARGETS, strict=True):
        assert path is not None
        parts = [cut.parts(place) for place in path]
        assert sum((part[0] for part in parts), ()) == source
        assert sum((part[1] for part in parts), ()) == target


def trained(order: int = 3) -> tuple[NGramTransducer, list[str]]:
    random.seed(1)
    words = ["".join(random.choices("abcsh", k=random.randint(1, 6))) for _ in range(300)]
    said = [word.replace("sh", "S").replace("c", "ks").upper() for word in words]
    source, target = (CharacterTokenizer.train(CharactersConfig(), texts) for texts in (words, said))
    model = NGramTransducer(NGramTransducerConfig(order=order, hypotheses=400), source, target)
    model.fit_rows(Ragged.of([source.encode(word) for word in words]), Ragged.of([target.encode(one) for one in said]))
    model.coders = source, target  # type: ignore[assignment]
    return model, words


def test_decoding_is_exhaustive_search_and_scores_are_those_of_the_model() -> None:
    model, words = trained()
    source, _ = model.coders  # type: ignore[misc]
    lm = model.table.model
    assert lm is not None
    table = model.table

    def best(tokens: tuple[int, ...]) -> float:
        found = -np.inf

        def go(place: int, history: tuple[int, ...], score: float) -> None:
            nonlocal found
            if place == len(tokens):
                found = max(found, score + float(lm.distribution(history)[EOS]))
            for size, chunks in table.candidates(tokens, place):
                for chunk in chunks.tolist():
                    gram = table.grams[chunk]
                    go(place + size, (*history, gram), score + float(lm.distribution(history)[gram]))

        go(0, (SOS,), 0.0)
        return found

    some = [tuple(source.encode(word)) for word in words if len(word) <= 3][:12]
    outputs = model.transduce(some, 1, 1)
    for tokens, (one,) in zip(some, outputs, strict=True):
        assert sum(one.token_scores) == pytest.approx(best(tokens), abs=1e-9)
    again = model.log_probabilities(some, [one[0].tokens for one in outputs])
    assert again == pytest.approx([sum(one[0].token_scores) for one in outputs], abs=1e-9)
    alone = [model.transduce([tokens], 1, 1)[0] for tokens in some]
    assert alone == outputs
    assert FIRST == EOS + 1


def test_a_transducer_is_a_run(tmp_path: Path, cached: Path) -> None:
    random.seed(4)
    words = sorted({"".join(random.choices("abcsh", k=random.randint(2, 7))) for _ in range(500)})
    rows = [f"{word}\t{' '.join(word.replace('sh', 'S').upper())}\n" for word in words]
    random.shuffle(rows)
    data, test, run = tmp_path / "train.tsv", tmp_path / "test.tsv", tmp_path / "run"
    data.write_text("".join(rows[:350]))
    test.write_text("".join(rows[350:]))
    told = call("train", data, "preset=ngram-transducer", "--run", run)
    assert told.code == 0, told.err
    lacks = "limits: ngram-transducer has no probabilities of single tokens, no attention and no exports"
    assert lacks in told.err
    scores = json.loads(call("evaluate", run, test, "--json").out)
    assert scores["exact_match"] > 0.97
    assert scores["loss"] > 0
    assert call("predict", run, stdin="ab\nxaéb\n\n".encode()).lines == ["A B", "A B", ""]
    assert call("check", data, "preset=ngram-transducer").lines[-1] == "all is well"
    several = json.loads(call("predict", run, "--json", "--n-best", "2", "--beam", "2", stdin=b"sha\n").out)
    assert several["text"] != several["alternatives"][0]["text"]
