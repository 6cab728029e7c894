# SPDX-License-Identifier: Apache-2.0
"""Exceptions of the package.

What the cache reports is an ``OSError`` with its errno, the cause and the
remedy as text and the sample's key as ``filename`` (so ``TimeoutError``,
``FileNotFoundError``, ``ConnectionRefusedError`` and ``PermissionError`` are
what they are elsewhere). The classes here are for wrong use.
"""


class StateError(ValueError):
    """A saved state does not fit what it is loaded into; names the field."""


class JobError(RuntimeError):
    """The processes of a run cannot tell that they are one run."""


class GroupMismatch(ValueError):
    """A member of a group prepares something else than the others; names what
    differs, with both values."""
