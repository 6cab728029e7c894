# SPDX-License-Identifier: Apache-2.0
"""Plain torch.utils.data.DataLoader, and Loader in its place."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader  # noqa: E402

import sheaf  # noqa: E402
from numbers_data import BATCH, COUNT, flat, once, open_numbers, served  # noqa: E402

pytestmark = pytest.mark.usefixtures("numbers")

WAYS = [
    (0, None, False),
    (1, "fork", True),
    (4, "fork", True),
    (4, "fork", False),
    (1, "forkserver", True),
    (1, "spawn", False),
    (4, "spawn", True),
]


def make(kind: str, dataset, workers: int, method, persistent: bool, **more):
    if workers:
        more |= {
            "num_workers": workers,
            "multiprocessing_context": method,
            "persistent_workers": persistent,
        }
    if kind == "loader":
        return sheaf.Loader(dataset, batch_size=BATCH, **more)
    sampler = sheaf.SlotSampler(dataset)
    return DataLoader(dataset, BATCH, sampler=sampler, **more)


# Workers that start afresh take seconds: one kind is enough there.
@pytest.mark.parametrize(
    ("workers", "method", "persistent", "kind"),
    [(*way, "loader") for way in WAYS]
    + [(*way, "plain") for way in WAYS if way[1] in (None, "fork")],
    ids=str,
)
def test_epochs(workers, method, persistent, kind, job):
    """Four epochs with abandoned iterators between them: each complete."""
    dataset = open_numbers(job())
    loader = make(kind, dataset, workers, method, persistent)
    assert len(loader) == -(-COUNT // BATCH)
    orders = []
    for epoch in range(4 if method in (None, "fork") else 2):
        orders.append(flat(loader))
        once(orders[-1])
        if epoch == 0:
            for i, _ in enumerate(loader):  # an early break
                if i == 3:
                    break
        elif epoch == 1:
            iter(loader)
        else:
            next(iter(loader))
    assert all(a != b for a, b in zip(orders, orders[1:])), "an order twice"


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("batch", [None, BATCH])
def test_epochs_are_counted_from_none(workers, batch, job):
    """torch calls iter() twice an epoch here: epochs stay 0, 1, 2."""
    dataset = open_numbers(job())
    sampler = sheaf.SlotSampler(dataset)
    loader = DataLoader(dataset, batch, sampler=sampler, num_workers=workers)
    for epoch in range(3):
        if batch is None:
            numbers = [int(number) for number in loader]
        else:
            numbers = flat(loader)
        once(numbers)
        assert numbers == served(dataset, epoch), f"not epoch {epoch}"


@pytest.mark.parametrize("workers", [0, 2])
def test_set_epoch_governs(workers, job):
    """With persistent workers, too, and back to an earlier epoch."""
    dataset = open_numbers(job())
    loader = make("loader", dataset, workers, None, workers > 0)
    for epoch in (1, 0, 2):
        loader.set_epoch(epoch)
        assert flat(loader) == served(dataset, epoch), f"not epoch {epoch}"


@pytest.mark.parametrize("drop_last", [False, True])
def test_drop_last(drop_last, job):
    dataset = open_numbers(job())
    loader = sheaf.Loader(dataset, batch_size=BATCH, drop_last=drop_last)
    batches = [list(batch) for batch in loader]
    assert len(batches) == len(loader)
    if drop_last:
        assert {len(batch) for batch in batches} == {BATCH}
        assert len(set(flat(batches))) == COUNT // BATCH * BATCH
    else:
        once(flat(batches))


@pytest.mark.parametrize("stop", [0, 1, 20, 62, 63])
@pytest.mark.parametrize("workers", [(0, 2), (2, 0), (2, 1)])
def test_loader_resumes(stop, workers, job):
    """In the middle and at both ends, with other workers."""
    name = job()
    dataset = open_numbers(name)
    loader = make("loader", dataset, workers[0], None, False)
    flat(loader)
    begun = []
    if stop:
        for i, batch in enumerate(loader, 1):
            begun += flat([batch])
            if i == stop:
                break
    state = loader.state_dict()

    again = make("loader", open_numbers(name), workers[1], None, False)
    again.load_state_dict(state)
    rest = flat(again)
    if stop in (0, 63):  # the end of an epoch is the beginning of the next
        once(rest)
        assert rest == served(dataset, 1 + (stop == 63))
    else:
        once(begun + rest)
    once(flat(again))


def test_completion_order_has_no_state(job):
    """in_order=False: epochs are complete, positions mean nothing."""
    dataset = open_numbers(job())
    loader = make("loader", dataset, 2, None, False, in_order=False)
    once(flat(loader))
    batches = iter(loader)
    next(batches)
    with pytest.raises((RuntimeError, ValueError), match="in_order"):
        loader.state_dict()


def test_pinned_memory_without_a_device(job):
    """One warning of torch's, and the right numbers."""
    dataset = open_numbers(job())
    loader = make("loader", dataset, 2, None, False, pin_memory=True)
    with pytest.warns(UserWarning, match="pin_memory"):
        once(flat(loader))
