# SPDX-License-Identifier: Apache-2.0
"""Scenarios of Accelerate, run by test_accelerate.py in two ranks."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator, skip_first_batches
from accelerate.utils import DataLoaderConfiguration
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

import ranks
import sheaf
from numbers_data import BATCH, flat, open_numbers

# name: (DataLoaderConfiguration, workers)
MODES: dict[str, tuple[dict[str, bool], int]] = {
    "default": ({}, 0),
    "workers": ({}, 2),
    "uneven": ({"even_batches": False}, 0),
    "dispatch": ({"dispatch_batches": True}, 0),
    "dispatch-workers": ({"dispatch_batches": True}, 2),
    "dispatch-split": ({"dispatch_batches": True, "split_batches": True}, 0),
    "split": ({"split_batches": True}, 0),
    "split-uneven": ({"split_batches": True, "even_batches": False}, 0),
}


def accelerator(**config: bool) -> Accelerator:
    return Accelerator(
        cpu=True, dataloader_config=DataLoaderConfiguration(**config)
    )


def sharded(distributed: Any, job: str, workers: int = 0) -> DataLoader:
    """A plain DataLoader, for Accelerate to shard."""
    dataset = open_numbers(job)
    sampler = sheaf.SlotSampler(dataset, distributed=distributed)
    return DataLoader(dataset, BATCH, sampler=sampler, num_workers=workers)


def mode(name: str, distributed: Any) -> Any:
    """Three epochs: [numbers of each]; the middle one is left early."""
    config, workers = MODES[name]
    job = f"accelerate-{name}-{distributed}"
    loader = accelerator(**config).prepare(sharded(distributed, job, workers))
    first = flat(loader)
    for i, _ in enumerate(loader):
        if i == 2:
            break
    return [first, flat(loader)]


def prepared_loader(workers: int) -> Any:
    """Loader is left alone: it shards by itself; state by registration."""
    runner = accelerator()
    job = f"accelerate-loader-{workers}"

    def make() -> Any:
        loader = sheaf.Loader(
            open_numbers(job), batch_size=BATCH, num_workers=workers
        )
        prepared = runner.prepare(loader)
        assert prepared is loader
        return loader

    loader = make()
    result: dict[str, Any] = {"epochs": [flat(loader)], "begun": []}
    for i, batch in enumerate(loader, 1):
        result["begun"] += batch.tolist()
        if i == 20:
            break
    runner.register_for_checkpointing(loader)
    directory = str(Path.cwd() / f"{job}-state")
    runner.save_state(directory)
    runner.wait_for_everyone()
    resumed = Accelerator(cpu=True)
    again = make()
    resumed.register_for_checkpointing(again)
    resumed.load_state(directory)
    result["rest"] = flat(again)
    result["next"] = flat(again)
    return result


def begin(job: str, distributed: Any) -> tuple[Any, Any, list[int]]:
    """An epoch, and 20 batches of the next: (accelerator, loader, numbers)."""
    runner = accelerator()
    loader = runner.prepare(sharded(distributed, job))
    flat(loader)
    begun: list[int] = []
    for i, batch in enumerate(loader, 1):
        begun += batch.tolist()
        if i == 20:
            break
    return runner, loader, begun


def skipped(same: bool, distributed: Any) -> Any:
    """skip_first_batches after set_epoch: exactly once."""
    job = f"accelerate-skip-{same}-{distributed}"
    runner, loader, begun = begin(job, distributed)
    if not same:
        runner = accelerator()
        loader = runner.prepare(sharded(distributed, job))
    loader.set_epoch(1)
    return {"begun": begun, "rest": flat(skip_first_batches(loader, 20))}


def stateful_loader(job: str) -> Any:
    dataset = open_numbers(job)
    sampler = sheaf.SlotSampler(dataset, distributed=None)
    loader = StatefulDataLoader(dataset, BATCH, sampler=sampler)
    return accelerator(use_stateful_dataloader=True).prepare(loader)


def stateful() -> Any:
    """Accelerate's stateful loader hides the sampler's state: its epoch is
    named after the state was loaded."""
    loader = stateful_loader("accelerate-stateful")
    flat(loader)
    begun: list[int] = []
    for i, batch in enumerate(loader, 1):
        begun += batch.tolist()
        if i == 20:
            break
    state = loader.state_dict()
    again = stateful_loader("accelerate-stateful")
    again.load_state_dict(state)
    again.set_epoch(1)
    return {"begun": begun, "rest": flat(again)}


def registered() -> Any:
    """The sampler instead of a Loader, in the middle of an epoch: what
    save_state() raises, or what is trained by both runs."""
    job = "accelerate-registered"
    runner = accelerator()
    plain = sharded("auto", job)
    loader = runner.prepare(plain)
    begun: list[int] = []
    for i, batch in enumerate(loader, 1):
        begun += batch.tolist()
        if i == 20:
            break
    runner.register_for_checkpointing(plain.sampler)
    try:
        runner.save_state(str(Path.cwd() / job))
    except RuntimeError as error:
        return {"refused": str(error), "begun": begun}
    return {"refused": "", "begun": begun}


def lost_begin() -> Any:
    """What lost_rest() goes on with, in another process."""
    begin("accelerate-lost-skip", None)
    loader = stateful_loader("accelerate-lost-stateful")
    flat(loader)
    for i, _ in enumerate(loader, 1):
        if i == 20:
            break
    torch.save(
        loader.state_dict(), Path.cwd().parent / f"state{ranks.rank()}"
    )


def lost_rest() -> Any:
    """Resumes that forget the epoch: they begin in epoch 0 again."""
    skip = skip_first_batches(
        accelerator().prepare(sharded(None, "accelerate-lost-skip")), 20
    )
    loader = stateful_loader("accelerate-lost-stateful")
    path = Path.cwd().parent / f"state{ranks.rank()}"
    loader.load_state_dict(torch.load(path, weights_only=False))
    warned = {}
    for name, batches in (("skip", skip), ("stateful", loader)):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            flat(batches)
        warned[name] = [str(w.message) for w in caught]
    return warned


if __name__ == "__main__":
    scenarios: dict[str, Any] = {}
    for name in MODES:
        for distributed in (None, "auto"):
            scenarios[f"{name}-{distributed}"] = (
                lambda name=name, d=distributed: mode(name, d)
            )
    for workers in (0, 2):
        scenarios[f"loader-{workers}"] = lambda w=workers: prepared_loader(w)
    for same in (False, True):
        for distributed in (None, "auto"):
            scenarios[f"skip-{same}-{distributed}"] = (
                lambda same=same, d=distributed: skipped(same, d)
            )
    scenarios["stateful"] = stateful
    scenarios["registered"] = registered
    scenarios["lost_begin"] = lost_begin
    scenarios["lost_rest"] = lost_rest
    ranks.main(scenarios)
