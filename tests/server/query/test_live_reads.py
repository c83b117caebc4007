"""Readers that never pause while ranks report, tiles are made and merged ranks are caught up with miss nothing.

Each read is one transaction, held open for a while as a page's figures do: the writer commits meanwhile.
"""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import numpy as np
import pytest

from rangewatch import wire
from rangewatch_server.ingest import transaction
from rangewatch_server.numerics.pyramid import AMAX_STEP, NONFINITE_STEP, RANGES
from rangewatch_server.query.reader import Queries, RunReader
from tests.server.opened_store import Store
from tests.server.records import batch, catalogue, opening

TENSORS = 3
KNOWN = catalogue(TENSORS)
READERS = 4
SOAK = [pytest.mark.soak, pytest.mark.timeout(3_600)]
WANTED = (["call_count"], ["call_count", "amax", AMAX_STEP, NONFINITE_STEP])


class Load(msgspec.Struct, frozen=True):
    """One run: how many ranks send how many steps, in batches of what size, in which order, how many at once."""

    ranks: int
    steps: int
    size: int
    order: str
    group: int
    fold_s: float

    def messages(self, run: str, random: random.Random) -> list[tuple[Any, bytes]]:
        streams = [[wire.encode(each) for each in self._of(run, rank)] for rank in range(self.ranks)]
        if self.order == "one rank after another":
            found = [body for stream in streams for body in stream]
        elif self.order == "side by side":
            found = [body for bodies in itertools.zip_longest(*streams) for body in bodies if body is not None]
        else:
            turns = [rank for rank, stream in enumerate(streams) for _ in stream]
            random.shuffle(turns)
            iterators = [iter(stream) for stream in streams]
            found = [next(iterators[rank]) for rank in turns]
        return [(wire.decode(body), body) for body in found]

    def _of(self, run: str, rank: int) -> Iterator[Any]:
        yield opening(KNOWN, run, rank, world_size=self.ranks)
        for sequence, low in enumerate(range(0, self.steps, self.size)):
            span = range(low, min(low + self.size, self.steps))
            amax = np.random.default_rng(sequence).random((TENSORS, len(span))) + 1
            yield batch(KNOWN, sequence, span, {"amax": amax}, run=run, rank=rank)


def load(number: int) -> tuple[Load, random.Random]:
    chance = random.Random(number)
    steps = chance.choice([513, 700, 1_500, 4_097])
    return Load(
        chance.randrange(2, 5), steps, chance.choice([700, chance.randrange(max(30, steps // 20), 400)]),
        chance.choice(["one rank after another", "side by side", "at random"]), chance.choice([1, 2, 5, 100]),
        chance.choice([-1.0, 0.0005, 0.005, 0.02, 0.1]),
    ), chance  # fmt: skip


class Readers:
    """Threads that look at the newest run over and over; `wrong` says what they saw."""

    def __init__(self, queries: Queries) -> None:
        self.queries = queries
        self.wrong: list[str] = []
        self.reads = 0
        self.stop = threading.Event()

    def look(self, seed: int) -> None:
        chance = random.Random(seed)
        while not self.stop.is_set():
            with self.queries.read() as reader:
                newest = reader.run_ids(limit=1)
                run = reader.run(newest[0]) if newest else None
                if run is not None and run.last_step is not None:
                    self.stop.wait(chance.choice([0, 0.005, 0.02, 0.1]))
                    for _ in range(chance.choice([1, 4, 16])):
                        self._compare(run, chance)

    def _compare(self, run: RunReader, chance: random.Random) -> None:
        assert run.last_step is not None
        level, start = chance.randrange(6), chance.choice([0, chance.randrange(run.last_step + 1)])
        stop = chance.choice([run.last_step + 1, chance.randrange(start, run.last_step + 1) + 1])
        wanted = chance.choice(WANTED)
        found = {rank: calls(run, [rank], level, start, stop, wanted) for rank in run.ranks}
        sent = {rank: TENSORS * shown(run, rank, start, stop) for rank in run.ranks}
        merged = calls(run, sorted(run.ranks), level, start, stop, wanted)
        self.reads += 1
        # Memory may be ahead of this transaction: of all ranks there may be more, and never less.
        if found != sent or merged < sum(sent.values()):
            self.wrong.append(f"run {run.id}, level {level}, [{start}, {stop}): {merged} of {sent}, each {found}")


def calls(run: RunReader, ranks: list[int], level: int, start: int, stop: int, wanted: list[str]) -> float:
    return float(run.slice(RANGES, ranks, level, start, stop, wanted).columns["call_count"].sum())


def shown(run: RunReader, rank: int, start: int, stop: int) -> int:
    stream = run.ranks[rank].streams[-1]
    if stream.first_step is None or stream.last_step is None:
        return 0
    return max(0, min(stop, stream.last_step + 1) - max(start, stream.first_step))


@pytest.mark.parametrize(
    ("database_url", "runs"),
    [
        ("sqlite", range(4, 5)),
        pytest.param("sqlite", range(4), marks=pytest.mark.slow),
        pytest.param("postgres", range(4, 5), marks=pytest.mark.slow),
        *(pytest.param(each, range(100), marks=SOAK) for each in ("sqlite", "postgres")),
    ],
    indirect=["database_url"],
)
def test_nothing_is_missed_while_tiles_are_made(store: Store, runs: range, monkeypatch: pytest.MonkeyPatch) -> None:
    queries = Queries(store.engines.reader, live_s=15, memory=store.writer.merged)
    readers = Readers(queries)
    with ThreadPoolExecutor(READERS) as threads:
        looking = [threads.submit(readers.look, seed) for seed in range(READERS)]
        try:
            for number in runs:
                planned, chance = load(number)
                monkeypatch.setattr(transaction, "FOLD_S", planned.fold_s)
                monkeypatch.setattr(transaction, "KEPT_STREAMS", chance.choice([0, 64]))
                send(store, planned.messages(f"run {number}", chance), planned.group)
                everything(queries, planned)
                assert not readers.wrong, (planned, readers.wrong[:3])
        finally:
            readers.stop.set()
        for each in looking:
            each.result(30)
    assert readers.reads


def send(store: Store, messages: list[tuple[Any, bytes]], group: int) -> None:
    for first in range(0, len(messages), group):
        for future in [store.writer.submit(*each) for each in messages[first : first + group]]:
            future.result(60)


def everything(queries: Queries, planned: Load) -> None:
    """What was acknowledged is all there at once."""
    with queries.read() as reader:
        run = reader.run(reader.run_ids(limit=1)[0])
        assert run is not None
        for level in range(6):
            whole = calls(run, list(range(planned.ranks)), level, 0, planned.steps, WANTED[0])
            assert whole == planned.ranks * planned.steps * TENSORS, (planned, level)
