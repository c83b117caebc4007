"""Collective timing and hang evidence of this rank: which way torch lets us see collectives, and what comes of it.

The timing sources, best first: hooks of process groups (torch 2.14), our kernels in torch's dispatcher, the flight
recorder alone, steps alone. Futures (gloo) or the flight recorder (NCCL) say when a collective has ended.

Records become rows of samples here.
"""

from __future__ import annotations

import hashlib
import math
import os
import time
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, TypeVar

import msgspec
import numpy as np
from torch import distributed as dist
from torch import nn

from rangewatch.collectors.blocking_call import BlockingCall
from rangewatch.collectors.collectives import hang
from rangewatch.collectors.collectives.ddp_buckets import Bucket, DdpBuckets
from rangewatch.collectors.collectives.dispatcher import NotWrapped, wrap
from rangewatch.collectors.collectives.exposed import ExposedOfStep
from rangewatch.collectors.collectives.flight_recorder import RecorderJoin
from rangewatch.collectors.collectives.group_hooks import GroupHooks, are_supported
from rangewatch.collectors.collectives.ops import POINT_TO_POINT
from rangewatch.collectors.collectives.process_groups import ENDED, FAILED, UNKNOWN, Record, tells_by_future
from rangewatch.collectors.collectives.recorder import ActiveRecorder, CollectiveRecorder
from rangewatch.collectors.collectives.stuck_timer import StuckTimer
from rangewatch.core.guard import Guard
from rangewatch.core.options import Options
from rangewatch.recording.events import Events, OpenStep
from rangewatch.recording.rows.mirror import Mirror
from rangewatch.wire.events import CollectiveTiming, Hang, Stacks
from rangewatch.wire.records import RankInfo, Samples

SOURCE = "collective"

_Key = TypeVar("_Key", bound=Hashable)


class _Numbers(dict[_Key, int]):
    """Numbers things in the order in which they come."""

    def __missing__(self, key: _Key) -> int:
        self[key] = len(self)
        return self[key]


def samples(records: Sequence[Record], timing_source: str, buckets: Sequence[Bucket]) -> Samples:
    """One row a record, in the order of their calls. Columns `group`, `op` and `dtype` are numbers of `about`'s lists.

    `bytes`, `sequence` (NaN for send and recv), `duration_s` (NaN where it is not known), `bucket` (NaN where it is
    none), `is_symmetric`, `is_async`, `has_failed` (0 or 1) and `step`. `buckets`: given when they are to travel.
    """
    rows = sorted((record for record in records if record.group is not None), key=lambda record: record.enqueued_ns)
    groups: _Numbers[Any] = _Numbers()
    ops: _Numbers[str] = _Numbers()
    dtypes: _Numbers[str] = _Numbers()
    columns = {
        "step": _column(record.step for record in rows),
        "group": _column(groups[record.group] for record in rows),
        "op": _column(ops[record.kind.name] for record in rows),
        "dtype": _column(dtypes[record.dtype] for record in rows),
        "bytes": _column(record.bytes for record in rows),
        "sequence": _column(np.nan if record.kind.name in POINT_TO_POINT else record.sequence for record in rows),
        "duration_s": _column(record.duration_s if record.state == ENDED else np.nan for record in rows),
        "bucket": _column(record.bucket if record.bucket >= 0 else np.nan for record in rows),
        "is_symmetric": _column(record.kind.is_symmetric for record in rows),
        "is_async": _column(record.is_async for record in rows),
        "has_failed": _column(record.state == FAILED for record in rows),
    }
    about: dict[str, Any] = {
        "groups": [group.about() for group in groups],
        "ops": list(ops),
        "dtypes": list(dtypes),
        "rung": timing_source,
    }
    if buckets:
        about["buckets"] = {str(number): bucket.parameters for number, bucket in enumerate(buckets)}
    times_ns = np.fromiter((record.enqueued_ns for record in rows), np.int64, len(rows))
    return Samples(SOURCE, "", times_ns, columns, about)


def _column(values: Iterable[float]) -> Any:
    return np.array(list(values), np.float64)


OPEN_RECORDS = 10_000
"""Collectives that have not ended and are kept until they have; then the oldest goes without a duration."""

PATIENCE_S = 20.0
"""Seconds that a row waits for its duration where only the flight recorder could tell it: four dumps."""

BUCKETS_PATIENCE_S = 0.2
"""Seconds that a look at DDP's buckets is waited for: it takes microseconds, or as long as a collective hangs."""

BUCKETS_EVERY_S = 60.0
"""Seconds after which the names of the buckets' parameters travel again: a reader may have come later."""


