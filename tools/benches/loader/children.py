# SPDX-License-Identifier: Apache-2.0
"""What the benchmark starts, and its end: nothing of it stays, also when the
benchmark is interrupted."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import multiprocessing
import os
import signal
import subprocess
import threading
from typing import Any, Callable

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)
_endings: list[Callable[[], None]] = []
_started: list[subprocess.Popen[Any]] = []
_main = os.getpid()


def end_with_parent(number: int = signal.SIGKILL) -> None:
    """The calling process gets this signal when its parent ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, int(number))


def at_end(ending: Callable[[], None]) -> None:
    """Called once at the end, the newest first."""
    _endings.append(ending)


def end_all() -> None:
    """Ends workers and children, then calls what at_end() got."""
    if os.getpid() != _main:
        return
    for worker in multiprocessing.active_children():
        worker.kill()
    # torch's handler would raise when its workers end
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for child in list(_started):
        end(child)
    while _endings:
        _endings.pop()()


def start(command: list[str], **options: Any) -> subprocess.Popen[Any]:
    """A child in a session of its own, with all that it starts in turn."""
    child = subprocess.Popen(
        command,
        start_new_session=True,
        preexec_fn=end_with_parent,
        **options,
    )
    _started.append(child)
    return child


def end(child: subprocess.Popen[Any]) -> None:
    """Kills what is left of a child and its session. Idempotent."""
    if child in _started:
        _started.remove(child)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def watch_signals() -> None:
    """From now on a signal ends the benchmark. Not by an exception, which
    might be raised where it is swallowed."""

    def stop(number: int, _: Any) -> None:
        if os.getpid() == _main:
            for other in signals:
                signal.signal(other, signal.SIG_IGN)
            end_all()
        os._exit(128 + number)

    assert threading.current_thread() is threading.main_thread()
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    for number in signals:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, stop)
    atexit.register(end_all)
