"""The parts of collective timing that need no second rank: bounds, CUDA graphs, several models, exposed time."""

from __future__ import annotations

import gc
import math
import random
import subprocess
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import distributed as dist

from rangewatch.collectors.collectives import recorder
from rangewatch.collectors.collectives.collector import Collectives, samples
from rangewatch.collectors.collectives.exposed import ExposedOfStep
from rangewatch.collectors.collectives.group_hooks import GroupHooks, are_supported
from rangewatch.collectors.collectives.ops import ALL_GATHER, ALL_REDUCE, BARRIER, size_bytes
from rangewatch.collectors.collectives.process_groups import ENDED, ISSUED, Group, ProcessGroups, Record, ranks_hash
from rangewatch.collectors.collectives.recorder import ActiveRecorder, CollectiveRecorder
from rangewatch.core.guard import Guard
from rangewatch.wire.records import RankInfo
from tests import forked
from tests.agent.collectors.ranks import Watched, rows_of
from tests.agent.doubles import EventList


@pytest.fixture
def alone() -> Iterator[None]:
    """A gloo group of one rank in this process."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def watched(alone: None) -> Iterator[Watched]:
    watched = Watched(0, 1)
    watched.start()
    yield watched
    watched.stop()


def test_captured_collectives_are_hidden_and_never_zero(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = watched.collector.recorder
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    on_card = SimpleNamespace(device=SimpleNamespace(type="cuda"), dtype=torch.float32)
    record = Record()
    recorder.begin(record, ALL_REDUCE, lambda source: (dist.group.WORLD, [on_card], [], True), None)
    assert record.group is None and recorder.take() == []
    watched.collect()
    kind, message, data = watched.events[-1]
    assert (kind, data["rung"], data["hidden"]) == ("collectives", "hidden", 1) and "CUDA graph" in message
    watched.collect()
    assert len(watched.events) == 2, "said once"


def test_records_are_bounded_and_drops_counted(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "RECORDS", 5)
    for _ in range(12):
        dist.all_reduce(torch.ones(1))
    watched.collect()
    assert len(watched.rows()) == 5 and watched.rows()[-1]["sequence"] == 12
    assert watched.events[-1][2]["dropped"] == 7


def test_no_tensor_and_no_group_is_kept(watched: Watched) -> None:
    tensor, group = torch.ones(3), dist.new_group([0])
    dist.all_reduce(tensor, group=group)
    held = weakref.ref(tensor), weakref.ref(group)
    dist.destroy_process_group(group)
    del tensor, group
    gc.collect()  # of what is as young as they are
    assert [each() for each in held] == [None, None], "before anybody has collected"


def test_a_second_model_does_not_count_them_twice(watched: Watched) -> None:
    other = Watched(0, 1)
    other.start()
    assert other.collector.timing_source == "step_level" and "attached first" in other.events[0][1]
    dist.all_reduce(torch.ones(1))
    other.collect()
    assert other.rows() == [] and len(other.events) == 1
    watched.stop()
    other.collect()
    assert other.collector.timing_source == watched.collector.timing_source, "it takes over when the first has left"
    dist.all_reduce(torch.ones(1))
    other.collect()
    assert len(other.rows()) == 1
    other.stop()


def test_a_group_made_anew_under_its_name_is_another(alone: None) -> None:
    groups = ProcessGroups()
    first = groups.of(dist.group.WORLD, "cpu")
    assert groups.of(dist.group.WORLD, "cpu") is first and (first.name, first.instance) == ("0", 0)
    dist.destroy_process_group()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    second = groups.of(dist.group.WORLD, "cpu")
    assert (second.name, second.hash, second.instance) == ("0", first.hash, 1)


def test_ranks_hash_is_that_of_the_sorted_members() -> None:
    assert ranks_hash([3, 1, 2]) == ranks_hash([1, 2, 3]) == "b85e2d4914e22b5ad3b82b312b3dc405dc17dcb8"
    assert ranks_hash([1, 23]) != ranks_hash([12, 3])


def test_all_tensors_of_a_list_count() -> None:
    assert size_bytes(ALL_GATHER, [torch.ones(2)], [torch.ones(2)] * 1000) == 8000
    assert size_bytes(ALL_REDUCE, [torch.ones(1), *[torch.ones(3)] * 99], []) == 4 + 99 * 12
    assert size_bytes(BARRIER, [torch.ones(2)], []) == 0


def at(began_s: float, duration_s: float, size: int, *, is_async: bool, state: int = ENDED) -> Record:
    record = Record()
    record.group, record.kind, record.state = Group("0", [0], "", "cpu", "gloo", 0), ALL_REDUCE, state
    record.began_ns, record.duration_s, record.bytes, record.is_async = int(began_s * 1e9), duration_s, size, is_async
    record.thread = threading.get_ident()
    return record


class Listed:
    """A recorder that holds these records of step 0."""

    def __init__(self, records: list[Record]) -> None:
        self.records = records

    def of_step(self, step: int, first: int = 0) -> list[Record]:
        return self.records[first:]


def exposed_s(records: list[Record], bucket_sizes: list[int]) -> float:
    return ExposedOfStep(Listed(records)).seconds(0, bucket_sizes)  # type: ignore[arg-type]


def test_exposed_time() -> None:
    blocking = [at(1, 2, 4, is_async=False), at(2, 2, 4, is_async=False), at(10, 1, 4, is_async=False)]
    assert exposed_s(blocking, []) == pytest.approx(4)
    buckets = [at(20, 5, 100, is_async=True), at(21, 2, 50, is_async=True), at(22, 1, 60, is_async=True)]
    assert exposed_s(buckets, [100, 50, 60]) == pytest.approx(3), "from the last call to the last end"
    assert exposed_s(blocking + buckets, [100, 50, 60]) == pytest.approx(7)
    assert exposed_s(buckets, []) == 0, "nobody is known to wait for them"
    assert exposed_s([], [100]) == 0
    assert math.isnan(exposed_s([at(1, math.nan, 4, is_async=False)], []))


def covered_s(records: list[Record], sizes: list[int]) -> float:
    """By marking every half second."""
    calls = [(each.began_ns, each.duration_s) for each in records if not each.is_async]
    reduced = [each for each in records if each.is_async and each.bytes in sizes]
    spans = [(began_ns / 1e9, began_ns / 1e9 + duration_s) for began_ns, duration_s in calls]
    for part in (reduced[first : first + len(sizes)] for first in range(0, len(reduced), max(len(sizes), 1))):
        spans.append((part[-1].began_ns / 1e9, max(each.began_ns / 1e9 + each.duration_s for each in part)))
    return sum(any(low <= half / 2 < high for low, high in spans) for half in range(200)) / 2


@pytest.mark.parametrize("seed", range(20))
def test_exposed_time_asked_at_any_moment_is_that_of_asking_once(seed: int) -> None:
    """Records come and end in any order, a backward's buckets among calls that block."""
    chance = random.Random(seed)
    sizes = [100, 50, 60][: chance.randrange(4)]
    all_records = [
        at(began_s, chance.choice([0.5, 1, 3]), chance.choice([*sizes, 7]), is_async=chance.random() < 0.6)
        for began_s in range(40)
    ]
    shown: list[Record] = []
    asked = ExposedOfStep(Listed(shown))  # type: ignore[arg-type]
    for record in all_records:
        record.state = ISSUED
        shown.append(record)
        for each in chance.sample(shown, chance.randrange(len(shown) + 1)):
            each.state = ENDED
        if chance.random() < 0.5:
            assert asked.seconds(0, sizes) >= 0
    for record in all_records:
        record.state = ENDED
    assert asked.seconds(0, sizes) == pytest.approx(covered_s(all_records, sizes))


