# SPDX-License-Identifier: Apache-2.0
"""CoordinatedLoader in one process: what it refuses, raises and remembers."""

from __future__ import annotations

import functools
import gc
import multiprocessing
import os
import pickle
import re
import signal
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path
from typing import Any, Iterator

import pytest
import sheaf
import torch
from conftest import Node, content
from members import gone
from sheaf import prepared

N, SIZE = 60, 8
BATCHES = 8
STRICT = {"order": "strict", "seed": 3}


@pytest.fixture(scope="module")
def few(node: Node) -> str:
    node.add("few", {f"c{i % 3}/f{i:03}": content(i) for i in range(N)})
    node.add("other", {f"c{i % 3}/f{i:03}": content(i + 1) for i in range(N)})
    return "few"


@pytest.fixture
def group(request: pytest.FixtureRequest) -> str:
    return str(request.node.name)


@pytest.fixture(autouse=True)
def no_warnings() -> Iterator[None]:
    """Nobody is told that slots were served before: that is how it is."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        yield


def number(sample: sheaf.Sample, add: int = 0) -> torch.Tensor:
    return torch.tensor([sample.id, add])


def half(sample: sheaf.Sample) -> torch.Tensor:
    return torch.tensor([sample.id, 0.5])


def first(items: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack(items)


def instead(failure: sheaf.Failure) -> torch.Tensor:
    return torch.tensor([failure.id, -1])


def loader(
    data: str, group: str, ds: Any = (), **options: Any
) -> sheaf.CoordinatedLoader:
    options = {"prep_workers": 0, "batch_size": SIZE, **options}
    made = sheaf.Dataset(data, **{"transform": number, **STRICT, **dict(ds)})
    part = options.pop("part", None)
    return sheaf.CoordinatedLoader(
        made.subset(part) if part else made, group=group, **options
    )


def ids(batches: Any) -> list[int]:
    return [i for batch in batches for i in batch[:, 0].tolist()]


def workers() -> list[int]:
    """Those of this process's loaders."""
    children = multiprocessing.active_children()
    return [p.pid or 0 for p in children if p.name.startswith("sheaf-prep")]


def begun(*loaders: sheaf.CoordinatedLoader) -> list[Any]:
    """A pass over each, all in the same epoch."""
    passes = [iter(loader) for loader in loaders]
    for loader, one in zip(loaders, passes):
        loader._begin(one)  # type: ignore[arg-type]
    return passes


MISMATCHES: dict[str, dict[str, Any]] = {
    "dataset": {"data": "other"},
    "subset": {"part": range(N - 1)},
    "order": {"ds": {"order": "shared"}},
    "seed": {"seed": 4},
    "batch_size": {"batch_size": 4},
    "drop_last": {"drop_last": True},
    "transform": {"ds": {"transform": functools.partial(number, add=1)}},
    "decode": {"ds": {"decode": "bytes", "transform": None}},
    "collate": {"collate_fn": first},
    "on_error": {"ds": {"on_error": instead}},
}


def test_who_differs_is_told_in_what(few: str, group: str) -> None:
    with loader(few, group) as one:
        batches = iter(one)
        next(batches)
        for field, change in MISMATCHES.items():
            options = {"data": few, **change}
            if field == "decode":
                options["ds"]["transform"] = None
                options["transform"] = number
            with loader(group=group, **options) as two:
                with pytest.raises(sheaf.GroupMismatch) as caught:
                    next(iter(two))
            both = rf": {field} is '.+', and the group's is '.+'"
            assert re.search(both, str(caught.value)), caught.value
        # the same in other words
        same = functools.partial(number)
        with pytest.raises(sheaf.GroupMismatch, match="transform"):
            next(iter(loader(few, group, ds={"transform": same})))
        assert len(list(batches)) == BATCHES - 1


def test_other_spellings_are_one(few: str, group: str) -> None:
    a = functools.partial(number, add=int("7"))
    with loader(few, group, ds={"transform": a}) as one, loader(
        few, group, ds={"transform": None},
        transform=functools.partial(number, add=7), seed=3,
        max_ahead=3, lag="private", patience=9, join="now",
    ) as two:  # fmt: skip
        pairs = zip(one, two, strict=True)
        assert all(torch.equal(x, y) for x, y in pairs)


