# SPDX-License-Identifier: Apache-2.0
"""fsspec's file system, and who reads through it."""

from __future__ import annotations

import io
import os
import pickle
import subprocess
import sys

import pytest

fsspec = pytest.importorskip("fsspec")

import sheaf  # noqa: E402

LARGE = 9 << 20  # three pieces


@pytest.fixture(scope="module")
def fs(node):
    node.add(
        "fs/tree",
        {
            "top.txt": b"one\ntwo\nthree\n",
            "a/x.bin": bytes(range(256)) * 40,
            "a-b/y": b"y",
            "a/deep/er/z": b"zz",
            "empty": b"",
            "large": os.urandom(LARGE),
        },
    )
    root = node.origin / "fs/tree"
    (root / "hollow").mkdir()
    (root / "link").symlink_to("top.txt")
    (root / "folder").symlink_to("a")
    (root / "lost").symlink_to("nowhere")
    node.sheaf("update", "fs/tree")
    return sheaf.open_fs()


@pytest.fixture
def root(node):
    return node.origin / "fs/tree"


def test_ls(fs):
    assert sorted(fs.ls("fs/tree", detail=False)) == [
        f"fs/tree/{name}"
        for name in sorted(
            "a a-b empty folder hollow large link lost top.txt".split()
        )
    ]
    kinds = {e["name"].rsplit("/")[-1]: e["type"] for e in fs.ls("fs/tree")}
    assert kinds["a"] == kinds["hollow"] == "directory"
    assert kinds["link"] == kinds["empty"] == "file"
    assert kinds["lost"] == kinds["folder"] == "link"
    assert fs.ls("fs/tree/hollow") == []
    assert fs.ls("sheaf://fs/tree/top.txt", detail=False) == [
        "fs/tree/top.txt"
    ]
    with pytest.raises(FileNotFoundError):
        fs.ls("fs/tree/nothing")
    with pytest.raises(FileNotFoundError):
        fs.ls("nobody/here")


def test_info(fs):
    found = fs.info("sheaf://fs/tree/a/x.bin")
    assert (found["size"], found["type"]) == (256 * 40, "file")
    assert fs.info("fs/tree/link")["size"] == 14
    assert fs.isdir("fs/tree") and fs.isdir("fs/tree/a/deep")
    assert fs.exists("fs/tree/a/deep/er/z")
    assert not fs.exists("fs/tree/b")
    assert fs.modified("fs/tree/top.txt").year > 2000


def test_walk_and_glob(fs):
    assert sorted(fs.find("fs/tree/a")) == [
        "fs/tree/a/deep/er/z",
        "fs/tree/a/x.bin",
    ]
    assert fs.glob("fs/tree/a*/?") == ["fs/tree/a-b/y"]
    assert fs.du("fs/tree/a") == 256 * 40 + 2


def test_a_name_that_continues_another(fs, node):
    """The shortest dataset is taken, a double slash says which is meant."""
    (node.base / "fs" / "tree").mkdir(parents=True)
    (node.base / "fs" / "tree" / "top.txt").write_bytes(b"another")
    node.sheaf("add", "fs", str(node.base / "fs"))
    fs.invalidate_cache()
    assert fs.cat_file("sheaf://fs/tree/top.txt") == b"another"
    assert fs.cat_file("sheaf://fs/tree//top.txt") == b"one\ntwo\nthree\n"
    fs.invalidate_cache()
    node.sheaf("rm", "fs")
    assert fs.cat_file("sheaf://fs/tree/top.txt") == b"one\ntwo\nthree\n"


def test_ranges(fs, root):
    data = (root / "large").read_bytes()
    path = "fs/tree/large"
    for start, end in [
        (0, 10),
        ((4 << 20) - 3, (4 << 20) + 3),
        (LARGE - 5, LARGE),
        (LARGE - 5, LARGE + 100),
        (LARGE, LARGE + 1),
        (-7, None),
        (None, -LARGE + 4),
        (100, 50),
        (None, None),
    ]:
        assert fs.cat_file(path, start, end) == data[start:end], (start, end)
    assert fs.cat_file("fs/tree/empty") == b""
    assert fs.cat_ranges([path] * 2, [5, 9], [7, 12]) == [
        data[5:7],
        data[9:12],
    ]


