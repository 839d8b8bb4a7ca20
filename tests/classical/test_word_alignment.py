"""IBM models and the HMM against enumeration of all alignments; phrases; the commands `align --model` and `terms`."""

from __future__ import annotations

import collections
import itertools
import json
import math
import random
from pathlib import Path

import numpy as np
import pytest

from dragoman.classical.aligner import WordAlignerConfig, WordAlignerModel
from dragoman.classical.hmm_alignment import EMPTY, JUMPS
from dragoman.classical.phrase_table import phrase_spans
from dragoman.classical.rows import KeyIndex, Ragged, distinct
from dragoman.classical.vocabulary import Vocabulary
from dragoman.classical.word_alignment import FLOOR, KINDS, WordAligner
from dragoman.data.batch import batch_of
from dragoman.data.tokenizers.words import WordsConfig, WordTokenizer
from dragoman.inference.align.word_alignment import RawAligner, align_rows
from dragoman.runs import Run
from tests.conftest import call

SOURCES = [line.split() for line in ("a b", "b c", "a c d", "d", "c a b", "b d")]
TARGETS = [line.split() for line in ("A B", "B C X", "A C D", "D", "C A B", "D B")]


WORDS = {"dog": "Hund", "cat": "Katze", "house": "Haus", "sees": "sieht", "big": "große", "the": "das", "old": "alte"}


class WordsAligner(WordAligner):
    """Reads words."""

    def fit(self, sources: list[list[str]], targets: list[list[str]]) -> list[float]:
        self.source_words, self.target_words = Vocabulary(), Vocabulary()
        left = Ragged.of([self.source_words.learn(words) for words in sources])
        right = Ragged.of([self.target_words.learn(words) for words in targets])
        return self.fit_rows(left, right, (self.source_words.size, self.target_words.size))

    def posteriors(self, sources: list[list[str]], targets: list[list[str]]) -> list[np.ndarray]:
        return self.align_rows(self.source_words.rows(sources), self.target_words.rows(targets)).posteriors


def p(aligner: WordsAligner, source: str | None, target: str) -> float:
    """p(target word | source word)."""
    number = 0 if source is None else aligner.source_words.numbers[source.casefold()]
    key = number * (aligner.target_words.size + 1) + aligner.target_words.numbers[target.casefold()]
    place = int(np.searchsorted(aligner.keys, key))
    known = place < len(aligner.keys) and aligner.keys[place] == key
    return float(aligner.table[place]) if known else FLOOR


def enumerated(aligner: WordsAligner, source: list[str], target: list[str]) -> tuple[np.ndarray, float]:
    """Posteriors (T, S+1) and likelihood by summing over all alignments."""
    out = np.zeros((len(target), len(source) + 1))
    total = 0.0
    for path in itertools.product(range(len(source) + 1), repeat=len(target)):
        chance = math.prod(
            p(aligner, None if i == 0 else source[i - 1], word) for i, word in zip(path, target, strict=True)
        )
        if aligner.kind == "ibm1":
            chance /= (len(source) + 1) ** len(target)
        elif aligner.kind == "ibm2":
            table = aligner.places.get((len(source), len(target)))
            for j, i in enumerate(path):
                chance *= 1 / (len(source) + 1) if table is None else table[j, i]
        else:
            chance *= hmm_path(aligner, path, len(source))
        total += chance
        for j, i in enumerate(path):
            out[j, i] += chance
    return out / total, total


def hmm_path(aligner: WordsAligner, path: tuple[int, ...], length: int) -> float:
    """p(path): the empty word keeps the last source word; before the first one any may be the last."""

    def jump(last: int, place: int) -> float:
        weights = [aligner.jumps[np.clip(i - last, -JUMPS, JUMPS) + JUMPS] for i in range(length)]
        return float(weights[place] / sum(weights))

    def rest(at: int, last: int) -> float:
        if at == len(path):
            return 1.0
        if path[at] == 0:
            return EMPTY * rest(at + 1, last)
        return (1 - EMPTY) * jump(last, path[at] - 1) * rest(at + 1, path[at] - 1)

    if path[0]:
        return (1 - EMPTY) * jump(-1, path[0] - 1) * rest(1, path[0] - 1)
    return EMPTY * sum(jump(-1, last) * rest(1, last) for last in range(length))


