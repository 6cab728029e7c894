# SPDX-License-Identifier: Apache-2.0
"""Slots: bound once, whoever asks; never mistaken for samples."""

from __future__ import annotations

import errno
import gc
import multiprocessing
import os
import subprocess
import sys
from typing import Any

import pytest
import sheaf
from conftest import N, Node, content
from sheaf import slots
from torch.utils.data import ConcatDataset, StackDataset, Subset, random_split


def ids(ds: sheaf.Dataset, epoch: int, first: int = 0, last: int = N) -> list[int]:
    base = slots.base(epoch)
    return [s.id for s in ds.__getitems__([base + i for i in range(first, last)])]


@pytest.mark.parametrize("order", ["shared", "window", "strict"])
def test_each_once_and_again_the_same(data: str, order: str) -> None:
    ds = sheaf.Dataset(data, order=order, seed=3)
    first = ids(ds, 0)
    assert sorted(first) == list(range(N))
    assert ids(ds, 0) == first
    second = ids(ds, 1)
    assert sorted(second) == list(range(N)) and second != first
    sample = ds[slots.base(1) + 5]
    assert (sample.epoch, sample.slot, sample.id) == (1, 5, second[5])


def test_strict_depends_on_seed_and_epoch_alone(data: str) -> None:
    one, two = (sheaf.Dataset(data, order="strict", seed=7) for _ in "12")
    other = sheaf.Dataset(data, order="strict", seed=8)
    assert ids(one, 4) == ids(two, 4) != ids(other, 4)


def test_mixed_batches(data: str) -> None:
    ds = sheaf.Dataset(data)
    want = ids(ds, 0, 0, 3)
    got = ds.__getitems__([slots.base(0) + 2, 9, slots.base(1), slots.base(0)])
    assert [s.id for s in got][:2] == [want[2], 9] and got[3].id == want[0]
    assert got[2].epoch == 1
    assert ds.__getitems__([]) == []
    for wrong in (slots.base(0) + N, slots.base(0) + (1 << 32) - 1):
        with pytest.raises(IndexError):
            ds[wrong]


def _bind(ds: sheaf.Dataset, part: int, queue: Any) -> None:
    queue.put([(i, s.id) for i, s in part_of(ds, part)])


def part_of(ds: sheaf.Dataset, part: int) -> list[tuple[int, Any]]:
    mine = [i for i in range(N) if i % 16 == part or i % 50 == 0]
    out = []
    for at in range(0, len(mine), 10):
        some = mine[at : at + 10]
        out += zip(some, ds.__getitems__([slots.base(0) + i for i in some]))
    return out


def test_sixteen_processes_never_collide(data: str) -> None:
    ds = sheaf.Dataset(data)
    len(ds)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    workers = [
        context.Process(target=_bind, args=(ds, part, queue))
        for part in range(16)
    ]
    for worker in workers:
        worker.start()
    bound: dict[int, int] = {}
    for _ in workers:
        for slot, sample in queue.get(timeout=60):
            assert bound.setdefault(slot, sample) == sample
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    assert sorted(bound) == sorted(bound.values()) == list(range(N))
    assert [bound[i] for i in range(N)] == ids(ds, 0)


def test_wrappers_of_plain_ints_bind_nothing(data: str, node: Node) -> None:
    ds = sheaf.Dataset(data)
    ids(ds, 0, 0, 100)
    bound = node.stat("jobs.bound")
    subset = Subset(ds, [3, 1, 2])
    assert [s.id for s in subset.__getitems__([0, 1, 2])] == [3, 1, 2]
    train, held_out = random_split(ds, [N - 200, 200])
    assert {s.id for s in held_out} == set(held_out.indices)
    both = ConcatDataset([ds, ds])
    assert both[N + 4].id == 4
    for wrapper in (subset, train, both):
        with pytest.raises(IndexError):
            wrapper[slots.base(0)]
    assert [ds[i].id for i in range(N)] == list(range(N))
    assert node.stat("jobs.bound") == bound >= 100


def test_slots_of_another_dataset_are_refused(data: str) -> None:
    """A sampler's slots name the Dataset that they are for, so that pairs of
    two jobs do not mix samples up."""
    one, two = sheaf.Dataset(data, job="pair-a"), sheaf.Dataset(data, job="pair-b")
    index = next(iter(sheaf.SlotSampler(one)))
    assert one[index].slot == 0
    with pytest.raises(ValueError, match="another dataset"):
        two[index]
    with pytest.raises(ValueError, match="another dataset"):
        StackDataset(one, two).__getitems__([index])


def test_slot_of() -> None:
    assert sheaf.slot_of(slots.base(5, 77) + 9) == (5, 9)
    assert sheaf.slot_of(slots.base(slots.EPOCHS - 1) + 1) == (slots.EPOCHS - 1, 1)
    with pytest.raises(ValueError):
        sheaf.slot_of(9)
    with pytest.raises(ValueError):
        slots.base(slots.EPOCHS)


