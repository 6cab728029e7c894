# SPDX-License-Identifier: Apache-2.0
"""One file of a dataset, in place."""

from __future__ import annotations

import io
from array import array
from typing import TYPE_CHECKING, Any, Callable, Iterable

from . import _sheaf
from .labels import label_of
from .source import Spec, samples_again

if TYPE_CHECKING:
    import numpy
    import torch


class Sample(_sheaf.SampleBase):
    """The bytes of one file, read-only and pinned in shared memory.

    It is a buffer: ``memoryview(s)``, ``bytes(s)``, and whatever takes one
    (``simplejpeg``, ``cv2`` by ``numpy()``, ``hashlib``) reads it without a
    copy. The bytes stay as they are while the Sample or anything made of it
    without a copy lives. What one process may pin at once is bounded; beyond
    that a Sample is a private copy (``is_copy``). A file over 4 MiB is put
    together as a private copy when its buffer is first taken.

    Attributes: ``id`` (ordinal of the file), ``epoch`` and ``slot`` (of what
    was bound, else None), ``key`` (path below the root), ``is_copy``.

    Through a DataLoader worker a Sample travels as a reference: the receiver
    pins the same shared memory again, and nothing is copied.
    """

    __slots__ = ("__weakref__",)

    @property
    def label(self) -> int:
        """Index of the file's top-level folder in ``Dataset.classes``; -1 for
        a file in the root."""
        return label_of(self.source, self.id)

    def tensor(self, copy: bool = True) -> "torch.Tensor":
        """Bytes as a tensor, uint8 of shape (len,).

        With ``copy=False`` it is the shared memory itself, which stays pinned
        for the tensor's life. That memory cannot be written to, and torch
        does not know: an in-place write to such a tensor ends the process
        (SIGSEGV).
        """
        import torch

        if not copy:
            return torch.utils.dlpack.from_dlpack(self)
        if not len(self):
            return torch.empty(0, dtype=torch.uint8)
        return torch.frombuffer(bytearray(self), dtype=torch.uint8)

    def numpy(self) -> "numpy.ndarray[Any, Any]":
        """Bytes in place as a read-only array, uint8 of shape (len,)."""
        import numpy

        array: numpy.ndarray[Any, Any] = numpy.frombuffer(
            memoryview(self), dtype=numpy.uint8
        )
        return array

    def file(self) -> io.BytesIO:
        """A file object over a copy of the bytes, as PIL wants it."""
        return io.BytesIO(self)

    def __reduce__(self) -> tuple[Callable[..., "Sample"], tuple[Any, ...]]:
        return _again, (self.source.spec, numbers_of([self]))

    def __repr__(self) -> str:
        return f"<sheaf.Sample {self.id} {self.key!r}>"


def numbers_of(samples: "Iterable[Sample]") -> "array[int]":
    """(id, epoch, slot) of each in one array, -1 for None."""
    numbers = array("q")
    for sample in samples:
        slot = -1 if sample.slot is None else sample.slot
        epoch = -1 if sample.epoch is None else sample.epoch
        numbers.extend((sample.id, epoch, slot))
    return numbers


def _again(spec: Spec, numbers: "array[int]") -> Sample:
    (sample,) = samples_again(spec, numbers, Sample)
    assert isinstance(sample, Sample)
    return sample
