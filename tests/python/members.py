# SPDX-License-Identifier: Apache-2.0
"""Processes that are members of a group, steered by a test.

Each is told what to do over a pipe (``Member.call``), and ends with the test's
process, of which it is a fork: torch is there already.
"""

from __future__ import annotations

import contextlib
import hashlib
import multiprocessing
import os
import random
import signal
import threading
import time
import traceback
import warnings
from pathlib import Path
from typing import Any, Iterator

import numpy
import pytest
import sheaf
import torch
import torch.distributed as dist
from sheaf import crew

SECONDS = 60.0  # in which anything happens


class Prepare:
    """A transform: numbers of all generators. With ``log`` it writes a line
    for each sample; with ``hold`` the first that prepares that slot of epoch 0
    writes its pid into the directory ``log`` and stays there."""

    def __init__(
        self, log: str = "", hold: int = -1, crop: float = 0.5, nap: float = 0
    ) -> None:
        self.log, self.hold, self.crop, self.nap = log, hold, crop, nap

    def __call__(self, sample: sheaf.Sample) -> dict[str, torch.Tensor]:
        if self.log:
            self._note(sample)
        time.sleep(self.nap)
        numbers = [
            random.random(),
            float(torch.rand(())),
            numpy.random.rand(),
            sheaf.rng().random(),
            self.crop,
        ]
        return {
            "id": torch.tensor(sample.id),
            "numbers": torch.tensor(numbers, dtype=torch.float64),
            "bytes": sample.tensor()[:2],
        }

    def _note(self, sample: sheaf.Sample) -> None:
        line = f"{sample.epoch} {sample.slot} {sample.id}\n"
        with open(f"{self.log}/lines", "a") as file:
            file.write(line)
        if (sample.epoch, sample.slot) != (0, self.hold):
            return
        try:
            fd = os.open(f"{self.log}/held", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        except FileExistsError:
            return
        os.write(fd, b"%d\n" % os.getpid())
        os.close(fd)
        time.sleep(3600)


def lines(log: Path) -> list[tuple[int, ...]]:
    """(epoch, slot, id) of what was prepared."""
    text = (log / "lines").read_text()
    return [tuple(map(int, line.split())) for line in text.splitlines()]


def held(log: Path) -> int:
    """Pid of who prepares the slot that is held."""
    end = time.monotonic() + SECONDS
    while True:
        with contextlib.suppress(FileNotFoundError, ValueError):
            return int((log / "held").read_text())
        assert time.monotonic() < end
        time.sleep(0.01)


def digest(batch: Any) -> str:
    """Of all bytes of a batch of Prepare's."""
    total = hashlib.sha256()
    for name in sorted(batch):
        total.update(batch[name].numpy().tobytes())
    return total.hexdigest()


class Loop:
    """What a member process does: a loader and the pass over it."""

    def __init__(self) -> None:
        self.loader: Any = None
        self.batches: Any = None
        self.caught: list[str] = []

    def make(
        self, data: str, batch_size: int, ds: Any = (), **options: Any
    ) -> None:
        self.close()
        self.caught = []
        self.loader = sheaf.CoordinatedLoader(
            sheaf.Dataset(data, **dict(ds)), batch_size, **options
        )
        self.batches = None

    def close(self) -> None:
        if self.loader is not None:
            self.loader.close()
        self.loader = self.batches = None

    def rank(self, rank: int, world: int, where: str) -> None:
        """Becomes a rank of torch's; world 0: none any more."""
        if not world:
            dist.destroy_process_group()
            return
        dist.init_process_group(
            "gloo", init_method=f"file://{where}", rank=rank, world_size=world
        )

    def take(self, most: int = 1 << 30) -> list[tuple[list[int], str]]:
        """(ids, digest) of the next batches of this pass, or of a new one."""
        taken: list[tuple[list[int], str]] = []
        if self.batches is None:
            self.batches = iter(self.loader)
        while len(taken) < most:
            batch = next(self.batches, None)
            if batch is None:
                self.batches = None
                break
            taken.append((batch["id"].tolist(), digest(batch)))
        return taken

    def interrupted(self) -> float:
        """Seconds that Ctrl-C takes to end a wait for a batch."""
        begun: list[float] = []

        def press() -> None:
            begun.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGINT)

        timer = threading.Timer(0.3, press)
        timer.start()
        try:
            self.take()
        except KeyboardInterrupt:
            return time.monotonic() - begun[0]
        raise AssertionError("it was not interrupted")

    def drop(self) -> None:
        """Leaves the pass."""
        self.batches = None

    def get(self, name: str) -> Any:
        value = getattr(self.loader, name)
        return value() if callable(value) else value

    def set(self, name: str, value: Any) -> Any:
        return getattr(self.loader, name)(value)

    def workers(self) -> list[int]:
        return [p.pid or 0 for p in multiprocessing.active_children()]

    def open_files(self) -> list[str]:
        """Descriptors, and maps of batches."""
        where = Path("/proc/self/fd")
        found = []
        for fd in where.iterdir():
            with contextlib.suppress(FileNotFoundError):
                found.append(os.readlink(fd))
        with open("/proc/self/maps") as maps:
            return found + [m for m in maps if "sheaf-batch" in m]

    def warned(self) -> list[str]:
        return self.caught


