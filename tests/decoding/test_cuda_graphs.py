"""CUDA-graph decoding on fixed buffers, against decoding with growing states."""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from dataclasses import replace
from threading import Lock, Thread
from types import SimpleNamespace
from typing import Any
from weakref import ref

import pytest
import torch
from torch import nn

from dragoman.base.long_work import Abandoned, interruptible
from dragoman.data.batch import Batch, batch_of
from dragoman.data.rows import TokensWithCopies
from dragoman.data.tokenizers.base import PAD
from dragoman.decoding import cuda_graphs
from dragoman.decoding.beam import BeamOptions, beam_search
from dragoman.decoding.config import SearchConfig, StopRule
from dragoman.decoding.cuda_graphs import (
    GraphBeamKey,
    GraphBeamStep,
    GraphDecoder,
    GraphShape,
    GraphStep,
    graph_beam_search,
    round_up,
)
from dragoman.decoding.greedy import greedy_search
from dragoman.decoding.hypothesis import Hypothesis
from dragoman.decoding.scorer import Scorer
from dragoman.decoding.searches import search
from dragoman.models.config import EncoderDecoderConfig
from dragoman.models.encoder_decoder import EncoderDecoder
from dragoman.models.layers import positions
from tests.contract.conftest import DECODER_CASES, ENCODER_CASES

SOURCES = [[5, 6, 7, 8, 9, 4], [4], [9, 8, 7], [5, 5, 5, 5], [6, 4, 9]]
VOCABULARY = 12
needs_gpu = pytest.mark.gpu


def model_of(decoder: str, device: str = "cpu") -> EncoderDecoder:
    torch.manual_seed(3)
    config = EncoderDecoderConfig(tie="none", encoder=ENCODER_CASES["transformer"], decoder=DECODER_CASES[decoder])
    model = EncoderDecoder(config, VOCABULARY, VOCABULARY)
    model.copied = torch.tensor([PAD] * 4 + list(range(4, VOCABULARY)))
    model = model.double().to(device).eval()
    with torch.no_grad():
        for part in model.parameters():
            part.mul_(2.0)  # far from even chances, so that no two hypotheses are worth the same
    return model


def sources_of(decoder: str) -> Sequence[list[int]]:
    """Sources for a decoder; a pointer finds two words among them that only their source has."""
    if not decoder.startswith("pointer"):
        return SOURCES
    return [TokensWithCopies(row, [{5: 1, 9: 2}.get(token, 0) for token in row]) for row in SOURCES]


def as_rows(found: list[list[Hypothesis]]) -> list[list[tuple[tuple[int, ...], float]]]:
    return [[(one.tokens, pytest.approx(one.normalised, abs=1e-9)) for one in some] for some in found]


def shape_for(batch: Batch, width: int, limit: int) -> GraphShape:
    return GraphShape(
        round_up(len(batch.source)) + 1, width, round_up(batch.source.data.shape[1]) + 2, round_up(limit, 8)
    )


@pytest.mark.parametrize("decoder", list(DECODER_CASES))
@torch.no_grad()
def test_fixed_buffers_give_the_outputs_of_growing_states(decoder: str) -> None:
    """Beam search and greedy search, sources that finish at different times, padding in every direction."""
    model, batch = model_of(decoder), batch_of(sources_of(decoder))
    limits = torch.tensor([9, 3, 6, 7, 5])
    graphs = GraphDecoder(model)
    shape = shape_for(batch, 3, 9)
    for _ in range(2):  # the second time on buffers that were used before
        found = beam_search(graphs.step, graphs.start(batch, shape), limits, BeamOptions(3, n_best=3))
        graphs.steps[shape].lock.release()
        assert as_rows(found) == as_rows(beam_search(model.step, model.start(batch), limits, BeamOptions(3, n_best=3)))
    shape = shape_for(batch, 1, 9)
    greedy = greedy_search(graphs.step, graphs.start(batch, shape), limits)
    assert as_rows([greedy]) == as_rows([greedy_search(model.step, model.start(batch), limits)])


