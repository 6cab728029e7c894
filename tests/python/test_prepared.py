# SPDX-License-Identifier: Apache-2.0
"""What travels between jobs: batches in memory files; prints of transforms.
No daemon."""

from __future__ import annotations

import argparse
import collections
import dataclasses
import enum
import errno
import functools
import logging
import os
import random
import re
import subprocess
import sys
import threading
import types
import warnings
import zlib
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from sheaf import _sheaf, prepared
from sheaf.crew import WHY_MAX, describe, revive
from sheaf.fingerprint import fingerprint

Pair = collections.namedtuple("Pair", "image name")


@dataclasses.dataclass
class Boxes:
    corners: torch.Tensor
    count: int


class Mask(torch.Tensor):
    pass


def mapped(batch: Any) -> _sheaf.Memory:
    fd = prepared.write(batch)
    try:
        return _sheaf.Memory(fd)
    finally:
        os.close(fd)


def there_and_back(batch: Any) -> Any:
    return prepared.read(mapped(batch))[0]


DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.uint16, torch.float16, torch.bfloat16, torch.float32, torch.float64,
    torch.complex64, torch.float8_e4m3fn,
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tensors(dtype: torch.dtype) -> None:
    base = (torch.rand(6, 4) * 3).to(dtype)
    if dtype.is_complex:
        base = torch.complex(torch.rand(6, 4), torch.rand(6, 4)).conj()
    for tensor in (
        base, base.t(), base[::2, 1:], base[0, 0], base[:0], base[:, :0],
        base[:1].expand(5, 4),
    ):  # fmt: skip
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            (got,) = there_and_back([tensor])
        assert got.dtype == dtype and got.shape == tensor.shape
        flat = tensor.resolve_conj().contiguous()
        assert got.contiguous().flatten().view(torch.uint8).tolist() == (
            flat.flatten().view(torch.uint8).tolist()
        )
        assert got.is_contiguous() and not got.requires_grad


def test_structures() -> None:
    shared = torch.arange(3)
    batch = {
        "pair": Pair(torch.ones(2, 2), "a"),
        "boxes": [Boxes(torch.zeros(4), 1), (shared, None, 1.5, b"x" * 3000)],
        "again": shared,
        5: numpy.arange(6).reshape(2, 3),
        "order": numpy.asfortranarray(numpy.ones((2, 3), "f4")),
        "steps": numpy.arange(8)[::2],
        "none": numpy.zeros((0, 3)),
        "record": numpy.zeros(2, [("a", "i4"), ("b", "f8")]),
        "objects": numpy.array(["x", None], object),
        "scalar": numpy.float32(2),
        "sparse": torch.eye(3).to_sparse(),
        "leaf": torch.nn.Parameter(torch.ones(2)),
        "mask": torch.ones(3).as_subclass(Mask),
    }
    got = there_and_back(batch)
    assert list(got) == list(batch)
    assert type(got["pair"]) is Pair and got["pair"].name == "a"
    assert got["boxes"][0].count == 1 and got["boxes"][1][1:] == (
        None, 1.5, b"x" * 3000,
    )  # fmt: skip
    assert got["again"] is got["boxes"][1][0]
    for name in (5, "order", "steps", "none", "record", "objects"):
        assert got[name].dtype == batch[name].dtype
        assert got[name].tolist() == batch[name].tolist()
        assert got[name].flags.writeable
    assert got["scalar"] == 2 and got["order"].flags.f_contiguous
    assert torch.equal(got["sparse"].to_dense(), torch.eye(3))
    assert got["leaf"].requires_grad and type(got["mask"]) is Mask
    got[5][0, 0] = 9
    got["again"] += 1
    assert batch[5][0, 0] == 0 and shared.tolist() == [0, 1, 2]


def test_what_does_not_travel() -> None:
    with pytest.raises(TypeError, match="meta"):
        prepared.write({"x": torch.ones(2, device="meta")})
    with pytest.raises(TypeError, match="detach"):
        prepared.write([torch.ones(2, requires_grad=True) * 2])
    with pytest.raises(Exception, match="lambda"):
        prepared.write([lambda: 0])
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(TypeError):
        prepared.write([torch.ones(2, device="meta")])
    assert len(os.listdir("/proc/self/fd")) == before


def file_of(data: bytes) -> _sheaf.Memory:
    fd = os.memfd_create("damaged")
    try:
        os.write(fd, data)
        return _sheaf.Memory(fd)
    finally:
        os.close(fd)


