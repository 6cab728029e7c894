# SPDX-License-Identifier: Apache-2.0
"""Going on without the daemon, for Datasets with ``on_daemon_loss="origin"``.

The daemon is lost when a call could not reach it within its timeout. From then
on files are read from the directory that was added, as this process may read
it, until the daemon takes connections again. A file is given only if it is, by
inode, size and times, the one that was listed, so no other version's bytes are
ever mixed in. The digests of what was cached are the daemon's, and not asked
for here.
"""

from __future__ import annotations

import errno
import threading
import time
import warnings

from . import _sheaf

GONE = {errno.ECONNREFUSED, errno.ECONNRESET}
_LOOK_S = 1.0  # between looks whether it is back


def is_gone(error: BaseException) -> bool:
    """Whether this says that nobody listens at the daemon's socket."""
    return (
        isinstance(error, OSError)
        and error.errno in GONE
        and error.filename is None
    )


class Loss:
    """Whether a Source's daemon is lost, and what was read meanwhile."""

    def __init__(self) -> None:
        self.losses = 0
        self.samples = 0
        self.bytes = 0
        self._lost = False
        self._look_at = 0.0
        self._lock = threading.Lock()

    def lasts(self, source: _sheaf.Source) -> bool:
        """Whether the daemon is better not asked now. Looks at its socket,
        without waiting, about once a second."""
        if not self._lost:
            return False
        now = time.monotonic()
        with self._lock:
            if now < self._look_at:
                return True
            self._look_at = now + _LOOK_S
        return not source.is_served()

    def begins(self, name: str, error: BaseException) -> None:
        """The daemon was not there within the timeout. Warns the first time
        in a process."""
        with self._lock:
            self._look_at = time.monotonic() + _LOOK_S
            first = self.losses == 0
            self.losses += not self._lost
            self._lost = True
        if first:
            warnings.warn(
                f"sheafd is gone ({error}): {name} is read from its origin "
                "until it is back",
                RuntimeWarning,
                stacklevel=2,
            )

    def ended(self) -> None:
        """The daemon answered."""
        self._lost = False

    def renew(self) -> None:
        """In a forked child: another thread may have held the lock, and what
        was counted is the parent's."""
        self._lock = threading.Lock()
        self.losses = self.samples = self.bytes = 0
