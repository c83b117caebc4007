"""The agent of one attached model: puts the parts together, and owns start, flush, fork and exit.

The training thread calls the hooks, `close_step` and `log`, which write to memory only; all else is on threads of
`delivery`, `collectors` and `crash`. This is the only file that knows all the others.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any
from weakref import WeakSet

import msgspec
import torch

from rangewatch import collectors
from rangewatch.api.control import Control
from rangewatch.api.logged_values import LoggedValues
from rangewatch.api.on_alert import Alert, action_for
from rangewatch.api.process_end import ProcessEnd
from rangewatch.api.stop import Stopper
from rangewatch.collectors.runner import Runner
from rangewatch.core import limits
from rangewatch.core.guard import Guard, TrainingStopped, logger
from rangewatch.core.options import Options
from rangewatch.crash.watcher_start import CrashState
from rangewatch.delivery.batcher import Drops, PendingBatch, PendingEvents
from rangewatch.delivery.sender import Sender
from rangewatch.delivery.transport import Raised
from rangewatch.recording.cost import Cost
from rangewatch.recording.level import Recording
from rangewatch.recording.memory import layout
from rangewatch.recording.observer import Observer
from rangewatch.recording.step_buffer import Block, StepBuffer
from rangewatch.recording.tensor_names import TensorNames
from rangewatch.steps.phase_clock import PhaseClock
from rangewatch.wire.records import RankInfo

_STATS = {
    "allocated_bytes.all.current": "allocated_bytes", "allocated_bytes.all.peak": "allocated_peak_bytes",
    "reserved_bytes.all.current": "reserved_bytes", "reserved_bytes.all.peak": "reserved_peak_bytes",
    "active_bytes.all.current": "active_bytes", "inactive_split_bytes.all.current": "inactive_split_bytes",
    "requested_bytes.all.current": "requested_bytes", "num_alloc_retries": "alloc_retry_count", "num_ooms": "oom_count",
}  # fmt: skip
"""torch's names, and the ones under which they are sent."""

_ERRORS: tuple[type[BaseException], ...] = tuple(
    error
    for error in (getattr(torch, "OutOfMemoryError", None), getattr(torch.cuda, "OutOfMemoryError", None))
    if error is not None
)


def memory_at_failure(error: BaseException) -> dict[str, Any]:
    """Data of the event `failed`: `out_of_memory` and, on CUDA, the allocator's figures by device, in bytes and counts.

    Empty for other errors. The current figures are those of now: what the failed step held may be free again.
    """
    if not isinstance(error, _ERRORS):
        return {}
    data: dict[str, Any] = {"out_of_memory": True}
    with contextlib.suppress(Exception):  # a device may be in no state to be asked
        cuda: Any = torch.cuda
        if cuda.is_available() and cuda.is_initialized():
            data["devices"] = {str(device): _figures(device) for device in range(torch.cuda.device_count())}
    return data


def _figures(device: int) -> dict[str, int]:
    stats: dict[str, Any] = torch.cuda.memory_stats(device)
    found = {ours: int(stats[name]) for name, ours in _STATS.items() if name in stats}
    free_bytes, total_bytes = torch.cuda.mem_get_info(device)
    return found | {"free_bytes": int(free_bytes), "total_bytes": int(total_bytes)}


