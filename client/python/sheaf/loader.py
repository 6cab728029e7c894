# SPDX-License-Identifier: Apache-2.0
"""A DataLoader that knows where it is."""

from __future__ import annotations

import sys
import warnings
from dataclasses import dataclass
from typing import Any, Callable, Iterable, Iterator

from torch.utils.data import BatchSampler, DataLoader, Sampler

from . import timing
from .batches import collate
from .dataset import Dataset
from .errors import StateError
from .sampler import SlotSampler, Span, ranks_of
from .stats import COUNTERS, Stats
from .workers import Board

# Ends an epoch by the length of a full one.
_LIGHTNING = {"lightning.pytorch", "pytorch_lightning"}


def _is_of_slots(batch_sampler: Any) -> bool:
    """Whether it makes plain batches of a SlotSampler's slots."""
    return type(batch_sampler) is BatchSampler and isinstance(
        batch_sampler.sampler, SlotSampler
    )


def _agree(sampler: SlotSampler, distributed: Any) -> None:
    """Who gives a sampler has the part of the slots that it gives out."""
    if distributed not in ("auto", sampler.distributed):
        raise ValueError(
            f"distributed={distributed!r}: the sampler that was given has "
            f"{sampler.distributed!r}, which counts"
        )


class Loader(DataLoader[Any]):
    """``DataLoader(ds, sampler=SlotSampler(ds))`` that can be resumed.

    Arguments are DataLoader's but for ``shuffle`` (the order is the
    daemon's), and ``distributed`` and ``drop_last`` as SlotSampler's;
    ``drop_last`` also drops a short last batch. A ``SlotSampler``, or torch's
    ``BatchSampler`` of one, may be given. A foreign ``sampler`` or
    ``batch_sampler`` is taken as it is; the state is empty then.

    A pass begins, workers included, at the first batch that is taken of it,
    not at ``iter()``. ``len()`` is that of a full epoch, also when resumed.
    """

    # Accelerate's prepare() leaves it alone: it would hide the state.
    _is_accelerate_prepared = True

    def __init__(
        self,
        dataset: Dataset,
        batch_size: int | None = 1,
        *,
        distributed: str | tuple[int, int] | None = "auto",
        drop_last: bool = False,
        sampler: Sampler[Any] | Iterable[Any] | None = None,
        batch_sampler: Any = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        shuffle: bool | None = None,
        **options: Any,
    ) -> None:
        if shuffle:
            raise ValueError("no shuffle: Sheaf chooses the order itself")
        if _is_of_slots(batch_sampler) and batch_size == 1 and not sampler:
            # The same, and it can be resumed.
            sampler, drop_last = batch_sampler.sampler, batch_sampler.drop_last
            batch_size, batch_sampler = batch_sampler.batch_size, None
        if sampler is None and batch_sampler is None:
            sampler = SlotSampler(dataset, distributed, drop_last)
        elif isinstance(sampler, SlotSampler):
            _agree(sampler, ranks_of(distributed))
        if collate_fn is None and batch_size is not None:
            collate_fn = collate
        self.distributed = distributed
        self._slots = sampler if isinstance(sampler, SlotSampler) else None
        self._place: _Place | None = None
        self._before = 0  # batches that a loaded state had taken
        self._board: Board | None = None  # of the newest workers
        self._ended = Stats.fromkeys(COUNTERS, 0.0)  # by those before them
        self._waited = [0.0]
        self._turns = [0]  # passes begun, where they share workers
        limit = options.get("timeout", 0)
        if 0 < limit <= getattr(dataset, "timeout", 0):
            warnings.warn(
                f"timeout={limit} of the Loader ends before that of its "
                f"Dataset, {dataset.timeout:g} s, which would say what was "
                "waited for",
                RuntimeWarning,
                stacklevel=2,
            )
        super().__init__(
            dataset,  # type: ignore[arg-type]
            batch_size,
            sampler=sampler,
            batch_sampler=batch_sampler,
            drop_last=drop_last,
            collate_fn=collate_fn,
            **options,
        )

    def __iter__(self) -> Any:
        if self._slots is None:
            return super().__iter__()
        return _Pass(self, self._slots, super().__iter__)

    def _place_of(self, epoch: int, span: Span) -> "_Place":
        whole, part = divmod(span.count, self.batch_size or 1)
        last = whole + (part > 0 and not self.drop_last)
        before = self._before if span.start else 0
        return _Place(epoch, span, self.batch_size or 1, last, before)

    def set_epoch(self, epoch: int) -> None:
        """Names the epoch of the next pass, as SlotSampler's."""
        if self._slots is not None:
            self._slots.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Where training stands by the batches that were taken, the same on
        every rank. RuntimeError with ``in_order=False``: batches then do not
        come in the order of slots."""
        if self._slots is None:
            return {}
        if not getattr(self, "in_order", True):
            raise RuntimeError(
                "a Loader with in_order=False has no state: batches come in "
                "no order of slots"
            )
        place = self._place
        if place is None:
            where = (self._slots.epoch, self._slots.start)
            taken = self._before
        else:
            where = place.position()
            taken = place.before + place.batches
        state = self._slots.state_at(*where)
        return {**state, "batches": taken if state["position"] else 0}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Makes the next pass go on after the batches that were taken when
        the state was saved: exactly once over both. StateError names what
        does not fit."""
        if self._slots is None:
            if state:
                raise StateError(
                    "the state is of a Loader with slots; this one has "
                    "another sampler"
                )
            return
        if not state:
            raise StateError("the state is of a Loader with another sampler")
        self._slots.load_state_dict(state)
        before = state.get("batches", 0)
        self._before = before if isinstance(before, int) else 0
        self._place = None

    def _get_iterator(self) -> Any:
        dataset = self.dataset
        if not self.num_workers or not isinstance(dataset, Dataset):
            return super()._get_iterator()
        for row in self.worker_stats():
            for name in COUNTERS:
                self._ended[name] += row[name]
        # It goes with the Dataset to the workers that are started now.
        self._board = dataset._board = Board(self.num_workers)
        try:
            return super()._get_iterator()
        finally:
            dataset._board = None

    def stats(self) -> Stats:
        """Counters as ``Dataset.stats()``, and ``wait_s`` in which the loop
        waited for a batch (slots only; StallProfiler says for what).

        With workers: what all workers of this Loader have counted, up to the
        batches that they have ready; ``pinned_bytes`` and ``grant_bytes``
        are this process's. Samples that come from workers in place are pinned
        here once more, which ``dataset.stats()`` counts."""
        stats: Stats = self.dataset.stats()  # type: ignore[attr-defined]
        if self.num_workers:
            rows = [self._ended, *self.worker_stats()]
            stats.update({n: sum(row[n] for row in rows) for n in COUNTERS})
        stats["wait_s"] = self._waited[0]
        return stats

    def worker_stats(self) -> list[Stats]:
        """What each worker of the newest pass has counted; [] without."""
        return self._board.rows() if self._board is not None else []