@pytest.mark.parametrize("wants", [0, 8])
def test_files_of_any_kernel(
    wants: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that does not know MFD_NOEXEC_SEAL, and one that wants it."""
    real = os.memfd_create

    def create(name: str, flags: int) -> int:
        if flags & 8 != wants:
            raise OSError(errno.EACCES if wants else errno.EINVAL, "refused")
        return real(name, flags)

    monkeypatch.setattr(os, "memfd_create", create)
    assert there_and_back([1, torch.ones(2)])[0] == 1


def test_damage() -> None:
    """Random damage to what is no tensor's is an error; nothing else ever
    happens than that, or a batch of the same form."""
    batch = [torch.arange(50), {"a": numpy.arange(9.0), "b": "text"}, "x" * 99]
    whole = bytes(mapped(batch))
    length = int.from_bytes(whole[16:24], "little")
    source = random.Random(5)
    for turn in range(600):
        data = bytearray(whole)
        if turn % 3 == 0:
            del data[source.randrange(len(data)) :]
        elif turn % 3 == 1:
            data += bytes(source.randrange(1, 200))
        else:
            for _ in range(source.randrange(1, 4)):
                at = source.choice([source.randrange(64 + length),
                                    source.randrange(32)])  # fmt: skip
                data[at] ^= 1 << source.randrange(8)
        if bytes(data[: 64 + length]) == whole[: 64 + length] and len(
            data
        ) == len(whole):
            continue
        if len(data) == len(whole) and data[32:64] != whole[32:64]:
            continue  # what fills the head up is nobody's
        with pytest.raises(ValueError, match="prepared batch"):
            prepared.read(file_of(bytes(data)))


@pytest.mark.parametrize(
    "table, times",
    [
        ([("int64", (50,), 1 << 40, False)], ()),
        ([("int64", (1 << 40, 1 << 40), 0, False)], ()),
        ([("int64", (-1,), 0, False)], ()),
        ([("int63", (1,), 0, False)], ()),
        ([(None, (1 << 20,), 0, False)], ()),
        ([("int64", (8,), 8, False), ("int64",)], ()),
        (7, ()),
        ([], ("now",)),
        ([], 7.0),
    ],
)
def test_tables_that_lie(table: Any, times: Any) -> None:
    import pickle

    skeleton = pickle.dumps((table, b"", times))
    total = 64 + len(skeleton) + 512
    head = prepared._HEAD.pack(
        prepared.MAGIC, prepared.FORMAT, zlib.crc32(skeleton), len(skeleton), total
    )
    data = (head.ljust(64, b"\0") + skeleton).ljust(total, b"\0")
    with pytest.raises(ValueError, match="damaged"):
        prepared.read(file_of(data))


def test_another_format() -> None:
    data = bytearray(mapped([1]))
    data[8] = 3
    with pytest.raises(ValueError, match="format 3"):
        prepared.read(file_of(bytes(data)))


def test_schema() -> None:
    """Not of sizes; of dtypes, dimensions and structure."""
    def of(*batch: Any) -> str:
        return prepared.schema(list(batch), True)

    assert of(torch.ones(3, 2), torch.ones(3)) == of(
        torch.ones(1, 9), torch.ones(1)
    )
    different = {
        of(torch.ones(3)), of(torch.ones(3, 1)), of(torch.ones(3).long()),
        of({"a": torch.ones(3)}), of({"b": torch.ones(3)}), of(numpy.ones(3)),
        of(["x"]), of(Pair(torch.ones(1), "x")), of(Boxes(torch.ones(1), 1)),
    }  # fmt: skip
    assert len(different) == 9
    long = {f"name{i}": torch.ones(1) for i in range(99)}
    assert len(of(long).encode()) <= 256 and of(long) != of({**long, "x": 1})
    # of another collate function a list may have a place for each sample
    assert prepared.schema([torch.ones(2)] * 3, False) == prepared.schema(
        [torch.ones(2, 2)], False
    )


# ---- errors ----


def failing(error: Exception) -> str:
    try:
        raise error
    except Exception as caught:
        return describe(caught)


def test_errors_travel() -> None:
    error = revive(failing(KeyError("a", 1)))
    assert type(error) is KeyError and error.args == ("a", 1)
    assert "in failing" in error.__notes__[0]

    class Local(Exception):
        pass

    error = revive(failing(Local("what")))
    assert type(error) is RuntimeError and "what" in str(error)
    text = failing(ValueError("é\0" * 40_000))
    assert len(text.encode()) <= WHY_MAX and "\0" not in text
    assert isinstance(revive(text), RuntimeError)
    assert str(revive("sheafd says so")) == "sheafd says so"


# ---- prints ----

SETTINGS = {"size": 224}
options = types.SimpleNamespace(size=3, rate=0.1)


class Crop:
    low = 3

    def __init__(self, size: int, p: float = 0.5) -> None:
        self.size, self.p = size, p

    def __call__(self, x: Any) -> Any:
        return helper(x)[: self.size] + options.size


def helper(x: Any) -> Any:
    return SETTINGS["size"], {"a", "b", "c"}, Crop, x


def adds(k: Any) -> Any:
    def inner(x: Any) -> Any:
        return x + k

    return inner


def rotate(x: Any, by: int = 1, about: int = 2) -> Any:
    return rotate(x, by - 1) if by else adds(about)


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


def things() -> list[Any]:
    torch.manual_seed(1)
    module = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout(0.1))
    return [
        Crop(224), Crop(256), Crop(224, 0.25), helper, adds(1), adds(2),
        adds(1.0), adds(True), rotate, functools.partial(rotate, by=1, about=3),
        Colour.RED, Colour.BLUE, re.compile("a+"), Path("/x"), numpy.float32(1),
        numpy.arange(3), numpy.arange(3.0), torch.arange(3), torch.relu,
        random.random, numpy.random.rand, str.lower, "x".join, len, module,
        {"a": helper, "b": Crop(1)}, {"b": Crop(1), "a": helper},
        frozenset([1, 2, "s", "t"]), Crop(3).__call__, [1, 2], (1, 2), {1: 2},
        lambda x: x + 1, lambda x: x + 2, torch.float32, None,
        torch.nn.functional.relu, Boxes(torch.ones(1), 2), float("nan"), -0.0,
    ]  # fmt: skip


def test_prints_tell_apart() -> None:
    prints = [fingerprint(thing) for thing in things()]
    assert len(set(prints)) == len(prints)


def test_prints_are_the_same_everywhere() -> None:
    want = [fingerprint(thing) for thing in things()]
    code = (
        "import sys; sys.path[:0] = sys.argv[1:]; import test_prepared as t;"
        "print(*map(t.fingerprint, t.things()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *sys.path],
        capture_output=True,
        text=True,
        env=dict(os.environ, PYTHONHASHSEED="77"),
        check=True,
    )
    assert done.stdout.split() == want


def test_spellings_have_one_print() -> None:
    for one, other in (
        (Crop(224, 0.50), Crop(p=0.5, size=224)),
        (functools.partial(rotate, by=1, about=2),
         functools.partial(rotate, about=2, by=1)),
        ({"size": 1, "p": 0.5}, {"p": 0.50, "size": 1}),
        ({3, 1, 2}, {1, 2, 3}),
    ):  # fmt: skip
        assert fingerprint(one) == fingerprint(other)


def test_what_functions_use_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Globals, what is taken out of them, and nothing else."""
    before = fingerprint(Crop(1))
    monkeypatch.setattr(options, "rate", 0.2)
    assert fingerprint(Crop(1)) == before
    for owner, name, value in (
        (options, "size", 4), (Crop, "low", 4),
        (sys.modules[__name__], "SETTINGS", {"size": 256}),
        (sys.modules[__name__], "helper", adds),
    ):  # fmt: skip
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, value)
            assert fingerprint(Crop(1)) != before
    assert fingerprint(Crop(1)) == before


