"""Checks for the authors of plug-ins: the laws that every entry of a table keeps. They need no pytest.

    from dragoman.testing import check_decoder

    def test_laws() -> None:
        check_decoder("my-decoder")

Each takes the name that users write, and raises AssertionError with a reason. Import the module that registers the
entry first, unless its package is installed with an entry point.
"""

from __future__ import annotations

import gzip
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dragoman.base import DragomanError
from dragoman.base import config as settings
from dragoman.data import Batch, Corpus, Example, batch_of
from dragoman.data.readers import READERS, ReadOptions, SourceRow, read_pairs
from dragoman.data.tokenizers import EOS
from dragoman.decoding import METHODS, SearchConfig, search
from dragoman.decoding.constraints import CONSTRAINTS, ConstraintAutomaton, TokenBytes
from dragoman.documents import UnitTranslation, open_document
from dragoman.exchange import EXPORTERS, export_run
from dragoman.models import DECODERS, ENCODERS, Entry
from dragoman.models.decoders import RecurrentDecoderConfig
from dragoman.models.encoders import RecurrentEncoderConfig
from dragoman.models.layers import AdditiveConfig, GRUConfig, LSTMConfig
from dragoman.runs import Run, train
from dragoman.runs.tasks import TASKS, build, starter, task_of
from dragoman.scoring import METRICS, TextMetric
from dragoman.testing.laws import SOURCES, assert_close, check_laws, in_float64, small_model
from dragoman.testing.learning import LearningTask, learn
from dragoman.training import read_tensors
from dragoman.training.objectives import OBJECTIVES, Objective


def check_decoder(kind: str, learns: bool = True) -> None:
    """A registered decoder keeps all laws and, unless `learns` is false, learns to copy and to reverse (about 10 s)."""
    entry = DECODERS[kind]
    _check_example(entry)
    with in_float64():
        for encoder in ("recurrent", "transformer"):
            model = small_model(ENCODERS[encoder].example, entry.example, seed=kind).eval()
            check_laws(model, f"the decoder '{kind}' with the encoder '{encoder}'")
    if learns:
        partner = RecurrentEncoderConfig(cell=LSTMConfig(), layers=1, embedding=24, width=32, dropout=0.0)
        _check_learning(kind, partner, entry.larger_example or entry.example, entry.monotone)


def check_encoder(kind: str, learns: bool = True) -> None:
    """A registered encoder keeps all laws and, unless `learns` is false, learns to copy and to reverse (about 10 s)."""
    entry = ENCODERS[kind]
    _check_example(entry)
    with in_float64():
        for decoder in ("recurrent", "transformer"):
            model = small_model(entry.example, DECODERS[decoder].example, seed=kind).eval()
            check_laws(model, f"the encoder '{kind}' with the decoder '{decoder}'")
    if learns:
        partner = RecurrentDecoderConfig(
            cell=GRUConfig(), layers=1, embedding=24, width=32, attention=AdditiveConfig(width=24), dropout=0.0
        )
        _check_learning(kind, entry.larger_example or entry.example, partner)


def _check_example(entry: Entry) -> None:
    expected = entry.config.__name__
    assert type(entry.example) is entry.config, f"{entry.config.kind}: the example of the entry is no {expected}"
    check_settings(entry.example)


def _check_learning(kind: str, encoder: Any, decoder: Any, monotone: bool = False) -> None:
    tasks: list[LearningTask] = ["copy"] if monotone else ["copy", "reverse"]
    for task in tasks:
        before, after = learn(encoder, decoder, task)
        assert before < 0.1, f"{kind}: {task} is right for {before:.0%} of the rows before training"
        assert after >= 0.95, (
            f"{kind}: it learns to {task} {after:.0%} of unseen rows in 180 steps, expected 95 %; give the "
            "`larger_example` of its entry more width"
        )


