# SPDX-License-Identifier: Apache-2.0
"""Workers of a CoordinatedLoader: processes that lease a batch, prepare it and
offer it to the group.

A worker shares nothing with its member but a row of counters, so it may die at
any point; it ends by itself when its member does. What a batch is made of is
its recipe, which says the same in every process.
"""

from __future__ import annotations

import base64
import multiprocessing
import os
import pickle
import select
import signal
import sys
import threading
import time
import traceback
import warnings
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Callable, Iterator

import torch

from . import _sheaf, prepared, slots, timing
from .augment import key_of, seeded
from .batches import collate as default_collate
from .dataset import Dataset
from .errors import GroupMismatch

WHY_MAX = 16000  # bytes of a failure's text
DEATHS_MAX = 3  # in a row
_MARK = "\nsheaf-error: "
_WAIT_MS = 1000
_BATCH_S = 0.5  # that a worker which is to end has for its batch
_END_S = 5.0
_NAP_S = 0.1
_MISMATCH = 3  # how a worker ends whose batches are of another schema
_FIELDS = ("prepared", "failed", "fetch_s", "prep_s")
_TEXT = 1024


# ---- batches ----


@dataclass(frozen=True)
class Recipe:
    """What batches of a group are made of. ``batches``: of an epoch."""

    dataset: Dataset
    collate: Callable[[list[Any]], Any] | None
    batch_size: int
    batches: int

    def make(self, batch: int) -> tuple[int, str]:
        """(descriptor of the file, schema) of a batch; the same, but for the
        times in it, whoever makes it. Raises what decoding, transform and
        collate do."""
        epoch, place = divmod(batch, self.batches)
        dataset = self.dataset
        first = place * self.batch_size
        end = min(first + self.batch_size, len(dataset))
        # Others may have had these slots: that is no lost place.
        dataset.restore(epoch, {})
        base = slots.base(epoch, dataset.check())
        items = dataset.__getitems__(range(base + first, base + end))
        times = timing.last()
        assert times is not None
        # Not the numbers that transforms have had.
        with seeded(key_of(dataset.seed, epoch, ~first)):
            try:
                made = (self.collate or default_collate)(items)
            except StopIteration as error:
                raise RuntimeError(
                    f"the collate function of {dataset.name} raised "
                    "StopIteration"
                ) from error
        schema = prepared.schema(made, self.collate is None)
        return prepared.write(made, (*times, timing.now())), schema


@contextmanager
def one_thread() -> Iterator[None]:
    """torch computes as in a worker: sums may depend on how many threads
    add."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


# ---- failures ----


def describe(error: Exception) -> str:
    """A text that ``revive`` makes the error of, in any member."""
    text = "".join(traceback.format_exception(error))
    text = f"in prep worker {os.getpid()}:\n{text}"
    try:
        pickled = pickle.dumps(error)
        pickle.loads(pickled)
        extra = _MARK + base64.b85encode(pickled).decode()
    except Exception:
        extra = ""
    if len(extra) > WHY_MAX // 2:
        extra = ""
    data = text.encode(errors="replace").replace(b"\0", b"?")
    room = WHY_MAX - len(extra)
    if len(data) > room:
        # The end of a traceback tells more than its beginning.
        data = data[: room // 4] + b"\n...\n" + data[-room // 2 :]
    return data.decode(errors="ignore") + extra


def revive(text: str) -> Exception:
    """The error of a batch that failed: as it was raised, with the worker's
    traceback as a note, or a RuntimeError with that as its text."""
    text, _, pickled = text.partition(_MARK)
    try:
        error = pickle.loads(base64.b85decode(pickled))
    except Exception:
        return RuntimeError(text)
    if not isinstance(error, Exception):
        return RuntimeError(text)
    error.add_note(text)
    return error


# ---- a worker ----


@dataclass(frozen=True)
class Task:
    """What a worker works on. ``join`` makes its part in the group."""

    recipe: Recipe
    options: dict[str, Any]
    member: int  # pid

    def join(self) -> _sheaf.Group:
        """As a worker. OSError."""
        source = self.recipe.dataset._open()
        return _sheaf.Group(source, worker=True, **self.options)


class _Stop:
    """Told to end (SIGTERM): at once while it waits, else after the batch;
    at once when it is told again. A batch that it leaves goes to others."""

    def __init__(self) -> None:
        self.asked = self.waiting = False

    def __call__(self, number: int, frame: Any) -> None:
        again, self.asked = self.asked, True
        if self.waiting or again:
            raise SystemExit(0)


def _end_with(member: int) -> None:
    """This process ends when that one does."""
    try:
        fd = os.pidfd_open(member)
    except ProcessLookupError:
        os._exit(0)
    except OSError:
        return  # the daemon tells, too
    parent = multiprocessing.parent_process()
    if parent is not None and not parent.is_alive():
        os._exit(0)

    def watch() -> None:
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        poll.poll()
        os._exit(0)

    threading.Thread(target=watch, name="sheaf-member", daemon=True).start()


def work(task: Task, row: int, counters: Any, text: Any) -> None:
    """The worker's main function."""
    stop = _Stop()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, stop)
    _end_with(task.member)
    torch.set_num_threads(1)
    group = task.join()
    try:
        while not stop.asked:
            batch = None
            try:
                batch = _lease(group, stop)
            except FileNotFoundError:
                group = _join_again(task, group, stop)
            if batch is not None:
                _serve(task, group, batch, row * len(_FIELDS), counters)
    except FileExistsError as error:
        text.value = str(error.strerror).encode()[: _TEXT - 1]
        sys.exit(_MISMATCH)
    finally:
        group.leave()


