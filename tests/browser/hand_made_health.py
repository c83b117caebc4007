"""Runs of four ranks whose collectives, cards, hosts and environments are known: one with trouble, two that hang."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from rangewatch.wire.records import Batch, Event, Samples, StreamHeader
from tests.server.process import Server
from tests.server.records import batch, catalogue, opening

KNOWN = catalogue(3)
RANKS, STEPS, BUCKETS, LATE = 4, 60, 4, 2
DELAY_S = 0.030  # what rank 2 costs the others at its first collective of each step
SECOND = 10**9
MARK = "<img src=x onerror=alert(9)>"
GROUP = {"name": "0", "hash": "abc", "ranks": list(range(RANKS)), "desc": "default_pg"}
MARKUP_GROUP = {"name": "7", "hash": "def", "ranks": [0, 1], "desc": MARK}
NAMES = {
    "throttle_reasons": {"4": "sw_power_cap", "64": "hw_thermal_slowdown"},
    "recovery_action": {"2": "reboot the node"},
}
XID = f"H100 cuda:1 (GPU-3): Xid 79, fell off the bus. What to do: reboot the node {MARK}"
STACKS = (
    'Thread 0x00007f (most recent call first):\n  File "train.py", line 71 in load_checkpoint\n'
    '  File "train.py", line 120 in main\n'
)


def collectives(rank: int, steps: int = STEPS) -> Samples:
    """Every rank's all_reduces; rank 2 comes 30 ms late to the first of each step. Hosts' clocks differ by an hour."""
    count = steps * BUCKETS
    step, bucket = np.divmod(np.arange(count), BUCKETS)
    took = 0.001 + np.random.default_rng(rank).random(count) * 1e-4
    took += np.where((bucket == 0) & (rank != LATE), DELAY_S, 0.0)
    took[5] = np.nan  # not known
    at = rank * 3_600 * SECOND + 10**18 + step * SECOND // 5 + bucket * SECOND // 50
    one = np.ones(count)
    columns = {
        "step": step, "group": 0 * one, "op": 0 * one, "dtype": 0 * one, "bytes": 2.0**20 * (1 + bucket),
        "sequence": np.arange(count), "duration_s": took, "bucket": bucket, "is_symmetric": one,
    }  # fmt: skip
    if rank < 2:  # a group with a hostile name, and ops that are rooted
        columns = {name: np.append(values, np.asarray(values)[-3:]) for name, values in columns.items()}
        columns["group"][-3:], columns["op"][-3:], columns["is_symmetric"][-3:] = 1, 1, 0
        columns["sequence"][-3:], at = np.arange(3), np.append(at, at[-3:] + SECOND // 40)
    about = {
        "groups": [GROUP, MARKUP_GROUP], "ops": ["all_reduce", "broadcast"], "dtypes": ["float32"], "rung": "ddp",
        "buckets": {str(n): [f"layer{n}.weight", MARK] for n in range(BUCKETS)},
    }  # fmt: skip
    order = np.argsort(at, kind="stable")
    return Samples("collective", "", at[order], {k: np.asarray(v, float)[order] for k, v in columns.items()}, about)


def card(rank: int, now_ns: int) -> Samples:
    """Two minutes of rank's card: 0 is well, 1 is hot and slowed, 2 has gone, 3 has memory errors."""
    times = now_ns + (np.arange(-120, 0) * SECOND)
    second = np.arange(120.0)
    hot = np.where(second > 80, 30.0, 0.0) * (rank == 1)
    columns = {
        "step": second // 2, "present": np.where((rank == 2) & (second > 110), 0.0, 1.0),
        "utilization_gpu_percent": 90 + 8 * np.sin(second / 7), "utilization_memory_percent": 40 + second / 10,
        "memory_used_bytes": np.full(120, 61.0 * 2**30), "memory_total_bytes": np.full(120, 80.0 * 2**30),
        "power_w": 600 + 60 * np.sin(second / 9), "power_limit_w": np.full(120, 700.0),
        "temperature_c": 58 + hot, "temperature_memory_c": np.full(120, np.nan), "slowdown_margin_c": 31 - hot,
        "sm_clock_mhz": 1980 - 25 * hot, "memory_clock_mhz": np.full(120, 2619.0),
        "throttle_reasons": np.where(hot > 0, 64.0, 0.0) + np.where((second > 20) & (second < 40), 4.0, 0.0),
        "ecc_uncorrected_volatile": np.where(second > 90, 2.0, 0.0) * (rank == 3),
        "recovery_action": np.full(120, np.nan), "pcie_sent_bytes_per_s": 1e9 + second,
    }  # fmt: skip
    if rank == 2:
        gone = columns["present"] == 0
        columns = {n: v if n in ("step", "present") else np.where(gone, np.nan, v) for n, v in columns.items()}
    about = {
        "name": "NVIDIA H100", "uuid": f"GPU-{rank}", "host": f"node{rank // 2}", "device_index": rank % 2,
        "driver_version": "580.65.06", "maxima": {"sm_clock_mhz": 1980.0, "memory_clock_mhz": 2619.0}, "names": NAMES,
    }  # fmt: skip
    return Samples("gpu", f"GPU-{rank}", times, columns, about)


