# SPDX-License-Identifier: Apache-2.0
"""A dataset of the cache as torch wants it."""

from __future__ import annotations

import base64
import copy
import errno
import hashlib
import operator
import os
import random
import threading
import warnings
import weakref
import zlib
from array import array
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Iterable,
    Mapping,
    Sequence,
    SupportsIndex,
)

from . import _sheaf, checks, jobs, origin, timing
from .decode import decoder_of
from .labels import classes_of, label_of
from .errors import JobError, StateError
from .onerror import Failure, Policy
from .augment import enter, key_of, leave, seeded
from .sample import Sample
from .slots import check_of, is_slot, slot_of
from .source import Answer, Source, Spec, samples_again, source_of
from .stats import Stats

if TYPE_CHECKING:
    from .workers import Board  # which needs torch

ORDERS = {"shared": 0, "window": 1, "strict": 2}
_SLOTS_MAX = (1 << 32) - 1

# Never held while something is waited for: it is one for all Datasets.
_lock = threading.RLock()
_datasets: "weakref.WeakSet[Dataset]" = weakref.WeakSet()


def _made(dataset: "Dataset") -> None:
    with _lock:
        _datasets.add(dataset)


def _before_fork() -> None:
    # Workers cannot ask the process group what run they are of.
    with _lock:
        datasets = list(_datasets)
    for dataset in datasets:
        dataset._settle_name()


def _after_fork() -> None:
    global _lock
    _lock = threading.RLock()
    for dataset in list(_datasets):
        dataset._count_anew()


os.register_at_fork(before=_before_fork, after_in_child=_after_fork)


