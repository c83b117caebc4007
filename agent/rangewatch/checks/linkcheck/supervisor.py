"""One rank's supervisor: takes tasks, has a worker do each, and reports the outcome. It outlives any worker."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence

import msgspec

from rangewatch.checks.linkcheck import worker
from rangewatch.checks.linkcheck.children import Child
from rangewatch.checks.linkcheck.faults import Fault
from rangewatch.checks.linkcheck.store import Store
from rangewatch.checks.linkcheck.tasks import PHASES, Member, Note, Outcome, Task
from rangewatch.checks.linkcheck.worker import LINGER_S, Part

POLL_S, POLL_LAST_S = 0.01, 0.2
STOP_POLL_S = 0.1
"""How often the store is asked whether the others have failed."""
SIGN_S = 1.0
"""How often the coordinator gets a sign that this supervisor lives."""
GRACE_S = 1.0
"""For a worker whose peers have failed to say what it sees of that."""
TEST_TIMEOUTS = 3
"""A whole test has so many timeouts of a phase: one that is slow everywhere is not waited for nine times."""
SILENCE_S = 30.0
"""Without a sign of the coordinator for so long, it is gone."""


class CoordinatorGone(Exception):
    """Rank 0's coordinator does not live any more."""


def serve(store: Store, member: Member, faults: Sequence[Fault]) -> None:
    """Do tasks until the last one. Raises `CoordinatorGone`, and `RuntimeError` when the store is gone."""
    store.arrive(member)
    number = 0
    while not (task := _next(store, number)).is_last:
        for index, group in enumerate(task.groups):
            if member.rank in group:
                part = Part(task, index, member.rank, member.local_rank, store.address, faults)
                store.put_outcome(number, _do(store, part))
        number += 1
    store.leave()


def _next(store: Store, number: int) -> Task:
    pause_s, beats, seen_s = POLL_S, -1, time.monotonic()
    while (task := store.task(number)) is None:
        time.sleep(pause_s)
        pause_s = min(1.2 * pause_s, POLL_LAST_S)
        if (now := store.beats()) != beats:
            beats, seen_s = now, time.monotonic()
        elif time.monotonic() - seen_s > SILENCE_S:
            raise CoordinatorGone(f"rank 0 has said nothing for {SILENCE_S:.0f} s")
    return task


def _do(store: Store, part: Part) -> Outcome:
    try:
        child = Child.fork(lambda send: worker.run(part, lambda note: send(msgspec.json.encode(note))), is_quiet=True)
    except OSError as error:  # no process, file or descriptor to be had: other ranks may still be tested
        store.stop(part.task.number, part.number_of_group)
        return Outcome(part.rank, "error", PHASES[0], f"no process can be started: {error.strerror}")
    try:
        watch = _Watch(part, child)
        outcome = watch.until_done(store)
        if outcome.state != "ok":
            store.stop(part.task.number, part.number_of_group)
        return outcome
    finally:
        child.close()


class _Watch:
    """Follows one worker to its end."""

    def __init__(self, part: Part, child: Child) -> None:
        self._part, self._child = part, child
        self._begin_s = self._phase_s = time.monotonic()
        self._phase = PHASES[0]
        self._noted: dict[str, object] = {}
        self._wrong: list[str] = []
        self._sources: set[int] = set()
        self._error = ""
        self._stopped_s: float | None = None
        self._stop_poll_s = self._sign_s = 0.0

    def until_done(self, store: Store) -> Outcome:
        """Read what the worker tells, until it ends or has to be ended."""
        while (lines := self._child.lines(0.05)) is not None:
            for line in lines:
                self._take(msgspec.json.decode(line, type=Note))
            if (now_s := time.monotonic()) >= self._sign_s:
                self._sign_s = now_s + SIGN_S
                store.sign(self._part.rank)
            if state := self._overdue(store):
                self._child.dump_stack()
                return self._outcome(state)
        self._child.wait(GRACE_S)
        return self._ended()

    def _take(self, note: Note) -> None:
        if note.phase:
            self._phase, self._phase_s = note.phase, time.monotonic()
        for name in ("device", "latency_s", "large_s"):
            if getattr(note, name) is not None:
                self._noted[name] = getattr(note, name)
        self._wrong += [note.wrong] if note.wrong else []
        self._sources |= set(note.sources)
        self._error = self._error or note.error

    def _overdue(self, store: Store) -> str:
        """Why the worker has to be ended now; "" for not yet."""
        now_s, timeout_s = time.monotonic(), self._part.task.timeout_s
        if self._phase == PHASES[-1]:
            # It waits for its peers and ends by itself, unless a driver holds it.
            return "hang" if now_s - self._phase_s > LINGER_S + timeout_s else ""
        if now_s - self._phase_s > timeout_s or now_s - self._begin_s > TEST_TIMEOUTS * timeout_s:
            return "hang"
        if self._stopped_s is None and now_s >= self._stop_poll_s:
            self._stop_poll_s = now_s + STOP_POLL_S
            if store.is_stopped(self._part.task.number, self._part.number_of_group):
                self._stopped_s = now_s
        return "stopped" if self._stopped_s is not None and now_s > self._stopped_s + GRACE_S else ""

    def _ended(self) -> Outcome:
        """What it means that the worker has closed its pipe."""
        status = self._child.status
        if status is not None and status < 0:
            return self._outcome("died", f"by {_name(-status)}")
        if self._error:
            return self._outcome("error", self._error)
        if self._phase != PHASES[-1]:
            return self._outcome("died", "without a word" if status is None else f"with exit status {status}")
        return self._outcome("wrong", self._wrong[0]) if self._wrong else self._outcome("ok")

    def _outcome(self, state: str, error: str = "") -> Outcome:
        log = "" if state in ("ok", "wrong") else self._child.log()
        fields = {"log": log, "sources": tuple(sorted(self._sources)), **self._noted}
        seconds_s = time.monotonic() - self._begin_s
        return Outcome(self._part.rank, state, self._phase, error, seconds_s, **fields)  # type: ignore[arg-type]


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
