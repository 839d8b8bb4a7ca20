"""Token stores, padding, and the batches of an epoch."""

from __future__ import annotations

import gc
import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from dragoman.data import store as storage
from dragoman.data.batch import batch_of, pad_tokens
from dragoman.data.batching import BatchPlan, read_batch
from dragoman.data.rows import round_up_lengths
from dragoman.data.store import StoreWriter, TokenStore
from dragoman.data.tokenizers.base import EOS, PAD

Rows = list[list[int]]


def stored(folder: Path, sources: Rows, targets: Rows, vocabulary: int = 100) -> TokenStore:
    with StoreWriter(folder, vocabulary, vocabulary) as writer:
        writer.add(sources, targets)
    return TokenStore(folder)


def of_lengths(folder: Path, sources: NDArray[np.int64], targets: NDArray[np.int64]) -> TokenStore:
    """A store whose rows have these lengths."""
    return stored(folder, [[4] * n for n in sources.tolist()], [[5] * n for n in targets.tolist()])


@pytest.fixture(scope="module")
def natural(tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    """20,000 pairs with lengths like those of sentences: about 24 tokens, log-normal, both sides alike."""
    random = np.random.default_rng(0)
    sources = np.clip(random.lognormal(3.0, 0.6, 20_000), 1, 255).astype(np.int64)
    targets = np.clip(sources * random.lognormal(0.05, 0.2, 20_000), 1, 255).astype(np.int64)
    return of_lengths(tmp_path_factory.mktemp("natural") / "store", sources, targets)


# ---------------------------------------------------------------------- the store

rows = st.lists(st.lists(st.integers(0, 99), max_size=6), min_size=1, max_size=20)


@settings(deadline=None, max_examples=50)
@given(data=st.data())
def test_a_store_gives_back_what_was_added(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    sources = data.draw(rows)
    targets = data.draw(
        st.lists(st.lists(st.integers(0, 99), max_size=6), min_size=len(sources), max_size=len(sources))
    )
    folder = tmp_path_factory.mktemp("store") / "store"
    cut = data.draw(st.integers(0, len(sources)))
    with StoreWriter(folder, 100, 100) as writer:
        writer.add(sources[:cut], targets[:cut])
        writer.add(sources[cut:], targets[cut:])
    store = TokenStore(folder)
    assert len(store) == len(sources)
    assert [row.tolist() for row in store.source.rows(range(len(sources)))] == sources
    assert [row.tolist() for row in store.target.rows(range(len(sources)))] == targets
    assert store.source.lengths().tolist() == [len(row) for row in sources]
    order = data.draw(st.permutations(range(len(sources))))
    assert [row.tolist() for row in store.target.rows(order)] == [targets[index] for index in order]


@pytest.mark.parametrize(
    ("vocabulary", "dtype", "width"), [(100, "uint16", 2), (65_536, "uint16", 2), (65_537, "uint32", 4)]
)
def test_tokens_take_two_bytes_while_they_fit(vocabulary: int, dtype: str, width: int, tmp_path: Path) -> None:
    highest = vocabulary - 1
    store = stored(tmp_path / "store", [[0, highest, 7]], [[highest]], vocabulary)
    assert store.source.dtype == dtype
    assert store.source.rows([0])[0].tolist() == [0, highest, 7]
    assert store.target.rows([0])[0].tolist() == [highest]
    assert (tmp_path / "store" / "source.tokens").stat().st_size == 3 * width


def test_a_store_that_was_not_finished_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(OverflowError), StoreWriter(tmp_path / "store", 100, 100) as writer:
        writer.add([[4], [1 << 20]], [[5], [6]])
    with pytest.raises(FileNotFoundError):
        TokenStore(tmp_path / "store")


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux")
def test_rows_do_not_stay_in_memory(tmp_path: Path) -> None:
    def resident() -> int:
        line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS"))
        return int(line.split()[1]) * 1024

    folder = tmp_path / "store"
    row = list(range(4, 4004))
    with StoreWriter(folder, 5000, 5000) as writer:
        for _ in range(20):
            writer.add([row] * 200, [[5]] * 200)
    total = (folder / "source.tokens").stat().st_size
    assert total == 4000 * 4000 * 2
    store = TokenStore(folder)
    store.source.rows([0])
    before = resident()
    for start in range(0, 4000, 100):
        for found in store.source.rows(range(start, start + 100)):
            assert found[-1] == 4003
    assert resident() - before < 0.2 * total


def test_lengths_are_read_in_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "LENGTHS_CHUNK", 7)
    counts = np.random.default_rng(0).integers(0, 9, 50)
    store = of_lengths(tmp_path / "store", counts, counts[::-1])
    assert store.source.lengths().tolist() == counts.tolist()
    assert store.target.lengths().tolist() == counts[::-1].tolist()


def test_files_are_closed_with_their_store(tmp_path: Path) -> None:
    store = stored(tmp_path / "store", [[4]], [[5]])
    handles = [store.source._tokens, store.target._offsets]
    assert all(os.fstat(handle) for handle in handles)
    del store
    gc.collect()
    for handle in handles:
        with pytest.raises(OSError):
            os.fstat(handle)


# ---------------------------------------------------------------------- lengths and padding


@given(st.integers(1, 100_000))
def test_the_grid_has_four_steps_per_octave(length: int) -> None:
    up = int(round_up_lengths(np.array([length]))[0])
    assert length <= up
    assert up <= 1.25 * length
    grid = up
    while grid > 8:
        assert grid % 2 == 0
        grid //= 2
    assert int(round_up_lengths(np.array([up]))[0]) == up


def test_there_are_few_lengths() -> None:
    assert len(np.unique(round_up_lengths(np.arange(1, 257)))) == 8 + 4 * 5


def test_rows_end_in_eos_and_padding() -> None:
    assert pad_tokens([[4, 5], [], [6]]).tolist() == [[4, 5, EOS], [EOS, PAD, PAD], [6, EOS, PAD]]
    assert pad_tokens([[4]], 4).tolist() == [[4, EOS, PAD, PAD]]
    batch = batch_of([[4, 5], [6]], [[7], [8, 9]])
    assert batch.source.mask.tolist() == [[True, True, True], [True, True, False]]
    assert batch.target.tolist() == [[7, EOS, PAD], [8, 9, EOS]]
    assert batch_of([[4]]).target.shape == (1, 0)


def test_a_batch_is_padded_to_the_grid(natural: TokenStore) -> None:
    plan = BatchPlan(natural, 4096, seed=1)
    epoch = plan.epoch(0)
    for index in (0, len(epoch) // 2, len(epoch) - 1):
        chosen = epoch[index]
        batch = read_batch(natural, chosen, plan)
        assert batch.source.data.shape[1] == int(round_up_lengths(natural.source.lengths()[chosen] + 1).max())
        assert (batch.source.mask.sum(1).numpy() == natural.source.lengths()[chosen] + 1).all()
        assert int((batch.target != PAD).sum()) == plan.tokens(chosen)
        assert read_batch(natural, chosen).target.shape[1] == natural.target.lengths()[chosen].max() + 1


# ---------------------------------------------------------------------- the plan

lengths = st.lists(st.tuples(st.integers(0, 70), st.integers(0, 70)), min_size=1, max_size=120)


@settings(deadline=None, max_examples=150)
@given(pairs=lengths, budget=st.integers(1, 400), seed=st.integers(0, 5), epoch=st.integers(0, 5))
def test_every_row_comes_once_and_the_budget_is_kept(
    tmp_path_factory: pytest.TempPathFactory, pairs: list[tuple[int, int]], budget: int, seed: int, epoch: int
) -> None:
    sources, targets = np.array(pairs).T
    store = of_lengths(tmp_path_factory.mktemp("plan") / "store", sources, targets)
    plan = BatchPlan(store, budget, seed)
    batches = plan.epoch(epoch)
    chosen = [batches[index] for index in range(len(batches))]
    assert sorted(np.concatenate(chosen).tolist()) == list(range(len(pairs)))
    assert all(len(rows) for rows in chosen)
    for rows in chosen:
        batch = read_batch(store, rows, plan)
        longest = max(batch.source.data.shape[1], batch.target.shape[1])
        assert len(rows) == 1 or len(rows) * longest <= budget
    again = BatchPlan(store, budget, seed).epoch(epoch)
    assert np.array_equal(again.rows, batches.rows)
    assert np.array_equal(again.bounds, batches.bounds)


def test_batches_of_rows_have_any_lengths(natural: TokenStore) -> None:
    plan = BatchPlan(natural, 4096, seed=1, batch_rows=128)
    batches = list(plan.epoch(2))
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(natural)))
    assert all(len(rows) == 128 for rows in sorted(batches, key=len)[1:])
    longest = [plan.width("target", rows) for rows in batches]
    assert min(longest) > np.median(plan.target_lengths)  # no batch of short rows alone
    assert plan.largest()[0] == 128


