"""torch's flight recorder: the real one on gloo, and dumps as torch with NCCL makes them."""

from __future__ import annotations

import math
import pickle
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import distributed as dist

from rangewatch.collectors.collectives import dispatcher
from rangewatch.collectors.collectives import recorder as collectives_ledger
from rangewatch.collectors.collectives.collector import Collectives
from rangewatch.collectors.collectives.flight_recorder import FlightRecorder, RecorderJoin
from rangewatch.collectors.collectives.ops import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER
from rangewatch.collectors.collectives.process_groups import Group
from rangewatch.collectors.collectives.recorder import ENDED, ISSUED, CollectiveRecorder, Record
from rangewatch.core.guard import Guard
from rangewatch.wire.records import RankInfo
from tests.agent.collectors.ranks import rows_of
from tests.agent.doubles import EventList

CAPTURED = {
    "record_id": 7, "pg_id": 0, "process_group": ("0", "default_pg"), "collective_seq_id": 3, "p2p_seq_id": 0,
    "op_id": 3,
    "profiling_name": "nccl:all_reduce", "time_created_ns": 1_780_000_000_000_000_000, "duration_ms": 1.5,
    "input_sizes": [[1000, 10]], "input_dtypes": ["BFloat16"], "output_sizes": [[1000, 10]],
    "output_dtypes": ["BFloat16"], "state": "completed", "time_discovered_started_ns": 1_780_000_000_000_500_000,
    "time_discovered_completed_ns": 1_780_000_000_100_000_000, "retired": True, "timeout_ms": 600_000, "is_p2p": False,
}  # fmt: skip
"""One entry, as `_dump_nccl_trace` of torch 2.13 gives it."""


class NcclDouble:
    """Stands for torch._C._distributed_c10d of a build with NCCL."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.dumps = 0

    def add(self, **changes: Any) -> None:
        number = self.rows[-1]["record_id"] + 1 if self.rows else 0
        self.rows.append({**CAPTURED, "record_id": number, "collective_seq_id": number + 1, **changes})

    def _dump_nccl_trace(self, with_collectives: bool, with_stacks: bool, only_active: bool) -> bytes:
        assert not with_stacks, "stacks are slow, and the GIL is held"
        self.dumps += 1
        status = {"0": {"last_enqueued_collective": 9, "last_started_collective": 9, "last_completed_collective": 8}}
        entries = {"entries": self.rows} if with_collectives else {}
        return pickle.dumps({"version": "2.10", "pg_status": status, **entries})


@pytest.fixture
def alone() -> Iterator[None]:
    """A gloo group of one rank in this process."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_the_real_one(alone: None) -> None:
    flight = FlightRecorder()
    if not hasattr(torch._C._distributed_c10d, "_dump_fr_trace"):
        pytest.skip("this torch's flight recorder has no gloo")
    flight.read()
    dist.all_reduce(torch.ones(3, 5, dtype=torch.float16))
    dist.all_gather([torch.zeros(8)], torch.ones(8))
    entries = [each for each in flight.read() if each.enqueued_ns]
    assert [(each.kind, each.bytes, each.dtype) for each in entries] == [
        (ALL_REDUCE, 30, "float16"),
        (ALL_GATHER, 32, "float32"),
    ]
    assert [each.sequence for each in entries] == [1, 2] and {each.group for each in entries} == {"0"}
    assert all(math.isnan(each.duration_s) for each in entries), "gloo's are not timed"
    for _ in range(100):  # told of by gloo's own thread
        if flight.status().get("0", {}).get("last_completed_collective") == 2:
            break
        time.sleep(0.05)
    assert flight.status()["0"]["last_enqueued_collective"] == 2


def test_an_entry_of_nccl() -> None:
    double = NcclDouble()
    double.add()
    (entry,) = FlightRecorder(double).read()
    assert (entry.bytes, entry.dtype, entry.duration_s) == (20_000, "bfloat16", 0.0015)
    assert entry.has_ended and not entry.is_p2p and entry.backend == "nccl"


def test_only_what_is_new_or_was_running() -> None:
    double = NcclDouble()
    flight = FlightRecorder(double)
    double.add()
    double.add(state="started", retired=False, duration_ms=None)
    assert [each.has_ended for each in flight.read()] == [True, False]
    double.add()
    double.rows[1] = {**double.rows[1], "state": "completed", "duration_ms": 2.0}
    assert [(each.record_id, each.has_ended) for each in flight.read()] == [(1, True), (2, True)]
    assert flight.read() == []


def test_overwritten_entries_are_counted_and_a_reset_is_none() -> None:
    double = NcclDouble()
    flight = FlightRecorder(double)
    double.add()
    flight.read()
    double.rows = [{**CAPTURED, "record_id": 40}]
    flight.read()
    assert flight.overwritten == 39
    double.rows = [{**CAPTURED, "record_id": 0}]
    assert len(flight.read()) == 1 and flight.overwritten == 39


def test_odd_entries_are_left_out() -> None:
    double = NcclDouble()
    double.add(profiling_name="nccl:something_new")
    double.add(process_group=(), input_sizes=[], input_dtypes=[], output_sizes=None, p2p_seq_id=None)
    double.add(profiling_name="nccl:send 1->2", is_p2p=True, p2p_seq_id=4)
    entries = FlightRecorder(double).read()
    assert [(each.kind.name, each.bytes, each.sequence) for each in entries] == [
        ("all_reduce", 0, 2),
        ("send", 20_000, 4),
    ]


def test_without_a_flight_recorder() -> None:
    flight = FlightRecorder(SimpleNamespace())
    assert not flight.is_there and flight.read() == [] and flight.status() == {}


