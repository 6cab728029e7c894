# SPDX-License-Identifier: Apache-2.0
"""Ways to get the same images into a training loop, a class each.

Each is made for a number of workers, and iterated once an epoch: batches of
BATCH samples in a random order, a sample being its bytes (``raw``) or a tensor
(``decoded``). Formats that need a copy of the data make it once, in build(),
which runs in a process of its own (build_apart): LitData's changes how this
process would start workers. All are measured with workers that are forked.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import torch
from PIL import Image
from torch.utils.data import DataLoader

import children

BATCH = 64
SIDE = 64  # pixels of a decoded image
SHARDS = 16  # of formats that have them: enough for all workers, and to mix


def decode(data: Any) -> torch.Tensor:
    """uint8 of shape (3, SIDE, SIDE), RGB."""
    image = Image.open(io.BytesIO(data)).convert("RGB").resize((SIDE, SIDE))
    return torch.from_numpy(numpy.array(image)).permute(2, 0, 1)


def listed(items: list[Any]) -> list[Any]:
    """A batch of bytes stays a list of bytes."""
    return items


def files_of(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.is_file())


def shard_bytes(root: Path) -> int:
    """Of a shard, so that there are about SHARDS."""
    total = sum(path.stat().st_size for path in files_of(root))
    return max(1 << 18, total // SHARDS)


def options(workers: int) -> dict[str, Any]:
    return {
        "num_workers": workers,
        **(
            {"persistent_workers": True, "multiprocessing_context": "fork"}
            if workers
            else {}
        ),
    }


class _Files(torch.utils.data.Dataset[Any]):
    def __init__(self, root: Path, decoded: bool) -> None:
        self.paths = [str(path) for path in files_of(root)]
        self.decoded = decoded

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        with open(self.paths[index], "rb") as file:
            data = file.read()
        return decode(data) if self.decoded else data


class Files:
    """What torchvision's ImageFolder does, over any file system."""

    name = "files"

    def __init__(self, root: Path, decoded: bool, workers: int) -> None:
        self.loader = DataLoader(
            _Files(root, decoded),
            BATCH,
            shuffle=True,
            collate_fn=None if decoded else listed,
            **options(workers),
        )

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)


class Mount(Files):
    """The same over Sheaf's mount."""

    name = "mount"


class WebDataset:
    """Tar files."""

    name = "webdataset"

    @staticmethod
    def build(root: Path, out: Path) -> None:
        import webdataset

        out.mkdir()
        pattern, paths = str(out / "%04d.tar"), files_of(root)
        with webdataset.ShardWriter(
            pattern, maxcount=-(-len(paths) // SHARDS), verbose=0
        ) as sink:
            for number, path in enumerate(paths):
                sink.write({"__key__": f"{number:07}", "x": path.read_bytes()})

    def __init__(self, out: Path, decoded: bool, workers: int) -> None:
        import webdataset

        shards = sorted(str(path) for path in out.glob("*.tar"))
        self.loader = webdataset.WebLoader(
            webdataset.WebDataset(
                shards, shardshuffle=len(shards), empty_check=False
            )
            .shuffle(1000)
            .map(_decoded_x if decoded else _raw_x)
            .batched(BATCH, collation_fn=torch.stack if decoded else listed),
            batch_size=None,
            **options(workers),
        )

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)


def _raw_x(sample: dict[str, Any]) -> Any:
    return sample["x"]


def _decoded_x(sample: dict[str, Any]) -> Any:
    return decode(sample["x"])


def _raw_xs(samples: list[dict[str, Any]]) -> list[bytes]:
    # LitData gives views, which do not pass from a worker to the loop
    return [bytes(sample["x"]) for sample in samples]


def _decoded_xs(samples: list[dict[str, Any]]) -> torch.Tensor:
    return torch.stack([decode(sample["x"]) for sample in samples])


