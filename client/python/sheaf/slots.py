# SPDX-License-Identifier: Apache-2.0
"""Slots as indices.

A slot of an epoch travels through samplers and frameworks as one int: bit 62
set, the epoch in bits 40 to 61, a check in bits 32 to 39 and the slot's number
below. The check tells the Dataset that the slot was meant for it; 0 is none.
Every other int is a literal sample.
"""

from __future__ import annotations

import operator
from typing import SupportsIndex

MARK = 1 << 62
EPOCHS = 1 << 22
_EPOCH_SHIFT = 40
_CHECK_SHIFT = 32
_SLOT_MASK = (1 << 32) - 1


def base(epoch: int, check: int = 0) -> int:
    """Index of slot 0 of ``epoch``; those of the others follow it."""
    if not 0 <= epoch < EPOCHS:
        raise ValueError(f"epoch {epoch} is not in 0 .. {EPOCHS - 1}")
    return MARK | epoch << _EPOCH_SHIFT | check << _CHECK_SHIFT


def is_slot(index: SupportsIndex) -> bool:
    """Whether an index (also a torch or NumPy integer) is a slot."""
    return operator.index(index) >> 62 == 1


def slot_of(index: SupportsIndex) -> tuple[int, int]:
    """``(epoch, slot)`` of an index that is a slot; else ValueError."""
    number = operator.index(index)
    if number >> 62 != 1:
        raise ValueError(f"{number} is a literal sample, not a slot")
    return number >> _EPOCH_SHIFT & (EPOCHS - 1), number & _SLOT_MASK


def check_of(index: int) -> int:
    """What a slot's index tells of its Dataset and job; 0: nothing."""
    return index >> _CHECK_SHIFT & 255
