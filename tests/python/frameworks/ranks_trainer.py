# SPDX-License-Identifier: Apache-2.0
"""Scenarios of transformers.Trainer, run by test_trainer.py in ranks."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
import transformers

import ranks
import sheaf
from numbers_data import BATCH, number_of, open_numbers
from sheaf.hf import SlotEpoch, SlotTrainerMixin

# In epoch 1 with one rank (63 steps each) and with two (32).
STOP = {1: 80, 2: 47}


class Recorder(torch.nn.Module):
    """One weight; keeps the numbers it saw: {epoch: [number]}."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.epoch = 0
        self.seen: dict[int, list[int]] = {}
        self.evaluated: list[int] = []

    def forward(self, numbers: torch.Tensor) -> dict[str, torch.Tensor]:
        if self.training:
            self.seen.setdefault(self.epoch, []).extend(numbers.tolist())
        else:
            self.evaluated.extend(numbers.tolist())
        return {"loss": self.layer(numbers.float().unsqueeze(1) / 1003).mean()}


class Watch(transformers.TrainerCallback):
    """Tells the model its epoch; stops after a step, when it is told one."""

    def __init__(self, model: Recorder, stop: int | None) -> None:
        self.model, self.stop = model, stop

    def on_step_begin(self, args, state, control, **_: Any) -> None:
        self.model.epoch = int(state.epoch or 0)

    def on_step_end(self, args, state, control, **_: Any) -> None:
        if state.global_step == self.stop:
            control.should_save = True
            control.should_training_stop = True


class Mixed(SlotTrainerMixin, transformers.Trainer):
    """As its users write it."""


class Plain(transformers.Trainer):
    """Without the mixin: a sampler, and the callback where it is added."""

    slots = None

    def _get_train_sampler(self, *_: Any) -> Any:
        self.slots = sheaf.SlotSampler(self.train_dataset, distributed=None)
        return self.slots


class WithLoader(transformers.Trainer):
    """A Loader in place of Trainer's own: Trainer leaves out batches by
    itself, and keeps no state of a loader."""

    def get_train_dataloader(self) -> Any:
        return self.accelerator.prepare(
            sheaf.Loader(
                self.train_dataset, BATCH, collate_fn=self.data_collator
            )
        )


def numbered(sample: Any) -> dict[str, int]:
    return {"numbers": number_of(sample)}


def trainer(
    kind: str, job: str, stop: int | None = None, workers: int = 0
) -> Any:
    model = Recorder()
    arguments = transformers.TrainingArguments(
        output_dir=str(Path.cwd().parent / job),
        use_cpu=True,
        num_train_epochs=3,
        per_device_train_batch_size=BATCH,
        per_device_eval_batch_size=BATCH,
        dataloader_num_workers=workers,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        logging_strategy="no",
        remove_unused_columns=False,
    )
    types = {
        "mixin": Mixed, "callback": Plain, "bare": Plain, "loader": WithLoader,
    }  # fmt: skip
    runner = types[kind](
        model=model,
        args=arguments,
        train_dataset=open_numbers(job, transform=numbered),
        eval_dataset=open_numbers(job, transform=numbered),
        callbacks=[Watch(model, stop)],
    )
    if kind == "callback":
        runner.add_callback(SlotEpoch(runner))
    return runner


def straight(kind: str, workers: int) -> Any:
    runner = trainer(kind, f"hf-{kind}-{workers}-{ranks.world()}", None, workers)
    runner.train()
    return runner.model.seen


def evaluate() -> Any:
    runner = trainer("mixin", f"hf-evaluate-{ranks.world()}")
    runner.evaluate()
    return runner.model.evaluated


def begin(kind: str) -> Any:
    """Stops in epoch 1."""
    job = f"hf-resume-{kind}-{ranks.world()}"
    runner = trainer(kind, job, STOP[ranks.world()])
    runner.train()
    return runner.model.seen


def rest(kind: str) -> Any:
    """Goes on after begin(); also the warnings of it."""
    runner = trainer(kind, f"hf-resume-{kind}-{ranks.world()}")
    path = Path(runner.args.output_dir) / f"checkpoint-{STOP[ranks.world()]}"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        runner.train(resume_from_checkpoint=str(path))
    return {
        "seen": runner.model.seen,
        "warned": [str(w.message) for w in caught],
    }


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    ranks.main(
        {
            "mixin-0": lambda: straight("mixin", 0),
            "mixin-2": lambda: straight("mixin", 2),
            "callback-0": lambda: straight("callback", 0),
            "evaluate": evaluate,
            "begin-mixin": lambda: begin("mixin"),
            "begin-callback": lambda: begin("callback"),
            "begin-bare": lambda: begin("bare"),
            "begin-loader": lambda: begin("loader"),
            "rest-mixin": lambda: rest("mixin"),
            "rest-callback": lambda: rest("callback"),
            "rest-bare": lambda: rest("bare"),
            "rest-loader": lambda: rest("loader"),
        }
    )
