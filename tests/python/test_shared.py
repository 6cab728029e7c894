# SPDX-License-Identifier: Apache-2.0
"""What others of the machine do to what a process reads: a second job, writes
into tensors that share memory."""

from __future__ import annotations

import contextlib
import errno
import gc
import multiprocessing
import os
import pickle
import resource
import signal
import subprocess
import sys
import time
import warnings
from typing import Iterator

import pytest
import sheaf
import torch
from conftest import N, Node, content, number_of

def test_a_second_job_has_hits(data: str, node: Node) -> None:
    """What one job read is in memory for the next one; hits and misses of
    each are the samples that it got."""
    node.sheaf("warmup", "--evict", data)
    base = sheaf.slots.base(0)
    for job in ("first", "second"):
        before = node.stat("origin.bytes")
        ds = sheaf.Dataset(data, job=job)
        begun = ds.stats()
        held = ds.__getitems__([base + i for i in range(N)])
        assert sorted(number_of(bytes(s)) for s in held) == list(range(N))
        stats = ds.stats()
        hits = stats["hits"] - begun.get("hits", 0)
        misses = stats["misses"] - begun.get("misses", 0)
        assert hits + misses == stats["samples"] - begun["samples"] == N
        if job == "second":
            assert misses == 0 and node.stat("origin.bytes") == before
        del held, ds


