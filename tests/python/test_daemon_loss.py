# SPDX-License-Identifier: Apache-2.0
"""on_daemon_loss="origin": the daemon is killed, the epoch goes on."""

from __future__ import annotations

import errno
import os
import pickle
import signal
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any, Iterator

import pytest
import sheaf
from conftest import OWN_N as N
from conftest import Node, make_node, number_of

LARGE = b"large" * (1 << 20)  # of more than one chunk


def dataset(**options: Any) -> sheaf.Dataset:
    options = {"timeout": 2, "order": "strict", "seed": 9, **options}
    return sheaf.Dataset("data", on_daemon_loss="origin", **options)


def order_of(epoch: int, part: list[int] | None = None) -> list[int]:
    """The epoch as the daemon gives it."""
    ds = sheaf.Dataset("data", order="strict", seed=9)
    if part is not None:
        ds = ds.subset(part)
    base = sheaf.slots.base(epoch)
    return [s.id for s in ds.__getitems__([base + i for i in range(len(ds))])]


def take(batch: sheaf.Batch, key_of: Any) -> list[int]:
    """Ids of a batch, whose bytes are those of its files."""
    for sample in batch:
        assert number_of(bytes(sample)) == int(key_of(sample.id)[-4:])
    return batch.ids.tolist()


def test_other_orders_are_refused() -> None:
    for order in ("shared", "window"):
        with pytest.raises(ValueError, match="order='strict'"):
            sheaf.Dataset("data", order=order, on_daemon_loss="origin")
    with pytest.raises(ValueError, match="'wait' or 'origin'"):
        sheaf.Dataset("data", on_daemon_loss="ignore")


@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_goes_on(own: Node, workers: int) -> None:
    """Killed in mid-epoch: the same order, each sample once, right bytes; the
    epoch after it, too."""
    want = [order_of(0), order_of(1)]
    ds = dataset()
    loader = sheaf.Loader(ds, 16, num_workers=workers)
    seen: list[int] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step, batch in enumerate(loader):
            seen += take(batch, ds.key)
            if step == 4:
                own.kill()
                state = loader.state_dict()
        assert seen == want[0] and sorted(seen) == list(range(N))
        assert [i for b in loader for i in take(b, ds.key)] == want[1]
    stats = ds.stats()
    assert stats["daemon_losses"] == 1
    assert stats["origin_samples"] >= N and stats["origin_bytes"] > N
    texts = [str(w.message) for w in caught]
    assert sum("read from its origin" in text for text in texts) == 1, texts
    # a state from then is worth a state of any other time
    again = sheaf.Loader(ds, 16)
    again.load_state_dict(pickle.loads(pickle.dumps(state)))
    assert [i for b in again for i in take(b, ds.key)] == want[0][5 * 16 :]


def test_parts_and_back_to_the_daemon(own: Node) -> None:
    """Subsets and plain ids are what they were; and the daemon is asked again
    once it is there, and binds what follows alike."""
    part = list(range(N - 1, 0, -3))
    want, whole = order_of(2, part), order_of(0)
    ds = dataset(transform=lambda sample: (sample.id, sample.slot))
    first = sheaf.slots.base(0)
    got_whole = ds.__getitems__([first + i for i in range(50)])
    mine = dataset().subset(part)
    base = sheaf.slots.base(2, mine.check())
    mine[base]
    other = sheaf.slots.base(2, mine.check() % 255 + 1)
    own.kill()
    got = mine.__getitems__([base + i for i in range(len(part))])
    assert [s.id for s in got] == want
    assert mine[1].id == part[1] and mine[-1].id == part[-1]
    assert ds[-1] == (N - 1, None)
    assert N - 1 == ds.get(N - 1).id == ds.get(-1).id
    assert (got[3].epoch, got[3].slot, got[3].is_copy) == (2, 3, True)
    assert got[3].tensor(copy=False).numpy().tobytes() == bytes(got[3])
    for wrong in (base + len(part), len(part), -len(part) - 1):
        with pytest.raises(IndexError):
            mine[wrong]
    with pytest.raises(ValueError, match="another dataset"):
        mine[other]
    before = ds.stats()["origin_samples"]
    got_whole += ds.__getitems__([first + i for i in range(50, 100)])
    assert ds.stats()["origin_samples"] == before + 50
    own.start()
    end = time.monotonic() + 60
    while True:
        before = ds.stats()["origin_samples"]
        ds[first + 3]
        if ds.stats()["origin_samples"] == before:
            break
        assert time.monotonic() < end
    got_whole += ds.__getitems__([first + i for i in range(100, N)])
    assert got_whole == list(zip(whole, range(N)))
    assert ds.stats()["origin_samples"] == before


def test_only_the_version_that_is_open(own: Node) -> None:
    """A file that changed, went or was swapped is an error with its key."""
    own.add("more", {"empty": b"", "large": LARGE, "same": b"1", "gone": b"2"})
    options = {"order": "strict", "on_daemon_loss": "origin", "timeout": 2}
    ds = sheaf.Dataset("more", **options)
    forgiving = sheaf.Dataset("more", on_error="replace", **options)
    len(ds), len(forgiving)
    root = own.origin / "more"
    times = (root / "same").stat()
    own.kill()
    assert bytes(ds.get("large")) == LARGE and bytes(ds.get("empty")) == b""
    (root / "gone").unlink()
    (root / "same").write_bytes(b"3")
    # as old as it was, and as long
    os.utime(
        root / "same", ns=(times.st_atime_ns, times.st_mtime_ns)
    )
    for key, number in (("same", errno.ESTALE), ("gone", errno.ENOENT)):
        with pytest.raises(OSError) as caught:
            ds.get(key)
        assert (caught.value.errno, caught.value.filename) == (number, key)
        assert "sheafd is away" in str(caught.value)
    good, bad = (ds.id_of(key) for key in ("empty", "same"))
    assert [s.id for s in forgiving.__getitems__([good, bad])] == [good, good]


def test_a_stopped_daemon_is_not_lost(own: Node) -> None:
    """It may be slow only: calls time out, and the origin is not read."""
    ds = dataset(timeout=1)
    len(ds)
    assert own.process is not None
    own.process.send_signal(signal.SIGSTOP)
    try:
        with pytest.raises(TimeoutError):
            ds[sheaf.slots.base(0)]
    finally:
        own.process.send_signal(signal.SIGCONT)
    assert ds.stats()["daemon_losses"] == ds.stats()["origin_samples"] == 0


def test_back_over_a_long_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """A socket whose path is longer than an address holds is looked at, too."""
    base = Path(tempfile.mkdtemp(prefix="sheaf-py.")) / ("long" * 30)
    base.mkdir()
    for node in make_node(base):
        node.start()
        monkeypatch.setenv("SHEAF_SOCKET", str(node.socket))
        node.add("data", {"0000": b"0:"})
        ds = dataset()
        len(ds)
        node.kill()
        assert bytes(ds[0]) == b"0:" and ds.stats()["origin_samples"] == 1
        node.start()
        end = time.monotonic() + 60
        while True:
            before = ds.stats()["origin_samples"]
            assert bytes(ds[0]) == b"0:"
            if ds.stats()["origin_samples"] == before:
                break
            assert time.monotonic() < end
    base.parent.rmdir()


def test_without_an_open_dataset_there_is_nothing_to_read(own: Node) -> None:
    own.kill()
    with pytest.raises(ConnectionRefusedError):
        dataset()[0]
