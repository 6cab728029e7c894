# SPDX-License-Identifier: Apache-2.0
"""A loader for jobs that train on the same batches: each is prepared once.

The daemon says who prepares what (docs/design/prep.md); here are the members,
which take batches, one process each. Their workers are in crew.py, the batches
themselves in prepared.py.
"""

from __future__ import annotations

import errno
import hashlib
import multiprocessing
import os
import secrets
import sys
import warnings
from multiprocessing.context import BaseContext
from multiprocessing.util import Finalize
from typing import Any, Callable, Iterator

from . import _sheaf, checks, fingerprint, jobs, prepared, timing
from .coming import Coming, check
from .crew import Crew, Recipe, Task, describe, one_thread, revive
from .dataset import Dataset
from .decode import decoder_of
from .errors import GroupMismatch, StateError
from .place import Place
from .sampler import ranks_of
from .stats import Stats

_SLICE_MS = 20  # of a wait for a batch, after which is asked for what it is
_SLICE_MS_MAX = 500
_FIGURES_MS = 500  # that close() waits for the group's last figures
_MS_MAX = (1 << 32) - 1
# enum sheaf_group_state
_TAKEN, _PREPARE, _PREPARING, _AHEAD = 0, 1, 2, 3
_GATHERING, _FULL, _FAILED, _QUEUED = 4, 5, 6, 7
_BUSY = {
    _PREPARING: "a worker is preparing it",
    _QUEUED: "all workers are busy, or there are none",
    _FULL: "there is no memory for more prepared batches (sheafd --prep)",
}
# What an offer gets of which who takes the batch is told more.
_TOLD = errno.EEXIST, errno.EFBIG, errno.EINVAL
_UNFIT = "its worker prepares batches of another kind"


class _Part:
    """What has an end: this process's part in the group, and its workers."""

    def __init__(self) -> None:
        self.group: _sheaf.Group | None = None
        self.crew: Crew | None = None
        self.pid = os.getpid()

    def end(self) -> None:
        """Idempotent."""
        crew, self.crew = self.crew, None
        group, self.group = self.group, None
        if self.pid != os.getpid():
            return
        try:
            if crew is not None:
                crew.stop()
        finally:
            if group is not None:
                group.leave()


