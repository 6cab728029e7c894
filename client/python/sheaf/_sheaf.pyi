# SPDX-License-Identifier: Apache-2.0
"""The extension: libsheaf's objects. Not for direct use."""

from array import array
from typing import Any, SupportsIndex, Sequence, TypeVar

VERSION: str
_S = TypeVar("_S", bound="SampleBase")

class Source:
    """An open version. Calls that wait let other threads run and raise what a
    signal's handler raises within about 100 ms. OSError as libsheaf says."""

    def __new__(
        cls,
        name: str,
        socket: str | None = ...,
        timeout_ms: int = ...,
        uuid: bytes | None = ...,
        pin_bytes: int = ...,
    ) -> Any:
        """Connects and opens. ConnectionRefusedError: no daemon."""
    def __len__(self) -> int: ...
    def info(self) -> dict[str, Any]: ...
    def path(self, ordinal: int, /) -> str: ...
    def size(self, ordinal: int, /) -> int: ...
    def lookup(self, path: str, /) -> int: ...
    def entries(self, path: str, /) -> list[tuple[str, str, int, float]]:
        """(name, kind, bytes, mtime) of what a folder holds, kind being file,
        directory or link; links are not followed. NotADirectoryError."""
    def read(self, ordinal: int, offset: int, length: int, /) -> bytes:
        """A range of a file, cut at its end."""
    def set_labels(self, runs: list[tuple[int, int]], /) -> None: ...
    def label(self, ordinal: int, /) -> int: ...
    def prefetch(self, ordinals: Sequence[int], /) -> bool: ...
    def stats(self) -> dict[str, float]: ...
    def batch(
        self,
        job: Job | None,
        indices: Sequence[SupportsIndex],
        cls: type[_S],
        ids: array[int] | None,
        /,
    ) -> tuple[list[Any], list[tuple[int, int, int, int]]] | None:
        """Samples of slots and literals, of class ``cls``; an OSError in the
        place of each that failed, and (position, ordinal, epoch, slot) of
        those. None: there are slots, and no job. ``ids``: uint64, what
        literals stand for."""
    def again(
        self, numbers: array[int], cls: type[_S], /
    ) -> tuple[list[Any], list[tuple[int, int, int, int]]]:
        """Samples by (ordinal, epoch, slot), int64 each."""
    def is_served(self) -> bool:
        """Whether somebody listens at the daemon's socket; at once."""
    def from_origin(
        self, numbers: array[int], cls: type[_S], /
    ) -> tuple[list[Any], list[tuple[int, int, int, int]]]:
        """As ``again``, from the origin's directory and without the daemon:
        private copies, of files that are as they were listed."""

def strict(samples: int, seed: int, epoch: int, slot: int, /) -> int:
    """Sample of a slot of order strict, as the daemon binds it. IndexError:
    no such slot."""

class Job:
    """A job that was joined; len() is the slots of an epoch."""

    def __new__(
        cls,
        source: Source,
        name: str,
        order: int,
        seed: int = ...,
        window: int = ...,
        ahead: int = ...,
        check: int = ...,
        subset: bytes | None = ...,
        replay: bool = ...,
        pace: bool = ...,
    ) -> Job: ...
    def __len__(self) -> int: ...
    def save(
        self, epoch: int, yielded: int, /
    ) -> tuple[tuple[int, int, int, int, int, int], bytes]:
        """((epoch, yielded, samples, run, run, check), bitmap)."""
    def restore(
        self, state: tuple[int, int, int, int, int, int], bitmap: bytes | None, /
    ) -> None: ...
    def warning(self) -> str | None: ...

class Group:
    """A part in a group that prepares batches once (``sheaf_group_*``): of a
    member, which takes them, or of one of its workers. One thread at a time.
    OSError as libsheaf says; ValueError: it was left."""

    def __new__(
        cls,
        source: Source,
        name: str,
        traits: list[tuple[str, str]],
        member: bytes,
        worker: bool,
        batches: int,
        ahead: int,
        lease_ms: int,
        patience_ms: int,
        rank: int,
        world: int,
        members: int,
    ) -> Group:
        """Joins. FileExistsError: another trait, which it names."""
    @property
    def floor(self) -> int | None:
        """The lowest batch that others wanted when this member joined."""
    def begin(self, batch: int, /) -> None:
        """Member: it takes this one next, or a later one."""
    def take(
        self, batch: int, wait_ms: int, may_prepare: bool, /
    ) -> tuple[int, int, str | None]:
        """Member: (state, descriptor or -1, text of a failure). A batch, or
        its failure, is given again when it is asked for again, until
        ``done()`` or another one; so a signal's handler that raises loses
        nothing. The descriptor stays this object's, as long."""
    def done(self) -> None:
        """Member: it has what it took."""
    def lease(self, wait_ms: int, /) -> int | None:
        """Worker: a batch to prepare; None: none within that time.
        FileNotFoundError: its member is gone."""
    def offer(self, batch: int, fd: int, schema: str, /) -> bool:
        """A leased batch; ``fd`` stays the caller's. False: another one was
        first. FileExistsError: another schema."""
    def fail(self, batch: int, why: str, /) -> bool:
        """A leased batch cannot be prepared."""
    def stats(self, wait_ms: int, /) -> dict[str, int]: ...
    def leave(self) -> None: ...

class Memory:
    """A memory file in a private mapping: a buffer that may be written to."""

    def __init__(self, fd: int) -> None:
        """The whole file; ``fd`` stays the caller's. OSError."""
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

class SampleBase:
    """A file's bytes: a read-only buffer, pinned while it lives."""

    @property
    def id(self) -> int: ...
    @property
    def epoch(self) -> int | None: ...
    @property
    def slot(self) -> int | None: ...
    @property
    def key(self) -> str: ...
    @property
    def is_copy(self) -> bool: ...
    @property
    def source(self) -> Any: ...
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def release(self) -> None:
        """Gives the pin back; without effect once a buffer was taken."""
    def __dlpack__(
        self,
        *,
        stream: Any = ...,
        max_version: tuple[int, int] | None = ...,
        dl_device: Any = ...,
        copy: bool | None = ...,
    ) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
