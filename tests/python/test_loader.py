# SPDX-License-Identifier: Apache-2.0
"""SlotSampler and Loader with torch's DataLoader."""

from __future__ import annotations

import gc
import itertools
import multiprocessing
import time
import warnings
from typing import Any

import pytest
import sheaf
import torch
from conftest import N, number_of
from sheaf.stats import COUNTERS
from torch.utils.data import BatchSampler, DataLoader


def ids_of(batch: Any) -> list[int]:
    return batch.ids.tolist()


def epoch_of(loader: Any) -> list[int]:
    return [i for batch in loader for i in ids_of(batch)]


def plain(ds: sheaf.Dataset, batch_size: int = 16, **options: Any) -> Any:
    return DataLoader(
        ds,
        batch_size,
        sampler=sheaf.SlotSampler(ds),
        collate_fn=sheaf.collate,
        **options,
    )


def test_who_leaves_a_loop_leaves_no_workers(data: str) -> None:
    """Nothing but the pass holds them, so no collector is needed."""
    loader = sheaf.Loader(sheaf.Dataset(data), 16, num_workers=2)
    before = set(multiprocessing.active_children())
    gc.disable()
    try:
        for _ in loader:
            assert len(set(multiprocessing.active_children()) - before) == 2
            break
        assert not set(multiprocessing.active_children()) - before
    finally:
        gc.enable()


@pytest.mark.parametrize("workers", [0, 4])
@pytest.mark.parametrize("make", [plain, sheaf.Loader])
def test_breaks_and_bare_iterators(data: str, make: Any, workers: int) -> None:
    """Early breaks, iter() twice, next(iter()), with persistent workers: the
    next full epoch is complete."""
    ds = sheaf.Dataset(data)
    loader = make(
        ds, batch_size=16, num_workers=workers, persistent_workers=workers > 0
    )
    for _ in itertools.islice(loader, 20):
        pass
    assert sorted(epoch_of(loader)) == list(range(N))
    iter(loader)
    next(iter(loader))
    seen = epoch_of(loader)
    assert sorted(seen) == list(range(N))
    assert len(loader) == 63


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_other_start_methods(data: str, method: str) -> None:
    ds = sheaf.Dataset(data)
    loader = sheaf.Loader(
        ds, 50, num_workers=1, multiprocessing_context=method
    )
    assert sorted(epoch_of(loader)) == list(range(N))


def test_batches_cross_the_border_in_place(data: str) -> None:
    """A worker's batch is pinned again here: bytes in shared memory."""
    ds = sheaf.Dataset(data)
    for batch in sheaf.Loader(ds, 100, num_workers=2):
        assert isinstance(batch, sheaf.Batch)
        assert batch.labels.tolist() == [s.label for s in batch]
        assert all(number_of(bytes(s)) == int(s.key[-4:]) for s in batch)
        assert not any(s.is_copy for s in batch)
    assert ds.stats()["samples"] == N


def slow(sample: sheaf.Sample) -> int:
    time.sleep(0.001)
    return number_of(bytes(sample))


@pytest.mark.parametrize(
    ("method", "persistent"),
    [("fork", False), ("fork", True), ("spawn", False)],
)
def test_stats_of_workers(data: str, method: str, persistent: bool) -> None:
    """Of all workers together and of each, over passes and their ends."""
    ds = sheaf.Dataset(data, transform=slow)
    loaders = [
        sheaf.Loader(
            ds,
            50,
            num_workers=2,
            multiprocessing_context=method,
            persistent_workers=persistent,
        )
        for _ in range(2)
    ]
    assert loaders[0].worker_stats() == []
    for epoch in range(2):
        assert len([x for b in loaders[0] for x in b]) == N
        total, rows = loaders[0].stats(), loaders[0].worker_stats()
        assert total["samples"] == (epoch + 1) * N
        assert total["hits"] + total["misses"] == (epoch + 1) * N
        assert total["prep_s"] >= (epoch + 1) * N * 0.001
        assert total["fetch_s"] > 0 and total["wait_s"] > 0
        passes = epoch + 1 if persistent else 1
        assert sum(row["samples"] for row in rows) == passes * N
        assert len(rows) == 2 and all(row["samples"] > 0 for row in rows)
    assert loaders[1].stats()["samples"] == 0
    assert ds.stats()["samples"] == 0 and ds.stats()["prep_s"] == 0