def test_where_samples_came_from(data: str, node: Node) -> None:
    """From the origin, the daemon's disk or memory: each of the first two is
    counted by one process alone, and all together it is what the daemon
    read."""
    tiers = ("hits", "from_disk", "from_origin")
    base = sheaf.slots.base(0)

    def read(name: str) -> list[float]:
        ds = sheaf.Dataset(data, job=name)
        ds.__getitems__([base + i for i in range(N)])
        stats = ds.stats()
        assert stats["hits"] + stats["misses"] == stats["samples"] == N
        return [stats[tier] for tier in tiers]

    node.sheaf("warmup", "--evict", data)
    before = node.stat("origin.reads")
    _, disk, origin = read("cold")
    assert (disk, origin) == (0, N) == (0, node.stat("origin.reads") - before)
    assert read("warm") == [N, 0, 0]
    node.sheaf("warmup", "--disk", data)
    node.sheaf("warmup", "--evict", "--memory", data)
    assert read("from-disk")[1:] == [N, 0]
    # Two out of step, cold: they share what either brings.
    node.sheaf("warmup", "--evict", data)
    before, replaced = node.stat("origin.reads"), node.stat("jobs.replaced")
    pair = [sheaf.Dataset(data, job=f"pair-{i}") for i in "12"]
    begun = [ds.stats() for ds in pair]
    assert begun[0]["from_origin"] == 0
    slots = [[base + (i + n // 2 * k) % n for i in range(n)]
             for k, n in ((0, N), (1, N))]  # fmt: skip
    for at in range(0, N, 17):
        for ds, mine in zip(pair, slots):
            ds.__getitems__(mine[at : at + 17])
    # Counters are of all Datasets of a version in this process.
    stats = pair[0].stats()
    assert stats["from_origin"] == N == node.stat("origin.reads") - before
    assert stats["substituted"] == node.stat("jobs.replaced") - replaced


def test_a_child_counts_its_own(data: str) -> None:
    """Whatever its parent had counted, by this Dataset or another."""
    for i in range(5):
        sheaf.Dataset(data)[i]
    ds = sheaf.Dataset(data)
    ds[1], ds[2]
    child = os.fork()
    if child == 0:
        held = {"pinned_bytes", "grant_bytes"}
        mine = ds.stats()
        ok = all(mine[name] == 0 for name in mine.keys() - held)
        ds.__getitems__([5, 6, 7])
        mine = ds.stats()
        ok = ok and mine["samples"] == mine["hits"] + mine["misses"] == 3
        os._exit(0 if ok else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert ds.stats()["samples"] == 2


def test_pace_holds_back_who_leads(data: str) -> None:
    """Of two jobs that are ahead of a third, slow one, that with pace waits;
    and what it waits is not counted as fetching."""
    base = sheaf.slots.base(0)
    last, free, paced = (
        sheaf.Dataset(data, job=f"pace-{name}", pace=name == "paced")
        for name in ("last", "free", "paced")
    )
    waited = {free: 0.0, paced: 0.0}
    begun_s = sheaf.Dataset(data).stats()["pace_wait_s"]
    assert begun_s == 0
    for ds in (free, paced, last):
        ds[base]
        if ds is last:
            time.sleep(0.2)  # what a sample takes it, as the daemon sees it
        ds[base + 1]
    for turn in range(1, N // 8):
        last[base + 1 + turn]
        for ds in waited:
            begun = time.monotonic()
            ds.__getitems__([base + 4 * turn + i for i in range(4)])
            waited[ds] += time.monotonic() - begun
        if waited[paced] > max(0.3, 4 * waited[free]):
            stats = paced.stats()
            assert stats["pace_wait_s"] > waited[paced] / 2
            assert stats["fetch_s"] < waited[paced] / 2
            return
    raise AssertionError(f"waited {list(waited.values())}")


WRITES = """
import ctypes, os, sheaf, sys, torch
for write in sys.argv[1:]:
    child = os.fork()
    if child == 0:
        tensor = sheaf.Dataset("data")[5].tensor(copy=False)
        assert tensor[0].item() == ord("5")
        exec(write)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_writes_in_other_processes(data: str) -> None:
    """They end the writer; the bytes of others stay."""
    ds = sheaf.Dataset(data)
    mine = ds[5]
    tensor = mine.tensor(copy=False)
    number = number_of(bytes(mine))
    writes = (
        "tensor[0] = 1",
        "tensor.add_(1)",
        "tensor.numpy()[0] = 1",
        "torch.from_dlpack(tensor)[0] = 1",
        "ctypes.memset(tensor.data_ptr(), 1, 1)",
    )
    text = WRITES.replace('ord("5")', str(content(number)[0]))
    other = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", text, *writes],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    ends = other.stdout.split()
    assert ends == [str(-signal.SIGSEGV)] * len(writes), other.stderr
    assert tensor.numpy().tobytes() == bytes(mine) == bytes(ds[5])
    assert number_of(bytes(mine)) == number


def test_shared_and_pinned_memory_are_copies(data: str) -> None:
    """``share_memory_()`` moves a tensor to memory of its own, and so does
    pinning (which does nothing without a device): what is written there is
    not seen by others."""
    ds = sheaf.Dataset(data)
    want = bytes(ds[9])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        shared = ds[9].tensor(copy=False).share_memory_()
        tensors = [ds[9].tensor(), ds[9].tensor().share_memory_(), shared]
        if torch.cuda.is_available():
            tensors.append(ds[9].tensor(copy=False).pin_memory())
        for tensor in tensors:
            assert tensor.numpy().tobytes() == want
            tensor.fill_(0)
    assert len(caught) <= 1, [str(w.message) for w in caught]
    assert shared.is_shared()
    assert bytes(ds[9]) == want == bytes(sheaf.Dataset(data)[9])


@contextlib.contextmanager
def descriptors(most: int) -> Iterator[None]:
    """At most so many of this process and of those that it starts."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_samples_hold_no_descriptors(data: str) -> None:
    """However many are kept, by themselves and from workers, of few that are
    allowed."""
    ds = sheaf.Dataset(data)
    kept: list[object] = [ds[0]]
    begun = len(os.listdir("/proc/self/fd"))
    with descriptors(256):
        kept += [ds[i] for i in range(N)]
        kept += [ds[i].tensor(copy=False) for i in range(N)]
        kept += list(sheaf.Loader(ds, 1, num_workers=4))
    assert len(kept) == 1 + 3 * N
    assert len(os.listdir("/proc/self/fd")) < begun + 20


def test_no_descriptor_is_left(data: str) -> None:
    """What needs one fails with the limit in words and holds nothing; it works
    when some are free. What needs none works all the while."""
    ds, taken = sheaf.Dataset(data), []
    held = ds[0]
    pinned = ds.stats()["pinned_bytes"]
    with descriptors(len(os.listdir("/proc/self/fd")) + 40):
        with pytest.raises(OSError) as none:
            while True:
                taken.append(os.open("/dev/null", os.O_RDONLY))
        assert none.value.errno == errno.EMFILE
        assert bytes(ds[0]) == bytes(held)
        other = sheaf.Dataset(data, job="no-descriptor")
        with pytest.raises(OSError, match="RLIMIT_NOFILE") as refused:
            other[1]
        assert refused.value.errno == errno.EMFILE
        assert ds.stats()["pinned_bytes"] == pinned
        for fd in taken[-30:]:
            os.close(fd)
        assert number_of(bytes(other[1])) == number_of(bytes(ds[1]))
        for fd in taken[:-30]:
            os.close(fd)


def private_bytes() -> int:
    """What this process alone has in memory."""
    with open("/proc/self/smaps_rollup") as text:
        return sum(
            int(line.split()[1]) << 10
            for line in text
            if line.startswith("Private_")
        )


def grown_by_names(ds: sheaf.Dataset) -> int:
    """Bytes that a worker needs to go through all names and labels."""
    first = 0
    for turn in range(3):
        for number, key in enumerate(ds.files):
            assert key.endswith(f"{number % 2000:04}")
            assert ds.label(number) == number // 2000
        gc.collect()
        first = first or private_bytes()
    return private_bytes() - first


def test_names_are_no_workers_own(node: Node) -> None:
    """Names and labels are looked up where they lie once for all: workers do
    not grow by them, and they are not sent to them."""
    count, long = 8000, "n" * 240
    for i in range(count):
        path = node.origin / "names" / f"{i // 2000}" / f"{long}{i % 2000:04}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    node.sheaf("add", "names", str(node.origin / "names"))
    ds = sheaf.Dataset("names")
    assert len(ds) == count and len(pickle.dumps(ds)) < 4096
    ds.label(0)
    for method in ("fork", "spawn"):
        context = multiprocessing.get_context(method)
        with context.Pool(1) as pool:
            grown = pool.apply(grown_by_names, (ds,))
        assert grown < count * len(long) // 8, (method, grown)


def test_tensors_of_any_size(node: Node) -> None:
    """In shared memory, too, and in batches of empty files alone."""
    sizes = (0, 1, 4095, 4096, 4097)
    node.add("sizes", {f"{n:04}/{i}": bytes([i]) * n for n in sizes for i in (1, 2)})
    ds = sheaf.Dataset("sizes")
    for number, key in enumerate(ds.files):
        size, byte = map(int, key.split("/"))
        for copy in (True, False):
            tensor = ds[number].tensor(copy=copy).share_memory_()
            assert tensor.shape == (size,)
            assert tensor.tolist() == [byte] * size
    empty = [ds.id_of(key) for key in ("0000/1", "0000/2")]
    (batch,) = sheaf.Loader(ds.subset(empty), 2, num_workers=1)
    assert [tuple(t.shape) for t in batch.tensors(copy=False)] == [(0,)] * 2