def check_settings(config: Any) -> None:
    """Settings can be written as TOML and read back."""
    again = settings.build(type(config), settings.as_table(config))
    assert again == config, f"{config} reads back as {again}"
    for item in settings.describe(type(config)):
        assert item.note, f"{type(config).__name__}.{item.place}: has no help; use setting(…, help=…)"


def check_metric(name: str) -> None:
    """A registered text metric: statistics add up, order does not matter, and a perfect output has the best score."""
    metrics = [metric for (_, other), metric in METRICS.items() if other == name and isinstance(metric, TextMetric)]
    assert metrics, f"{name}: no text metric has this name; label metrics have no laws yet"
    draw, words = random.Random(3), ["the", "a", "cat", "dog", "sat", "on", "mat", "of", "all", "!", "naïve"]
    truth = [" ".join(draw.choices(words, k=draw.randint(3, 12))) for _ in range(60)]
    outputs = [" ".join(draw.choice(words) if draw.random() < 0.3 else word for word in text.split()) for text in truth]
    references = [[text] for text in truth]
    sources = [" ".join(draw.choice(words) if draw.random() < 0.3 else word for word in text.split()) for text in truth]
    for metric in dict.fromkeys(metrics):
        counted = metric.statistics(outputs, references, sources)
        assert counted.rows.shape[0] == len(outputs), f"{name}: expected one row of statistics per segment"
        assert counted.signature, f"{name}: expected a signature that says how it counts"
        score, perfect = metric.score(counted), metric.score(metric.statistics(truth, references, sources))
        better = perfect > score if metric.higher_is_better else perfect < score
        assert better, f"{name}: a perfect output scores {perfect}, one with errors {score}; see higher_is_better"
        backwards = metric.statistics(outputs[::-1], references[::-1], sources[::-1])
        assert np.isclose(metric.score(backwards), score), f"{name}: the order of the segments changes the score"
        if metric.has_segment_costs:  # its segments do not depend on each other
            part = range(0, 60, 7)
            alone = metric.statistics([outputs[i] for i in part], [references[i] for i in part])
            both = metric.combine(np.stack([counted.rows[list(part)].sum(axis=0), counted.rows.sum(axis=0)]))
            assert np.allclose(both, [metric.score(alone), score]), f"{name}: the rows of a part do not add up to it"
            costs = np.array(metric.costs(truth[:5], references[:5]))
            assert (costs <= np.array(metric.costs(outputs[:5], references[:5])) + 1e-9).all(), f"{name}: costs"


def check_reader(suffix: str, content: bytes, pairs: Sequence[tuple[str, str]]) -> None:
    """A registered reader finds these pairs in this content, plain and compressed, and their sources for `predict`."""
    with tempfile.TemporaryDirectory() as folder:
        plain, compressed = Path(folder, f"file{suffix}"), Path(folder, f"file{suffix}.gz")
        plain.write_bytes(content)
        compressed.write_bytes(gzip.compress(content))
        for path in (plain, plain, compressed):  # twice: it keeps no state
            examples = list(read_pairs(path))
            faults = [item for item in examples if not isinstance(item, Example)]
            assert not faults, f"{path.name}: found the fault {faults[0]}"
            found = [(item.source, item.references[0]) for item in examples if isinstance(item, Example)]
            assert found == list(pairs), f"{path.name}: found {found}, expected {list(pairs)}"
            rows = [row for row in READERS.of(path).sources(path, ReadOptions()) if isinstance(row, SourceRow)]
            sources = [source for source, _ in pairs]
            assert [row.text for row in rows] == sources, f"{path.name}: other sources for predict than for training"
        try:
            list(READERS.of(plain).pairs(Path(folder, f"missing{suffix}"), ReadOptions()))
        except (DragomanError, OSError):
            return
        raise AssertionError(f"{suffix}: a missing file is no error")


