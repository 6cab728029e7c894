# SPDX-License-Identifier: Apache-2.0
"""Slots under transformers.Trainer.

    class MyTrainer(sheaf.hf.SlotTrainerMixin, transformers.Trainer):
        pass

trains a ``sheaf.Dataset`` in slots: each sample once an epoch over all ranks,
checkpoints in the middle of an epoch included. Trainer's own data loaders
stay; this only gives them a sampler, and tells it the epoch.

Why the epoch must be told: Trainer resumes by skipping batches of a loader
that does not pass set_epoch on, so in a new process the skipped epoch would
be served as epoch 0.

Needs transformers; nothing else in the package imports this module.
"""

from __future__ import annotations

from typing import Any

import transformers

from .dataset import Dataset
from .sampler import SlotSampler

__all__ = ["SlotEpoch", "SlotTrainerMixin"]


class SlotEpoch(transformers.TrainerCallback):
    """Tells a sampler which epoch begins, in time for its first slot.

    ``owner``: a ``SlotSampler``, or what has one as ``slots`` when training
    begins (or None there: then nothing is told).
    """

    def __init__(self, owner: Any) -> None:
        self._owner = owner

    def on_epoch_begin(
        self, args: Any, state: Any, control: Any, **kwargs: Any
    ) -> None:
        """Called by Trainer before it makes the epoch's iterator."""
        sampler = getattr(self._owner, "slots", self._owner)
        if sampler is not None:
            # state.epoch is a fraction in the middle of an epoch
            sampler.set_epoch(int(state.epoch or 0))


class SlotTrainerMixin:
    """Goes before ``transformers.Trainer`` among the bases.

    A training set that is a ``sheaf.Dataset`` is trained in slots; any other
    as Trainer does. ``slots``: the sampler of the running training, or None.
    Evaluation and prediction read literal samples, in order.
    """

    slots: SlotSampler | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.add_callback(SlotEpoch(self))  # type: ignore[attr-defined]

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        if train_dataset is None:
            train_dataset = self.train_dataset  # type: ignore[attr-defined]
        if not isinstance(train_dataset, Dataset):
            return super()._get_train_sampler(  # type: ignore[misc]
                train_dataset
            )
        # Trainer hands its loader to Accelerate, which shards it.
        self.slots = SlotSampler(train_dataset, distributed=None)
        return self.slots
