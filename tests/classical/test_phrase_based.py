"""Phrase-based translation: the decoder against exhaustive search, tuning, and a run."""

from __future__ import annotations

import itertools
import json
import random
import signal
from pathlib import Path

import numpy as np
import pytest

from dragoman.classical.ngram import NGramConfig, NGramModel
from dragoman.classical.phrase_based import bleu, bleu_statistics
from dragoman.classical.phrase_decoder import DISTANCE, LANGUAGE, PHRASES, TABLE, WORDS, PhraseDecoder, PhraseOptions
from dragoman.classical.rows import Ragged
from dragoman.data.tokenizers.base import EOS, SOS
from dragoman.scoring.report import score_table
from dragoman.training import trainer
from tests.conftest import call

WEIGHTS = np.array([0.4, 0.2, 0.1, 0.3, -0.2, 0.5, 0.3, 0.7])


def language_model() -> NGramModel:
    random.seed(1)
    rows = [[random.randint(4, 9) for _ in range(random.randint(2, 6))] for _ in range(60)]
    return NGramModel(NGramConfig(3), 10).fit_rows(Ragged.of(rows))


def random_options(seed: int, length: int) -> PhraseOptions:
    rng = np.random.default_rng(seed)
    spans = [(a, b) for a in range(length) for b in range(a + 1, min(length, a + 2) + 1) for _ in range(2)]
    targets = np.full((len(spans), 2), -1, np.int64)
    for row in range(len(spans)):
        size = int(rng.integers(1, 3))
        targets[row, :size] = rng.integers(4, 10, size)
    starts, ends = (np.array([span[side] for span in spans]) for side in (0, 1))
    return PhraseOptions(starts, ends, targets, -rng.random((len(spans), TABLE)))


def exhaustive(model: NGramModel, options: PhraseOptions, length: int, limit: int) -> float:
    """The best score of all segmentations, translations and orders without jumps beyond the limit."""
    best = -np.inf
    features = options.features @ WEIGHTS[:TABLE]

    def go(covered: int, last: int, tokens: tuple[int, ...], score: float) -> None:
        nonlocal best
        if covered == (1 << length) - 1:
            text = (*tokens, EOS)
            logs = sum(model.distribution((SOS, *text[:place]))[token] for place, token in enumerate(text))
            best = max(best, score + WEIGHTS[LANGUAGE] * logs)
            return
        for index, (start, end) in enumerate(zip(options.starts.tolist(), options.ends.tolist(), strict=True)):
            mask = sum(1 << place for place in range(start, end))
            if covered & mask or abs(start - last) > limit:
                continue
            own = tuple(token for token in options.targets[index].tolist() if token >= 0)
            more = (
                features[index] + WEIGHTS[PHRASES] + WEIGHTS[WORDS] * len(own) - WEIGHTS[DISTANCE] * abs(start - last)
            )
            go(covered | mask, end, tokens + own, score + more)

    go(0, 0, (), 0.0)
    return float(best)


@pytest.mark.parametrize(("seed", "length", "limit"), [(1, 3, 6), (2, 4, 6), (3, 4, 6), (4, 3, 0)])
def test_a_wide_decoder_is_exhaustive(seed: int, length: int, limit: int) -> None:
    model, options = language_model(), random_options(seed, length)
    decoder = PhraseDecoder(model, WEIGHTS, stack=5000, limit=limit, pool=100_000)
    (found,) = decoder.translate(length, options)
    assert found.score == pytest.approx(exhaustive(model, options, length, limit), abs=1e-6)
    assert float(found.features @ WEIGHTS) == pytest.approx(found.score, abs=1e-9)  # search score = model score
    used = [(int(options.starts[index]), int(options.ends[index])) for index in found.phrases]
    assert sorted(itertools.chain(*(range(*span) for span in used))) == list(range(length))
    several = decoder.translate(length, options, n_best=5)
    assert several[0].score == pytest.approx(found.score, abs=1e-9)
    assert [one.score for one in several] == sorted((one.score for one in several), reverse=True)


def test_bleu_is_that_of_sacrebleu() -> None:
    outputs, references = ["a b c d e f", "a b x d e", "b c d e"], ["a b c d e f", "a b c d e f", "b c d e"]
    total = sum(bleu_statistics(tuple(one.split()), tuple(other.split()))  # type: ignore[arg-type]
                for one, other in zip(outputs, references, strict=True))  # fmt: skip
    expected = score_table(outputs, [[one] for one in references], ["bleu"])["bleu"]
    assert 100 * bleu(total) == pytest.approx(expected)