class Agent:
    """Everything of one attached model but its hooks. Called by the training thread."""

    def __init__(self, options: Options, info: RankInfo) -> None:
        self.options, self.info = options, info
        self.guard, self.drops = Guard(), Drops()
        self.names = TensorNames(histograms=options.histograms)
        self.step = options.start_step
        self.crash_state = CrashState(options, info, self.guard, self.add_event)
        shared_state = self.shared_state = self.crash_state.shared_state
        self._events = PendingEvents(shared_state, self.drops)
        self.names.added = shared_state.tensor
        self._buffer = StepBuffer(shared_state)
        self.cost = Cost(options.budget_percent)
        self.observer = Observer(
            self.names,
            self._buffer,
            self.cost,
            self.guard,
            forces_device=options.backend == "device",
            histograms=options.histograms,
        )
        self.observer.host.position = shared_state.cells
        self._logged = LoggedValues(self._buffer, self.observer, self.drops, self.guard)
        shared_state.open_step(self.step)
        self.recording = Recording(options)
        self.recording.begin_step(self.step)
        self.control = Control(self.recording, self.add_event)
        self.stopper = Stopper(options, info, self.names, self._buffer, self.observer)
        self.control.on_alert, self.control.stop = self._on_alert, self.stopper.ask
        self._sender = Sender(options, info, self.names, self.drops, self.guard)
        self.batched: list[Callable[[Block], None]] = [self.stopper.look_at]
        """Each is given what has been put into a batch, by the sender's thread."""
        self._sender.commanded, self._sender.batched = self.control.inbox.extend, self._look_at
        self._sender.leave, self._sender.ended = self._leave, self._ended
        self._sender.spool_opened = self.crash_state.start
        self._sender.spooling, self._sender.spooled = shared_state.sending, shared_state.sent
        self.runner = Runner(collectors.made(options, info, self.guard), self.guard, self.drops, self.add_event)
        self.runner.step, self.runner.ship = lambda: self.step, self._ship_samples
        self.runner.ship_every_s = lambda: self._sender.send_every_s
        self.in_forward: list[Callable[[], None]] = []
        """Each is called where a forward of the model begins; it may take itself from the list."""
        self.remove: Callable[[], None] = lambda: None
        """Takes all hooks away."""
        self.update_hooks: Callable[[], None] = lambda: None
        """Tells the hooks that something else is to be recorded."""
        self._end_lock = threading.Lock()
        self.phases = PhaseClock(self.cost, self.guard)
        self.phases.position = shared_state.cells
        self.phase_sources = self.phases.sources
        """Who knows of communication that training waits for, see `phase_clock.ExposedSource`; a list to append to."""
        self._process_end = ProcessEnd(self.finish_at_exit)
        self._last_ship_s = float("-inf")
        self._last_full_step = options.start_step
        self._has_failed = self._is_at_lowest = self._is_closed_early = self._is_at_exit = False
        _live.add(self)

    def start(self) -> None:
        """Start the thread, and tell the server that this rank is there."""
        self.add_event("attached", data={"options": self.options.public(), "versions": self.info.versions})
        self.guard.run("start", self.crash_state.open)
        if self.guard.run("start", self._sender.start):  # an interpreter that is ending starts no threads
            self.ship()
            self.guard.run("start", self.runner.start)
            self._process_end.watch()
        else:
            self.observer.is_active = False
            self.guard.run("start", self.runner.stop)  # of a process one agent sees its collectives: the next one may
            self.crash_state.end()

    def _on_alert(self, raised: Raised) -> str:
        alert = Alert(run=self.info.run, **msgspec.structs.asdict(raised))
        return action_for(self.options.on_alert, alert, self.guard)

    def add_event(self, kind: str, message: str = "", data: dict[str, Any] | None = None) -> None:
        """Ship an event with the next batch. From any thread."""
        self._events.add(self.step, kind, message, data)

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
        self._logged.close_step()

    def _open_step(self) -> None:
        is_other_level = self.control.begin_step(self.step) | self._lower_level()
        is_changed = self.recording.begin_step(self.step) or is_other_level
        if is_other_level:
            self.cost.forget()
        if is_changed:
            self.guard.run("recording", self.update_hooks)
        self.shared_state.open_step(self.step)
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
                self._logged.record(name, self.step, value)

    def log(self, values: Mapping[str, Any]) -> None:
        """The same for the user's values; one that cannot be recorded is a fault and takes no other with it.

        While the open step has nothing in it, a value belongs to the step just closed, if that has none of this name.
        """
        can_be_late = self.step > self.options.start_step and not self._buffer.is_observed()
        self._logged.log(values, self.step, can_be_late=can_be_late)

    def ship(self) -> None:
        """Hand everything that is closed to the sender."""
        self._last_ship_s = time.monotonic()
        self._process_end.pass_over()
        shipment = self._shipment()
        if not shipment.is_empty:
            self._sender.put(shipment)

    def finish(self) -> None:
        """Ship the rest, say goodbye, wait for the queue within bounds and end the thread. Later calls do nothing."""
        self._process_end.forget()
        self._end(self._sender.stop)
        self._sender.wait()

    def let_go(self) -> None:
        """The garbage collector has taken model and handle: the sender's thread sees it, and ends as `finish` does."""
        self._sender.has_left = True

    def _leave(self) -> None:
        self.guard.run("detach", self.remove)
        self._end(self._sender.begin_stop)

    def _end(self, stop: Callable[[float, Callable[[], PendingBatch]], None]) -> None:
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

    def finish_at_exit(self, error: BaseException | None) -> None:
        """At the end of the process, by an uncaught exception or not."""
        if error is not None:
            self.fail(error)
        self._is_at_exit = True
        self.finish()

    def fail(self, error: BaseException) -> None:
        """Training ends by `error`: unless that is a clean exit, the run ends as `failed` and not as `finished`."""
        if self.observer.is_active and not is_clean_exit(error):
            data = memory_at_failure(error)
            self._has_failed = self.guard.run("exit", lambda: self.add_event("failed", describe(error), data))

    def faults(self) -> dict[str, int]:
        """How many by place: of the agent, and of collectors that have a guard of their own."""
        guards = {id(guard): guard for guard in (self.guard, *self.runner.guards())}
        return {place: count for guard in guards.values() for place, count in dict(guard.counts).items()}

    def abandon(self) -> None:
        """In a forked child: do nothing from here on, and say nothing (the child may hold a lock of `logging`)."""
        self.observer.is_active = self.phases.is_on = False
        for guard in (self.guard, *self.runner.guards()):
            guard.silent = True
        self.crash_state.abandon()

    def _look_at(self, block: Block) -> None:
        for look in self.batched:
            look(block)

    def _shipment(self) -> PendingBatch:
        self._emit_changes()
        for step, seconds in self.observer.device.take_device_time_s().items():
            self._buffer.set_series("agent_device_time_s", step, seconds)
        for step, times in self.phases.take_late():
            for name, value in times.items():
                self._buffer.set_series(name, step, value)
        count, block = len(self.names), self._buffer.take()
        copies = self.observer.device.take(count)
        events, event_count = self._events.take()
        return PendingBatch(block, events, count, copies, self.runner.take(), (block.number, event_count))

    def _ship_samples(self) -> None:
        """From the collectors' thread."""
        events, event_count = self._events.take()
        self._sender.put_without_rows(events, self.runner.take(), (0, event_count))

    def _goodbye(self) -> PendingBatch:
        """Made by the sender's thread, while the training thread waits for it."""
        if not self._has_failed:
            self.add_event("finished", data={"skipped": self.observer.skipped})
        self.phases.end()
        self.shared_state.end(
            layout.FAILED if self._has_failed else layout.AT_EXIT if self._is_at_exit else layout.DETACHED
        )
        return self._shipment()

    def _ended(self) -> None:
        """By the sender's thread, at its end."""
        self._process_end.forget()
        self.crash_state.end()

    def _is_full_next(self) -> bool:
        if self.recording.is_traced:
            return True
        since = self.step - self._last_full_step
        is_after_nonfinite = self.observer.host.saw_nonfinite and since >= limits.NONFINITE_FULL_EVERY
        if since < self.options.full_every and not is_after_nonfinite:
            return False
        self._last_full_step = self.step
        return True

    def _emit_changes(self) -> None:
        """An event for each account that changed since the last shipment, with its totals since attach."""
        self.observer.before_shipping()
        if self.step > self.options.start_step:
            self.observer.note_unobserved()
        accounts: dict[str, Mapping[str, Any]] = {
            "dropped": self.drops.counts,
            "fault": self.faults(),
            "not_observed": self.observer.not_observed,
            "other_values": self.observer.other_values,
            "not_fused": {device: reason for device, reason in self.observer.device.why_not_fused().items() if reason},
        }
        self._events.emit_changes(self.step, accounts)


def describe(error: BaseException) -> str:
    """Type and message of an exception; of `sys.exit(...)` in an `except` clause also what was caught there."""
    text = type(error).__name__
    with contextlib.suppress(Exception):  # whatever its `__str__` does, that it has failed is known
        text = f"{text}: {error}"
    if isinstance(error, SystemExit) and error.__context__ is not None:
        text += f" (after {describe(error.__context__)})"
    return text


def is_clean_exit(error: BaseException) -> bool:
    """`sys.exit()` is an exception, and no failure."""
    return isinstance(error, SystemExit) and not error.code


_live: WeakSet[Agent] = WeakSet()


def _step_aside_in_child() -> None:
    for agent in _live:
        agent.abandon()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_step_aside_in_child)