class Collectives:
    """Collector "collectives". Made in the thread that trains; `start`, `collect` and `stop` on the collectors'."""

    name = "collectives"
    help = "the rank's collectives, a row each, with size and duration; who waits for whom; hangs"
    docs = "collectives.md"

    def __init__(self, options: Options, info: RankInfo, *, hang_s: float | None = None) -> None:
        self._info, self.guard = info, Guard()
        self.recorder = CollectiveRecorder(self.guard)
        self._are_steps_exact = False
        """The recorder sees the step that is open; else the one that `collect` was called with last."""
        self._step = -1
        self._buckets = DdpBuckets(self.guard)
        self._asked: BlockingCall[bool] = BlockingCall("rangewatch-ddp")
        self._exposed = ExposedOfStep(self.recorder)
        self._hooks = GroupHooks(self.guard)
        self._join = RecorderJoin(self.recorder)
        least_s = float(os.environ.get("RANGEWATCH_HANG_S", hang.LEAST_S)) if hang_s is None else hang_s
        self._watch = hang.HangWatch(least_s, hang.FIRST_STEPS_S if hang_s is None else hang_s)
        self._timer = StuckTimer(self._stack_path(), least_s)
        self._events: Events
        self._open: list[Record] = []
        self._bucket_due_s = math.inf
        self.timing_source, self._why = "step_level", ""
        self._reported_counts: dict[str, int] = {}
        self._has_reported_untimed = False
        self._claim()

    def watch(self, model: nn.Module, open_step: OpenStep, mirror: Mirror | None) -> None:
        """Record the collectives of `model`'s training as of `open_step`, and tell `mirror` of them.

        It may be, or hold, a DistributedDataParallel. Others are found while they run.
        """
        self.recorder.open_step, self.recorder.mirror, self._are_steps_exact = open_step, mirror, True
        self._buckets.watch(model)

    def exposed_s(self, step: int) -> float:
        """Seconds of `step` in which the training thread waited for collectives; NaN where that cannot be known.

        Called by that thread. Calls that block count whole; of DDP's
        all_reduces what comes after the last of them was called, since backward ends with them.
        """
        return self._exposed.seconds(step, [bucket.size_bytes for bucket in self._buckets.buckets])

    def moved_bytes(self) -> int | None:
        """Of all collectives, sends and receives that this process has called so far; None where any may not be seen.
        Called by the training thread."""
        is_whole = self.timing_source in ("hooks", "wrapped") and not self.recorder.has_given_up
        return self.recorder.moved_bytes if is_whole and not self.recorder.hidden else None

    def start(self, events: Events) -> None:
        """Say which way it is, and why."""
        self._events = events
        self._buckets.start()
        self._timer.start()
        self._emit_timing_source()

    def collect(self, step: int) -> Sequence[Samples]:
        """Rows of the collectives that have ended since the last call."""
        is_advancing, self._step = step != self._step, step
        if not self._are_steps_exact:
            self.recorder.open_step.number = step
        if self.timing_source == "step_level":
            self._claim_again()
        elif self.recorder.has_given_up:
            self._give_up()
        new = self._records()
        if is_advancing and self.timing_source != "step_level" and self._has_new_buckets():
            self._bucket_due_s = 0.0
        self._buckets.number(new, are_steps_exact=self._are_steps_exact)
        self._open += new
        self._check_for_hang(step)
        self._emit_counts()
        self._emit_untimed()
        return self._rows(self._ended())

    def _has_new_buckets(self) -> bool:
        """Asked on a thread of its own: reading them waits for a lock that DDP holds while it is in a collective."""
        try:
            return self._asked.ask(self._buckets.refresh, BUCKETS_PATIENCE_S)
        except TimeoutError:
            return False

    def stop(self) -> None:
        """See no more collectives. What has not ended goes unsent: its duration is not known."""
        ActiveRecorder.release(self.recorder)
        self._hooks.stop()
        self._asked.stop(BUCKETS_PATIENCE_S)
        self._buckets.stop()
        self._timer.stop()

    def _claim(self) -> None:
        self.timing_source, self._why = self._choose_timing_source()

    def _choose_timing_source(self) -> tuple[str, str]:
        if not dist.is_available():
            return "step_level", "this torch is built without torch.distributed"
        if not ActiveRecorder.claim(self.recorder):
            return "step_level", "the collectives of this process are recorded with the model that was attached first"
        if are_supported() and self.guard.run("hooks", self._hooks.start):
            return "hooks", "hooks of torch's process groups"
        try:
            wrap()
        except NotWrapped as error:
            ActiveRecorder.release(self.recorder)
            if self._join.flight.is_there:
                return "flight_recorder", f"{error}; read every few seconds, without durations unless torch times NCCL"
            return "step_level", str(error)
        why = "kernels around the operators of c10d, since this torch has no hooks of process groups"
        return "wrapped", why if tells_by_future("cpu", "gloo") else f"{why}; no durations of gloo before torch 2.8"

    def _claim_again(self) -> None:
        if (
            dist.is_available()
            and not self.recorder.has_given_up
            and ActiveRecorder.recorder is None
            and self._can_claim_late()
        ):
            self._claim()
            self._emit_timing_source()

    def _can_claim_late(self) -> bool:
        return self._why.startswith("the collectives of this process")

    def _give_up(self) -> None:
        ActiveRecorder.release(self.recorder)
        self.timing_source, self._why = "step_level", f"faults of ours: {dict(self.guard.counts)}"
        self._emit_timing_source()

    def _records(self) -> list[Record]:
        if self.timing_source == "flight_recorder":
            return self._join.records(self._step)
        new = self.recorder.take()
        self._join.close([*self._open, *new])
        return new

    def _ended(self) -> list[Record]:
        done = [record for record in self._open if not record.is_open or self._is_hopeless(record)]
        left = [record for record in self._open if record.is_open and not self._is_hopeless(record)]
        surplus = max(len(left) - OPEN_RECORDS, 0)
        self._open = left[surplus:]
        done += left[:surplus]
        for record in done:
            self.recorder.close(record, UNKNOWN)
        return done

    def _is_hopeless(self, record: Record) -> bool:
        group = record.group
        if group is None or record.kind.name in POINT_TO_POINT:
            return True
        return (
            (not group.has_futures or record.kind in group.silent)
            and record.waited_s() > PATIENCE_S
            and not self._watch.is_hung
        )

    def _rows(self, records: list[Record]) -> list[Samples]:
        if not records:
            return []
        now_s = time.monotonic()
        are_due = bool(self._buckets.buckets) and now_s >= self._bucket_due_s
        if are_due:
            self._bucket_due_s = now_s + BUCKETS_EVERY_S
        return [samples(records, self.timing_source, self._buckets.buckets if are_due else ())]

    def _check_for_hang(self, step: int) -> None:
        now_s = time.monotonic()
        text = self._timer.wind()
        if text:
            self._events.add(Stacks(text), "the interpreter was stuck; these are the stacks of that time")
        what = self._watch.check(step, self.recorder.begun_count, now_s)
        if what == "hang":
            self._emit_hang(step, self._watch.stalled_s(now_s))
        elif what == "hang_over":
            self._events.add("hang_over", "this rank goes on", {"step": step})

    def _emit_hang(self, step: int, stalled_s: float) -> None:
        self._join.close(self._open, now=True)
        groups = self.recorder.groups.all()
        longest = hang.longest_wait(groups)
        line = hang.line_of(hang.training_thread())
        details = Hang(
            step=step,
            stalled_s=round(stalled_s, 3),
            is_waiting=longest is not None,
            rung=self.timing_source,
            groups=hang.evidence(groups, self._join.status()),
            line=line,
        )
        self._events.add(details, hang.message(longest, stalled_s))
        self._events.add(Stacks(hang.all_threads(), line), "stacks of all threads")
        path = self._stack_path()
        for name, text in hang.written_by_others(path.parent, self._prefix(), path, 2 * stalled_s + 60).items():
            rank = name.removeprefix(self._prefix()).removesuffix(".txt")
            details_of_other = Stacks(text, of_rank=int(rank) if rank.isdecimal() else None)
            self._events.add(details_of_other, f"stacks of rank {rank}, whose interpreter is stuck")

    def _emit_timing_source(self) -> None:
        details = CollectiveTiming(
            self.timing_source,
            self._why,
            hang_threshold_s=self._watch.threshold_s,
            stuck_timer=self._timer.why_not or str(self._stack_path()),
            flight_recorder=self._join.flight.is_there,
        )
        self._events.add(details, self._why)

    def _emit_untimed(self) -> None:
        if self._join.untimed and not self._has_reported_untimed:
            self._has_reported_untimed = True
            why = "NCCL's collectives are not timed: set TORCH_NCCL_ENABLE_TIMING=1 before training starts"
            self._events.add(CollectiveTiming(self.timing_source, why), why)

    def _emit_counts(self) -> None:
        recorder = self.recorder
        counts = {
            "hidden": recorder.hidden, "dropped": recorder.dropped, "no_longer_followed": recorder.waiting_dropped,
            "overwritten": self._join.flight.overwritten,
        }  # fmt: skip
        new = {name: count for name, count in counts.items() if count > self._reported_counts.get(name, 0)}
        # Doubled each time, so that a graph which is captured again and again is not reported every second.
        if any(count >= 2 * self._reported_counts.get(name, 0) for name, count in new.items()):
            is_hidden = counts["hidden"] > self._reported_counts.get("hidden", 0)
            why = "collectives captured into a CUDA graph cannot be seen when it is replayed" if is_hidden else ""
            self._reported_counts = counts
            timing_source = "hidden" if is_hidden else self.timing_source
            details = msgspec.structs.replace(CollectiveTiming(timing_source, why), **counts)
            self._events.add(details, why or "some collectives are not recorded")

    def _prefix(self) -> str:
        return hashlib.sha1(self._info.run.encode(), usedforsecurity=False).hexdigest()[:16] + "-rank"

    def _stack_path(self) -> Any:
        return hang.stack_folder() / f"{self._prefix()}{self._info.rank}.txt"
