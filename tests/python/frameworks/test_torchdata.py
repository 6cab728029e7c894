# SPDX-License-Identifier: Apache-2.0
"""torchdata: StatefulDataLoader and nodes, resumed in the middle."""

from __future__ import annotations

import copy

import pytest

pytest.importorskip("torch")
stateful = pytest.importorskip("torchdata.stateful_dataloader")
nodes = pytest.importorskip("torchdata.nodes")

import sheaf  # noqa: E402
from numbers_data import BATCH, COUNT, flat, once, open_numbers, served  # noqa: E402

pytestmark = pytest.mark.usefixtures("numbers")

# Where a run stops in epoch 1: batches.
STOPS = [1, 20, 62]


def make(dataset, workers: int, every: int = 1):
    return stateful.StatefulDataLoader(
        dataset,
        BATCH,
        sampler=sheaf.SlotSampler(dataset),
        num_workers=workers,
        snapshot_every_n_steps=every,
    )


def run_to(loader, stop: int):
    """Epoch 0, then @stop batches of epoch 1: what came, and the state."""
    once(flat(loader))
    begun = []
    for i, batch in enumerate(loader, 1):
        begun += flat([batch])
        if i == stop:
            break
    return begun, copy.deepcopy(loader.state_dict())


@pytest.mark.parametrize("workers", [0, 2])
def test_epochs(workers, job):
    dataset = open_numbers(job())
    loader = make(dataset, workers)
    for epoch in range(3):
        numbers = flat(loader)
        once(numbers)
        assert numbers == served(dataset, epoch), f"not epoch {epoch}"


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("every", [1, 7])
def test_resume(workers, every, stop, job):
    """Epoch 1 goes on where it was, and epoch 2 is whole."""
    name = job()
    begun, state = run_to(make(open_numbers(name), workers, every), stop)
    again = make(open_numbers(name), workers, every)
    again.load_state_dict(state)
    once(begun + flat(again))
    numbers = flat(again)
    once(numbers)
    assert numbers == served(open_numbers(name), 2)


@pytest.mark.parametrize("workers", [0, 2])
def test_resume_after_the_last_batch(workers, job):
    """torchdata's first loop is empty then; no sample comes twice."""
    name = job()
    _, state = run_to(make(open_numbers(name), workers), -(-COUNT // BATCH))
    again = make(open_numbers(name), workers)
    again.load_state_dict(state)
    rest = flat(again) or flat(again)
    once(rest)
    assert rest == served(open_numbers(name), 2)


@pytest.mark.parametrize(("before", "after"), [(2, 0), (0, 2), (2, 1)])
def test_other_workers_are_refused(before, after, job):
    """torchdata's own limit, and loud. Loader has none."""
    name = job()
    _, state = run_to(make(open_numbers(name), before), 20)
    again = make(open_numbers(name), after)
    again.load_state_dict(state)
    with pytest.raises((AssertionError, KeyError, RuntimeError, ValueError)):
        flat(again)


def chain(dataset):
    """sampler, four threads that fetch, batches."""
    source = nodes.SamplerWrapper(sheaf.SlotSampler(dataset))
    mapped = nodes.ParallelMapper(
        source, dataset.__getitem__, num_workers=4, method="thread"
    )
    return nodes.Loader(nodes.Batcher(mapped, BATCH, drop_last=False))


def test_nodes(job):
    dataset = open_numbers(job())
    loader = chain(dataset)
    for _ in range(3):
        once(flat(loader))


@pytest.mark.parametrize("stop", STOPS)
def test_nodes_resume(stop, job):
    name = job()
    begun, state = run_to(chain(open_numbers(name)), stop)
    again = chain(open_numbers(name))
    again.load_state_dict(state)
    once(begun + flat(again))
    once(flat(again))
