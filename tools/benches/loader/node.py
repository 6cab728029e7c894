# SPDX-License-Identifier: Apache-2.0
"""A daemon, mounts and a slowed origin for the benchmark, all below one
directory that goes away with the process."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import children

ROOT = Path(__file__).resolve().parents[3]


def base() -> Path:
    """The directory of this run."""
    where = Path(
        tempfile.mkdtemp(
            prefix="sheaf-bench.", dir=os.environ.get("TMPDIR", "/var/tmp")
        )
    )
    children.at_end(lambda: shutil.rmtree(where, ignore_errors=True))
    # what rivals leave behind
    (where / "tmp").mkdir()
    os.environ["TMPDIR"] = str(where / "tmp")
    tempfile.tempdir = None
    return where


class Node:
    """sheafd with a cache of its own; ``memory`` and ``disk`` as its
    options. It is the daemon of this process and of what it starts."""

    def __init__(self, where: Path, build: Path, memory: str, disk: str):
        where.mkdir(parents=True)
        self.where, self.build = where, build
        self.mounts: list[list[str]] = []
        os.environ["SHEAF_SOCKET"] = str(where / "sock")
        self.log = (where / "log").open("wb")
        self.process = self.spawn(
            str(build / "daemon/sheafd"),
            "--foreground",
            f"--cache={where / 'cache'}",
            f"--socket={where / 'sock'}",
            f"--memory={memory}",
            f"--disk={disk}",
        )
        children.at_end(self.stop)
        end = time.monotonic() + 60
        while self.sheaf("status", check=False) is None:
            if self.process.poll() is not None or time.monotonic() > end:
                raise SystemExit((where / "log").read_text(errors="replace"))
            time.sleep(0.05)

    def spawn(self, *command: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=self.log,
            start_new_session=True,
            preexec_fn=children.end_with_parent,
        )

    def sheaf(self, *words: str, check: bool = True) -> str | None:
        """Output of ``sheaf``; None: it failed and ``check`` is off."""
        done = subprocess.run(
            [str(self.build / "tools/sheaf"), *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        if done.returncode and check:
            raise SystemExit(f"sheaf {' '.join(words)}: {done.stderr}")
        return None if done.returncode else done.stdout

    def stats(self, *names: str) -> list[float]:
        """Totals of ``sheaf stats``."""
        text = self.sheaf("stats", "--json")
        assert text is not None
        totals = json.loads(text)["totals"]
        return [float(totals.get(name, 0)) for name in names]

    def stat(self, name: str) -> float:
        """One of them."""
        return self.stats(name)[0]

    def mount(self, name: str) -> Path:
        """Where the dataset is mounted from now on."""
        where = self.where / "mnt"
        where.mkdir()
        self.sheaf("mount", name, str(where))
        self.mounts.append(
            [str(self.build / "tools/sheaf"), "umount", str(where)]
        )
        return where

    def slowed(self, source: Path, faultfs: Path, rate: int) -> Path:
        """The same files, of which ``rate`` a second can be opened."""
        where, control = self.where / "slow", self.where / "control"
        where.mkdir()
        control.write_text(f"open rate={rate}\n")
        process = self.spawn(
            str(faultfs), str(source), str(where), str(control)
        )
        self.mounts.append(["fusermount3", "-u", "-z", str(where)])
        end = time.monotonic() + 30
        while not os.path.ismount(where):
            if process.poll() is not None or time.monotonic() > end:
                raise SystemExit(f"{faultfs} does not mount {where}")
            time.sleep(0.05)
        return where

    def stop(self) -> None:
        """Idempotent."""
        for command in reversed(self.mounts):
            subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True
            )
        self.mounts.clear()
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
