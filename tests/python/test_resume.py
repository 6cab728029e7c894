# SPDX-License-Identifier: Apache-2.0
"""Subsets, states that outlive the daemon's journal, replay."""

from __future__ import annotations

import itertools
import json
import shutil
import sys
import warnings
from typing import Any

import pytest
import sheaf
from conftest import N, Node
from sheaf import slots


def epoch_of(loader: Any) -> list[int]:
    return [i for batch in loader for i in batch.ids.tolist()]


@pytest.mark.parametrize("order", ["shared", "window", "strict"])
def test_splits_are_disjoint(data: str, order: str) -> None:
    """Over five epochs, with workers; splits of one job have own slots."""
    ds = sheaf.Dataset(data, order=order, job=f"splits-{order}")
    parts = ds.split({"train": 0.8, "val": 0.1}, seed=4)
    again = sheaf.Dataset(data).split({"train": 0.8, "val": 0.1}, seed=4)
    assert [len(p) for p in parts.values()] == [802, 101]
    want = {name: {s.id for s in part} for name, part in parts.items()}
    assert not want["train"] & want["val"]
    for name, part in again.items():
        assert {s.id for s in part} == want[name]
    other = ds.split({"train": 0.8}, seed=5)["train"]
    assert {s.id for s in other} != want["train"]
    loaders = {
        name: sheaf.Loader(part, 50, num_workers=name == "val")
        for name, part in parts.items()
    }
    for _ in range(5):
        for name, loader in loaders.items():
            seen = epoch_of(loader)
            assert sorted(seen) == sorted(want[name])


def test_subsets(data: str) -> None:
    ds = sheaf.Dataset(data)
    part = ds.subset([30, -1, 7, 9])
    assert len(part) == 4 and [s.id for s in part] == [30, N - 1, 7, 9]
    assert part[-2].id == 7 and part.files[1] == ds.files[N - 1]
    assert part.label(part[0].id) == ds.label(30)
    inner = part.subset([3, 1])
    assert [s.id for s in inner] == [9, N - 1]
    assert bytes(inner.get(500)) == bytes(ds[500])
    for wrong in ([1, 1], [0, -4], []):
        with pytest.raises(ValueError):
            part.subset(wrong)
    for index in (4, -5):
        with pytest.raises(IndexError):
            part[index]
        with pytest.raises(IndexError):
            part.subset([index])
        with pytest.raises(IndexError):
            part.files[index]
    seen = {s.id for s in part.__getitems__([slots.base(0) + i for i in range(4)])}
    assert seen == {30, N - 1, 7, 9}
    with pytest.raises(IndexError):
        part[slots.base(0) + 4]
    with pytest.raises(ValueError, match="another dataset"):
        part[next(iter(sheaf.SlotSampler(ds)))]
    for shares in ({}, {"a": 0}, {"a": 0.7, "b": 0.4}):
        with pytest.raises(ValueError):
            ds.split(shares)


def test_states_of_another_subset_are_refused(data: str) -> None:
    ds = sheaf.Dataset(data)
    parts = ds.split({"a": 0.5, "b": 0.4985})
    loader = sheaf.Loader(parts["a"], 10)
    next(iter(loader))
    with pytest.raises(sheaf.StateError):
        sheaf.Loader(parts["b"], 10).load_state_dict(loader.state_dict())


@pytest.mark.parametrize("workers", [0, 2])
def test_the_journal_is_lost(node: Node, data: str, workers: int) -> None:
    """The state's bitmap restores the epoch, exactly once; without it the
    state is refused."""
    loader = sheaf.Loader(sheaf.Dataset(data), 16, num_workers=workers)
    seen = [
        i
        for batch in itertools.islice(loader, 25)
        for i in batch.ids.tolist()
    ]
    state = json.loads(json.dumps(loader.state_dict()))
    del loader
    node.kill()
    shutil.rmtree(node.cache / "jobs")
    node.start()
    bare = sheaf.Loader(sheaf.Dataset(data), 16)
    bare.load_state_dict({**state, "bitmap": None})
    with pytest.raises(sheaf.StateError, match="journal"):
        next(iter(bare))
    again = sheaf.Loader(sheaf.Dataset(data), 7, num_workers=2 - workers)
    again.load_state_dict(state)
    seen += epoch_of(again)
    assert sorted(seen) == list(range(N))
    assert sorted(epoch_of(again)) == list(range(N))


def test_more_ranks_under_lightning(
    data: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counts steps by the length of a full epoch, whatever we say."""
    loader = sheaf.Loader(sheaf.Dataset(data, job="more"), 16)
    for _ in itertools.islice(loader, 40):
        pass
    state = json.loads(json.dumps(loader.state_dict()))
    assert state["batches"] == 40
    for module in (None, object()):
        monkeypatch.setitem(sys.modules, "lightning.pytorch", module)
        if module is None:
            monkeypatch.delitem(sys.modules, "lightning.pytorch")
        part = sheaf.Loader(
            sheaf.Dataset(data, job="more"), 16, distributed=(0, 2)
        )
        part.load_state_dict(state)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert len(epoch_of(part)) == -(-(N - 640) // 2)
        said = [w for w in caught if "52 steps of each" in str(w.message)]
        assert len(said) == (module is not None)
        assert part.state_dict()["batches"] == 0


def test_damaged_bitmaps_are_refused(data: str) -> None:
    loader = sheaf.Loader(sheaf.Dataset(data), 16)
    for _ in itertools.islice(loader, 5):
        pass
    state = loader.state_dict()
    state["run"][5] ^= 1
    loader.load_state_dict(state)
    with pytest.raises(sheaf.StateError):
        next(iter(loader))


def test_a_state_goes_back_in_one_process(data: str) -> None:
    """To an earlier batch of the same run: the same samples again."""
    loader = sheaf.Loader(sheaf.Dataset(data), 16)
    batches = iter(loader)
    for _ in range(5):
        next(batches)
    state = loader.state_dict()
    want = [next(batches).ids.tolist() for _ in range(5)]
    loader.load_state_dict(state)
    batches = iter(loader)
    assert [next(batches).ids.tolist() for _ in range(5)] == want


def test_replay(data: str) -> None:
    """The ids of a run again, in order, by name; and nothing new."""
    first = sheaf.Loader(sheaf.Dataset(data, job="to-replay"), 16)
    epochs = [epoch_of(first), epoch_of(first)]
    ds = sheaf.Dataset(data, job="to-replay", replay=True)
    again = sheaf.Loader(ds, 50, num_workers=2)
    assert [epoch_of(again), epoch_of(again)] == epochs
    with pytest.raises(OSError):
        next(iter(again))
    with pytest.raises(ValueError, match="job"):
        sheaf.Dataset(data, replay=True)


def test_a_run_that_begins_late_warns(data: str) -> None:
    """Resumed without a state, by set_epoch alone: not silently."""
    sampler = sheaf.SlotSampler(sheaf.Dataset(data))
    sampler.set_epoch(1)
    with pytest.warns(RuntimeWarning, match="without a state"):
        next(iter(sampler))
