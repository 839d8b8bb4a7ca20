"""Back-translation, and training files mixed by weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dragoman.data.batching import BatchPlan
from dragoman.data.config import DataConfig, TokenizersConfig
from dragoman.data.corpus import prepare_corpus
from dragoman.data.examples import Pairs
from dragoman.data.tokenizers.characters import CharactersConfig
from dragoman.inference.back_translation import BLANK, Noise
from tests.conftest import TrainedFolder, call, words, write_rows


def test_noise_follows_from_the_text() -> None:
    text = " ".join(words(2000))
    noisy = Noise(seed=1)(text)
    assert noisy == Noise(seed=1)(text) != Noise(seed=2)(text)
    found, before = noisy.split(), text.split()
    assert len(found) == pytest.approx(1800, abs=60)
    assert found.count(BLANK) == pytest.approx(180, abs=50)
    kept = [before.index(word) for word in found if word != BLANK]
    rank = np.argsort(np.argsort(kept))
    assert 0 < np.abs(rank - np.arange(len(kept))).max() <= 3
    assert Noise(drop=1.0)("one two")  # never empty


@pytest.mark.parametrize("method", ["beam", "sample", "noise"])
def test_the_command(inside: TrainedFolder, method: str) -> None:
    mono = inside.write("mono.txt", "abc def\n\n  cab  \n" + "x" * 20_000 + "\nfed\n")
    result = call("back-translate", inside.run, mono, "-o", inside.folder / "s.tsv", "--method", method, "--seed", "3")
    assert result.code == 0, result.err
    assert "left out: " in result.err
    assert "1 empty line" in result.err
    assert "1 over-long" in result.err
    rows = [line.split("\t") for line in (inside.folder / "s.tsv").read_text(encoding="utf-8").splitlines()]
    assert all(source.startswith("<BT> ") for source, _ in rows)
    assert {target for _, target in rows} <= {"abc def", "cab", "fed"}
    if method == "beam":
        plain = call("predict", inside.run, stdin=b"abc def\ncab\nfed\n").lines
        assert [source for source, _ in rows] == [f"<BT> {' '.join(line.split())}" for line in plain if line.strip()]
    elif method == "sample":
        assert call("back-translate", inside.run, mono, "-o", "s.txt").code == 2
        assert "needs --method sample" in call("back-translate", inside.run, mono, "-o", "a.tsv", "--top-k", "3").err


def test_files_are_read_as_inputs_are(inside: TrainedFolder) -> None:
    """A second column, and the JSON of an object, became text of the target language."""
    plain = inside.write("mono.txt", "abc\nfed\n")
    table = inside.write("mono.tsv", "abc\tof a crawl\nfed\tof a book\n")
    objects = inside.write("mono.jsonl", '{"source": "abc"}\n{"source": "fed"}\n')
    written = []
    for number, file in enumerate((plain, table, objects)):
        result = call("back-translate", inside.run, file, "-o", inside.folder / f"{number}.tsv")
        assert result.code == 0, result.err
        written.append((inside.folder / f"{number}.tsv").read_text(encoding="utf-8"))
    assert written[0] == written[1] == written[2]


def test_weights_say_how_often_an_epoch_has_a_pair(tmp_path: Path) -> None:
    files = []
    for number, weight in enumerate((1.0, 2.5, 0.25)):
        path = write_rows(tmp_path / f"{number}.tsv", [(f"{'abc'[number]}{word}", word) for word in words(400)])
        files.append(Pairs(file=str(path), weight=weight))
    valid = write_rows(tmp_path / "valid.tsv", [("a", "b")])
    tokenizers = TokenizersConfig(CharactersConfig())

    def counted(train: tuple[Pairs, ...], epoch: int = 0) -> np.ndarray:  # type: ignore[type-arg]
        corpus = prepare_corpus(DataConfig(train, str(valid), cache=str(tmp_path / "cache")), tokenizers)
        plan = BatchPlan(corpus.train, 500, seed=1)
        return np.bincount(plan.epoch(epoch).rows, minlength=len(corpus.train)).reshape(3, -1)

    counts = counted(tuple(files))
    assert (counts[0] == 1).all()
    assert set(counts[1].tolist()) == {2, 3}
    assert counts[1].mean() == pytest.approx(2.5, abs=0.1)
    assert counts[2].mean() == pytest.approx(0.25, abs=0.08)
    assert (counted(tuple(files)) == counts).all()  # from seed and epoch alone
    assert (counted(tuple(files), 1) != counts).any()
    plain = tuple(Pairs(file=one.file) for one in files)
    assert (counted(plain) == 1).all()


def test_weights_in_a_configuration(inside: TrainedFolder) -> None:
    config = inside.write(
        "mixed.toml", '[data]\ntrain = [{ file = "pairs.tsv", weight = 0.5 }, "test.tsv"]\nvalid = "pairs.tsv"\n'
    )
    config.write_text(config.read_text(encoding="utf-8").replace('"test.tsv"', '"pairs.tsv"'), encoding="utf-8")
    result = call("train", config, "--run", inside.folder / "mixed", "preset=copy", "-q")
    assert result.code == 0, result.err
    config.write_text('[data]\ntrain = "pairs.tsv"\nvalid = { file = "pairs.tsv", weight = 2.0 }\n', encoding="utf-8")
    result = call("train", config, "--run", inside.folder / "wrong", "-q")
    assert result.code == 2
    assert "weight 2" in result.err
