"""The agent of one attached model: puts the parts together, and owns start, flush, fork and exit.

The training thread calls the hooks, `close_step` and `log`, which write to memory only; all else is on threads of
`delivery`, `collectors` and `crash`. This is the only file that knows all the others.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote
from weakref import WeakKeyDictionary, WeakSet, ref

import torch
from torch import nn

from rangewatch import collectors
from rangewatch.api.control import Control
from rangewatch.api.other_jobs import warn_of_another
from rangewatch.api.process_end import ProcessEnd
from rangewatch.api.stop import Stopper
from rangewatch.collectors.runner import Runner
from rangewatch.core import limits
from rangewatch.core.guard import Guard, TrainingStopped, logger
from rangewatch.core.options import Options
from rangewatch.crash.memory import layout
from rangewatch.crash.out_of_memory import failure_details
from rangewatch.crash.watcher_start import CrashState
from rangewatch.delivery.batcher import PendingBatch
from rangewatch.delivery.sender import Sender
from rangewatch.delivery.transport import Command, RunHealth
from rangewatch.hooks.model_hooks import ModelHooks
from rangewatch.recording.events import Drops, Events, OpenStep
from rangewatch.recording.in_use import InUseReader, formats_in_use
from rangewatch.recording.level import Cost, Recording
from rangewatch.recording.logged_values import LoggedValues
from rangewatch.recording.nonfinite.batch_rows import Batches
from rangewatch.recording.nonfinite.nonfinite_context import NonfiniteContext
from rangewatch.recording.observer import ForwardListener, InputListener, Observer, is_capturing
from rangewatch.recording.rows.step_buffer import EMPTY_BLOCK, Block, StepBuffer
from rangewatch.recording.scale_schedule import ScaleSchedule
from rangewatch.recording.tensor_names import TensorNames
from rangewatch.recording.whatif import WhatIfReader
from rangewatch.steps.phase_clock import PhaseClock
from rangewatch.trackers.mirrors import Mirrors
from rangewatch.wire.records import RankInfo

_NoTorchFunction = torch._C.DisableTorchFunctionSubclass


class Agent:
    """Everything of one attached model but its hooks. Called by the training thread."""

    def __init__(self, options: Options, info: RankInfo, optimizers: Sequence[Any] = ()) -> None:
        self.options, self.info = options, info
        self.guard, self.drops = Guard(), Drops()
        self.open_step = OpenStep(options.start_step)
        self.crash_state = CrashState(options, info, self.guard)
        mirror = self.mirror = self.crash_state.shared_state
        self.events = Events(self.open_step, mirror, self.drops)
        self.names = TensorNames(mirror, histograms=options.histograms, sketched=options.sketch_every > 0)
        self._buffer = StepBuffer(mirror)
        self.cost = Cost(options.budget_percent)
        self.fqns: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()
        """The clean name of each module that is, or could be, hooked."""
        self.nonfinite = NonfiniteContext(
            self.names, self.guard, options.allow_inf, self.fqns, optimizers, self.open_step, self.events
        )
        self.observer = Observer(
            self.names,
            self._buffer,
            self.cost,
            self.guard,
            forces_device=options.backend == "device",
            histograms=options.histograms,
            reads_graphs=options.cuda_graphs,
            nonfinite=self.nonfinite,
        )
        self.whatif = WhatIfReader(self.names, self._buffer.row, self.guard, options.whatif_every)
        self.observer.host.due_readers.append(self.whatif)
        self.observer.step_readers.append(self.whatif)
        self.in_use = InUseReader(self.names, self._buffer.row, self.guard, options.formats)
        if options.formats:
            self.observer.host.due_readers.append(self.in_use)
            self.observer.step_readers.append(self.in_use)
        self.values = LoggedValues(self._buffer, self.observer, self.drops, self.guard)
        self.batches = Batches(self.names, self.events, self.drops)
        mirror.open_step(self.step)
        self.recording = Recording(options)
        self.recording.begin_step(self.step)
        self.scale_schedule = ScaleSchedule(self.observer.host, self.recording, options.scales_every)
        self.observer.step_readers.append(self.scale_schedule)
        self.stopper = Stopper(options, info, self.names, self._buffer, self.observer)
        address = run_address(options.url, info.run)
        self.mirrors = Mirrors(options, info, address, self.names, self.drops, self.guard)
        self.control = Control(
            self.recording, self.whatif, self.events, self.fqns, self.stopper, options, info.run, self.guard,
            self.mirrors,
        )  # fmt: skip
        self._sender = Sender(options, info, self.names, self.drops, self.guard, mirror, self)
        made = collectors.made(options, info, self.guard)
        if self.crash_state.stderr is not None:
            made.append(self.crash_state.stderr)
        self.runner = Runner(made, self.guard, self.drops, self.events, self.open_step, self)
        self.in_forward: list[ForwardListener] = []
        """They hear where a forward of the model begins; they may take themselves from the list."""
        self.of_inputs: list[InputListener] = []
        """The same for what it is given."""
        self.hooks: ModelHooks | None = None
        """Those on the model, once they are there."""
        self.at_end: list[Callable[[], None]] = []
        """Called before the last rows are shipped."""
        self.parts: list[ref[nn.Module]] = []
        """The children of the model."""
        self.undo = contextlib.ExitStack()
        """Takes all hooks away."""
        self._end_lock = threading.Lock()
        self.phases = PhaseClock(self.cost, self.guard, mirror.cells)
        self.phase_sources = self.phases.sources
        """Who knows of communication that training waits for, see `phase_clock.ExposedSource`; a list to append to."""
        self._process_end = ProcessEnd(self)
        self._last_ship_s = float("-inf")
        self._last_full_step = options.start_step
        self._has_failed = self._is_at_lowest = self._is_closed_early = self._is_at_exit = False
        self._has_said_not_read = False
        _live.add(self)

    @property
    def step(self) -> int:
        """The open step."""
        return self.open_step.number

    @property
    def send_every_s(self) -> float:
        """Least seconds between two batches, as the server asks."""
        return self._sender.send_every_s

    def loss_is_scaled(self) -> None:
        """A loss scaler is in use that was not known when the run began: what it skips stops nobody."""
        self.stopper.is_loss_scaled = True
        self.mirrors.loss_is_scaled()

    def start(self) -> None:
        """Start the thread, and tell the server that this rank is there."""
        self.events.add("attached", data={"options": self.options.public(), "versions": self.info.versions})
        if self.options.formats:
            self.events.add(formats_in_use(self.options.formats))
        self.guard.run("start", partial(self.crash_state.open, self.events))
        if self.guard.run("start", self._sender.start):  # an interpreter that is ending starts no threads
            self.ship()
            self.guard.run("start", self.runner.start)
            self.guard.run("mirror", self.mirrors.start)
            self._process_end.watch()
        else:
            self.observer.is_active = False
            self.guard.run("start", self.runner.stop)  # of a process one agent sees its collectives: the next one may
            self.crash_state.end()

    def close_step(self, error: TrainingStopped | None = None) -> None:
        """The open step is over: keep its row, open the next, ship when it is time.

        `error`: what training is stopped by before the update of this step, raised when all is done.
        """
        if not self.observer.is_active or is_capturing():  # of a graph that is captured no step is over, and none ran
            return
        self._process_end.pass_over_handled()
        was_closed_early, self._is_closed_early = self._is_closed_early, error is not None
        if was_closed_early and error is None and not self._buffer.is_observed():
            return  # training was stopped before its update
        began_ns, step, is_traced = time.perf_counter_ns(), self.step, self.recording.is_traced
        for reader in self.observer.step_readers:
            self.guard.run("end of step", reader.end_step)
        error = error or self.stopper.overflow(step)
        is_trace_over = self.control.end_step(step)
        self.guard.run("log", partial(self.values.close_step, self.phases.forward_count))
        times = self.phases.end_step(step)
        sketches = self.observer.sketches
        has_read = self.whatif.has_read or self.in_use.has_read or self.scale_schedule.has_read
        is_more = self.observer.host.is_full or has_read or (sketches is not None and sketches.is_due)
        is_usual = not (is_more or is_traced)
        agent_time_s = self.cost.end_step(self.phases.step_time_s, is_usual=is_usual)
        if agent_time_s is not None:
            times["agent_time_s"] = agent_time_s
        for name, value in times.items():
            self._buffer.set_series(name, step, value)
        self._buffer.close(step, is_traced=is_traced)
        self.mirrors.end_step()
        self.open_step.number += 1
        self._open_step()
        if is_trace_over or self._buffer.is_full or self.observer.device.is_full or self._is_time_to_ship():
            self.ship()
        self.cost.add(began_ns)
        self._stop(error or self.stopper.after(step))

    def stop_at_overflow(self) -> None:
        """Raise `NumericOverflow` when that was asked for and something was not finite; its step is closed first."""
        error = self.stopper.overflow(self.step)
        if error is not None:
            self.close_step(error)

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

    def _open_step(self) -> None:
        self._say_what_is_not_read()
        is_other_level = self.control.begin_step(self.step) | self._lower_level()
        is_changed = self.recording.begin_step(self.step) or is_other_level
        if is_other_level:
            self.cost.forget()
        if is_changed and self.hooks is not None:
            self.guard.run("recording", self.hooks.record)
        self.mirror.open_step(self.step)
        self.observer.begin_step(is_full=self._is_full_next())
        for reader in self.observer.step_readers:
            self.guard.run("start of step", partial(reader.begin_step, self.step))
        self.cost.begin_step(self.step, self.recording.every)
        self.observer.device.times_step = self.step if self.cost.is_on else None

    def _say_what_is_not_read(self) -> None:
        message = self.recording.not_read
        if message and not self._has_said_not_read:
            self._has_said_not_read = True
            self.events.add("level", message, {"kinds": sorted(self.recording.kinds)})
            if self.info.rank == 0:
                logger.warning("rangewatch: %s", message)

    def _lower_level(self) -> bool:
        share = self.cost.excess()
        if share is None:
            return False
        self.cost.forget()
        was = self.recording.kinds
        less = self.recording.lower(share / self.cost.budget)
        what = f"{100 * share:.1f} % of a step is the agent's; the budget is {self.options.budget_percent:g} %"
        already = f"it records {', '.join(sorted(was))} only already"
        then = f"from step {self.step} on {less}" if less else already
        message = f"{what}: {then}. attach(budget_percent=100) lets it be"
        if less or not self._is_at_lowest:
            logger.warning("rangewatch: %s", message)
            data = {"kinds": sorted(self.recording.kinds), "was": sorted(was), "every": self.recording.every}
            self.events.add("level", message, data)
        self._is_at_lowest = not less
        return bool(less)

    def record(self, values: Mapping[str, Any]) -> None:
        """Record values of the open step: numbers, or tensors of one element wherever they are."""
        if self.observer.is_active:
            for name, value in values.items():
                self.values.record(name, self.step, value)

    def log(self, values: Mapping[str, Any], caller: int | None) -> None:
        """The same for the user's values, see `LoggedValues.log`; `caller`: a number for the line that calls."""
        is_first = self.step == self.options.start_step
        forwards = 0 if self.phases.has_backward else self.phases.forward_count
        with _NoTorchFunction():  # a subclass may make anything of what is asked of it
            self.values.log(values, self.step, caller, forwards, is_between=self._is_between(), is_first=is_first)

    def batch(self, ids: Any, losses: Any, caller: int) -> None:
        """The rows of the data that a step is made of, see `Handle.batch`."""
        is_first = self.step == self.options.start_step
        self.batches.add(self.step, ids, losses, caller, is_between=self._is_between(), is_first=is_first)

    def _is_between(self) -> bool:
        return not (self._buffer.is_observed() or self.phases.has_begun)

    def ship(self) -> None:
        """Hand everything that is closed to the sender."""
        self._last_ship_s = time.monotonic()
        self._process_end.pass_over()
        self._emit_changes()
        for step, cost in self.observer.device.take_device_costs().items():
            self._buffer.set_series("agent_device_time_s", step, cost.seconds)
            self.cost.add_device(step, cost)
        for step, times in self.phases.take_late():
            for name, value in times.items():
                self._buffer.set_series(name, step, value)
        count, block = len(self.names), self._buffer.take()
        copies = self.observer.device.take(count)
        events, event_count = self.events.take()
        shipment = PendingBatch(block, events, count, copies, self.runner.take(), (block.number, event_count))
        if not shipment.is_empty:
            self._sender.batcher.put(shipment)

    def finish(self) -> None:
        """Ship the rest, say goodbye, wait for the queue within bounds and end the thread. Later calls do nothing."""
        self._process_end.forget()
        self._end()
        self._sender.wait()
        self.mirrors.wait()

    def let_go(self) -> None:
        """The garbage collector has taken model and handle: the sender's thread sees it, and ends as `finish` does."""
        self._sender.has_left = True

    def remove(self) -> None:
        """Take all hooks away."""
        self.undo.close()

    def leave(self) -> None:
        """By the sender's thread: nobody holds model or handle any more."""
        if any(each() is not None for each in self.parts):
            logger.warning(
                "rangewatch: run %r ends at step %d: the module that attach was given is gone, though parts of it "
                "live. Keep a reference to it as long as it is to be watched",
                self.info.run,
                self.step,
            )
        self.guard.run("detach", self.remove)
        self._end()

    def _end(self) -> None:
        # Not waiting for the lock: who holds it does the same, and in a forked child nobody may ever release it.
        if not self.observer.is_active or not self._end_lock.acquire(blocking=False):
            return
        self._warn_if_no_step_ended()
        self.guard.run("log", partial(self.values.end, has_failed=self._has_failed))
        for each in self.at_end:
            self.guard.run("finish", each)
        self.observer.is_active = False
        self.guard.run("finish", self.runner.stop)
        self.guard.run("finish", self.ship)
        timeout_s = self.options.flush_timeout_s
        if not self._sender.is_reachable:
            timeout_s = min(limits.FLUSH_TIMEOUT_AWAY_S, timeout_s)
        self._sender.stop(timeout_s)

    def _warn_if_no_step_ended(self) -> None:
        if self.step == self.options.start_step and self._buffer.is_observed() and not self._has_failed:
            logger.warning(
                "rangewatch: run %r has no steps, though the model was called: nothing said where a step ends. Pass "
                "the optimizer that trains the model to attach, or call handle.step()",
                self.info.run,
            )

    def finish_at_exit(self, error: BaseException | None) -> None:
        """At the end of the process, by an uncaught exception or not."""
        if error is not None:
            self.fail(error)
        self._is_at_exit = True
        self.finish()

    def detached(self) -> None:
        """By its user: in a `finally` clause while an exception ends the training, say, which has not finished then."""
        error = self._process_end.on_its_way()
        if error is not None and not self._has_failed:
            self.fail(error)
        self.guard.run("detach", self.remove)
        self.finish()

    def fail(self, error: BaseException) -> None:
        """Training ends by `error`: unless that is a clean exit, the run ends as `failed` and not as `finished`."""
        if self.observer.is_active and not is_clean_exit(error):
            details = failure_details(error)
            self._has_failed = self.guard.run("exit", lambda: self.events.add(details, describe(error)))
            if not details.interrupted:
                self.guard.run("batch", lambda: self.batches.failed(self.step))

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

    def batched(self, block: Block) -> None:
        """By the sender's thread: this has been put into a batch, with what came from accelerators."""
        self.stopper.read_block(block)
        self.nonfinite.read_block(block)
        self.batches.read_block(block)
        self.mirrors.read_block(block)

    def commanded(self, commands: tuple[Command, ...]) -> None:
        """By the sender's thread: the server asks for these."""
        self.control.inbox.extend(commands)

    def reported(self, health: RunHealth) -> None:
        """By the sender's thread: what the server knows of the whole run."""
        self.mirrors.health(health)

    def spool_opened(self, folder: Path | None) -> None:
        """By the sender's thread: the rank's spool is there, or none is."""
        self.crash_state.start(folder)
        if folder is not None:
            self.guard.run("other jobs", partial(warn_of_another, self.info, self.options.url, folder))

    def ship_samples(self) -> None:
        """Hand over what belongs to no tensor. From the collectors' thread: the training thread may hang."""
        events, event_count = self.events.take()
        shipment = PendingBatch(EMPTY_BLOCK, events, samples=self.runner.take(), mark=(0, event_count))
        self._sender.batcher.put(shipment)

    def goodbye(self) -> None:
        """By the sender's thread, while the training thread waits for it."""
        self.batches.flush()
        if not self._has_failed:
            self.events.add("finished", data={"skipped": self.observer.skipped})
        self.phases.end()
        self.mirror.end(layout.FAILED if self._has_failed else layout.AT_EXIT if self._is_at_exit else layout.DETACHED)
        self.ship()

    def ended(self) -> None:
        """By the sender's thread, at its end."""
        self._process_end.forget()
        self.mirrors.stop()
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

    def before_backward(self) -> None:
        """Read the gradients of parameters that were thawed since the step before, in their first backward too."""
        if self.hooks is not None and self.observer.is_active:
            self.hooks.before_backward()

    def _emit_changes(self) -> None:
        """An event for each kind of total that changed since the last shipment."""
        if self.hooks is not None:
            self.hooks.hook_trainable()
        if self.step > self.options.start_step:
            self.observer.note_unobserved(is_low_unread=bool(self.recording.not_read))
        totals: dict[str, Mapping[str, Any]] = {
            "dropped": self.drops.counts,
            "fault": self.faults(),
            "not_observed": self.observer.not_observed,
            "other_values": self.observer.other_values,
            "not_fused": {device: reason for device, reason in self.observer.device.why_not_fused().items() if reason},
        }
        self.events.add_changes(totals)


def run_address(url: str, run: str) -> str:
    """Where the pages list it."""
    return f"{url}/?q={quote(run, safe='')}"


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
