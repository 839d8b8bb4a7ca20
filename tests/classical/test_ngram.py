"""Modified Kneser-Ney against a slow implementation from the formulas, ARPA files, pruning, and n-gram runs."""

from __future__ import annotations

import json
import math
import random
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest
import torch

from dragoman.base.errors import DataError
from dragoman.classical import kneser_ney, ngram_counts
from dragoman.classical.arpa import read_arpa, write_arpa
from dragoman.classical.ngram import NGramConfig, NGramModel
from dragoman.classical.rows import Ragged
from dragoman.data.batch import batch_of
from dragoman.data.store import StoreWriter, TokenStore
from dragoman.data.tokenizers.base import EOS, PAD, SOS, UNK
from dragoman.data.tokenizers.words import WordsConfig, WordTokenizer
from dragoman.decoding.joint_ctc import NGramLM
from tests.conftest import call

VOCABULARY = 12


def texts(count: int, seed: int = 1) -> list[list[int]]:
    """Rows with habits: a token is often followed by the next one."""
    random.seed(seed)
    rows = []
    for _ in range(count):
        row = [random.randint(4, VOCABULARY - 1)]
        while random.random() < 0.85:
            row.append(4 + (row[-1] - 3) % 8 if random.random() < 0.5 else random.choice([4, 4, 4, 5, 5, 6, 7, 8]))
        rows.append(row)
    return rows


class Slow:
    """Chen and Goodman's formulas with dictionaries."""

    def __init__(self, rows: list[list[int]], order: int) -> None:
        raw: dict[int, Counter[tuple[int, ...]]] = defaultdict(Counter)
        for row in rows:
            text = (SOS, *row, EOS)
            for n in range(1, order + 1):
                for start in range(len(text) - n + 1):
                    raw[n][text[start : start + n]] += 1
        self.counts: dict[int, dict[tuple[int, ...], int]] = {}
        for n in range(1, order + 1):
            self.counts[n] = dict(raw[n])
            if n < order:
                left = Counter(gram[1:] for gram in raw[n + 1])
                self.counts[n] = {gram: left[gram] if gram[0] != SOS else count for gram, count in raw[n].items()}
        del self.counts[1][SOS,]
        self.discounts = {n: self.discount(counts) for n, counts in self.counts.items()}

    @staticmethod
    def discount(counts: dict[tuple[int, ...], int]) -> list[float]:
        t = [0, *(sum(count == k for count in counts.values()) for k in (1, 2, 3, 4))]
        if 0 in t[1:]:
            return [0.0, 0.5, 1.0, 1.5]
        y = t[1] / (t[1] + 2 * t[2])
        found = [0.0, *(k - (k + 1) * y * t[k + 1] / t[k] for k in (1, 2, 3))]
        return found if all(0 <= d <= k for k, d in enumerate(found)) else [0.0, 0.5, 1.0, 1.5]

    def p(self, token: int, history: tuple[int, ...]) -> float:
        n = len(history) + 1
        lower = self.p(token, history[1:]) if history else (0.0 if token in (PAD, SOS) else 1 / (VOCABULARY - 2))
        after = {gram[-1]: count for gram, count in self.counts[n].items() if gram[:-1] == history}
        if not after:
            return lower
        taken = {word: self.discounts[n][min(count, 3)] for word, count in after.items()}
        total = sum(after.values())
        return (after.get(token, 0) - taken.get(token, 0.0)) / total + sum(taken.values()) / total * lower


@pytest.mark.parametrize(("order", "count"), [(1, 60), (2, 60), (3, 300), (4, 8)])
def test_probabilities_are_those_of_the_formulas(order: int, count: int) -> None:
    rows = texts(count)
    model, slow = NGramModel(NGramConfig(order), VOCABULARY).fit_rows(Ragged.of(rows)), Slow(rows, order)
    for history in [(), (4,), (SOS,), (SOS, 4), (4, 5), (SOS, 4, 5), (9, 9, 9, 9), (5, 6, 7, 8)]:
        found = np.exp(model.distribution(history))
        context = history[max(0, len(history) - order + 1) :] if order > 1 else ()
        expected = [slow.p(token, context) for token in range(VOCABULARY)]
        assert found == pytest.approx(expected, abs=1e-7), (history, found, expected)
        assert found.sum() == pytest.approx(1.0, abs=1e-6)


