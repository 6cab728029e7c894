# SPDX-License-Identifier: Apache-2.0
"""Epochs out of a cache that holds a part: what the origin must give.

The cache is memory alone, so that one number says what it holds. Origin bytes
are the daemon's own count.
"""

from __future__ import annotations

import random
import statistics
import subprocess
import sys
import time
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import children
import ways
from node import Node
from report import emit, note, progress

SHARE = 0.35
# What the daemon keeps in the same memory beside chunks, in proportion.
OVERHEAD = 1.10
MEMORY_MIN = 32 << 20
# Opened files a second of the slowed origin; of a quick run.
RATE, RATE_QUICK = 400, 800


def sizes_of(images: Path) -> list[int]:
    """Bytes of each."""
    return [path.stat().st_size for path in ways.files_of(images)]


def part_of(images: Path, where: Path, build: Path) -> tuple[Node, int]:
    """A daemon whose memory holds SHARE of the images; their bytes."""
    size = sum(sizes_of(images))
    memory = int(SHARE * size * OVERHEAD)
    if memory < MEMORY_MIN:
        note(
            f"the images are {size >> 20} MiB, so that {MEMORY_MIN >> 20} MiB "
            f"of memory hold more than {100 * SHARE:.0f} % of them"
        )
    memory = max(memory, MEMORY_MIN)
    return Node(where, build, str(memory), "0"), size


def lru(count: int, share: float, passes: int = 6) -> float:
    """Hits of an LRU cache under a uniform permutation each epoch."""
    source = random.Random(1)
    cache: OrderedDict[int, None] = OrderedDict()
    order, hits = list(range(count)), 0
    for _ in range(passes):
        source.shuffle(order)
        hits = 0
        for sample in order:
            if sample in cache:
                hits += 1
                cache.move_to_end(sample)
            else:
                cache[sample] = None
                if len(cache) > share * count:
                    cache.popitem(last=False)
    return hits / count


def unevenness(parts: list[float], samples: list[int] | None = None) -> float:
    """How far any of them is from their mean, as a share of it; per sample
    where that is given."""
    if samples is not None:
        parts = [part / n for part, n in zip(parts, samples)]
    mean = statistics.mean(parts) or 1.0
    return max(abs(part / mean - 1) for part in parts)


