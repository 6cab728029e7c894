# SPDX-License-Identifier: Apache-2.0
"""The daemon of these tests, and what needs a fresh name in it."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import numbers_data  # noqa: E402


@pytest.fixture(scope="module")
def numbers(node):
    """The dataset of numbers_data, and its name for other processes."""
    root = node.origin / "numbers"
    numbers_data.make(root)
    node.sheaf("add", "numbers", str(root))
    os.environ["SHEAF_TEST_DATASET"] = "numbers"
    return "numbers"


@pytest.fixture
def job(request: pytest.FixtureRequest) -> Callable[[], str]:
    """Names of jobs that no other test uses."""
    count = itertools.count()
    return lambda: f"{request.node.nodeid[-80:]}-{next(count)}"
