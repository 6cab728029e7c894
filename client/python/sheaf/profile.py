# SPDX-License-Identifier: Apache-2.0
"""Where a training loop waits for data, and what a larger cache would give.

    with sheaf.StallProfiler(loader, sync=torch.cuda.synchronize) as p:
        for batch in p.loop(steps=200, warmup=10):
            train_step(batch)
    print(p.report())

    print(sheaf.whatif(loader, train_step, steps=50))

A step is waiting for a batch and then computing on it. The wait is split by
what the batch was going through meanwhile, as its reader noted it: *fetch*
(bytes were brought), *prep* (decoded, transformed, collated) or *transfer*
(on the way from a worker); *pace* is what a Dataset with ``pace`` was held
back, *ahead* what a member of a group waited for others. While the batch was not even begun its worker was busy with others; that
part counts as pace, fetch and prep in the batch's own proportion.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from torch.utils.data._utils.pin_memory import pin_memory

from . import checks, timing
from .coordinated import CoordinatedLoader
from .dataset import Dataset
from .loader import Loader

_STEPS_MAX = 1 << 40

__all__ = ["StallProfiler", "StallReport", "WhatIf", "whatif"]


@dataclass
class _Timed:
    """A batch with what its reader noted."""

    batch: Any
    times: timing.Times
    collated: float
    hits: float = 0.0
    misses: float = 0.0

    def pin_memory(self) -> "_Timed":
        """As torch's pinning thread asks for it."""
        self.batch = pin_memory(self.batch)  # type: ignore[no-untyped-call]
        return self


class _Collate:
    """The loader's collate function, and the times of what it collates."""

    def __init__(self, dataset: Dataset, collate: Callable[[Any], Any]) -> None:
        self.dataset = dataset
        self.collate = collate
        self.hits = self.misses = 0.0

    def __call__(self, items: Any) -> _Timed:
        batch = self.collate(items)
        times = timing.last()
        assert times is not None
        stats = self.dataset.stats()
        hits, misses = stats["hits"] - self.hits, stats["misses"] - self.misses
        self.hits, self.misses = stats["hits"], stats["misses"]
        return _Timed(batch, times, timing.now(), hits, misses)


@dataclass
class StallReport:
    """Figures of the steps that were measured; times in seconds.

    ``wait_s`` is ``fetch_s + prep_s + transfer_s + pace_s + ahead_s``;
    ``hits`` and ``misses`` are pieces of files that were, or were not, in
    memory (not known of a CoordinatedLoader).
    """

    steps: int = 0
    compute_s: float = 0.0
    fetch_s: float = 0.0
    prep_s: float = 0.0
    transfer_s: float = 0.0
    pace_s: float = 0.0
    ahead_s: float = 0.0
    hits: float = 0.0
    misses: float = 0.0
    batch_size: int = 1

    @property
    def wait_s(self) -> float:
        """Seconds in which the loop had nothing to compute on."""
        own = self.fetch_s + self.prep_s + self.transfer_s
        return own + self.pace_s + self.ahead_s

    @property
    def seconds(self) -> float:
        """Of all steps."""
        return self.compute_s + self.wait_s

    @property
    def stall(self) -> float:
        """Share of the time that was waiting, 0 to 1."""
        return self.wait_s / self.seconds if self.seconds else 0.0

    def __str__(self) -> str:
        total = self.seconds or 1.0
        asked = self.hits + self.misses
        lines = [
            f"{self.steps} steps in {self.seconds:.3f} s, "
            f"{self.steps * self.batch_size / total:.0f} samples/s, "
            f"{100 * self.stall:.1f} % of it waiting for data"
        ]
        for name in ("compute", "fetch", "prep", "transfer", "pace", "ahead"):
            part = getattr(self, name + "_s")
            if not part and name in ("pace", "ahead"):
                continue
            lines.append(f"  {name:9} {part:9.3f} s {100 * part / total:5.1f} %")
        if asked:
            lines.append(f"  {100 * self.hits / asked:.1f} % were in memory")
        return "\n".join(lines)