@pytest.mark.parametrize("kind", ["ibm1", "ibm2", "hmm"])
def test_posteriors_are_those_of_all_alignments(kind: str) -> None:
    aligner = WordsAligner(kind, 2)
    losses = aligner.fit(SOURCES, TARGETS)
    assert all(later <= earlier + 1e-9 for earlier, later in itertools.pairwise(losses[1:]))
    found = aligner.posteriors(SOURCES, TARGETS)
    likelihood = 0.0
    for source, target, one in zip(SOURCES, TARGETS, found, strict=True):
        expected, total = enumerated(aligner, source, target)
        assert one == pytest.approx(expected, abs=1e-9)
        likelihood += math.log(total)
        rows = aligner.source_words.rows([source]), aligner.target_words.rows([target])
        assert aligner.align_rows(*rows).logs == pytest.approx([math.log(total)])
    words = sum(map(len, TARGETS))
    again = WordsAligner(kind, 3)
    assert again.fit(SOURCES, TARGETS)[-1] == pytest.approx(-likelihood / words) or kind != "ibm1"


def textbook_model_1(iterations: int) -> dict[tuple[str | None, str], float]:
    """t(target | source) by the pseudo-code of Koehn (2010), figure 4.3, word by word."""
    words = {word for target in TARGETS for word in target}
    t = collections.defaultdict(lambda: 1 / len(words))
    for _ in range(iterations):
        count, total = collections.Counter(), collections.Counter()
        for source, target in zip(SOURCES, TARGETS, strict=True):
            for f in target:
                normal = sum(t[e, f] for e in (None, *source))
                for e in (None, *source):
                    count[e, f] += t[e, f] / normal
                    total[e] += t[e, f] / normal
        t = {(e, f): share / total[e] for (e, f), share in count.items()}
    return dict(t)


def test_without_a_prior_the_aligner_is_the_em_of_the_papers(tmp_path: Path, cached: Path) -> None:
    """Also through the setting of a run: the loss never rises."""
    aligner = WordsAligner("ibm1", 6)
    losses = aligner.fit(SOURCES, TARGETS)
    assert all(later <= earlier + 1e-12 for earlier, later in itertools.pairwise(losses))
    for (source, target), expected in textbook_model_1(6).items():
        assert p(aligner, source, target) == pytest.approx(expected, abs=1e-12)
    file = tmp_path / "pairs.tsv"
    file.write_text("".join(f"{' '.join(a)}\t{' '.join(b)}\n" for a, b in zip(SOURCES, TARGETS, strict=True)) * 10)
    run = tmp_path / "run"
    told = call(
        "train", file, "preset=word-aligner", "model.method=ibm1", "model.iterations=8", "model.prior=0",
        "data.holdout=1", "--run", run,
    )  # fmt: skip
    assert told.code == 0, told.err
    learned = [row["loss"] for row in Run(run).metrics() if "loss" in row]
    assert len(learned) == 8
    assert all(later <= earlier + 1e-9 for earlier, later in itertools.pairwise(learned))
    assert call("align", "--model", "ibm1", file, "--prior", "0").lines != []
    assert "--prior needs --model" in call("align", run, file, "--prior", "0").err


@pytest.mark.parametrize("kind", ["hmm", "ibm3"])
def test_a_batch_changes_no_posterior(kind: str) -> None:
    aligner = WordsAligner(kind, 3, prior=0.01)
    aligner.fit(SOURCES, TARGETS)
    together = aligner.posteriors(SOURCES, TARGETS)
    for index, one in enumerate(together):
        assert aligner.posteriors([SOURCES[index]], [TARGETS[index]])[0] == pytest.approx(one, abs=1e-12)
    unseen = aligner.posteriors([["q"], []], [["Q", "A"], ["A"]])
    assert np.isfinite(unseen[0]).all()
    assert unseen[1].tolist() == [[0.0]]


