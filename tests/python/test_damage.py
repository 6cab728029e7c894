# SPDX-License-Identifier: Apache-2.0
"""Bytes that change where they should not: on the cache's disk, and in memory
that is evicted while tensors of it are held. No wrong byte is ever given."""

from __future__ import annotations

import errno
import random
import threading
import time

import pytest
import sheaf
import torch
from conftest import Node

SMALL, COUNT = 20_000, 40
LARGE = 5 << 20  # of more than one chunk: a file of its own on disk


def stamp(number: int, size: int) -> bytes:
    """What file ``number`` holds; no 64 bytes of it come in another file."""
    return random.Random(number).randbytes(size)


def size_of(number: int) -> int:
    return LARGE if number == COUNT else SMALL


def fill(node: Node) -> None:
    """COUNT small files and a large one, all on the cache's disk."""
    files = {f"f{i:02}": stamp(i, size_of(i)) for i in range(COUNT + 1)}
    node.add("stamped", files)
    node.sheaf("warmup", "--disk", "stamped")


def flip(node: Node, number: int, at: int) -> None:
    """Flips a bit of byte ``at`` of a file, where the cache has it on disk."""
    want = stamp(number, size_of(number))[at : at + 64]
    found = []
    for part in ("segments", "plain"):
        for path in (node.cache / part).iterdir():
            if not path.is_file():
                continue
            where = path.read_bytes().find(want)
            if where >= 0:
                found.append((path, where))
    assert found, f"file {number} is not on disk"
    for path, where in found:
        with path.open("r+b") as file:
            file.seek(where)
            file.write(bytes([want[0] ^ 0x10]))


def forget(node: Node) -> None:
    """Takes all out of memory, so that the disk is read. What is just being
    written is held for a moment."""
    end = time.monotonic() + 60
    while True:
        node.sheaf("warmup", "--evict", "--memory", "stamped")
        if node.stat("arena.payload_bytes") == 0:
            return
        assert time.monotonic() < end
        time.sleep(0.02)


def right(sample: sheaf.Sample) -> int:
    """Its number, if its bytes are right."""
    number = int(sample.key[1:])
    assert bytes(sample) == stamp(number, size_of(number)), sample.key
    return number


@pytest.mark.parametrize("workers", [0, 2])
def test_flipped_bytes_on_disk(own: Node, workers: int) -> None:
    """They are read again from the origin, once each, and counted."""
    fill(own)
    origin = own.stat("origin.bytes")
    for number, at in ((3, 0), (17, SMALL // 2), (31, SMALL - 64)):
        flip(own, number, at)
    flip(own, COUNT, LARGE - 64)
    forget(own)
    loader = sheaf.Loader(sheaf.Dataset("stamped"), 8, num_workers=workers)
    for _ in range(2):
        seen = [right(sample) for batch in loader for sample in batch]
        assert sorted(seen) == list(range(COUNT + 1))
        assert own.stat("verify_failures") == 4
        forget(own)
    again = own.stat("origin.bytes") - origin
    assert 3 * SMALL < again <= 3 * SMALL + LARGE


def test_flipped_bytes_whose_origin_is_gone(own: Node) -> None:
    """Nothing has the right ones: an error with the key, or another sample."""
    fill(own)
    bad = {5, 23, COUNT}
    for number in bad:
        flip(own, number, 640)
        path = own.origin / "stamped" / f"f{number:02}"
        path.write_bytes(b"another content")
    forget(own)
    ds = sheaf.Dataset("stamped")
    for number in bad:
        with pytest.raises(OSError) as caught:
            bytes(ds[number])
        assert caught.value.errno in (errno.ESTALE, errno.EIO)
        assert caught.value.filename == f"f{number:02}"
    assert own.stat("verify_failures") >= len(bad)
    small = range(COUNT)
    kept = sheaf.Dataset("stamped", on_error="replace").subset(small)
    seen = [right(s) for batch in sheaf.Loader(kept, 8) for s in batch]
    assert len(seen) == COUNT and set(seen) == set(small) - bad
    assert kept.stats()["replaced"] == 2


STORM, STORM_SIZE = 900, 100_000  # more than the memory holds


def storm(number: int) -> bytes:
    """What file ``number`` of the storm holds, as no other."""
    return bytes([number % 251]) * (STORM_SIZE - 4) + number.to_bytes(4, "big")


def read_at_random(
    ds: sheaf.Dataset, seed: int, stop: threading.Event, wrong: list[int]
) -> None:
    source = random.Random(seed)
    while not stop.is_set():
        numbers = [source.randrange(STORM) for _ in range(8)]
        for number, sample in zip(numbers, ds.__getitems__(numbers)):
            if bytes(sample) != storm(number):
                wrong.append(number)


def test_held_while_all_else_is_evicted(own: Node) -> None:
    """A storm of reads through a memory that holds a part of them, by threads
    and by workers: what is held stays, byte for byte."""
    own.add("storm", {f"f{i:03}": storm(i) for i in range(STORM)})
    ds = sheaf.Dataset("storm")
    held: dict[int, list[torch.Tensor]] = {}
    for i in range(0, STORM, 20):
        sample = ds[i]
        if sample.is_copy:
            break
        whole = sample.tensor(copy=False)
        held[i] = [whole, whole[1000:2000], torch.from_dlpack(sample)[-9:]]
        del sample
    assert len(held) >= 20
    stop, wrong = threading.Event(), []
    threads = [
        threading.Thread(target=read_at_random, args=(ds, i, stop, wrong))
        for i in range(2)
    ]
    for thread in threads:
        thread.start()
    try:
        for batch in sheaf.Loader(sheaf.Dataset("storm"), 16, num_workers=2):
            assert all(bytes(s) == storm(s.id) for s in batch)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not wrong
    for i, (whole, part, tail) in held.items():
        assert whole.numpy().tobytes() == storm(i)
        assert part.numpy().tobytes() == storm(i)[1000:2000]
        assert tail.numpy().tobytes() == storm(i)[-9:]
    assert own.stat("arena.evicted") > 100