def test_the_order_depends_on_seed_and_epoch_alone(natural: TokenStore) -> None:
    plan = BatchPlan(natural, 4096, seed=1)
    later = plan.epoch(3).rows  # without ever asking for the epochs before
    fresh = BatchPlan(natural, 4096, seed=1)
    for epoch in range(3):
        fresh.epoch(epoch)
    assert np.array_equal(fresh.epoch(3).rows, later)
    orders = [plan.epoch(epoch).rows for epoch in range(4)] + [BatchPlan(natural, 4096, seed=2).epoch(0).rows]
    for index, order in enumerate(orders):
        for other in orders[:index]:
            assert (order == other).mean() < 0.01


def test_batches_are_shuffled_every_epoch_and_not_sorted_by_length(natural: TokenStore) -> None:
    plan = BatchPlan(natural, 4096, seed=1)
    first, second = plan.epoch(0), plan.epoch(1)
    together = {frozenset(first[index].tolist()) for index in range(len(first))}
    assert len(together & {frozenset(second[index].tolist()) for index in range(len(second))}) < 0.05 * len(first)
    longest = np.array([plan.target_lengths[first[index]].max() for index in range(len(first))])
    assert abs(np.corrcoef(np.arange(len(longest)), longest)[0, 1]) < 0.2


