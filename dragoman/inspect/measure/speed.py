"""Benchmark a run on this machine: training and decoding speed with every engine and compile mode that it has."""

from __future__ import annotations

import dataclasses
import platform
import statistics
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, Literal, NamedTuple

import torch

from dragoman.base import DataError, DragomanError
from dragoman.data import Batch, Pairs, batch_of
from dragoman.data.tokenizers import PAD
from dragoman.decoding import EngineName, Precision
from dragoman.inference import Predictor, ignore_unknown, load_predictor, require_texts
from dragoman.inspect.measure.calibration import read_rows, validation_rows
from dragoman.inspect.measure.cost import timed
from dragoman.inspect.options import BenchOptions
from dragoman.training import NoAverageConfig, Runtime, build_step, side_stream
from dragoman.training.objectives import LikelihoodConfig, Objective

CompileMode = Literal["off", "graphs"]
Rows = Sequence[tuple[Sequence[int], Sequence[int]]]
ENGINES: tuple[tuple[EngineName, Precision], ...] = (
    ("torch", "float32"),
    ("torch", "bfloat16"),
    ("ctranslate2", "float32"),
    ("ctranslate2", "int8"),
)


class SpeedResult(NamedTuple):
    """The speed of one configuration."""

    name: str
    tokens: float  # target tokens per second
    sentences: float  # per second
    fastest: float  # seconds of the fastest and the slowest round
    slowest: float


class Bench(NamedTuple):
    """The speeds of a run, each measured when it is asked for."""

    pairs: int
    rounds: int
    speeds: Iterator[SpeedResult]

    def as_dict(self) -> dict[str, Any]:
        speeds = [result._asdict() for result in self.speeds]
        return {"machine": machine(), "pairs": self.pairs, "rounds": self.rounds, "speeds": speeds}

    def lines(self) -> Iterator[str]:
        yield f"{machine()}; {self.pairs:,} pairs, medians of {self.rounds} rounds"
        yield f"{'':<34}{'tokens/s':>12}{'sentences/s':>14}{'seconds a round':>22}"
        for result in self.speeds:
            spread = f"{result.fastest:.3f} to {result.slowest:.3f}"
            yield f"{result.name:<34}{result.tokens:>12,.0f}{result.sentences:>14,.1f}{spread:>22}"


def bench(run: str, files: str | Pairs | None = None, options: BenchOptions | None = None) -> Bench:
    """Measure training, then decoding, with pairs of a file or those that training set aside.

    What this machine lacks (a GPU, an engine) is left out.
    """
    options = options or BenchOptions()
    require_texts("bench", run)
    rounds, predictor = options.rounds or 5, load_predictor(run, options.device, engine="torch")
    pairs = validation_rows(predictor) if files is None else read_rows(predictor, files)
    if not (rows := pairs[: options.pairs or 256]):
        raise DataError("nothing to measure with: no pair was read")
    texts = [predictor.codec.source.decode(source) for source, _ in rows]
    decoding = benchmark_decoding(run, texts, options.device, rounds)
    return Bench(len(rows), rounds, chain(benchmark_training(predictor, rows, rounds), decoding))


def machine() -> str:
    graphics = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    return f"{platform.machine()}, {torch.get_num_threads()} threads{graphics}, torch {torch.__version__}"


def benchmark_training(predictor: Predictor, rows: Rows, rounds: int) -> Iterator[SpeedResult]:
    """The speed of training steps on a copy of the model; fitted models and ensembles have none."""
    if getattr(predictor.config.model, "fitted", False) or len(predictor.members) > 1:
        return
    config = dataclasses.replace(
        predictor.config.train, objective=LikelihoodConfig(), accumulate=1, rates=(), average=NoAverageConfig()
    )
    batches = token_batches(rows, config.batch_tokens)
    modes: tuple[CompileMode, ...] = ("off", "graphs") if predictor.device.type == "cuda" else ("off",)
    for mode in modes:
        model = predictor.run.model(predictor.device).train().requires_grad_()
        trial = dataclasses.replace(config, compile=mode)
        learn = build_step(trial, model, Objective(), Runtime(predictor.device))
        number = 0

        def epoch(learn: Any = learn, rate: float = trial.optimizer.learning_rate) -> None:
            nonlocal number
            for batch in batches:
                number += 1
                learn([(0, batch)], 0, number, int((batch.target != PAD).sum()), rate, number)

        with side_stream(predictor.device):
            for _ in range(3 if mode != "off" else 1):  # a graph is captured when a batch shape comes again
                epoch()
            seconds = [timed(epoch, predictor.device) for _ in range(rounds)]
        name = {"off": "training", "graphs": "training, CUDA graphs"}[mode]
        yield speed_result(name, seconds, sum(int((batch.target != PAD).sum()) for batch in batches), len(rows))


def benchmark_decoding(run: str, texts: Sequence[str], device: str, rounds: int) -> Iterator[SpeedResult]:
    """The speed of greedy and beam search by every engine and precision."""
    for engine, precision in ENGINES:
        try:
            predictor = load_predictor(run, device, engine=engine, precision=precision, scores=False, split_long=False)
            for beam in dict.fromkeys((1, max(2, predictor.search.beam))):

                def decode(predictor: Predictor = predictor, beam: int = beam) -> list[Any]:
                    return list(predictor.stream(texts, beam=beam, on_unknown=ignore_unknown))

                tokens = sum(len(prediction.tokens) + 1 for prediction in decode())
                seconds = [timed(decode, predictor.device) for _ in range(rounds)]
                name = f"{'greedy' if beam == 1 else f'beam {beam}'}, {engine} {precision}"
                yield speed_result(name, seconds, tokens, len(texts))
        except DragomanError:  # this machine or this run does not have it
            if (engine, precision) == ("torch", "float32"):
                raise


def token_batches(rows: Rows, budget: int) -> list[Batch]:
    """The rows in batches of similar lengths with at most `budget` tokens per side, padding included."""
    order = sorted(rows, key=lambda pair: (len(pair[1]), len(pair[0])))
    batches, chunk, longest = [], list[tuple[Sequence[int], Sequence[int]]](), 0
    for pair in order:
        longest = max(longest, len(pair[0]) + 1, len(pair[1]) + 1)
        if chunk and (len(chunk) + 1) * longest > budget:
            batches.append(batch_of([source for source, _ in chunk], [target for _, target in chunk]))
            chunk, longest = [], max(len(pair[0]) + 1, len(pair[1]) + 1)
        chunk.append(pair)
    if chunk:
        batches.append(batch_of([source for source, _ in chunk], [target for _, target in chunk]))
    return batches


def speed_result(name: str, seconds: Sequence[float], tokens: int, sentences: int) -> SpeedResult:
    median = statistics.median(seconds)
    return SpeedResult(name, tokens / median, sentences / median, min(seconds), max(seconds))
