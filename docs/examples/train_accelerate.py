# SPDX-License-Identifier: Apache-2.0
"""train_cnn.py's network under Accelerate; resumes where it was stopped.

    python train_cnn.py prepare IMAGES OUT; sheaf add ... (see there)
    accelerate launch train_accelerate.py clipart --state DIR

prepare() leaves a Loader as it is: it splits the epoch among the processes by
itself. Registered for checkpointing, save_state() and load_state() keep its
position. Batches are moved to the device here, since prepare() does not.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader

import sheaf
from train_cnn import accuracy, network, to_tensor


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("name", help="datasets NAME/train and NAME/val")
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--stop", type=int, default=0, help="after this step")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()

    accelerator = Accelerator(cpu=True)
    shown = sheaf.Dataset(
        f"{options.name}/train", decode="pil", transform=to_tensor
    )
    held = sheaf.Dataset(
        f"{options.name}/val", decode="pil", transform=to_tensor
    )
    loader = sheaf.Loader(
        shown, batch_size=options.batch, num_workers=options.workers
    )
    model = network(len(shown.classes))
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    model, optimizer = accelerator.prepare(model, optimizer)
    accelerator.register_for_checkpointing(loader)
    if options.state.exists():
        accelerator.load_state(str(options.state))

    step = 0
    while loader.sampler.epoch < options.epochs:
        model.train()
        for images, labels in loader:
            images, labels = images.to(accelerator.device), labels.to(
                accelerator.device
            )
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            step += 1
            if step == options.stop:
                accelerator.save_state(str(options.state))
                accelerator.print(f"stopped and saved after {step} steps")
                return
    right = accuracy(accelerator.unwrap_model(model), DataLoader(held, 64))
    accelerator.print(f"{step} steps, accuracy {right:.3f}")


if __name__ == "__main__":
    main()