def test_little_padding_and_few_shapes(natural: TokenStore) -> None:
    plan = BatchPlan(natural, 4096, seed=1)
    epoch = plan.epoch(0)
    cells = {"source": 0, "target": 0}
    shapes: Counter[tuple[int, int, int]] = Counter()
    for index in range(len(epoch)):
        rows = epoch[index]
        source, target = int(plan.source_lengths[rows].max()), int(plan.target_lengths[rows].max())
        cells["source"] += len(rows) * source
        cells["target"] += len(rows) * target
        shapes[len(rows), source, target] += 1
    real = {"source": natural.source.lengths().sum() + 20_000, "target": natural.target.lengths().sum() + 20_000}
    # Measured: 13.5 % of the source cells, 8.1 % of the target cells, 80 shapes of 152 batches; with 200,000 pairs
    # 7.9 %, 7.1 % and 151 of 1,445.
    assert 1 - sum(real.values()) / sum(cells.values()) < 0.12
    assert 1 - real["target"] / cells["target"] < 0.09
    assert len(shapes) <= 90
    filled = [count * max(source, target) / 4096 for count, source, target in shapes]
    assert np.mean(filled) > 0.9


def test_only_one_batch_is_short(natural: TokenStore) -> None:
    plan = BatchPlan(natural, 4096, seed=1)
    epoch = plan.epoch(0)
    short = 0
    for index in range(len(epoch)):
        rows = epoch[index]
        source, target = int(plan.source_lengths[rows].max()), int(plan.target_lengths[rows].max())
        short += len(rows) < plan.rows_for(source, target)
    assert short <= 1


def test_the_largest_batch_is_as_large_as_any(natural: TokenStore) -> None:
    plan = BatchPlan(natural, 4096, seed=1)
    rows, source, target = plan.largest()
    assert source == plan.source_lengths.max()
    assert target == plan.target_lengths.max()
    assert rows * max(source, target) <= 4096 < (rows + 1) * max(source, target)


def test_a_row_longer_than_the_budget_is_a_batch_of_its_own(tmp_path: Path) -> None:
    store = of_lengths(tmp_path / "store", np.array([3, 90, 3]), np.array([3, 3, 3]))
    epoch = BatchPlan(store, 20, seed=0).epoch(0)
    assert sorted(sorted(epoch[index].tolist()) for index in range(len(epoch))) == [[0, 2], [1]]