def called(group: Group, sequence: int) -> Record:
    record = Record()
    record.group, record.kind, record.sequence, record.state = group, ALL_REDUCE, sequence, ISSUED
    record.began_ns, record.enqueued_ns = time.perf_counter_ns(), time.time_ns()
    group.enqueued = sequence
    group.waiting[id(record)] = record
    return record


def test_nccl_durations_come_from_it() -> None:
    double, recorder = NcclDouble(), CollectiveRecorder(Guard())
    group = Group("0", [0, 1], "default_pg", "cuda", "nccl", 0)
    records = [called(group, sequence) for sequence in (1, 2, 3)]
    double.add()
    double.add(duration_ms=None)
    double.add(state="started", retired=False, duration_ms=None)
    join = RecorderJoin(recorder, FlightRecorder(double))
    assert not group.has_futures and not group.knows_ends
    join.close(records)
    assert [each.state for each in records] == [ENDED, ENDED, ISSUED]
    assert records[0].duration_s == 0.0015 and math.isnan(records[1].duration_s)
    assert (group.enqueued, group.completed, list(group.waiting.values())) == (3, 2, [records[2]])
    assert join.untimed == 1 and group.knows_ends
    join.close(records)
    assert double.dumps == 1, "a dump holds the GIL: not at every look"
    join.close(records, now=True)
    assert double.dumps == 2


def test_gloo_alone_never_dumps() -> None:
    double, recorder = NcclDouble(), CollectiveRecorder(Guard())
    join = RecorderJoin(recorder, FlightRecorder(double))
    join.close([called(Group("0", [0], "", "cpu", "gloo", 0), 1)])
    assert double.dumps == 0


def test_the_rung_of_the_flight_recorder_alone(alone: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where torch has no hooks and lets nobody wrap its operators: real entries of gloo."""
    if not hasattr(torch._C._distributed_c10d, "_dump_fr_trace"):
        pytest.skip("this torch's flight recorder has no gloo")

    def refused() -> None:
        raise dispatcher.NotWrapped("another kernel is there")

    monkeypatch.setattr("rangewatch.collectors.collectives.collector.wrap", refused)
    monkeypatch.setattr("rangewatch.collectors.collectives.collector.are_supported", lambda: False)
    collector = Collectives(None, RankInfo("run", 0, 1, 0, "host", "0", 0), hang_s=1000)  # type: ignore[arg-type]
    collector._join.flight.read()
    reported = EventList()
    events = reported.events
    collector.start(reported)
    assert events[0][2]["rung"] == "flight_recorder" and "another kernel" in events[0][1]
    dist.all_reduce(torch.ones(3))
    found: list[Any] = []
    for _ in range(100):  # torch marks an entry as ended a moment after its caller has gone on
        collector._join._due_s = 0.0
        found += collector.collect(5)
        if found:
            break
        time.sleep(0.05)
    (row,) = rows_of(found[0])
    assert (row["op"], row["bytes"], row["step"], row["group"]["ranks"]) == ("all_reduce", 12.0, 5.0, [0])
    assert math.isnan(row["duration_s"])
    collector.stop()
    assert collectives_ledger.ActiveRecorder.recorder is None


def test_each_entry_is_one_record_whatever_its_sequence() -> None:
    """A send that is under way when it is read, beside a collective of the same number; then both have ended."""
    double = NcclDouble()
    join = RecorderJoin(CollectiveRecorder(Guard()), FlightRecorder(double))
    double.add(state="started", retired=False, duration_ms=None)
    double.add(profiling_name="nccl:send 0->1", is_p2p=True, p2p_seq_id=1, state="started", retired=False)
    first = join.records(0)
    for row in double.rows:
        row.update(state="completed", retired=True, duration_ms=2.0)
    join._due_s = 0.0
    assert join.records(1) == [] and [each.kind.name for each in first] == ["all_reduce", "send"]
    assert [(each.state, each.duration_s) for each in first] == [(ENDED, 0.002)] * 2
    double.rows = [{**double.rows[0], "record_id": 0, "time_created_ns": 5}]
    join._due_s = 0.0
    assert len(join.records(2)) == 1, "the ring was reset, and counts anew"


def test_coalesced_collectives_share_a_sequence_and_all_end() -> None:
    double, group = NcclDouble(), Group("0", [0, 1], "default_pg", "cuda", "nccl", 0)
    records = [called(group, 1), called(group, 1)]
    double.add(duration_ms=2.0)
    double.add(duration_ms=4.0, collective_seq_id=1)
    RecorderJoin(CollectiveRecorder(Guard()), FlightRecorder(double)).close(records)
    assert [(each.state, each.duration_s) for each in records] == [(ENDED, 0.002), (ENDED, 0.004)]


def test_a_hang_is_not_waiting_for_what_has_ended_without_a_word() -> None:
    """gloo's reduce_scatter has no future: the recorder is asked, but only when it matters."""
    double, group = NcclDouble(), Group("0", [0], "default_pg", "cpu", "gloo", 0)
    record = called(group, 1)
    record.kind = REDUCE_SCATTER
    group.silent.add(REDUCE_SCATTER)
    double.add(profiling_name="gloo:all_reduce", duration_ms=None, state="scheduled")  # as it is told
    join = RecorderJoin(CollectiveRecorder(Guard()), FlightRecorder(double))
    join.close([record])
    assert double.dumps == 0 and record.is_open
    join.close([record], now=True)
    assert record.state == ENDED and math.isnan(record.duration_s) and not group.waiting
