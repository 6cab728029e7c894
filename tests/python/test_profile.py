# SPDX-License-Identifier: Apache-2.0
"""StallProfiler and whatif: delays that were put in are found again."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import sheaf  # noqa: E402
from sheaf import timing  # noqa: E402

FILES = 128
BATCH = 4
STEPS = 12
DELAY_S = 0.04
TRIES = 12  # on a machine that others use; one is enough on an idle one

# What was slept for really: a loaded machine sleeps longer.
slept: dict[str, float] = {}
lock = threading.Lock()


def delay(kind: str, seconds: float = DELAY_S) -> None:
    begun = timing.now()
    time.sleep(seconds)
    with lock:
        slept[kind] = slept.get(kind, 0.0) + timing.now() - begun


@pytest.fixture
def files(node, request) -> str:
    name = "profile"
    if not (node.origin / name).exists():
        node.add(name, {f"{i:03d}": bytes([i]) * 100 for i in range(FILES)})
        node.sheaf("warmup", name)
    return name


class SlowFetch(sheaf.Dataset):
    """Brings bytes late."""

    def _fetch(self, indices: Any) -> Any:
        delay("fetch")
        return super()._fetch(indices)


class HeldBack(sheaf.Dataset):
    """Waits as one that is kept in step."""

    waited = 0.0

    def _fetch(self, indices: Any) -> Any:
        begun = timing.now()
        delay("pace")
        self.waited += timing.now() - begun
        return super()._fetch(indices)

    def _held_back(self) -> float:
        return self.waited


def slow_collate(items: list[Any]) -> Any:
    delay("prep")
    return torch.tensor([item[0][0] for item in items])


def plain_collate(items: list[Any]) -> Any:
    return torch.tensor([item[0][0] for item in items])


def measure(loader: Any, computing: float = 0.0) -> Any:
    slept.clear()
    with sheaf.StallProfiler(loader) as profiler:
        for number, _ in enumerate(profiler.loop(STEPS, warmup=2)):
            if number == 1:
                slept.clear()  # what the warm-up took
            if computing and number >= 2:
                delay("compute", computing)
    report = profiler.report()
    assert report.steps == STEPS
    total = report.fetch_s + report.prep_s + report.transfer_s
    held = report.pace_s + report.ahead_s
    assert total + held == pytest.approx(report.wait_s)
    assert report.wait_s + report.compute_s == pytest.approx(report.seconds)
    return report


@pytest.mark.parametrize("where", ["fetch", "prep", "compute", "pace"])
def test_delay_is_found(files, where):
    """In the loop's own process: each within a tenth, the others small."""
    kind = {"fetch": SlowFetch, "pace": HeldBack}.get(where, sheaf.Dataset)
    loader = sheaf.Loader(
        kind(files, decode="bytes"),
        batch_size=BATCH,
        collate_fn=slow_collate if where == "prep" else plain_collate,
    )
    others = {"fetch", "prep", "compute", "pace"} - {where}
    # A loaded machine may stop anybody anywhere: one of some.
    found = []
    for _ in range(TRIES):
        report = measure(loader, DELAY_S if where == "compute" else 0.0)
        error = abs(getattr(report, where + "_s") / slept[where] - 1)
        most = max(getattr(report, other + "_s") for other in others)
        found.append((error, report))
        if error < 0.1 and most < slept[where] / 2:
            break
    else:
        raise AssertionError(found)
    assert ("  pace " in str(report)) == (where == "pace")
    assert f"{STEPS} steps" in str(report)


@pytest.mark.parametrize("where", ["fetch", "prep", "pace"])
def test_delay_in_a_worker(files, where):
    """One worker that is slower than the loop: its own times say of what."""
    kind = {"fetch": SlowFetch, "pace": HeldBack}.get(where, sheaf.Dataset)
    loader = sheaf.Loader(
        kind(files, decode="bytes"),
        batch_size=BATCH,
        num_workers=1,
        collate_fn=slow_collate if where == "prep" else plain_collate,
    )
    others = {"fetch", "prep", "pace"} - {where}
    reports = []
    for _ in range(TRIES):
        report = measure(loader)
        reports.append(report)
        part = getattr(report, where + "_s")
        most = max(getattr(report, other + "_s") for other in others)
        # some were ready: a worker is two batches ahead when the loop begins
        if part >= 0.9 * (STEPS - 3) * DELAY_S and most < part / 4:
            break
    else:
        raise AssertionError(reports)
    assert report.hits + report.misses == STEPS * BATCH


def test_hits_and_misses(files, node):
    """What was read sums up to the samples; read again all are hits."""
    loader = sheaf.Loader(
        sheaf.Dataset(files, decode="bytes"),
        batch_size=BATCH,
        collate_fn=plain_collate,
    )
    node.sheaf("warmup", "--evict", files)
    first = measure(loader)
    assert first.hits + first.misses == STEPS * BATCH
    node.sheaf("warmup", files)
    second = measure(loader)
    assert (second.hits, second.misses) == (STEPS * BATCH, 0)


def test_running_workers_are_refused(files):
    loader = sheaf.Loader(
        sheaf.Dataset(files, decode="bytes"),
        batch_size=BATCH,
        num_workers=1,
        persistent_workers=True,
        collate_fn=plain_collate,
    )
    list(loader)
    with pytest.raises(ValueError, match="running already"):
        sheaf.StallProfiler(loader)


@pytest.mark.parametrize("workers", [0, 1])
def test_the_loader_is_as_before(files, workers):
    """After profiling it gives plain batches, of a whole epoch."""
    loader = sheaf.Loader(
        sheaf.Dataset(files, decode="bytes"),
        batch_size=BATCH,
        num_workers=workers,
        persistent_workers=workers > 0,
        collate_fn=plain_collate,
    )
    measure(loader)
    numbers = [int(number) for batch in loader for number in batch]
    assert sorted(numbers) == list(range(FILES))