def test_names_of_jobs(data: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("SLURM", "TORCHELASTIC", "MASTER_")):
            monkeypatch.delenv(name)
    alone = sheaf.Dataset(data)
    assert alone.job_name() != sheaf.Dataset(data).job_name()
    with pytest.raises(sheaf.JobError, match="job=NAME"):
        next(iter(sheaf.SlotSampler(alone, (0, 2))))
    assert sheaf.Dataset(data, job="mine").job_name(8) == "mine"
    monkeypatch.setenv("MASTER_ADDR", "10.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "29500")
    assert sheaf.Dataset(data).job_name(2) == "10.0.0.1:29500"
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    monkeypatch.setenv("SLURM_STEP_ID", "3")
    assert sheaf.Dataset(data).job_name(2) == "slurm-12.3"
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "run7")
    assert sheaf.Dataset(data).job_name(2) == "torchelastic-run7"
    late = sheaf.Dataset(data)
    ids(late, 0, 0, 4)
    with pytest.raises(sheaf.JobError, match="process group first"):
        late.job_name(2)


def test_a_rank_that_is_not_told(
    data: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A launcher that says how many there are, and not which one this is:
    all would be the first. Told when a pass begins, since a process group may
    still come."""
    monkeypatch.delenv("RANK", raising=False)
    ds = sheaf.Dataset(data, job="untold")
    monkeypatch.setenv("WORLD_SIZE", "4")
    sampler = sheaf.SlotSampler(ds)
    assert len(sampler) == -(-N // 4)
    for rank in (None, "", "4", "-1", "first"):
        if rank is not None:
            monkeypatch.setenv("RANK", rank)
        with pytest.raises(sheaf.JobError, match="RANK"):
            next(iter(sampler))
    assert next(iter(sheaf.SlotSampler(ds, (1, 4)))) & 0xFFFFFFFF == 1
    monkeypatch.setenv("RANK", "3")
    assert next(iter(sampler)) & 0xFFFFFFFF == 3
    monkeypatch.setenv("WORLD_SIZE", "none")
    with pytest.raises(sheaf.JobError, match="WORLD_SIZE"):
        next(iter(sampler))
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.delenv("RANK")
    assert next(iter(sampler)) & 0xFFFFFFFF == 0


def test_slots_asked_for_again_warn(data: str) -> None:
    """By a process that has them anew, far more than it can have ahead: it
    lost its place."""
    ids(sheaf.Dataset(data, job="again"), 0)
    code = (
        "import sheaf, sys, warnings\n"
        "warnings.simplefilter('error')\n"
        f"ds = sheaf.Dataset({data!r}, job='again')\n"
        "base = sheaf.slots.base(0)\n"
        "for at in range(0, 1000, 100):\n"
        "    ds.__getitems__([base + at + i for i in range(100)])\n"
    )
    child = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60
    )
    assert child.returncode == 1
    assert "RuntimeWarning" in child.stderr and "again" in child.stderr


def test_look_ahead(data: str) -> None:
    """A new session asks for a third of an epoch again: more than the usual
    look-ahead, and no more than the one that was told."""
    for ahead, warned in ((0, 1), (N, 0)):
        name = f"ahead-{ahead}"
        ids(sheaf.Dataset(data, job=name, ahead=ahead), 0)
        again = subprocess.run(
            [sys.executable, "-c", AGAIN.format(data, name, ahead, N // 3)],
            capture_output=True,
            text=True,
            check=True,
        )
        assert again.stderr.count("asked for again") == warned, again.stderr
    for wrong in (-1, (1 << 20) + 1):
        with pytest.raises(ValueError, match="ahead"):
            sheaf.Dataset(data, ahead=wrong)


AGAIN = """
import sheaf
ds = sheaf.Dataset({!r}, job={!r}, ahead={})
base = sheaf.slots.base(0)
for first in range(0, {}, 16):
    ds.__getitems__([base + first + i for i in range(16)])
"""


def test_processes_of_two_versions(node: Node) -> None:
    """An update between the processes of a run would make it two runs, each
    of which reads a part of the samples."""
    files = {f"f{i:02}": content(i) for i in range(40)}
    node.add("moving", files)
    old = sheaf.Dataset("moving", job="moving")
    halves = old.subset(range(20))
    begun = ids(old, 0, 0, 9)
    halves[slots.base(0)]
    (node.origin / "moving" / "g").write_bytes(b"one more")
    node.sheaf("update", "moving")
    new = sheaf.Dataset("moving", job="moving")
    assert (len(old), len(new)) == (40, 41)
    with pytest.raises(OSError, match="another version.*job's name") as caught:
        new[slots.base(0)]
    assert caught.value.errno == errno.EINVAL
    with pytest.warns(RuntimeWarning, match="different versions"):
        new.subset(range(20))[slots.base(0)]
    # whoever is first has the epoch; the other goes on in those it began
    assert sorted(ids(new, 1, 0, 41)) == list(range(41))
    with pytest.raises(OSError, match="another version"):
        old[slots.base(1)]
    assert ids(old, 0, 0, 9) == begun
    assert sorted(ids(old, 0, 0, 40)) == list(range(40))
    other = sheaf.Dataset("moving", job="another")
    assert sorted(ids(other, 0, 0, 41)) == list(range(41))
    del old, halves
    gc.collect()
    assert sorted(ids(new, 0, 0, 41)) == list(range(41))
