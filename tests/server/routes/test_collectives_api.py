"""Collectives, GPUs, hosts and environments from samples and events, over HTTP, as ranks would send them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from rangewatch.wire.records import Batch, Event, Samples
from tests.server.process import Run, Server
from tests.server.records import batch, catalogue, opening

KNOWN = catalogue(3)
RANKS, STEPS, BUCKETS = 4, 20, 4
SECOND = 10**9
GROUP = {"name": "0", "hash": "abc", "ranks": list(range(RANKS)), "desc": "default_pg"}


def collectives(rank: int, late: int | None, rng: np.random.Generator) -> Samples:
    """Every rank's all_reduces; the rank `late` comes 30 ms late to the first of each step."""
    count = STEPS * BUCKETS
    step, bucket = np.divmod(np.arange(count), BUCKETS)
    took = 0.001 + rng.random(count) * 1e-4
    if late is not None and rank != late:
        took += np.where(bucket == 0, 0.030, 0.0)
    hour = rank * 3_600 * SECOND  # the hosts' clocks differ by hours
    at = hour + 10**18 + step * SECOND // 5 + bucket * SECOND // 20
    one = np.ones(count)
    columns = {
        "step": step, "group": 0 * one, "op": 0 * one, "dtype": 0 * one, "bytes": 2.0**20 * one,
        "sequence": np.arange(count), "duration_s": took, "bucket": bucket, "is_symmetric": one,
    }  # fmt: skip
    about = {
        "groups": [GROUP], "ops": ["all_reduce"], "dtypes": ["float32"], "rung": "ddp",
        "buckets": {str(n): [f"layer{n}.weight"] for n in range(BUCKETS)},
    }  # fmt: skip
    return Samples("collective", "", at.astype(np.int64), {k: v.astype(float) for k, v in columns.items()}, about)


def gpu(rank: int, present: float = 1.0, **values: float) -> Samples:
    """Three seconds of a card, the second of which is hot."""
    times = 10**18 + np.arange(3) * SECOND
    columns = {
        "step": np.arange(3.0), "present": np.array([1.0, 1.0, present]), "power_w": np.array([400.0, 700.0, 410.0]),
        "sm_clock_mhz": np.array([1980.0, 1200.0, 1980.0]), "throttle_reasons": np.array([0.0, 64.0, 0.0]),
        "ecc_uncorrected_volatile": np.full(3, np.nan),
    }  # fmt: skip
    columns |= {name: np.full(3, value) for name, value in values.items()}
    return Samples("gpu", f"GPU-{rank}", times, columns, {"name": "H100", "host": f"node{rank}", "device_index": rank})


def host() -> Samples:
    return Samples("host", "", 10**18 + np.arange(3) * SECOND, {"step": np.arange(3.0), "load_1m": np.ones(3)}, {})


def send(server: Server | Run, late: int | None = 2, **samples: Any) -> None:
    """Twenty steps of four ranks."""
    rng = np.random.default_rng(1)
    for rank in range(RANKS):
        server.post(opening(KNOWN, rank=rank, world_size=RANKS))
        said = (
            Event("collectives", 1, 0, "", {"rung": "ddp", "why": "DDP's communication hook"}),
            Event("environment", 1, 0, "", {"facts": {"variables": {"NCCL_DEBUG": "INFO" if rank == 3 else "WARN"}},
                                            "findings": []}),
        )  # fmt: skip
        series = {"step_time_s": 0.2, "data_wait_s": 0.03 if rank == late else 0.0001, "forward_s": 0.01,
                  "backward_s": 0.1, "optimizer_s": 0.01, "other_s": 0.001}  # fmt: skip
        first = batch(KNOWN, 0, range(STEPS), rank=rank, series=series, events=said)
        more = samples.get(f"rank{rank}", (gpu(rank), host()))
        server.post(Batch(**{name: getattr(first, name) for name in first.__struct_fields__ if name != "samples"},
                          samples=(collectives(rank, late, rng), *more)))  # fmt: skip


