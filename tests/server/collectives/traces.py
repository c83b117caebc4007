"""Traces of training ranks, made by a small simulation: each rank computes, and a collective starts when all have come.

Every rank has a clock of its own, hours apart from the others', so whatever compares clocks comes out wrong.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from rangewatch_server.collectives.location import PhaseSeries

PLACES = ("before backward", "inside backward", "data loader")
BUCKETS = 5


class Chunk(msgspec.Struct):
    """What a reader of samples gives."""

    rank: int
    key: str
    times_ns: Any
    columns: dict[str, Any]
    about: dict[str, Any]
    incarnation: int | str = 0


def group_about(name: str, ranks: Sequence[int], desc: str = "") -> dict[str, Any]:
    digest = hashlib.sha1(",".join(map(str, ranks)).encode()).hexdigest()
    return {
        "name": name, "hash": digest, "ranks": list(ranks), "desc": desc or name, "backend": "gloo", "instance": 0
    }  # fmt: skip


def chunk(rank: int, rows: Sequence[dict[str, Any]], incarnation: int | str = 0) -> Chunk:
    """Rows with names in place of numbers; each chunk numbers them in its own order."""
    rows = sorted(rows, key=lambda row: row["time_ns"])
    groups = list({row["group"]["name"]: row["group"] for row in rows}.values())
    ops, dtypes = (list(dict.fromkeys(row[name] for row in reversed(rows))) for name in ("op", "dtype"))
    names = [group["name"] for group in groups]

    def column(values: Any) -> Any:
        return np.array(list(values), np.float64)

    columns = {
        "group": column(names.index(row["group"]["name"]) for row in rows),
        "op": column(ops.index(row["op"]) for row in rows),
        "dtype": column(dtypes.index(row["dtype"]) for row in rows),
        **{
            name: column(row.get(name, np.nan) for row in rows)
            for name in ("step", "bytes", "sequence", "duration_s", "bucket")
        },
        "is_symmetric": column(row.get("is_symmetric", 1) for row in rows),
        "is_async": column(row.get("is_async", np.nan) for row in rows),
    }
    times_ns = np.array([row["time_ns"] for row in rows], np.int64)
    return Chunk(rank, "", times_ns, columns, {"groups": groups, "ops": ops, "dtypes": dtypes}, incarnation)


def row(sequence: int, duration_s: float = 0.001, **other: Any) -> dict[str, Any]:
    """One record of an all_reduce of the group of ranks 0 and 1."""
    return {
        "time_ns": int(1e18) + sequence * 10_000_000, "group": group_about("0", (0, 1)), "op": "all_reduce",
        "dtype": "float32", "bytes": 1024.0, "step": sequence, "sequence": sequence, "duration_s": duration_s, **other,
    }  # fmt: skip


class Training:
    """`late_rank` loses `late_s` in every step from `late_from` on, at `place` (None: nobody does).

    `tensor_parallel`: ranks of one tensor parallel group; 1 for none. `jitter`: of all that is computed; `spike`:
    share of a step's phases that take 15 ms longer on some rank, whichever. `comm_s`: what a bucket takes, by step.
    """

    def __init__(
        self, seed: int, ranks: int = 4, steps: int = 40, place: str | None = None, late_rank: int = 2,
        late_s: float = 0.03, late_from: int = 0, tensor_parallel: int = 1, jitter: float = 0.04, spike: float = 0.02,
        slow_from: int | None = None, bucketed: bool = True, tells_async: bool = True,
    ) -> None:  # fmt: skip
        self.random = np.random.default_rng(seed)
        self.ranks, self.steps, self.place, self.late_rank = ranks, steps, place, late_rank
        self.late_s, self.late_from, self.jitter, self.spike = late_s, late_from, jitter, spike
        self.tensor_parallel, self.slow_from, self.bucketed = tensor_parallel, slow_from, bucketed
        self.tells_async = tells_async
        self.offset_s = self.random.uniform(-3600, 3600, ranks)
        self.now_s = np.zeros(ranks)
        self.rows: list[list[dict[str, Any]]] = [[] for _ in range(ranks)]
        self.phases: list[dict[str, list[float]]] = [{} for _ in range(ranks)]
        self.sequences: dict[str, int] = {}
        self.ends_s: dict[str, Any] = {}
        self.world = group_about("0", range(ranks), "world")
        size = tensor_parallel
        self.tp_groups = [group_about(f"tp{first}", range(first, first + size)) for first in range(0, ranks, size)]
        self.dp_groups = [group_about(f"dp{first}", range(first, ranks, size)) for first in range(size)]
        if size == 1:
            self.tp_groups, self.dp_groups = [], [self.world]
        for step in range(steps):
            self._step(step)

    def chunks(self, pieces: int = 3) -> dict[int, list[Chunk]]:
        """Each rank's records, in so many chunks."""
        return {
            rank: [chunk(rank, list(part)) for part in np.array_split(np.array(rows, object), pieces) if len(part)]
            for rank, rows in enumerate(self.rows)
        }

    def series(self, *, exposed: bool = True) -> dict[int, PhaseSeries]:
        """Each rank's phases; without `exposed`, as where nobody measures it: the waiting is in backward."""
        found = {}
        for rank, phases in enumerate(self.phases):
            seconds = {name: np.array(values) for name, values in phases.items()}
            if not exposed:
                seconds["backward_s"] = seconds["backward_s"] + seconds.pop("exposed_comm_s")
            found[rank] = PhaseSeries(np.arange(self.steps), seconds)
        return found

    def _step(self, step: int) -> None:
        began_s = self.now_s.copy()
        self._spend("data_wait_s", step, 0.002, "data loader")
        self._exposed_s = np.zeros(self.ranks)
        self._spend("forward_s", step, 0.03)
        for group in self.tp_groups:
            for _ in range(4):
                self._collective(group, step, 0.0005, is_async=False)
        self._spend("other_s", step, 0.001, "before backward")
        backward_s, done_s = np.zeros(self.ranks), np.zeros(self.ranks)
        for bucket in range(BUCKETS):
            backward_s += self._compute(0.012)
            if bucket == 2:
                backward_s += self._late("inside backward", step)
            for group in self.dp_groups:
                self._collective(group, step, 0.002, is_async=True, bucket=bucket, done_s=done_s)
        self._note("backward_s", backward_s)
        blocked_s = np.maximum(done_s - self.now_s, 0)
        self.now_s += blocked_s
        self._note("exposed_comm_s", blocked_s + self._exposed_s)
        self._spend("optimizer_s", step, 0.004)
        self._note("step_time_s", self.now_s - began_s)

    def _spend(self, phase: str, step: int, seconds: float, place: str = "") -> None:
        self._note(phase, self._compute(seconds) + self._late(place, step))

    def _compute(self, seconds: float) -> Any:
        spent_s = seconds * np.maximum(1 + self.jitter * self.random.standard_normal(self.ranks), 0.2)
        spent_s += 0.015 * (self.random.random(self.ranks) < self.spike / self.ranks)
        self.now_s += spent_s
        return spent_s

    def _late(self, place: str, step: int) -> Any:
        late_s = np.zeros(self.ranks)
        if place and place == self.place and step >= self.late_from:
            late_s[self.late_rank] = self.late_s * (1 + 0.02 * self.random.standard_normal())
        self.now_s += late_s
        return late_s

    def _note(self, phase: str, spent_s: Any) -> None:
        for rank in range(self.ranks):
            self.phases[rank].setdefault(phase, []).append(float(spent_s[rank]))

    def _collective(
        self, group: dict[str, Any], step: int, seconds: float, *, is_async: bool, bucket: int = -1, done_s: Any = None
    ) -> None:
        """Starts when all have come and the one before is over; each rank hears of the end a little later."""
        members, name = np.array(group["ranks"]), group["name"]
        if self.slow_from is not None and step >= self.slow_from:
            seconds *= 8
        start_s = max(self.now_s[members].max(), self.ends_s.get(name, 0.0))
        self.ends_s[name] = end_s = start_s + seconds * (1 + 0.05 * abs(self.random.standard_normal()))
        heard_s = end_s + self.random.exponential(0.00004, len(members))
        self.sequences[name] = sequence = self.sequences.get(name, 0) + 1
        for rank, heard in zip(members.tolist(), heard_s, strict=True):
            began_s = self.now_s[rank]
            self.rows[rank].append({
                "time_ns": int(1e18) + int((began_s + self.offset_s[rank]) * 1e9), "group": group, "op": "all_reduce",
                "dtype": "float32", "bytes": 4.0 * 2**20 if is_async else 65536.0, "step": step, "sequence": sequence,
                "duration_s": heard - began_s, "bucket": bucket if self.bucketed else np.nan,
                "is_async": is_async if self.tells_async else np.nan,
            })  # fmt: skip
        if is_async:
            done_s[members] = np.maximum(done_s[members], heard_s)
        else:
            self._exposed_s[members] += heard_s - self.now_s[members]
            self.now_s[members] = heard_s
