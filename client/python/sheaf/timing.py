# SPDX-License-Identifier: Apache-2.0
"""When a batch was fetched and prepared, for whoever profiles a Loader.

A Dataset notes it for each batch, in the process and thread that read it; what
runs next there, the collate function, may take it along with the batch.
Times are of CLOCK_MONOTONIC, which all processes of a machine share.
"""

from __future__ import annotations

import threading
import time
from typing import NamedTuple


class Times(NamedTuple):
    """Seconds: when the batch was begun, was no more held back to keep in
    step, had its bytes, and was prepared."""

    begun: float
    paced: float
    fetched: float
    prepared: float


_here = threading.local()
now = time.monotonic


def note(begun: float, paced: float, fetched: float) -> float:
    """A batch is prepared now, at the time that this gives."""
    prepared = now()
    _here.times = Times(begun, paced, fetched, prepared)
    return prepared


def last() -> Times | None:
    """Of this thread's last batch."""
    return getattr(_here, "times", None)