def test_whatif(files):
    """Preparing that takes twice the step is what the step waits for."""
    loader = sheaf.Loader(
        sheaf.Dataset(files, decode="bytes"),
        batch_size=BATCH,
        collate_fn=slow_collate,
    )
    found = sheaf.whatif(
        loader, lambda batch: time.sleep(DELAY_S / 2), steps=10, warmup=1
    )
    assert found.ingest_s >= DELAY_S / 2
    assert found.resident_s >= found.ingest_s + DELAY_S * 0.9
    assert 0.4 < found.prep_stall < 0.9
    assert 0 <= found.cached <= 1
    assert found.samples_s(1.0) >= found.samples_s(0.0) > 0
    assert "samples/s" in str(found)


def test_whatif_tells_misses(files, node):
    """Bytes that come late only when they are not in memory."""

    class Late(sheaf.Dataset):
        def _fetch(self, indices: Any) -> Any:
            before = self.stats()["misses"]
            answer = super()._fetch(indices)
            if self.stats()["misses"] > before:
                delay("fetch")
            return answer

    node.sheaf("warmup", "--evict", files)
    loader = sheaf.Loader(
        Late(files, decode="bytes"),
        batch_size=BATCH,
        collate_fn=plain_collate,
    )
    found = sheaf.whatif(loader, lambda batch: None, steps=10, warmup=1)
    assert found.cached < 0.5
    assert found.measured_s - found.resident_s >= 0.5 * DELAY_S
    assert found.fetch_stall > 0.5
    assert found.samples_s(1.0) > 2 * found.samples_s(0.0)


def test_whatif_needs_samples(files):
    loader = sheaf.Loader(
        sheaf.Dataset(files, decode="bytes"), batch_size=FILES
    )
    with pytest.raises(ValueError, match="samples"):
        sheaf.whatif(loader, lambda batch: None)


# ---- members of a group ----


def slow_number(sample: sheaf.Sample) -> torch.Tensor:
    time.sleep(DELAY_S / BATCH)
    return torch.tensor(sample.id)


def number(sample: sheaf.Sample) -> torch.Tensor:
    return torch.tensor(sample.id)


def of_group(
    ds: sheaf.Dataset, name: str, **options: Any
) -> sheaf.CoordinatedLoader:
    options = {"prep_workers": 1, "max_ahead": 2, **options}
    return sheaf.CoordinatedLoader(ds, BATCH, group=name, **options)


@pytest.mark.parametrize("where", ["fetch", "prep"])
def test_delay_of_a_group(files, where):
    """What its worker noted comes with the batch: half a delay of computing,
    half of waiting for what was slow."""
    reports = []
    for turn in range(TRIES):
        kind = SlowFetch if where == "fetch" else sheaf.Dataset
        transform = number if where == "fetch" else slow_number
        name = f"delay-{where}-{turn}"
        with of_group(kind(files, transform=transform), name) as loader:
            report = measure(loader, DELAY_S / 2)
        reports.append(report)
        other = {"fetch": report.prep_s, "prep": report.fetch_s}[where]
        part = getattr(report, where + "_s")
        rest = max(other, report.transfer_s, report.ahead_s)
        if part >= 0.4 * (STEPS - 3) * DELAY_S and rest < part / 4:
            break
    else:
        raise AssertionError(reports)
    assert "were in memory" not in str(report)


def test_waits_for_other_members(files):
    """Of a member that takes its time: no fetching, nor preparing."""
    reports, stop = [], threading.Event()

    def linger(loader: sheaf.CoordinatedLoader) -> None:
        for _ in loader:
            if not stop.is_set():
                time.sleep(DELAY_S)

    for turn in range(TRIES):
        stop.clear()
        ds, name = sheaf.Dataset(files, transform=number), f"linger-{turn}"
        with of_group(ds, name, members=2) as fast, of_group(
            ds, name, members=2
        ) as other:
            thread = threading.Thread(target=linger, args=(other,))
            thread.start()
            report = measure(fast)
            stop.set()
            fast.close()
            thread.join(60)
            waited = fast.stats()
        reports.append(report)
        rest = max(report.fetch_s, report.prep_s, report.transfer_s)
        most = report.ahead_s >= 0.5 * (STEPS - 3) * DELAY_S
        if most and rest < report.ahead_s / 2:
            break
    else:
        raise AssertionError(reports)
    assert "  ahead " in str(report)
    assert waited["wait_ahead_s"] > waited["wait_prepare_s"]


def test_what_cannot_be_profiled(files):
    ds = sheaf.Dataset(files, decode="bytes")
    plain = torch.utils.data.DataLoader(ds, BATCH)
    for wrong in (plain, [1, 2], None):
        with pytest.raises(TypeError, match="sheaf.Loader"):
            sheaf.StallProfiler(wrong)
    with pytest.raises(TypeError, match="sheaf.Loader"):
        sheaf.whatif(of_group(ds, "whatif"), lambda batch: None)
    loader = sheaf.Loader(ds, BATCH, collate_fn=plain_collate)
    with pytest.raises(TypeError, match="sync"):
        sheaf.StallProfiler(loader, sync=5)
    with pytest.raises(RuntimeError, match="with StallProfiler"):
        sheaf.StallProfiler(loader).loop(1)
    with sheaf.StallProfiler(loader) as profiler:
        for wrong in ({"steps": -1}, {"steps": 1, "warmup": -1}):
            with pytest.raises(ValueError, match="steps|warmup"):
                profiler.loop(**wrong)
