# SPDX-License-Identifier: Apache-2.0
"""What becomes of a sample that cannot be had."""

from __future__ import annotations

from typing import Any, Callable

from .sample import Sample

CONSECUTIVE_MAX = 100


class Failure:
    """One sample that could not be read or decoded: its ``id`` and ``key``,
    the slot it was bound to (``epoch``, ``slot``, or None) and the
    ``error``."""

    def __init__(
        self,
        error: Exception,
        id: int,
        key: str,
        epoch: int | None,
        slot: int | None,
    ) -> None:
        self.error = error
        self.id = id
        self.key = key
        self.epoch = epoch
        self.slot = slot


class Policy:
    """``on_error`` of a Dataset. Threads: counters may lose an increment."""

    def __init__(self, on_error: str | Callable[[Failure], Any]) -> None:
        if not callable(on_error) and on_error not in ("raise", "replace"):
            raise ValueError(
                f"on_error={on_error!r}: 'raise', 'replace' or a function"
            )
        self.on_error = on_error
        self.replaced = 0
        self.quarantined: set[int] = set()
        self.last_good: int | None = None
        self._row = 0

    def good(self, sample: int) -> None:
        """A sample was served."""
        self.last_good = sample
        self._row = 0

    def failed(self, failure: Failure) -> None:
        """Counts, and raises where nothing is to be done."""
        if self.on_error == "raise":
            raise failure.error
        self._row += 1
        self.quarantined.add(failure.id)
        if self._row > CONSECUTIVE_MAX:
            raise RuntimeError(
                f"{self._row} samples in a row could not be had, the last one "
                f"{failure.key}: {failure.error}"
            ) from failure.error
        self.replaced += 1

    def substitute(
        self, failure: Failure, batch: list[Any], position: int
    ) -> int | None:
        """Id of a sample that was served already: the nearest of the batch,
        else this process's last one. None: there is none."""
        near = sorted(range(len(batch)), key=lambda i: abs(i - position))
        for i in near:
            other = batch[i]
            if isinstance(other, Sample) and other.id not in self.quarantined:
                return other.id
        return self.last_good