def test_a_text_has_the_same_score_token_by_token_and_at_once() -> None:
    rows = texts(200)
    model = NGramModel(NGramConfig(4), VOCABULARY).fit_rows(Ragged.of(rows))
    some = texts(20, seed=9)
    scores = model.score(batch_of([[]] * len(some), some))
    for row, logs, mask in zip(some, scores.log_probabilities, scores.mask, strict=True):
        text = (*row, EOS)
        each = [model.distribution((SOS, *text[:place])) for place in range(len(text))]
        assert logs[mask].tolist() == pytest.approx([float(one[token]) for one, token in zip(each, text, strict=True)])
    correct = [bool(one) for row in scores.correct for one in row]
    expected = [
        place < len(row) + 1 and int(model.distribution((SOS, *row[:place])).argmax()) == (*row, EOS, PAD)[place]
        for row in some
        for place in range(scores.mask.shape[1])
    ]
    assert correct == expected


@pytest.mark.parametrize("threshold", [1e-4, 1e-2, 0.5])
def test_pruning_keeps_distributions_and_costs_little(threshold: float) -> None:
    rows, held_out = texts(500), Ragged.of(texts(200, seed=5))
    full = NGramModel(NGramConfig(4), VOCABULARY).fit_rows(Ragged.of(rows))
    pruned = NGramModel(NGramConfig(4, prune=threshold), VOCABULARY).fit_rows(Ragged.of(rows))
    sizes = [[len(level.keys) for level in model.levels] for model in (full, pruned)]
    assert sum(sizes[1]) < sum(sizes[0])
    for history in [(), (4,), (SOS, 4), (4, 5, 6), (9, 9, 9), (5, 6, 7)]:
        assert np.exp(pruned.distribution(history)).sum() == pytest.approx(1.0, abs=1e-5)
    losses = []
    for model in (full, pruned):
        scores = model.score(batch_of([[]] * len(held_out), [held_out[row] for row in range(len(held_out))]))
        losses.append(-float(scores.log_probabilities.sum() / scores.mask.sum()))
    assert losses[1] < losses[0] + 0.6  # all but the unigrams are gone in the last case
    if threshold < 1e-3:
        assert losses[1] == pytest.approx(losses[0], abs=0.1)


class Textbook:
    """An ARPA file by the definition of back-off: an n-gram's own probability, or weight times the shorter one's."""

    def __init__(self, path: Path, tokenizer: WordTokenizer) -> None:
        names = {piece: token for token, piece in enumerate(tokenizer.pieces(range(len(tokenizer))))}
        names |= {"<unk>": UNK, "<s>": SOS, "</s>": EOS}
        self.logs: dict[tuple[int, ...], float] = {}
        self.weights: dict[tuple[int, ...], float] = {}
        n = 0
        for line in path.read_text().splitlines():
            fields = line.split()
            if line.startswith("\\"):
                n = int(line[1]) if line[1].isdigit() else 0
            elif n and fields:
                gram = tuple(names[word] for word in fields[1 : n + 1])
                self.logs[gram] = float(fields[0])
                self.weights[gram] = float(fields[n + 1]) if len(fields) > n + 1 else 0.0
        self.order = max(map(len, self.logs))

    def log10(self, token: int, history: tuple[int, ...]) -> float:
        if (*history, token) in self.logs:
            return self.logs[*history, token]
        return self.weights.get(history, 0.0) + self.log10(token, history[1:]) if history else -99.0

    def distribution(self, history: tuple[int, ...]) -> list[float]:
        context = history[max(0, len(history) - self.order + 1) :] if self.order > 1 else ()
        return [0.0 if token == PAD else 10 ** self.log10(token, context) for token in range(VOCABULARY)]

    def contexts(self) -> list[tuple[int, ...]]:
        """Every context of the file, those in use and others, and some that it does not have."""
        unknown = [tuple(row[:4]) for row in texts(30, seed=8)] + [(SOS, 9, 9, 9), (11, 11, 11, 11)]
        return [(), *(gram for gram in self.logs if len(gram) < self.order and gram[-1] != EOS), *unknown]


WORDS = WordTokenizer(WordsConfig(split="spaces"), [f"w{number}" for number in range(VOCABULARY - 4)])


