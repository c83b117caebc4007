"""Runs at the edge of what one picture can hold: 10,000 layers, and 128 or 1,024 ranks."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from rangewatch import statistics, wire
from rangewatch.wire.records import Batch, Catalogue, Event, RankInfo, Samples, StreamHeader, TensorEntry
from rangewatch_server.ingest.writer import Busy
from tests.browser import hand_made_health
from tests.browser.hand_made import number
from tests.server.opened_store import Store
from tests.server.process import Server
from tests.server.records import batch, catalogue

# A server that was just started reads the newest steps rank by rank: of 1,024 ranks that takes it seconds.
RANKS, MORE_RANKS = 128, 1_024
RANK_STEPS, RANKS_A_HOST = 64, 8
LAYERS, LAYER_STEPS = 10_000, 60
LATE, CALLS = 69, 8  # the rank that the others wait for, and the collectives of each rank
PARTS = ("q", "k", "v", "o", "wi", "wo", "ln", "act", "gate", "drop")
BAD_LAYER, BAD_STEP = 6_789, 41
SECOND = 10**9


@dataclass
class LargeRuns:
    """A server and the numbers of its runs."""

    server: Server
    ranks: int
    layers: int


def make(path: Path, ranks: int) -> LargeRuns:
    """Write both through the real writer, then serve them."""
    store = Store(f"sqlite:///{path}")
    send(store, fleet(ranks))
    send(store, deep())
    while store.writer.memory.backlog or store.writer.memory.unmerged:
        time.sleep(0.02)
    store.close()
    server = Server(str(path))
    return LargeRuns(server, number(server, "many ranks"), number(server, "10,000 layers"))


def send(store: Store, messages: Iterator[StreamHeader | Batch]) -> None:
    """As fast as the writer takes them: many are committed at once."""
    waiting: deque[Future[Any]] = deque()
    for message in messages:
        waiting.append(submit(store, message))
        while len(waiting) > 256:
            waiting.popleft().result(60)
    for future in waiting:
        future.result(60)


def submit(store: Store, message: StreamHeader | Batch) -> Future[Any]:
    body = wire.encode(message)
    while True:
        try:
            return store.writer.submit(wire.decode(body), body)
        except Busy:
            time.sleep(0.01)


def fleet(ranks: int) -> Iterator[StreamHeader | Batch]:
    """Few tensors of many ranks, with their cards, hosts, collectives and environments."""
    known, run, now_ns = catalogue(6), "many ranks", time.time_ns()
    for rank in range(ranks):
        host = f"node{rank // RANKS_A_HOST:03}"
        info = RankInfo(run, rank, ranks, rank % RANKS_A_HOST, host, "a", now_ns, device="cuda")
        yield StreamHeader(info, known)
        amax = {"amax": np.full((6, RANK_STEPS), 2.0 ** (rank % 12))}
        series = {"loss": 2.0, "loss_scale": 65_536.0, "step_time_s": 0.2, "forward_s": 0.1, "backward_s": 0.1}
        facts = {"torch": {"version": "2.13.0"}, "host": {"name": host}, "variables": {"RANK": str(rank)}}
        events = (Event("environment", now_ns, 0, "", {"facts": facts, "findings": []}),)
        yield batch(known, 0, range(RANK_STEPS), amax, run=run, rank=rank, series=series, events=events)
        yield hand_made_health.with_samples(
            batch(known, 1, range(0), run=run, rank=rank), *samples(rank, ranks, host, now_ns)
        )


def samples(rank: int, ranks: int, host: str, now_ns: int) -> tuple[Samples, ...]:
    """Four seconds of its card, which is one of those of `hand_made_health`, its host and its collectives."""
    card = last(hand_made_health.card(rank, now_ns), 4)
    card = msgspec.structs.replace(card, about=card.about | {"host": host, "device_index": rank % RANKS_A_HOST})
    if rank % RANKS_A_HOST:
        return card, all_reduces(rank, ranks)
    of_host = last(hand_made_health.host(rank, now_ns), 4)
    return card, all_reduces(rank, ranks), msgspec.structs.replace(of_host, about={"host": host, "cpus": 96})


def last(found: Samples, count: int) -> Samples:
    columns = {name: values[-count:] for name, values in found.columns.items()}
    return msgspec.structs.replace(found, times_ns=found.times_ns[-count:], columns=columns)


def all_reduces(rank: int, ranks: int) -> Samples:
    """One a step in the last steps; all wait 20 ms for one rank."""
    one, step = np.ones(CALLS), np.arange(RANK_STEPS - CALLS, RANK_STEPS, dtype=float)
    columns = {
        "step": step, "group": 0 * one, "op": 0 * one, "dtype": 0 * one, "bytes": 2.0**22 * one,
        "sequence": np.arange(CALLS) * 1.0, "duration_s": np.where(rank == LATE, 0.001, 0.021) * one,
        "bucket": 0 * one, "is_symmetric": one,
    }  # fmt: skip
    group = {"name": "0", "hash": "abc", "ranks": list(range(ranks)), "desc": "default_pg"}
    about = {"groups": [group], "ops": ["all_reduce"], "dtypes": ["float32"], "rung": "ddp"}
    return Samples("collective", "", 10**18 + (step * SECOND / 5).astype(np.int64), columns, about)


def deep() -> Iterator[StreamHeader | Batch]:
    """Many layers of two ranks, healthy but for one Inf."""
    run, known = "10,000 layers", Catalogue(statistics.ALL, tuple(layer(i) for i in range(LAYERS)))
    bad = np.zeros((LAYERS, LAYER_STEPS))
    bad[BAD_LAYER, BAD_STEP] = 1
    for rank in range(2):
        yield StreamHeader(RankInfo(run, rank, 2, rank, "node000", "a", time.time_ns()), known)
        columns = {
            "inf_count": bad * rank,
            "amax": 2.0 ** (np.arange(LAYERS) % 9)[:, None] + np.zeros((1, LAYER_STEPS)),
        }
        yield batch(
            known, 0, range(LAYER_STEPS), columns, run=run, rank=rank, series={"loss": 2.0, "loss_scale": 1024.0}
        )


def layer(i: int) -> TensorEntry:
    stack, place = ("encoder", i) if i < LAYERS // 2 else ("decoder", i - LAYERS // 2)
    name = f"model.{stack}.block.{place // len(PARTS)}.{PARTS[place % len(PARTS)]}"
    return TensorEntry(name, "output", 0, "float16", (8, 512, 1_024), i, "Linear")
