# SPDX-License-Identifier: Apache-2.0
"""train_cnn.py's network under Lightning; resumes where it was stopped.

    python train_cnn.py prepare IMAGES OUT; sheaf add ... (see there)
    python train_lightning.py clipart --checkpoints DIR
    torchrun --nproc-per-node 2 train_lightning.py clipart --devices 2 ...

A Loader is all that Sheaf needs: Lightning keeps its position in checkpoints,
in the middle of an epoch, too. Run it again to go on from the last one, with
another number of processes if you like.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader

import sheaf
from train_cnn import network, to_tensor


class Classifier(lightning.LightningModule):
    """The network, its loss and its accuracy."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.network = network(classes)

    def training_step(self, batch: tuple, _: int) -> torch.Tensor:
        images, labels = batch
        return torch.nn.functional.cross_entropy(self.network(images), labels)

    def validation_step(self, batch: tuple, _: int) -> None:
        images, labels = batch
        right = (self.network(images).argmax(1) == labels).float().mean()
        self.log("accuracy", right, sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), 3e-3)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("name", help="datasets NAME/train and NAME/val")
    parser.add_argument("--checkpoints", type=Path, required=True)
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--stop", type=int, default=-1, help="after this step")
    parser.add_argument("--every", type=int, default=50, help="steps a state")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()

    shown = sheaf.Dataset(
        f"{options.name}/train", decode="pil", transform=to_tensor
    )
    held = sheaf.Dataset(
        f"{options.name}/val", decode="pil", transform=to_tensor
    )
    last = options.checkpoints / "last.ckpt"
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=options.devices,
        strategy="ddp" if options.devices > 1 else "auto",
        max_epochs=options.epochs,
        max_steps=options.stop,
        callbacks=[
            ModelCheckpoint(
                options.checkpoints,
                save_last=True,
                every_n_train_steps=options.every,
            )
        ],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(
        Classifier(len(shown.classes)),
        sheaf.Loader(
            shown, batch_size=options.batch, num_workers=options.workers
        ),
        DataLoader(held, options.batch),
        ckpt_path=str(last) if last.exists() else None,
    )
    accuracy = trainer.callback_metrics.get("accuracy")
    if trainer.is_global_zero:
        text = "not measured yet" if accuracy is None else f"{accuracy:.3f}"
        print(f"step {trainer.global_step}, accuracy {text}")


if __name__ == "__main__":
    main()
