# SPDX-License-Identifier: Apache-2.0
"""Accelerate in two processes: every way it shards, and its resumes."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("accelerate")
pytest.importorskip("torchdata")

import ranks  # noqa: E402
from numbers_data import once  # noqa: E402

# What each mode repeats to make ranks or batches equal.
PADDING = {
    "default": 21,
    "workers": 21,
    "uneven": 0,
    "dispatch": 1,
    "dispatch-workers": 1,
    "dispatch-split": 1,
    "split": 5,
    "split-uneven": 0,
}
MODES = [f"{mode}-{d}" for mode in PADDING for d in (None, "auto")]
LOADERS = ["loader-0", "loader-2"]
SKIPS = [f"skip-{same}-{d}" for same in (False, True) for d in (None, "auto")]
OTHERS = ["stateful", "registered", "lost_begin"]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tmp_path_factory.mktemp("accelerate")


@pytest.fixture(scope="module")
def results(numbers, directory):
    return ranks.launch(
        "ranks_accelerate.py",
        MODES + LOADERS + SKIPS + OTHERS,
        directory / "first",
    )


@pytest.fixture(scope="module")
def second(results, directory):
    """Processes that go on with what the first ones began."""
    return ranks.launch(
        "ranks_accelerate.py", ["lost_rest"], directory / "second"
    )


@pytest.mark.parametrize("scenario", MODES)
def test_modes(results, scenario):
    """Exactly once whether the sampler is told of ranks or finds out."""
    padding = PADDING[scenario.rsplit("-", 1)[0]]
    epochs = list(zip(*ranks.outcome(results, scenario)))
    for parts in epochs:
        once(sum(parts, []), padding)
    assert epochs[0] != epochs[1], "an order twice"


@pytest.mark.parametrize("scenario", LOADERS)
def test_loader(results, scenario):
    """prepare() leaves a Loader alone; save_state keeps its position."""
    parts = ranks.outcome(results, scenario)
    once(sum((part["epochs"][0] for part in parts), []), padding=1)
    once(sum((part["begun"] + part["rest"] for part in parts), []), padding=1)
    once(sum((part["next"] for part in parts), []), padding=1)


@pytest.mark.parametrize("scenario", SKIPS)
def test_skip_first_batches(results, scenario):
    parts = ranks.outcome(results, scenario)
    once(sum((part["begun"] + part["rest"] for part in parts), []), padding=21)


def test_stateful(results):
    """With set_epoch after the state was loaded."""
    parts = ranks.outcome(results, "stateful")
    once(sum((part["begun"] + part["rest"] for part in parts), []), padding=21)


def test_a_registered_sampler_is_refused(results):
    """It is ahead of training: what was prefetched would never be trained."""
    for part in ranks.outcome(results, "registered"):
        assert "register_for_checkpointing() a sheaf.Loader" in part["refused"]
        assert len(part["begun"]) == 20 * 16


@pytest.mark.parametrize("way", ["skip", "stateful"])
def test_a_lost_epoch_is_told(second, way):
    """Slots of epoch 0 again: not what was meant, and not silent."""
    for warned in ranks.outcome(second, "lost_rest"):
        assert any("asked for again" in text for text in warned[way]), warned
