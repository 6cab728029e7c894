# SPDX-License-Identifier: Apache-2.0
"""Labels as ImageFolder has them: the top-level folder, sorted by name.

Files are in the order of their paths, so those of a folder follow one another
and a binary search finds its end: classes are known after a few look-ups a
folder, whatever the number of files.
"""

from __future__ import annotations

from .source import Source


def _top(path: str) -> str | None:
    folder, slash, _ = path.partition("/")
    return folder if slash else None


def _end_of_run(source: Source, start: int, top: str | None) -> int:
    low, step, n = start, 1, len(source)
    while low + step < n and _top(source.path(low + step)) == top:
        low += step
        step *= 2
    high = min(low + step, n)
    while high - low > 1:
        middle = (low + high) // 2
        if _top(source.path(middle)) == top:
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
        top = _top(source.path(start))
        runs.append((start, top))
        start = _end_of_run(source, start, top)
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
