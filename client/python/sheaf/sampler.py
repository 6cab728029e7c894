# SPDX-License-Identifier: Apache-2.0
"""Slots of an epoch, for this rank."""

from __future__ import annotations

import operator
import sys
import warnings
from typing import Any, Iterator

from torch.utils.data import DistributedSampler, Sampler

from . import checks, jobs, slots
from .coming import Coming, check
from .dataset import Dataset
from .errors import StateError

_FRAMES = 14
_SHARDERS = {"BatchSamplerShard", "DataLoaderDispatcher"}
_CHECKPOINTING = "accelerate.checkpointing"


def _sharded_outside() -> bool:
    """Whether one of Accelerate's classes that split batches among processes
    is asking."""
    frame = sys._getframe(1)
    for _ in range(_FRAMES):
        if frame is None:
            return False
        owner, _, _ = frame.f_code.co_qualname.partition(".")
        if owner in _SHARDERS and "accelerate" in frame.f_code.co_filename:
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


def ranks_of(given: Any) -> str | tuple[int, int] | None:
    """``distributed`` as it was given: "auto", (rank, world) or None.
    ValueError."""
    if given is None or (isinstance(given, str) and given == "auto"):
        return given
    try:
        rank, world = map(operator.index, given)
    except (TypeError, ValueError):
        raise ValueError(
            f"distributed={given!r}: 'auto', (rank, world) or None"
        ) from None
    if not 0 <= rank < world:
        raise ValueError(f"distributed: no rank {rank} of {world}")
    return rank, world


class Span:
    """Slots of one pass of one rank: ``start`` is the first of all ranks'."""

    def __init__(
        self, n: int, start: int, rank: int, world: int, drop_last: bool
    ) -> None:
        self.n, self.start, self.rank, self.world = n, start, rank, world
        rest = max(0, n - start)
        per_rank = rest // world if drop_last else -(-rest // world)
        end = start + rank + per_rank * world
        self.count = per_rank
        self.range = range(start + rank, min(end, n), world)
        # At most one slot of a rank lies beyond the end: the stride is the
        # world, and what is missing is less.
        self.padding = [
            slot % n for slot in range(self.range.start, end, world)
        ][len(self.range) :] if len(self.range) < per_rank else []

    def position(self, taken: int) -> int:
        """Slots of all ranks that are done when this one took ``taken``."""
        if taken >= self.count:
            return self.n
        return min(self.n, self.start + taken * self.world)