@pytest.fixture(scope="module")
def sent(module_run: Run) -> Run:
    """Rank 2 comes late to each step."""
    send(module_run)
    return module_run


def test_the_rank_that_is_waited_for_is_named_with_what_it_does(sent: Run) -> None:
    found = sent.get("/collectives")
    assert (found["start"], found["stop"], found["ranks"]) == (0, STEPS, [0, 1, 2, 3])
    verdict = found["verdict"]
    assert (verdict["rank"], verdict["class"], verdict["where"]) == (2, "non-communication slow", "data loader")
    assert 0.028 < verdict["cost_s"] < 0.032 and "rank 2" in verdict["text"] and found["why_no_verdict"] is None
    assert found["by_rank"][2]["last_share"] > 0.9
    cost = np.array(found["cost_to_others_s"])
    assert cost.shape == (RANKS, STEPS) and (cost.argmax(axis=0) == 2).all()
    assert found["sources"][1] == {"rank": 1, "rung": "ddp", "why": "DDP's communication hook"}
    row = found["table"][0]
    assert (row["group"], row["ranks"], row["op"], row["count"]) == ("default_pg", 4, "all_reduce", STEPS * BUCKETS)
    assert row["busbw_bytes_per_s"] == pytest.approx(1.5 * row["algbw_bytes_per_s"])
    assert found["coverage"] == 1.0 and found["left_out"] == {}


def test_nobody_is_named_where_nobody_is_late(run: Run) -> None:
    send(run, late=None)
    found = run.get("/collectives")
    assert found["verdict"] is None and "No straggler" in found["why_no_verdict"]
    part = run.get("/collectives?start=5&stop=9")
    assert part["steps"] == [5, 6, 7, 8] and part["verdict"] is None


def test_one_step_on_all_ranks(run: Run) -> None:
    send(run)
    for query in ("", "?step=19"):
        found = run.get(f"/collectives/step{query}")
        assert found["step"] == 19 and [each["rank"] for each in found["ranks"]] == [0, 1, 2, 3]
    calls = found["ranks"][0]["collectives"]
    assert [call["begin_s"] for call in calls] == pytest.approx([0.0, 0.05, 0.1, 0.15])
    assert calls[0]["wait_s"] == pytest.approx(0.03, abs=0.001) and calls[1]["wait_s"] < 0.001
    assert calls[2]["parameters"] == ["layer2.weight"] and calls[2]["dtype"] == "float32"
    more = {"groups": [GROUP], "ops": ["all_reduce"]}  # buckets are named now and then only
    ahead = Samples("collective", "", np.array([10**18 + 10**10]), {**SMALL, "step": np.array([20.0])}, more)
    run.post(Batch("run", 0, "a", 1, first_catalogue(), samples=(ahead,)))
    found = run.get("/collectives/step")
    assert found["step"] == 19, "to which all ranks have got: they do not report at once"
    assert all(len(each["collectives"]) == BUCKETS for each in found["ranks"])
    bare = Samples("collective", "", np.array([10**18 + 10**12]), {**SMALL, "bucket": np.array([7.0])}, more)
    run.post(Batch("run", 0, "a", 2, first_catalogue(), samples=(bare,)))
    newest = run.get("/collectives/step?step=900")
    assert newest["step"] == 900 and newest["ranks"][0]["collectives"][0]["parameters"] == []
    nothing = run.get("/collectives/step?step=5000")
    assert nothing["step"] == 5000 and all(not each["collectives"] for each in nothing["ranks"])


SMALL = {
    "step": np.array([900.0]), "group": np.zeros(1), "op": np.zeros(1), "bytes": np.ones(1),
    "sequence": np.array([4_000.0]), "duration_s": np.array([0.001]),
}  # fmt: skip


def first_catalogue() -> str:
    return batch(KNOWN, 0, range(1)).catalogue


