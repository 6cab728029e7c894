# SPDX-License-Identifier: Apache-2.0
"""What preparing once for several jobs saves.

Jobs of one kind run at once, each a process that goes through decoded images
as fast as they come: members of a group (coordinated), each with a Loader of
its own (sheaf), each with torch's DataLoader over the files (files). tools/bench
prep makes the environment and calls this; docs/performance.md says what is
measured.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "loader"))

import children  # noqa: E402
import report  # noqa: E402
import ways  # noqa: E402
from node import Node, base  # noqa: E402

WAYS = ("coordinated", "sheaf", "files")
WAIT_S = 600
TICK = os.sysconf("SC_CLK_TCK")


# ---- a job ----


def cpu_of(pid: int) -> float:
    """Seconds of CPU that a process has used, and its former children."""
    text = Path(f"/proc/{pid}/stat").read_text()
    return sum(map(int, text.rpartition(")")[2].split()[11:15])) / TICK


def family(pid: int) -> list[int]:
    """A process and all that it started."""
    found = [pid]
    for one in found:
        for task in Path(f"/proc/{one}/task").glob("*/children"):
            found += map(int, task.read_text().split())
    return found


def cpu_now(pid: int) -> float:
    """Of a process and all that it started."""
    return sum(map(cpu_of, family(pid)))


def loader_of(way: str, source: str, workers: int, jobs: int, name: str) -> Any:
    if way == "files":
        return ways.Files(Path(source), True, workers)
    if way == "sheaf":
        return ways.Sheaf(source, True, workers)
    import sheaf

    return sheaf.CoordinatedLoader(
        sheaf.Dataset(source, transform=ways.decode),
        ways.BATCH,
        group=name,
        prep_workers=workers,
        members=jobs,
        multiprocessing_context="fork",
    )


def job(words: list[str]) -> None:
    """What a process does: an epoch to begin with, then one each time that it
    is told to; it answers with the seconds and CPU seconds of each."""
    way, source, workers, jobs, name = words
    loader = loader_of(way, source, int(workers), int(jobs), name)
    for _ in itertools.chain([""], sys.stdin):
        before, begun = cpu_now(os.getpid()), time.monotonic()
        count = ways.drain(loader, True)
        seconds = time.monotonic() - begun
        used = cpu_now(os.getpid()) - before
        print(json.dumps([count, seconds, used]), flush=True)


# ---- all of them ----


class Jobs:
    """Processes of one way that run at once."""

    def __init__(self, way: str, source: str, workers: int, count: int) -> None:
        self.children = [
            children.start(
                [sys.executable, __file__, "job", way, source, str(workers),
                 str(count), f"bench-{count}"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(count)
        ]  # fmt: skip
        self.answers()

    def answers(self) -> list[list[float]]:
        found = []
        for child in self.children:
            assert child.stdout is not None
            line = child.stdout.readline()
            if not line:
                raise SystemExit(f"a job ended with {child.wait()}")
            found.append(json.loads(line))
        return found

    def epoch(self, daemon: int) -> tuple[float, float]:
        """(samples a second of all together, CPU seconds of jobs and daemon)
        of one epoch."""
        before = cpu_now(daemon)
        for child in self.children:
            assert child.stdin is not None
            child.stdin.write("\n")
            child.stdin.flush()
        answers = self.answers()
        used = sum(answer[2] for answer in answers) + cpu_now(daemon) - before
        slowest = max(answer[1] for answer in answers)
        return sum(answer[0] for answer in answers) / slowest, used

    def end(self) -> None:
        for child in self.children:
            assert child.stdin is not None
            child.stdin.close()
            try:
                child.wait(30)
            except subprocess.TimeoutExpired:
                pass
            children.end(child)


def measure(
    count: int, sources: dict[str, str], daemon: int, turns: int
) -> None:
    """One number of jobs: rounds of an epoch of each way, in turn, while the
    others' jobs wait; ratios are medians of rounds."""
    workers = max(1, (os.cpu_count() or 1) // count)
    rates: dict[str, list[float]] = {way: [] for way in WAYS}
    cpu: dict[str, list[float]] = {way: [] for way in WAYS}
    jobs: dict[str, Jobs] = {}
    try:
        for way in WAYS:
            report.progress(f"{count} jobs: start: {way}")
            jobs[way] = Jobs(way, sources[way], workers, count)
        for turn in range(turns):
            for way in WAYS:
                report.progress(
                    f"{count} jobs: round {turn + 1} of {turns}: {way}"
                )
                rate, used = jobs[way].epoch(daemon)
                rates[way].append(rate)
                cpu[way].append(used)
    finally:
        for started in jobs.values():
            started.end()
    own = WAYS[0]
    for rival in WAYS[1:]:
        report.emit(
            f"{count} jobs, {workers} workers each: coordinated",
            statistics.median(rates[own]),
            "samples/s",
            rival,
            statistics.median(a / b for a, b in zip(rates[own], rates[rival])),
        )
        report.emit(
            f"{count} jobs, {workers} workers each: coordinated",
            statistics.median(cpu[own]),
            "CPU s/epoch",
            rival,
            statistics.median(b / a for a, b in zip(cpu[own], cpu[rival])),
        )


def copied(images: Path, out: Path, most: int) -> int:
    """Copies of every n-th image that can be decoded; how many."""
    paths = ways.files_of(images)
    count = 0
    for path in paths[:: max(1, len(paths) // most)]:
        data = path.read_bytes()
        try:
            ways.decode(data)
        except Exception:
            continue
        target = out / path.relative_to(images)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
        count += 1
    return count


def main() -> None:
    parser = argparse.ArgumentParser(prog="tools/bench prep")
    parser.add_argument("images", type=Path)
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    children.watch_signals()
    children.end_with_parent(signal.SIGTERM)
    report.begin(not chosen.json)
    where = base()
    report.progress("copying the images")
    few = where / "few"
    count = copied(chosen.images.resolve(), few, 256 if chosen.quick else 1024)
    if count < ways.BATCH:
        raise SystemExit(f"{chosen.images}: {count} images that can be decoded")
    node = Node(where / "node", chosen.build, "1GiB", "1GiB")
    node.sheaf("add", "bench", str(few))
    node.sheaf("warmup", "bench")
    sources = {"coordinated": "bench", "sheaf": "bench", "files": str(few)}
    for jobs in (1, 2, 4):
        measure(jobs, sources, node.process.pid, 2 if chosen.quick else 5)
    node.stop()
    report.end()


if __name__ == "__main__":
    if sys.argv[1:2] == ["job"]:
        job(sys.argv[2:])
    else:
        main()