def test_fertilities_are_scored_as_in_the_formula_and_climbing_finds_the_best() -> None:
    aligner = WordsAligner("ibm3", 3)
    aligner.fit(SOURCES, TARGETS)
    model = aligner.fertility
    source, target = SOURCES[2], TARGETS[2]
    numbers = np.array([0, *(aligner.source_words.numbers[word] for word in source)])
    emitted = np.array([[p(aligner, None if i < 0 else source[i], word) for i in range(-1, 3)] for word in target])
    scores = model.scores(numbers, emitted)
    placing = model.placing(3, 3)
    best, best_score = (), -math.inf
    for path in itertools.product(range(4), repeat=3):
        counts = [path.count(i) for i in range(4)]
        if counts[0] > 1:
            continue
        chance = (
            math.comb(3 - counts[0], counts[0]) * (1 - model.empty) ** (3 - 2 * counts[0]) * model.empty ** counts[0]
        )
        for i in range(1, 4):
            chance *= math.factorial(counts[i]) * model.fertility[numbers[i], counts[i]]
        for j, i in enumerate(path):
            chance *= max(emitted[j, i], 1e-12) * (placing[j, i - 1] if i else 1.0)
        score = scores.score(np.array(path))
        assert score == pytest.approx(math.log(chance))
        best, best_score = (path, score) if score > best_score else (best, best_score)
    climbed, gains = scores.hill_climb(np.array([3, 3, 3]))
    assert tuple(climbed) == best
    assert gains.max() <= 1e-9
    moved = climbed.copy()
    moved[1] = (moved[1] + 1) % 4
    assert gains[1, moved[1]] == pytest.approx(scores.score(moved) - best_score)


def test_phrases_are_all_consistent_spans() -> None:
    random.seed(4)
    for _ in range(60):
        source, target = random.randint(1, 5), random.randint(1, 5)
        links = {(random.randrange(source), random.randrange(target)) for _ in range(random.randint(0, 6))}
        expected = set()
        for a, b in itertools.combinations(range(source + 1), 2):
            for c, d in itertools.combinations(range(target + 1), 2):
                inside = [(a <= i < b, c <= j < d) for i, j in links]
                if b - a <= 3 and d - c <= 3 and any(all(one) for one in inside) and all(x == y for x, y in inside):
                    expected.add(((a, b), (c, d)))
        found = list(phrase_spans(source, target, links, 3))
        assert len(found) == len(set(found))
        assert set(found) == expected, links


@pytest.fixture(scope="module")
def pairs_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    random.seed(7)
    lines = []
    for _ in range(150):
        source = ["the", random.choice(["big", "old"]), random.choice(["dog", "cat", "house"]), "sees", "the"]
        source.append(random.choice(["dog", "cat", "house"]))
        lines.append(" ".join(source) + "\t" + " ".join(WORDS[word] for word in source) + "\n")
    path = tmp_path_factory.mktemp("align") / "pairs.tsv"
    path.write_text("".join(lines), encoding="utf-8")
    return path


def test_the_commands_align_and_list_terms(pairs_file: Path, tmp_path: Path) -> None:
    told = call("align", "--model", "hmm", pairs_file)
    assert told.code == 0, told.err
    assert told.lines[0] == "0-0 1-1 2-2 3-3 4-4 5-5"
    few = tmp_path / "few.tsv"
    few.write_text("the big dog\tdas große Hund\n", encoding="utf-8")
    line = json.loads(call("align", "--model", "hmm", few, "--learn-from", pairs_file, "--json").lines[0])
    assert line["links"] == [[0, 0], [1, 1], [2, 2]]
    assert line["weights"][2][2] > 0.9
    found = [one.split("\t") for one in call("terms", pairs_file, "--max-words", "1", "--min-share", "0.4").lines]
    assert {"dog\tHund"} <= {"\t".join(row[:2]) for row in found} <= {f"{one}\t{other}" for one, other in WORDS.items()}


