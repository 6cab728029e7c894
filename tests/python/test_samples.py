# SPDX-License-Identifier: Apache-2.0
"""Samples: bytes in place, and how long they stay."""

from __future__ import annotations

import gc
import os
import pickle
import warnings

import numpy
import pytest
import sheaf
import torch
from conftest import N, Node, content, number_of


def test_plain_ints_are_that_very_file(data: str) -> None:
    ds = sheaf.Dataset(data)
    assert len(ds) == len(ds.files) == N
    for i in (0, 1, N - 1):
        sample = ds[i]
        assert sample.id == i and sample.slot is None and sample.epoch is None
        assert sample.key == ds.files[i] == ds.key(i)
        assert number_of(bytes(sample)) == int(sample.key[-4:])
        assert ds.id_of(sample.key) == i
        assert bytes(ds.get(sample.key)) == bytes(sample)
    assert ds[-1].id == N - 1 and ds[-N].id == 0
    for wrong in (N, -N - 1, 1 << 61, -(1 << 62), 1 << 70, -(1 << 70)):
        with pytest.raises(IndexError):
            ds[wrong]


ODD = [
    b"\n", b"a\nb", b" ", b" x ", b"-rf", b"*", b"%2F", b"a+b", b"a#b?c&d=e",
    b"\xc3\xa9", b"e\xcc\x81", b"\xff\xfe", b'"', b"\\", b"\x01", b"n" * 255,
]  # fmt: skip


def test_names_of_any_bytes(node: Node) -> None:
    """As files and as classes of an image folder; also in a worker."""
    for kind in ODD:
        path = os.fsencode(node.origin / "bytes") + b"/" + kind
        os.makedirs(path)
        for name in ODD:
            with open(path + b"/" + name, "wb") as file:
                file.write(kind + b"/" + name)
    node.sheaf("add", "bytes", str(node.origin / "bytes"))
    ds = sheaf.Dataset("bytes")
    want = sorted(kind + b"/" + name for kind in ODD for name in ODD)
    assert sorted(os.fsencode(key) for key in ds.files) == want
    assert sorted(os.fsencode(name) for name in ds.classes) == sorted(ODD)
    for number, key in enumerate(ds.files):
        sample = ds[number]
        assert bytes(sample) == os.fsencode(key) == os.fsencode(sample.key)
        assert ds.id_of(key) == number == ds.get(key).id
        kind = os.fsencode(ds.classes[ds.label(number)])
        assert os.fsencode(key).rpartition(b"/")[0] == kind
    for batch in sheaf.Loader(ds, 16, num_workers=1):
        assert [bytes(s) for s in batch] == [os.fsencode(s.key) for s in batch]


def test_index_types(data: str) -> None:
    ds = sheaf.Dataset(data)
    for index in (5, numpy.int64(5), numpy.int32(5), torch.tensor(5), True + 4):
        assert ds[index].id == 5
    tag = sheaf.slots.base(0) + 7
    ids = {
        ds[index].id for index in (tag, numpy.int64(tag), torch.tensor(tag))
    }
    assert len(ids) == 1
    for wrong in (5.0, float(tag), numpy.float64(tag), "5", None):
        with pytest.raises(TypeError):
            ds[wrong]
    # -1 has bit 62 set, too.
    assert not sheaf.is_slot(-1) and sheaf.is_slot(tag)
    assert ds[-1].slot is None


def test_labels_are_those_of_image_folder(data: str, node: Node) -> None:
    ds = sheaf.Dataset(data)
    assert ds.classes == [f"c{i}" for i in range(7)]
    assert ds.class_to_idx["c3"] == 3
    for i in range(N):
        assert ds.label(i) == int(ds.files[i][1])
    assert ds[700].label == ds.label(700)
    node.add(
        "odd",
        {
            key: b"x"
            for key in ("b", "a-b/1", "a/1", "a/2/3", "a.b/1", "zz", "B/x/y/z")
        },
    )
    odd = sheaf.Dataset("odd")
    assert odd.classes == sorted(["a-b", "a", "a.b", "B"])
    for i, key in enumerate(odd.files):
        folder, slash, _ = key.partition("/")
        want = odd.classes.index(folder) if slash else -1
        assert odd.label(i) == want, key


def test_labels_of_uneven_trees(node: Node) -> None:
    """Files of a class do not follow one another: depths are apart."""
    keys = [f"a/{i:03}" for i in range(40)]
    keys += [f"b/{i:03}" for i in range(20)]
    keys += [f"a/deep/{i:03}" for i in range(100)]
    keys += [f"c/x/{i:03}" for i in range(7)] + ["top"]
    node.add("uneven", {key: b"x" for key in keys})
    uneven = sheaf.Dataset("uneven")
    assert uneven.classes == ["a", "b", "c"]
    for i, key in enumerate(uneven.files):
        want = {"a": 0, "b": 1, "c": 2, "t": -1}[key[0]]
        assert uneven.label(i) == want, key


def test_read_only(data: str) -> None:
    sample = sheaf.Dataset(data)[3]
    array = sample.numpy()
    with pytest.raises(ValueError):
        array[0] = 1
    with pytest.raises(TypeError):
        memoryview(sample)[0] = 1
    assert memoryview(sample).readonly and len(sample) == len(array)


def test_tensors_warn_of_nothing(data: str) -> None:
    ds = sheaf.Dataset(data)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sample = ds[9]
        want = bytes(sample)
        copied, shared = sample.tensor(), sample.tensor(copy=False)
    assert bytes(copied.tolist()) == bytes(shared.tolist()) == want
    assert copied.dtype == shared.dtype == torch.uint8
    copied.add_(1)
    assert bytes(sample) == bytes(ds[9]) == want


