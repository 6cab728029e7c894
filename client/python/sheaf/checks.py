# SPDX-License-Identifier: Apache-2.0
"""Arguments that are wrong are refused where they are given, by name, and not
where they are used: that may be in a worker, or nowhere."""

from __future__ import annotations

import operator
import os
from typing import Any

_SECONDS_MAX = 10**9


def whole(name: str, value: Any, low: int, high: int) -> int:
    """An integer from ``low`` to ``high``; torch's and NumPy's are. TypeError,
    ValueError."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name}={value!r}: an integer") from None
    if not low <= number <= high:
        raise ValueError(f"{name}={number}: {low} to {high}")
    return number


def seconds(name: str, value: Any) -> float:
    """A time to wait. TypeError, ValueError: also without an end."""
    if isinstance(value, str) or not hasattr(value, "__float__"):
        raise TypeError(f"{name}={value!r}: seconds")
    number = float(value)
    if not 0 < number <= _SECONDS_MAX:
        raise ValueError(
            f"{name}={number}: seconds, more than 0 and at most {_SECONDS_MAX}"
        )
    return number


def text(name: str, value: Any, most: int) -> str:
    """Text of 1 to ``most`` bytes of UTF-8, without NUL. TypeError,
    ValueError."""
    if not isinstance(value, str):
        raise TypeError(f"{name}={value!r}: text")
    try:
        length = len(value.encode())
    except UnicodeEncodeError:
        raise ValueError(f"{name}={value!r}: has no UTF-8") from None
    if not 0 < length <= most:
        raise ValueError(f"{name}: 1 to {most} bytes")
    if "\0" in value:
        raise ValueError(f"{name}={value!r}: has a NUL")
    return value


def flag(name: str, value: Any) -> bool:
    """True or False; NumPy's are. TypeError: text would always be true."""
    if type(value).__name__ not in ("bool", "bool_"):
        raise TypeError(f"{name}={value!r}: True or False")
    return bool(value)


def function(name: str, value: Any) -> None:
    """A function, or None. TypeError."""
    if value is not None and not callable(value):
        raise TypeError(f"{name}={value!r}: a function")


def path(name: str, value: Any) -> str | None:
    """A path as text, or None. TypeError."""
    if value is None:
        return None
    if not isinstance(value, (str, os.PathLike)):
        raise TypeError(f"{name}={value!r}: a path")
    return os.fsdecode(value)