class SlotSampler(DistributedSampler[int]):
    """The slots of a Dataset's epochs, as indices.

    The daemon decides which sample a slot is when it is fetched; so there is
    nothing to shuffle here. It is a DistributedSampler for frameworks, which
    then add none of their own.

    ``distributed``: ``"auto"`` takes rank and world size from torch's process
    group, or the launcher, when a pass begins, and leaves the slots whole when
    Accelerate splits the batches itself; ``(rank, world)`` fixes them;
    ``None`` gives all slots. Ranks get equally many: the last ones are
    repeated from the epoch's beginning, or dropped (``drop_last``).

    Epoch, rank and beginning of a pass are fixed at its first ``next()``;
    ``iter()`` alone has no effect. ``set_epoch`` is for the next pass; without
    it each pass is the next epoch, and the first one the next that no sampler
    of the Dataset has begun. A loaded state is for the next pass, and
    naming another epoch then is an error.
    """

    def __init__(
        self,
        dataset: Dataset,
        distributed: str | tuple[int, int] | None = "auto",
        drop_last: bool = False,
    ) -> None:
        Sampler.__init__(self)  # not DistributedSampler's: it wants a group
        if not isinstance(dataset, Dataset):
            raise TypeError(
                f"slots are of a sheaf.Dataset, not of a "
                f"{type(dataset).__name__}: dataset.split() and .subset() give "
                "parts that have slots; others are for a DataLoader without "
                "SlotSampler"
            )
        self.dataset: Any = dataset
        self.distributed = ranks_of(distributed)
        self.drop_last = checks.flag("drop_last", drop_last)
        self.shuffle = False
        self.seed = dataset.seed
        self._coming = Coming()
        self._span: Span | None = None
        self._span_epoch = 0
        self._left: Iterator[int] = iter(())

    # ---- ranks ----

    def _ranks(self, sure: bool = False) -> tuple[int, int]:
        if isinstance(self.distributed, tuple):
            return self.distributed
        if self.distributed is None or _sharded_outside():
            return 0, 1
        return jobs.world(sure)

    @property
    def rank(self) -> int:  # type: ignore[override]
        """Of this process, as a pass that begins now would have it."""
        return self._ranks()[0]

    @property
    def num_replicas(self) -> int:  # type: ignore[override]
        """World size, as a pass that begins now would have it."""
        return self._ranks()[1]

    @property
    def num_samples(self) -> int:  # type: ignore[override]
        """Slots of a full pass of this rank."""
        return len(self)

    @property
    def total_size(self) -> int:  # type: ignore[override]
        """Slots of a full pass of all ranks."""
        return len(self) * self.num_replicas

    def __len__(self) -> int:
        rank, world = self._ranks()
        return Span(len(self.dataset), 0, rank, world, self.drop_last).count

    # ---- passes ----

    @property
    def epoch(self) -> int:  # type: ignore[override]
        """Of the next pass."""
        next = self._coming
        if next.loaded is not None:
            return next.loaded[0]
        if next.epoch is not None:
            return next.epoch
        return int(self.dataset.next_epoch)

    @property
    def start(self) -> int:
        """Slots, of all ranks, that the next pass leaves out."""
        return self._coming.loaded[1] if self._coming.loaded else 0

    def set_epoch(self, epoch: int) -> None:
        """Names the epoch of the next pass. StateError: a state was loaded
        that is in the middle of another one."""
        self._coming.set_epoch(epoch)

    def __iter__(self) -> Iterator[int]:
        span, epoch = self._begin()
        base = slots.base(epoch, self.dataset.check())
        self._left = iter(
            range(base + span.range.start, base + span.range.stop, span.world)
        )
        yield from self._left
        for slot in span.padding:
            self._left = iter(())
            yield base + slot

    def _begin(self) -> tuple[Span, int]:
        rank, world = self._ranks(sure=True)
        # Also where ranks are not ours to split: it is one run.
        everyone = max(world, jobs.world()[1])
        if self.distributed is None and everyone > 1:
            if not _sharded_outside():
                warnings.warn(
                    f"SlotSampler(distributed=None): each of {everyone} "
                    "processes goes through all samples",
                    RuntimeWarning,
                    stacklevel=3,
                )
        self.dataset.job_name(everyone)
        epoch, start = self.epoch, self.start
        if self._coming.loaded is not None:
            self.dataset.restore(epoch, self._coming.saved)
        elif epoch > 0 and self.dataset.next_epoch == 0:
            warnings.warn(
                f"this run begins with the whole of epoch {epoch} and without "
                "a state: if it was interrupted within that epoch, what it "
                "had read of it comes again (sheaf.Loader has a state)",
                RuntimeWarning,
                stacklevel=3,
            )
        self._coming.begun(epoch)
        self.dataset.next_epoch = max(epoch + 1, self.dataset.next_epoch)
        self._span_epoch = epoch
        self._span = Span(
            len(self.dataset), start, rank, world, self.drop_last
        )
        return self._span, epoch

    def span(self) -> tuple[int, Span]:
        """(epoch, slots) of the pass that began last."""
        assert self._span is not None
        return self._span_epoch, self._span

    # ---- state ----

    def state_at(
        self, epoch: int, position: int, bitmap: bool = True
    ) -> dict[str, Any]:
        """A state for ``load_state_dict``; a finished epoch is the next one's
        beginning. With ``bitmap`` (N / 8 bytes) it can be loaded where the
        daemon lost, or never had, the job's journal."""
        n = len(self.dataset)
        done = position >= n
        if self._coming.loaded is not None:
            saved = self._coming.saved
        else:
            saved = self.dataset.save(epoch, 0 if done else position)
        if not bitmap:
            saved = {**saved, "bitmap": None}
        return {
            **saved,
            **self._identity(),
            "job": self.dataset.job_name(),
            "epoch": epoch + 1 if done else epoch,
            "position": 0 if done else position,
            "finished": epoch if done else None,
        }

    def _identity(self) -> dict[str, Any]:
        return {
            "version": 1,
            "uuid": self.dataset.uuid.hex(),
            "samples": len(self.dataset),
            "subset": self.dataset.subset_id(),
            "order": self.dataset.order,
            "window": self.dataset.window_slots(),
            "seed": self.dataset.seed,
        }

    def state_dict(self) -> dict[str, Any]:
        """Where the pass stands by what this sampler has given out, which is
        ahead of what was trained on when workers prefetch. Small: it relies
        on the daemon's journal of the job. RuntimeError: Accelerate asks, whose
        loaders take batches before they give them to training."""
        if sys._getframe(1).f_globals.get("__name__") == _CHECKPOINTING:
            raise RuntimeError(
                "a SlotSampler that is registered for checkpointing is ahead "
                "of training, which would lose batches: prepare() and "
                "register_for_checkpointing() a sheaf.Loader instead"
            )
        if self._coming.loaded is not None or self._span is None:
            return self.state_at(self.epoch, self.start, False)
        span = self._span
        taken = len(span.range) - operator.length_hint(self._left)
        return self.state_at(self._span_epoch, span.position(taken), False)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Makes the next pass go on where the state was taken. World size,
        workers and batch size may differ. StateError names a field that does
        not fit."""
        check(state, self._identity())
        try:
            job = checks.text("job", state["job"], 128)
        except (KeyError, TypeError, ValueError) as error:
            raise StateError(f"the state is damaged: {error}") from error
        strict = self.dataset.order == "strict"
        last = max(0, len(self.dataset) - 1)
        self._coming.load(state, "position", last, 1, alone=strict)
        self.dataset.join(job)
        self._span = None
