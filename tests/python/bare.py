# SPDX-License-Identifier: Apache-2.0
"""The package in an interpreter that has nothing else: no torch, NumPy or
pytest (wheel.sh runs it). With a daemon of its own, which ends with it."""

from __future__ import annotations

import ctypes
import gc
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import sheaf

N = 203
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


def content(number: int) -> bytes:
    return b"%d:" % number * (number % 50 + 1)


def begin(base: Path) -> "subprocess.Popen[bytes]":
    """A daemon with the dataset ``data``."""
    os.environ["SHEAF_SOCKET"] = str(base / "sock")
    for i in range(N):
        path = base / "origin" / f"c{i % 7}" / f"f{i:04}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content(i))
    daemon = subprocess.Popen(
        ["sheafd", "--foreground", f"--cache={base}/cache", "--memory=64MiB"],
        stdin=subprocess.DEVNULL,
        stdout=(base / "log").open("wb"),
        stderr=subprocess.STDOUT,
        preexec_fn=lambda: _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL),
    )
    end = time.monotonic() + 60
    while subprocess.run(["sheaf", "status"], capture_output=True).returncode:
        assert daemon.poll() is None and time.monotonic() < end, (
            base / "log"
        ).read_text()
        time.sleep(0.05)
    subprocess.run(["sheaf", "add", "data", str(base / "origin")], check=True)
    return daemon


def right(sample: sheaf.Sample) -> bool:
    return bytes(sample) == content(int(sample.key[-4:]))


def samples() -> None:
    """Literal ones, their labels, and how long bytes stay."""
    ds = sheaf.Dataset("data")
    assert len(ds) == N and ds.classes == [f"c{i}" for i in range(7)]
    assert all(right(ds[i]) and ds.label(i) == int(ds.key(i)[1]) for i in range(N))
    assert right(pickle.loads(pickle.dumps(ds[5])))
    part = memoryview(ds[9])[2:]
    gc.collect()
    assert part.readonly and bytes(part) == content(int(ds.key(9)[-4:]))[2:]
    for wrong in (N, -N - 1, 1 << 70):
        try:
            ds[wrong]
        except IndexError:
            continue
        raise AssertionError(wrong)


def slots() -> None:
    """Each sample once an epoch, from threads and from a child."""
    ds = sheaf.Dataset("data", decode="bytes", transform=lambda b: b + b"!")
    base = sheaf.slots.base(0)
    seen: list[bytes] = []

    def take(first: int) -> None:
        for i in range(first, N, 4):
            seen.append(ds[base + i][0])

    threads = [threading.Thread(target=take, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(seen) == sorted(content(i) + b"!" for i in range(N))
    child = os.fork()
    if child == 0:
        os._exit(ds[base][0] not in seen or ds[base + 7][0] not in seen)
    assert os.waitpid(child, 0)[1] == 0
    stats = ds.stats()
    assert stats["samples"] >= N and stats["hits"] + stats["misses"] >= N


def interrupted(daemon: "subprocess.Popen[bytes]") -> None:
    """What a signal's handler raises ends a wait."""

    def raises(*_: object) -> None:
        raise KeyboardInterrupt

    ds = sheaf.Dataset("data", timeout=600)
    signal.signal(signal.SIGALRM, raises)
    daemon.send_signal(signal.SIGSTOP)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        try:
            ds[0]
        except KeyboardInterrupt:
            return
        raise AssertionError("it did not end")
    finally:
        daemon.send_signal(signal.SIGCONT)


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="sheaf-bare.") as directory:
        daemon = begin(Path(directory))
        try:
            samples()
            slots()
            interrupted(daemon)
            samples()
        finally:
            daemon.terminate()
            daemon.wait()
    assert not {"torch", "numpy"} & set(sys.modules)


if __name__ == "__main__":
    main()