@pytest.mark.parametrize("workers", [0, 1])
def test_another_kind_of_batch(few: str, group: str, workers: int) -> None:
    """What an id hides shows in dtypes and dimensions."""
    with loader(few, group, transform_id="v1") as one:
        batches = iter(one)
        begun = [next(batches)]
        with loader(
            few, group, ds={"transform": half}, transform_id="v1",
            prep_workers=workers, join="now",
        ) as two:  # fmt: skip
            for _ in range(2):
                with pytest.raises(sheaf.GroupMismatch, match="float32:2"):
                    next(iter(two))
        assert sorted(ids(begun + list(batches))) == list(range(N))


def test_arguments(few: str, group: str) -> None:
    ds = sheaf.Dataset(few)
    for wrong, error in (
        ({"lag": "skip"}, "lag"), ({"join": "later"}, "join"),
        ({"group": ""}, "group"), ({"prep_workers": -1}, "prep_workers"),
        ({"max_ahead": 0}, "max_ahead"), ({"distributed": (2, 2)}, "rank 2"),
        ({"batch_size": 0}, "batch_size"), ({"transform_id": ""}, "transform_id"),
        ({"collate_fn": lambda items, lock=multiprocessing.Lock(): items},
         "transform_id"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=error):
            sheaf.CoordinatedLoader(ds, **{"group": group, **wrong})
    for options, why in (
        ({"on_error": "replace"}, "replace"),
        ({"replay": True, "job": "x"}, "replay"),
        ({"order": "strict", "on_daemon_loss": "origin"}, "origin"),
    ):
        with pytest.raises(ValueError, match=why):
            sheaf.CoordinatedLoader(sheaf.Dataset(few, **options), group=group)
    with pytest.raises(ValueError, match="one already"):
        loader(few, group, transform=number)
    with pytest.raises(TypeError, match="Dataset"):
        sheaf.CoordinatedLoader([1], group=group)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="its own"):
        pickle.dumps(loader(few, group))
    uneven = loader(few, group, distributed=(0, 3))
    for ask in (uneven.__len__, lambda: next(iter(uneven))):
        with pytest.raises(ValueError, match="drop_last=True"):
            ask()
    assert len(loader(few, group, distributed=(0, 3), drop_last=True)) == 2
    assert len(loader(few, group)) == BATCHES
    none = loader(few, group, batch_size=N + 1, drop_last=True)
    assert list(none) == [] == list(none) and none.epoch == 1


class Odd(Exception):
    """Cannot be made from its text."""

    def __init__(self, a: int, b: int) -> None:
        super().__init__("odd")


def bad(sample: sheaf.Sample) -> torch.Tensor:
    """Fails in some batches, in different ways."""
    slot = sample.slot
    if slot == SIZE + 1:
        raise FileExistsError(17, "in the way", "somewhere")
    if slot == 3 * SIZE:
        raise Odd(1, 2)
    if slot == 5 * SIZE + 2:
        next(iter(()))
    return torch.tensor([sample.id, 0])


@pytest.mark.parametrize("workers", [0, 1])
def test_a_batch_that_fails(few: str, group: str, workers: int) -> None:
    """Its error comes to each member, and the next batch after it."""
    options: dict[str, Any] = {"ds": {"transform": bad}, "lease": 0.3}
    with loader(few, group, prep_workers=workers, **options) as one, loader(
        few, group, **options
    ) as two:
        passes = begun(one, two)
        got: list[list[Any]] = [[], []]
        for _ in range(BATCHES):
            for p, seen in zip(passes, got):
                try:
                    seen.append(next(p))
                except (OSError, RuntimeError) as error:
                    seen.append(error)
        for p, seen in zip(passes, got):
            exact, text, ended = seen[1], seen[3], seen[5]
            assert type(exact) is FileExistsError
            assert exact.filename == "somewhere"
            notes = "".join(exact.__notes__)
            assert "in bad" in notes and "transforming" in notes
            assert type(text) is RuntimeError and "Odd: odd" in str(text)
            assert type(ended) is RuntimeError and "StopIteration" in str(ended)
            good = [b for b in seen if isinstance(b, torch.Tensor)]
            assert len(set(ids(good))) == N - 3 * SIZE
            with pytest.raises(StopIteration):
                next(p)
        assert one.stats()["failed"] >= 3
        assert one.state_dict()["epoch"] == 1


