# SPDX-License-Identifier: Apache-2.0
"""A search for a learning rate: jobs that share prepared batches.

    sheaf add clipart/train OUT/train     # as for train_cnn.py
    python hp_search.py clipart/train --rates 0.003 0.01 0.03

starts a process for each rate. All of them decode and augment the same images
in the same way, so each batch is prepared once, by a worker of any of them;
models, optimisers and what they do with a batch are each job's own. Jobs may
as well be started by hand, at any time: whoever names the group takes part.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import time

import numpy
import torch
from PIL import Image
from torch import Tensor, nn

import sheaf

SIDE = 32


class Augment:
    """A random crop and flip: float32 of shape (3, SIDE, SIDE), in -1 .. 1.

    The group compares code and arguments, so all jobs have to give the same.
    The global generators are seeded for each batch by epoch and position:
    the same image comes out differently in each epoch, and the same in all
    jobs."""

    def __init__(self, scale: float = 0.8) -> None:
        self.scale = scale

    def __call__(self, image: Image.Image) -> Tensor:
        width, height = (max(1, int(n * self.scale)) for n in image.size)
        left = random.randint(0, image.width - width)
        top = random.randint(0, image.height - height)
        image = image.crop((left, top, left + width, top + height))
        small = image.resize((SIDE, SIDE), Image.Resampling.BOX)
        pixels = torch.from_numpy(numpy.array(small, dtype=numpy.float32))
        if random.random() < 0.5:
            pixels = pixels.flip(1)
        return pixels.permute(2, 0, 1) / 127.5 - 1


def model(classes: int) -> nn.Module:
    """A small CNN."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, 2, 1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(512, classes),
    )


def train(chosen: argparse.Namespace) -> None:
    """One job: prints the loss of each epoch, and who prepared its batches."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    ds = sheaf.Dataset(chosen.dataset, decode="pil", transform=Augment())
    net = model(len(ds.classes))
    optimiser = torch.optim.SGD(net.parameters(), chosen.rate, momentum=0.9)
    with sheaf.CoordinatedLoader(
        ds,
        batch_size=chosen.batch,
        group=chosen.group,
        prep_workers=chosen.workers,
        members=chosen.jobs,
    ) as loader:
        for _ in range(chosen.epochs):
            total = 0.0
            for images, labels in loader:
                loss = nn.functional.cross_entropy(net(images), labels)
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                total += float(loss)
            print(
                f"rate {chosen.rate:g} epoch {loader.epoch} "
                f"loss {total / len(loader):.3f}",
                flush=True,
            )
        stats = loader.stats()
    print(
        f"rate {chosen.rate:g}: took {stats['taken']:.0f} batches, of which "
        f"its workers prepared {stats['prepared']:.0f}; waited "
        f"{stats['wait_s']:.1f} s"
    )


def search(chosen: argparse.Namespace) -> int:
    """A process for each rate."""
    name = f"search-{os.getpid()}-{time.time_ns():x}"
    jobs = [
        subprocess.Popen(
            [
                *(sys.executable, __file__, chosen.dataset),
                *("--rate", str(rate), "--group", chosen.group or name),
                *("--jobs", str(len(chosen.rates))),
                *("--batch", str(chosen.batch), "--epochs", str(chosen.epochs)),
                *("--workers", str(chosen.workers)),
            ]
        )
        for rate in chosen.rates
    ]
    return max(job.wait() for job in jobs)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("dataset")
    parser.add_argument("--rates", type=float, nargs="+", default=[0.01, 0.03])
    parser.add_argument("--group", help="default: a new one")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--workers", type=int, default=1, help="of each job")
    # of a job that search() starts
    parser.add_argument("--rate", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--jobs", type=int, default=1, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.rate is None:
        sys.exit(search(chosen))
    train(chosen)


if __name__ == "__main__":
    main()
