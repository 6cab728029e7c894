# SPDX-License-Identifier: Apache-2.0
"""Labels as ImageFolder has them: the top-level folder, sorted by name.

Files are listed breadth first: those of one depth follow one another, and
within it those of one top-level folder. A binary search finds the end of such
a run, so classes are known after a few look-ups a folder and depth, whatever
the number of files.
"""

from __future__ import annotations

from .source import Source


def _run_of(path: str) -> tuple[int, str | None]:
    """(depth, top-level folder)."""
    folder, slash, _ = path.partition("/")
    return path.count("/"), folder if slash else None


def _end_of_run(source: Source, start: int, run: tuple[int, str | None]) -> int:
    low, step, n = start, 1, len(source)
    while low + step < n and _run_of(source.path(low + step)) == run:
        low += step
        step *= 2
    high = min(low + step, n)
    while high - low > 1:
        middle = (low + high) // 2
        if _run_of(source.path(middle)) == run:
            low = middle
        else:
            high = middle
    return high


def classes_of(source: Source) -> list[str]:
    """Names of the top-level folders that hold files, sorted."""
    if source.classes is not None:
        return source.classes
    runs: list[tuple[int, str | None]] = []
    start = 0
    while start < len(source):
        run = _run_of(source.path(start))
        runs.append((start, run[1]))
        start = _end_of_run(source, start, run)
    names = sorted({top for _, top in runs if top is not None})
    number = {name: i for i, name in enumerate(names)}
    source.set_labels(
        [(at, -1 if top is None else number[top]) for at, top in runs]
    )
    source.classes = names
    return names


def label_of(source: Source, ordinal: int) -> int:
    """Label of a file, or -1 in the root."""
    if source.classes is None:
        classes_of(source)
    return source.label(ordinal)
