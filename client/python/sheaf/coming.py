# SPDX-License-Identifier: Apache-2.0
"""Which pass comes next: the one after the last, one that set_epoch names, or
the rest of one that a state names. Samplers and loaders have one each."""

from __future__ import annotations

from typing import Any, Mapping

from . import checks, slots
from .errors import StateError


class Coming:
    """``epoch``: of the next pass, None where nobody said. ``loaded``: (epoch,
    place) of a state that is for it, ``saved`` the daemon's part of that state
    and ``finished`` the epoch that it had just finished, if so."""

    def __init__(self) -> None:
        self.epoch: int | None = None
        self.loaded: tuple[int, int] | None = None
        self.saved: dict[str, Any] = {}
        self.finished: int | None = None

    def set_epoch(self, epoch: int) -> None:
        """StateError: a state was loaded that is in another one. Frameworks
        name the epoch that just ended, too, which changes nothing."""
        epoch = checks.whole("epoch", epoch, 0, slots.EPOCHS - 1)
        if self.loaded is None:
            self.epoch = epoch
        elif epoch not in (self.loaded[0], self.finished):
            raise StateError(
                f"set_epoch({epoch}): the loaded state goes on in epoch "
                f"{self.loaded[0]}"
            )

    def load(
        self,
        state: Mapping[str, Any],
        field: str,
        last: int,
        size: int,
        alone: bool = False,
    ) -> None:
        """Takes a state that fits, whose place is ``field``, at most
        ``last``, each of ``size`` slots. ``alone``: the place says all, and
        the daemon's part may be missing. StateError: it is damaged; then
        nothing is changed."""
        try:
            loaded = (
                checks.whole("epoch", state["epoch"], 0, slots.EPOCHS - 1),
                checks.whole(field, state[field], 0, last),
            )
            finished = state["finished"]
        except (KeyError, TypeError, ValueError) as error:
            raise StateError(f"the state is damaged: {error}") from error
        run = state.get("run")
        if loaded[1] and not (
            list(run[:2]) == [loaded[0], loaded[1] * size]
            if isinstance(run, (list, tuple)) and run
            else alone
        ):
            raise StateError(
                f"the state is damaged: run={run!r} is not of epoch "
                f"{loaded[0]}, {field} {loaded[1]}"
            )
        self.loaded, self.finished = loaded, finished
        self.saved = {name: state.get(name) for name in ("run", "bitmap")}

    def begun(self, epoch: int) -> None:
        """The pass began, and is of that epoch."""
        self.loaded = self.finished = None
        self.epoch = epoch + 1


def check(state: Any, ours: Mapping[str, Any]) -> None:
    """A state must be of what ``ours`` says. StateError names a field."""
    if not isinstance(state, Mapping):
        raise StateError(f"a state is a dict, not a {type(state).__name__}")
    for field in ours:
        if state.get(field) != ours[field]:
            raise StateError(
                f"the state has {field}={state.get(field)!r}, here it is "
                f"{ours[field]!r}"
            )