def test_both_kinds_of_capsules(data: str) -> None:
    sample = sheaf.Dataset(data)[11]
    assert sample.__dlpack_device__() == (1, 0)
    for version, name in ((None, "dltensor"), ((1, 3), "dltensor_versioned")):
        capsule = sample.__dlpack__(max_version=version)
        assert f'"{name}"' in repr(capsule)
        tensor = torch.utils.dlpack.from_dlpack(capsule)
        assert bytes(tensor.tolist()) == bytes(sample)
    sample.__dlpack__()  # nobody takes it
    assert numpy.from_dlpack(sample).tobytes() == bytes(sample)
    with pytest.raises(BufferError):
        sample.__dlpack__(copy=True)


def test_empty_files(node: Node) -> None:
    node.add("empty", {"a/1": b"", "a/2": b"x"})
    sample = sheaf.Dataset("empty")[0]
    assert bytes(sample) == b"" and len(sample) == 0
    assert sample.tensor().shape == sample.tensor(copy=False).shape == (0,)
    assert sample.numpy().shape == (0,)
    assert pickle.loads(pickle.dumps(sample)).key == "a/1"


def test_release(data: str) -> None:
    ds = sheaf.Dataset(data)
    sample = ds[4]
    sample.release()
    sample.release()
    for use in (bytes, len, sheaf.Sample.tensor, sheaf.Sample.numpy):
        with pytest.raises(ValueError):
            use(sample)
    sample = ds[4]
    array = sample.numpy()
    sample.release()  # the array is read on
    assert bytes(sample) == array.tobytes()


def test_a_sample_is_no_sequence(data: str) -> None:
    from collections.abc import Sequence

    assert not isinstance(sheaf.Dataset(data)[0], Sequence)
    with pytest.raises(TypeError):
        sheaf.Sample()  # type: ignore[call-arg]


def test_pickled_by_reference(data: str) -> None:
    ds = sheaf.Dataset(data)
    for index in (17, sheaf.slots.base(2) + 3):
        sample = ds[index]
        text = pickle.dumps(sample)
        assert len(text) < 600
        again = pickle.loads(text)
        assert bytes(again) == bytes(sample)
        assert (again.id, again.epoch, again.slot) == (
            sample.id,
            sample.epoch,
            sample.slot,
        )


def test_large_files_are_put_together(node: Node) -> None:
    data = os.urandom(5 << 20) + b"end"
    node.add("large", {"a/1": data})
    sample = sheaf.Dataset("large")[0]
    assert len(sample) == len(data)
    assert bytes(sample) == data and sample.is_copy
    assert sample.tensor(copy=False).numpy().tobytes() == data
    assert sample.file().read() == data


@pytest.fixture(scope="module")
def crowd(node: Node) -> str:
    """More than the daemon's memory, in files of 300 KB."""
    node.add(
        "crowd",
        {f"a/{i:04}": bytes([i % 251]) * 300_000 for i in range(300)},
    )
    return "crowd"


def test_pins_follow_objects(crowd: str) -> None:
    """A slice outlives Sample and Dataset, whatever is evicted meanwhile."""
    ds = sheaf.Dataset(crowd)
    sample = ds[7]
    assert not sample.is_copy
    part = sample.tensor(copy=False)[1000:2000]
    array = ds[8].numpy()
    del sample, ds
    gc.collect()
    other = sheaf.Dataset(crowd)
    for i in range(300):
        assert bytes(other[i]) == bytes([i % 251]) * 300_000
    assert part.unique().tolist() == [7]
    assert numpy.unique(array).tolist() == [8]


def test_over_the_grant_is_a_copy_and_counted(crowd: str) -> None:
    ds = sheaf.Dataset(crowd, pin_bytes=2 << 20)
    held = [ds[i] for i in range(20)]
    assert not held[0].is_copy and held[-1].is_copy
    for i, sample in enumerate(held):
        assert bytes(sample) == bytes([i]) * 300_000
    copies = sum(s.is_copy for s in held)
    stats = ds.stats()
    assert stats["copied_samples"] == stats["copies"] == copies
    assert stats["samples"] == 20
    del held, sample
    gc.collect()
    assert not ds[0].is_copy


def test_pins_go_back(crowd: str) -> None:
    """No leak: far more than the grant, one after the other."""
    ds = sheaf.Dataset(crowd, pin_bytes=4 << 20)
    for i in range(300):
        sample = ds[i]
        tensor = sample.tensor(copy=False)
        assert tensor[0] == i % 251 and not sample.is_copy, i
        sample.numpy()
        memoryview(sample)


def test_a_child_that_ends_unpins_nothing(data: str) -> None:
    ds = sheaf.Dataset(data)
    sample = ds[30]
    tensor = sample.tensor(copy=False)
    pinned = ds.stats()["pinned_bytes"]
    pid = os.fork()
    if pid == 0:
        ok = bytes(sample) == content(number_of(bytes(sample)))
        del sample, tensor
        gc.collect()
        ok = ok and number_of(bytes(ds[31])) >= 0
        os._exit(0 if ok else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert ds.stats()["pinned_bytes"] == pinned
    assert bytes(tensor.tolist()) == bytes(sample)


def test_a_postfix_shows_what_is_counted(data: str) -> None:
    stats = sheaf.Dataset(data).stats()
    stats.update(hits=3, misses=1, miss_wait_s=2.5, replaced=2)
    assert stats.keys() == sheaf.Dataset(data).stats().keys()
    want = {"hits": "75.0%", "wait": "2.5s", "replaced": "2"}
    assert stats.postfix() == want
