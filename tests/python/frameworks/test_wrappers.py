# SPDX-License-Identifier: Apache-2.0
"""torch's wrappers of datasets hand out plain ints: literal samples."""

from __future__ import annotations

import random

import pytest

numpy = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")

from torch.utils.data import (  # noqa: E402
    ConcatDataset,
    DataLoader,
    StackDataset,
    Subset,
    WeightedRandomSampler,
    random_split,
)

import sheaf  # noqa: E402
from numbers_data import (  # noqa: E402
    BATCH,
    COUNT,
    failure,
    flat,
    number_of,
    once,
    open_numbers,
    slot,
)

pytestmark = [
    pytest.mark.usefixtures("numbers"),
    pytest.mark.parametrize("workers", [0, 2]),
]


def test_subset(workers, job):
    dataset = open_numbers(job())
    ids = [7, 1002, 0, 500, 7]
    subset = Subset(dataset, ids)
    assert flat(DataLoader(subset, 2, num_workers=workers)) == ids


def test_random_split(workers, job):
    """What was held out stays out, after an epoch of slots, too."""
    dataset = open_numbers(job())
    generator = torch.Generator().manual_seed(3)
    train, held = random_split(dataset, [803, 200], generator)
    once(flat(sheaf.Loader(dataset, batch_size=BATCH, num_workers=workers)))
    for _ in range(2):
        shown = flat(
            DataLoader(train, BATCH, shuffle=True, num_workers=workers)
        )
        assert sorted(shown) == sorted(train.indices)
        assert not set(shown) & set(held.indices)
        shown = flat(DataLoader(held, BATCH, num_workers=workers))
        assert shown == list(held.indices)


def test_concat(workers, job):
    dataset = open_numbers(job())
    both = ConcatDataset([dataset, open_numbers(job())])
    numbers = flat(DataLoader(both, BATCH, num_workers=workers))
    assert numbers == [*range(COUNT), *range(COUNT)]


def test_weighted(workers, job):
    dataset = open_numbers(job())
    weights = [1.0 if i % 3 == 0 else 0.0 for i in range(COUNT)]
    sampler = WeightedRandomSampler(
        weights, 300, generator=torch.Generator().manual_seed(5)
    )
    wanted = list(
        WeightedRandomSampler(
            weights, 300, generator=torch.Generator().manual_seed(5)
        )
    )
    loader = DataLoader(dataset, BATCH, sampler=sampler, num_workers=workers)
    assert flat(loader) == wanted


def drawn(sample):
    """What an augmentation draws from each generator that it may use."""
    return (
        number_of(sample),
        random.random(),
        torch.rand(1).item(),
        numpy.random.rand(),
    )


@pytest.mark.parametrize("wrapper", ["split", "concat", "one"])
def test_augmentation_of_plain_ints(wrapper, workers, job):
    """As torch has it: no sample is augmented alike in two epochs, whether it
    is asked for alone or at the head of its batch."""
    dataset = open_numbers(job(), transform=drawn)
    if wrapper == "concat":
        wrapped = ConcatDataset([dataset, dataset])
    else:
        wrapped = Subset(dataset, range(200))
    loader = DataLoader(
        wrapped,
        1 if wrapper == "one" else BATCH,
        sampler=range(150, 200),
        num_workers=workers,
        collate_fn=list,
    )
    epochs = [[item for batch in loader for item in batch] for _ in range(3)]
    assert [item[0] for item in epochs[0]] == list(range(150, 200))
    for kind in (1, 2, 3):
        values = [item[kind] for epoch in epochs for item in epoch]
        assert len(set(values)) == len(values), kind


@pytest.mark.parametrize("wrapper", ["subset", "concat"])
def test_slots_are_no_indices_of_wrappers(wrapper, workers, job):
    """Loud, where a wrapper would count a slot from its own start."""
    dataset = open_numbers(job())
    if wrapper == "subset":
        wrapped = Subset(dataset, range(100))
    else:
        wrapped = ConcatDataset([dataset, dataset])
    loader = DataLoader(
        wrapped,
        BATCH,
        sampler=sheaf.SlotSampler(dataset),
        num_workers=workers,
    )
    assert isinstance(failure(loader), IndexError)


def test_pairs_of_two_jobs(workers, job):
    """A slot has another sample in each job: pairing them is refused."""
    first, second = open_numbers(job()), open_numbers(job())
    pairs = StackDataset(first, second)
    loader = DataLoader(
        pairs,
        BATCH,
        sampler=sheaf.SlotSampler(first),
        num_workers=workers,
    )
    error = failure(loader)
    assert isinstance(error, ValueError)
    assert "slot 0 is of another" in str(error)


def test_pairs_of_literal_ids(workers, job):
    pairs = StackDataset(open_numbers(job()), open_numbers(job()))
    for left, right in DataLoader(pairs, BATCH, num_workers=workers):
        assert left.tolist() == right.tolist()


def test_index_types(workers, job):
    """torch's and numpy's integers are integers; floats and -1 no slots."""
    dataset = open_numbers(job())
    for kind in (int, torch.tensor, numpy.int64, numpy.uint16):
        assert dataset[kind(17)] == 17
    sheaf.SlotSampler(dataset)
    tagged = slot(0, 5)
    assert dataset[torch.tensor(tagged)] == dataset[tagged]
    assert dataset[numpy.int64(tagged)] == dataset[tagged]
    assert dataset[-1] == COUNT - 1  # literal, as a list has it
    for wrong in (COUNT, -COUNT - 1, slot(0, COUNT)):
        with pytest.raises(IndexError):
            dataset[wrong]
    with pytest.raises(TypeError):
        dataset[float(tagged)]