@torch.no_grad()
def test_concurrent_threads_share_one_graph_step() -> None:
    model, batch = model_of("gru"), batch_of(SOURCES)
    graphs, shape, made = GraphDecoder(model), shape_for(batch, 3, 9), []
    state = model.start(batch, shape.target_length)

    def make() -> GraphStep:
        time.sleep(0.05)  # long enough for all to come
        made.append(GraphStep(model, state.static, state.cache, replace(shape, sources=len(SOURCES))))
        return made[-1]

    def ask() -> None:
        stage = graphs.acquire(shape, make)
        stage.lock.release()

    threads = [Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1
    assert list(graphs.steps.values()) == made


def test_shapes_are_rounded_up_to_a_grid() -> None:
    assert [round_up(number) for number in (1, 7, 8, 9, 17, 31, 100)] == [1, 7, 8, 10, 20, 32, 112]
    assert round_up(9, 8) == 16


@pytest.mark.parametrize(
    ("decoder", "width", "n_best", "stop"),
    [
        pytest.param(decoder, *options, marks=[pytest.mark.slow] * ((place + number) % 2))
        for place, decoder in enumerate(DECODER_CASES)
        for number, options in enumerate([(1, 1, "ahead"), (3, 3, "complete"), (3, 2, "certain"), (3, 1, "ahead")])
    ],
)
def test_graph_beam_search_is_beam_search(
    decoder: str, width: int, n_best: int, stop: StopRule, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when few sources are left and move to a smaller graph."""
    monkeypatch.setattr(cuda_graphs, "MIN_SOURCES", 2)
    monkeypatch.setattr(cuda_graphs, "CHECK_EVERY", 2)
    model, batch = model_of(decoder), batch_of([*(rows := sources_of(decoder)), *rows[::-1]])
    limits = torch.tensor([2, 11, 2, 2, 4, 9, 2, 2, 3, 10])
    graphs = GraphDecoder(model)
    monkeypatch.setattr(cuda_graphs, "graph_decoder", lambda *given: graphs)
    options, scorer = BeamOptions(width, n_best, stop=stop), Scorer(length_penalty=0.7)
    expected = beam_search(model.step, model.start(batch), limits, options, scorer)
    for round_ in range(6):
        found = graph_beam_search(model, batch, limits, options, scorer)
        if round_ < cuda_graphs.MIN_USES:
            assert found is None
        else:
            assert found is not None
            assert as_rows(found) == as_rows(expected)
    assert graphs.enabled
    if max(len(some[-1].tokens) for some in expected) > 5:
        assert len({key.shape.sources for key in graphs.steps}) > 1, "nothing moved to a smaller graph"


def test_an_interrupted_search_gives_its_graph_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_graphs, "CHECK_EVERY", 1)
    model = model_of("transformer")
    batch, graphs = batch_of(SOURCES), GraphDecoder(model)
    monkeypatch.setattr(graphs, "is_ready", lambda key: True)
    monkeypatch.setattr(cuda_graphs, "graph_decoder", lambda *given: graphs)
    limits, options = torch.full((len(SOURCES),), 9), BeamOptions(3)
    asked: list[int] = []
    with interruptible(lambda: asked.append(1) or len(asked) > 2), pytest.raises(Abandoned):
        graph_beam_search(model, batch, limits, options, Scorer())
    assert len(asked) == 3
    assert graphs.steps
    assert not any(step.lock.locked() for step in graphs.steps.values())
    assert graphs.enabled  # it was no fault of the graph


@needs_gpu
@pytest.mark.parametrize("decoder", list(DECODER_CASES))
@pytest.mark.parametrize("width", [1, 4])
def test_a_captured_search_gives_the_same_outputs(decoder: str, width: int) -> None:
    """From the third batch on, a graph runs the search."""
    model = model_of(decoder, "cuda")
    batch = batch_of(sources_of(decoder)).to(torch.device("cuda"))
    config = SearchConfig(beam=width, max_length=9)
    first = search(model, batch, config, 1.0)
    again = [search(model, batch, config, 1.0) for _ in range(4)]
    decoder_steps = cuda_graphs._DECODERS[model]
    assert decoder_steps.enabled
    assert decoder_steps.steps, "nothing was captured"
    for found in again:
        assert as_rows(found) == as_rows(first)


@torch.no_grad()
def test_moved_weights_are_captured_anew() -> None:
    model, batch = model_of("gru"), batch_of(SOURCES)
    graphs, shape = GraphDecoder(model), shape_for(batch, 3, 9)

    def stage() -> GraphStep:
        graphs.start(batch, shape)
        graphs.steps[shape].lock.release()
        return graphs.steps[shape]

    first = stage()
    assert stage() is first
    part = model.output.weight
    part.data = part.data.clone()
    second = stage()
    assert second is not first
    model.decoder.register_buffer("added", torch.zeros(1))
    assert stage() is second, "graphs captured before cannot read it"


def used_and_dropped() -> list[ref[Any]]:
    """A model and its two kinds of steps, which nobody holds any more."""
    model, batch = model_of("gru"), batch_of(SOURCES)
    decoder, shape = cuda_graphs._DECODERS.setdefault(model, GraphDecoder(model)), shape_for(batch, 3, 9)
    decoder.start(batch, shape).step.lock.release()
    static, cache = model.start(batch, shape.target_length)[:2]
    key = GraphBeamKey(replace(shape, sources=len(SOURCES)), 1, "ahead")
    decoder.acquire(key, lambda: GraphBeamStep(model, static, cache, key)).lock.release()
    return [ref(model), *map(ref, decoder.steps.values())]


@pytest.mark.parametrize("kernels", [False, True])
@torch.no_grad()
def test_a_model_is_freed_with_its_graphs(kernels: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, without a run of the garbage collector: the graphs hold much memory of a GPU."""
    monkeypatch.setattr(cuda_graphs.topk, "supports", lambda *given: kernels)
    before = len(cuda_graphs._DECODERS)
    gc.collect()
    gc.disable()
    try:
        weak_model, *steps = used_and_dropped()
        assert weak_model() is None
        assert [step() for step in steps] == [None, None]
        assert len(cuda_graphs._DECODERS) == before
    finally:
        gc.enable()


@needs_gpu
@pytest.mark.parametrize("width", [1, 4])
def test_graphs_read_the_same_positions_after_a_longer_output(width: int) -> None:
    """An output beyond the 256 positions of the first table must leave the graphs of shorter ones as they are."""
    positions._TABLES.clear()
    model = model_of("transformer", "cuda")
    batch = batch_of(SOURCES).to(torch.device("cuda"))
    config = SearchConfig(beam=width, max_length=24, min_length=24)
    before = [search(model, batch, config, 1.0) for _ in range(5)]
    assert cuda_graphs._DECODERS[model].steps
    for longest in (300, 700):
        longer = SearchConfig(beam=width, max_length=longest, min_length=longest)
        for _ in range(4):
            search(model, batch, longer, 1.0)
        torch.cuda.empty_cache()
        rubbish = [torch.full((256, 8), 1e6, device="cuda", dtype=torch.float64) for _ in range(64)]
        after = search(model, batch, config, 1.0)
        del rubbish
        assert as_rows(after) == as_rows(before[0]) == as_rows(before[-1])


def test_the_least_recently_used_steps_make_room_on_a_shared_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quarter of 40 GB that are free and 8 that this process holds: buffers of 12 GB fit, of 16 do not."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (40, 80))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 8)
    graphs = GraphDecoder(nn.Linear(1, 1))
    graphs.steps = {name: SimpleNamespace(size=4, lock=Lock()) for name in "abcd"}  # type: ignore[misc]
    graphs.free_memory()
    assert list(graphs.steps) == ["b", "c", "d"]