def check_against_textbook(model: NGramModel, path: Path, sums: bool = True) -> None:
    """Every way to a probability, for every context, and that those of all tokens sum to one."""
    truth = Textbook(path, WORDS)
    for history in truth.contexts():
        found, expected = np.exp(model.distribution(history)), truth.distribution(history)
        assert found == pytest.approx(expected, abs=1e-6), history
        if sums:
            assert found.sum() == pytest.approx(1.0, abs=2e-7), history
            assert sum(expected) == pytest.approx(1.0, abs=2e-6), history
    rows = texts(40, seed=9)
    scores = model.score(batch_of([[]] * len(rows), rows))
    contexts = model.first_contexts(1)
    for row, logs, correct in zip(rows, scores.log_probabilities, scores.correct, strict=True):
        contexts = model.first_contexts(1)
        for place, token in enumerate((*row, EOS)):
            probabilities = truth.distribution((SOS, *row[:place]))
            assert float(logs[place].exp()) == pytest.approx(probabilities[token], abs=1e-6)
            second, first = sorted(probabilities)[-2:]
            if first - second > 1e-6:  # the file is rounded: no tie
                assert bool(correct[place]) == (probabilities[token] == first)
            stepped, contexts = model.advance(contexts, np.array([token]))
            assert float(np.exp(stepped[0])) == pytest.approx(probabilities[token], abs=1e-6)


@pytest.mark.parametrize("threshold", [0.0, 1e-5, 1e-4, 1e-3, 1e-2])
@pytest.mark.parametrize("order", [2, 3, 4, 5])
def test_probabilities_after_every_context_sum_to_one(order: int, threshold: float, tmp_path: Path) -> None:
    """Pruned or not, in memory and from a file: against the definition of back-off."""
    model = NGramModel(NGramConfig(order, prune=threshold), VOCABULARY).fit_rows(Ragged.of(texts(400)))
    write_arpa(tmp_path / "lm.arpa", model, WORDS)
    check_against_textbook(model, tmp_path / "lm.arpa")
    again = read_arpa(tmp_path / "lm.arpa", WORDS)
    check_against_textbook(again, tmp_path / "lm.arpa", sums=False)
    assert [len(level.keys) for level in again.levels] == [len(level.keys) for level in model.levels]


@pytest.mark.parametrize("seed", range(4))
def test_files_that_other_tools_pruned_keep_their_probabilities(seed: int, tmp_path: Path) -> None:
    """An n-gram may be there without its last n − 1 words."""
    model = NGramModel(NGramConfig(4), VOCABULARY).fit_rows(Ragged.of(texts(150)))
    write_arpa(tmp_path / "whole.arpa", model, WORDS)
    draw, dropped, lines = random.Random(seed), set[tuple[str, ...]](), []
    n = 0
    for line in (tmp_path / "whole.arpa").read_text().splitlines():
        if line.startswith("\\"):
            n = int(line[1]) if line[1].isdigit() else 0
        elif line.startswith("ngram "):
            continue
        elif n > 1 and line:
            gram = tuple(line.split()[1 : n + 1])
            if gram[:-1] in dropped or draw.random() < 0.3:
                dropped.add(gram)
                continue
        lines.append(line)
    (tmp_path / "part.arpa").write_text("\n".join(lines) + "\n")
    part = read_arpa(tmp_path / "part.arpa", WORDS)
    assert sum(len(level.keys) for level in part.levels) > len(lines) - 12  # suffixes were added
    check_against_textbook(part, tmp_path / "part.arpa", sums=False)


