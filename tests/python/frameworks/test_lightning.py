# SPDX-License-Identifier: Apache-2.0
"""Lightning's Trainer and Fabric with strategy ddp, in two processes."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("lightning")
pytest.importorskip("torchdata")

import ranks  # noqa: E402
from numbers_data import BATCH, once, open_numbers, served  # noqa: E402

TWO = [
    "fit-loader-0",
    "fit-loader-2",
    "fit-plain-0",
    "fit-plain-2",
    "resume-loader-0",
    "resume-loader-2",
    "resume-last",
    "resume-stateful-0",
    "resume-stateful-2",
    "resume-plain-0",
    "resume-plain-2",
    "resume-limited",
    "in_validation",
    "save_for_others",
    "limited",
    "overfit",
    "predict",
    "no_sampler",
    "fabric-0",
    "fabric-2",
]


@pytest.fixture(scope="module")
def results(numbers, tmp_path_factory):
    directory = tmp_path_factory.mktemp("lightning")
    found = ranks.launch("ranks_lightning.py", TWO, directory / "two")
    one = ranks.launch(
        "ranks_lightning.py", ["load_from_others"], directory / "one", world=1
    )
    return {"two": found, "one": one}


def epoch_of(parts, epoch: int) -> list[int]:
    """The numbers of all ranks in an epoch; JSON made its keys texts."""
    return sum((part.get(str(epoch), []) for part in parts), [])


@pytest.mark.parametrize("scenario", [s for s in TWO if s[:4] == "fit-"])
def test_fit(results, scenario):
    """Every epoch complete, in the framework's count; validation, too."""
    parts = ranks.outcome(results["two"], scenario)
    job = scenario.replace("fit", "lightning")
    for epoch in range(3):
        seen = [part["seen"] for part in parts]
        assert [len(s[str(epoch)]) for s in seen] == [502, 502]
        once(epoch_of(seen, epoch), padding=1)
        order = served(open_numbers(job), epoch)
        assert seen[0][str(epoch)] == order[::2], f"not epoch {epoch}"
        once(epoch_of([part["held"] for part in parts], epoch), padding=1)


@pytest.mark.parametrize(
    "scenario",
    [
        "resume-loader-0",
        "resume-loader-2",
        "resume-last",
        "resume-stateful-0",
        "resume-stateful-2",
        "in_validation",
    ],
)
def test_resume(results, scenario):
    """Epoch 1 joined from both runs, epoch 2 whole."""
    parts = ranks.outcome(results["two"], scenario)
    before = [part["before"] for part in parts]
    after = [part["after"] for part in parts]
    once(epoch_of(before, 0), padding=1)
    once(epoch_of(before, 1) + epoch_of(after, 1), padding=1)
    once(epoch_of(after, 2), padding=1)


@pytest.mark.parametrize("workers", [0, 2])
def test_resume_of_a_plain_loader_says_so(results, workers):
    """Lightning does not keep its state, and says so."""
    scenario = f"resume-plain-{workers}"
    warned = ranks.outcome(results["two"], scenario)[0]["warned"]
    assert any("resumable" in text for text in warned), warned


def test_resume_with_a_limit(results):
    """10 of 32 steps an epoch; stopped after 15 steps."""
    parts = ranks.outcome(results["two"], "resume-limited")
    before = [part["before"] for part in parts]
    after = [part["after"] for part in parts]
    joined = epoch_of(before, 1) + epoch_of(after, 1)
    assert len(joined) == len(set(joined)) == 2 * 10 * BATCH
    assert len(set(epoch_of(after, 2))) == 2 * 10 * BATCH


def test_other_world(results):
    """Begun by two ranks, ended by one."""
    begun = ranks.outcome(results["two"], "save_for_others")
    rest = ranks.outcome(results["one"], "load_from_others")
    once(epoch_of(begun, 1) + epoch_of(rest, 1))
    once(epoch_of(rest, 2))


def test_limit(results):
    parts = ranks.outcome(results["two"], "limited")
    for epoch in range(3):
        numbers = epoch_of(parts, epoch)
        assert len(numbers) == len(set(numbers)) == 2 * 10 * BATCH


def test_overfit(results):
    """The same literal samples in each epoch."""
    parts = ranks.outcome(results["two"], "overfit")
    first = sorted(epoch_of(parts, 0))
    assert len(set(first)) == 2 * 4 * BATCH
    assert sorted(epoch_of(parts, 1)) == first
    assert sorted(epoch_of(parts, 2)) == first


def test_predict(results):
    parts = ranks.outcome(results["two"], "predict")
    assert [len(part) for part in parts] == [502, 502]
    once(sum(parts, []), padding=1)


def test_no_sampler(results):
    once(epoch_of(ranks.outcome(results["two"], "no_sampler"), 0), padding=1)


@pytest.mark.parametrize("workers", [0, 2])
def test_fabric(results, workers):
    parts = ranks.outcome(results["two"], f"fabric-{workers}")
    for epoch in range(2):
        once(sum((part["epochs"][epoch] for part in parts), []), padding=1)
    for part in parts:
        assert "epoch" in part["refused"], "resumed in another epoch"
    once(sum((part["begun"] + part["rest"] for part in parts), []), padding=1)