def test_a_phrase_based_model_is_a_run(tmp_path: Path, cached: Path) -> None:
    random.seed(5)
    words = {"the": "das", "dog": "Hund", "cat": "Tier", "sees": "sieht", "a": "ein", "big": "großes", "house": "Haus"}
    lines = []
    for _ in range(160):
        subject, thing = random.choice(["dog", "cat", "house"]), random.choice(["dog", "cat", "house"])
        text = ["the", subject, "sees", "a", *(["big"] if random.random() < 0.5 else []), thing]
        lines.append(" ".join(text) + "\t" + " ".join(words[word] for word in text) + "\n")
    data, run = tmp_path / "pairs.tsv", tmp_path / "run"
    data.write_text("".join(lines), encoding="utf-8")
    settings = ("preset=phrase-based", "model.tune=1", "tokenizer.source.kind=words", "tokenizer.target.kind=words")
    told = call("train", data, *settings, "--run", run)
    assert told.code == 0, told.err
    assert "limits: phrase-based has no probabilities and no exports" in told.err
    scores = json.loads(call("evaluate", run, data, "--json").out)
    assert scores["exact_match"] >= 0.9
    assert call("predict", run, stdin=b"the dog sees a big house\n").out == "das Hund sieht ein großes Haus\n"
    one, other = (
        call("predict", run, *more, stdin=b"the dog sees a cat\na cat\n").out for more in ((), ("--batch-size", "1"))
    )
    assert one == other
    long = " ".join(["dog"] * 130)
    assert call("predict", run, stdin=long.encode()).out.split() == ["Hund"] * 130
    several = json.loads(call("predict", run, "--json", "--n-best", "3", "--beam", "3", stdin=b"a big cat\n").out)
    assert len(several["alternatives"]) == 2
    told = call("inspect", run, "the dog", "--output", tmp_path / "seen.json")
    assert told.code == 0, told.err
    views = {view["kind"]: view["data"] for view in json.loads((tmp_path / "seen.json").read_text())["views"]}
    assert [phrase["target"] for phrase in views["phrases"]["phrases"]][-1] == ["<eos>"]
    told = call("inspect", run, "the dog", "--target", "das Tier", "--output", tmp_path / "other.json")
    assert (told.code, "explains its own outputs" in told.err) == (2, True)
    check_noisy_channel(run, tmp_path, lines)


@pytest.mark.parametrize("preset", ["phrase-based", "word-aligner", "ngram-transducer", "memorise"])
def test_a_fit_that_a_signal_stops_promises_no_resume(
    preset: str, tmp_path: Path, cached: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, run = tmp_path / "pairs.tsv", tmp_path / "run"
    data.write_text("".join(f"a {number}\tb {number}\n" for number in range(60)), encoding="utf-8")
    arguments = ("train", data, f"preset={preset}", "--run", run, "--quiet")
    with monkeypatch.context() as patch:
        patch.setattr(trainer, "write_text", lambda *written: signal.raise_signal(signal.SIGTERM))  # fitting begins
        stopped = call(*arguments)
    assert stopped.code == 143
    assert stopped.err.splitlines()[-1] == "stopped before anything was saved; the same command begins anew"
    assert call(*arguments).code == 0


def check_noisy_channel(run: Path, folder: Path, lines: list[str]) -> None:
    """A word aligner from target to source and n-grams rank the outputs."""
    back, text = folder / "back.tsv", folder / "text.txt"
    sides = [line.rstrip("\n").split("\t") for line in lines]
    back.write_text("".join(f"{target}\t{source}\n" for source, target in sides), encoding="utf-8")
    text.write_text("".join(f"{target}\n" for _, target in sides), encoding="utf-8")
    assert call("train", back, "preset=word-aligner", "--run", folder / "aligner").code == 0
    settings = ("task=language-model", "model.kind=ngram", "tokenizer.source.kind=words", "model.order=2")
    assert call("train", text, *settings, "--run", folder / "ngrams").code == 0
    asked = ("--json", "--beam", "4", "--n-best", "4")
    ranks = [part for name in ("aligner", "ngrams") for part in (f"rerank.runs={folder / name}", "rerank.weights=2")]
    plain, ranked = (json.loads(call("predict", run, *asked, *more, stdin=b"the dog sees a cat\n").out)
                     for more in ((), ranks))  # fmt: skip
    assert ranked["text"] == "das Hund sieht ein Tier"
    before, after = ({one["text"]: one["score"] for one in (best, *best["alternatives"])} for best in (plain, ranked))
    added = {text: score - before[text] for text, score in after.items()}
    assert max(added, key=lambda one: added[one]) == ranked["text"]  # what says all of the source
