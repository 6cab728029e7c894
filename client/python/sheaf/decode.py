# SPDX-License-Identifier: Apache-2.0
"""Built-in decoders."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable

from .sample import Sample

if TYPE_CHECKING:
    import torch


def to_bytes(sample: Sample) -> bytes:
    """The file as bytes."""
    return bytes(sample)


def to_pil(sample: Sample) -> Any:
    """The image as PIL.Image in RGB, as torchvision's ImageFolder loads it.
    PIL.UnidentifiedImageError, OSError: no image, or a damaged one."""
    from PIL import Image

    with Image.open(sample.file()) as image:
        return image.convert("RGB")


def to_tensor(sample: Sample) -> "torch.Tensor":
    """The image as a tensor: uint8, RGB, shape (3, height, width)."""
    import torch

    image = to_pil(sample)
    flat = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
    return flat.view(image.height, image.width, 3).permute(2, 0, 1).contiguous()


_NAMED: dict[str, Callable[[Sample], Any]] = {
    "bytes": to_bytes,
    "pil": to_pil,
    "image": to_tensor,
    "jpeg": to_tensor,
    "png": to_tensor,
}


def decoder_of(
    decode: str | Callable[[Sample], Any] | None,
) -> Callable[[Sample], Any] | None:
    """The function that ``decode`` names. ValueError: there is none."""
    if decode is None or callable(decode):
        return decode
    if decode not in _NAMED:
        names = ", ".join(sorted(_NAMED))
        raise ValueError(f"decode={decode!r}: one of {names}, or a function")
    return _NAMED[decode]