def uniform(sizes: list[int], share: float, turns: int) -> float:
    """unevenness() of the bytes that uniform orders miss in each tenth of an
    epoch, most of ``turns`` epochs, when ``share`` of the bytes are cached:
    what chance alone does with images of these sizes."""
    source = random.Random(1)
    order = list(range(len(sizes)))
    source.shuffle(order)
    left, cached = share * sum(sizes), set()
    for sample in order:
        left -= sizes[sample]
        if left >= 0:
            cached.add(sample)
    found = []
    for _ in range(100):
        most = 0.0
        for _ in range(turns):
            source.shuffle(order)
            tenths = [0.0] * 10
            for slot, sample in enumerate(order):
                if sample not in cached:
                    tenths[slot * 10 // len(order)] += sizes[sample]
            most = max(most, unevenness(tenths))
        found.append(most)
    return statistics.median(found)


@dataclass
class Epoch:
    """What one pass took."""

    seconds: float
    reads: list[float]  # of the origin, in each tenth
    bytes: list[float]  # the same
    samples: list[int]  # of each tenth: whole batches
    stock: float  # bytes of what is cached and stays, when it began


def one_epoch(node: Node, way: Any, count: int) -> Epoch:
    names = ("origin.reads", "origin.bytes")
    stock = node.stat("dataset.stock_bytes")
    marks = [[*node.stats(*names), 0]]
    begun, seen = time.monotonic(), 0
    for batch in way:
        seen += ways.drain([batch], False)
        while seen * 10 >= count * len(marks) and len(marks) < 10:
            marks.append([*node.stats(*names), seen])
    seconds = time.monotonic() - begun
    marks.append([*node.stats(*names), seen])
    reads, read, samples = (
        [after[i] - before[i] for before, after in zip(marks, marks[1:])]
        for i in range(3)
    )
    return Epoch(seconds, reads, read, [int(n) for n in samples], stock)


def cached(
    images: Path, where: Path, build: Path, quick: bool, faultfs: Path
) -> None:
    """One training out of a cache of SHARE, the origin being slow."""
    node, size = part_of(images, where / "cached", build)
    rate = RATE_QUICK if quick else RATE
    slow = node.slowed(images, faultfs, rate)
    node.sheaf("add", "bench", str(slow))
    sizes = sizes_of(images)
    count = len(sizes)
    way = ways.Sheaf("bench", False, 0, job="cached")
    turns = 1 if quick else 5
    progress(f"cached: an epoch to begin with, about {count // rate} s")
    one_epoch(node, way, count)
    passes: list[Epoch] = []
    for turn in range(turns):
        progress(f"cached: epoch {turn + 1} of {turns}")
        passes.append(one_epoch(node, way, count))
    tell_cached(node, passes, sizes)
    ideal = rate / (1 - statistics.mean(p.stock for p in passes) / size)
    rates = [count / p.seconds for p in passes]
    emit("cached: sheaf", statistics.median(rates), "samples/s",
         "what the origin allows",
         statistics.median(rates) / ideal)  # fmt: skip
    progress("cached: files of the slow origin")
    alone = ways.Files(slow, False, 2)
    begun = time.monotonic()
    found = ways.drain(alone, False) / (time.monotonic() - begun)
    emit("cached: files of the slow origin, 2 workers", found, "samples/s",
         "sheaf", found / statistics.median(rates))  # fmt: skip
    del alone, way
    node.stop()


def tell_cached(node: Node, passes: list[Epoch], sizes: list[int]) -> None:
    size = sum(sizes)
    shares = [p.stock / size for p in passes]
    hits = [1 - sum(p.bytes) / size for p in passes]
    share = statistics.mean(shares)
    gap = max(abs(hit - held) for hit, held in zip(hits, shares))
    resident = node.stat("arena.payload_bytes") / size
    emit("cached: share of the bytes in memory", 100 * resident, "%")
    emit("cached: share of the bytes in stock", 100 * share, "%")
    emit("cached: hits", 100 * statistics.mean(hits), "%")
    emit("cached: hits, LRU (simulated)", 100 * lru(len(sizes), share), "%")
    emit("cached: mean hits beside the share",
         100 * abs(statistics.mean(hits) - share), "points",
         limit=0.5)  # fmt: skip
    emit("cached: hits of an epoch beside it, at most", 100 * gap, "points")
    emit("cached: files of a tenth beside the mean, at most",
         100 * max(unevenness(p.reads, p.samples) for p in passes), "%",
         limit=10)  # fmt: skip
    emit("cached: bytes of a tenth beside the mean, at most",
         100 * max(unevenness(p.bytes, p.samples) for p in passes), "%")  # fmt: skip
    emit("cached: the same, uniform orders (simulated)",
         100 * uniform(sizes, share, len(passes)), "%")  # fmt: skip


def jobs(images: Path, where: Path, build: Path, quick: bool) -> None:
    """J trainings that start at once, with pace: origin bytes an epoch, all
    together, from the second on, beside (1 - c + A/N) of the images."""
    count = len(ways.files_of(images))
    turns = 2 if quick else 5
    for number in (1, 2, 4, 8):
        node, size = part_of(images, where / f"jobs-{number}", build)
        node.sheaf("add", "bench", str(images))
        trainings = [start(number, i, turns) for i in range(number)]
        for training in trainings:
            expect(training, "ready")
        for training in trainings:
            go(training)
        progress(f"jobs: {number} at once, epoch 1 of {turns}")
        for training in trainings:
            expect(training, "epoch 1")
        first = node.stat("origin.bytes")
        held = node.stat("dataset.stock_bytes") / size
        for training in trainings:
            go(training)
        progress(f"jobs: {number} at once, epochs 2 to {turns}")
        for training in trainings:
            expect(training, f"epoch {turns}")
            training.wait()
            children.end(training)
        spent = (node.stat("origin.bytes") - first) / (turns - 1)
        bound = (1 - held + ways.BATCH / count) * size
        emit(f"jobs: {number} at once, origin bytes an epoch",
             spent / bound, "of the bound", limit=1.05)  # fmt: skip
        node.stop()


def start(jobs: int, number: int, turns: int) -> subprocess.Popen[str]:
    return children.start(
        [sys.executable, __file__, f"bench-{jobs}-{number}", str(turns)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def go(training: subprocess.Popen[str]) -> None:
    """What it waits for when it is ready, and after its first epoch."""
    assert training.stdin
    training.stdin.write("go\n")
    training.stdin.flush()


def expect(training: subprocess.Popen[str], wanted: str) -> None:
    """Reads until it says so."""
    assert training.stdout
    for line in training.stdout:
        if line.strip() == wanted:
            return
    raise SystemExit(f"a training ended before it said '{wanted}'")


def train(job: str, turns: int) -> None:
    """What start() starts."""
    way = ways.Sheaf("bench", False, 0, job=job, pace=True)
    len(way.dataset)
    print("ready", flush=True)
    sys.stdin.readline()
    for turn in range(1, turns + 1):
        ways.drain(way, False)
        print(f"epoch {turn}", flush=True)
        if turn == 1:
            sys.stdin.readline()


if __name__ == "__main__":
    train(sys.argv[1], int(sys.argv[2]))
