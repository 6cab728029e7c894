# SPDX-License-Identifier: Apache-2.0
"""Going on without the daemon, for Datasets with ``on_daemon_loss="origin"``.

The daemon is lost when a call could not reach it within its timeout. From then
on files are read from the directory that was added, as this process may read
it, until the daemon takes connections again. A file is given only if it is, by
inode, size and times, the one that was listed, so no other version's bytes are
ever mixed in. The digests of what was cached are the daemon's, and not asked
for here.
"""

from __future__ import annotations

import errno
import operator
import threading
import time
import warnings
from array import array
from typing import TYPE_CHECKING, Any, Sequence, SupportsIndex, TypeVar

from . import _sheaf
from .slots import is_slot, slot_of

if TYPE_CHECKING:
    from .dataset import Dataset
    from .source import Source

_S = TypeVar("_S", bound=_sheaf.SampleBase)
_Answer = tuple[list[Any], list[tuple[int, int, int, int]]]

_GONE = {errno.ECONNREFUSED, errno.ECONNRESET}
_LOOK_S = 1.0  # between looks whether it is back
_CHECK_SHIFT = 32


def is_gone(error: BaseException) -> bool:
    """Whether this says that nobody listens at the daemon's socket."""
    return (
        isinstance(error, OSError)
        and error.errno in _GONE
        and error.filename is None
    )


class Loss:
    """Whether a Source's daemon is lost, and what was read meanwhile."""

    def __init__(self) -> None:
        self.losses = 0
        self.samples = 0
        self.bytes = 0
        self._lost = False
        self._look_at = 0.0
        self._lock = threading.Lock()

    def lasts(self, source: "Source") -> bool:
        """Whether the daemon is better not asked now. Looks at its socket,
        without waiting, about once a second."""
        if not self._lost:
            return False
        now = time.monotonic()
        with self._lock:
            if now < self._look_at:
                return True
            self._look_at = now + _LOOK_S
        return not source.is_served()

    def begins(self, name: str, error: BaseException) -> None:
        """The daemon was not there within the timeout. Warns the first time
        in a process."""
        with self._lock:
            self._look_at = time.monotonic() + _LOOK_S
            first = self.losses == 0
            self.losses += not self._lost
            self._lost = True
        if first:
            warnings.warn(
                f"sheafd is gone ({error}): {name} is read from its origin "
                "until it is back",
                RuntimeWarning,
                stacklevel=2,
            )

    def ended(self) -> None:
        """The daemon answered."""
        self._lost = False

    def renew(self) -> None:
        """In a forked child: another thread may have held the lock."""
        self._lock = threading.Lock()


def read(source: "Source", numbers: "array[int]", cls: type[_S]) -> _Answer:
    """Samples by (id, epoch, slot) from the origin; counted."""
    samples, failed = source.from_origin(numbers, cls)
    loss = source.loss
    loss.samples += len(samples) - len(failed)
    loss.bytes += sum(len(s) for s in samples if isinstance(s, cls))
    return samples, failed


def mend(source: "Source", answer: _Answer, cls: type[_S]) -> _Answer:
    """An answer of ``source``, those of its samples that failed since the
    daemon went away read from the origin."""
    samples, failed = answer
    gone = [f for f in failed if samples[f[0]].errno in _GONE]
    kept = [f for f in failed if samples[f[0]].errno not in _GONE]
    if not gone:
        source.loss.ended()
        return answer
    source.loss.begins(source.spec.name, samples[gone[0][0]])
    numbers = array("q")
    for _, id, epoch, slot in gone:
        numbers.extend((id, epoch, slot))
    again, still = read(source, numbers, cls)
    for (position, *_), sample in zip(gone, again):
        samples[position] = sample
    kept += [(gone[at][0], id, epoch, slot) for at, id, epoch, slot in still]
    return samples, kept


def again(source: "Source", numbers: "array[int]", cls: type[_S]) -> _Answer:
    """``source.again``, from the origin while the daemon is lost."""
    if not source.loss.lasts(source):
        try:
            return mend(source, source.again(numbers, cls), cls)
        except OSError as error:
            if not is_gone(error):
                raise
            source.loss.begins(source.spec.name, error)
    return read(source, numbers, cls)


def fetch(
    dataset: "Dataset", indices: Sequence[SupportsIndex], cls: type[_S]
) -> _Answer:
    """What ``dataset._ask`` gives, from the origin while the daemon is
    lost."""
    source = dataset._open()
    if not source.loss.lasts(source):
        try:
            return mend(source, dataset._ask(indices), cls)
        except OSError as error:
            if not is_gone(error):
                raise
            source.loss.begins(source.spec.name, error)
    return read(source, _numbers(dataset, indices), cls)


def _numbers(
    dataset: "Dataset", indices: Sequence[SupportsIndex]
) -> "array[int]":
    """(id, epoch, slot) of indices, as the daemon would bind them."""
    n, ids, ordered = len(dataset), dataset._ids, dataset._sorted_ids()
    check = dataset.check()
    numbers = array("q")
    for given in indices:
        index = operator.index(given)
        if not is_slot(index):
            if not -n <= index < n:
                raise IndexError(f"there are {n} samples, no sample {index}")
            id = index % n
            numbers.extend((id if ids is None else ids[id], -1, -1))
            continue
        if index >> _CHECK_SHIFT & 255 not in (0, check):
            raise ValueError(
                f"slot {slot_of(index)[1]} is of another dataset, split or job"
            )
        epoch, slot = slot_of(index)
        sample = _sheaf.strict(n, dataset.seed, epoch, slot)
        numbers.extend(
            (sample if ordered is None else ordered[sample], epoch, slot)
        )
    return numbers