class CoordinatedLoader:
    """Batches of a Dataset that all members of a group share.

    Jobs (processes) of one user that name the same ``group`` get the same
    batches in each epoch, each prepared once, by a worker of any of them: one
    of them that comes, goes, dies or is slow costs the others no batch and no
    bytes. A pass is the next epoch. What must be the same in all members is
    compared when they join, and the first thing that differs is named by
    ``GroupMismatch``.

    Tensors of a batch may be written to: nobody else sees it. They live as
    long as they are held, also after ``close()``.

    Args:
        dataset: its order, decoder and ``transform`` are the group's. The
            job of the slots is the group's, too: a group of an old name gets
            the order that it had, as long as the daemon keeps its journal.
        batch_size: samples; the last batch has what is left.
        group: its name, 1 to 128 bytes.
        transform: where the Dataset has none.
        collate_fn: of the list of samples; default: ``sheaf.collate``.
        prep_workers: processes of this member that prepare. 0: it prepares
            in its own process what nobody else does.
        seed: of order and random numbers; default: the Dataset's.
        drop_last: leaves out a last batch that is short, and batches that do
            not make a whole round of all ranks.
        max_ahead: batches that are prepared before the last member took them,
            at most 1024. That of the member that begins the group counts.
        lag: what becomes of this member when it holds the others back:
            ``"block"``: they wait for it, ``patience`` seconds;
            ``"private"``: they go on at once, and its workers prepare what
            it missed for it alone. In both ways it misses no batch.
        join: where a member begins that comes into an epoch that is under
            way: ``"epoch"``: with the next one; ``"now"``: with this one, of
            which its workers prepare what the others had.
        members: processes that start together: the first batch waits until
            so many came.
        transform_id: a text that stands for what ``decode``, ``transform``
            and ``collate_fn`` do, instead of a fingerprint of their code.
        distributed: ``"auto"``: rank and world size are torch's, or the
            launcher's, when the first pass begins; or ``(rank, world)``. A
            job of several processes splits the batches among them; its world
            size must divide their number.
        patience: seconds (``lag``); those for ``members`` are the same.
        lease: seconds within which a batch is prepared, or eight times the
            longest that one took so far: then another worker prepares it.
            That of the member that begins the group counts.
        timeout: seconds that ``next()`` waits for a batch that others are
            preparing: more than ``lease``, after which another worker has
            still to prepare what one that is stopped did not.
        multiprocessing_context: how workers start; default: as DataLoader's.

    What a batch raised in decode, transform or collate is raised in every
    member that takes it; the next ``next()`` goes on with the next batch.
    """

    def __init__(
        self,
        dataset: Dataset,
        batch_size: int = 1,
        *,
        group: str,
        transform: Callable[[Any], Any] | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        prep_workers: int = 4,
        seed: int | None = None,
        drop_last: bool = False,
        max_ahead: int = 8,
        lag: str = "block",
        join: str = "epoch",
        members: int = 1,
        transform_id: str | None = None,
        distributed: str | tuple[int, int] | None = "auto",
        patience: float = 300.0,
        lease: float = 60.0,
        timeout: float = 180.0,
        multiprocessing_context: Any = None,
    ) -> None:
        _check_dataset(dataset, transform)
        checks.function("transform", transform)
        checks.function("collate_fn", collate_fn)
        if lag not in ("block", "private"):
            raise ValueError(f"lag={lag!r}: 'block' or 'private'")
        if join not in ("epoch", "now"):
            raise ValueError(f"join={join!r}: 'epoch' or 'now'")
        self.group = checks.text("group", group, 128)
        self.batch_size = checks.whole("batch_size", batch_size, 1, 1 << 31)
        self.prep_workers = checks.whole("prep_workers", prep_workers, 0, 1024)
        self.drop_last = checks.flag("drop_last", drop_last)
        self.join = join
        self.distributed = ranks_of(distributed)
        self._given = dataset
        self._transform = dataset.transform or transform
        self._collate = collate_fn
        self._seed = dataset.seed if seed is None else checks.whole(
            "seed", seed, 0, (1 << 64) - 1
        )
        self._members = checks.whole("members", members, 1, 1 << 16)
        self._ahead = checks.whole("max_ahead", max_ahead, 1, 1024)
        self._patience = checks.seconds("patience", patience)
        self._patience_ms = 0 if lag == "private" else _ms(self._patience)
        self._lease_ms = _ms(checks.seconds("lease", lease))
        self._timeout = checks.seconds("timeout", timeout)
        self._context = _context(multiprocessing_context)
        self._prints = self._fingerprints(transform_id)
        self._dataset: Dataset | None = None
        self._part = _Part()
        self._end: Any = None
        self._ranks = (0, 1)
        self._options: dict[str, Any] = {}
        self._recipe: Recipe
        self._place: Place | None = None
        self._turn = 0  # passes begun, and closings
        self._coming = Coming()
        self._leased: int | None = None
        self._taken = 0
        self._own = (0.0, 0.0, 0.0, 0.0)  # of crews that ended
        self._made = 0  # in this process
        self._times: tuple[float, ...] = ()  # of the last batch
        self._waited = dict.fromkeys(("prepare", "ahead"), 0.0)
        self._last: dict[str, int] = {}  # of the group, when it was left

    # ---- what must be the same ----

    def _fingerprints(self, transform_id: str | None) -> dict[str, str]:
        decode, error = self._given.decode, self._given._policy.on_error
        if transform_id is not None:
            text = checks.text("transform_id", transform_id, 1 << 16)
            digest = hashlib.sha256(text.encode()).hexdigest()[:32]
            mark = f"id {ascii(text)[:100]} {digest}"
            return dict.fromkeys(("transform", "decode", "collate"), mark)
        release = fingerprint.release_of("torch") or "torch"
        return {
            "transform": _print(self._transform),
            "decode": _decoder(decode),
            "collate": _print(self._collate) if self._collate else
            f"default, {release}",
            "on_error": error if isinstance(error, str) else _print(error),
        }

    def _traits(self) -> list[tuple[str, str]]:
        ds, prints = self.dataset, self._prints
        order = ds.order
        if order == "window":
            order = f"window of {ds.window_slots()}"
        traits = {
            "dataset": ds.uuid.hex(),
            "subset": ds.subset_id() or "all",
            "order": order,
            "seed": str(ds.seed),
            "batch_size": str(self.batch_size),
            "drop_last": str(self.drop_last),
            "batches": str(self._batches()),
            **prints,
            "release": _sheaf.VERSION,
        }
        return list(traits.items())

    # ---- what it is ----

    @property
    def dataset(self) -> Dataset:
        """The samples, as slots of the group's job."""
        if self._dataset is None:
            given = self._given
            identity = (
                f"{given.uuid.hex()}/{given.subset_id()}/{given.order}/"
                f"{given.window_slots()}/{self._seed}"
            )
            digest = hashlib.sha256(identity.encode()).hexdigest()[:16]
            name = self.group.encode()[:100]
            self._dataset = given.of_job(
                f"{name.decode(errors='ignore')}-{digest}",
                self._seed,
                min(1 << 20, self._ahead * self.batch_size),
                self._transform,
            )
        return self._dataset

    def _batches(self) -> int:
        """Of an epoch, of all ranks."""
        whole, rest = divmod(len(self._given), self.batch_size)
        return whole + (rest > 0 and not self.drop_last)

    def _count(self, world: int) -> int:
        """Batches of an epoch that each rank takes. ValueError."""
        batches = self._batches()
        if batches % world and not self.drop_last:
            raise ValueError(
                f"{batches} batches of an epoch cannot be split among {world} "
                "processes: drop_last=True leaves out what does not make a "
                "whole round, another batch_size may divide"
            )
        return batches // world

    def _rank(self, sure: bool = False) -> tuple[int, int]:
        if isinstance(self.distributed, tuple):
            return self.distributed
        return (0, 1) if self.distributed is None else jobs.world(sure)

    def __len__(self) -> int:
        """Batches of a full pass of this process."""
        return self._count(self._rank()[1])

    @property
    def epoch(self) -> int | None:
        """Of the pass that began last; before the first one what a state or
        ``set_epoch`` named, or None: the group says."""
        if self._place is not None:
            return self._place.epoch
        coming = self._coming
        return coming.loaded[0] if coming.loaded else coming.epoch

    # ---- joining and leaving ----

    def _check_process(self) -> None:
        if self._part.group is not None and self._part.pid != os.getpid():
            raise RuntimeError(
                "this CoordinatedLoader is another process's: each process "
                "makes its own"
            )

    def _join(self) -> _sheaf.Group:
        part = self._part
        if part.group is not None:
            self._check_process()
            return part.group
        rank, world = self._ranks
        self._recipe = Recipe(
            self.dataset, self._collate, self.batch_size, self._batches()
        )
        self._options = {
            "name": self.group,
            "traits": self._traits(),
            "member": secrets.token_bytes(16),
            "batches": self._batches(),
            "ahead": self._ahead,
            "lease_ms": self._lease_ms,
            "patience_ms": self._patience_ms,
            "rank": rank,
            "world": world,
            "members": max(self._members, world),
        }
        part = self._part = _Part()
        try:
            group = self._enter(None)
            task = Task(self._recipe, self._options, os.getpid())
            part.crew = Crew(self._context, task, self.prep_workers)
        except BaseException:
            part.end()
            raise
        # Before multiprocessing ends its children, which it would wait for.
        self._end = Finalize(self, _Part.end, (part,), exitpriority=10)
        return group

    def _enter(self, batch: int | None) -> _sheaf.Group:
        """As a member, also once more; ``batch``: goes on there."""
        part = self._part
        if part.group is not None:
            part.group.leave()
            part.group = None
        try:
            group = _sheaf.Group(
                self.dataset._open(), worker=False, **self._options
            )
        except FileExistsError as error:
            raise GroupMismatch(error.strerror) from None
        part.group = group
        if batch is not None:
            group.begin(batch)
        return group

    def close(self) -> None:
        """Leaves the group and ends this process's workers. A later pass
        joins again. Batches that were given stay."""
        part = self._part
        try:
            if part.group is not None and part.pid == os.getpid():
                self._last = {}
                self._last = part.group.stats(_FIGURES_MS)
        except OSError:
            pass  # no daemon, or one that does not answer
        finally:
            self._own = self._totals()
            self._turn += 1
            self._leased = None
            end, self._end = self._end, None
            if end is not None:
                end()

    def __enter__(self) -> "CoordinatedLoader":
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()

    def __getstate__(self) -> Any:
        raise TypeError(
            "a CoordinatedLoader does not travel: each process makes its own"
        )

    # ---- passes ----

    def __iter__(self) -> Iterator[Any]:
        return _Pass(self)

    def set_epoch(self, epoch: int) -> None:
        """Names the epoch of the next pass. StateError: a state was loaded
        that is in the middle of another one."""
        self._coming.set_epoch(epoch)

    def _begin(self, new: "_Pass") -> None:
        """The pass ``new`` begins: joins, chooses the epoch, tells it."""
        group = self._part.group
        if group is None:
            self._ranks = self._rank(sure=True)
        rank, world = self._ranks
        if self._count(world):
            group = self._join()
        coming = self._coming
        if coming.loaded is not None:
            epoch, start = coming.loaded
            if start % world and group is not None:
                raise StateError(
                    f"batch={start}: {world} processes cannot go on there, "
                    "since they would not get equally many batches"
                )
            self.dataset.restore(epoch, coming.saved)
        elif coming.epoch is not None:
            epoch, start = coming.epoch, 0
        else:
            epoch, start = self._first_epoch(group), 0
        if group is not None:
            group.begin(epoch * self._batches() + start + rank)
        self._turn += 1
        new.turn = self._turn
        self._leased = None
        coming.begun(epoch)
        self._place = new.place = Place(
            epoch, self._batches(), self._count(world), rank, world, start
        )

    def _first_epoch(self, group: _sheaf.Group | None) -> int:
        """Where a member begins that nobody told it."""
        if group is None or group.floor is None:
            epoch = 0
        else:
            epoch, done = divmod(group.floor, self._batches())
            # A rank that has taken nothing yet stands at its own number.
            fresh = max(self._ranks[1], self._members)
            if done >= fresh and self.join == "epoch":
                epoch += 1
        # Ranks of a job begin together, though they join one by one.
        return _agreed(self.group, epoch) if self._ranks[1] > 1 else epoch

    # ---- batches ----

    def _take(self, batch: int) -> Any:
        """The batch; again, as long as it was not accepted: what Ctrl-C ends
        is taken up by the next call."""
        memory, apart = self._wait(batch)
        try:
            made, self._times = prepared.read(memory)
        except Exception as error:
            raise _Failed(error) from None
        if apart is not None and self._times:
            # Nobody may begin it while others are waited for.
            more = max(0.0, self._times[0] - apart)
            self._waited["ahead"] += more
            self._waited["prepare"] -= more
        return made

    def _accept(self) -> None:
        self._taken += 1
        if self._part.group is not None:
            self._part.group.done()

    def _wait(self, batch: int) -> tuple[_sheaf.Memory, float | None]:
        """The batch; and since when it may have been waited for, if that was
        for other members until then."""
        crew = self._part.crew
        spent = dict.fromkeys(range(8), 0.0)
        told: set[int] = set()
        state, slice_ms = _PREPARING, _SLICE_MS
        apart = False
        while True:
            asked, before = timing.now(), apart
            group = self._part.group
            assert group is not None and crew is not None
            try:
                crew.check()
                if self._leased == batch:
                    state, fd, why = _PREPARE, -1, None
                else:
                    state, fd, why = group.take(batch, slice_ms, not len(crew))
                if state == _TAKEN:
                    return _sheaf.Memory(fd), asked if before else None
                if state == _FAILED and (why or "").startswith(_UNFIT):
                    raise GroupMismatch(f"group {self.group}: {why}")
                if state == _FAILED:
                    raise _Failed(revive(why or ""))
                if state == _PREPARE:
                    self._prepare(group, batch)
            finally:
                passed = timing.now() - asked
                spent[state] += passed
                apart = state in (_AHEAD, _GATHERING)
                self._waited["ahead" if apart else "prepare"] += passed
            self._judge(batch, state, spent, told)
            slice_ms = min(2 * slice_ms, _SLICE_MS_MAX)

    def _judge(
        self, batch: int, state: int, spent: dict[int, float], told: set[int]
    ) -> None:
        """What takes too long: an error, or a word about it."""
        busy = sum(spent[kind] for kind in _BUSY)
        if state in _BUSY and busy > self._timeout:
            raise TimeoutError(
                f"batch {batch} of group {self.group} did not come within "
                f"{self._timeout:g} s: {_BUSY[state]}"
            )
        if state in told or spent[state] <= self._patience:
            return
        told.add(state)
        if state == _AHEAD:
            warnings.warn(
                f"group {self.group}: other members are {self._ahead} batches "
                f"behind for {spent[state]:.0f} s; lag='private' there would "
                "let this one go on",
                RuntimeWarning,
                stacklevel=5,
            )
        elif state == _GATHERING:
            warnings.warn(
                f"group {self.group}: fewer than members={self._members} "
                f"came within {spent[state]:.0f} s; going on without them",
                RuntimeWarning,
                stacklevel=5,
            )
            self._options["members"] = 1
            self._enter(batch)

    def _prepare(self, group: _sheaf.Group, batch: int) -> None:
        """Here, since nobody else does."""
        self._leased = batch  # still, when Ctrl-C comes in between
        try:
            with one_thread():
                fd, schema = self._recipe.make(batch)
        except Exception as error:
            self._leased = None
            group.fail(batch, describe(error))
            return
        try:
            self._made += group.offer(batch, fd, schema)
        except OSError as error:
            if error.errno not in _TOLD:
                raise
        finally:
            self._leased = None
            os.close(fd)

    # ---- state ----

    def _identity(self) -> dict[str, Any]:
        ds = self.dataset
        return {
            "version": 1,
            "uuid": ds.uuid.hex(),
            "samples": len(ds),
            "subset": ds.subset_id(),
            "order": ds.order,
            "window": ds.window_slots(),
            "seed": ds.seed,
            "batch_size": self.batch_size,
            "drop_last": self.drop_last,
        }

    def state_dict(self) -> dict[str, Any]:
        """Where training stands by the batches that were taken, the same on
        every rank: plain numbers and text."""
        place, coming = self._place, self._coming
        if coming.loaded is not None:
            (epoch, batch), saved = coming.loaded, coming.saved
            finished = coming.finished
        elif place is None:
            epoch, batch, saved = coming.epoch or 0, 0, {}
            finished = None
        elif place.is_done():
            epoch, batch, saved = place.epoch + 1, 0, {}
            finished = place.epoch
        else:
            epoch, batch, finished = place.epoch, place.batch(), None
            position = min(len(self.dataset), batch * self.batch_size)
            saved = self.dataset.save(epoch, position)
        return {
            **saved,
            **self._identity(),
            "epoch": epoch,
            "batch": batch,
            "finished": finished,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Makes the next pass go on after the batches that were taken when
        the state was saved. World size and workers may differ. StateError
        names a field that does not fit."""
        check(state, self._identity())
        last = max(0, self._batches() - 1)
        self._coming.load(state, "batch", last, self.batch_size)
        self._place = None

    # ---- figures ----

    def _totals(self) -> tuple[float, float, float, float]:
        crew = self._part.crew
        names = ("prepared", "failed", "fetch_s", "prep_s")
        now = [crew.total(name) if crew else 0.0 for name in names]
        a, b, c, d = (x + y for x, y in zip(self._own, now))
        return a, b, c, d

    def stats(self) -> Stats:
        """Figures of this member: ``prepared`` batches, by its workers, which
        took ``fetch_s`` to bring and ``prep_s`` to decode and transform;
        ``taken`` ones; ``wait_s``, in which ``next()`` waited:
        ``wait_prepare_s`` for batches to be prepared, ``wait_ahead_s`` for
        other members; ``detached``: the group does not wait for it (0, 1).

        Of the group since it began: ``redone`` batches (whoever prepared them
        died or was too late), ``private`` ones (for one member alone),
        ``late`` (prepared when another one was first), ``failed``;
        ``members``, ``workers``, ``staged`` batches and ``staged_bytes`` now.
        """
        group, last = self._part.group, self._last
        if group is not None and self._part.pid == os.getpid():
            last = group.stats(_MS_MAX)
        stats = Stats({k: float(v) for k, v in last.items() if k != "floor"})
        prepared_, _, fetch_s, prep_s = self._totals()
        waited = self._waited
        stats.update(
            prepared=prepared_ + self._made,
            taken=float(self._taken),
            fetch_s=fetch_s,
            prep_s=prep_s,
            wait_prepare_s=waited["prepare"],
            wait_ahead_s=waited["ahead"],
            wait_s=sum(waited.values()),
        )
        return stats

    def __repr__(self) -> str:
        return f"<sheaf.CoordinatedLoader of group {self.group!r}>"


class _Pass(Iterator[Any]):
    """One pass. A batch that raised counts as taken only when a later one
    is: until then a state has it again."""

    def __init__(self, loader: CoordinatedLoader) -> None:
        self._loader = loader
        self.place: Place | None = None  # None: it has not begun
        self.turn = 0

    def __iter__(self) -> "_Pass":
        return self

    def __next__(self) -> Any:
        if self.place is None:
            self._loader._begin(self)
        self._loader._check_process()
        place = self.place
        assert place is not None
        if self.turn != self._loader._turn:
            raise RuntimeError(
                "a newer pass over this CoordinatedLoader has begun, or it was "
                "closed; an older one cannot go on"
            )
        if place.is_over():
            place.end()
            raise StopIteration
        try:
            batch = self._loader._take(place.next())
        except _Failed as failed:
            place.raised += 1
            raise failed.error from None
        place.take()
        self._loader._accept()
        return batch


class _Failed(Exception):
    """A batch that there is not, and will not be."""

    def __init__(self, error: Exception) -> None:
        self.error = error


# ---- arguments ----


def _context(given: Any) -> Any:
    """How processes start, as DataLoader takes it. TypeError, ValueError."""
    if given is None or isinstance(given, str):
        return multiprocessing.get_context(given)
    if not isinstance(given, BaseContext):
        raise TypeError(
            f"multiprocessing_context={given!r}: a way to start processes, or "
            "a context of multiprocessing"
        )
    return given


def _ms(seconds: float) -> int:
    return min(_MS_MAX, max(1, round(seconds * 1000)))


def _check_dataset(
    dataset: Dataset, transform: Callable[[Any], Any] | None
) -> None:
    if not isinstance(dataset, Dataset):
        raise TypeError(
            f"CoordinatedLoader: a sheaf.Dataset, not a "
            f"{type(dataset).__name__}"
        )
    if transform is not None and dataset.transform is not None:
        raise ValueError("transform: the Dataset has one already")
    if dataset._policy.on_error == "replace":
        raise ValueError(
            "on_error='replace' takes what a process read last, so that a "
            "batch would depend on who prepares it: 'raise', or a function"
        )
    if dataset._replay or dataset._lossy:
        raise ValueError(
            "CoordinatedLoader: not with replay or on_daemon_loss='origin'"
        )


def _print(thing: Any) -> str:
    if thing is None:
        return "none"
    return f"{fingerprint.label(thing)} {fingerprint.fingerprint(thing)}"


def _decoder(decode: Any) -> str:
    """Names of one decoder are one."""
    if not isinstance(decode, str):
        return _print(decode)
    name = getattr(decoder_of(decode), "__name__", decode)
    if name == "to_bytes":
        return name
    import PIL

    return f"{name} PIL {PIL.__version__}"


_joined: dict[str, int] = {}


def _agreed(group: str, epoch: int) -> int:
    """The epoch of the rank that asks first, where torch's process group
    connects them; else one's own."""
    if "torch" not in sys.modules:
        return epoch
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()):
        return epoch
    _joined[group] = _joined.get(group, 0) + 1
    key = f"sheaf/group/{group}/{_joined[group]}"
    store = dist.distributed_c10d._get_default_store()
    return int(store.compare_set(key, "", str(epoch)))