def test_rows_name_what_they_refer_to() -> None:
    records = [at(2, 0.5, 40, is_async=True), at(1, 0.25, 80, is_async=False)]
    records[0].enqueued_ns, records[1].enqueued_ns = 200, 100
    found = samples(records, "wrapped", [])
    assert list(found.times_ns) == [100, 200]
    assert [(row["bytes"], row["duration_s"], row["group"]["ranks"]) for row in rows_of(found)] == [
        (80, 0.25, [0]),
        (40, 0.5, [0]),
    ]
    assert "buckets" not in found.about and found.source == "collective"


def test_without_a_process_group_nothing_is_said_but_the_rung() -> None:
    watched = Watched(0, 1)
    watched.start()
    watched.collect()
    watched.stop()
    assert [kind for kind, _, _ in watched.events] == ["collectives"] and watched.given == []


def test_torch_without_distributed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "is_available", lambda: False)
    collector = Collectives(None, RankInfo("run", 0, 1, 0, "host", "0", 0))  # type: ignore[arg-type]
    collector.start(EventList())
    assert collector.timing_source == "step_level" and list(collector.collect(0)) == []
    collector.stop()


class HookedGroup:
    """A process group as torch 2.14 has them, as far as its hooks go; the installed torch may be older."""

    def __init__(self) -> None:
        self.hooks: dict[str, Any] = {}
        self.group_name, self.group_desc, self._device_types = "hooked", "", [torch.device("cpu")]

    def register_pre_hook(self, number: int, hook: Any) -> None:
        self.hooks["pre"] = hook

    def register_post_hook(self, number: int, hook: Any) -> None:
        self.hooks["post"] = hook

    def all_reduce(self, tensor: torch.Tensor, number: int, *, fails: bool = False) -> torch.futures.Future[Any]:
        future: torch.futures.Future[Any] = torch.futures.Future()
        about = {"name": SimpleNamespace(name="ALLREDUCE"), "async_op": True, "op_id": number}
        self.hooks["pre"](SimpleNamespace(**about, input_tensors=[tensor], output_tensors=[], root=-1))
        if not fails:
            self.hooks["post"](SimpleNamespace(**about, work=SimpleNamespace(get_future=lambda: future)))
        return future