def test_a_run_without_any(run: Run) -> None:
    run.post(opening(KNOWN))
    run.post(batch(KNOWN, 0, range(3)))
    found = run.get("/collectives")
    assert (found["table"], found["coverage"], found["verdict"]) == ([], None, None) and found["why_no_verdict"]
    assert run.get("/collectives/step")["step"] is None
    assert run.get("/gpus")["gpus"] == []
    assert run.get("/environment") == {"ranks": [], "odd": [], "findings": [], "linkcheck": None}
    lanes = run.get("/gpus/0?key=GPU-9")
    assert lanes["times_ns"] == [] and lanes["values"] == {}


def test_cards_worst_first(run: Run) -> None:
    states = {
        "rank0": (gpu(0), host()),
        "rank1": (gpu(1, throttle_reasons=64.0), host()),
        "rank2": (gpu(2, present=0.0), host()),
        "rank3": (gpu(3, ecc_uncorrected_volatile=2.0), host()),
    }
    send(run, **states)
    found = run.get("/gpus")
    assert [(each["rank"], each["state"]) for each in found["gpus"]] == [
        (2, "gone"), (3, "alarm"), (1, "slowed"), (0, "ok"),
    ]  # fmt: skip
    worst = found["gpus"]
    assert worst[2]["why"] == ["HW thermal slowdown"] and "memory errors" in worst[1]["why"][0]
    assert worst[3]["values"]["ecc_uncorrected_volatile"] is None, "not supported is not 0"
    assert worst[3]["host"] == "node0" and worst[3]["device_index"] == 0
    assert [each["rank"] for each in found["hosts"]] == [0, 1, 2, 3]


def test_a_card_whose_samples_end_while_the_hosts_go_on_is_gone(run: Run) -> None:
    later = Samples("host", "", np.array([10**18 + 30 * SECOND]), {"step": np.zeros(1), "load_1m": np.ones(1)}, {})
    send(run, rank1=(gpu(1), host(), later))
    states = {each["rank"]: each["state"] for each in run.get("/gpus")["gpus"]}
    assert states == {0: "ok", 1: "gone", 2: "ok", 3: "ok"}


def test_lanes_lose_no_spike(sent: Run) -> None:
    whole = sent.get("/gpus/1?key=GPU-1")
    assert whole["values"]["power_w"] == [400.0, 700.0, 410.0] and whole["steps"] == [0, 1, 2]
    one = sent.get("/gpus/1?key=GPU-1&columns=1")
    assert (one["values"]["power_w"], one["values"]["sm_clock_mhz"]) == ([700.0], [1200.0])
    assert one["values"]["throttle_reasons"] == [64.0]
    assert sent.get("/gpus/1")["values"]["load_1m"] == [1.0] * 3
    missing = sent.ask("/gpus/9")
    assert (missing.status_code, missing.json()["code"]) == (404, "unknown_rank")


def test_events_of_a_card(run: Run) -> None:
    send(run)
    data = {"uuid": "GPU-0", "xid": 79, "resolution": "reboot_node"}
    events = (
        Event("xid", 10**18 + SECOND, 1, "GPU-0: Xid 79, fell off the bus.", data),
        Event("gpu", 10**18 + SECOND, 1, "GPU-7: of another", {"uuid": "GPU-7"}),
    )
    run.post(batch(KNOWN, 1, [], events=events))
    card = next(each for each in run.get("/gpus")["gpus"] if each["rank"] == 0)
    assert (card["state"], card["why"]) == ("alarm", ["GPU-0: Xid 79, fell off the bus."])
    assert [each["kind"] for each in run.get("/gpus/0?key=GPU-0")["events"]] == ["xid"]


