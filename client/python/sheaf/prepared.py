# SPDX-License-Identifier: Apache-2.0
"""Batches in memory files, as CoordinatedLoader passes them around.

    0    head: magic, format, CRC-32 and length of the skeleton, length of all
    64   skeleton: a pickle of (table, pickle of the batch without its arrays,
         times)
    ...  arrays, each at a multiple of 64

Tensors and NumPy arrays stand in the file as they stand in memory; the table
has their dtypes, shapes and offsets; times are what whoever prepared it noted
(timing.py). The file is written once and sealed. It
is read in place through a private mapping: tensors may be written to, which
nobody else sees, and the mapping lives as long as any of them.

Whoever reads trusts whoever wrote: pickles are code. Both are processes of
one user. The CRC is against accidents.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import hashlib
import io
import os
import pickle
import struct
import zlib
from dataclasses import fields, is_dataclass
from typing import Any

import torch

from . import _sheaf
from .batches import Batch

MAGIC = b"SHEAFPB1"
FORMAT = 2
ALIGN = 64
_HEAD = struct.Struct("<8sIIQQ")
_SEALS = (
    fcntl.F_SEAL_SHRINK
    | fcntl.F_SEAL_GROW
    | fcntl.F_SEAL_WRITE
    | fcntl.F_SEAL_SEAL
)
_NOEXEC_SEAL = 8  # MFD_NOEXEC_SEAL
_IOV_MAX = 512
_SCHEMA_MAX = 256
_DTYPES: dict[str, torch.dtype] = {
    str(value)[6:]: value
    for value in vars(torch).values()
    if isinstance(value, torch.dtype)
}


class _Arrays:
    """What stands beside the skeleton. Offsets count from the first one."""

    def __init__(self) -> None:
        self.table: list[tuple[Any, ...]] = []
        self.pieces: list[Any] = []  # buffers, with what fills up between
        self.bytes = 0
        self.kept: list[Any] = []  # owners of the buffers

    def add(self, buffer: Any, size: int) -> int:
        """Its offset."""
        gap = -self.bytes % ALIGN
        if gap:
            self.pieces.append(bytes(gap))
        offset = self.bytes + gap
        self.pieces.append(buffer)
        self.bytes = offset + size
        return offset


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether its values alone are the tensor; others (sparse, quantised,
    subclasses) are pickled as torch does, from parts that may be plain."""
    return (
        type(tensor) is torch.Tensor
        and tensor.layout is torch.strided
        and not tensor.is_quantized
        and not tensor.is_nested
    )


class _Pickler(pickle.Pickler):
    def __init__(self, out: io.BytesIO, arrays: _Arrays) -> None:
        super().__init__(out, 5, buffer_callback=self._buffer)
        self._arrays = arrays
        self._known: dict[int, int] = {}

    def persistent_id(self, obj: Any) -> int | None:
        if not isinstance(obj, torch.Tensor):
            return None
        if obj.device.type != "cpu":
            raise TypeError(
                f"a tensor of the batch is on {obj.device}: batches are "
                "prepared in memory of the CPU, members bring them to devices"
            )
        if not _is_plain(obj):
            return None
        if id(obj) not in self._known:
            self._known[id(obj)] = self._tensor(obj)
        return self._known[id(obj)]

    def _tensor(self, tensor: torch.Tensor) -> int:
        if tensor.requires_grad and not tensor.is_leaf:
            raise TypeError(
                "a tensor of the batch is a result that requires grad: "
                "detach() it"
            )
        flat = tensor.detach().resolve_conj().resolve_neg().contiguous()
        size = flat.numel() * flat.element_size()
        buffer = (ctypes.c_char * size).from_address(flat.data_ptr())
        arrays = self._arrays
        arrays.kept += tensor, flat
        arrays.table.append(
            (
                str(tensor.dtype)[6:],
                tuple(tensor.shape),
                arrays.add(buffer, size) if size else 0,
                tensor.requires_grad,
            )
        )
        return len(arrays.table) - 1

    def _buffer(self, buffer: pickle.PickleBuffer) -> bool:
        # NumPy's arrays, and whatever else offers its memory; all but
        # tensors come back in this order.
        raw = buffer.raw()
        size = raw.nbytes
        self._arrays.kept.append(raw)
        self._arrays.table.append(
            (None, (size,), self._arrays.add(raw, size) if size else 0, False)
        )
        return False


def write(batch: Any, times: tuple[float, ...] = ()) -> int:
    """A sealed memory file with the batch; its descriptor is the caller's.
    TypeError: a tensor that is not in memory of the CPU, or requires grad;
    what pickle raises; OSError."""
    arrays, out = _Arrays(), io.BytesIO()
    _Pickler(out, arrays).dump(batch)
    skeleton = pickle.dumps((arrays.table, out.getvalue(), times), 5)
    first = _first(len(skeleton))
    head = _HEAD.pack(
        MAGIC,
        FORMAT,
        zlib.crc32(skeleton),
        len(skeleton),
        first + arrays.bytes,
    )
    pieces: list[Any] = [
        head + bytes(ALIGN - _HEAD.size),
        skeleton,
        bytes(first - ALIGN - len(skeleton)),
        *arrays.pieces,
    ]
    fd = _memory_file()
    try:
        _write_all(fd, pieces)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _memory_file() -> int:
    """One that nobody can execute, where the kernel knows of such (6.3): with
    the sysctl vm.memfd_noexec=2 it makes no others."""
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        return os.memfd_create("sheaf-batch", flags | _NOEXEC_SEAL)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    return os.memfd_create("sheaf-batch", flags)