def test_hooks_of_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    group, guard = HookedGroup(), Guard()
    recorder, hooks = CollectiveRecorder(guard), GroupHooks(guard)
    monkeypatch.setattr("rangewatch.collectors.collectives.group_hooks.live_groups", lambda: [group])
    assert ActiveRecorder.claim(recorder)
    hooks.start()
    first = group.all_reduce(torch.ones(6), 0)
    group.all_reduce(torch.ones(7), 1, fails=True)
    group.all_reduce(torch.ones(8), 2)
    first.set_result([])
    hooks.stop()
    ActiveRecorder.release(recorder)
    group.all_reduce(torch.ones(9), 3)
    records = recorder.take()
    assert [(each.bytes, each.state) for each in records] == [(24, ENDED), (28, 3), (32, 1)]
    assert records[0].duration_s > 0 and [each.sequence for each in records] == [1, 2, 3]


UNDER_WAY = """
import sys, time
from torch import distributed as dist
import torch
from tests.agent.collectors.ranks import Watched
rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=rank, world_size=2)
Watched(rank, 2).start()
dist.all_reduce(torch.ones(3))
if rank == 0:
    dist.all_reduce(torch.ones(3), async_op=True)
    raise SystemExit(3)
time.sleep(2)
"""


@pytest.mark.slow
def test_a_process_may_end_with_collectives_under_way(tmp_path: Path) -> None:
    """gloo calls back when the peer has gone: without an interpreter that would be an abort."""
    commands = [["-c", UNDER_WAY, rank, tmp_path / "store"] for rank in range(2)]
    ranks = [forked.rank.start(*command, stderr=subprocess.PIPE, text=True) for command in commands]
    errors = [rank.communicate()[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [3, 0], errors


def test_real_hooks_are_the_first_rung_where_torch_has_them(watched: Watched) -> None:
    """torch 2.14 and later."""
    assert watched.collector.timing_source == ("hooks" if are_supported() else "wrapped")


def test_what_blocks_another_thread_is_no_wait_of_this_one(watched: Watched) -> None:
    """Such as one that writes a checkpoint meanwhile."""
    thread = threading.Thread(target=lambda: dist.all_reduce(torch.ones(1)))
    thread.start()
    thread.join()
    recorder = watched.collector.recorder
    assert len(recorder.of_step(0)) == 1 and watched.collector.exposed_s(0) == 0
    dist.all_reduce(torch.ones(1))
    assert len(recorder.of_step(0)) == 2 and watched.collector.exposed_s(0) > 0
    watched.collect()
    assert [row["sequence"] for row in watched.rows()] == [1, 2], "both are recorded"


def test_a_step_that_begins_in_another_thread_meanwhile(watched: Watched) -> None:
    recorder = watched.collector.recorder

    class Emptied(list[Record]):
        def __len__(self) -> int:
            recorder._of_step = []
            return super().__len__()

        def __bool__(self) -> bool:
            return len(self) > 0

    record = Record()
    record.step = 7
    recorder._of_step = Emptied([record])
    dist.all_reduce(torch.ones(1))
    watched.collect()
    assert len(watched.rows()) == 1


FORKED = """
import os, sys
import torch
from torch import distributed as dist
from rangewatch.collectors.collectives.recorder import ActiveRecorder, recorders
from tests.agent.collectors.ranks import Watched
watched = Watched(0, 1)
watched.start()
watched.collector.recorder.groups._lock.acquire()
child = os.fork()
if child == 0:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    values = torch.ones(3)
    dist.all_reduce(values)
    os._exit(0 if ActiveRecorder.recorder is None and not list(recorders) and values.sum() == 3 else 1)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
watched.collector.recorder.groups._lock.release()
watched.stop()
sys.exit(status)
"""


def test_a_forked_child_records_nothing_and_waits_for_no_lock_of_its_parents() -> None:
    ran = forked.rank.run("-c", FORKED)
    assert ran.returncode == 0, ran.stderr
