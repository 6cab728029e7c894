# SPDX-License-Identifier: Apache-2.0
"""Scenarios of Lightning and Fabric, run by test_lightning.py in ranks."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Any

import lightning
import torch
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

import ranks
import sheaf
from numbers_data import BATCH, flat, open_numbers


class Recorder(lightning.LightningModule):
    """Trains one weight, and keeps the numbers it saw: {epoch: [number]}."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.seen: dict[int, list[int]] = {}
        self.held: dict[int, list[int]] = {}
        self.predicted: list[int] = []

    def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
        self.seen.setdefault(self.current_epoch, []).extend(batch.tolist())
        return self.layer(batch.float().unsqueeze(1) / 1003).pow(2).mean()

    def validation_step(self, batch: torch.Tensor, _: int) -> None:
        self.held.setdefault(self.current_epoch, []).extend(batch.tolist())

    def predict_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
        self.predicted.extend(batch.tolist())
        return batch

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 1e-3)


def trainer(**options: Any) -> lightning.Trainer:
    """Two CPU ranks, as the launcher has them, and nothing written."""
    options.setdefault("enable_checkpointing", False)
    options.setdefault("num_sanity_val_steps", 0)
    return lightning.Trainer(
        accelerator="cpu",
        devices=ranks.world(),
        strategy="ddp",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )


def make(kind: str, job: str, workers: int = 0, **options: Any) -> DataLoader:
    dataset = open_numbers(job)
    if kind == "loader":
        return sheaf.Loader(
            dataset, batch_size=BATCH, num_workers=workers, **options
        )
    sampler = sheaf.SlotSampler(dataset)
    types = {"plain": DataLoader, "stateful": StatefulDataLoader}
    return types[kind](dataset, BATCH, sampler=sampler, num_workers=workers)


def fit(kind: str, workers: int, **options: Any) -> Any:
    """Three epochs, with a validation pass in each."""
    module = Recorder()
    job = f"lightning-{kind}-{workers}"
    held = make("loader", job + "-held")
    trainer(max_epochs=3, **options).fit(module, make(kind, job, workers), held)
    return {"seen": module.seen, "held": module.held}


def keep(directory: Path, step: int | None) -> Any:
    """Checkpoints every so many steps; None: after each validation."""
    return lightning.pytorch.callbacks.ModelCheckpoint(
        dirpath=directory,
        filename="{step}",
        save_top_k=-1,
        every_n_train_steps=step,
        save_on_train_epoch_end=False,
    )


def stopped(job: str, stop: int, loader: Any, **options: Any) -> Any:
    """Trains until a step with a checkpoint: what was seen, its path."""
    module = Recorder()
    directory = Path.cwd().parent / job
    trainer(
        max_steps=stop,
        enable_checkpointing=True,
        callbacks=[keep(directory, stop)],
        **options,
    ).fit(module, loader)
    return module.seen, str(directory / f"step={stop}.ckpt")


def resume(kind: str, workers: int, stop: int, **options: Any) -> Any:
    """Stops after @stop steps with a checkpoint, goes on in new objects."""
    job = f"lightning-resume-{kind}-{workers}-{stop}-{len(options)}"
    before, path = stopped(job, stop, make(kind, job, workers), **options)
    after = Recorder()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer(max_epochs=3, **options).fit(
            after, make(kind, job, workers), ckpt_path=path
        )
    return {
        "before": before,
        "after": after.seen,
        "warned": [str(w.message) for w in caught],
    }


def in_validation() -> Any:
    """A checkpoint that validation makes in the middle of epoch 1."""
    options: dict[str, Any] = {"val_check_interval": 16}
    job = "lightning-validation"
    directory = Path.cwd().parent / job
    before, after = Recorder(), Recorder()
    trainer(
        max_steps=48,
        enable_checkpointing=True,
        callbacks=[keep(directory, None)],
        **options,
    ).fit(before, make("loader", job), make("loader", job + "-held"))
    trainer(max_epochs=3, **options).fit(
        after,
        make("loader", job),
        make("loader", job + "-held"),
        ckpt_path=str(directory / "step=48.ckpt"),
    )
    return {"before": before.seen, "after": after.seen}


