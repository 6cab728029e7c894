# SPDX-License-Identifier: Apache-2.0
"""Runs a script of several scenarios as ranks of torchrun.

A script is a module with functions of no arguments that return what JSON can
hold; main() runs those that were named, one after the other, in every rank,
and writes what each returned, or the text of what it raised.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import traceback
import uuid
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Generous: a loaded machine needs half a minute to import the frameworks.
_DEADLINE_S = 420

# In the environment of all that one launch() starts.
_MARK = "SHEAF_TEST_LAUNCH"


def launch(
    script: str, scenarios: list[str], directory: Path, world: int = 2
) -> list[dict[str, Any]]:
    """What each rank wrote, by scenario. Ends all it started."""
    directory.mkdir(parents=True, exist_ok=True)
    log = directory / "log"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={world}", "--max-restarts=0"]
    command += [str(Path(__file__).parent / script), str(directory)]
    mark = uuid.uuid4().hex
    environment = dict(os.environ, OMP_NUM_THREADS="1")
    environment[_MARK] = mark
    environment["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p)
    with log.open("wb") as out:
        child = subprocess.Popen(
            command + scenarios,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=directory,
            start_new_session=True,
        )
        try:
            status = child.wait(_DEADLINE_S)
        except subprocess.TimeoutExpired:
            status = -signal.SIGALRM
        finally:
            end_all(mark)
            child.wait()
    text = log.read_text(errors="replace")
    assert status == 0, f"{script} ended with {status}:\n{text[-6000:]}"
    return [
        json.loads((directory / f"rank{rank}").read_text())
        for rank in range(world)
    ]


def end_all(mark: str) -> None:
    """Kills whatever was launched: ranks have sessions of their own."""
    wanted = f"{_MARK}={mark}".encode()
    found = True
    while found:  # one may have made another meanwhile
        found = False
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                if wanted in (entry / "environ").read_bytes().split(b"\0"):
                    os.kill(int(entry.name), signal.SIGKILL)
                    found = True
            except OSError:
                continue


def rank() -> int:
    """This process's place."""
    return int(os.environ["RANK"])


def world() -> int:
    """Ranks of this run."""
    return int(os.environ["WORLD_SIZE"])


def outcome(results: list[dict[str, Any]], scenario: str) -> list[Any]:
    """What the ranks returned; fails with the first that raised."""
    for rank, result in enumerate(results):
        error = result[scenario].get("error")
        assert error is None, f"rank {rank}, {scenario}:\n{error}"
    return [result[scenario]["value"] for result in results]


def main(scenarios: dict[str, Callable[[], Any]]) -> None:
    """The script's side of launch().

    Workers come from a fork server: a fork beside gloo's threads, which enter
    Python, may leave a lock of the interpreter held in the child, before
    Python 3.12 (https://github.com/python/cpython/issues/112275).
    """
    multiprocessing.set_start_method("forkserver")
    # the frameworks are imported once, there
    multiprocessing.set_forkserver_preload([Path(sys.argv[0]).stem])
    results: dict[str, Any] = {}
    for name in sys.argv[2:]:
        try:
            with warnings.catch_warnings():
                # each scenario meets each warning again
                warnings.simplefilter("default")
                results[name] = {"value": scenarios[name]()}
        except Exception:
            results[name] = {"error": traceback.format_exc()}
        print(f"{name}: {'error' in results[name] or 'done'}", flush=True)
    path = Path(sys.argv[1]) / f"rank{rank()}"
    path.write_text(json.dumps(results))
