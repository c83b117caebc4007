"""Collective timing and hang evidence of this rank: which way torch lets us see collectives, and what comes of it.

The ladder: hooks of process groups (torch 2.14), our kernels in torch's dispatcher, the flight recorder alone, steps
alone. Where collectives end is told by their futures (gloo) or by the flight recorder (NCCL).
"""

from __future__ import annotations

import hashlib
import math
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from torch import distributed as dist
from torch import nn

from rangewatch.collectors import hang, stacks
from rangewatch.collectors.answering import Answering
from rangewatch.collectors.base import Told as Tell
from rangewatch.collectors.collectives_exposed import ExposedOfStep
from rangewatch.collectors.collectives_hooks import GroupHooks, are_supported
from rangewatch.collectors.collectives_joined import RecorderJoin
from rangewatch.collectors.collectives_ledger import UNKNOWN, Ledger, Record, Told
from rangewatch.collectors.collectives_ops import POINT_TO_POINT
from rangewatch.collectors.collectives_rows import samples
from rangewatch.collectors.collectives_wrapped import NotWrapped, wrap
from rangewatch.collectors.ddp_buckets import DdpBuckets
from rangewatch.collectors.process_groups import tells_by_future
from rangewatch.collectors.stuck_timer import StuckTimer
from rangewatch.guard import Guard
from rangewatch.options import Options
from rangewatch.records import RankInfo, Samples

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

    def __init__(self, options: Options, info: RankInfo, *, hang_s: float | None = None) -> None:
        self._info, self.guard = info, Guard()
        self.ledger = Ledger(self.guard)
        self.open_step: Callable[[], int] | None = None
        """The open step, asked in the thread that calls a collective. None: what `collect` was told last."""
        self._step = -1
        self.ledger.open_step = self._open_step
        self._buckets = DdpBuckets(self.guard)
        self._asked: Answering[bool] = Answering("rangewatch-ddp")
        self._exposed = ExposedOfStep(self.ledger)
        self._hooks = GroupHooks(self.guard)
        self._join = RecorderJoin(self.ledger)
        least_s = float(os.environ.get("RANGEWATCH_HANG_S", hang.LEAST_S)) if hang_s is None else hang_s
        self._watch = hang.HangWatch(least_s, hang.FIRST_STEPS_S if hang_s is None else hang_s)
        self._timer = StuckTimer(self._stack_path(), least_s)
        self._tell: Tell = lambda kind, message, data: None
        self._open: list[Record] = []
        self._bucket_due_s = math.inf
        self.rung, self._why = "step_level", ""
        self._told_counts: dict[str, int] = {}
        self._has_told_untimed = False
        self._claim()

    def watch(self, model: nn.Module) -> None:
        """`model` may be, or hold, a DistributedDataParallel. Others are found while they run."""
        self._buckets.watch(model)

    def exposed_s(self, step: int) -> float:
        """Seconds of `step` in which the training thread waited for collectives; NaN where that cannot be known.

        Called by that thread. Calls that block count whole; of DDP's
        all_reduces what comes after the last of them was called, since backward ends with them.
        """
        return self._exposed.seconds(step, [bucket.size_bytes for bucket in self._buckets.buckets])

    def start(self, told: Tell) -> None:
        """Say which way it is, and why."""
        self._tell = told
        self._buckets.start()
        self._timer.start()
        self._tell_rung()

    def collect(self, step: int) -> Sequence[Samples]:
        """Rows of the collectives that have ended since the last call."""
        is_advancing, self._step = step != self._step, step
        if self.rung == "step_level":
            self._claim_again()
        elif self.ledger.has_given_up:
            self._give_up()
        new = self._records()
        if is_advancing and self.rung != "step_level" and self._has_new_buckets():
            self._bucket_due_s = 0.0
        self._buckets.number(new, are_steps_exact=self.open_step is not None)
        self._open += new
        self._look_for_hang(step)
        self._tell_counts()
        self._tell_untimed()
        return self._rows(self._ended())

    def _has_new_buckets(self) -> bool:
        """Asked on a thread of its own: reading them waits for a lock that DDP holds while it is in a collective."""
        try:
            return self._asked.ask(self._buckets.look, BUCKETS_PATIENCE_S)
        except TimeoutError:
            return False

    def stop(self) -> None:
        """See no more collectives. What has not ended goes unsent: its duration is not known."""
        Told.release(self.ledger)
        self._hooks.stop()
        self._asked.stop(BUCKETS_PATIENCE_S)
        self._buckets.stop()
        self._timer.stop()

    def _open_step(self) -> int:
        return self._step if self.open_step is None else self.open_step()

    def _claim(self) -> None:
        self.rung, self._why = self._climb()

    def _climb(self) -> tuple[str, str]:
        if not dist.is_available():
            return "step_level", "this torch is built without torch.distributed"
        if not Told.claim(self.ledger):
            return "step_level", "the collectives of this process are recorded with the model that was attached first"
        if are_supported() and self.guard.run("hooks", self._hooks.start):
            return "hooks", "hooks of torch's process groups"
        try:
            wrap()
        except NotWrapped as error:
            Told.release(self.ledger)
            if self._join.recorder.is_there:
                return "flight_recorder", f"{error}; read every few seconds, without durations unless torch times NCCL"
            return "step_level", str(error)
        why = "kernels around the operators of c10d, since this torch has no hooks of process groups"
        return "wrapped", why if tells_by_future("cpu", "gloo") else f"{why}; no durations of gloo before torch 2.8"

    def _claim_again(self) -> None:
        if dist.is_available() and not self.ledger.has_given_up and Told.ledger is None and self._can_claim_late():
            self._claim()
            self._tell_rung()

    def _can_claim_late(self) -> bool:
        return self._why.startswith("the collectives of this process")

    def _give_up(self) -> None:
        Told.release(self.ledger)
        self.rung, self._why = "step_level", f"faults of ours: {dict(self.guard.counts)}"
        self._tell_rung()

    def _records(self) -> list[Record]:
        if self.rung == "flight_recorder":
            return self._join.records(self._step)
        new = self.ledger.take()
        self._join.close([*self._open, *new])
        return new

    def _ended(self) -> list[Record]:
        done = [record for record in self._open if not record.is_open or self._is_hopeless(record)]
        left = [record for record in self._open if record.is_open and not self._is_hopeless(record)]
        surplus = max(len(left) - OPEN_RECORDS, 0)
        self._open = left[surplus:]
        done += left[:surplus]
        for record in done:
            self.ledger.close(record, UNKNOWN)
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
        return [samples(records, self.rung, self._buckets.buckets if are_due else ())]

    def _look_for_hang(self, step: int) -> None:
        now_s = time.monotonic()
        text = self._timer.wind()
        if text:
            self._tell("stacks", "the interpreter was stuck; these are the stacks of that time", {"text": text})
        what = self._watch.look(step, self.ledger.begun_count, now_s)
        if what == "hang":
            self._tell_hang(step, self._watch.stalled_s(now_s))
        elif what == "hang_over":
            self._tell("hang_over", "this rank goes on", {"step": step})

    def _tell_hang(self, step: int, stalled_s: float) -> None:
        self._join.close(self._open, now=True)
        groups = self.ledger.groups.all()
        longest = hang.longest_wait(groups)
        line = stacks.line_of(stacks.training_thread())
        data = {
            "step": step, "stalled_s": round(stalled_s, 3), "is_waiting": longest is not None, "rung": self.rung,
            "groups": hang.evidence(groups, self._join.status()), "line": line,
        }  # fmt: skip
        self._tell("hang", hang.in_words(longest, stalled_s), data)
        self._tell("stacks", "stacks of all threads", {"text": stacks.all_threads(), "line": line})
        path = self._stack_path()
        for name, text in stacks.written_by_others(path.parent, self._prefix(), path, 2 * stalled_s + 60).items():
            rank = name.removeprefix(self._prefix()).removesuffix(".txt")
            data = {"text": text, "of_rank": int(rank) if rank.isdecimal() else None}
            self._tell("stacks", f"stacks of rank {rank}, whose interpreter is stuck", data)

    def _tell_rung(self) -> None:
        data: dict[str, Any] = {"rung": self.rung, "why": self._why, "hang_threshold_s": self._watch.threshold_s}
        data["stuck_timer"] = self._timer.why_not or str(self._stack_path())
        data["flight_recorder"] = self._join.recorder.is_there
        self._tell("collectives", self._why, data)

    def _tell_untimed(self) -> None:
        if self._join.untimed and not self._has_told_untimed:
            self._has_told_untimed = True
            why = "NCCL's collectives are not timed: set TORCH_NCCL_ENABLE_TIMING=1 before training starts"
            self._tell("collectives", why, {"rung": self.rung, "why": why})

    def _tell_counts(self) -> None:
        ledger = self.ledger
        counts = {
            "hidden": ledger.hidden, "dropped": ledger.dropped, "no_longer_followed": ledger.waiting_dropped,
            "overwritten": self._join.recorder.overwritten,
        }  # fmt: skip
        new = {name: count for name, count in counts.items() if count > self._told_counts.get(name, 0)}
        # Doubled each time, so that a graph which is captured again and again is not told of every second.
        if any(count >= 2 * self._told_counts.get(name, 0) for name, count in new.items()):
            is_hidden = counts["hidden"] > self._told_counts.get("hidden", 0)
            why = "collectives captured into a CUDA graph cannot be seen when it is replayed" if is_hidden else ""
            self._told_counts = counts
            rung = "hidden" if is_hidden else self.rung
            self._tell("collectives", why or "some collectives are not recorded", {"rung": rung, "why": why, **counts})

    def _prefix(self) -> str:
        return hashlib.sha1(self._info.run.encode(), usedforsecurity=False).hexdigest()[:16] + "-rank"

    def _stack_path(self) -> Any:
        return stacks.stack_folder() / f"{self._prefix()}{self._info.rank}.txt"