def dies(sample: sheaf.Sample) -> torch.Tensor:
    if multiprocessing.parent_process() is not None:
        os._exit(7)
    return number(sample)


def test_workers_that_cannot_be_made(few: str, group: str) -> None:
    """What does not travel to them is told each time."""
    one = loader(
        few, group, ds={"transform": lambda sample: sample}, prep_workers=1,
        multiprocessing_context="forkserver",
    )  # fmt: skip
    for _ in range(2):
        with pytest.raises((AttributeError, pickle.PicklingError)):
            next(iter(one))
    assert not workers()


def test_workers_that_always_die(few: str, group: str) -> None:
    with loader(few, group, ds={"transform": dies}, prep_workers=1) as one:
        batches = iter(one)
        with pytest.warns(RuntimeWarning, match="ended with exit code 7"):
            for _ in range(BATCHES):
                with pytest.raises(RuntimeError) as told:
                    next(batches)
                # sheafd gives a batch up after three
                if "without a batch" in str(told.value):
                    break
        assert "4 prep workers ended" in str(told.value)
        assert "exit code 7" in str(told.value)


def test_resume(few: str, group: str) -> None:
    """Exactly the rest, here and in another group, and on from there."""
    with loader(few, group, ds={"order": "shared"}) as one:
        whole = [list(one), list(one)]
        batches = iter(one)
        begun = [next(batches) for _ in range(3)]
        state = pickle.loads(pickle.dumps(one.state_dict()))
        assert (state["epoch"], state["batch"]) == (2, 3)
        rest = list(batches)
        assert one.state_dict()["epoch"] == 3
        one.load_state_dict(state)
        with pytest.raises(sheaf.StateError, match="set_epoch"):
            one.set_epoch(1)
        one.set_epoch(2)
        assert torch.equal(torch.cat(list(one)), torch.cat(rest))
        assert one.epoch == 2
    with loader(few, group, ds={"order": "shared"}, prep_workers=1) as two:
        two.load_state_dict(state)
        assert two.state_dict() == state
        assert torch.equal(torch.cat(list(two)), torch.cat(rest))
        two.set_epoch(0)
        assert torch.equal(torch.cat(list(two)), torch.cat(whole[0]))
    # without the journal: the rest, whatever its order
    with loader(few, f"{group}-2", ds={"order": "shared"}) as three:
        three.load_state_dict(state)
        assert sorted(ids(begun + list(three))) == list(range(N))
        assert sorted(ids(three)) == list(range(N)) and three.epoch == 3
    with loader(few, f"{group}-3", ds={"order": "shared"}) as four:
        four.load_state_dict({**state, "bitmap": None})
        with pytest.raises(sheaf.StateError, match="bitmap"):
            next(iter(four))


def test_states_that_do_not_fit(few: str, group: str) -> None:
    with loader(few, group) as one:
        batches = iter(one)
        for _ in range(3):
            next(batches)
        state = one.state_dict()
    for field, value in (
        ("uuid", "0"), ("batch_size", 4), ("seed", 9), ("drop_last", True),
        ("epoch", -1), ("batch", 99), ("batch", 2), ("run", None),
    ):  # fmt: skip
        with pytest.raises(sheaf.StateError, match=field):
            loader(few, group).load_state_dict({**state, field: value})
    with pytest.raises(sheaf.StateError, match="dict"):
        loader(few, group).load_state_dict([])  # type: ignore[arg-type]
    two = loader(few, f"{group}-2", distributed=(0, 2))
    two.load_state_dict(state)
    with pytest.raises(sheaf.StateError, match="equally many"):
        next(iter(two))