class Dataset:
    """The files of a dataset, map-style and picklable.

    ``ds[i]`` with a plain int is that very file; with a slot of a SlotSampler
    it is the sample that the daemon binds to the slot, each once an epoch.
    What it gives depends on the arguments:

    - neither ``decode`` nor ``transform``: a :class:`Sample`
    - ``transform`` alone: ``transform(sample)``
    - ``decode``: ``(x, label)``, ``x`` being what the decoder gives, and
      ``transform`` of it where there is one

    Args:
        name: ``NAME`` or ``~OWNER/NAME``.
        decode: ``"bytes"``; ``"pil"`` (RGB image, as ImageFolder loads it);
            ``"jpeg"``, ``"png"`` or ``"image"`` (all the same: whatever PIL
            reads, as uint8 tensor of shape (3, height, width), RGB); or a
            function of a Sample.
        transform: function of what was decoded.
        job: the run's name, the same in all its processes and in no other
            run. Default: a new one for a single process, the launcher's for
            several (``sheaf.jobs``).
        order: ``"shared"`` (the daemon's choice, shares fetches between jobs),
            ``"window"`` or ``"strict"`` (by seed and epoch alone).
        window: slots; default: the larger of 1 % of the samples and 2048.
        seed: of order and augmentation.
        on_error: for a sample that cannot be read or decoded: ``"raise"``,
            ``"replace"`` (repeat one that was served already; counted) or a
            function of a ``Failure``, which raises or returns what ``ds[i]``
            is to give.
        on_daemon_loss: ``"wait"``: calls wait for the daemon, ``timeout``
            seconds, and raise then; ``"origin"``: they go on with files of
            the origin's directory then, until it is back. For order
            ``"strict"`` only, which needs no daemon to know what comes next.
        ahead: slots that the run asks for before it uses them, at most: over
            all ranks, workers x prefetch_factor x batch. The daemon keeps room
            for them, and warns who asks for more than that again. 0: a 32nd
            of an epoch, 64 to 4096. At most 2**20.
        timeout: seconds within which each call ends.
        replay: bind nothing, but give again what was bound under ``job``
            (order and seed as then).
        pace: wait a little, at most a third of the time between batches more,
            while ahead of other jobs that read the same samples at the same
            speed: all together then cost the origin what one does. For order
            ``"shared"`` and an origin that is slow, or paid for.
        socket: of the daemon; default: ``$SHEAF_SOCKET`` or the usual places.
        pin_bytes: of shared memory that this process wants to hold at once;
            0: what the daemon gives everybody. It may give less.

    Wrong arguments are a ``TypeError`` or ``ValueError`` that names them, here
    and not later. Nothing is opened before it is needed, and pickles carry
    names only: each process opens what it reads. All threads may use one
    Dataset. Errors are ``OSError`` with errno, cause and remedy; ``filename``
    is the key.
    """

    def __init__(
        self,
        name: str,
        *,
        decode: str | Callable[[Sample], Any] | None = None,
        transform: Callable[[Any], Any] | None = None,
        job: str | None = None,
        order: str = "shared",
        window: int | None = None,
        seed: int = 0,
        on_error: str | Callable[[Failure], Any] = "raise",
        on_daemon_loss: str = "wait",
        ahead: int = 0,
        timeout: float = 60,
        socket: str | os.PathLike[str] | None = None,
        pin_bytes: int = 0,
        replay: bool = False,
        pace: bool = False,
    ) -> None:
        if order not in ORDERS:
            raise ValueError(f"order={order!r}: one of {', '.join(ORDERS)}")
        if on_daemon_loss not in ("wait", "origin"):
            raise ValueError(
                f"on_daemon_loss={on_daemon_loss!r}: 'wait' or 'origin'"
            )
        if on_daemon_loss == "origin" and order != "strict":
            raise ValueError(
                "on_daemon_loss='origin' needs order='strict': in order "
                f"{order!r} only the daemon knows which samples the epoch has "
                "not served yet"
            )
        if window is not None:
            if order != "window":
                raise ValueError("window= is for order='window'")
            window = checks.whole("window", window, 1, _SLOTS_MAX)
        checks.function("transform", transform)
        if job is not None:
            checks.text("job", job, 128)
        if replay and job is None:
            raise ValueError("replay: job=NAME says what to replay")
        self.decode = decode
        self.transform = transform
        self.order = order
        self.window = window
        self.seed = checks.whole("seed", seed, 0, (1 << 64) - 1)
        self.ahead = checks.whole("ahead", ahead, 0, 1 << 20)
        self._decoder = decoder_of(decode)
        self._policy = Policy(on_error)
        self._lossy = on_daemon_loss == "origin"
        self._spec = Spec(
            checks.text("name", name, 4096),
            checks.path("socket", socket),
            checks.seconds("timeout", timeout),
            None,
            checks.whole("pin_bytes", pin_bytes, 0, 1 << 62),
            self._lossy,
        )
        self._ids: array[int] | None = None  # of a subset, uint64
        self._sorted: array[int] | None = None  # the same in order, if asked
        self._subset: bytes | None = None  # the same as a bitmap
        self._replay = checks.flag("replay", replay)
        self._pace = checks.flag("pace", pace)
        self._job_name = job
        self._own_name = jobs.own_name()  # where one process is the run
        self._alone = False  # slots were served under that
        self._source: Source | None = None
        self._before: dict[str, float] = {}  # counters when it was opened
        self._job: _sheaf.Job | None = None
        self.next_epoch = 0  # that no sampler of this Dataset has begun
        self._fetch_s = self._prep_s = 0.0
        self._board: "Board | None" = None  # where a worker tells its counters
        _made(self)

    # ---- opening ----

    def _open(self) -> Source:
        source = self._source
        if source is not None:
            return source
        opened = source_of(self._spec)
        with _lock:
            # Another thread may have opened another version meanwhile.
            if self._source is None:
                self._spec = opened.spec
                self._before = opened.stats()
                self._source = opened
            return self._source

    def job_name(self, world: int = 0) -> str:
        """The run's name. ``world``: processes of the run, where the caller
        knows; else torch or the launcher tell. JobError: several, and nothing
        names the run, or slots were served before there were several."""
        with _lock:
            size = world or jobs.world()[1]
            if self._job_name is not None:
                return self._job_name
            if size == 1:
                return self._own_name
            if self._alone:
                raise JobError(
                    "this Dataset served slots before its process became one "
                    f"of {size}: start the process group first, or give "
                    "job=NAME"
                )
        name = jobs.shared_name(size)  # may ask another process
        with _lock:
            if self._job_name is None:
                self._job_name = name
            return self._job_name

    def join(self, job: str) -> None:
        """Goes on as a part of a run that was begun before, unless ``job`` was
        given to this Dataset."""
        with _lock:
            if self._job_name is None and not self._alone:
                self._job_name = job

    def _settle_name(self) -> None:
        """For processes that are made from this one."""
        try:
            self.job_name()
        except JobError:
            pass  # who asks for a slot hears of it

    def subset_id(self) -> str | None:
        """Names the subset in states; None: all files."""
        if self._subset is None:
            return None
        return hashlib.sha256(self._subset).hexdigest()[:32]

    def window_slots(self) -> int:
        """Slots of a window; 0 in other orders."""
        if self.order != "window":
            return 0
        return self.window or max(len(self) // 100, min(len(self), 2048), 1)

    def check(self) -> int:
        """1 to 255: what slots of this Dataset and job carry."""
        text = f"{self.order}/{self.seed}/{self.job_name()}".encode()
        number = zlib.crc32(text + self.uuid)
        return zlib.crc32(self._subset or b"", number) % 255 + 1

    def _open_job(self) -> _sheaf.Job:
        source = self._open()
        name = self.job_name()
        with _lock:
            if self._job is not None:
                return self._job
            self._alone = name == self._own_name
        job = _sheaf.Job(
            source,
            name,
            order=ORDERS[self.order],
            seed=self.seed if self.order != "shared" else 0,
            window=self.window_slots(),
            ahead=self.ahead,
            check=self.check(),
            subset=self._subset,
            replay=self._replay,
            pace=self._pace,
        )
        with _lock:
            if self._job is None:
                self._job = job
            return self._job

    def __getstate__(self) -> dict[str, Any]:
        self._settle_name()
        state = self.__dict__.copy()
        state["_source"] = state["_job"] = state["_sorted"] = None
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        _made(self)

    # ---- what it is ----

    def __len__(self) -> int:
        return len(self._open()) if self._ids is None else len(self._ids)

    @property
    def name(self) -> str:
        """As it was given."""
        return self._spec.name

    @property
    def timeout(self) -> float:
        """Seconds within which each call ends."""
        return self._spec.timeout

    @property
    def uuid(self) -> bytes:
        """Of the version that is open, 16 bytes."""
        uuid = self._open().spec.uuid
        assert uuid is not None
        return uuid

    @property
    def classes(self) -> list[str]:
        """Names of the top-level folders with files, sorted: label i is
        ``classes[i]``."""
        return classes_of(self._open())

    @property
    def class_to_idx(self) -> dict[str, int]:
        """Label by name of the class."""
        return {name: i for i, name in enumerate(self.classes)}

    def label(self, sample: SupportsIndex) -> int:
        """Label of the file with this id, without reading it; -1: in the
        root."""
        return label_of(self._open(), operator.index(sample))

    def key(self, sample: SupportsIndex) -> str:
        """Path of the file with this id, below the dataset's root."""
        return self._open().path(operator.index(sample))

    def id_of(self, key: str) -> int:
        """Id of the file at ``key``. FileNotFoundError."""
        return self._open().lookup(key)

    @property
    def files(self) -> "Files":
        """Keys by index: a sequence that looks each up when it is asked
        for."""
        return Files(self)

    # ---- parts ----

    def subset(self, indices: Iterable[SupportsIndex]) -> "Dataset":
        """A Dataset of some samples, each once, with slots of its own:
        ``subset[i]`` is ``self[indices[i]]``. Its samples keep their ids.
        ValueError: an index comes twice, or none at all."""
        whole = len(self._open())
        mine = array("Q")
        bits = bytearray((whole + 7) // 8)
        for given in indices:
            if isinstance(given, bool):
                raise TypeError("subset: numbers of samples, not a mask")
            number = operator.index(given)
            if not -len(self) <= number < len(self):
                raise IndexError(f"there are {len(self)} samples: {number}")
            number %= len(self)
            id = number if self._ids is None else self._ids[number]
            if bits[id >> 3] >> (id & 7) & 1:
                raise ValueError(f"sample {number} twice: slots are unique")
            bits[id >> 3] |= 1 << (id & 7)
            mine.append(id)
        if not mine:
            raise ValueError("a subset has one sample at least")
        part = self._copy()
        part._ids, part._subset = mine, bytes(bits)
        part._sorted = None
        return part

    def _copy(self) -> "Dataset":
        """The same, with slots of its own."""
        part = copy.copy(self)
        part._job = None
        part.next_epoch = 0
        part._policy = Policy(self._policy.on_error)
        _made(part)
        return part

    def of_job(
        self,
        job: str,
        seed: int,
        ahead: int,
        transform: Callable[[Any], Any] | None,
    ) -> "Dataset":
        """The same samples as slots of the run ``job``, by another seed and
        transform."""
        part = self._copy()
        part._job_name, part.seed, part.transform = job, seed, transform
        part.ahead = self.ahead or ahead
        return part

    def _sorted_ids(self) -> "array[int] | None":
        """As the daemon numbers a subset's samples; None: all."""
        if self._ids is not None and self._sorted is None:
            self._sorted = array("Q", sorted(self._ids))
        return self._sorted

    def split(
        self, parts: Mapping[str, float], seed: int = 0
    ) -> dict[str, "Dataset"]:
        """Disjoint subsets by name, their shares given (together at most 1),
        chosen at random by ``seed`` and the number of samples alone."""
        if not isinstance(parts, Mapping):
            raise TypeError("split: shares by name, as {'train': 0.9}")
        shares = parts.values()
        if not parts or not min(shares) > 0 or not sum(shares) <= 1 + 1e-9:
            raise ValueError("shares are more than 0, together at most 1")
        n = len(self)
        order = random.Random(seed).sample(range(n), n)
        cut, done, out = 0.0, 0, {}
        for name, share in parts.items():
            cut += share
            end = min(n, round(cut * n))
            if end == done:
                raise ValueError(f"split: nothing is left for {name!r} of {n}")
            out[name] = self.subset(sorted(order[done:end]))
            done = end
        return out

    # ---- state ----

    def save(self, epoch: int, position: int) -> dict[str, Any]:
        """What the daemon needs to go on: slots below ``position`` are done
        with. Plain numbers and text."""
        if position == 0:
            return {}
        if self._lossy:
            source = self._open()
            if source.loss.lasts(source):
                return {}  # the position says all: the order is strict
        try:
            state, bitmap = self._open_job().save(epoch, position)
        except OSError as error:
            if not (self._lossy and origin.is_gone(error)):
                raise
            self._open().loss.begins(self.name, error)
            return {}
        text = base64.b85encode(zlib.compress(bitmap)).decode()
        return {"run": list(state), "bitmap": text}

    def restore(self, epoch: int, saved: Mapping[str, Any]) -> None:
        """Goes on from what ``save`` gave. StateError: the daemon neither has
        the journal of that epoch nor got a bitmap, or they do not fit."""
        run, bitmap = saved.get("run"), saved.get("bitmap")
        if not run:
            if self._lossy or not len(self):
                return
            # The daemon hears that it is begun again on purpose.
            run, bitmap = (epoch, 0, len(self), 0, 0, 0), None
        try:
            data = bitmap and zlib.decompress(base64.b85decode(bitmap))
            a, b, c, d, e, f = map(operator.index, run)
        except (TypeError, ValueError, zlib.error) as error:
            raise StateError(f"the state is damaged: {error}") from error
        job = self._open_job()
        try:
            job.restore((a, b, c, d, e, f), data)
        except OSError as error:
            if error.errno not in (
                errno.EINVAL,
                errno.ENODATA,
                errno.EEXIST,
                errno.EBADMSG,
            ):
                raise
            raise StateError(error.strerror) from error

    # ---- samples ----

    def get(self, id: SupportsIndex | str) -> Sample:
        """The Sample with an id or a key, whatever ``decode`` says, also from
        outside of a subset. OSError whatever ``on_error`` says."""
        number = self.id_of(id) if isinstance(id, str) else id
        if is_slot(number):
            raise IndexError("get() is for ids, not for slots")
        if self._lossy:
            number, n = operator.index(number), len(self._open())
            if not -n <= number < n:
                raise IndexError(f"there are {n} samples: {number}")
            numbers = array("q", (number % n, -1, -1))
            (sample,) = samples_again(self._open().spec, numbers, Sample)
            assert isinstance(sample, Sample)
            return sample
        answer = self._open().batch(None, [number], Sample, None)
        assert answer is not None
        found: Sample | Exception = answer[0][0]
        if isinstance(found, Exception):
            raise found
        return found

    def __getitem__(self, index: SupportsIndex) -> Any:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[SupportsIndex]) -> list[Any]:
        """One batch: one round trip binds its slots, one more fetches what is
        not in memory. IndexError: no such sample or slot; TypeError: an index
        is no integer; OSError."""
        if self._board is not None:
            self._board.begin(self)
        begun, held = timing.now(), self._held_back()
        samples, failed = self._fetch(indices)
        fetched = timing.now()
        paced = min(begun + self._held_back() - held, fetched)
        try:
            return self._items(samples, failed)
        except StopIteration as error:
            # Whoever iterates would take it for the end of the epoch.
            raise RuntimeError(
                f"decode, transform or on_error of {self.name} raised "
                "StopIteration"
            ) from error
        finally:
            self._prep_s += timing.note(begun, paced, fetched) - fetched
            self._fetch_s += fetched - paced
            if self._board is not None:
                self._board.tell(self)

    def _held_back(self) -> float:
        """Seconds that this process waited to keep in step."""
        source = self._source
        return source.stats()["pace_wait_s"] if self._pace and source else 0.0

    def _items(
        self,
        samples: list[Any],
        failed: list[tuple[int, int, int, int]],
    ) -> list[Any]:
        plain = self._decoder is None and self.transform is None
        if plain and not failed:
            return samples
        if plain:
            return self._prepare(samples, failed)
        first = next(
            (s for s in samples if isinstance(s, Sample)), None
        )
        if first is None:
            return self._prepare(samples, failed)
        epoch, slot = first.epoch, first.slot
        if epoch is None or slot is None:
            # By its id a sample would be augmented alike in each epoch.
            return self._prepare(samples, failed)
        with seeded(key_of(self.seed, epoch, slot)):
            return self._prepare(samples, failed)

    def _fetch(self, indices: Sequence[SupportsIndex]) -> Answer:
        if self._lossy:
            return self._open().from_somewhere(
                lambda: self._ask(indices),
                lambda: self._as_bound(indices),
                Sample,
            )
        return self._ask(indices)

    def _as_bound(self, indices: Sequence[SupportsIndex]) -> "array[int]":
        """(id, epoch, slot) of each, as the daemon would bind them; -1 for
        None. For order "strict"."""
        n, ids, ordered = len(self), self._ids, self._sorted_ids()
        check = self.check()
        numbers = array("q")
        for given in indices:
            index = operator.index(given)
            if not is_slot(index):
                if not -n <= index < n:
                    raise IndexError(
                        f"there are {n} samples, no sample {index}"
                    )
                id = index % n
                numbers.extend((id if ids is None else ids[id], -1, -1))
                continue
            epoch, slot = slot_of(index)
            if check_of(index) not in (0, check):
                raise ValueError(
                    f"slot {slot} is of another dataset, split or job"
                )
            sample = _sheaf.strict(n, self.seed, epoch, slot)
            numbers.extend(
                (sample if ordered is None else ordered[sample], epoch, slot)
            )
        return numbers

    def _ask(self, indices: Sequence[SupportsIndex]) -> Answer:
        source = self._source or self._open()
        answer = source.batch(self._job, indices, Sample, self._ids)
        if answer is None:
            answer = source.batch(
                self._open_job(), indices, Sample, self._ids
            )
            assert answer is not None
        if self._job is not None:
            text = self._job.warning()
            if text is not None:
                warnings.warn(text, RuntimeWarning, stacklevel=3)
        return answer

    def _prepare(
        self,
        samples: list[Any],
        failed: list[tuple[int, int, int, int]],
    ) -> list[Any]:
        lost = {position: rest for position, *rest in failed}
        items = list(samples)
        try:
            for i, sample in enumerate(samples):
                if i in lost:
                    id, epoch, slot = lost[i]
                    items[i] = self._instead(
                        self._failure(sample, id, epoch, slot), samples, i
                    )
                else:
                    items[i] = self._item(sample, samples, i)
        finally:
            leave()
        return items

    def _item(self, sample: Sample, batch: list[Any], position: int) -> Any:
        enter(self.seed, sample.epoch, sample.id)
        item: Any = sample
        if self._decoder is not None:
            try:
                item = self._decoder(sample)
            except Exception as error:
                error.add_note(f"sheaf: decoding {sample.key} of {self.name}")
                return self._instead(
                    self._failure(error, sample.id, sample.epoch, sample.slot),
                    batch,
                    position,
                )
        self._policy.good(sample.id)
        if self.transform is not None:
            try:
                item = self.transform(item)
            except Exception as error:
                error.add_note(
                    f"sheaf: transforming {sample.key} of {self.name}"
                )
                raise
        return item if self._decoder is None else (item, sample.label)

    def _failure(
        self, error: Exception, id: int, epoch: int | None, slot: int | None
    ) -> Failure:
        bound = slot is not None and slot >= 0
        return Failure(
            error,
            id,
            self.key(id),
            epoch if bound else None,
            slot if bound else None,
        )

    def _instead(self, failure: Failure, batch: list[Any], at: int) -> Any:
        self._policy.failed(failure)
        if callable(self._policy.on_error):
            return self._policy.on_error(failure)
        other = self._policy.substitute(failure, batch, at)
        if other is None:
            raise failure.error
        return self._item(self.get(other), batch, at)

    # ---- figures ----

    def _count_anew(self) -> None:
        """In a forked child: what was counted before is the parent's."""
        self._fetch_s = self._prep_s = 0.0
        self._policy.replaced = 0
        self._policy.quarantined = set()
        if self._source is not None:
            self._before = self._source.stats()

    def stats(self) -> Stats:
        """Counters of this process since the Dataset was opened in it; those
        of one version in one process count together.

        ``samples`` handed out, ``copied_samples`` of them private copies;
        ``hits`` and ``misses`` (pieces of up to 4 MiB that were, or were not,
        in memory), ``hit_bytes``; ``miss_wait_s`` spent waiting for misses;
        ``from_disk`` and ``from_origin``: pieces that the daemon brought from
        there for this process, when they were missed or, earlier, when a slot
        was bound to them; what somebody had asked for already counts there
        alone; ``substituted``: slots that were bound to another sample than
        their own; ``pace_wait_s`` held back to keep in step (``pace``);
        ``origin_samples`` and ``origin_bytes`` that this process read from the
        origin itself, the daemon being lost ``daemon_losses`` times;
        ``replaced`` samples and ``quarantined`` ones; ``reconnects`` to the
        daemon; ``fetch_s`` in which batches were brought and ``prep_s`` in
        which they were decoded and transformed, about, where several threads
        read; ``pinned_bytes`` held and ``grant_bytes`` the most that may be.
        """
        stats = Stats(self._open().stats())
        for name in stats.keys() - {"pinned_bytes", "grant_bytes"}:
            stats[name] -= self._before[name]
        loss = self._open().loss
        stats["origin_samples"] = loss.samples
        stats["origin_bytes"] = loss.bytes
        stats["daemon_losses"] = loss.losses
        stats["replaced"] = self._policy.replaced
        stats["quarantined"] = len(self._policy.quarantined)
        stats["fetch_s"], stats["prep_s"] = self._fetch_s, self._prep_s
        return stats

    def __repr__(self) -> str:
        return f"<sheaf.Dataset {self.name!r} order={self.order}>"


class Files(Sequence[str]):
    """Keys of a Dataset by index."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        number = operator.index(index)
        if not -len(self) <= number < len(self):
            raise IndexError(f"there are {len(self)} files: {number}")
        number %= len(self)
        ids = self._dataset._ids
        return self._dataset.key(number if ids is None else ids[number])