def test_a_range_reads_no_more(fs, node):
    """A few bytes of a large file bring the piece that has them alone."""
    node.sheaf("warmup", "--evict", "fs/tree")
    before = node.stat("origin.bytes")
    fs.cat_file("fs/tree/large", LARGE - 10, LARGE)
    assert node.stat("origin.bytes") - before <= 4 << 20


def test_open(fs, root):
    with fs.open("fs/tree/top.txt") as file:
        assert file.read(3) == b"one"
        assert file.seek(4) == 4
        assert file.readline() == b"two\n"
        assert file.read() == b"three\n"
        assert file.read() == b""
    with fsspec.open("sheaf://fs/tree/top.txt", "rt") as file:
        assert [line.strip() for line in file] == ["one", "two", "three"]
    with fs.open("fs/tree/large") as file:
        file.seek(-3, io.SEEK_END)
        assert file.read(10) == (root / "large").read_bytes()[-3:]
    for mode in ("wb", "ab", "r+b"):
        with pytest.raises((OSError, ValueError, NotImplementedError)):
            fs.open("fs/tree/new", mode)
    with pytest.raises(IsADirectoryError):
        fs.open("fs/tree/a")


def test_pickle(fs):
    again = pickle.loads(pickle.dumps(fs))
    assert again.cat_file("fs/tree/a-b/y") == b"y"


def test_versions(fs, node, root):
    """One version until it is asked for the newest."""
    node.add("fs-versions", {"f": b"old"})
    assert fs.cat_file("fs-versions/f") == b"old"
    key = fs.ukey("fs-versions/f")
    (node.origin / "fs-versions" / "f").write_bytes(b"newer")
    node.sheaf("update", "fs-versions")
    assert fs.info("fs-versions/f")["size"] == 3
    fs.invalidate_cache()
    assert fs.cat_file("fs-versions/f") == b"newer"
    assert fs.ukey("fs-versions/f") != key


def test_pandas(fs, node):
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"n": range(1000), "s": ["x,y"] * 1000})
    node.add("fs-table", {"t.csv": table.to_csv(index=False).encode()})
    found = pandas.read_csv("sheaf://fs-table/t.csv")
    pandas.testing.assert_frame_equal(found, table)


def test_pillow(fs, node):
    image = pytest.importorskip("PIL.Image")
    kept = io.BytesIO()
    image.new("RGB", (40, 30), (1, 2, 3)).save(kept, "PNG")
    node.add("fs-image", {"i.png": kept.getvalue()})
    with fs.open("fs-image/i.png") as file:
        found = image.open(file)
        assert (found.size, found.getpixel((5, 5))) == ((40, 30), (1, 2, 3))


def test_datasets(fs, node, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    datasets = pytest.importorskip("datasets")
    lines = "".join(f'{{"n": {n}}}\n' for n in range(500))
    node.add("fs-json", {"a.jsonl": lines.encode(), "b.jsonl": b'{"n": 500}\n'})
    found = datasets.load_dataset(
        "json",
        data_files="sheaf://fs-json/*.jsonl",
        split="train",
        streaming=True,
    )
    assert sorted(row["n"] for row in found) == list(range(501))
    whole = datasets.load_dataset(
        "json",
        data_files="sheaf://fs-json/*.jsonl",
        split="train",
        cache_dir=str(tmp_path / "cache"),
    )
    assert sorted(whole["n"]) == list(range(501))


MAPS = """
import numpy, sys
place, root = sys.argv[1:]
for name in ("large", "a/x.bin"):
    array = numpy.memmap(f"{place}/{name}", mode="r")
    with open(f"{root}/{name}", "rb") as file:
        assert array.tobytes() == file.read()
    try:
        numpy.memmap(f"{place}/{name}", mode="r+")
        sys.exit("mapped for writing")
    except OSError:
        pass
"""


def test_files_of_a_mount_are_mapped(fs, node, root):
    """By NumPy, cold and warm, as those of the origin; in a process of its own,
    since what can go wrong is a signal."""
    place = node.base / "mounted"
    place.mkdir()
    mounted = node.sheaf("mount", "fs/tree", str(place), check=False)
    if mounted.returncode:
        pytest.skip(f"no mount: {mounted.stderr.strip().splitlines()[-1]}")
    try:
        for _ in range(2):
            subprocess.run(
                [sys.executable, "-c", MAPS, str(place), str(root)],
                timeout=120,
                check=True,
            )
    finally:
        node.sheaf("umount", "--lazy", str(place))
