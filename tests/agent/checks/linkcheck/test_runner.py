"""The coordinator's waiting, with supervisors that are silent."""

from __future__ import annotations

from typing import Any

import pytest

from rangewatch.checks.linkcheck import coordinator
from rangewatch.checks.linkcheck.tasks import Outcome, Task


class Silence:
    """A store of which rank 0 answers at its fifth sign of life, and rank 1 never gives one."""

    def __init__(self) -> None:
        self.given = 0

    def beat(self) -> None: ...

    def stop(self, number: int, group: int) -> None: ...

    def signs(self, rank: int) -> int:
        self.given += rank == 0
        return self.given if rank == 0 else 0

    def outcome_count(self, number: int) -> int:
        return int(self.given > 5)

    def outcome(self, number: int, rank: int) -> Outcome | None:
        return Outcome(0, "ok", "end") if rank == 0 and self.given > 5 else None


def test_a_silent_supervisor_is_given_up_long_before_the_timeout_and_one_with_signs_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(coordinator, "LISTEN_S", 0.05)
    monkeypatch.setattr(coordinator, "SILENT_S", 0.15)
    store: Any = Silence()
    task = Task(0, ((0,), (1,)), timeout_s=3600.0)
    alive, silent = coordinator._Gathering(store, task, {}).until_done()
    assert (alive.outcomes[0].state, silent.outcomes[1].state) == ("ok", "missing")
