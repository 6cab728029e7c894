# SPDX-License-Identifier: Apache-2.0
"""Passes that are disturbed: by what a user's functions raise, by iterators
that are left, by SIGKILL of workers and ranks. Nothing ends an epoch early
without an error, and a state goes on with what was not taken."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import warnings
from typing import Any

import pytest
import sheaf
import torch
from conftest import N, number_of
from torch.utils.data import DataLoader

BAD = 500  # what the functions below do not like
SIZE = 50


class Refused(Exception):
    """Of a transform. Pickled as what it was made of."""


def refuse(sample: sheaf.Sample) -> int:
    if sample.id == BAD:
        raise Refused("not this one")
    return sample.id


def stop(sample: sheaf.Sample) -> int:
    if sample.id == BAD:
        next(iter(()))
    return sample.id


def stop_collate(items: list[int]) -> torch.Tensor:
    return torch.tensor([stop_id(item) for item in items])


def stop_id(item: int) -> int:
    if item == BAD:
        next(iter(()))
    return item


def identity(sample: sheaf.Sample) -> int:
    return sample.id


def taken(batches: Any, seen: list[int]) -> Exception | None:
    """Takes all until the end, None, or until what is raised. Without its
    traceback: torch makes a cycle of it, and when a collector finds the
    workers in there their end is waited for, five seconds each."""
    try:
        for batch in batches:
            numbers = batch[0] if isinstance(batch, list) else batch
            seen += numbers.tolist()
    except Exception as error:
        if error.__cause__:
            error.__cause__.with_traceback(None)
        return error.with_traceback(None)
    return None


def goes_on(loader: sheaf.Loader, seen: list[int]) -> None:
    """From the loader's state, in a new one: exactly once, and on."""
    dataset = loader.dataset
    again = sheaf.Loader(sheaf.Dataset(dataset.name, transform=identity), 16)
    again.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    rest: list[int] = []
    assert taken(again, rest) is None
    assert sorted(seen + rest) == list(range(N))
    assert len([i for batch in again for i in batch]) == N


@pytest.mark.parametrize("workers", [0, 2])
def test_a_transform_that_raises(data: str, workers: int) -> None:
    """The error names the file; a state has the batch again; who leaves the
    batch out gets all others."""
    ds = sheaf.Dataset(data, transform=refuse)
    loader = sheaf.Loader(ds, SIZE, num_workers=workers)
    batches, seen = iter(loader), []
    error = taken(batches, seen)
    assert isinstance(error, Refused)
    text = str(error) + "".join(getattr(error, "__notes__", ()))
    assert f"transforming {ds.key(BAD)} of {data}" in text
    goes_on(loader, seen)
    rest: list[int] = []
    assert taken(batches, rest) is None
    assert len(seen + rest) == N - (SIZE if len(rest) % SIZE else N % SIZE)
    assert len(set(seen + rest)) == len(seen + rest)
    assert loader.state_dict()["epoch"] == 1


def refuse_once(sample: sheaf.Sample) -> int:
    if sample.slot == 0 and sample.epoch == 0:
        raise Refused("not the first")
    return sample.id


@pytest.mark.parametrize("workers", [0, 1])
def test_the_first_batch_raises(data: str, workers: int) -> None:
    """It is of the epoch that began, not of one that was lost."""
    loader = sheaf.Loader(
        sheaf.Dataset(data, transform=refuse_once), SIZE, num_workers=workers
    )
    batches = iter(loader)
    assert isinstance(taken(batches, []), Refused)
    state = loader.state_dict()
    assert (state["epoch"], state["position"]) == (0, 0)
    goes_on(loader, [])
    assert loader.sampler.epoch == 1
    rest: list[int] = []
    assert taken(batches, rest) is None
    assert len(set(rest)) == len(rest) == N - SIZE


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("where", ["transform", "decode", "collate", "plain"])
def test_stop_iteration_ends_no_epoch(
    data: str, where: str, workers: int
) -> None:
    """Python takes it for the end of a loop; an epoch would be short."""
    if where == "decode":
        ds = sheaf.Dataset(data, decode=stop)
    else:
        ds = sheaf.Dataset(
            data, transform=identity if where == "collate" else stop
        )
    if where == "plain":
        loader: Any = DataLoader(
            ds, SIZE, sampler=sheaf.SlotSampler(ds), num_workers=workers
        )
    else:
        collate = stop_collate if where == "collate" else None
        loader = sheaf.Loader(
            ds, SIZE, num_workers=workers, collate_fn=collate
        )
    error = taken(loader, [])
    assert isinstance(error, RuntimeError) and "StopIteration" in str(error)