def test_stats_without_workers(data: str) -> None:
    """They are the Dataset's."""
    ds = sheaf.Dataset(data, transform=slow)
    loader = sheaf.Loader(ds, 50)
    assert sum(len(b) for b in loader) == N
    stats = loader.stats()
    assert stats.pop("wait_s") > 0 and loader.worker_stats() == []
    assert stats == ds.stats() and stats["samples"] == N
    assert stats.keys() == {*COUNTERS, "pinned_bytes", "grant_bytes"}


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("world", [2, 3])
def test_ranks_have_equal_steps(data: str, world: int, drop_last: bool) -> None:
    ds = sheaf.Dataset(data, job=f"ranks-{world}-{drop_last}")
    seen, steps = [], set()
    for rank in range(world):
        sampler = sheaf.SlotSampler(ds, (rank, world), drop_last)
        loader = DataLoader(
            ds, 16, sampler=sampler, collate_fn=sheaf.collate
        )
        mine = epoch_of(loader)
        steps.add(len(loader))
        assert len(mine) == len(sampler)
        sampler.set_epoch(0)
        seen += mine
        ds.next_epoch = 0
    assert len(steps) == 1
    if drop_last:
        assert len(seen) == len(set(seen)) == N // world * world
    else:
        assert set(seen) == set(range(N))
        assert len(seen) == -(-N // world) * world


def test_two_ranks_of_four_workers(data: str) -> None:
    seen = []
    for rank in range(2):
        ds = sheaf.Dataset(data, job="two-by-four")
        sampler = sheaf.SlotSampler(ds, (rank, 2))
        loader = DataLoader(
            ds, 8, sampler=sampler, collate_fn=sheaf.collate, num_workers=4
        )
        seen += epoch_of(loader)
    assert set(seen) == set(range(N)) and len(seen) == N + 1


def test_strict_is_the_same_for_all_workers_and_ranks(data: str) -> None:
    orders = []
    for workers, world in ((0, 1), (1, 1), (4, 1), (0, 2), (1, 3)):
        slots: dict[int, int] = {}
        for rank in range(world):
            ds = sheaf.Dataset(
                data, order="strict", seed=5, job=f"strict-{workers}-{world}"
            )
            sampler = sheaf.SlotSampler(ds, (rank, world))
            loader = DataLoader(
                ds,
                10,
                sampler=sampler,
                collate_fn=sheaf.collate,
                num_workers=workers,
            )
            slots.update((s.slot, s.id) for b in loader for s in b)
        orders.append([slots[i] for i in range(N)])
    assert all(order == orders[0] for order in orders)
    assert sorted(orders[0]) == list(range(N))


def test_set_epoch_governs_the_next_pass(data: str) -> None:
    ds = sheaf.Dataset(data, order="strict")
    sampler = sheaf.SlotSampler(ds)
    loader = DataLoader(ds, 100, sampler=sampler, collate_fn=sheaf.collate)
    order = {}
    for epoch in (4, 5):
        sampler.set_epoch(epoch)
        order[epoch] = epoch_of(loader)
    assert sampler.epoch == 6
    sampler.set_epoch(4)
    iterator = iter(loader)
    sampler.set_epoch(5)
    assert [i for b in iterator for i in ids_of(b)] == order[5]


@pytest.mark.parametrize("workers", [0, 2])
def test_resume(data: str, workers: int) -> None:
    """Another number of workers, another batch size, a resumed run resumed
    again; the epoch after it is full."""
    ds = sheaf.Dataset(data)
    loader = sheaf.Loader(ds, 16, num_workers=workers)
    assert len(epoch_of(loader)) == N
    seen: list[int] = []
    for take, size, others in ((20, 16, 1), (9, 10, 0), (1, 7, 2)):
        for batch in itertools.islice(loader, take):
            seen += ids_of(batch)
        state = loader.state_dict()
        assert (state["epoch"], state["position"]) == (1, len(seen))
        ds = sheaf.Dataset(data)
        loader = sheaf.Loader(ds, size, num_workers=others)
        loader.load_state_dict(state)
        assert loader.state_dict() == state
    seen += epoch_of(loader)
    assert sorted(seen) == list(range(N))
    assert loader.state_dict()["epoch"] == 2
    assert sorted(epoch_of(loader)) == list(range(N))


def test_resume_in_another_world(data: str) -> None:
    seen, states = [], []
    for rank in range(2):
        ds = sheaf.Dataset(data, job="worlds")
        loader = sheaf.Loader(ds, 16, distributed=(rank, 2))
        for batch in itertools.islice(loader, 11):
            seen += ids_of(batch)
        states.append(loader.state_dict())
    assert states[0] == states[1] and states[0]["position"] == 11 * 32
    for rank in range(3):
        ds = sheaf.Dataset(data, job="worlds")
        loader = sheaf.Loader(ds, 10, distributed=(rank, 3), num_workers=1)
        loader.load_state_dict(states[0])
        seen += epoch_of(loader)
    assert set(seen) == set(range(N)) and len(seen) <= N + 2


@pytest.mark.parametrize("drop_last", [False, True])
def test_a_state_of_the_end_is_the_next_epochs_beginning(
    data: str, drop_last: bool
) -> None:
    ds = sheaf.Dataset(data)
    loader = sheaf.Loader(ds, 100, drop_last=drop_last)
    for batch in itertools.islice(loader, len(loader)):
        pass
    state = loader.state_dict()
    assert (state["epoch"], state["position"]) == (1, 0)
    again = sheaf.Loader(sheaf.Dataset(data), 50)
    again.load_state_dict(state)
    again.set_epoch(0)  # frameworks name the epoch that just ended
    again.set_epoch(1)
    assert sorted(epoch_of(again)) == list(range(N))


def test_states_that_do_not_fit_are_refused(data: str) -> None:
    loader = sheaf.Loader(sheaf.Dataset(data), 16)
    next(iter(loader))
    state = loader.state_dict()
    for field, value in (
        ("uuid", "00" * 16),
        ("samples", 7),
        ("order", "strict"),
        ("seed", 9),
        ("version", 2),
    ):
        with pytest.raises(sheaf.StateError, match=field):
            loader.load_state_dict({**state, field: value})
    loader.load_state_dict(state)
    with pytest.raises(sheaf.StateError, match="epoch"):
        loader.set_epoch(5)
    with pytest.raises(sheaf.StateError):
        loader.load_state_dict({})


def test_in_order_false_has_no_state(data: str) -> None:
    loader = sheaf.Loader(
        sheaf.Dataset(data), 16, num_workers=2, in_order=False
    )
    assert sorted(epoch_of(loader)) == list(range(N))
    with pytest.raises(RuntimeError, match="in_order"):
        loader.state_dict()


def test_foreign_samplers_pass_through(data: str) -> None:
    ds = sheaf.Dataset(data)
    loader = sheaf.Loader(ds, 2, sampler=[5, 6, 7])
    assert epoch_of(loader) == [5, 6, 7]
    assert loader.state_dict() == {}
    loader.load_state_dict({})
    with pytest.raises(sheaf.StateError):
        loader.load_state_dict({"epoch": 0})
    assert epoch_of(sheaf.Loader(ds, batch_sampler=[[1, 2], [3]])) == [1, 2, 3]
    with pytest.raises(ValueError, match="shuffle"):
        sheaf.Loader(ds, 2, shuffle=True)
    for options in ({"sampler": [1]}, {"drop_last": True}, {"batch_size": 2}):
        with pytest.raises(ValueError, match="mutually exclusive"):
            sheaf.Loader(ds, batch_sampler=[[1]], **options)


@pytest.mark.parametrize("drop_last", [False, True])
def test_batches_of_slots_have_a_place(data: str, drop_last: bool) -> None:
    """Made by torch's BatchSampler: a state, as without it."""

    def loader() -> sheaf.Loader:
        ds = sheaf.Dataset(data)
        sampler = BatchSampler(sheaf.SlotSampler(ds), 10, drop_last)
        return sheaf.Loader(ds, batch_sampler=sampler)

    first, again = loader(), loader()
    seen = [i for b in itertools.islice(first, 30) for i in ids_of(b)]
    assert len(seen) == 300 and first.state_dict()["position"] == 300
    again.load_state_dict(first.state_dict())
    seen += epoch_of(again)
    assert len(set(seen)) == len(seen) == (N // 10 * 10 if drop_last else N)
    assert len(again) == (N // 10 if drop_last else -(-N // 10))


def test_timeouts_that_hide_causes_warn(data: str) -> None:
    ds = sheaf.Dataset(data, timeout=5)
    with pytest.warns(RuntimeWarning, match="timeout=5 .* ends before"):
        sheaf.Loader(ds, 16, num_workers=1, timeout=5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sheaf.Loader(ds, 16, num_workers=1, timeout=6)
        sheaf.Loader(ds, 16)


def test_without_batches(data: str) -> None:
    ds = sheaf.Dataset(data)
    loader = sheaf.Loader(ds, batch_size=None, num_workers=1)
    for _ in range(2):
        assert sorted(s.id for s in loader) == list(range(N))


def test_pin_memory_leaves_samples_alone(data: str) -> None:
    if torch.cuda.is_available():
        pytest.skip("CUDA is here: other paths")
    loader = sheaf.Loader(sheaf.Dataset(data), 100, pin_memory=True)
    assert sorted(epoch_of(loader)) == list(range(N))
