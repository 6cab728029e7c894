# SPDX-License-Identifier: Apache-2.0
"""Batches of Samples."""

from __future__ import annotations

from array import array
from typing import Any, Callable, cast

import torch
from torch.utils.data._utils.collate import collate as torch_collate
from torch.utils.data._utils.collate import default_collate_fn_map

from .sample import Sample, numbers_of
from .source import Spec, samples_again


class Batch(list[Sample]):
    """The Samples of a batch. From a DataLoader worker it travels as a list of
    ids: the receiver pins the same memory again, and no byte is copied."""

    @property
    def labels(self) -> torch.Tensor:
        """int64 of shape (batch,)."""
        return torch.tensor([s.label for s in self], dtype=torch.int64)

    @property
    def ids(self) -> torch.Tensor:
        """int64 of shape (batch,)."""
        return torch.tensor([s.id for s in self], dtype=torch.int64)

    @property
    def keys(self) -> list[str]:
        """Paths below the dataset's root."""
        return [s.key for s in self]

    def tensors(self, copy: bool = True) -> list[torch.Tensor]:
        """``Sample.tensor`` of each."""
        return [s.tensor(copy=copy) for s in self]

    def __reduce__(self) -> Any:
        if not self or any(s.source is not self[0].source for s in self):
            return Batch, (list(self),)
        return _again, (self[0].source.spec, numbers_of(self))


def _again(spec: Spec, numbers: "array[int]") -> Batch:
    return Batch(cast(list[Sample], samples_again(spec, numbers, Sample)))


def _samples(
    batch: list[Sample],
    *,
    collate_fn_map: dict[type, Callable[..., Any]] | None = None,
) -> Batch:
    return Batch(batch)


_MAP = {Sample: _samples, **default_collate_fn_map}


def collate(items: list[Any]) -> Any:
    """torch's default collate, which also knows Samples: they become a
    :class:`Batch`, wherever they stand in an item."""
    return torch_collate(items, collate_fn_map=_MAP)
