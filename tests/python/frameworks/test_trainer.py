# SPDX-License-Identifier: Apache-2.0
"""transformers.Trainer with the mixin and with the callback alone."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("accelerate")

import ranks  # noqa: E402
from numbers_data import COUNT, once, open_numbers, served  # noqa: E402

STRAIGHT = ["mixin-0", "mixin-2", "callback-0"]
KINDS = ["mixin", "callback", "bare", "loader"]
# What Accelerate repeats to make the ranks' batches equal.
PADDING = {1: 0, 2: 21}


@pytest.fixture(scope="module", params=[1, 2], ids=["one", "two"])
def results(request, numbers, tmp_path_factory):
    """(ranks, what the first processes gave, what those that resume gave)."""
    world, directory = request.param, tmp_path_factory.mktemp("trainer")
    first = [*STRAIGHT, "evaluate", *(f"begin-{kind}" for kind in KINDS)]
    second = [f"rest-{kind}" for kind in KINDS]
    return (
        world,
        *(
            ranks.launch(
                "ranks_trainer.py", scenarios, directory / name, world
            )
            for name, scenarios in (("first", first), ("second", second))
        ),
    )


def epoch_of(parts, epoch: int) -> list[int]:
    return sum((part.get(str(epoch), []) for part in parts), [])


@pytest.mark.parametrize("scenario", STRAIGHT)
def test_straight(results, scenario):
    world, found, _ = results
    parts = ranks.outcome(found, scenario)
    dataset = open_numbers(f"hf-{scenario}-{world}")
    for epoch in range(3):
        once(epoch_of(parts, epoch), PADDING[world])
        batch = parts[0][str(epoch)][:16]
        assert batch == served(dataset, epoch)[:16], f"not epoch {epoch}"


@pytest.mark.parametrize("kind", ["mixin", "callback"])
def test_resume(results, kind):
    """Epoch 1 from both runs, once; epoch 2 whole."""
    world, first, second = results
    before = ranks.outcome(first, f"begin-{kind}")
    after = [part["seen"] for part in ranks.outcome(second, f"rest-{kind}")]
    once(epoch_of(before, 0), PADDING[world])
    once(epoch_of(before, 1) + epoch_of(after, 1), PADDING[world])
    once(epoch_of(after, 2), PADDING[world])


@pytest.mark.parametrize("kind", ["bare", "loader"])
def test_resume_without_the_callback_is_told(results, kind):
    """Slots of epoch 0 again: not what was meant, and not silent."""
    _, first, second = results
    parts = ranks.outcome(second, f"rest-{kind}")
    joined = epoch_of(ranks.outcome(first, f"begin-{kind}"), 1)
    joined += epoch_of([part["seen"] for part in parts], 1)
    if len(set(joined)) < COUNT:
        for part in parts:
            assert any("asked for again" in text for text in part["warned"])


def test_evaluation_is_literal(results):
    """In order, the last batch filled up from the beginning."""
    _, found, _ = results
    parts = ranks.outcome(found, "evaluate")
    seen = sum(parts, [])
    assert set(seen) == set(range(COUNT))
    assert parts[0][:16] == list(range(16))
