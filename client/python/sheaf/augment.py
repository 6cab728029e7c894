# SPDX-License-Identifier: Apache-2.0
"""Random numbers of augmentations: the same in every process and at every
number of workers, since they are keyed by what is augmented."""

from __future__ import annotations

import hashlib
import random
import struct
import sys
import threading
from contextlib import contextmanager
from typing import Any, Iterator

_here = threading.local()


def key_of(seed: int, epoch: int, number: int) -> int:
    """64 bits of (seed, epoch, number)."""
    packed = struct.pack("<Qqq", seed & (1 << 64) - 1, epoch, number)
    return int.from_bytes(hashlib.blake2b(packed, digest_size=8).digest())


def enter(seed: int, epoch: int | None, sample: int) -> None:
    """What rng() is keyed by from now on in this thread."""
    _here.key = (seed, -1 if epoch is None else epoch, sample)


def leave() -> None:
    """rng() has no sample any more."""
    _here.key = None


def rng() -> random.Random:
    """Random numbers of the sample that is just decoded or transformed.

    A new ``random.Random``, keyed by (the Dataset's seed, epoch, sample id):
    the same whoever prepares the sample, another one in each epoch. A sample
    that was asked for by id has the epoch -1 every time. RuntimeError outside
    of ``decode`` and ``transform``. ``rng().getrandbits(63)`` seeds others.
    """
    key = getattr(_here, "key", None)
    if key is None:
        raise RuntimeError(
            "sheaf.rng() is keyed by a sample: call it in decode or transform"
        )
    return random.Random(key_of(*key))


def _in_worker() -> bool:
    torch = sys.modules.get("torch")
    return (
        torch is not None and torch.utils.data.get_worker_info() is not None
    )


def _seed_all(key: int) -> None:
    random.seed(key)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.default_generator.manual_seed(key & (1 << 63) - 1)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(key & 0xFFFFFFFF)


@contextmanager
def seeded(key: int) -> Iterator[None]:
    """The global generators of random, torch (CPU) and NumPy, seeded for one
    batch. Outside of a DataLoader worker they are put back afterwards: there
    the model draws from them, too."""
    if _in_worker():
        _seed_all(key)
        yield
        return
    torch: Any = sys.modules.get("torch")
    numpy: Any = sys.modules.get("numpy")
    kept = random.getstate()
    kept_torch = torch.default_generator.get_state() if torch else None
    kept_numpy = numpy.random.get_state() if numpy else None
    _seed_all(key)
    try:
        yield
    finally:
        random.setstate(kept)
        if torch and kept_torch is not None:
            torch.default_generator.set_state(kept_torch)
        if numpy and kept_numpy is not None:
            numpy.random.set_state(kept_numpy)
