# SPDX-License-Identifier: Apache-2.0
"""A real daemon on a directory of its own for each module of tests.

``SHEAF_TEST_BIN`` names the directories of sheafd and sheaf (as PATH does).
Everything is below a directory that is removed at the end, also when tests
fail; the daemon ends with this process whatever happens (PR_SET_PDEATHSIG).
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Iterator

import pytest

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


def pytest_terminal_summary(terminalreporter: "pytest.TerminalReporter") -> None:
    """What tools/check counts."""
    stats = terminalreporter.stats
    for report in stats.get("skipped", []):
        reason = report.longrepr[2] if report.longrepr else "not run"
        name = report.nodeid.rpartition("::")[2]
        print(f"\nSKIP: python.{name}: {reason.removeprefix('Skipped: ')}")
    passed, skipped = len(stats.get("passed", [])), len(stats.get("skipped", []))
    failed, errors = len(stats.get("failed", [])), len(stats.get("error", []))
    print(
        f"\n[====] Synthesis: Tested: {passed + skipped + failed + errors} | "
        f"Passing: {passed} | Failing: {failed} | Crashing: {errors}"
    )


def _die_with_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class Node:
    """One daemon and what it reads."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.cache = base / "cache"
        self.socket = base / "sock"
        self.origin = base / "origin"
        self.log = base / "log"
        self.origin.mkdir()
        self.memory = "64MiB"
        self.extra: list[str] = []
        self.env: dict[str, str] = {}
        self.process: subprocess.Popen[bytes] | None = None

    def environ(self) -> dict[str, str]:
        path = os.environ.get("SHEAF_TEST_BIN", "")
        return dict(
            os.environ,
            PATH=f"{path}:{os.environ['PATH']}",
            SHEAF_SOCKET=str(self.socket),
            **self.env,
        )

    def start(self) -> None:
        """Starts the daemon and waits until it answers."""
        self.launch()
        assert self.process
        end = time.monotonic() + 30
        while self.sheaf("status", check=False).returncode:
            if self.process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(self.log.read_text(errors="replace"))
            time.sleep(0.02)

    def launch(self) -> None:
        """Starts it without waiting. From the main thread only: the daemon
        ends with the thread that made it."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [
                    "sheafd",
                    "--foreground",
                    f"--cache={self.cache}",
                    f"--socket={self.socket}",
                    f"--memory={self.memory}",
                    "--disk=256MiB",
                    *self.extra,
                ],
                env=self.environ(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=_die_with_parent,
            )

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def sheaf(
        self, *arguments: str, check: bool = True
    ) -> "subprocess.CompletedProcess[str]":
        done = subprocess.run(
            ["sheaf", *arguments],
            env=self.environ(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert not (check and done.returncode), done.stderr
        return done

    def add(self, name: str, files: dict[str, bytes]) -> None:
        """Makes files and adds the directory as a dataset."""
        root = self.origin / name
        for key, data in files.items():
            path = root / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        self.sheaf("add", name, str(root))

    def stat(self, name: str) -> float:
        text = self.sheaf("stats", "--json").stdout
        return float(json.loads(text)["totals"].get(name, 0))


def make_node(where: Path) -> Iterator[Node]:
    node = Node(where)
    try:
        yield node
    finally:
        node.kill()
        shutil.rmtree(where, ignore_errors=True)


N = 1003


def content(number: int) -> bytes:
    """Bytes of file ``number`` of the dataset ``data``: they name it."""
    return b"%d:" % number * (number % 50 + 1)


def number_of(data: bytes) -> int:
    """Number of the file that these bytes are; AssertionError: of none."""
    number = int(data.partition(b":")[0])
    assert data == content(number)
    return number


@pytest.fixture(scope="module")
def data(node: Node) -> str:
    """A dataset of N small files in 7 classes."""
    node.add("data", {f"c{i % 7}/f{i:04}": content(i) for i in range(N)})
    return "data"


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    """A daemon for all tests of a module."""
    for node in make_node(Path(tempfile.mkdtemp(prefix="sheaf-py."))):
        node.start()
        old = os.environ.get("SHEAF_SOCKET")
        os.environ["SHEAF_SOCKET"] = str(node.socket)
        yield node
        if old is None:
            del os.environ["SHEAF_SOCKET"]
        else:
            os.environ["SHEAF_SOCKET"] = old


OWN_N = 307


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    """A daemon for one test, with the dataset ``data`` of OWN_N files."""
    for node in make_node(Path(tempfile.mkdtemp(prefix="sheaf-py."))):
        node.start()
        monkeypatch.setenv("SHEAF_SOCKET", str(node.socket))
        node.add(
            "data", {f"c{i % 7}/f{i:04}": content(i) for i in range(OWN_N)}
        )
        yield node