def _first(skeleton_bytes: int) -> int:
    """Where arrays begin."""
    return -(-(ALIGN + skeleton_bytes) // ALIGN) * ALIGN


def _write_all(fd: int, pieces: list[Any]) -> None:
    views = [memoryview(piece).cast("B") for piece in pieces if len(piece)]
    at = 0
    while at < len(views):
        done = os.writev(fd, views[at : at + _IOV_MAX])
        while at < len(views) and done >= len(views[at]):
            done -= len(views[at])
            at += 1
        if done:
            views[at] = views[at][done:]


# ---- reading ----


class _Unpickler(pickle.Unpickler):
    def __init__(
        self, data: bytes, tensors: dict[int, torch.Tensor], buffers: list[Any]
    ) -> None:
        super().__init__(io.BytesIO(data), buffers=buffers)
        self._tensors = tensors

    def persistent_load(self, pid: Any) -> torch.Tensor:
        return self._tensors[pid]


def _damaged(what: str) -> ValueError:
    return ValueError(f"a prepared batch is damaged: {what}")


def read(memory: _sheaf.Memory) -> tuple[Any, tuple[float, ...]]:
    """(batch, times) of a file that is mapped. ValueError: it is damaged;
    otherwise what unpickling raises: a class that is not here, or an OSError
    of a Sample whose bytes cannot be had."""
    view = memoryview(memory)
    if len(view) < ALIGN:
        raise _damaged(f"{len(view)} bytes")
    magic, number, crc, length, total = _HEAD.unpack_from(view)
    if magic != MAGIC:
        raise _damaged("it is none")
    if number != FORMAT:
        raise ValueError(
            f"a prepared batch has format {number}, this release reads "
            f"{FORMAT}: members of a group have one release"
        )
    if total != len(view) or length > total - ALIGN:
        raise _damaged(f"{len(view)} of {total} bytes")
    skeleton = view[ALIGN : ALIGN + length]
    if zlib.crc32(skeleton) != crc:
        raise _damaged("its skeleton differs from the CRC")
    table, pickled, times = _skeleton(skeleton)
    first, room = _first(length), total - _first(length)
    tensors, buffers = {}, []
    for number, (name, shape, offset, grad) in enumerate(table):
        if name is None:
            (size,) = shape
            _check(offset, size, room)
            buffers.append(view[first + offset : first + offset + size])
        else:
            tensor = _tensor(memory, name, shape, offset, first, room)
            tensors[number] = tensor.requires_grad_(grad) if grad else tensor
    return _Unpickler(pickled, tensors, buffers).load(), times


def _skeleton(
    data: memoryview,
) -> tuple[list[Any], bytes, tuple[float, ...]]:
    try:
        table, pickled, times = pickle.loads(data)
        if not all(type(t) is float for t in times):
            raise ValueError
        for name, shape, offset, grad in table:
            sound = (
                (name is None and len(shape) == 1 or name in _DTYPES)
                and all(type(n) is int and n >= 0 for n in (*shape, offset))
                and type(grad) is bool
            )
            if not sound:
                raise ValueError
    except Exception as error:
        raise _damaged("its skeleton is none") from error
    return table, pickled, times


def _check(offset: int, size: int, room: int) -> None:
    if offset + size > room:
        raise _damaged("an array goes beyond the end")


def _tensor(
    memory: _sheaf.Memory,
    name: str,
    shape: tuple[int, ...],
    offset: int,
    first: int,
    room: int,
) -> torch.Tensor:
    dtype, count = _DTYPES[name], 1
    for n in shape:
        count *= n
    if not count:
        return torch.empty(shape, dtype=dtype)
    _check(offset, count * dtype.itemsize, room)
    flat = torch.frombuffer(
        memory, dtype=dtype, count=count, offset=first + offset
    )
    return flat.view(shape)


# ---- schema ----


def schema(batch: Any, by_default: bool) -> str:
    """Structure, dtypes and dimensions of a batch, at most 256 bytes: the same
    for all batches of one preparation, whatever their sizes.

    ``by_default``: it is what ``sheaf.collate`` makes, whose lists have a
    place for each part of an item. Lists and tuples of other functions may
    have one for each sample, with parts that differ from batch to batch: of
    these the type counts alone."""
    # Keys may be any text, names that are not UTF-8 among them.
    data = _schema(batch, by_default).encode(errors="backslashreplace")
    data = data.replace(b"\0", b"\\0")
    if len(data) <= _SCHEMA_MAX:
        return data.decode()
    digest = hashlib.sha256(data).hexdigest()[:32]
    return f"{data[:180].decode(errors='ignore')}... {digest}"


def _schema(item: Any, whole: bool) -> str:
    if isinstance(item, torch.Tensor):
        return f"{str(item.dtype)[6:]}:{item.dim()}"
    if isinstance(item, Batch):
        return "samples"
    name = type(item).__qualname__
    if hasattr(item, "dtype") and hasattr(item, "ndim"):
        return f"{name} {item.dtype}:{item.ndim}"
    if isinstance(item, dict):
        inner = ", ".join(
            sorted(f"{key}: {_schema(v, whole)}" for key, v in item.items())
        )
        return f"{{{inner}}}"
    if is_dataclass(item):
        names = [field.name for field in fields(item)]
    elif isinstance(item, tuple) and hasattr(item, "_fields"):
        names = list(item._fields)
    elif isinstance(item, (list, tuple)):
        return _sequence(item, whole)
    else:
        return name
    inner = ", ".join(f"{n}: {_schema(getattr(item, n), whole)}" for n in names)
    return f"{name}({inner})"


def _sequence(item: Any, whole: bool) -> str:
    name = type(item).__qualname__
    # What cannot be stacked (text) has a place for each sample.
    if not whole or all(isinstance(part, (str, bytes)) for part in item):
        return name
    return f"[{', '.join(_schema(part, whole) for part in item)}]"
