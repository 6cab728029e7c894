# SPDX-License-Identifier: Apache-2.0
"""Compares PyTorch loaders on the same images, with Sheaf's own.

tools/bench loader makes the environment and calls this; its --help says how
it is used, docs/performance.md what is measured.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import os
import shutil
import signal
import statistics
import time
import warnings
from pathlib import Path
from typing import Any

from PIL import Image, UnidentifiedImageError

import children
import epochs
import report
import ways
from node import ROOT, Node, base

PARTS = ["warm", "cached", "jobs"]
PIXELS_MAX = 20_000_000


def usable(path: Path) -> bool:
    """An image, and none of the few whose decoding would take longer than
    that of hundreds of others."""
    try:
        with Image.open(path) as image:
            return image.width * image.height <= PIXELS_MAX
    except UnidentifiedImageError:
        return False


def subset(images: Path, out: Path, most: int) -> Path:
    """Copies of every n-th image, ``most`` in all (0: every one). Equal ones
    count once, as they would in the cache: a share of the bytes is one of
    samples then."""
    warnings.simplefilter("ignore", Image.DecompressionBombWarning)
    Image.MAX_IMAGE_PIXELS = None
    distinct = {
        hashlib.sha256(path.read_bytes()).digest(): path
        for path in reversed(ways.files_of(images))
    }
    found = sorted(path for path in distinct.values() if usable(path))
    if len(found) < ways.BATCH:
        raise SystemExit(f"{images}: {len(found)} images; {ways.BATCH} at least")
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
        raise RuntimeError(f"{way.name}: {count} samples of {expected}")
    return count / seconds


def warm(
    images: Path, where: Path, build: Path, decoded: bool, turns: int
) -> None:
    """Every way in turn, round by round; ratios are medians of rounds."""
    node = Node(where, build, "1GiB", "1GiB")
    node.sheaf("add", "bench", str(images))
    report.progress("warm: filling the cache")
    node.sheaf("warmup", "bench")
    mounted = node.mount("bench")
    copies = copies_for(images, where)
    count = len(ways.files_of(images))
    for workers in (0, 2):
        what = f"{'decoded' if decoded else 'raw'}, {workers} workers"
        made: list[Any] = [ways.Sheaf("bench", decoded, workers)]
        made.append(ways.Files(images, decoded, workers))
        made.append(ways.Mount(mounted, decoded, workers))
        for rival, copy in list(copies.items()):
            try:
                made.append(rival(copy, decoded, workers))
            except Exception as error:
                leave_out(copies, rival, ways.why(error))
        rates = rounds(what, made, decoded, count, turns)
        tell(what, rates, goal=1.0 if decoded else 3.0)
        # workers that are forked later would end what these have started
        del made
        gc.collect()
    node.stop()


def leave_out(copies: dict[Any, Path], rival: Any, reason: str) -> None:
    report.skip(f"loader-{rival.name}", reason)
    del copies[rival]


def copies_for(images: Path, where: Path) -> dict[Any, Path]:
    """Where the images are in the formats of rivals; those that work."""
    copies = {rival: where / rival.name for rival in ways.RIVALS}
    for rival, copy in list(copies.items()):
        report.progress(f"warm: writing the copy of {rival.name}")
        try:
            ways.build_apart(rival, images, copy)
        except RuntimeError as error:
            leave_out(copies, rival, str(error))
    return copies


def rounds(
    what: str, made: list[Any], decoded: bool, count: int, number: int
) -> dict[str, list[float]]:
    """Rates by name: an epoch of each in turn, after one to begin with."""
    rates: dict[str, list[float]] = {way.name: [] for way in made}
    for turn in range(number + 1):
        for way in list(made):
            report.progress(
                f"warm: {what}: round {turn} of {number}: {way.name}"
            )
            try:
                found = rate(way, decoded, count)
            except Exception as error:
                if isinstance(way, ways.Sheaf):
                    raise
                report.skip(f"loader-{way.name}: {what}", ways.why(error))
                made.remove(way)
                del rates[way.name]
                continue
            if turn:
                rates[way.name].append(found)
    return rates


def tell(what: str, rates: dict[str, list[float]], goal: float) -> None:
    ours = rates.pop("sheaf")
    medians = {name: statistics.median(found) for name, found in rates.items()}
    for name, found in rates.items():
        report.emit(
            f"{what}: {name}",
            medians[name],
            "samples/s",
            "sheaf",
            statistics.median(a / b for a, b in zip(found, ours)),
        )
    best = max(medians, key=lambda name: medians[name])
    report.emit(
        f"{what}: sheaf",
        statistics.median(ours),
        "samples/s",
        best,
        statistics.median(a / b for a, b in zip(ours, rates[best])),
        goal=goal,
    )


def faultfs_of(build: Path) -> Path | None:
    for where in (build, ROOT / "build/debug"):
        path = where / "tests/flow/faultfs"
        if path.exists():
            return path
    return None


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tools/bench loader")
    parser.add_argument("images", type=Path)
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def main() -> None:
    chosen = arguments()
    children.watch_signals()
    children.end_with_parent(signal.SIGTERM)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

    report.begin(not chosen.json)
    where = base()
    report.progress("copying the images")
    whole = subset(chosen.images.resolve(), where / "whole", 0)
    parts = [chosen.only] if chosen.only else PARTS
    turns = 3 if chosen.quick else 5
    if "warm" in parts:
        # decoding is slow, and its rate does not depend on their number
        few = subset(whole, where / "few", 192 if chosen.quick else 2048)
        raw = subset(whole, where / "2048", 2048) if chosen.quick else whole
        warm(raw, where / "raw", chosen.build, False, turns)
        warm(few, where / "decoded", chosen.build, True, turns)
    if "cached" in parts:
        faultfs = faultfs_of(chosen.build)
        if faultfs is None:
            report.skip(
                "loader-cached",
                "no tests/flow/faultfs, which slows the origin; build it: "
                f"cmake --build {chosen.build} --target faultfs",
            )
        else:
            epochs.cached(whole, where, chosen.build, chosen.quick, faultfs)
    if "jobs" in parts:
        epochs.jobs(whole, where, chosen.build, chosen.quick)
    report.end()


if __name__ == "__main__":
    main()