def _streaming() -> Any:
    """The module. It imports torchvision without using it, and that one may
    have been built for another torch than the one that is here: then with the
    operators that it looks for. ImportError, RuntimeError: it does not work."""
    try:
        import streaming
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
        operators = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
        for name in ("nms", "qnms"):
            operators.define(name + "() -> ()")  # type: ignore[no-untyped-call]
        _kept.append(operators)
        # What the first try left behind would lack its place in the parent.
        for name in [name for name in sys.modules if _is_streaming(name)]:
            del sys.modules[name]
        import streaming
    return streaming


def _is_streaming(name: str) -> bool:
    return name.partition(".")[0] in ("streaming", "torchvision")


_kept: list[Any] = []


class Streaming:
    """MosaicML Streaming over local shards."""

    name = "streaming"

    @staticmethod
    def build(root: Path, out: Path) -> None:
        with _streaming().MDSWriter(
            out=str(out), columns={"x": "bytes"}, size_limit=shard_bytes(root)
        ) as sink:
            for path in files_of(root):
                sink.write({"x": path.read_bytes()})

    def __init__(self, out: Path, decoded: bool, workers: int) -> None:
        module = _streaming()
        module.base.util.clean_stale_shared_memory()
        self.loader = DataLoader(
            module.StreamingDataset(
                local=str(out), shuffle=True, batch_size=BATCH
            ),
            BATCH,
            collate_fn=_decoded_xs if decoded else _raw_xs,
            **options(workers),
        )

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)


def _bytes_of(path: str) -> dict[str, bytes]:
    return {"x": Path(path).read_bytes()}


class LitData:
    """LitData over local chunks."""

    name = "litdata"

    @staticmethod
    def build(root: Path, out: Path) -> None:
        import litdata

        litdata.optimize(
            fn=_bytes_of,
            inputs=[str(path) for path in files_of(root)],
            output_dir=str(out),
            chunk_bytes=shard_bytes(root),
            num_workers=1,
        )

    def __init__(self, out: Path, decoded: bool, workers: int) -> None:
        import litdata

        self.loader = litdata.StreamingDataLoader(
            litdata.StreamingDataset(str(out), shuffle=True),
            batch_size=BATCH,
            collate_fn=_decoded_xs if decoded else _raw_xs,
            **options(workers),
        )

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)


class Sheaf:
    """In place, out of shared memory."""

    name = "sheaf"

    def __init__(
        self, dataset: str, decoded: bool, workers: int, **more: Any
    ) -> None:
        import sheaf

        self.dataset = sheaf.Dataset(
            dataset, transform=decode if decoded else None, **more
        )
        self.loader = sheaf.Loader(
            self.dataset, batch_size=BATCH, **options(workers)
        )

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)


RIVALS = (WebDataset, Streaming, LitData)
BUILD_MAX_S = 600


def why(error: BaseException) -> str:
    """For whoever reads that a rival is left out."""
    text = f"{type(error).__name__}: {error}"
    if "torchvision" in text:
        text += (
            "; it needs a torchvision that was built for the torch in"
            " build/bench-venv"
        )
    return text


def build_apart(rival: Any, root: Path, out: Path) -> None:
    """Makes a rival's copy in another process. RuntimeError says why not."""
    child = children.start(
        [sys.executable, __file__, rival.name, str(root), str(out)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        _, said = child.communicate(timeout=BUILD_MAX_S)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"not built within {BUILD_MAX_S} s") from None
    finally:
        children.end(child)
    if child.returncode:
        raise RuntimeError((said.strip() or "no word of why").split("\n")[-1])
PAGE = os.sysconf("SC_PAGE_SIZE")


def drain(batches: Any, decoded: bool) -> int:
    """Samples of one epoch; of raw ones a byte of each page is read."""
    count = 0
    for batch in batches:
        count += len(batch)
        if not decoded:
            for sample in batch:
                bytes(memoryview(sample)[::PAGE])
    return count


def _build(name: str, root: str, out: str) -> None:
    """What build_apart() starts."""
    (rival,) = [rival for rival in RIVALS if rival.name == name]
    try:
        rival.build(Path(root), Path(out))
    except Exception as error:
        sys.exit(why(error))


if __name__ == "__main__":
    _build(*sys.argv[1:])