def test_globals_of_any_kind_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a transform does with them cannot be known: their values count,
    unless they are a process's own surroundings."""
    def with_global(value: Any) -> str:
        with monkeypatch.context() as patch:
            patch.setattr(sys.modules[__name__], "SETTINGS", value)
            return fingerprint(Crop(1))

    for kind, one, other in (
        (re.compile, "a", "b"), (Path, "a", "b"), (Fraction, 1, 2),
        (lambda n: argparse.Namespace(size=n), 1, 2),
        (lambda n: Boxes(torch.ones(n), n), 1, 2),
        (lambda n: Pair(n, {"x": Path(str(n))}), 1, 2),
    ):  # fmt: skip
        assert with_global(kind(one)) == with_global(kind(one))
        assert with_global(kind(one)) != with_global(kind(other))
    for one, other in (
        (logging.getLogger("a"), logging.getLogger("b")),
        (threading.Lock(), threading.Lock()),
    ):
        assert with_global(one) == with_global(other)
    before = with_global(os.environ)
    monkeypatch.setenv("SHEAF_TEST_PRINT", "1")
    assert with_global(os.environ) == before
    assert with_global(torch.default_generator)
    generator = numpy.random.default_rng(0)
    for own in generator, torch.Generator(), [random.Random(1)]:
        with pytest.raises(ValueError, match="sheaf.rng"):
            with_global(own)


def test_what_has_no_print() -> None:
    nested: list[Any] = []
    for _ in range(200):
        nested = [nested]
    circle: list[Any] = []
    circle.append(circle)
    assert fingerprint(circle)
    for thing, why in (
        (threading.Lock(), "lock"), (random.Random(1), "sheaf.rng"),
        (numpy.random.default_rng(0), "sheaf.rng"),
        (adds(torch.Generator()), "sheaf.rng"), (nested, "nested"),
        (functools.partial(helper, open(os.devnull)), "TextIOWrapper"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=why) as caught:
            fingerprint(thing)
        assert "transform_id" in str(caught.value)