@pytest.mark.parametrize("size", [0, 1, 7, 30_000])
def test_hashing_finds_what_a_binary_search_finds(size: int) -> None:
    draw = np.random.default_rng(size)
    keys = distinct(draw.integers(0, 1 << 40, size))
    wanted = np.concatenate([keys, keys + 1, draw.integers(-5, 1 << 40, 1000)])
    places = np.searchsorted(keys, wanted)
    known = np.isin(wanted, keys)
    assert (KeyIndex(keys).find(wanted) == np.where(known, places, len(keys))).all()
    crowded = KeyIndex(keys)
    crowded.slots[:] = 0 if size else -1  # all slots are taken, so that binary search finds all keys but the first
    crowded.rest = np.arange(len(keys), dtype=np.int32)
    assert (crowded.find(wanted) == np.where(known, places, len(keys))).all()


def letters(texts: list[list[str]]) -> tuple[WordTokenizer, Ragged]:
    lines = [" ".join(text) for text in texts]
    tokenizer = WordTokenizer.train(WordsConfig(split="spaces"), lines)
    return tokenizer, Ragged.of(tokenizer.encode_batch(lines))


@pytest.mark.parametrize("method", KINDS)
def test_an_aligner_is_what_its_tensors_are(method: str) -> None:
    (source, left), (target, right) = letters(SOURCES), letters(TARGETS)
    model = WordAlignerModel(WordAlignerConfig(method, 3), source, target)
    losses = model.fit_rows(left, right)
    assert losses[-1] < losses[0]
    other = WordAlignerModel(WordAlignerConfig(method, 3), source, target)
    other.load(model.tensors)
    pairs = list(zip(map(" ".join, SOURCES), map(" ".join, TARGETS), strict=True))
    expected = list(RawAligner(method, 3, pairs, lambda doing, count: None)(pairs))
    for own in (model, other):
        found = align_rows(own.both, *own.numbered(left, right), "grow-diag-final-and", None, True)
        for (links, weights), pair in zip(found, expected, strict=True):
            assert links == pair.links
            np.testing.assert_allclose(weights, pair.weights, atol=1e-12)
    rows = [left[index] for index in range(len(left))]
    outputs = [several[0] for several in other.transduce(rows, 1, 1)]
    assert [target.decode(one.tokens) for one in outputs] == [" ".join(words).upper() for words in SOURCES]
    logs = other.log_probabilities(rows, [one.tokens for one in outputs])
    assert [sum(one.token_scores) for one in outputs] == logs  # the search score is the model's
    assert other.log_probabilities([(), rows[0]], [(5,), ()]) == [-math.inf, 0.0]
    batch = batch_of(source.encode_batch(["a b", "d"]), target.encode_batch(["A B", "D"]))
    weights = other.attention(batch)
    assert weights.sum(-1)[0, 0].tolist() == pytest.approx([1.0] * 3)
    assert weights[0, 0, :2, :2].argmax(-1).tolist() == [0, 1]


