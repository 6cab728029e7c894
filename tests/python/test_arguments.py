# SPDX-License-Identifier: Apache-2.0
"""Wrong arguments and damaged states: refused where they are given, by name,
and never taken for something else."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy
import pytest
import sheaf
import torch
from conftest import N, Node
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    Subset,
    random_split,
)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"name": 5}, TypeError),
        ({"name": "a\0b"}, ValueError),
        ({"name": "\udcff"}, ValueError),
        ({"transform": 5}, TypeError),
        ({"decode": 5}, ValueError),
        ({"job": 5}, TypeError),
        ({"job": ""}, ValueError),
        ({"job": "x" * 129}, ValueError),
        ({"job": "a\0b"}, ValueError),
        ({"job": "\udcff"}, ValueError),
        ({"order": None}, ValueError),
        ({"window": 100}, ValueError),  # of another order
        ({"window": 0, "order": "window"}, ValueError),
        ({"window": -1, "order": "window"}, ValueError),
        ({"window": 1 << 32, "order": "window"}, ValueError),
        ({"window": 1.5, "order": "window"}, TypeError),
        ({"seed": 1.5}, TypeError),
        ({"seed": -1}, ValueError),
        ({"seed": 1 << 64}, ValueError),
        ({"on_error": "skip"}, ValueError),
        ({"on_daemon_loss": None}, ValueError),
        ({"ahead": 1.5}, TypeError),
        ({"ahead": -1}, ValueError),
        ({"timeout": None}, TypeError),
        ({"timeout": "5"}, TypeError),
        ({"timeout": 0}, ValueError),
        ({"timeout": float("nan")}, ValueError),
        ({"timeout": float("inf")}, ValueError),
        ({"socket": 5}, TypeError),
        ({"pin_bytes": -1}, ValueError),
        ({"pin_bytes": "1M"}, TypeError),
        ({"replay": True}, ValueError),
        ({"replay": 1, "job": "x"}, TypeError),
        ({"pace": "no"}, TypeError),
    ],
    ids=str,
)
def test_wrong_options(options: dict[str, Any], error: type) -> None:
    with pytest.raises(error, match=list(options)[0]):
        sheaf.Dataset(**{"name": "data", **options})


def test_wrong_options_of_samplers(data: str) -> None:
    """Also where two of them would say different things: the sampler's part
    would be read by each rank."""
    ds = sheaf.Dataset(data, job="wrong-samplers")
    with pytest.raises(TypeError, match="drop_last"):
        sheaf.SlotSampler(ds, drop_last="no")
    for sampler in (sheaf.SlotSampler(ds), sheaf.SlotSampler(ds, (0, 2))):
        batches = BatchSampler(sampler, 4, False)
        for wrong in ((1, 2), None, numpy.array([1, 2])):
            with pytest.raises(ValueError, match="distributed"):
                sheaf.Loader(ds, 4, sampler=sampler, distributed=wrong)
            with pytest.raises(ValueError, match="distributed"):
                sheaf.Loader(ds, batch_sampler=batches, distributed=wrong)
        for right in ("auto", sampler.distributed):
            sheaf.Loader(ds, 4, sampler=sampler, distributed=right)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"group": 5}, TypeError),
        ({"group": ""}, ValueError),
        ({"group": "a\0b"}, ValueError),
        ({"group": "\udcff"}, ValueError),
        ({"drop_last": "no"}, TypeError),
        ({"drop_last": 1}, TypeError),
        ({"distributed": "no"}, ValueError),
        ({"distributed": (2, 2)}, ValueError),
        ({"distributed": numpy.array([2, 2])}, ValueError),
        ({"multiprocessing_context": 5}, TypeError),
        ({"multiprocessing_context": "thread"}, ValueError),
        ({"batch_size": None}, TypeError),
        ({"members": 0}, ValueError),
        ({"patience": 0}, ValueError),
        ({"lease": "1"}, TypeError),
        ({"timeout": float("inf")}, ValueError),
        ({"seed": 1.5}, TypeError),
        ({"transform": 5}, TypeError),
        ({"collate_fn": 5}, TypeError),
        ({"transform_id": 5}, TypeError),
    ],
    ids=str,
)
def test_wrong_options_of_groups(
    data: str, options: dict[str, Any], error: type
) -> None:
    """When the loader is made, not in the first batch or in a worker."""
    ds = sheaf.Dataset(data)
    name = list(options)[0].removeprefix("multiprocessing_")
    with pytest.raises(error, match=name):
        sheaf.CoordinatedLoader(ds, **{"group": "wrong", **options})


def test_ranks_of_groups(data: str) -> None:
    """A pair of any type, as for a SlotSampler."""
    ds = sheaf.Dataset(data)
    for ranks in ([0, 17], numpy.array([0, 17]), torch.tensor([0, 17])):
        loader = sheaf.CoordinatedLoader(
            ds, 59, group="ranks", distributed=ranks
        )
        assert len(loader) == 1


def test_options_of_other_types(data: str, node: Node) -> None:
    """Paths, and the integers and floats of NumPy and torch."""
    ds = sheaf.Dataset(
        data,
        order="window",
        window=numpy.int64(50),
        seed=torch.tensor(3),
        timeout=numpy.float32(30),
        socket=Path(node.socket),
        pace=numpy.bool_(False),
    )
    assert ds[sheaf.slots.base(0)].slot == 0


def test_what_has_no_slots(data: str) -> None:
    """What wraps a Dataset counts differently: an error with the remedy."""
    ds = sheaf.Dataset(data)
    part, _ = random_split(ds, [N - 100, 100])
    for other in (part, Subset(ds, [1, 2]), [1, 2]):
        for make in (sheaf.SlotSampler, sheaf.Loader):
            with pytest.raises(TypeError, match=r"split\(\)"):
                make(other)
    # Frameworks that split an epoch leave such a sampler as it is.
    assert isinstance(sheaf.Loader(ds).sampler, DistributedSampler)


def test_wrong_ranks(data: str) -> None:
    """A pair of another type is a pair; nothing else means all slots."""
    ds = sheaf.Dataset(data, job="wrong-ranks")
    for ranks in ([1, 2], numpy.array([1, 2]), torch.tensor([1, 2])):
        assert len(sheaf.SlotSampler(ds, ranks)) == -(-N // 2)
    for wrong in ("no", 5, (1,), (0, 1, 2), (2, 2), (-1, 2), (0.0, 2), ()):
        with pytest.raises(ValueError, match="distributed"):
            sheaf.SlotSampler(ds, wrong)
        with pytest.raises(ValueError, match="distributed"):
            sheaf.Loader(ds, 2, distributed=wrong)


def test_wrong_epochs(data: str) -> None:
    """Refused when they are named, and forgotten then."""
    loader = sheaf.Loader(sheaf.Dataset(data), 500)
    for wrong in (-1, 1 << 22, 1 << 40):
        with pytest.raises(ValueError, match="epoch"):
            loader.set_epoch(wrong)
    for wrong in (1.5, "1", None):
        with pytest.raises(TypeError, match="epoch"):
            loader.set_epoch(wrong)
    for epoch in (0, numpy.int64(1), torch.tensor(2)):
        loader.set_epoch(epoch)
        ((first, *_),) = itertools.islice(loader, 1)
        assert first.epoch == epoch and type(first.epoch) is int
        assert loader.state_dict()["epoch"] == epoch


def test_wrong_parts(data: str) -> None:
    ds = sheaf.Dataset(data)
    with pytest.raises(TypeError, match="mask"):
        ds.subset([True, False, True])
    with pytest.raises(TypeError):
        ds.subset(numpy.arange(N) % 2 == 0)
    with pytest.raises(TypeError, match="name"):
        ds.split([0.5, 0.5])
    with pytest.raises(ValueError, match="'few'"):
        ds.split({"most": 0.9999, "few": 0.0001})
    for shares in ({"a": float("nan")}, {"a": -1.0}, {"a": 10, "b": 7}):
        with pytest.raises(ValueError, match="shares"):
            ds.split(shares)


@pytest.mark.parametrize("order", ["shared", "strict"])
def test_damaged_states(data: str, order: str) -> None:
    """Whatever a field becomes: StateError, or the epoch goes on exactly
    once."""
    ds = sheaf.Dataset(data, order=order)
    loader = sheaf.Loader(ds, 100)
    before = [i for b in itertools.islice(loader, 3) for i in b.ids.tolist()]
    state = loader.state_dict()
    whole = 0
    junk = (None, f"x-{order}", -1, 1.5, [1], 1, 10**20, "missing")
    for field, value in itertools.product(state, junk):
        damaged = {**state, field: value}
        if value == "missing":
            del damaged[field]
        again = sheaf.Loader(sheaf.Dataset(data, order=order), 100)
        try:
            again.load_state_dict(damaged)
            rest = [i for b in again for i in b.ids.tolist()]
        except sheaf.StateError:
            continue
        assert sorted(before + rest) == list(range(N)), (field, value)
        whole += 1
    assert whole < 3 * len(junk)
    for wrong in (None, 5, "x", [], [1], {}):
        with pytest.raises(sheaf.StateError):
            loader.load_state_dict(wrong)