def main(pipe: Any, parent: int) -> None:
    crew._end_with(parent)
    torch.set_num_threads(1)
    loop = Loop()
    while True:
        number, name, arguments, options = pipe.recv()
        if name == "end":
            break
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                answer = True, getattr(loop, name)(*arguments, **options)
            except BaseException as error:
                error.add_note(traceback.format_exc())
                answer = False, error
        loop.caught += [
            str(w.message) for w in caught if w.category is RuntimeWarning
        ]
        pipe.send((number, *answer))
    loop.close()


class Member:
    """A process with a Loop."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("fork")
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=main, args=(other, os.getpid()))
        self.process.start()
        other.close()
        self.number = 0

    def tell(self, name: str, *arguments: Any, **options: Any) -> None:
        self.number += 1
        self.pipe.send((self.number, name, arguments, options))

    def result(self) -> Any:
        """Of what it was told; raises what that raised."""
        number = 0
        while number != self.number:  # others were of a test that failed
            assert self.pipe.poll(SECONDS), "no answer"
            number, good, value = self.pipe.recv()
        if not good:
            raise value
        return value

    def call(self, name: str, *arguments: Any, **options: Any) -> Any:
        self.tell(name, *arguments, **options)
        return self.result()

    def kill(self, number: int = signal.SIGKILL) -> None:
        os.kill(self.process.pid or 0, number)

    def end(self) -> None:
        with contextlib.suppress(OSError):
            self.tell("end")
        self.process.join(SECONDS)
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join()
        self.pipe.close()


def alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state.split()[0] not in "ZX"


def gone(pids: list[int]) -> None:
    """Waits until they have ended."""
    end = time.monotonic() + SECONDS
    while any(map(alive, pids)):
        assert time.monotonic() < end, pids
        time.sleep(0.01)


def all_take(crowd: list[Member], most: int = 1 << 30) -> list[Any]:
    """What each takes, all at once."""
    for member in crowd:
        member.tell("take", most)
    return [member.result() for member in crowd]


class Crowd:
    """Members, made when they are needed and used again."""

    def __init__(self) -> None:
        self.idle: list[Member] = []
        self.used: list[Member] = []

    def get(self, count: int) -> list[Member]:
        while len(self.idle) < count:
            self.idle.append(Member())
        taken = [self.idle.pop() for _ in range(count)]
        self.used += taken
        return taken

    def back(self) -> None:
        """After a test: who still answers is used again."""
        for member in self.used:
            try:
                member.call("close")
                self.idle.append(member)
            except Exception:
                member.end()
        self.used.clear()

    def end(self) -> None:
        for member in self.idle + self.used:
            member.end()


@pytest.fixture(scope="session")
def every_crowd() -> Iterator[Crowd]:
    crowd = Crowd()
    yield crowd
    crowd.end()


@pytest.fixture
def crowd(every_crowd: Crowd) -> Iterator[Crowd]:
    yield every_crowd
    every_crowd.back()
