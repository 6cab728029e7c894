# SPDX-License-Identifier: Apache-2.0
"""Counters of a Loader's workers, in memory that they share with it."""

from __future__ import annotations

from typing import Protocol

import torch
from torch.utils.data import get_worker_info

from .stats import COUNTERS, Stats


class _Counting(Protocol):
    def stats(self) -> Stats: ...


class Board:
    """A row of counters for each worker, which that worker alone writes.

    It travels to the workers with their Dataset, by fork or pickle. A row may
    be read while it is written: each counter is then the old or the new one.
    """

    def __init__(self, workers: int) -> None:
        self._rows = torch.zeros(
            (int(workers), len(COUNTERS)), dtype=torch.float64
        )
        self._rows.share_memory_()  # type: ignore[no-untyped-call]
        self._begun: Stats | None = None

    def begin(self, source: _Counting) -> None:
        """Worker: what was counted before its first batch is another's."""
        if self._begun is None:
            self._begun = source.stats()

    def tell(self, source: _Counting) -> None:
        """Worker: a batch is done."""
        worker, begun = get_worker_info(), self._begun
        if worker is None or begun is None:
            return
        now = source.stats()
        row = [now[name] - begun[name] for name in COUNTERS]
        self._rows[worker.id] = torch.tensor(row, dtype=torch.float64)

    def rows(self) -> list[Stats]:
        """Counters by worker."""
        return [
            Stats(zip(COUNTERS, row)) for row in self._rows.tolist()
        ]
