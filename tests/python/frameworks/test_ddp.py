# SPDX-License-Identifier: Apache-2.0
"""DistributedDataParallel in two processes of torchrun, over gloo."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import ranks  # noqa: E402
import sheaf  # noqa: E402
from numbers_data import BATCH, COUNT, flat, once, open_numbers, served  # noqa: E402

SCENARIOS = [
    "loader",
    "workers",
    "drop_last",
    "plain",
    "made_before",
    "unsharded",
    "default_job",
    "first_half",
]


@pytest.fixture(scope="module")
def results(numbers, tmp_path_factory):
    return ranks.launch(
        "ranks_torch.py", SCENARIOS, tmp_path_factory.mktemp("ddp")
    )


@pytest.mark.parametrize("scenario", ["loader", "workers", "plain"])
def test_epochs(results, scenario):
    """Equal ranks, each sample once, one repeated to make them equal."""
    per_rank = ranks.outcome(results, scenario)
    dataset = open_numbers("ddp-" + scenario)
    for epoch, parts in enumerate(zip(*per_rank)):
        assert [len(part) for part in parts] == [502, 502]
        once(sum(parts, []), padding=1)
        order = served(dataset, epoch)
        assert parts[0] == order[::2]
        assert parts[1] == order[1::2] + order[:1]


def test_drop_last(results):
    for parts in zip(*ranks.outcome(results, "drop_last")):
        assert [len(part) for part in parts] == [496, 496]
        assert len(set(sum(parts, []))) == 992


@pytest.mark.parametrize("scenario", ["made_before", "default_job"])
def test_once(results, scenario):
    for parts in zip(*ranks.outcome(results, scenario)):
        once(sum(parts, []), padding=1)


def test_unsharded_says_so(results):
    for rank in ranks.outcome(results, "unsharded"):
        once(rank["numbers"])
        assert any("distributed=None" in text for text in rank["warned"])


def test_other_world(results):
    """Begun by two ranks, ended by one: exactly once."""
    halves = ranks.outcome(results, "first_half")
    assert halves[0]["state"] == halves[1]["state"]
    loader = sheaf.Loader(open_numbers("ddp-world"), batch_size=BATCH)
    loader.load_state_dict(halves[0]["state"])
    rest = flat(loader)
    once(halves[0]["begun"] + halves[1]["begun"] + rest)
    assert len(rest) == COUNT - 2 * 10 * BATCH
