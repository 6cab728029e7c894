# SPDX-License-Identifier: Apache-2.0
"""The dataset of these tests: 1003 files that hold their own number.

1003 is no multiple of any batch, rank or worker count used here, so padding
and rests are always met. Importable by workers and ranks, and small: what is
read is compared with what was asked for in every sample.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

COUNT = 1003
BATCH = 16
# A slot's index, without a check of what it is meant for.
_SLOT = 1 << 62


def make(directory: Path) -> None:
    """Writes the files: NN/NNNN, 4 to 40 bytes, in the order of their ids."""
    for number in range(COUNT):
        path = directory / f"{number // 100:02d}" / f"{number:04d}"
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_bytes(f"{number:04d}".encode() * (1 + number % 10))


def number_of(sample: Any) -> int:
    """The number in a sample's bytes; fails where it is not in all of them."""
    data = bytes(sample)
    number = int(data[:4])
    assert data == data[:4] * (1 + number % 10), data
    assert sample.id == number, (sample.id, number)
    return number


def open_numbers(job: str | None, **options: Any) -> Any:
    """The dataset, of the daemon and under the name in the environment."""
    import sheaf

    options.setdefault("transform", number_of)
    options.setdefault("timeout", 60)
    return sheaf.Dataset(os.environ["SHEAF_TEST_DATASET"], job=job, **options)


def slot(epoch: int, place: int) -> int:
    """The index of a slot."""
    return _SLOT | epoch << 40 | place


def served(dataset: Any, epoch: int) -> list[int]:
    """What the slots of an epoch hold, in their order (asked once more)."""
    return [
        int(number)
        for first in range(0, COUNT, 500)
        for number in dataset.__getitems__(
            [slot(epoch, i) for i in range(first, min(first + 500, COUNT))]
        )
    ]


def flat(batches: Iterable[Any]) -> list[int]:
    """The numbers of batches, in order."""
    return [int(number) for batch in batches for number in batch]


def failure(batches: Iterable[Any]) -> Exception | None:
    """What a loader raises on its way, None: nothing. Without the traceback:
    torch makes a cycle of it, and when a collector finds workers in there
    their end is waited for, five seconds each."""
    try:
        for _ in batches:
            pass
    except Exception as error:
        return error.with_traceback(None)
    return None


def once(numbers: Iterable[int], padding: int = 0) -> None:
    """Each of all numbers, and just @padding more that repeat some."""
    counts = Counter(numbers)
    total = sum(counts.values())
    missing = sorted(set(range(COUNT)) - set(counts))
    assert not missing, (
        f"{len(counts)}/{total}: {len(missing)} were never trained, "
        f"{missing[:8]} among them"
    )
    assert total == COUNT + padding, f"{len(counts)}/{total}"