def check_objective(kind: str, **options: Any) -> None:
    """A registered objective with these settings: a finite sum with gradients, the same again with the same seed."""
    entry = OBJECTIVES[kind]
    config = entry.config(**options)
    check_settings(config)
    assert config.memory_factor >= 1, f"{kind}: memory_factor: found {config.memory_factor}, expected at least 1"
    with tempfile.TemporaryDirectory() as folder, in_float64():
        model, corpus = _small_translator(folder)
        objective = entry.objective(config, corpus)
        source, target = corpus.source_tokenizer, corpus.target_tokenizer
        texts = [("abc", "cba"), ("a", "a"), ("bd", "db"), ("cab", "bac")]
        rows = [(source.encode(left), target.encode(right)) for left, right in texts]

        def total(first: int, last: int) -> torch.Tensor:
            torch.manual_seed(1)
            batch: Batch = batch_of([row[0] for row in rows[first:last]], [row[1] for row in rows[first:last]])
            return objective.loss(model, objective.prepare(model, batch)).total

        whole = total(0, 4)
        assert whole.ndim == 0, f"{kind}: found a loss of shape {tuple(whole.shape)}, expected one number"
        assert whole.isfinite(), f"{kind}: found a loss of {whole.item()}"
        torch.autograd.backward(whole)
        gradients = [part.grad for part in model.parameters() if part.grad is not None]
        assert any(bool(gradient.abs().max() > 0) for gradient in gradients), f"{kind}: no weight gets a gradient"
        assert_close(total(0, 4), whole)
        if type(objective).prepare is Objective.prepare:  # with samples, a row's loss follows from all draws before it
            parts = total(0, 1) + total(1, 4)
            assert torch.isclose(parts, whole), (
                f"{kind}: the losses of two parts of a batch are {parts.item()}, of the whole {whole.item()}; expected "
                "a sum over target tokens, not a mean"
            )


def check_method(kind: str, **options: Any) -> None:
    """A registered decoding method with these settings: complete outputs, and none depends on another source."""
    config = METHODS[kind].config(**options)
    check_settings(config)
    limits = SearchConfig(max_length=6)
    with in_float64():
        model = small_model(ENCODERS["recurrent"].example, DECODERS["recurrent"].example, seed=kind).eval()
        together = search(model, batch_of(SOURCES), limits, 1.0, n_best=2, method=config)
        for source, outputs in zip(SOURCES, together, strict=True):
            place = f"{kind}: for the source {source}"
            assert 1 <= len(outputs) <= 2, f"{place} found {len(outputs)} hypotheses, expected 1 or 2 (n_best)"
            for output in outputs:
                assert output.tokens[-1] == EOS, f"{place} found an output without <eos>: {output.tokens}"
                assert len(output.tokens) <= 7, f"{place} found {len(output.tokens)} tokens, expected at most 7"
                with torch.no_grad():
                    scores = model.score(batch_of([source], [output.tokens[:-1]])).log_probabilities[0]
                assert_close(torch.tensor(output.token_scores), scores)
            (alone,) = search(model, batch_of([source]), limits, 1.0, n_best=2, method=config)
            tokens = [output.tokens for output in outputs]
            assert [output.tokens for output in alone] == tokens, f"{place} the outputs depend on the rest of the batch"


def check_constraint(name: str, text: str, accepted: Sequence[str], refused: Sequence[str]) -> None:
    """A registered constraint of this text accepts and refuses these outputs; a search finds none that it refuses."""
    with tempfile.TemporaryDirectory() as folder, in_float64():
        model, corpus = _small_translator(folder, "".join(sorted({*"".join([*accepted, *refused])})))
        tokenizer = corpus.target_tokenizer
        constraint = CONSTRAINTS[name].build(TokenBytes(tokenizer), text)

        def accepts(tokens: Sequence[int]) -> bool:
            state = constraint.start
            for token in tokens:
                state = constraint.next_state(state, token)
                if state is None:
                    return False
            return constraint.may_end(state)

        for output in (*accepted, *refused):
            assert accepts(tokenizer.encode(output)) == (output in accepted), f"{name}: a wrong answer for {output!r}"
        automaton = ConstraintAutomaton([constraint], len(tokenizer))
        options = SearchConfig(beam=3, max_length=max(map(len, accepted)) + 4)
        for hypotheses in search(model, batch_of([[4], [5, 4]]), options, 1.0, n_best=3, constraints=[automaton] * 2):
            for hypothesis in hypotheses:
                found = tokenizer.decode(hypothesis.tokens)
                assert accepts(hypothesis.tokens[:-1]), f"{name}: the search found {found!r}, which it refuses"


