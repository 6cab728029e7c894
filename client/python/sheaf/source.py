# SPDX-License-Identifier: Apache-2.0
"""Open datasets of this process, one for each version that is in use.

A *spec* says what opens it again. It is all that a pickle carries, so no
socket, thread or pin ever crosses to another process.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from array import array
from typing import Any, Callable, NamedTuple, TypeVar

from . import _sheaf, origin

_S = TypeVar("_S", bound=_sheaf.SampleBase)
# Samples, or an OSError in the place of each that failed, and (position, id,
# epoch, slot) of those.
Answer = tuple[list[Any], list[tuple[int, int, int, int]]]


class Spec(NamedTuple):
    """What opens a dataset: ``timeout`` in seconds bounds each call, ``uuid``
    names the version (None: the newest), ``pin_bytes`` is what may be held
    at once (0: the daemon's default), ``origin`` whether the origin is read
    while the daemon is lost."""

    name: str
    socket: str | None
    timeout: float
    uuid: bytes | None
    pin_bytes: int
    origin: bool = False


class Source(_sheaf.Source):
    """An open version. ``classes`` is None until somebody asks for labels."""

    __slots__ = ("spec", "classes", "loss", "__weakref__")
    spec: Spec
    classes: list[str] | None
    loss: origin.Loss

    def from_somewhere(
        self,
        ask: Callable[[], Answer],
        numbers: Callable[[], "array[int]"],
        cls: type[_S],
    ) -> Answer:
        """What ``ask()`` gives; from the origin what the daemon, being lost,
        does not. ``numbers()`` are (id, epoch, slot) of all that is asked
        for, -1 for None."""
        if not self.loss.lasts(self):
            try:
                return self._mend(ask(), cls)
            except OSError as error:
                if not origin.is_gone(error):
                    raise
                self.loss.begins(self.spec.name, error)
        return self._read(numbers(), cls)

    def _read(self, numbers: "array[int]", cls: type[_S]) -> Answer:
        samples, failed = self.from_origin(numbers, cls)
        self.loss.samples += len(samples) - len(failed)
        self.loss.bytes += sum(len(s) for s in samples if isinstance(s, cls))
        return samples, failed

    def _mend(self, answer: Answer, cls: type[_S]) -> Answer:
        """The answer, those of its samples that failed since the daemon went
        away read from the origin."""
        samples, failed = answer
        gone = [f for f in failed if samples[f[0]].errno in origin.GONE]
        kept = [f for f in failed if samples[f[0]].errno not in origin.GONE]
        if not gone:
            self.loss.ended()
            return answer
        self.loss.begins(self.spec.name, samples[gone[0][0]])
        numbers = array("q")
        for _, id, epoch, slot in gone:
            numbers.extend((id, epoch, slot))
        again, still = self._read(numbers, cls)
        for (position, *_), sample in zip(gone, again):
            samples[position] = sample
        kept += [(gone[at][0], id, epoch, slot) for at, id, epoch, slot in still]
        return samples, kept


_lock = threading.Lock()
_sources: "weakref.WeakValueDictionary[Spec, Source]" = (
    weakref.WeakValueDictionary()
)


def _after_fork() -> None:
    # Another thread may have held it, and does not exist here.
    global _lock
    _lock = threading.Lock()
    for source in list(_sources.values()):
        source.loss.renew()


os.register_at_fork(after_in_child=_after_fork)


def _open(spec: Spec) -> Source:
    # A version that was open somewhere has a daemon, which may just be
    # starting again; only the first connection of all fails at once.
    end = time.monotonic() + spec.timeout
    while True:
        try:
            source: Source = Source(
                spec.name,
                socket=spec.socket,
                timeout_ms=max(1, int(spec.timeout * 1000)),
                uuid=spec.uuid,
                pin_bytes=spec.pin_bytes,
            )
            break
        except ConnectionRefusedError:
            if spec.uuid is None or time.monotonic() > end:
                raise
        time.sleep(0.05)
    source.spec = spec._replace(uuid=source.info()["uuid"])
    source.loss = origin.Loss()
    source.classes = None
    return source


def source_of(spec: Spec) -> Source:
    """The open version, opened if need be. OSError as libsheaf reports it."""
    with _lock:
        source = _sources.get(spec) if spec.uuid else None
    if source is not None:
        return source
    # Without the lock: nobody waits for another's daemon. Of several that open
    # one version at once, all get the first one's.
    opened = _open(spec)
    with _lock:
        return _sources.setdefault(opened.spec, opened)


def samples_again(
    spec: Spec, numbers: "array[int]", cls: type[_sheaf.SampleBase]
) -> list[object]:
    """Samples that another process had: ``numbers`` are (id, epoch, slot)
    of each, -1 for None. Raises the first failure."""
    source = source_of(spec)
    if spec.origin:
        samples, failed = source.from_somewhere(
            lambda: source.again(numbers, cls), lambda: numbers, cls
        )
    else:
        samples, failed = source.again(numbers, cls)
    if failed:
        raise samples[failed[0][0]]
    return samples