class StallProfiler:
    """Measures steps of a loop over a ``Loader`` or a ``CoordinatedLoader``.

    ``sync``: what waits until the device is idle (``torch.cuda.synchronize``);
    without it, time of a device is counted where its results are waited for.
    A Loader must not be in use, and its workers not running yet: persistent
    ones begin with the loop. Leaving the ``with`` block ends the pass.
    """

    def __init__(
        self,
        loader: Loader | CoordinatedLoader,
        sync: Callable[[], Any] | None = None,
    ) -> None:
        checks.function("sync", sync)
        if not isinstance(loader, CoordinatedLoader):
            _check(loader)
        self._loader = loader
        self._sync = sync or (lambda: None)
        self._report = StallReport(batch_size=loader.batch_size or 1)
        self._within = False
        self._collate: Any = None  # a Loader's own
        self._batches: Iterator[Any] | None = None

    def __enter__(self) -> "StallProfiler":
        loader = self._loader
        if isinstance(loader, Loader):
            assert isinstance(loader.dataset, Dataset)
            self._collate = loader.collate_fn
            loader.collate_fn = _Collate(loader.dataset, self._collate)
        self._within = True
        return self

    def __exit__(self, *error: Any) -> None:
        self._batches = None
        self._within = False
        loader = self._loader
        if isinstance(loader, Loader):
            # Persistent workers would go on noting times.
            loader._iterator = None
            loader.collate_fn = self._collate

    def loop(self, steps: int, warmup: int = 10) -> Iterator[Any]:
        """Batches of one pass: ``warmup`` that are not counted, then up to
        ``steps`` that are, fewer where the epoch ends before."""
        steps = checks.whole("steps", steps, 0, _STEPS_MAX)
        warmup = checks.whole("warmup", warmup, 0, _STEPS_MAX)
        if not self._within:
            raise RuntimeError(
                "StallProfiler: loop() is for a block, with StallProfiler(...) "
                "as p:"
            )
        return self._loop(warmup + steps, warmup)

    def _loop(self, count: int, warmup: int) -> Iterator[Any]:
        self._batches = iter(self._loader)
        for number in range(count):
            self._sync()
            held, asked = self._held(), timing.now()
            try:
                timed = self._timed(next(self._batches))
            except StopIteration:
                break
            got = timing.now()
            ahead = min(got - asked, self._held() - held)
            yield timed.batch
            self._sync()
            if number >= warmup:
                self._report.ahead_s += ahead
                self._count(timed, asked + ahead, got, timing.now())
        self._batches = None

    def _held(self) -> float:
        """Seconds that other members of a group have held this one back."""
        loader = self._loader
        if isinstance(loader, CoordinatedLoader):
            return loader._waited["ahead"]
        return 0.0

    def _timed(self, batch: Any) -> _Timed:
        if isinstance(self._loader, CoordinatedLoader):
            *times, collated = self._loader._times
            return _Timed(batch, timing.Times(*times), collated)
        assert isinstance(batch, _Timed)
        return batch

    def _count(
        self, timed: _Timed, asked: float, got: float, done: float
    ) -> None:
        r, t = self._report, timed.times
        pace = _overlap(asked, got, t.begun, t.paced)
        fetch = _overlap(asked, got, t.paced, t.fetched)
        prep = _overlap(asked, got, t.fetched, timed.collated)
        transfer = _overlap(asked, got, timed.collated, got)
        before = max(0.0, min(got, t.begun) - asked)
        if self._has_workers() and timed.collated > t.begun:
            part = before / (timed.collated - t.begun)
            pace += part * (t.paced - t.begun)
            fetch += part * (t.fetched - t.paced)
            prep += part * (timed.collated - t.fetched)
        else:
            transfer += before
        r.steps += 1
        r.compute_s += done - got
        r.fetch_s += fetch
        r.prep_s += prep
        r.transfer_s += transfer
        r.pace_s += pace
        r.hits += timed.hits
        r.misses += timed.misses

    def _has_workers(self) -> bool:
        """Others' too: they prepare what this member takes."""
        loader = self._loader
        return not isinstance(loader, Loader) or loader.num_workers > 0

    def report(self) -> StallReport:
        """Of the steps until now."""
        return self._report


def _check(loader: Any) -> None:
    """It can be measured. TypeError, ValueError."""
    if not isinstance(loader, Loader):
        raise TypeError(
            f"a {type(loader).__name__} is neither a sheaf.Loader nor a "
            "sheaf.CoordinatedLoader"
        )
    if getattr(loader, "_iterator", None) is not None:
        raise ValueError(
            "the loader's persistent workers are running already and "
            "note no times: profile before the first epoch"
        )
    if loader.collate_fn is None or not isinstance(loader.dataset, Dataset):
        raise ValueError("StallProfiler: a Loader of batches of a Dataset")


def _overlap(a: float, b: float, c: float, d: float) -> float:
    return max(0.0, min(b, d) - max(a, c))