def host(rank: int, now_ns: int) -> Samples:
    times = now_ns + (np.arange(-120, 0) * SECOND)
    second, one = np.arange(120.0), np.ones(120)
    columns = {
        "step": second // 2, "cpu_percent": 30 + second / 10, "load_1m": 12 * one,
        "memory_used_bytes": 200 * 2**30 * one,
        "memory_total_bytes": 1024 * 2**30 * one, "disk_cwd_free_bytes": 5 * 2**30 * one,
        "network_received_bytes_per_s": 2e8 * one, "network_sent_bytes_per_s": np.nan * one,
    }  # fmt: skip
    return Samples("host", "", times, columns, {"host": f"node{rank // 2}", "cpus": 96})


def events(rank: int, now_ns: int) -> tuple[Event, ...]:
    finding = {
        "code": "unread_timeout", "severity": "warning", "what": "NCCL_TIMEOUT=3600 has no effect",
        "why": f"Neither torch nor NCCL reads it. {MARK}", "do": "unset NCCL_TIMEOUT", "where": "NCCL_TIMEOUT",
    }  # fmt: skip
    facts = {
        "torch": {"version": "2.13.0", "cuda": "13.0", "nccl": None}, "host": {"name": f"node{rank // 2}"},
        "variables": {"NCCL_DEBUG": "INFO" if rank == 3 else "WARN", "NCCL_TIMEOUT": "3600", MARK: MARK},
    }  # fmt: skip
    why = "DDP's communication hook" if rank < 3 else f"captured into a CUDA graph {MARK}"
    said = [
        Event("collectives", 1, 0, "", {"rung": "ddp" if rank < 3 else "hidden", "why": why}),
        Event("environment", 1, 0, "", {"facts": facts, "findings": [finding]}),
    ]
    if rank == 2:
        lost = f"H100 cuda:0 (GPU-2): does not answer any more: GPU is lost {MARK}"
        said.append(Event("gpu_lost", now_ns - 9 * SECOND, 55, lost, {"uuid": "GPU-2"}))
    if rank == 3:
        said.append(Event("xid", now_ns - 20 * SECOND, 50, XID, {"uuid": "GPU-3", "xid": 79, "resolution": "reboot"}))
        said.append(
            Event(
                "gpu",
                now_ns - 30 * SECOND,
                45,
                "GPU-3: memory errors",
                {"uuid": "GPU-3", "ecc_uncorrected_volatile": 2},
            )
        )
        said.append(Event("linkcheck", now_ns - 600 * SECOND, -1, "", linkcheck()))
    return tuple(said)


def linkcheck(ranks: int = 8) -> dict[str, Any]:
    """Eight ranks: the link of 2 and 5 is bad, that of 0 and 7 slow, 3 and 4 were not tested together."""
    pairs = [pair(a, b) for a in range(ranks) for b in range(a + 1, ranks)]
    known = [
        {
            "rank": r,
            "host": MARK if r == 1 else f"node{r // 4}",
            "local_rank": r % 4,
            "device": "H100",
            "ok": True,
            "fault": "",
            "error": "",
        }
        for r in range(ranks)
    ]
    return {
        "version": 1, "ok": False, "world_size": ranks, "backend": "nccl", "backend_reason": "every rank has a GPU",
        "nccl_error": "", "timeout_s": 15.0, "duration_s": 21.5, "message_bytes": 64 << 20, "bad_ranks": [],
        "bad_pairs": [[2, 5]], "slow_pairs": [[0, 7]], "bad_groups": [], "bad_hosts": [], "pairs": pairs,
        "ranks": known, "pairs_left_out": 0, "all_ranks": None, "subsets": [], "is_passing_again": False,
    }  # fmt: skip


def pair(a: int, b: int) -> dict[str, Any]:
    found = {
        "a": a,
        "b": b,
        "ok": True,
        "slow": False,
        "latency_s": 2e-5 + a * 1e-7,
        "busbw_bytes_per_s": 2.1e11,
        "error": "",
    }
    if (a, b) == (0, 7):
        found |= {"slow": True, "latency_s": 9e-5, "busbw_bytes_per_s": 3e10}
    if (a, b) == (2, 5):
        found |= {
            "ok": False,
            "latency_s": None,
            "busbw_bytes_per_s": None,
            "error": f"the worker died by SIGSEGV {MARK}",
        }
    if (a, b) == (3, 4):
        found |= {"ok": None, "latency_s": None, "busbw_bytes_per_s": None, "error": "the budget was over"}
    return found


