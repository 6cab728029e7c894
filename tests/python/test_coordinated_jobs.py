# SPDX-License-Identifier: Apache-2.0
"""Jobs that prepare the same data at once, in the ways in which others spoil
it: the builder is killed, the code or the source is another one. Results are
those of a job that is alone, whole, and never mixed."""

from __future__ import annotations

import errno
import os
import signal
import sys
import time
import types
import warnings
from pathlib import Path
from typing import Any

import pytest
import sheaf
import torch
from conftest import Node, content
from members import Crowd, Prepare, crowd, digest, every_crowd, gone, held
from sheaf import _sheaf

__all__ = ["crowd", "every_crowd"]

N, SIZE = 120, 8
STRICT = {"order": "strict", "seed": 3}


@pytest.fixture(scope="module")
def few(node: Node) -> str:
    node.add("few", {f"c{i % 3}/f{i:03}": content(i) for i in range(N)})
    return "few"


@pytest.fixture
def group(request: pytest.FixtureRequest) -> str:
    return str(request.node.name)


def alone(data: str, name: str, transform: Any) -> list[Any]:
    """(ids, digest) of each batch, by a job of its own."""
    ds = sheaf.Dataset(data, transform=transform, **STRICT)
    with sheaf.CoordinatedLoader(ds, SIZE, group=name, prep_workers=0) as one:
        return [(b["id"].tolist(), digest(b)) for b in one]


@pytest.mark.parametrize("percent", [10, 50, 99])
def test_the_builder_is_killed(
    few: str, group: str, crowd: Crowd, tmp_path: Path, percent: int
) -> None:
    """It prepares all for three jobs, with two workers, and is killed in the
    midst of a batch: another takes over. Seen on a busy machine: 0.2 s until
    the others had the rest of the epoch."""
    builder, *others = crowd.get(3)
    held_slot = N * percent // 100
    transform = Prepare(log=str(tmp_path), hold=held_slot)
    options = {"ds": {"transform": transform, **STRICT}, "members": 3}
    builder.call("make", few, SIZE, group=group, prep_workers=2, **options)
    for other in others:
        other.call("make", few, SIZE, group=group, prep_workers=0, **options)
    for member in (builder, *others):
        member.tell("take")
    pid = held(tmp_path)
    workers = set(builder_workers(builder.process.pid))
    # A member without workers prepares what no worker is free for.
    holder = next((m for m in others if m.process.pid == pid), builder)
    rest = [m for m in (builder, *others) if m is not holder]
    begun = time.monotonic()
    holder.kill()
    seen = [member.result() for member in rest]
    took = time.monotonic() - begun
    print(f"taken over at {percent} %: {took:.2f} s")
    assert took < 10
    assert seen[0] == seen[1] == alone(few, f"{group}-alone", Prepare())
    assert not any(m.call("warned") for m in rest)
    if holder is builder:
        gone(list(workers))


def builder_workers(pid: int | None) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in children.split()]


# ---- other code ----

CODE = """
import torch

class Crop:
    def __init__(self, size):
        self.size = size

    def __call__(self, sample):
        return torch.tensor([sample.id, self.size{more}])
"""


def release(name: str, more: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A transform of the module ``name``, of the release whose code it has."""
    module = types.ModuleType(name)
    monkeypatch.setitem(sys.modules, name, module)
    exec(compile(CODE.format(more=more), f"{name}.py", "exec"), vars(module))
    return module.Crop(224)  # type: ignore[attr-defined]


def numbers(one: Any) -> list[list[int]]:
    return [row for batch in one for row in batch.tolist()]


def test_other_code_is_another_group(
    few: str, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same class and arguments; a line in it, or Sheaf, is another."""

    def loader(transform: Any, name: str = group) -> Any:
        ds = sheaf.Dataset(few, transform=transform, **STRICT)
        return sheaf.CoordinatedLoader(
            ds, SIZE, group=name, prep_workers=0, join="now"
        )

    old = release("crops", "", monkeypatch)
    with loader(old) as first:
        batches = iter(first)
        begun = [next(batches)]
        new = release("crops", " + 1", monkeypatch)
        assert type(new).__qualname__ == type(old).__qualname__
        with pytest.raises(sheaf.GroupMismatch, match="transform"):
            next(iter(loader(new)))
        with loader(new, f"{group}-new") as other:
            assert {size for _, size in numbers(other)} == {225}
        with monkeypatch.context() as patch:
            patch.setattr(_sheaf, "VERSION", _sheaf.VERSION + ".1")
            with pytest.raises(sheaf.GroupMismatch, match="release"):
                next(iter(loader(old)))
        rest = numbers(begun + list(batches))
    assert [size for _, size in rest] == [224] * N
    assert sorted(id for id, _ in rest) == list(range(N))


# ---- another source ----


def whole(sample: sheaf.Sample) -> torch.Tensor:
    return torch.tensor([sample.id, *bytes(sample)[:8].ljust(8)])


@pytest.mark.parametrize("cached", [True, False])
def test_the_source_changes_between_jobs(
    node: Node, group: str, cached: bool
) -> None:
    """Who came before goes on with the bytes that it began with, or is told
    that there are none; who comes later is not of that group, and has the new
    bytes alone."""

    def loader(name: str = group) -> Any:
        ds = sheaf.Dataset(data, transform=whole, **STRICT)
        return sheaf.CoordinatedLoader(
            ds, SIZE, group=name, prep_workers=1, lease=1.0, join="now"
        )

    data = f"changing-{cached}"
    node.add(data, {f"f{i:03}": b"old%05d" % i for i in range(N)})
    if cached:
        node.sheaf("warmup", data)
    root = node.origin / data
    with loader() as first:
        batches = iter(first)
        seen = numbers([next(batches)])
        for i in range(N):
            (root / f"f{i:03}").write_bytes(b"new%05d, longer" % i)
        node.sheaf("update", data)
        with pytest.raises(sheaf.GroupMismatch, match="dataset"):
            next(iter(loader()))
        # a worker that is made now has to know which version it is for
        (worker,) = first._part.crew._processes
        os.kill(worker.pid, signal.SIGKILL)
        with warnings.catch_warnings(record=True):
            failed = taken(batches, seen)
        with loader(f"{group}-new") as other:
            new = numbers(other)
    assert failed == 0 if cached else failed > 0
    assert len(seen) + SIZE * failed == N
    for word, rows in ((b"old", seen), (b"new", new)):
        assert len({id for id, *_ in rows}) == len(rows)
        assert {bytes(text) for _, *text in rows} <= {
            word + b"%05d" % i for i in range(N)
        }
    assert len(new) == N


def taken(batches: Any, seen: list[list[int]]) -> int:
    """Takes all; how many batches could not be had, for want of their
    bytes."""
    failed = 0
    while True:
        try:
            seen += next(batches).tolist()
        except StopIteration:
            return failed
        except OSError as error:
            assert error.errno == errno.ESTALE and error.filename
            failed += 1
