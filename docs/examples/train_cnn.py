# SPDX-License-Identifier: Apache-2.0
"""A small CNN on folders of images: plain files, then the same from Sheaf.

    python train_cnn.py prepare IMAGES OUT      # OUT/train and OUT/val
    sheaf add clipart/train OUT/train && sheaf add clipart/val OUT/val
    python train_cnn.py run OUT clipart         # --short: seconds, not minutes

IMAGES has a folder a class (tools/quickstart unpacks one: 22 classes of
clip art). Both ways see the same images under the same labels; what differs is
who opens and orders them. For each seed it prints the accuracy on what was
held out and the time in which training waited for data; at the end, means and
whether they agree within what seeds alone do.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader

import sheaf

SIDE = 32  # pixels of an image that the network sees
CHANNELS = 24
PIXELS_MAX = 20_000_000


def fits(path: Path) -> bool:
    """Whether it is a file, and no image that takes seconds to decode."""
    if not path.is_file():
        return False
    try:
        with Image.open(path) as image:
            return image.width * image.height <= PIXELS_MAX
    except Image.DecompressionBombError:
        return False


def prepare(source: Path, out: Path, held: float = 0.2, most: int = 0) -> None:
    """Links (or copies) images into OUT/train and OUT/val, class by class;
    ``most``: at most so many of a class, 0: all."""
    for folder in sorted(path for path in source.iterdir() if path.is_dir()):
        files = sorted(path for path in folder.rglob("*") if fits(path))
        random.Random(folder.name).shuffle(files)
        files = files[: most or len(files)]
        for number, path in enumerate(files):
            part = "val" if number < held * len(files) else "train"
            # one name a file: folders within a class do not matter here
            name = "-".join(path.relative_to(folder).parts)
            target = out / part / folder.name / name
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                # not a link's own, which may lead nowhere from there
                os.link(path.resolve(), target)
            except OSError:
                shutil.copyfile(path, target)


def to_tensor(image: Image.Image) -> Tensor:
    """float32 of shape (3, SIDE, SIDE), in -1 .. 1; RGB."""
    small = image.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BOX)
    pixels = torch.from_numpy(numpy.array(small, dtype=numpy.float32))
    return pixels.permute(2, 0, 1) / 127.5 - 1


class Folder(torch.utils.data.Dataset):
    """What torchvision's ImageFolder does: files opened one by one."""

    def __init__(self, root: Path, transform: Callable) -> None:
        names = sorted(path.name for path in root.iterdir() if path.is_dir())
        self.files = [
            (path, label)
            for label, name in enumerate(names)
            for path in sorted((root / name).iterdir())
        ]
        self.transform = transform

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        path, label = self.files[index]
        with Image.open(path) as image:
            return self.transform(image), label


def network(classes: int) -> nn.Module:
    """(batch, 3, SIDE, SIDE) to (batch, classes)."""
    layers: list[nn.Module] = []
    width = 3
    for step in (1, 2, 4):
        layers += [
            nn.Conv2d(width, CHANNELS * step, 3, padding=1),
            nn.BatchNorm2d(CHANNELS * step),
            nn.ReLU(),
            nn.MaxPool2d(2),
        ]
        width = CHANNELS * step
    layers += [nn.Flatten(), nn.Linear(width * (SIDE // 8) ** 2, classes)]
    return nn.Sequential(*layers)


def waited(batches: Iterable, times: list[float]) -> Iterator:
    """The batches; adds the seconds in which each was waited for."""
    source = iter(batches)
    while True:
        begun = time.monotonic()
        try:
            batch = next(source)
        except StopIteration:
            return
        times.append(time.monotonic() - begun)
        yield batch


def accuracy(model: nn.Module, held: DataLoader) -> float:
    """Share of the held-out samples that are classified right."""
    model.eval()
    right = total = 0
    with torch.no_grad():
        for images, labels in held:
            right += int((model(images).argmax(1) == labels).sum())
            total += len(labels)
    return right / total


def train(
    batches: DataLoader, held: DataLoader, classes: int, epochs: int, seed: int
) -> dict[str, float]:
    """Trains a new network: accuracy, seconds, seconds of them waiting."""
    torch.manual_seed(seed)
    model = network(classes)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    waits: list[float] = []
    begun = time.monotonic()
    for _ in range(epochs):
        model.train()
        for images, labels in waited(batches, waits):
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    seconds = time.monotonic() - begun
    return {
        "accuracy": accuracy(model, held),
        "seconds": seconds,
        "waited": sum(waits),
    }


def loaders(
    way: str, root: Path, name: str, batch: int, workers: int, seed: int
) -> tuple[DataLoader, DataLoader]:
    """Training and held-out batches, from files or from Sheaf."""
    if way == "files":
        return (
            DataLoader(
                Folder(root / "train", to_tensor),
                batch,
                shuffle=True,
                num_workers=workers,
                generator=torch.Generator().manual_seed(seed),
            ),
            DataLoader(Folder(root / "val", to_tensor), batch),
        )
    shown = sheaf.Dataset(f"{name}/train", decode="pil", transform=to_tensor)
    held = sheaf.Dataset(f"{name}/val", decode="pil", transform=to_tensor)
    return (
        sheaf.Loader(shown, batch_size=batch, num_workers=workers),
        # what is only looked at needs no slots: in order, by id
        DataLoader(held, batch),
    )


def run(options: argparse.Namespace) -> None:
    root = Path(options.out)
    classes = len([path for path in (root / "train").iterdir()])
    found: dict[str, list[float]] = {"files": [], "sheaf": []}
    for seed in range(options.seeds):
        for way in found:
            shown, held = loaders(
                way, root, options.name, options.batch, options.workers, seed
            )
            result = train(shown, held, classes, options.epochs, seed)
            found[way].append(result["accuracy"])
            print(
                f"{way:6} seed {seed}: accuracy {result['accuracy']:.3f}, "
                f"{result['seconds']:.1f} s, {result['waited']:.1f} s of them "
                "waiting for data",
                flush=True,
            )
    shown, _ = loaders(
        "sheaf", root, options.name, options.batch, options.workers, 0
    )
    with sheaf.StallProfiler(shown) as profiler:
        for images, _ in profiler.loop(steps=20, warmup=2):
            network(classes)(images)
    print(profiler.report())
    means = {way: statistics.mean(values) for way, values in found.items()}
    spread = max(
        (statistics.stdev(values) for values in found.values() if values[1:]),
        default=0.0,
    )
    print(
        f"accuracy: files {means['files']:.3f}, sheaf {means['sheaf']:.3f}; "
        f"seeds alone: +-{spread:.3f}"
    )


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser("prepare", help="train and val folders of links")
    verb.add_argument("images", type=Path)
    verb.add_argument("out", type=Path)
    verb.add_argument("--most", type=int, default=0, help="files of a class")
    verb = verbs.add_parser("run", help="train from files and from Sheaf")
    verb.add_argument("out", help="what prepare made")
    verb.add_argument("name", help="datasets NAME/train and NAME/val")
    verb.add_argument("--epochs", type=int, default=4)
    verb.add_argument("--seeds", type=int, default=3)
    verb.add_argument("--batch", type=int, default=64)
    verb.add_argument("--workers", type=int, default=2)
    verb.add_argument("--short", action="store_true", help="two short epochs")
    options = parser.parse_args()
    if getattr(options, "short", False):
        options.epochs, options.seeds, options.batch = 2, 1, 16
        options.workers = 0
    return options


if __name__ == "__main__":
    chosen = arguments()
    if chosen.verb == "prepare":
        prepare(chosen.images, chosen.out, most=chosen.most)
    else:
        run(chosen)
