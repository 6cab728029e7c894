# SPDX-License-Identifier: Apache-2.0
"""What the benchmark prints: measures on stdout, as a table or as lines of
JSON; what it is doing, and what it leaves out, on stderr."""

from __future__ import annotations

import json
import sys
import time

# Of lines of progress, where they are not written over one another.
EVERY_S = 10.0

_ROW = "%-50s %10s %-12s %-22s %7s %6s  %s"
_begun = time.monotonic()
_table = False
_said = -EVERY_S
_emitted = _skipped = 0


def begin(table: bool) -> None:
    """How measures are printed."""
    global _table
    _table = table
    if table:
        head = ("MEASURE", "VALUE", "UNIT", "BESIDE", "RATIO", "GOAL", "MET")
        print((_ROW % head).rstrip(), flush=True)


def _clear() -> None:
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr, flush=True)


def note(text: str) -> None:
    """A remark."""
    _clear()
    print(text, file=sys.stderr, flush=True)


def progress(text: str) -> None:
    """What is being done: on a terminal in one line, else now and then."""
    global _said
    now = time.monotonic() - _begun
    line = f"{int(now) // 60}:{int(now) % 60:02} {text}"
    if sys.stderr.isatty():
        print(f"\r\033[K{line[:100]}", end="", file=sys.stderr, flush=True)
    elif now - _said >= EVERY_S:
        _said = now
        print(line, file=sys.stderr, flush=True)


def skip(name: str, reason: str) -> None:
    """Something is not measured; counted."""
    global _skipped
    _skipped += 1
    note(f"SKIP: {name}: {reason}")


def end() -> None:
    """The last line."""
    seconds = int(time.monotonic() - _begun)
    note(
        f"{_emitted} measures, {_skipped} skipped, "
        f"{seconds // 60} min {seconds % 60} s"
    )


def emit(
    name: str,
    value: float,
    unit: str,
    rival: str | None = None,
    ratio: float | None = None,
    goal: float | None = None,
    limit: float | None = None,
) -> None:
    """One measure. ``goal``: met when ``ratio`` reaches it; ``limit``: met
    when ``value`` does not exceed it."""
    global _emitted
    _emitted += 1
    met = None
    if limit is not None:
        goal, met = limit, value <= limit
    elif goal is not None and ratio is not None:
        met = ratio >= goal
    line = {
        "name": name,
        "value": float(f"{value:.4g}"),
        "unit": unit,
        "rival": rival,
        "ratio": None if ratio is None else round(ratio, 3),
        "goal": goal,
        "met": met,
    }
    _clear()
    if _table:
        cells = ["-" if cell is None else cell for cell in line.values()]
        cells[-1] = {True: "yes", False: "NO", None: "-"}[met]
        print(_ROW % tuple(cells), flush=True)
    else:
        print(json.dumps(line), flush=True)
