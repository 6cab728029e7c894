# SPDX-License-Identifier: Apache-2.0
"""Where a member of a group stands in an epoch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Place:
    """A pass of one rank. ``batches`` of the epoch are of all ranks, and so
    is ``start``, those that an earlier part of the pass had; ``count`` is
    what each rank takes of a full epoch."""

    epoch: int
    batches: int
    count: int
    rank: int
    world: int
    start: int
    taken: int = 0
    raised: int = 0  # since one was taken

    def _left(self) -> int:
        return max(0, self.count - self.start // self.world)

    def is_over(self) -> bool:
        """No batch is left to take."""
        return self.taken + self.raised >= self._left()

    def is_done(self) -> bool:
        """The epoch was taken, up to its end."""
        return self.taken >= self._left()

    def take(self) -> None:
        """The next batch was taken, and what raised before it."""
        self.taken, self.raised = self.taken + self.raised + 1, 0

    def end(self) -> None:
        """What raised counts as taken now."""
        self.taken += self.raised
        self.raised = 0

    def next(self) -> int:
        """Number, in the group, of the batch that comes next."""
        done = self.start + (self.taken + self.raised) * self.world
        return self.epoch * self.batches + done + self.rank

    def batch(self) -> int:
        """Batches of all ranks that were taken of the epoch."""
        return self.start + self.taken * self.world