@dataclass
class WhatIf:
    """Seconds a step in three phases, and what follows from them.

    ``ingest_s``: one batch again and again, so the step alone; ``resident_s``:
    everything in memory, so what preparing allows; ``measured_s``: the cache
    as it is, ``cached`` (0 to 1) of what was read being in memory.
    """

    ingest_s: float
    resident_s: float
    measured_s: float
    cached: float
    batch_size: int
    warnings: list[str] = field(default_factory=list)

    @property
    def prep_stall(self) -> float:
        """Share of a step that waits for preparation, all being cached."""
        return max(0.0, 1 - self.ingest_s / self.resident_s)

    @property
    def fetch_stall(self) -> float:
        """Share of a step that waits for bytes, the cache being as it is."""
        return max(0.0, 1 - self.resident_s / self.measured_s)

    def samples_s(self, cached: float) -> float:
        """Samples a second with this share in memory (0 to 1): a step takes
        what preparing takes, and what misses cost in proportion to them. With
        nothing missed while measuring, misses cost nothing here."""
        missed = 1 - self.cached
        cost = max(0.0, self.measured_s - self.resident_s)
        each = cost / missed if missed > 0 else 0.0
        return self.batch_size / (self.resident_s + (1 - cached) * each)

    def __str__(self) -> str:
        rate = self.batch_size
        lines = [
            f"the step alone      {rate / self.ingest_s:10.0f} samples/s",
            f"all in memory       {rate / self.resident_s:10.0f} samples/s"
            f"   {100 * self.prep_stall:5.1f} % wait for preparation",
            f"as it is ({100 * self.cached:3.0f} %)    "
            f"{rate / self.measured_s:10.0f} samples/s"
            f"   {100 * self.fetch_stall:5.1f} % wait for bytes",
            "with this share in memory:",
        ]
        lines += [
            f"  {percent:3d} %             "
            f"{self.samples_s(percent / 100):10.0f} samples/s"
            for percent in (0, 25, 50, 75, 100)
        ]
        return "\n".join(lines + self.warnings)


def whatif(
    loader: Loader,
    train_step: Callable[[Any], Any],
    steps: int = 50,
    *,
    warmup: int = 3,
    sync: Callable[[], Any] | None = None,
    seed: int = 0,
) -> WhatIf:
    """Runs ``train_step`` on random samples in three phases, as DS-Analyzer
    does, with the loader's dataset, collate function and workers.

    It asks for samples by id: no slot is bound, and no training run loses
    one. ``train_step`` does train: give it a copy of the model. ValueError:
    fewer samples than ``warmup + 1`` batches.
    """
    if not isinstance(loader, Loader):
        raise TypeError(f"whatif: a sheaf.Loader, not {loader!r}")
    dataset, size = loader.dataset, loader.batch_size or 1
    assert isinstance(dataset, Dataset)
    count = min(steps + warmup, len(dataset) // size)
    if count <= warmup:
        raise ValueError(
            f"whatif: {len(dataset)} samples are less than {warmup + 1} "
            f"batches of {size}"
        )
    ids = random.Random(seed).sample(range(len(dataset)), count * size)
    batches = [ids[i * size : (i + 1) * size] for i in range(count)]
    measured = _phase(loader, batches, train_step, warmup, sync)
    resident = _phase(loader, batches, train_step, warmup, sync)
    one = _one(loader, batches[0])
    begun = time.monotonic()
    for number in range(count):
        if number == warmup:
            begun = time.monotonic()
        train_step(one)
        if sync:
            sync()
    ingest = (time.monotonic() - begun) / (count - warmup)
    result = WhatIf(
        max(ingest, 1e-9),
        resident.seconds / resident.steps,
        measured.seconds / measured.steps,
        _share(measured),
        size,
    )
    if _share(resident) < 0.99:
        result.warnings.append(
            f"memory could not hold the {count * size} samples that were read: "
            f"{100 * _share(resident):.0f} % of them; use fewer steps"
        )
    return result


def _share(report: StallReport) -> float:
    asked = report.hits + report.misses
    return report.hits / asked if asked else 1.0


def _again(loader: Loader, batches: list[list[int]]) -> Loader:
    """A loader like this one that gives these samples."""
    options: dict[str, Any] = {"num_workers": loader.num_workers}
    if loader.num_workers:
        options["prefetch_factor"] = loader.prefetch_factor
        options["multiprocessing_context"] = loader.multiprocessing_context
    return Loader(
        loader.dataset,  # type: ignore[arg-type]
        batch_sampler=batches,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        worker_init_fn=loader.worker_init_fn,
        **options,
    )


def _one(loader: Loader, batch: list[int]) -> Any:
    return next(iter(_again(loader, [batch])))


def _phase(
    loader: Loader,
    batches: list[list[int]],
    train_step: Callable[[Any], Any],
    warmup: int,
    sync: Callable[[], Any] | None,
) -> StallReport:
    with StallProfiler(_again(loader, batches), sync) as profiler:
        for batch in profiler.loop(len(batches) - warmup, warmup):
            train_step(batch)
    return profiler.report()