def check_task(name: str, file: str | Path, *overrides: str) -> None:
    """A registered task: its starter trains on this file, and a run that pauses and resumes ends with equal weights."""
    assert starter(name), f"{name}: no starter"
    with tempfile.TemporaryDirectory() as folder:
        data = {"data": {"train": str(file), "cache": str(Path(folder, "cache"))}}
        short = ("train.steps=4", "train.optimizer.warmup=1", "train.validate_every=2", *overrides)
        config = build(settings.merge({"task": name, **TASKS[name].starter.table}, data), short)
        whole, parts = Path(folder, "whole"), Path(folder, "parts")
        train(config, whole)
        train(config, parts, pause=lambda state: state.step == 2)
        train(config, parts)
        weights = [read_tensors(run / "weights.safetensors") for run in (whole, parts)]
        torch.testing.assert_close(weights[1], weights[0], rtol=0.0, atol=0.0)


def check_exporter(name: str, run: str | Path) -> None:
    """A registered exporter: it writes this run to a new place and leaves the run as it was, or gives reasons."""
    before = {path: path.read_bytes() for path in Path(run).rglob("*") if path.is_file()}
    reasons = EXPORTERS[name].blockers(Run(run))
    assert all(": " in reason for reason in reasons), f"{name}: found {reasons}, expected 'setting: found …' for each"
    with tempfile.TemporaryDirectory() as folder:
        if not reasons:
            path = export_run(run, Path(folder, "exported"), name)
            assert path.is_file() or any(path.iterdir()), f"{name}: nothing was written"
    assert before == {path: path.read_bytes() for path in before}, f"{name}: the export changed the run"


def check_document(suffix: str, content: bytes, texts: Sequence[str]) -> None:
    """A registered document format finds these texts, keeps all bytes around them, and reads its own output."""
    document = open_document(f"file{suffix}", content)
    found = [unit.block.text for unit in document.units]
    assert found == list(texts), f"{suffix}: found the texts {found}, expected {list(texts)}"
    untouched = document.render([None] * len(found))
    assert untouched == content, f"{suffix}: without translations it renders {untouched!r}, not the file"
    rendered = document.render([UnitTranslation(unit.block.escape("A & B"), "A & B") for unit in document.units])
    count = len(open_document(f"file{suffix}", rendered).units)
    assert rendered != content, f"{suffix}: it renders the file without its translations"
    assert count == len(found), f"{suffix}: with its translations it has {count} texts, expected {len(found)}"


def _small_translator(folder: str, letters: str = "abcd") -> tuple[Any, Corpus]:
    draw = random.Random(1)
    words = ["".join(draw.choices(letters, k=draw.randint(1, 4))) for _ in range(40)]
    file = Path(folder, "pairs.tsv")
    file.write_text("".join(f"{word}\t{word[::-1]}\n" for word in words), encoding="utf-8")
    part = {"kind": "recurrent", "layers": 1, "embedding": 6, "width": 8, "dropout": 0.0}
    table = {
        "data": {"train": str(file), "cache": str(Path(folder, "cache"))},
        "tokenizer": {"source": {"kind": "characters"}},
        "model": {"encoder": part, "decoder": part},
    }
    config = build(table)
    task = task_of(config)
    corpus = task.prepare(config)
    torch.manual_seed(2)
    return task.model(config, corpus.source_tokenizer, corpus.target_tokenizer).eval(), corpus