def hang(rank: int, *, different: bool) -> dict[str, Any]:
    """What a rank says of itself: rank 2 has not joined collective 41, or rank 1 calls it with another size."""
    has_joined = different or rank != LATE
    size = 4096 if different and rank == 1 else 1 << 20
    call = {"op": "all_reduce", "sequence": 41, "bytes": size, "dtype": "float32", "waited_s": 12.5, "step": 10}
    line = {
        "file": "/home/user/train.py",
        "line": 98 if has_joined else 71,
        "function": "step" if has_joined else "load_checkpoint",
    }
    group = {**GROUP, "enqueued": 41 if has_joined else 40, "completed": 40, "waiting": [call] if has_joined else []}
    return {"step": 10, "stalled_s": 12.5, "is_waiting": has_joined, "rung": "hooks", "groups": [group], "line": line}


def with_samples(found: Batch, *samples: Samples) -> Batch:
    return msgspec.structs.replace(found, samples=samples)


def accept(server: Server, message: Any) -> None:
    answer = server.post(message)
    assert answer.status_code == 202, answer.text


LASTING = 100
"""Steps after which a straggler is worth a warning."""


def late(name: str, now_ns: int, *, is_hot: bool, loss: float | NDArray[Any] = 1.0) -> Iterator[StreamHeader | Batch]:
    """A run of which rank `LATE` comes late to each step; its card is throttled from step 15 on, or it has none."""
    series = {"loss": loss, "step_time_s": 0.2, "forward_s": 0.04, "optimizer_s": 0.01, "other_s": 0.002}
    for rank in range(RANKS):
        is_late = rank == LATE
        mine = series | {"backward_s": 0.13 if is_late else 0.1, "data_wait_s": 0.001} | {
            "exposed_comm_s": 0.0 if is_late else DELAY_S
        }  # fmt: skip
        yield opening(KNOWN, name, rank, world_size=RANKS)
        first = batch(KNOWN, 0, range(LASTING), run=name, rank=rank, series=mine)
        cards = [throttled_card(rank, now_ns, is_hot=is_late)] if is_hot else []
        yield with_samples(first, collectives(rank, LASTING), *cards, host(rank, now_ns))


def throttled_card(rank: int, now_ns: int, *, is_hot: bool) -> Samples:
    """Two minutes of rank's card, two seconds a step; a hot one is throttled after 30 s."""
    second = np.arange(120.0)
    is_slow = (second > 30) & is_hot
    columns = {
        "step": second // 2, "present": np.ones(120), "temperature_c": np.where(is_slow, 92.0, 60.0),
        "sm_clock_mhz": np.where(is_slow, 1200.0, 1980.0), "throttle_reasons": np.where(is_slow, 64.0, 0.0),
    }  # fmt: skip
    about = {"name": "H100", "uuid": f"GPU-{rank}", "host": f"node{rank // 2}", "device_index": rank % 2}
    about |= {"maxima": {"sm_clock_mhz": 1980.0}}
    return Samples("gpu", f"GPU-{rank}", now_ns + np.arange(-120, 0) * SECOND, columns, about)


def send(server: Server) -> None:
    """The runs `health`, `hung` and `mismatch`."""
    now_ns = time.time_ns()
    series = {
        "loss": 1.0,
        "step_time_s": 0.2,
        "forward_s": 0.04,
        "backward_s": 0.1,
        "optimizer_s": 0.01,
        "other_s": 0.002,
    }
    for rank in range(RANKS):
        accept(server, opening(KNOWN, "health", rank, world_size=RANKS))
        mine = series | {
            "data_wait_s": 0.03 if rank == LATE else 0.001,
            "exposed_comm_s": 0.0 if rank == LATE else 0.03,
        }
        first = batch(KNOWN, 0, range(STEPS), run="health", rank=rank, series=mine, events=events(rank, now_ns))
        accept(server, with_samples(first, collectives(rank), card(rank, now_ns), host(rank, now_ns)))
    for run, different in (("hung", False), ("mismatch", True)):
        for rank in range(RANKS):
            said = (
                Event("hang", now_ns - 60 * SECOND, 10, "no step", hang(rank, different=different)),
                Event("stacks", now_ns - 60 * SECOND, 10, "stacks", {"text": f"{STACKS}# rank {rank} {MARK}\n"}),
            )
            accept(server, opening(KNOWN, run, rank, world_size=RANKS))
            found = batch(KNOWN, 0, range(11), run=run, rank=rank, events=said)
            accept(server, with_samples(found, host(rank, now_ns)))
