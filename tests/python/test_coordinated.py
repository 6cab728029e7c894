# SPDX-License-Identifier: Apache-2.0
"""CoordinatedLoader: members that are processes, workers that die."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import sheaf
from conftest import Node, content
from members import (
    Crowd,
    Member,
    Prepare,
    all_take,
    alive,
    crowd,
    digest,
    every_crowd,
    gone,
    held,
    lines,
)

__all__ = ["crowd", "every_crowd"]

N, SIZE = 120, 8
BATCHES = N // SIZE


@pytest.fixture(scope="module")
def few(node: Node) -> str:
    """A dataset of N small files."""
    node.add("few", {f"c{i % 3}/f{i:03}": content(i) for i in range(N)})
    return "few"


@pytest.fixture
def group(request: pytest.FixtureRequest) -> str:
    """A name that no other test has."""
    return str(request.node.name)


def make(those: list[Member], data: str, **options: Any) -> None:
    """A loader in each, with the same options."""
    options.setdefault("prep_workers", 1)
    for member in those:
        member.tell("make", data, SIZE, **options)
    for member in those:
        member.result()


STRICT = {"order": "strict", "seed": 3}


def lone(data: str, group: str, transform: Any, epochs: int = 1) -> list[Any]:
    """What one job by itself has of the order STRICT: (ids, digest) of each
    batch, by epoch."""
    ds = sheaf.Dataset(data, transform=transform, **STRICT)
    with sheaf.CoordinatedLoader(
        ds, SIZE, group=f"{group}-alone", prep_workers=0
    ) as loader:
        return [
            [(b["id"].tolist(), digest(b)) for b in loader]
            for _ in range(epochs)
        ]


def ids(batches: list[tuple[list[int], str]]) -> list[int]:
    return [i for numbers, _ in batches for i in numbers]


def test_three_jobs_prepare_once(
    few: str, group: str, crowd: Crowd, tmp_path: Path
) -> None:
    """Each sample is prepared once an epoch for all three; with other random
    numbers in each epoch, and those of a run that is alone."""
    three = crowd.get(3)
    transform = Prepare(log=str(tmp_path))
    options = {"ds": {"transform": transform, **STRICT}, "members": 3}
    make(three, few, group=group, **options)
    epochs = [all_take(three), all_take(three)]
    noted = lines(tmp_path)
    for seen in epochs:
        assert seen[0] == seen[1] == seen[2]
        assert sorted(ids(seen[0])) == list(range(N))
    assert sorted((e, i) for e, _, i in noted) == [
        (e, i) for e in range(2) for i in range(N)
    ]
    assert not {d for _, d in epochs[0][0]} & {d for _, d in epochs[1][0]}
    want = lone(few, group, Prepare(), 2)
    got = [seen[0] for seen in epochs]
    assert [ids(e) for e in got] == [ids(e) for e in want]
    assert got == want
    stats = [m.call("get", "stats") for m in three]
    assert sum(s["prepared"] for s in stats) == 2 * BATCHES
    assert all(s["taken"] == 2 * BATCHES for s in stats)
    assert stats[0]["redone"] == stats[0]["failed"] == 0
    assert [m.call("get", "epoch") for m in three] == [1, 1, 1]
    assert not any(m.call("warned") for m in three)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_worker_that_ends_or_stops(
    few: str, group: str, crowd: Crowd, tmp_path: Path, number: int
) -> None:
    """In the middle of a batch: another one makes it, of the same bytes."""
    three = crowd.get(3)
    transform = Prepare(log=str(tmp_path), hold=5 * SIZE + 3)
    options = {"ds": {"transform": transform, **STRICT}, "members": 3}
    make(three, few, group=group, lease=1.0, **options)
    for member in three:
        member.tell("take")
    pid = held(tmp_path)
    os.kill(pid, number)
    seen = [member.result() for member in three]
    assert seen[0] == seen[1] == seen[2] == lone(few, group, Prepare())[0]
    warned = [text for m in three for text in m.call("warned")]
    killed = number == signal.SIGKILL
    assert all("SIGKILL" in text for text in warned) and len(warned) <= killed
    assert three[0].call("get", "stats")["redone"] >= 1
    workers = {pid for m in three for pid in m.call("workers")}
    assert (pid in workers) == (not killed)
    for member in three:
        member.call("close")
        assert member.call("workers") == []
    gone([pid])


def test_members_come_and_go(
    few: str, group: str, crowd: Crowd, tmp_path: Path
) -> None:
    """In the middle of an epoch: who stays has all of it, and so has who
    comes; what was given up before is prepared for that one alone."""
    a, b, now, late = crowd.get(4)
    ds = {"transform": Prepare(), **STRICT}
    make([a, b], few, group=group, ds=ds, members=2)
    first = all_take([a, b], 6)
    make([now], few, group=group, ds=ds, join="now")
    make([late], few, group=group, ds=ds)
    early = now.call("take", 3)
    assert now.call("get", "epoch") == 0
    orphans = b.call("workers")
    assert len(orphans) == 1
    b.kill()
    late.tell("take")
    rest = all_take([a, now])
    assert a.call("get", "epoch") == 0
    want = lone(few, group, Prepare(), 2)
    assert first[0] == first[1] and first[0] + rest[0] == want[0]
    assert early + rest[1] == want[0]
    assert all_take([a, now]) == [want[1], want[1]]
    assert late.result() == want[1] and late.call("get", "epoch") == 1
    assert now.call("get", "stats")["private"] >= 3
    assert not any(m.call("warned") for m in (a, now, late))
    gone(orphans)


def test_who_lags(few: str, group: str, crowd: Crowd) -> None:
    """With "private" nobody waits for it, and it misses nothing."""
    a, b = crowd.get(2)
    ds = {"transform": Prepare(), **STRICT}
    make([a], few, group=group, ds=ds, members=2, max_ahead=2)
    make([b], few, group=group, ds=ds, members=2, lag="private")
    begun = all_take([a, b], 1)
    whole = begun[0] + a.call("take")
    assert b.call("get", "stats")["detached"]
    assert begun[1] + b.call("take") == whole == lone(few, group, Prepare())[0]
    assert b.call("get", "stats")["private"] > 0
    assert not a.call("warned") and not b.call("warned")
    # together again
    assert len({str(seen) for seen in all_take([a, b])}) == 1
    assert not b.call("get", "stats")["detached"]


def test_ranks_and_a_job_of_one_process(
    node: Node, few: str, group: str, crowd: Crowd
) -> None:
    """Two ranks share an epoch, a third process has all of it."""
    r0, r1, whole = crowd.get(3)
    ds = {"transform": Prepare(), **STRICT}
    options: dict[str, Any] = {"ds": ds, "members": 3, "drop_last": True}
    for rank, member in enumerate((r0, r1)):
        make([member], few, group=group, distributed=(rank, 2), **options)
    make([whole], few, group=group, **options)
    # the second rank is there first, and stands at its first batch
    r1.tell("take")
    end = time.monotonic() + 60
    while not re.search(
        r'"batch": *1\b',
        node.sheaf("groups", group, "--json", check=False).stdout,
    ):
        assert time.monotonic() < end
        time.sleep(0.02)
    half, everything = all_take([r0, whole])
    other = r1.result()
    assert everything == lone(few, group, Prepare())[0]
    # 15 batches: the last one makes no round
    assert half == everything[0:14:2] and other == everything[1:14:2]
    half, other, everything = all_take([r0, r1, whole])
    assert half == everything[0:14:2] and other == everything[1:14:2]
    states = [m.call("get", "state_dict") for m in (r0, r1)]
    assert states[0] == states[1] and states[0]["epoch"] == 2


def test_ranks_begin_together(
    few: str, group: str, crowd: Crowd, tmp_path: Path
) -> None:
    """Though the group has gone on before the second one joins."""
    r0, r1, whole = crowd.get(3)
    ds = {"transform": Prepare(), **STRICT}
    options: dict[str, Any] = {"ds": ds, "drop_last": True, "max_ahead": 16}
    make([whole], few, group=group, **options)
    whole.call("take", 3)
    for rank, member in enumerate((r0, r1)):
        member.tell("rank", rank, 2, str(tmp_path / "store"))
    for member in (r0, r1):
        member.result()
    make([r0, r1], few, group=group, **options)
    half = r0.call("take", 1)
    whole.call("take")
    everything = whole.call("take", 2)
    other = r1.call("take", 1)
    assert r0.call("get", "epoch") == r1.call("get", "epoch") == 1
    assert half == everything[0:1] and other == everything[1:2]
    for member in (r0, r1):
        member.call("close")
        member.call("rank", 0, 0, "")


def test_the_daemon_is_killed(own: Node, group: str, crowd: Crowd) -> None:
    """In mid-epoch: members and workers join again and go on."""
    own.add("few", {f"c{i % 3}/f{i:03}": content(i) for i in range(N)})
    two = crowd.get(2)
    ds = {"transform": Prepare(), **STRICT}
    make(two, "few", group=group, ds={**ds, "socket": str(own.socket)})
    first = two[0].call("take", 4)
    other = two[1].call("set", "set_epoch", 0), two[1].call("take", 2)
    own.kill()
    for member in two:
        member.tell("take")
    own.start()
    rest = [member.result() for member in two]
    want = lone("few", group, Prepare())[0]
    assert first + rest[0] == want and other[1] + rest[1] == want
    assert not any(m.call("warned") for m in two)


def test_a_member_is_killed(few: str, group: str, crowd: Crowd) -> None:
    """Its workers end with it, also in the middle of a batch."""
    (member,) = crowd.get(1)
    make([member], few, group=group, prep_workers=2,
         ds={"transform": Prepare(nap=0.05)})  # fmt: skip
    member.call("take", 1)
    workers = member.call("workers")
    assert len(workers) == 2 and all(map(alive, workers))
    member.kill()
    gone(workers)


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_ways_to_start(few: str, group: str, method: str) -> None:
    ds = sheaf.Dataset(few, transform=Prepare(), **STRICT)
    with sheaf.CoordinatedLoader(
        ds, SIZE, group=group, prep_workers=1, multiprocessing_context=method
    ) as loader:
        seen = [(b["id"].tolist(), digest(b)) for b in loader]
        assert loader.stats()["prepared"] == BATCHES
    assert seen == lone(few, group, Prepare())[0]


def test_eight_jobs_at_once(
    few: str, group: str, crowd: Crowd, tmp_path: Path
) -> None:
    """Built once, by whoever; and another group's parameters are another
    result."""
    eight = crowd.get(8)
    transform = Prepare(log=str(tmp_path), hold=N // 2)
    make(eight[:6], few, group=group, members=6,
         ds={"transform": transform, **STRICT})  # fmt: skip
    make(eight[6:], few, group=f"{group}-other", members=2,
         ds={"transform": Prepare(crop=0.25), **STRICT})  # fmt: skip
    for member in eight:
        member.tell("take")
    os.kill(held(tmp_path), signal.SIGKILL)
    seen = [member.result() for member in eight]
    want = lone(few, group, Prepare())[0]
    assert all(one == want for one in seen[:6])
    assert seen[6] == seen[7] and ids(seen[6]) == ids(want)
    assert not {d for _, d in want} & {d for _, d in seen[6]}
    noted = [i for _, _, i in lines(tmp_path)]
    # of the batch that died with its worker some samples come twice
    assert set(noted) == set(range(N)) and len(noted) <= N + SIZE


def test_nothing_is_left_over(few: str, group: str, crowd: Crowd) -> None:
    """No descriptor and no mapping, after two epochs and after the end."""
    (member,) = crowd.get(1)
    make([member], few, group=group, ds={"transform": Prepare()})
    member.call("take")
    before = member.call("open_files")
    member.call("take")
    after = member.call("open_files")
    assert len(after) == len(before) and not any("batch" in f for f in after)
    member.call("take", 2)
    member.call("drop")
    assert member.call("get", "epoch") == 2
    assert sorted(ids(member.call("take"))) == list(range(N))
    assert member.call("get", "epoch") == 3
    member.call("close")
    assert len(member.call("open_files")) < len(before)


def test_ctrl_c(few: str, group: str, crowd: Crowd, tmp_path: Path) -> None:
    """Ends a wait; the batch is still there."""
    (member,) = crowd.get(1)
    transform = Prepare(log=str(tmp_path), hold=2 * SIZE)
    make([member], few, group=group, ds={"transform": transform, **STRICT})
    first = member.call("take", 2)
    pid = held(tmp_path)
    assert member.call("interrupted") < 5
    os.kill(pid, signal.SIGKILL)
    rest = member.call("take")
    assert first + rest == lone(few, group, Prepare())[0]
