"""How fast a run is on this machine: training steps and decoding, in every way that can be had here."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

from dragoman.analysis.cost import timed
from dragoman.data.batch import Batch, batch_of
from dragoman.data.tokenizers.base import PAD
from dragoman.errors import DataError, DragomanError
from dragoman.inference.load import load_predictor
from dragoman.inference.predictor import Predictor
from dragoman.training.distributed import ProcessGroup
from dragoman.training.objectives import Likelihood, LikelihoodConfig
from dragoman.training.optimizer import build_optimizer
from dragoman.training.step import build_step
from dragoman.training.trainer import side_stream, use_bfloat16

CompileMode = Literal["off", "graphs", "kernels"]
Rows = Sequence[tuple[Sequence[int], Sequence[int]]]


class SpeedResult(NamedTuple):
    """One way of doing one thing."""

    name: str
    tokens: float  # target tokens a second
    sentences: float  # a second
    fastest: float  # seconds of the fastest and the slowest round
    slowest: float


def benchmark_speed(run: str, rows: Rows, texts: Sequence[str], device: str, rounds: int) -> Iterator[SpeedResult]:
    """Training, then decoding; each way is told as soon as it was measured, ways that this machine lacks are not."""
    predictor = load_predictor(run, device, engine="torch")
    yield from benchmark_training(predictor, rows, rounds)
    yield from benchmark_decoding(run, texts, device, rounds)


def benchmark_training(predictor: Predictor, rows: Rows, rounds: int) -> Iterator[SpeedResult]:
    """Of steps over batches of the run's own size; the weights stay as they are."""
    config = dataclasses.replace(predictor.config.train, objective=LikelihoodConfig(), accumulate=1)
    batches = token_batches(rows, config.batch_tokens)
    ways: tuple[CompileMode, ...] = ("off", "graphs", "kernels") if predictor.device.type == "cuda" else ("off",)
    for way in ways:
        model = predictor.run.model(predictor.device).train().requires_grad_()
        trial = dataclasses.replace(config, compile=way)
        parts = (
            model,
            model,
            Likelihood(LikelihoodConfig(), None),  # type: ignore[arg-type]
            build_optimizer(trial.optimizer, model),
            None,
            ProcessGroup(),
            predictor.device,
            use_bfloat16(trial.precision, predictor.device),
        )
        learn = build_step(trial, *parts, lambda line: None)
        number = 0

        def epoch(learn: Any = learn) -> None:
            nonlocal number
            for batch in batches:
                number += 1
                learn([(0, batch)], 0, number, int((batch.target != PAD).sum()))

        with side_stream(predictor.device):
            for _ in range(3 if way != "off" else 1):  # shapes are captured when they come again
                epoch()
            found = [timed(epoch, predictor.device) for _ in range(rounds)]
        name = {"off": "training", "graphs": "training, CUDA graphs", "kernels": "training, compiled"}[way]
        yield speed_result(name, found, sum(int((batch.target != PAD).sum()) for batch in batches), len(rows))


def benchmark_decoding(run: str, texts: Sequence[str], device: str, rounds: int) -> Iterator[SpeedResult]:
    """Greedy and with the run's beam, by every engine and precision there is."""
    for engine, precision in (
        ("torch", "float32"),
        ("torch", "bfloat16"),
        ("ctranslate2", "float32"),
        ("ctranslate2", "int8"),
    ):
        try:
            predictor = load_predictor(run, device, engine=engine, precision=precision, scores=False)
            for beam in dict.fromkeys((1, max(2, predictor.config.search.beam))):

                def decode(predictor: Predictor = predictor, beam: int = beam) -> list[Any]:
                    return predictor.predict(texts, beam=beam)

                written = sum(len(one.tokens) + 1 for one in decode())
                found = [timed(decode, predictor.device) for _ in range(rounds)]
                name = f"{'greedy' if beam == 1 else f'beam {beam}'}, {engine} {precision}"
                yield speed_result(name, found, written, len(texts))
        except DragomanError:  # not to be had here
            if (engine, precision) == ("torch", "float32"):
                raise


def token_batches(rows: Rows, budget: int) -> list[Batch]:
    """The rows in batches of like lengths, as many tokens as the run trains with."""
    order = sorted(rows, key=lambda pair: (len(pair[1]), len(pair[0])))
    batches, together, longest = [], list[tuple[Sequence[int], Sequence[int]]](), 0
    for pair in order:
        longest = max(longest, len(pair[0]) + 1, len(pair[1]) + 1)
        if together and (len(together) + 1) * longest > budget:
            batches.append(batch_of([one for one, _ in together], [other for _, other in together]))
            together, longest = [], max(len(pair[0]) + 1, len(pair[1]) + 1)
        together.append(pair)
    if together:
        batches.append(batch_of([one for one, _ in together], [other for _, other in together]))
    return batches


def speed_result(name: str, seconds: Sequence[float], tokens: int, sentences: int) -> SpeedResult:
    """By the median round."""
    middle = statistics.median(seconds)
    return SpeedResult(name, tokens / middle, sentences / middle, min(seconds), max(seconds))


def benchmark_data(run: str, device: str, files: Any, most: int) -> tuple[Rows, list[str]]:
    """Pairs to measure with, as tokens, and their sources as text: of a file, or those that training set aside."""
    from dragoman.analysis.calibration import read_rows, validation_rows

    predictor = load_predictor(run, device, engine="torch")
    rows = (validation_rows(predictor) if files is None else read_rows(predictor, files))[:most]
    if not rows:
        raise DataError("nothing to measure with: no pair was read")
    return rows, [predictor.source_tokenizer.decode(list(source)) for source, _ in rows]
