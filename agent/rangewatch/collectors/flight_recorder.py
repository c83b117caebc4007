"""torch's flight recorder, read in process: when NCCL's collectives ended, and how long they took where that is timed.

A dump holds the GIL, for some 10 ms with the default ring of 2,000 entries, so it is taken seldom: every 5 s where
nothing else tells of the end of a collective, and once when a hang is suspected.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from rangewatch.collectors.collectives_ops import RECORDED, Kind

EVERY_S = 5.0
"""Least seconds between two dumps."""

_DTYPES = {
    "Float": "float32", "Double": "float64", "Half": "float16", "BFloat16": "bfloat16", "Byte": "uint8",
    "Char": "int8", "Short": "int16", "Int": "int32", "Long": "int64", "Bool": "bool",
    "ComplexFloat": "complex64", "ComplexDouble": "complex128",
}  # fmt: skip
_BYTES = {
    "Float": 4, "Double": 8, "Half": 2, "BFloat16": 2, "Byte": 1, "Char": 1, "Short": 2, "Int": 4, "Long": 8, "Bool": 1,
    "ComplexFloat": 8, "ComplexDouble": 16,
}  # fmt: skip
_FLOAT8_BYTES = 1


class Entry(NamedTuple):
    """One collective in the ring. `duration_s`: NaN where torch does not time (see TORCH_NCCL_ENABLE_TIMING)."""

    backend: str
    record_id: int
    group: str
    desc: str
    sequence: int
    kind: Kind
    dtype: str
    bytes: int
    enqueued_ns: int
    duration_s: float
    has_ended: bool
    is_p2p: bool


class FlightRecorder:
    """Reads what is new. All of it on the collectors' thread."""

    def __init__(self, module: Any = None) -> None:
        module = module or getattr(torch._C, "_distributed_c10d", None)
        self._dumps: dict[str, Callable[..., bytes]] = {
            name: getattr(module, function)
            for name, function in (("nccl", "_dump_nccl_trace"), ("cpu", "_dump_fr_trace"))
            if hasattr(module, function)
        }
        self._last: dict[str, int] = {}
        self._open: dict[str, set[int]] = {}
        self.overwritten = 0
        """Entries that were gone before they were read."""

    @property
    def is_there(self) -> bool:
        """Whether this torch has one. It may be off: TORCH_FR_BUFFER_SIZE=0 is the default before torch 2.11."""
        return bool(self._dumps)

    def read(self) -> list[Entry]:
        """Entries that are new, or were still running when they were read last."""
        found: list[Entry] = []
        for name, dump in self._dumps.items():
            found += self._news(name, _loaded(dump(True, False, False)))
        return found

    def status(self) -> dict[str, dict[str, int]]:
        """Group name -> last enqueued, started and completed collective, -1 where unknown. It is a whole dump."""
        status: dict[str, dict[str, int]] = {}
        for dump in self._dumps.values():
            trace = _loaded(dump(True, False, False))
            of_groups = trace.get("pg_status") or {}
            # The status is by torch's number of a group, and only entries say which name has that: the last one made.
            for row in sorted(trace.get("entries") or (), key=lambda row: row["record_id"]):
                if str(row.get("pg_id")) in of_groups:
                    status[str(row["process_group"][0])] = of_groups[str(row["pg_id"])]
        return status

    def _news(self, name: str, trace: dict[str, Any]) -> list[Entry]:
        rows = sorted(trace.get("entries") or (), key=lambda row: row["record_id"])
        last, running = self._last.get(name, -1), self._open.setdefault(name, set())
        if not rows:
            return []
        if rows[-1]["record_id"] < last:  # the ring was reset, and counts anew
            last, self._open[name] = -1, set()
            running = self._open[name]
        if last >= 0:
            self.overwritten += max(rows[0]["record_id"] - last - 1, 0)
        new = [
            entry for row in rows if row["record_id"] > last or row["record_id"] in running if (entry := _entry(row))
        ]
        self._last[name] = rows[-1]["record_id"]
        self._open[name] = {entry.record_id for entry in new if not entry.has_ended}
        return new


def _loaded(dump: bytes) -> dict[str, Any]:
    return pickle.loads(dump)  # noqa: S301 - made a moment ago by torch in this process


def _entry(row: dict[str, Any]) -> Entry | None:
    backend, _, operation = str(row.get("profiling_name", "")).partition(":")
    kind = RECORDED.get(operation.split(" ")[0])
    if kind is None:
        return None
    name, desc = (*row.get("process_group", ()), "", "")[:2]
    is_p2p = bool(row.get("is_p2p"))
    duration_ms = row.get("duration_ms")
    dtype, size = _size(row, kind)
    return Entry(
        backend=backend,
        record_id=int(row["record_id"]),
        group=str(name),
        desc=str(desc),
        sequence=int(row.get("p2p_seq_id" if is_p2p else "collective_seq_id") or 0),
        kind=kind,
        dtype=dtype,
        bytes=size,
        enqueued_ns=int(row.get("time_created_ns") or 0),
        duration_s=math.nan if duration_ms is None else duration_ms / 1e3,
        has_ended=bool(row.get("retired")) or row.get("state") == "completed",
        is_p2p=is_p2p,
    )


def _size(row: dict[str, Any], kind: Kind) -> tuple[str, int]:
    sides = ("output", "input") if kind.whole == "output" else ("input", "output")
    for side in sides:
        shapes, dtypes = row.get(f"{side}_sizes") or (), row.get(f"{side}_dtypes") or ()
        if shapes:
            names = [*dtypes, *[dtypes[-1] if dtypes else ""] * (len(shapes) - len(dtypes))]
            total = sum(math.prod(shape) * _element(name) for shape, name in zip(shapes, names, strict=False))
            return _DTYPES.get(names[0], names[0].lower()), total
    return "", 0


def _element(dtype: str) -> int:
    return _BYTES.get(dtype, _FLOAT8_BYTES)