def test_passes(few: str, group: str) -> None:
    """iter() begins nothing; a pass that is left goes on with the next epoch,
    an older one does not."""
    with loader(few, group, prep_workers=1) as one:
        iter(one)
        assert one.epoch is None
        old = iter(one)
        next(old)
        assert one.epoch == 0
        seen = list(one)
        assert one.epoch == 1 and sorted(ids(seen)) == list(range(N))
        with pytest.raises(RuntimeError, match="newer pass"):
            next(old)
        one.set_epoch(7)
        assert next(iter(one)) is not None and one.epoch == 7
        last = iter(one)
        next(last)
    with pytest.raises(RuntimeError, match="closed"):
        next(last)
    assert one.stats()["taken"] == BATCHES + 3
    assert len(list(one)) == BATCHES and one.epoch == 9
    one.close()


def test_batches_are_ones_own(few: str, group: str) -> None:
    """Written to without a warning, seen by nobody else; and held longer than
    the loader."""
    with loader(few, group) as one, loader(few, group, prep_workers=1) as two:
        a, b = begun(one, two)
        mine = next(b)
        kept = mine.clone()
        mine.add_(1000)
        assert torch.equal(next(a), kept)
        assert torch.equal(mine, kept + 1000)
        row = mine[2]
    del mine, one, two, a, b
    gc.collect()
    assert torch.equal(row, kept[2] + 1000)
    del row
    gc.collect()
    assert "sheaf-batch" not in Path("/proc/self/maps").read_text()


def test_samples_travel_by_name(few: str, group: str) -> None:
    """A Batch is pinned again here, and no byte is in the file."""
    with loader(few, group, ds={"transform": None}, prep_workers=1) as one:
        for batch in one:
            assert isinstance(batch, sheaf.Batch)
            assert [bytes(s) for s in batch] == [
                content(int(s.key[-3:])) for s in batch
            ]


def shaken(items: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack(items) + torch.randint(1 << 20, (len(items), 2))


def test_collate_is_seeded(few: str, group: str) -> None:
    seen = []
    for workers in (0, 1):
        torch.manual_seed(workers)
        before = torch.random.get_rng_state()
        with loader(
            few, f"{group}-{workers}", collate_fn=shaken, prep_workers=workers
        ) as one:
            seen.append(torch.cat(list(one)))
        assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(seen[0], seen[1])


def test_who_did_not_come(few: str, group: str) -> None:
    with loader(few, group, members=2, patience=0.6, prep_workers=1) as one:
        with pytest.warns(RuntimeWarning, match="members=2"):
            assert sorted(ids(one)) == list(range(N))
        assert one.stats()["wait_ahead_s"] > 0.5
        assert sorted(ids(one)) == list(range(N))


def stuck(sample: sheaf.Sample) -> torch.Tensor:
    signal.pause()
    return number(sample)


def test_a_batch_that_does_not_come(few: str, group: str) -> None:
    with loader(
        few, group, ds={"transform": stuck}, prep_workers=1, timeout=0.6
    ) as one:
        with pytest.raises(TimeoutError, match="a worker is preparing"):
            next(iter(one))
        pids = workers()
        assert len(pids) == 1
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
    gone(pids)


def test_the_end_of_python(few: str, tmp_path: Path) -> None:
    """Without close(): clean, soon, and with nothing left."""
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import multiprocessing, sheaf

            def first(items):
                return len(items)

            ds = sheaf.Dataset({few!r})
            loader = sheaf.CoordinatedLoader(
                ds, 8, group="ends", collate_fn=first, prep_workers=2)
            print(next(iter(loader)))
            print(*[p.pid for p in multiprocessing.active_children()])
            """
        )
    )
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=60,
        env=dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path)),
    )
    assert done.returncode == 0 and not done.stderr, done.stderr
    size, pids = done.stdout.splitlines()
    assert size == "8"
    gone([int(pid) for pid in pids.split()])


def test_prepared_files_are_sealed(few: str) -> None:
    fd = prepared.write([torch.ones(3)])
    try:
        with pytest.raises(OSError):
            os.pwrite(fd, b"x", 0)
        with pytest.raises(OSError):
            os.ftruncate(fd, 1)
    finally:
        os.close(fd)