def test_a_trained_aligner_is_a_run(pairs_file: Path, tmp_path: Path, cached: Path) -> None:
    few, run = tmp_path / "few.tsv", tmp_path / "run"
    told = call("train", pairs_file, "preset=word-aligner", f"data.valid={pairs_file}", "--run", run)
    assert told.code == 0, told.err
    raw, own = call("align", "--model", "hmm", pairs_file), call("align", run, pairs_file)
    assert own.lines == raw.lines
    few.write_text("the Big dog\tDas große Hund\nthe wug\tdas Wug\n" + "a " * 600 + "\tb\n", encoding="utf-8")
    told = call("align", run, few, "--combine", "intersection", "--json")
    first, second, long = map(json.loads, told.lines)
    assert (first["links"], second["links"][0], long["links"]) == ([[0, 0], [1, 1], [2, 2]], [0, 0], [])
    assert first["weights"][2][2] > 0.9
    (tmp_path / "text").write_text("the old cat sees\n", encoding="utf-8")
    assert call("align", run, tmp_path / "text", "--predict").lines == ["das alte Katze sieht\t0-0 1-1 2-2 3-3"]
    assert "numbers" in call("info", run).out
    assert call("inspect", run, "the old cat", "--output", tmp_path / "seen.json").code == 0
    views = {view["kind"]: view for view in json.loads((tmp_path / "seen.json").read_text())["views"]}
    assert "alignment" in json.dumps(views["attention"])
    scores = json.loads(call("evaluate", run, pairs_file, "--json").out)
    assert scores["exact_match"] == 1.0
    assert scores["loss"] > 0
    assert call("train", pairs_file, "preset=copy", "--run", tmp_path / "copy").code == 0
    report = tmp_path / "compared.json"
    told = call("compare", run, tmp_path / "copy", "--test", pairs_file, "--draws", "10", "--output", report)
    assert told.code == 0, told.err
    views = {view["kind"]: view["data"] for view in json.loads(report.read_text())["views"]}
    assert [one["layer"] for one in views["attentions"]["maps"]] == ["alignment"]
    for arguments, error in (
        (["predict", run, few, f"rerank.runs={run}"], "expected one trained from target to source"),
        (["align", run, few, "--layer", "1"], "word aligner of both directions"),
        (["align", run, few, "--reverse", run], "word aligner of both directions"),
        (["align", run, few, "--learn-from", few], "needs --model"),
        (["export", run, "--to", "onnx", "--output", tmp_path / "x"], "word-aligner"),
    ):
        told = call(*arguments)
        assert told.code == 2
        assert error in told.err, told.err


def test_sub_words_are_aligned_and_printed_as_words(pairs_file: Path, tmp_path: Path, cached: Path) -> None:
    run = tmp_path / "run"
    units = ["tokenizer.source.kind=characters", "model.method=ibm2", "model.iterations=2"]
    assert call("train", pairs_file, "preset=word-aligner", *units, "--run", run).code == 0
    told = call("align", run, pairs_file, "--json")
    assert told.code == 0, told.err
    line = json.loads(told.lines[0])
    assert len(line["weights"]) == len(line["target"]) == 6
    assert all(0 <= link < 6 for pair in line["links"] for link in pair)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["align", "PAIRS"], "no such run folder"),
        (["align"], "--model hmm"),
        (["align", "RUN", "PAIRS", "--iterations", "3"], "needs --model"),
        (["align", "--model", "hmm", "PAIRS", "--layer", "2"], "--layer goes with a run"),
        (["align", "--model", "hmm", "nothing.tsv"], "nothing.tsv"),
    ],
)
def test_mistakes_are_named(pairs_file: Path, arguments: list[str], error: str) -> None:
    told = call(
        *(str(pairs_file) + ".not" if one == "PAIRS" and "--model" not in arguments else one for one in arguments)
    )
    told = told if "PAIRS" not in arguments or "--model" not in arguments else call(
        *(str(pairs_file) if one == "PAIRS" else one for one in arguments)
    )  # fmt: skip
    assert told.code == 2
    assert error in told.err


def test_one_pair_and_long_sentences_are_aligned(tmp_path: Path) -> None:
    (tmp_path / "one.tsv").write_text("a b\tA B\n", encoding="utf-8")
    assert call("align", "--model", "ibm1", tmp_path / "one.tsv").code == 0
    (tmp_path / "long.tsv").write_text(f"{'a ' * 1000}\t{'b ' * 1000}\na b\tA B\n", encoding="utf-8")
    told = call("align", "--model", "hmm", tmp_path / "long.tsv")
    assert (told.code, told.lines[0]) == (0, ""), told.err