@dataclass
class _Place:
    """Where a pass stands. Not the pass: who leaves a loop lets go of its
    workers."""

    epoch: int
    span: Span
    size: int  # of a batch
    last: int  # batches of the pass
    before: int  # batches of the epoch that were taken before it
    batches: int = 0  # taken

    def position(self) -> tuple[int, int]:
        """(epoch, slots of all ranks that were taken)."""
        if self.batches >= self.last:
            return self.epoch, self.span.n
        return self.epoch, self.span.position(self.batches * self.size)


class _Pass(Iterator[Any]):
    """One pass over a Loader; counts what was taken of it.

    A batch that raised counts as taken only when a later one is: until then
    a state has it again.
    """

    def __init__(
        self,
        loader: Loader,
        sampler: SlotSampler,
        begin: Callable[[], Iterator[Any]],
    ) -> None:
        self._loader: Loader | None = loader  # until it begins
        self._sampler = sampler
        self._begin = begin
        self._waited = loader._waited
        self._turns = loader._turns if loader.persistent_workers else [0]
        self._turn = 0
        self._inner: Iterator[Any] = iter(())
        self._first: list[Any] = []  # taken of it already
        self._raised = 0  # batches, since one was taken

    def __iter__(self) -> "_Pass":
        return self

    def __next__(self) -> Any:
        asked = timing.now()
        try:
            if self._loader is not None:
                self._start(self._loader)
            batch = self._first.pop() if self._first else self._take()
        finally:
            self._waited[0] += timing.now() - asked
        self._place.batches += 1 + self._raised
        self._raised = 0
        return batch

    def _take(self) -> Any:
        if self._turn != self._turns[0]:
            raise RuntimeError(
                "a newer pass over this Loader has its persistent workers; an "
                "older one cannot go on"
            )
        # With workers: a wait that ends early leaves the batch where it is.
        before = getattr(self._inner, "_rcvd_idx", -1)
        try:
            return next(self._inner)
        except StopIteration as end:
            self._end(end)
            raise
        except BaseException:
            self._raised += getattr(self._inner, "_rcvd_idx", 0) - before
            raise

    def _end(self, end: StopIteration) -> None:
        place = self._place
        if place.batches + self._raised < place.last:
            raise RuntimeError(
                f"epoch {place.epoch} ended after {place.batches} of "
                f"{place.last} batches: the collate function, or what it "
                "calls, raised StopIteration"
            ) from end
        place.batches = place.last

    def _start(self, loader: Loader) -> None:
        earlier = self._sampler._span
        self._inner = self._begin()
        if loader.num_workers > 0:
            self._begun(loader)
            return
        # The sampler's pass begins with the first batch: now, not later.
        try:
            self._first = [next(self._inner)]
        except BaseException as error:
            if self._sampler._span is earlier:
                raise  # it did not begin
            self._begun(loader)
            if isinstance(error, StopIteration):
                self._end(error)
            self._raised = 1
            raise
        self._begun(loader)

    def _begun(self, loader: Loader) -> None:
        self._loader = None
        self._turns[0] += 1
        self._turn = self._turns[0]
        place = loader._place_of(*self._sampler.span())
        self._place = loader._place = place
        taken, full = place.before + place.last, len(loader)
        if taken > full and not _LIGHTNING.isdisjoint(sys.modules):
            warnings.warn(
                f"epoch {place.epoch} goes on with more processes: it takes "
                f"{taken} steps of each, but Lightning ends an epoch after "
                f"{full}, and leaves what is unread then; go on with as many "
                "processes as before, or from the end of an epoch",
                RuntimeWarning,
                stacklevel=4,
            )
