# SPDX-License-Identifier: Apache-2.0
"""docs/examples as a user starts them, on a few generated images."""

from __future__ import annotations

import io
import os
import random
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("PIL")

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"
CLASSES = 3
EACH = 40
HELD = 8  # of a class


def picture(label: int, number: int) -> bytes:
    """A square whose colour is its class, on noise."""
    from PIL import Image

    source = random.Random(label * 1000 + number)
    image = Image.effect_noise((40, 40), 60).convert("RGB")
    colour = [(220, 30, 30), (30, 220, 30), (30, 30, 220)][label]
    place = source.randrange(8), source.randrange(8)
    image.paste(colour, (*place, place[0] + 30, place[1] + 30))
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()


def run(script: str, *arguments: str, where: Path, launch: bool = False) -> str:
    """Its output; ends all that it started."""
    command = [sys.executable]
    if launch:
        command += ["-m", "torch.distributed.run", "--standalone"]
        command += ["--nproc-per-node=2"]
    environment = dict(os.environ, OMP_NUM_THREADS="1")
    environment["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p)
    child = subprocess.Popen(
        [*command, str(EXAMPLES / script), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment,
        cwd=where,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = child.communicate(timeout=240)
    finally:
        if child.poll() is None:
            # torchrun takes its ranks along when it is told to end
            child.send_signal(signal.SIGTERM)
            try:
                child.wait(30)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
    assert child.returncode == 0, output
    return output


@pytest.fixture(scope="module")
def clipart(node, tmp_path_factory):
    """OUT of `train_cnn.py prepare`, and its datasets."""
    base = tmp_path_factory.mktemp("examples")
    for label in range(CLASSES):
        for number in range(EACH):
            path = base / "images" / f"c{label}" / "sub" / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(picture(label, number))
        # as where icons have several names
        path.rename(base / f"kept{label}.png")
        path.symlink_to(f"../../../kept{label}.png")
    out = base / "out"
    run("train_cnn.py", "prepare", "images", "out", where=base)
    for part in ("train", "val"):
        node.sheaf("add", f"clipart/{part}", str(out / part))
    return base


def test_prepare(clipart):
    counts = [
        len(list((clipart / "out" / part / f"c{label}").iterdir()))
        for part in ("train", "val")
        for label in range(CLASSES)
    ]
    assert counts == [EACH - HELD] * CLASSES + [HELD] * CLASSES


def test_cnn(clipart):
    """Both ways learn it, and the stall times are there."""
    output = run("train_cnn.py", "run", "out", "clipart", "--short",
                 where=clipart)  # fmt: skip
    found = re.search(
        r"accuracy: files ([\d.]+), sheaf ([\d.]+)", output
    )
    assert found, output
    assert min(float(found[1]), float(found[2])) > 0.8, output
    assert output.count("waiting for data") == 3, output


def test_accelerate(clipart):
    """Stopped in the middle and resumed in two processes."""
    pytest.importorskip("accelerate")
    first = run("train_accelerate.py", "clipart", "--state", "state", "--batch",
                "8", "--epochs", "2", "--stop", "5", "--workers", "0",
                where=clipart, launch=True)  # fmt: skip
    assert "stopped and saved after 5 steps" in first
    second = run("train_accelerate.py", "clipart", "--state", "state",
                 "--batch", "8", "--epochs", "2", "--workers", "0",
                 where=clipart, launch=True)  # fmt: skip
    # 96 samples are 6 steps of two ranks an epoch: one is left of the first
    assert "7 steps, accuracy" in second, second


def test_lightning(clipart):
    """Stopped by two processes in the middle, ended by one."""
    pytest.importorskip("lightning")
    common = ["clipart", "--checkpoints", "states", "--batch", "8"]
    common += ["--epochs", "2", "--workers", "0", "--every", "4"]
    first = run("train_lightning.py", *common, "--stop", "4", "--devices", "2",
                where=clipart, launch=True)  # fmt: skip
    assert "step 4," in first, first
    second = run("train_lightning.py", *common, where=clipart)
    # 64 of 96 samples are trained; 4 steps of 8 are left, then 12 more
    assert "step 20, accuracy" in second, second


def test_hp_search(clipart):
    """Three jobs take all batches, which are prepared once."""
    output = run("hp_search.py", "clipart/train", "--rates", "0.01", "0.03",
                 "0.1", "--batch", "16", "--epochs", "2",
                 where=clipart)  # fmt: skip
    found = re.findall(r"took (\d+) batches, .* prepared (\d+)", output)
    batches = 2 * CLASSES * (EACH - HELD) // 16
    assert len(found) == 3, output
    assert all(int(taken) == batches for taken, _ in found), output
    assert sum(int(own) for _, own in found) == batches, output