def test_arpa_files_go_both_ways(tmp_path: Path) -> None:
    words = WORDS
    model = NGramModel(NGramConfig(3), VOCABULARY).fit_rows(Ragged.of(texts(100)))
    write_arpa(tmp_path / "lm.arpa", model, words)
    again = read_arpa(tmp_path / "lm.arpa", words)
    for history in [(), (SOS, 4), (4, 5), (8, 8)]:
        assert again.distribution(history) == pytest.approx(model.distribution(history), abs=1e-5)
    text = (tmp_path / "lm.arpa").read_text()
    assert f"ngram 1={VOCABULARY - 1}\n" in text
    fewer = WordTokenizer(WordsConfig(split="spaces"), ["w0", "w1", "other"])
    small = read_arpa(tmp_path / "lm.arpa", fewer, order=2)
    assert small.distribution((SOS,))[4] == pytest.approx(model.distribution((SOS,))[4], abs=1e-5)
    for content, error in (
        ("\\data\\\nngram 1=1\n\\1-grams:\nx y z w\n\\end\\\n", "expected a log-probability, 1 words"),
        ("hello\n", "expected"),
        (text[: text.index("\\end")], "no \\\\end"),
        (text.replace("ngram 1=", "ngram 1=9"), "1-grams, expected 9"),
        (text.replace("\\2-grams:", "\\4-grams:"), "found 4-grams, expected 2-grams"),
        (text[: text.index("\\2-grams")] + "\\end\\\n", "expected 2-grams"),
        ("\\1-grams:\n-1 w0\n-1 w1\n\\2-grams:\n-1 w0 w1\n-1 w0 w1\n\\end\\\n", "bad.arpa:6: .* for the second time"),
        ("\\1-grams:\nnan w0\n\\end\\\n", "expected a log-probability"),
    ):
        (tmp_path / "bad.arpa").write_text(content)
        with pytest.raises(DataError, match=error):
            read_arpa(tmp_path / "bad.arpa", words)


def test_the_scorer_of_a_search_suppresses_special_tokens() -> None:
    scorer = NGramLM.of_rows(texts(50), VOCABULARY, 3)
    found = scorer([(), (4,), (4, 5)])
    assert found.shape == (3, VOCABULARY)
    assert bool(found[:, :EOS].isneginf().all())
    assert torch.equal(found[1], scorer([(4,)])[0])


@pytest.fixture(scope="module")
def text_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ngram") / "text.txt"
    random.seed(3)
    nouns, verbs = ["dog", "cat", "bird", "fox"], ["sees", "hears", "likes"]
    lines = [f"the {random.choice(nouns)} {random.choice(verbs)} the {random.choice(nouns)} ." for _ in range(300)]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_an_ngram_model_is_a_run(text_file: Path, cached: Path, tmp_path: Path) -> None:
    run, test = tmp_path / "run", tmp_path / "test.txt"
    settings = ["task=language-model", "model.kind=ngram", "tokenizer.source.kind=words", "model.order=3"]
    told = call("train", text_file, *settings, "--run", run)
    assert told.code == 0, told.err
    test.write_text("the dog sees the cat .\nthe cat likes the fox .\n")
    scores = json.loads(call("evaluate", run, test, "--json").out)
    assert 1.5 < scores["word_perplexity"] < 3
    assert call("complete", run, "the dog", "--one-line").out.startswith("the dog ")
    assert call("check", text_file, *settings).lines[-1] == "all is well"
    assert "n-grams of up to 3 tokens" in call("info", run).lines[0]
    again = json.loads(call("evaluate", run, test, "--json", "--batch-size", "1").out)
    assert again == scores
    told = call("export", run, "--to", "arpa", "--output", tmp_path / "lm.arpa")
    assert told.code == 0, told.err
    lines = (tmp_path / "lm.arpa").read_text().splitlines()
    bigram = next(line for line in lines if line.split("\t")[1:2] == ["the dog"])
    assert -1.5 < float(bigram.split("\t")[0]) < -0.3
    assert math.isfinite(scores["loss"])


def test_runs_merged_from_files_change_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    rows = Ragged.of([rng.integers(4, 12, rng.integers(0, 9)).tolist() for _ in range(60)])
    with StoreWriter(tmp_path / "store", 12, 12) as writer:
        writer.add([()] * len(rows), [rows[index] for index in range(len(rows))])
    whole = NGramModel(NGramConfig(4), 12).fit_rows(rows)
    for name, value in (("CHUNK", 11), ("SMALLEST", 3), ("IN_MEMORY", 5), ("ROWS", 4)):
        monkeypatch.setattr(ngram_counts, name, value)
    parts = NGramModel(NGramConfig(4), 12).fit_rows(TokenStore(tmp_path / "store").target)
    for name, tensor in whole.tensors.items():
        np.testing.assert_array_equal(tensor, parts.tensors[name], err_msg=name)
    monkeypatch.setattr(kneser_ney, "CHUNK", 7)
    parts = NGramModel(NGramConfig(4), 12).fit_rows(rows)
    for name, tensor in whole.tensors.items():
        np.testing.assert_allclose(tensor, parts.tensors[name], rtol=1e-5)  # sums of discounts may be rounded otherwise
