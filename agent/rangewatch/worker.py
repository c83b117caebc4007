"""The agent of one attached model: puts the parts together, and owns start, flush, fork and exit.

The training thread calls the hooks, `close_step` and `log`, which write to memory only; `Sender` has the one thread.
This is the only file that knows all the others.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any
from weakref import WeakSet

from rangewatch import collectors, limits
from rangewatch.batcher import Drops, Shipment
from rangewatch.collectors.runner import Runner
from rangewatch.control import Control
from rangewatch.cost import Cost
from rangewatch.guard import Guard, TrainingStopped, logger
from rangewatch.observer import Observer
from rangewatch.options import Options
from rangewatch.phase_clock import PhaseClock
from rangewatch.phase_clock_spent import SERIES as PHASES
from rangewatch.recording import Recording
from rangewatch.records import Event, RankInfo
from rangewatch.sender import Sender
from rangewatch.step_buffer import StepBuffer
from rangewatch.stop import Stopper
from rangewatch.tensor_names import TensorNames

OWN_SERIES = frozenset(
    {"skipped_step", "found_inf", "loss_scale", "step_time_s", "wall_time_s", "agent_time_s", "agent_device_time_s"}
    | set(PHASES.values())
)
"""Series that the agent records itself: the user's values cannot have these names."""


