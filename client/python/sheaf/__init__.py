# SPDX-License-Identifier: Apache-2.0
"""Sheaf for Python: datasets of the node's cache, for PyTorch.

    ds = sheaf.Dataset("imagenet/train", decode="jpeg", transform=tf)
    for images, labels in sheaf.Loader(ds, batch_size=256, num_workers=8):
        ...

The user guide is docs/python.md. torch is imported by what needs it only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._sheaf import VERSION as __version__
from .dataset import Dataset
from .errors import GroupMismatch, JobError, StateError
from .onerror import Failure
from .augment import rng
from .sample import Sample
from .slots import is_slot, slot_of
from .stats import Stats

if TYPE_CHECKING:
    from .batches import Batch, collate
    from .coordinated import CoordinatedLoader
    from .fs import open_fs
    from .loader import Loader
    from .profile import StallProfiler, StallReport, WhatIf, whatif
    from .sampler import SlotSampler

_LAZY = {
    "Batch": "batches",
    "CoordinatedLoader": "coordinated",
    "collate": "batches",
    "Loader": "loader",
    "StallProfiler": "profile",
    "StallReport": "profile",
    "WhatIf": "profile",
    "open_fs": "fs",
    "whatif": "profile",
    "SlotSampler": "sampler",
}

__all__ = [
    "Batch",
    "CoordinatedLoader",
    "Dataset",
    "Failure",
    "GroupMismatch",
    "JobError",
    "Loader",
    "Sample",
    "SlotSampler",
    "StallProfiler",
    "StallReport",
    "StateError",
    "Stats",
    "WhatIf",
    "__version__",
    "collate",
    "is_slot",
    "open_fs",
    "rng",
    "slot_of",
    "whatif",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'sheaf' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f".{_LAZY[name]}", __name__), name)
    globals()[name] = value
    return value
