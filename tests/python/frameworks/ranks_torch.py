# SPDX-License-Identifier: Apache-2.0
"""Scenarios of plain DDP, run by test_ddp.py in two ranks."""

from __future__ import annotations

import datetime
import os
import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

import ranks
import sheaf
from numbers_data import BATCH, flat, open_numbers


def epochs(workers: int, drop_last: bool, job: str) -> Any:
    """Two epochs of a model that all-reduces each step: [[numbers]]."""
    loader = sheaf.Loader(
        open_numbers(job),
        batch_size=BATCH,
        num_workers=workers,
        drop_last=drop_last,
    )
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))
    result = []
    for epoch in range(2):
        loader.set_epoch(epoch)
        result.append([])
        for batch in loader:
            model(batch.float().unsqueeze(1)).sum().backward()
            result[-1] += batch.tolist()
    return result


def plain() -> Any:
    """A DataLoader with the sampler, and set_epoch as DDP's users call it."""
    dataset = open_numbers("ddp-plain")
    sampler = sheaf.SlotSampler(dataset)
    loader = DataLoader(dataset, BATCH, sampler=sampler, num_workers=2)
    result = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        result.append(flat(loader))
    return result


def made_before() -> Any:
    """A sampler made before the process group knows its rank: no stale 0/1."""
    return [flat(EARLY)]


def unsharded() -> Any:
    """distributed=None in two ranks trains everything twice: it says so."""
    dataset = open_numbers("ddp-none")
    loader = DataLoader(
        dataset, BATCH, sampler=sheaf.SlotSampler(dataset, distributed=None)
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        numbers = flat(loader)
    return {"numbers": numbers, "warned": [str(w.message) for w in caught]}


def default_job() -> Any:
    """Without a name the launcher's run is the job of both ranks."""
    return [flat(sheaf.Loader(open_numbers(None), batch_size=BATCH))]


def first_half() -> Any:
    """A state after 10 steps of epoch 0, for one rank to go on with."""
    loader = sheaf.Loader(open_numbers("ddp-world"), batch_size=BATCH)
    begun = []
    for i, batch in enumerate(loader, 1):
        begun += batch.tolist()
        if i == 10:
            return {"begun": begun, "state": loader.state_dict()}
    raise AssertionError("the epoch has no ten steps")


if __name__ == "__main__":
    EARLY = sheaf.Loader(open_numbers("ddp-early"), batch_size=BATCH)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=120))
    ranks.main(
        {
            "loader": lambda: epochs(0, False, "ddp-loader"),
            "workers": lambda: epochs(2, False, "ddp-workers"),
            "drop_last": lambda: epochs(0, True, "ddp-drop"),
            "plain": plain,
            "made_before": made_before,
            "unsharded": unsharded,
            "default_job": default_job,
            "first_half": first_half,
        }
    )
    dist.barrier()
    dist.destroy_process_group()
    assert os.environ["WORLD_SIZE"] == "2"