class Agent:
    """Everything of one attached model but its hooks. Called by the training thread."""

    def __init__(self, options: Options, info: RankInfo) -> None:
        self.options, self.info = options, info
        self.guard, self.drops = Guard(), Drops()
        self.names = TensorNames(histograms=options.histograms)
        self.step = options.start_step
        self._buffer = StepBuffer()
        self.cost = Cost(options.budget_percent)
        self.observer = Observer(
            self.names,
            self._buffer,
            self.cost,
            self.guard,
            forces_device=options.backend == "device",
            histograms=options.histograms,
        )
        self.recording = Recording(options)
        self.recording.begin_step(self.step)
        self.control = Control(self.recording, self.add_event)
        self.stopper = Stopper(options, info, self.names, self._buffer, self.observer)
        self._sender = Sender(options, info, self.names, self.drops, self.guard)
        self._sender.commanded, self._sender.batched = self.control.inbox.extend, self.stopper.look_at
        self._sender.leave, self._sender.ended = self._leave, partial(atexit.unregister, self.finish_at_exit)
        self.runner = Runner(collectors.made(options, info), self.guard, self.drops, self.add_event)
        self.runner.step, self.runner.ship = lambda: self.step, self._ship_samples
        self.runner.ship_every_s = lambda: self._sender.send_every_s
        self.remove: Callable[[], None] = lambda: None
        """Takes all hooks away."""
        self.tell_hooks: Callable[[], None] = lambda: None
        """Tells the hooks that something else is to be recorded."""
        self._end_lock, self._events_lock = threading.Lock(), threading.Lock()
        self.phases = PhaseClock(self.cost, self.guard)
        self.phase_sources = self.phases.sources
        """Who knows of communication that training waits for, see `phase_clock.ExposedSource`; a list to append to."""
        self._last_ship_s = float("-inf")
        self._last_full_step = options.start_step
        self._events: list[Event] = []
        self._told: dict[str, dict[str, Any]] = {}
        self._has_failed = self._is_at_lowest = self._is_closed_early = False
        self._logged: set[str] = set()
        self._logged_before: set[str] = set()
        """Names logged for the step just closed, before it closed or after."""
        self._refused: set[str] = set()
        _live.add(self)

    def start(self) -> None:
        """Start the thread, and tell the server that this rank is there."""
        self.add_event("attached", data={"options": self.options.public(), "versions": self.info.versions})
        if self.guard.run("start", self._sender.start):  # an interpreter that is ending starts no threads
            self.ship()
            self.guard.run("start", self.runner.start)
            atexit.register(self.finish_at_exit)
        else:
            self.observer.is_active = False

    def add_event(self, kind: str, message: str = "", data: dict[str, Any] | None = None) -> None:
        """Ship an event with the next batch. From any thread."""
        event = Event(kind, time.time_ns(), self.step, _sendable(message), data or {})
        with self._events_lock:
            self._events.append(event)

    def close_step(self) -> None:
        """The open step is over: keep its row, ship when it is time, open the next."""
        if not self.observer.is_active:
            return
        was_closed_early, self._is_closed_early = self._is_closed_early, False
        if was_closed_early and not self._buffer.is_observed():
            return  # training was stopped before its update
        began_ns, step = time.perf_counter_ns(), self.step
        self._end_step()
        self.cost.add(began_ns)
        self._stop(self.stopper.after(step))

    def stop_at_overflow(self) -> None:
        """Raise `NumericOverflow` when that was asked for and something was not finite; its step is closed first."""
        error = self.stopper.overflow(self.step)
        if error is not None:
            self._is_closed_early = True
            self._end_step()
            self._stop(error)

    def _end_step(self) -> None:
        for read in self.observer.before_closing:
            self.guard.run("end of step", read)
        error = self.stopper.overflow(self.step)
        is_traced = self.control.end_step(self.step)
        self._keep_step(self.step)
        self.step += 1
        self._open_step()
        if is_traced or self._buffer.is_full or self._is_time_to_ship():
            self.ship()
        self._stop(error)

    def _is_time_to_ship(self) -> bool:
        is_group = self.step % self.options.ship_every == 0  # what is split is no longer merged
        if not is_group or (self.options.ship_interval_s and self._sender.is_behind):
            return False  # while a batch waits for its answer the next one grows: a busy server gets fewer
        interval_s = max(self.options.ship_interval_s, self._sender.send_every_s)
        return time.monotonic() - self._last_ship_s >= interval_s

    def _stop(self, error: TrainingStopped | None) -> None:
        if error is not None:
            self.fail(error)
            self.ship()
            raise error

    def _keep_step(self, step: int) -> None:
        times = self.phases.end_step(step)
        is_usual = not (self.observer.host.is_full or self.recording.is_traced)
        agent_time_s = self.cost.end_step(self.phases.step_time_s, is_usual=is_usual)
        if agent_time_s is not None:
            times["agent_time_s"] = agent_time_s
        for name, value in times.items():
            self._buffer.set_series(name, step, value)
        self._buffer.close(step, is_traced=self.recording.is_traced)
        self._logged, self._logged_before = set(), self._logged

    def _open_step(self) -> None:
        is_other_level = self.control.begin_step(self.step) | self._lower_level()
        is_changed = self.recording.begin_step(self.step) or is_other_level
        if is_other_level:
            self.cost.forget()
        if is_changed:
            self.guard.run("recording", self.tell_hooks)
        self.observer.begin_step(is_full=self._is_full_next())
        for begin in self.observer.after_opening:
            self.guard.run("start of step", partial(begin, self.step))
        self.cost.begin_step(self.step)
        self.observer.device.times_step = self.step if self.cost.is_on else None

    def _lower_level(self) -> bool:
        share = self.cost.excess()
        if share is None:
            return False
        self.cost.forget()
        was = self.recording.kinds
        is_lowered = self.recording.lower()
        kinds = ", ".join(sorted(self.recording.kinds))
        what = f"{100 * share:.1f} % of a step is the agent's; the budget is {self.options.budget_percent:g} %"
        then = f"from step {self.step} on it records {kinds} only" if is_lowered else f"it records {kinds} only already"
        message = f"{what}: {then}. attach(budget_percent=100) lets it be"
        if is_lowered or not self._is_at_lowest:
            logger.warning("rangewatch: %s", message)
            self.add_event("level", message, {"kinds": sorted(self.recording.kinds), "was": sorted(was)})
        self._is_at_lowest = not is_lowered
        return is_lowered

    def record(self, values: Mapping[str, Any]) -> None:
        """Record values of the open step: numbers, or tensors of one element wherever they are."""
        if self.observer.is_active:
            for name, value in values.items():
                self._record(name, self.step, value)

    def log(self, values: Mapping[str, Any]) -> None:
        """The same for the user's values; one that cannot be recorded is a fault and takes no other with it.

        While the open step has nothing in it, a value belongs to the step just closed, if that has none of this name.
        """
        can_be_late = self.step > self.options.start_step and not self._buffer.is_observed()
        for name, value in values.items():
            if name in OWN_SERIES or name.startswith("loss_scale/"):
                self._refuse(name)
                continue
            is_late = can_be_late and name not in self._logged_before
            (self._logged_before if is_late else self._logged).add(name)
            self.guard.run("log", partial(self._record, _series_name(name), self.step - is_late, value))

    def ship(self) -> None:
        """Hand everything that is closed to the sender."""
        self._last_ship_s = time.monotonic()
        shipment = self._shipment()
        if not shipment.is_empty:
            self._sender.put(shipment)

    def finish(self) -> None:
        """Ship the rest, say goodbye, wait for the queue within bounds and end the thread. Later calls do nothing."""
        atexit.unregister(self.finish_at_exit)
        self._end(self._sender.stop)
        self._sender.wait()

    def let_go(self) -> None:
        """The garbage collector has taken model and handle: the sender's thread sees it, and ends as `finish` does."""
        self._sender.has_left = True

    def _leave(self) -> None:
        self.guard.run("detach", self.remove)
        self._end(self._sender.begin_stop)

    def _end(self, stop: Callable[[float, Callable[[], Shipment]], None]) -> None:
        # Not waiting for the lock: who holds it does the same, and in a forked child nobody may ever release it.
        if not self.observer.is_active or not self._end_lock.acquire(blocking=False):
            return
        self.observer.is_active = False
        self.guard.run("finish", self.runner.stop)
        self.guard.run("finish", self.ship)
        timeout_s = self.options.flush_timeout_s
        if not self._sender.is_reachable:
            timeout_s = min(limits.FLUSH_TIMEOUT_AWAY_S, timeout_s)
        stop(timeout_s, self._goodbye)

    def finish_at_exit(self) -> None:
        """At the end of the process, by an uncaught exception or not."""
        error = getattr(sys, "last_value", None)
        if error is not None:
            self.fail(error)
        self.finish()

    def fail(self, error: BaseException) -> None:
        """Training ends by `error`: unless that is a clean exit, the run ends as `failed` and not as `finished`."""
        if self.observer.is_active and not is_clean_exit(error):
            self._has_failed = self.guard.run("exit", lambda: self.add_event("failed", describe(error)))

    def abandon(self) -> None:
        """In a forked child: do nothing from here on, and say nothing (the child may hold a lock of `logging`)."""
        self.observer.is_active = self.phases.is_on = False
        self.guard.silent = True

    def _shipment(self) -> Shipment:
        self._tell_changes()
        for step, seconds in self.observer.device.take_device_time_s().items():
            self._buffer.set_series("agent_device_time_s", step, seconds)
        for step, times in self.phases.take_late():
            for name, value in times.items():
                self._buffer.set_series(name, step, value)
        count, block = len(self.names), self._buffer.take()
        copies = self.observer.device.take(count)
        return Shipment(block, self._take_events(), count, copies, self.runner.take())

    def _take_events(self) -> tuple[Event, ...]:
        with self._events_lock:
            events, self._events = tuple(self._events), []
        return events

    def _ship_samples(self) -> None:
        """From the collectors' thread."""
        self._sender.put_without_rows(self._take_events(), self.runner.take())

    def _goodbye(self) -> Shipment:
        """Made by the sender's thread, while the training thread waits for it."""
        if not self._has_failed:
            self.add_event("finished", data={"skipped": self.observer.skipped})
        self.phases.end()
        return self._shipment()

    def _record(self, name: str, step: int, value: Any) -> None:
        if not self.observer.is_on_device(value):
            self._buffer.set_series(name, step, _as_float(value))
        elif not self.observer.device.put_scalar(name, step, value):
            self.drops.add("too_many_values")

    def _refuse(self, name: str) -> None:
        self.drops.add("reserved_name")
        if name not in self._refused:
            self._refused.add(name)
            logger.warning("rangewatch: log(%s=...) is not recorded: the agent records a series of that name", name)

    def _is_full_next(self) -> bool:
        if self.recording.is_traced:
            return True
        since = self.step - self._last_full_step
        is_after_nonfinite = self.observer.host.saw_nonfinite and since >= limits.NONFINITE_FULL_EVERY
        if since < self.options.full_every and not is_after_nonfinite:
            return False
        self._last_full_step = self.step
        return True

    def _tell_changes(self) -> None:
        """An event for each account that changed since the last shipment, with its totals since attach."""
        self.observer.before_shipping()
        if self.step > self.options.start_step:
            self.observer.note_unobserved()
        accounts: dict[str, Mapping[str, Any]] = {
            "dropped": self.drops.counts,
            "fault": self.guard.counts,
            "not_observed": self.observer.not_observed,
            "other_values": self.observer.other_values,
            "not_fused": {device: reason for device, reason in self.observer.device.why_not_fused().items() if reason},
        }
        for kind, account in accounts.items():
            now = dict(list(account.items())[: limits.ACCOUNT_NAMES])
            if now != self._told.get(kind, {}):
                self._told[kind] = now
                self.add_event(kind, f"{len(account)} names" if len(account) > len(now) else "", dict(now))


def _sendable(text: str) -> str:
    """Without what UTF-8 or a database cannot hold: an exception's message may be anything."""
    return text[: limits.MESSAGE_CHARACTERS].encode("utf-8", "replace").decode().replace("\0", "?")


def _series_name(name: str) -> str:
    return _sendable(name)[: limits.NAME_CHARACTERS]


def _as_float(value: Any) -> float:
    return float(value.detach()) if hasattr(value, "detach") else float(value)


def describe(error: BaseException) -> str:
    """Type and message of an exception."""
    return f"{type(error).__name__}: {error}"


def is_clean_exit(error: BaseException) -> bool:
    """`sys.exit()` is an exception, and no failure."""
    return isinstance(error, SystemExit) and not error.code


_live: WeakSet[Agent] = WeakSet()


def _step_aside_in_child() -> None:
    for agent in _live:
        agent.abandon()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_step_aside_in_child)