def test_an_older_pass_cannot_go_on(data: str) -> None:
    """Persistent workers have turned to the newer one: its batches are not
    given out as the older's. Without them both go on."""
    ds = sheaf.Dataset(data, transform=identity)
    loader = sheaf.Loader(ds, 400, num_workers=1, persistent_workers=True)
    older, newer = iter(loader), iter(loader)
    next(older)
    seen = next(newer).tolist()
    with pytest.raises(RuntimeError, match="newer pass"):
        next(older)
    assert taken(newer, seen) is None
    assert sorted(seen) == list(range(N))
    loader = sheaf.Loader(ds, 400)
    parts: list[list[int]] = [[], []]
    for pair in zip(loader, loader):
        for part, batch in zip(parts, pair):
            part += batch.tolist()
    assert [sorted(part) for part in parts] == [list(range(N))] * 2


def test_a_state_of_each_epoch(data: str) -> None:
    """Saved between epochs, as most do: the one that was interrupted begins
    again, and nobody is told that a place was lost."""
    loader = sheaf.Loader(
        sheaf.Dataset(data, transform=identity), SIZE, num_workers=1
    )
    assert taken(loader, []) is None
    state = loader.state_dict()
    assert taken(itertools.islice(loader, 15), []) is None
    again = sheaf.Loader(sheaf.Dataset(data, transform=identity), SIZE)
    again.load_state_dict(state)
    seen: list[int] = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert taken(again, seen) is None
    assert sorted(seen) == list(range(N))
    assert again.state_dict()["epoch"] == 2


def kill_once(sample: sheaf.Sample) -> int:
    if sample.id == BAD:
        os.kill(os.getpid(), signal.SIGKILL)
    return sample.id


def test_a_worker_is_killed(data: str) -> None:
    """torch says so, by this or that error, and the loader's state goes on
    exactly once."""
    loader = sheaf.Loader(
        sheaf.Dataset(data, transform=kill_once), SIZE, num_workers=2
    )
    seen: list[int] = []
    assert taken(loader, seen) is not None
    goes_on(loader, seen)


RANK = """
import json, sheaf, sys
loader = sheaf.Loader(
    sheaf.Dataset("data", job="killed-rank"), 50, distributed=(1, 2)
)
for batch in loader:
    print(json.dumps([batch.ids.tolist(), loader.state_dict()]), flush=True)
    sys.stdin.readline()
"""


def test_a_rank_is_killed(data: str) -> None:
    """In the middle of a step; three others go on from the state of the step
    before, while a batch that nobody trained was bound already."""
    first = sheaf.Loader(
        sheaf.Dataset(data, job="killed-rank"), SIZE, distributed=(0, 2)
    )
    batches, seen = iter(first), []
    child = subprocess.Popen(
        [sys.executable, "-c", RANK],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdin and child.stdout
    try:
        for step in range(5):
            mine = next(batches).ids.tolist()
            ids, state = json.loads(child.stdout.readline())
            if step == 4:
                child.kill()
                break
            seen += ids + mine
            kept = first.state_dict()
            assert state == kept
            child.stdin.write("go\n")
            child.stdin.flush()
    finally:
        child.kill()
        child.wait()
        child.stdin.close()
        child.stdout.close()
    for rank in range(3):
        part = sheaf.Loader(
            sheaf.Dataset(data, job="killed-rank"), 20, distributed=(rank, 3)
        )
        part.load_state_dict(kept)
        for batch in part:
            assert all(number_of(bytes(s)) == int(s.key[-4:]) for s in batch)
            seen += batch.ids.tolist()
    assert set(seen) == set(range(N)) and len(seen) <= N + 2


@pytest.mark.parametrize("n", [1, 3, 9])
@pytest.mark.parametrize("drop_last", [False, True])
def test_fewer_samples_than_workers(
    data: str, n: int, drop_last: bool
) -> None:
    """And than ranks, and than a batch: equal steps, each sample once, over
    epochs of persistent workers."""
    whole = sheaf.Dataset(data, job=f"few-{n}-{drop_last}")
    ids = list(itertools.islice(range(7, N, 100), n))
    loader = sheaf.Loader(
        whole.subset(ids), 4, num_workers=4 if n == 3 else 0,
        persistent_workers=n == 3, drop_last=drop_last,
    )  # fmt: skip
    for _ in range(3):
        seen = [i for batch in loader for i in batch.ids.tolist()]
        assert len(set(seen)) == len(seen) == (n // 4 * 4 if drop_last else n)
        assert set(seen) <= set(ids)
    steps, seen = set(), []
    for rank in range(4):
        part = sheaf.Loader(
            whole.subset(ids), 2, distributed=(rank, 4), drop_last=drop_last
        )
        part.set_epoch(5)
        mine = [batch.ids.tolist() for batch in part]
        assert len(mine) == len(part)
        steps.add(len(mine))
        seen += sum(mine, [])
    assert len(steps) == 1
    if drop_last:
        assert len(set(seen)) == len(seen)
    else:
        assert set(seen) == set(ids)