def save_for_others() -> Any:
    """A checkpoint after step 40 that a run of another size goes on with."""
    return stopped("lightning-world", 40, make("loader", "lightning-world"))[0]


def load_from_others() -> Any:
    module = Recorder()
    trainer(max_epochs=3).fit(
        module,
        make("loader", "lightning-world"),
        ckpt_path=str(Path.cwd().parent / "lightning-world" / "step=40.ckpt"),
    )
    return module.seen


def limited() -> Any:
    module = Recorder()
    trainer(max_epochs=3, limit_train_batches=10).fit(
        module, make("loader", "lightning-limit")
    )
    return module.seen


def overfit() -> Any:
    """Lightning puts a sampler of literal ids in ours' place."""
    module = Recorder()
    trainer(max_epochs=3, overfit_batches=4).fit(
        module, make("loader", "lightning-overfit")
    )
    return module.seen


def predict() -> Any:
    """Lightning makes the loader anew with batch_sampler=."""
    module = Recorder()
    trainer().predict(module, make("loader", "lightning-predict"))
    return module.predicted


def no_sampler() -> Any:
    """No sampler of ours: Lightning's, and literal ids."""
    module = Recorder()
    loader = DataLoader(open_numbers("lightning-none"), BATCH, shuffle=True)
    trainer(max_epochs=1).fit(module, loader)
    return module.seen


def fabric(workers: int) -> Any:
    """Two epochs, then a stop in the third and a resume of the loader."""
    runner = lightning.Fabric(
        accelerator="cpu", devices=ranks.world(), strategy="ddp"
    )
    runner.launch()
    job = f"fabric-{workers}"
    loader = make("loader", job, workers)
    wrapped = runner.setup_dataloaders(loader)
    result: dict[str, Any] = {"epochs": [flat(wrapped), flat(wrapped)]}
    result["begun"] = []
    for i, batch in enumerate(wrapped, 1):
        result["begun"] += batch.tolist()
        if i == 20:
            break
    # The wrapper hides the state, and names epoch 0 in a new process: so
    # what resumes is the loader itself.
    state = loader.state_dict()
    again = make("loader", job, workers)
    again.load_state_dict(state)
    try:
        flat(runner.setup_dataloaders(again))
        result["refused"] = ""
    except (RuntimeError, ValueError) as error:
        result["refused"] = str(error)
    again = make("loader", job, workers)
    again.load_state_dict(state)
    result["rest"] = [
        number for batch in again for number in runner.to_device(batch).tolist()
    ]
    return result


if __name__ == "__main__":
    logging.getLogger("lightning").setLevel(logging.ERROR)
    ranks.main(
        {
            "fit-loader-0": lambda: fit("loader", 0),
            "fit-loader-2": lambda: fit("loader", 2),
            "fit-plain-0": lambda: fit("plain", 0),
            "fit-plain-2": lambda: fit("plain", 2),
            "resume-loader-0": lambda: resume("loader", 0, 48),
            "resume-loader-2": lambda: resume("loader", 2, 48),
            "resume-last": lambda: resume("loader", 0, 64),
            "resume-stateful-0": lambda: resume("stateful", 0, 48),
            "resume-stateful-2": lambda: resume("stateful", 2, 48),
            "resume-plain-0": lambda: resume("plain", 0, 48),
            "resume-plain-2": lambda: resume("plain", 2, 48),
            "resume-limited": lambda: resume(
                "loader", 0, 15, limit_train_batches=10
            ),
            "in_validation": in_validation,
            "save_for_others": save_for_others,
            "load_from_others": load_from_others,
            "limited": limited,
            "overfit": overfit,
            "predict": predict,
            "no_sampler": no_sampler,
            "fabric-0": lambda: fabric(0),
            "fabric-2": lambda: fabric(2),
        }
    )
