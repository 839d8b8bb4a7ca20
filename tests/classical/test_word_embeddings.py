"""Word vectors by negative sampling: the published loss by torch's autograd, and gensim on the same text."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch

from dragoman.base import DataError
from dragoman.classical.word_embeddings import (
    EmbeddingOptions,
    WordEmbeddings,
    _examples,
    gradients,
    learn_embeddings,
    update,
)
from tests.conftest import call

GROUPS = (("king", "queen", "prince", "duke"), ("apple", "pear", "plum", "cherry"), ("red", "green", "blue", "white"))


def write_text(path: Path, lines: int) -> Path:
    """Sentences that each have words of one group: its words are neighbours."""
    draw = random.Random(3)
    path.write_text("".join(" ".join(draw.choices(draw.choice(GROUPS), k=6)) + "\n" for _ in range(lines)))
    return path


@pytest.mark.parametrize("contexts", [1, 3])
def test_an_update_follows_the_gradient_of_the_published_loss(contexts: int) -> None:
    rng = np.random.default_rng(1)
    inputs, outputs = rng.normal(size=(7, 4)), rng.normal(size=(7, 4))
    near, centres = rng.integers(0, 7, (5, contexts)), rng.integers(0, 7, 5)
    mask = np.ones((5, contexts))
    mask[1:3, 1:] = 0
    noise = rng.integers(0, 7, (5, 2))
    noise[0, 0] = centres[0]  # drawn by chance: counts nothing
    u, v = torch.tensor(outputs, requires_grad=True), torch.tensor(inputs, requires_grad=True)
    loss = torch.zeros((), dtype=torch.float64)
    for row in range(5):
        real = [v[int(near[row, place])] for place in range(contexts) if mask[row, place]]
        hidden = torch.stack(real).mean(0)
        loss = loss - torch.nn.functional.logsigmoid(u[int(centres[row])] @ hidden)
        for word in noise[row]:
            if word != centres[row]:
                loss = loss - torch.nn.functional.logsigmoid(-u[int(word)] @ hidden)
    loss.backward()  # type: ignore[no-untyped-call]
    assert gradients(inputs, outputs, near, mask, centres, noise)[0] == pytest.approx(loss.item(), abs=1e-12)
    assert update(inputs, outputs, near, mask, centres, noise, 0.1) == pytest.approx(loss.item(), abs=1e-12)
    assert u.grad is not None
    assert v.grad is not None
    np.testing.assert_allclose(inputs, (v - 0.1 * v.grad).detach(), atol=1e-12)
    np.testing.assert_allclose(outputs, (u - 0.1 * u.grad).detach(), atol=1e-12)


def test_every_example_is_a_word_in_the_window_of_another() -> None:
    rows, rng = [np.arange(6), np.array([7]), np.arange(8, 10)], np.random.default_rng(0)
    for method in ("skip-gram", "cbow"):
        options = EmbeddingOptions(method=method, window=2)  # type: ignore[arg-type]
        found: set[tuple[int, int]] = set()
        for _ in range(30):
            for near, mask, centres, _ in _examples(rows, np.arange(3), np.ones(10), options, rng):
                for row, centre in enumerate(centres.tolist()):
                    found |= {(int(word), centre) for word in near[row][mask[row] > 0]}
        expected = {(a, b) for row in rows for i, a in enumerate(row) for j, b in enumerate(row) if 0 < abs(i - j) < 3}
        assert found == {(int(a), int(b)) for a, b in expected}


@pytest.mark.parametrize("method", ["skip-gram", "cbow"])
def test_similarities_are_those_that_gensim_learns(tmp_path: Path, method: str) -> None:
    gensim = pytest.importorskip("gensim.models")
    text = write_text(tmp_path / "text.txt", 300)
    sentences = [line.split() for line in text.read_text().splitlines()]
    options = EmbeddingOptions(method=method, width=16, window=3, epochs=6, rate=0.05, sample=0.0)  # type: ignore[arg-type]
    ours = learn_embeddings([text], options)
    theirs = gensim.Word2Vec(
        sentences, vector_size=16, window=3, negative=5, sg=int(method == "skip-gram"), hs=0, cbow_mean=1, epochs=6,
        min_count=5, sample=0, seed=1, workers=1, alpha=0.05, min_alpha=1e-4,
    ).wv  # fmt: skip
    assert set(ours.words) == set(theirs.index_to_key)
    for word in ours.words:
        group = next(set(group) for group in GROUPS if word in group)
        assert {one.word for one in ours.nearest(word, 3)} == group - {word}
        assert {name for name, _ in theirs.most_similar(word, topn=3)} == group - {word}
    pairs = [(a, b) for a in ours.words for b in ours.words if a < b]
    unit = {word: vector / np.linalg.norm(vector) for word, vector in zip(ours.words, ours.vectors, strict=True)}
    mine = [float(unit[a] @ unit[b]) for a, b in pairs]
    assert np.corrcoef(mine, [theirs.similarity(a, b) for a, b in pairs])[0, 1] > 0.95
    ours.save(tmp_path / "vectors.txt")  # gensim reads what we write, and answers alike
    read = pytest.importorskip("gensim.models.keyedvectors").KeyedVectors.load_word2vec_format(tmp_path / "vectors.txt")
    assert [name for name, _ in read.most_similar("king", topn=5)] == [one.word for one in ours.nearest("king", 5)]
    expected = read.most_similar(positive=["queen", "apple"], negative=["king"], topn=5)
    found = WordEmbeddings.read(tmp_path / "vectors.txt").analogy("king", "queen", "apple", 5)
    assert [one.word for one in found] == [name for name, _ in expected]
    assert [one.cosine for one in found] == pytest.approx([cosine for _, cosine in expected], abs=1e-4)


def test_a_model_starts_from_learnt_vectors(tmp_path: Path, cached: Path) -> None:
    text, file = write_text(tmp_path / "text.txt", 60), tmp_path / "vectors.txt"
    told = call("vectors", text, "-o", file, "--width", "8", "--epochs", "1", "--near", "king", "--json")
    assert told.code == 0, told.err
    assert len(json.loads(told.out[told.out.index("[") :])[0]["nearest"]) == 10
    again = call("vectors", file, "--near", "king", "--analogy", "king queen apple")
    assert [line.split(":")[0] for line in again.lines] == ["king", "queen − king + apple"]
    rows = [f"{a} {b}\t{number}\n" for number, group in enumerate(GROUPS) for a in group for b in group]
    (tmp_path / "labels.tsv").write_text("".join(rows))
    trained = call("train", tmp_path / "labels.tsv", "task=classify", "tokenizer.source.kind=words", "--run",
                   tmp_path / "run", f"train.vectors.source={file}", "model.encoder.embedding=8",
                   "train.steps=2")  # fmt: skip
    assert trained.code == 0, trained.err
    assert "12 of 12" in trained.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("text.txt",), "found no --output; expected one to learn vectors"),
        (("vectors.txt", "--near", "kin"), "found the word 'kin', which has no vector. Did you mean 'king'?"),
        (("vectors.txt", "--analogy", "king queen"), "found 2 words (king queen), expected three"),
        (("text.txt", "-o", "x.txt", "--min-count", "999999"), "found 0 words that occur 999999 times or more"),
    ],
)
def test_mistakes_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_text(Path("text.txt"), 20)
    Path("vectors.txt").write_text("3 2\nking 1 0\nqueen 0 1\nduke 1 1\n")
    told = call("vectors", *arguments)
    assert (told.code, message in told.err) == (2, True), told.err
    with pytest.raises(DataError, match="no vector"):
        WordEmbeddings.read("vectors.txt").nearest("none")