def _lease(group: _sheaf.Group, stop: _Stop) -> int | None:
    stop.waiting = True
    try:
        return None if stop.asked else group.lease(_WAIT_MS)
    except (FileExistsError, FileNotFoundError):
        raise
    except OSError:
        # No daemon for now: its member says what becomes of that.
        time.sleep(_NAP_S)
        return None
    finally:
        stop.waiting = False


def _join_again(task: Task, group: _sheaf.Group, stop: _Stop) -> _sheaf.Group:
    """The member left, and has yet to come again; or it ends this worker."""
    group.leave()
    stop.waiting = True
    try:
        while True:
            time.sleep(0 if stop.asked else _NAP_S)
            try:
                return task.join()
            except FileExistsError:
                raise
            except OSError:
                pass
    finally:
        stop.waiting = False


def _serve(
    task: Task, group: _sheaf.Group, batch: int, row: int, counters: Any
) -> None:
    dataset = task.recipe.dataset
    try:
        try:
            fd, schema = task.recipe.make(batch)
        except Exception as error:
            counters[row + 1] += 1
            group.fail(batch, describe(error))
            return
        counters[row + 2] = dataset._fetch_s
        counters[row + 3] = dataset._prep_s
        # Before anybody can have taken it.
        counters[row] += 1
        counted = False
        try:
            counted = group.offer(batch, fd, schema)
        finally:
            counters[row] -= not counted
            os.close(fd)
    except FileExistsError:
        raise
    except OSError:
        pass  # the daemon went, or told the members why it failed


# ---- all of them ----


def how(code: int | None) -> str:
    """In what way a process ended."""
    if code is None or code >= 0:
        return f"with exit code {code}"
    try:
        return f"by {signal.Signals(-code).name}"
    except ValueError:
        return f"by signal {-code}"


class Crew:
    """The workers of one member."""

    def __init__(self, context: Any, task: Task, count: int) -> None:
        self._context = context
        self._task = task
        self._counters = context.RawArray("d", max(1, count) * len(_FIELDS))
        self._text = context.RawArray("c", _TEXT)
        self._deaths = 0
        self._seen = 0.0
        self._processes: list[Any] = []
        try:
            for number in range(count):
                self._processes.append(self._start(number))
        except BaseException:
            self.stop()
            raise

    def __len__(self) -> int:
        return len(self._processes)

    def _start(self, number: int) -> Any:
        process = self._context.Process(
            target=work,
            args=(self._task, number, self._counters, self._text),
            name=f"sheaf-prep-{number}",
            daemon=True,
        )
        process.start()
        return process

    def total(self, field: str) -> float:
        """A counter of all workers, of former ones, too, but for times."""
        at = _FIELDS.index(field)
        return float(sum(self._counters[at :: len(_FIELDS)]))

    def check(self) -> None:
        """Replaces who died, with a RuntimeWarning. RuntimeError: too many
        in a row; GroupMismatch: one prepares what others do not."""
        for number, process in enumerate(self._processes):
            if process.exitcode is None:
                continue
            if process.exitcode == _MISMATCH:
                raise GroupMismatch(self._text.value.decode(errors="replace"))
            self._count_death(process.exitcode)
            warnings.warn(
                f"a prep worker (pid {process.pid}) ended "
                f"{how(process.exitcode)}: another one takes its place, and "
                "its batch is prepared anew",
                RuntimeWarning,
                stacklevel=5,
            )
            process.close()
            self._processes[number] = self._start(number)

    def _count_death(self, code: int) -> None:
        done = self.total("prepared") + self.total("failed")
        if done > self._seen:
            self._deaths, self._seen = 0, done
        self._deaths += 1
        if self._deaths > DEATHS_MAX:
            raise RuntimeError(
                f"{self._deaths} prep workers ended without a batch in "
                f"between, the last one {how(code)}: decode, transform or "
                "collate_fn ends the process, or memory ran out"
            )

    def stop(self) -> None:
        """Ends them: each after the batch it prepares, or in the midst of it
        if that takes long; within seconds."""
        begun = time.monotonic()
        for end in (_BATCH_S, _END_S):
            left = [p for p in self._processes if p.exitcode is None]
            for process in left:
                process.terminate()
            for process in left:
                process.join(max(0.0, begun + end - time.monotonic()))
        for process in self._processes:
            if process.exitcode is None:
                process.kill()
                process.join()
            process.close()
        self._processes.clear()
