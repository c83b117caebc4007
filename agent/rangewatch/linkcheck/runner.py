"""The coordinator's side of a test: gives it to the supervisors, and waits for what became of it on each rank."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence

from rangewatch.linkcheck.group_result import GroupResult
from rangewatch.linkcheck.store import Store
from rangewatch.linkcheck.supervisor import GRACE_S, TEST_TIMEOUTS
from rangewatch.linkcheck.tasks import Outcome, Task

POLL_S = 0.01
ANSWER_S = 5.0
"""A supervisor that lives answers this soon after its group was stopped: it looks ten times a second."""
LISTEN_S = 1.0
SILENT_S = 10.0
"""A supervisor without a sign of life for so long is gone, with its host maybe. It gives one a second; a worker that
cannot be killed keeps it busy for some more."""
PATIENCE, PATIENCE_ALONE, PATIENCE_LEAST_S = 10.0, 3.0, 5.0
"""A group hangs when it takes this many times as long as the slowest that went well (of its size, or for its
size), and as the slowest rank alone (a GPU may take seconds to wake), and at least so many seconds."""


class Runner:
    """Numbers tests and runs them one after the other."""

    def __init__(self, store: Store, timeout_s: float) -> None:
        self._store, self._timeout_s = store, timeout_s
        self._number = 0
        self._slowest_s: dict[int, float] = {}

    def test(self, groups: Sequence[tuple[int, ...]], backend: str, large_bytes: int) -> list[GroupResult]:
        """Test groups that share no rank, all at once; what became of each, in their order."""
        task = Task(self._number, tuple(groups), backend, self._timeout_s, large_bytes)
        self._number += 1
        self._store.put_task(task)
        return _Gathering(self._store, task, self._slowest_s).until_done()

    def end(self) -> None:
        """There are no more tests."""
        self._store.put_task(Task(self._number, is_last=True))


class _Gathering:
    """Waits for the outcomes of one task, and no longer than is sensible."""

    def __init__(self, store: Store, task: Task, slowest_s: dict[int, float]) -> None:
        self._store, self._task, self._slowest_s = store, task, slowest_s
        self._begin_s = time.monotonic()
        self._came: list[dict[int, Outcome]] = [{} for _ in task.groups]
        self._stopped_s: list[float | None] = [None] * len(task.groups)
        self._signs: dict[int, tuple[int, float]] = {}
        self._listen_s = self._begin_s + LISTEN_S

    def until_done(self) -> list[GroupResult]:
        """All groups, complete: a rank that never answers is `missing`."""
        count = -1
        while open_groups := [index for index in range(len(self._came)) if self._pending(index)]:
            self._store.beat()
            if (now := self._store.outcome_count(self._task.number)) != count:
                count = now
                self._take(open_groups)
            else:
                time.sleep(POLL_S)
            self._listen(open_groups)
            for index in open_groups:
                self._press(index)
        return [GroupResult(came) for came in self._came]

    def _pending(self, index: int) -> list[int]:
        return [rank for rank in self._task.groups[index] if rank not in self._came[index]]

    def _take(self, indices: Collection[int]) -> None:
        for index in indices:
            for rank in self._pending(index):
                if (outcome := self._store.outcome(self._task.number, rank)) is not None:
                    self._came[index][rank] = outcome
            if not self._pending(index):
                self._count_duration(index)

    def _count_duration(self, index: int) -> None:
        if all(each.state == "ok" for each in self._came[index].values()):
            size, took_s = len(self._came[index]), time.monotonic() - self._begin_s
            self._slowest_s[size] = max(self._slowest_s.get(size, 0.0), took_s)

    def _listen(self, indices: Collection[int]) -> None:
        """Give up on ranks whose supervisors are silent: killed, stopped, or on a host that is gone."""
        now_s = time.monotonic()
        if now_s < self._listen_s:
            return
        self._listen_s = now_s + LISTEN_S
        for index in indices:
            for rank in self._pending(index):
                signs = self._store.signs(rank)
                known, since_s = self._signs.get(rank, (-1, now_s))
                if signs != known:
                    self._signs[rank] = (signs, now_s)
                elif now_s - since_s > SILENT_S:
                    self._came[index][rank] = Outcome(rank, "missing")

    def _press(self, index: int) -> None:
        """Stop a group that takes far longer than others did, and give up on ranks that do not even answer then."""
        pending, now_s = self._pending(index), time.monotonic()
        has_failed = any(each.state != "ok" for each in self._came[index].values())
        if (
            pending
            and self._stopped_s[index] is None
            and (has_failed or now_s - self._begin_s > self._patience_s(index))
        ):
            self._store.stop(self._task.number, index)
            self._stopped_s[index] = now_s
        stopped_s = self._stopped_s[index]
        if stopped_s is not None and now_s - stopped_s > ANSWER_S + GRACE_S:
            self._came[index] |= {rank: Outcome(rank, "missing") for rank in pending}

    def _patience_s(self, index: int) -> float:
        bound_s = TEST_TIMEOUTS * self._task.timeout_s + GRACE_S
        size = len(self._task.groups[index])
        others = [took_s * max(size / other, 1.0) for other, took_s in self._slowest_s.items() if other > 1]
        if size == 1 or not others:
            return bound_s
        usual_s = self._slowest_s.get(size, max(others))
        alone_s = PATIENCE_ALONE * self._slowest_s.get(1, 0.0)
        return min(bound_s, max(PATIENCE * usual_s, alone_s, PATIENCE_LEAST_S))