def test_environments_and_who_is_odd(run: Run) -> None:
    send(run)
    run.post(batch(KNOWN, 1, [], events=(Event("linkcheck", 77, 0, "", {"ok": False, "bad_ranks": [3]}),)))
    found = run.get("/environment")
    assert [each["rank"] for each in found["ranks"]] == [0, 1, 2, 3]
    assert [each["ranks"] for each in found["odd"]] == [[3]] and "NCCL_DEBUG" in str(found["odd"])
    assert found["linkcheck"] == {"ok": False, "bad_ranks": [3], "time_ns": 77}


@pytest.fixture
def hostile() -> Iterator[dict[str, Any]]:
    yield {
        "groups": [None, 7, {"hash": [1], "ranks": ["x", None, -1]}],
        "ops": [None, 3],
        "dtypes": 5,
        "buckets": {"x": 1},
    }


def test_facts_that_make_no_sense_break_no_page(run: Run, hostile: dict[str, Any]) -> None:
    columns = {name: np.array([np.nan, 1e300, -5.0]) for name in ("group", "op", "sequence", "duration_s", "bytes")}
    rows = Samples("collective", "", np.array([1, 2, 3]), {"step": np.zeros(3), **columns}, hostile)
    card = Samples("gpu", "GPU-0", np.array([1]), {"recovery_action": np.array([1e300])}, {"names": 3, "host": [1]})
    said = tuple(
        Event(kind, 1, 0, "", {"facts": 3, "findings": 5, "rung": 1}) for kind in ("collectives", "environment")
    )
    run.post(opening(KNOWN))
    first = batch(KNOWN, 0, range(3), events=said)
    run.post(Batch(first.run, 0, first.incarnation, 0, first.catalogue, first.ranges, (), said, 0, (rows, card)))
    for path in ("collectives", "collectives/step", "gpus", "gpus/0?key=GPU-0", "environment"):
        assert run.ask(f"/{path}").status_code == 200, path


def hung(rank: int, enqueued: int, *waiting: dict[str, Any]) -> Event:
    """What an agent tells after 8 s without a step."""
    group = {**GROUP, "backend": "gloo", "instance": 0, "enqueued": enqueued, "completed": 79, "waiting": list(waiting)}
    data = {"step": STEPS, "stalled_s": 9.0, "is_waiting": bool(waiting), "groups": [group],
            "line": {"file": "train.py", "line": 40 + rank, "function": "step"}}  # fmt: skip
    return Event("hang", 10**18, STEPS, "no step for 9 s", data)


def test_a_rank_that_skipped_a_collective_is_named(run: Run) -> None:
    send(run, late=None)
    assert run.get("/hang")["hang"] is None and run.get()["hang"] is None
    waits = {"op": "all_reduce", "sequence": 80, "bytes": 4096, "dtype": "float32", "waited_s": 9.0}
    for rank in range(RANKS):
        event = hung(rank, 79) if rank == 2 else hung(rank, 80, waits)
        stacks = Event("stacks", 10**18, STEPS, "stacks of all threads", {"text": f"File train.py of rank {rank}"})
        run.post(batch(KNOWN, 1, [], rank=rank, events=(event, stacks)))
    wait_for(lambda: run.get("/hang")["hang"] is not None)
    found = run.get("/hang")["hang"]
    assert found["missing"] == [2] and found["waiting"] == [0, 1, 3] and "ank 2 has not joined" in found["text"]
    assert found["groups"][0]["last_enqueued"] == {"0": 80, "1": 80, "2": 79, "3": 80}
    rank = found["ranks"][2]
    assert (rank["role"], rank["where"]["line"], rank["stacks"]) == ("missing", 42, "File train.py of rank 2")
    assert run.get()["hang"] is not None
    for each in range(RANKS):  # it goes on
        run.post(batch(KNOWN, 2, [], rank=each, events=(Event("hang_over", 10**18 + 1, STEPS, "", {}),)))
    assert run.get("/hang")["hang"] is None


def wait_for(condition: Callable[[], bool]) -> None:
    while not condition():  # the test's own time limit ends it; ranks have three seconds to tell
        time.sleep(0.01)
