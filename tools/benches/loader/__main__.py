# SPDX-License-Identifier: Apache-2.0
"""Loaders side by side on the same images; see docs/performance.md.

    python tools/benches/loader IMAGES --build DIR [--quick] [--only PART]

Parts: warm (everything cached: samples a second, all ways), cached (35 % fits
and the origin is slow), jobs (several trainings at once). tools/bench loader
makes the environment and calls this. Prints a line of JSON a measure.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import statistics
import sys
import time
import warnings
from pathlib import Path
from typing import Any

from PIL import Image

import epochs
import ways
from node import ROOT, Node, base, emit, note

PIXELS_MAX = 20_000_000


def small_enough(path: Path) -> bool:
    with Image.open(path) as image:
        return image.width * image.height <= PIXELS_MAX


def subset(images: Path, out: Path, most: int) -> Path:
    """Copies of every n-th image, ``most`` in all (0: every one), without the
    few whose decoding would take longer than that of hundreds of others."""
    warnings.simplefilter("ignore", Image.DecompressionBombWarning)
    Image.MAX_IMAGE_PIXELS = None
    found = [path for path in ways.files_of(images) if small_enough(path)]
    most = most or len(found)
    for path in found[:: max(1, len(found) // most)][:most]:
        target = out / path.relative_to(images)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    return out


def rate(way: Any, decoded: bool, expected: int) -> float:
    """Samples a second over an epoch."""
    begun = time.monotonic()
    count = ways.drain(way, decoded)
    seconds = time.monotonic() - begun
    # a rival may drop what does not fill a batch, or repeat some
    if not 0.9 * expected <= count <= 1.1 * expected:
        raise SystemExit(f"{way.name}: {count} samples of {expected}")
    return count / seconds


def warm(images: Path, where: Path, build: Path, quick: bool) -> None:
    """Every way in turn, round by round; ratios are medians of rounds."""
    node = Node(where / "warm", build, "1GiB", "1GiB")
    node.sheaf("add", "bench", str(images))
    node.sheaf("warmup", "bench")
    mounted = node.mount("bench")
    copies = {}
    for rival in ways.RIVALS:
        copies[rival] = where / rival.name
        try:
            rival.build(images, copies[rival])
        except Exception as error:
            note(f"SKIP: loader-{rival.name}: {error!r}")
            del copies[rival]
    count = len(ways.files_of(images))
    for decoded in (False, True):
        for workers in (0, 2):
            made: list[Any] = [ways.Sheaf("bench", decoded, workers)]
            made.append(ways.Files(images, decoded, workers))
            made.append(ways.Mount(mounted, decoded, workers))
            for rival, copy in copies.items():
                made.append(rival(copy, decoded, workers))
            rates = rounds(made, decoded, count, 3 if quick else 5)
            report(rates, decoded, workers)
            del made
    node.stop()


def rounds(
    made: list[Any], decoded: bool, count: int, number: int
) -> dict[str, list[float]]:
    """Rates by name: an epoch of each in turn, after one to begin with."""
    rates: dict[str, list[float]] = {way.name: [] for way in made}
    for turn in range(number + 1):
        for way in list(made):
            try:
                found = rate(way, decoded, count)
            except Exception as error:
                note(f"SKIP: loader-{way.name}: {error!r}")
                made.remove(way)
                del rates[way.name]
                continue
            if turn:
                rates[way.name].append(found)
    return rates


def report(rates: dict[str, list[float]], decoded: bool, workers: int) -> None:
    what = f"{'decoded' if decoded else 'raw'}, {workers} workers"
    ours = rates.pop("sheaf")
    medians = {name: statistics.median(found) for name, found in rates.items()}
    for name, found in rates.items():
        emit(
            f"{what}: {name}",
            medians[name],
            "samples/s",
            "sheaf",
            statistics.median(a / b for a, b in zip(found, ours)),
        )
    best = max(medians, key=lambda name: medians[name])
    emit(
        f"{what}: sheaf",
        statistics.median(ours),
        "samples/s",
        best,
        statistics.median(a / b for a, b in zip(ours, rates[best])),
        goal=1.0 if decoded else 3.0,
    )


def faultfs_of(build: Path) -> Path | None:
    for where in (build, ROOT / "build/debug"):
        path = where / "tests/flow/faultfs"
        if path.exists():
            return path
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("images", type=Path)
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", choices=["warm", "cached", "jobs"])
    chosen = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

    where = base()
    whole = subset(chosen.images.resolve(), where / "whole", 0)
    images = whole
    if chosen.quick:
        images = subset(whole, where / "images", 1500)
    parts = [chosen.only] if chosen.only else ["warm", "cached", "jobs"]
    if "warm" in parts:
        warm(images, where, chosen.build, chosen.quick)
    if "cached" in parts:
        faultfs = faultfs_of(chosen.build)
        if faultfs is None:
            note("SKIP: loader-cached: no faultfs; build the tests")
        else:
            epochs.cached(whole, where, chosen.build, chosen.quick, faultfs)
    if "jobs" in parts:
        epochs.jobs(whole, where, chosen.build, chosen.quick)


if __name__ == "__main__":
    main()
