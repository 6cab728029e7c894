# SPDX-License-Identifier: Apache-2.0
"""A DataLoader that knows where it is."""

from __future__ import annotations

from typing import Any, Callable, Iterable, Iterator

from torch.utils.data import DataLoader, Sampler

from .batches import collate
from .dataset import Dataset
from .errors import StateError
from .sampler import SlotSampler
from .stats import Stats


class Loader(DataLoader[Any]):
    """``DataLoader(ds, sampler=SlotSampler(ds))`` that can be resumed.

    Arguments are DataLoader's but for ``shuffle`` (the order is the
    daemon's), and ``distributed`` and ``drop_last`` as SlotSampler's;
    ``drop_last`` also drops a short last batch. A foreign ``sampler`` or
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
        batch_sampler: Sampler[Any] | Iterable[Any] | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        shuffle: bool | None = None,
        **options: Any,
    ) -> None:
        if shuffle:
            raise ValueError("no shuffle: Sheaf chooses the order itself")
        if sampler is None and batch_sampler is None:
            sampler = SlotSampler(dataset, distributed, drop_last)
        if collate_fn is None and batch_size is not None:
            collate_fn = collate
        self.distributed = distributed
        self._slots = sampler if isinstance(sampler, SlotSampler) else None
        self._pass: _Pass | None = None
        if batch_sampler is None:
            options.update(
                batch_size=batch_size, sampler=sampler, drop_last=drop_last
            )
        else:
            options.update(batch_sampler=batch_sampler)
        super().__init__(dataset, collate_fn=collate_fn, **options)  # type: ignore[arg-type]

    def __iter__(self) -> Any:
        if self._slots is None:
            return super().__iter__()
        return _Pass(self, self._slots, super().__iter__)

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
        if self._pass is None:
            return self._slots.state_at(self._slots.epoch, self._slots.start)
        return self._slots.state_at(*self._pass.position())

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
        self._pass = None

    def stats(self) -> Stats:
        """Counters of this process's Dataset."""
        return self.dataset.stats()  # type: ignore[attr-defined,no-any-return]


class _Pass(Iterator[Any]):
    """One pass over a Loader; counts what was taken of it."""

    def __init__(
        self,
        loader: Loader,
        sampler: SlotSampler,
        begin: Callable[[], Iterator[Any]],
    ) -> None:
        self._loader = loader
        self._sampler = sampler
        self._begin: Callable[[], Iterator[Any]] | None = begin
        self._inner: Iterator[Any] = iter(())
        self._batches = 0

    def __iter__(self) -> "_Pass":
        return self

    def __next__(self) -> Any:
        if self._begin is not None:
            self._start()
        try:
            batch = next(self._inner)
        except StopIteration:
            self._batches = self._last
            raise
        self._batches += 1
        return batch

    def _start(self) -> None:
        assert self._begin is not None
        begin, self._begin = self._begin, None
        self._inner = begin()
        # Also without workers: the sampler's pass begins now, not later.
        if self._loader.num_workers == 0:
            first = next(self._inner, _Nothing)
            rest = self._inner
            self._inner = _chain(first, rest)
        self._epoch, self._span = self._sampler.span()
        size = self._loader.batch_size or 1
        self._size = size
        whole, part = divmod(self._span.count, size)
        self._last = whole + (part > 0 and not self._loader.drop_last)
        self._loader._pass = self

    def position(self) -> tuple[int, int]:
        """(epoch, slots of all ranks that were taken)."""
        if self._batches >= self._last:
            return self._epoch, self._span.n
        taken = self._batches * self._size
        return self._epoch, self._span.position(taken)


_Nothing = object()


def _chain(first: Any, rest: Iterator[Any]) -> Iterator[Any]:
    if first is not _Nothing:
        yield first
        yield from rest
