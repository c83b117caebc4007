"""Kill -9 while several ranks send: every acknowledged batch is there once, and the database and pyramid are sound."""

from __future__ import annotations

import random
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from sqlalchemy import select

from rangewatch import wire
from rangewatch.wire.records import Batch, StreamHeader
from rangewatch_server.core.settings import Settings
from rangewatch_server.numerics import pyramid
from rangewatch_server.numerics.pyramid import RANGES, SERIES_PART
from rangewatch_server.query.reader import Queries, RunReader
from rangewatch_server.store import tables, tiles
from rangewatch_server.store.engine import open_database
from tests.server.process import Server
from tests.server.records import batch, catalogue, opening

RANKS, TENSORS, STEPS = 3, 4, 41  # steps in a batch: no multiple of a tile's, so that batches lie across tiles
AHEAD = 4  # batches past the first that is not acknowledged, sent in any order
LEAST = 50  # batches acknowledged before a kill: some 600 steps of a rank, so that level 1 has a tile
KNOWN = catalogue(TENSORS)
COLUMNS = ["call_count", "amax", "nan_count"]


def amax(rank: int, steps: np.ndarray) -> np.ndarray:
    """(TENSORS, n): every value is another one, and exact in float32."""
    return (steps[None, :] * TENSORS + np.arange(TENSORS)[:, None]) * 4.0 + rank + 1


def nans(rank: int, steps: np.ndarray) -> np.ndarray:
    """(TENSORS, n): a NaN now and then."""
    return ((steps[None, :] + 7 * np.arange(TENSORS)[:, None] + rank) % 97 == 0) * 1.0


def message(rank: int, sequence: int) -> Batch:
    steps = np.arange(sequence * STEPS, (sequence + 1) * STEPS)
    columns = {"amax": amax(rank, steps), "nan_count": nans(rank, steps)}
    return batch(KNOWN, sequence, steps, columns, rank=rank, series={"loss": steps + 1000.0 * rank})


class Sender(threading.Thread):
    """One rank: sends its next batches in any order, each until it is acknowledged, to whatever server there is."""

    def __init__(self, rank: int, where: list[str], ended: threading.Event) -> None:
        super().__init__(name=f"sender {rank}")
        self.rank, self.where, self.ended = rank, where, ended
        self.acknowledged: set[int] = set()
        self.refused = ""

    def run(self) -> None:
        chance = random.Random(self.rank)
        with httpx.Client(timeout=20) as client:
            while not self.ended.is_set() and not self.refused:
                first = next(each for each in range(len(self.acknowledged) + 1) if each not in self.acknowledged)
                self.send(client, chance.choice([n for n in range(first, first + AHEAD) if n not in self.acknowledged]))

    def send(self, client: httpx.Client, sequence: int) -> None:
        answer = self.post(client, message(self.rank, sequence))
        if answer is not None and answer.status_code == 409:
            self.post(client, opening(KNOWN, rank=self.rank, world_size=RANKS))
        elif answer is not None and answer.status_code == 202:
            self.acknowledged.add(sequence)
        elif answer is not None and answer.status_code not in (429, 503):
            self.refused = answer.text

    def post(self, client: httpx.Client, said: StreamHeader | Batch) -> httpx.Response | None:
        """None when the server is away: again in a moment."""
        try:
            return client.post(f"{self.where[-1]}/api/v1/ingest", content=wire.encode(said))
        except httpx.TransportError:
            time.sleep(0.005)
            return None


SLOW, SOAK = pytest.mark.slow, [pytest.mark.soak, pytest.mark.timeout(7_200)]


@pytest.mark.parametrize(
    ("backend", "kills"),
    [
        ("sqlite", 1),
        *(pytest.param(each, 4, marks=SLOW) for each in ("sqlite", "postgres")),
        *(pytest.param(each, 200, marks=SOAK) for each in ("sqlite", "postgres")),
    ],
)
def test_kill_9_loses_nothing_acknowledged(
    backend: str, kills: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    path = tmp_path / "a.db"
    db = str(path) if backend == "sqlite" else request.getfixturevalue("postgres_url").replace("+psycopg", "")
    where, ended = ["http://127.0.0.1:9"], threading.Event()  # nobody is there yet
    senders = [Sender(rank, where, ended) for rank in range(RANKS)]
    for sender in senders:
        sender.start()
    try:
        for _ in range(kills):
            kill_in_the_middle(db, where, senders, path if backend == "sqlite" else None)
    finally:
        ended.set()
        for sender in senders:
            sender.join(30)
    assert [sender.refused for sender in senders] == [""] * RANKS
    everything_is_there(db, [sender.acknowledged for sender in senders])


def kill_in_the_middle(db: str, where: list[str], senders: list[Sender], path: Path | None) -> None:
    """Start, let the ranks send for a moment, kill; some batches more are acknowledged by then."""
    before = sum(len(each.acknowledged) for each in senders)
    server = Server(db)
    where.append(server.url)
    time.sleep(random.uniform(0.0, 0.3))
    while sum(len(each.acknowledged) for each in senders) < before + LEAST and not any(
        each.refused for each in senders
    ):
        time.sleep(0.01)  # pytest's own limit ends this
    server.kill()
    if path is not None:
        with sqlite3.connect(path) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def everything_is_there(db: str, acknowledged: list[set[int]]) -> None:
    """Send what was not acknowledged, and nothing else; then every batch is there once, at every level."""
    counts = [max(each) + 1 + AHEAD for each in acknowledged]  # some may be stored though nobody was told
    server = Server(db)
    for rank, count in enumerate(counts):
        for sequence in sorted(set(range(count)) - acknowledged[rank]):
            assert server.post(message(rank, sequence)).status_code == 202
        answer = server.post(message(rank, 0)).json()
        assert (answer["duplicate"], answer["contiguous"]) == (True, count - 1), "a batch that was acknowledged is gone"
    server.stop()
    engines = open_database(Settings(db=db).database_url)
    with Queries(engines.reader, live_s=15).read() as reader:
        run = reader.run(1)
        assert [len(rank.streams) for rank in run.ranks.values()] == [1] * RANKS
        for ranks in ([0], [1], [2], [0, 1, 2]):
            as_sent(run, ranks, counts)
        assert sum(is_made_of_the_level_below(run, *key) for key in stored_tiles(run)) > 0, "no run was long enough"
    engines.dispose()


def as_sent(run: RunReader, ranks: list[int], counts: list[int]) -> None:
    """Exact values at every level against plain numpy."""
    stop = max(counts[rank] for rank in ranks) * STEPS
    steps = np.arange(stop)
    seen = np.stack([steps < counts[rank] * STEPS for rank in ranks])[:, None, :]
    largest = np.where(seen, np.stack([amax(rank, steps) for rank in ranks]), 0).max(axis=0)
    bad = np.where(seen, np.stack([nans(rank, steps) for rank in ranks]), 0).sum(axis=0)
    calls = np.broadcast_to(seen.sum(axis=0), largest.shape)
    for level in range(4):
        found = run.slice(RANGES, ranks, level, 0, stop, COLUMNS).columns
        edges = np.arange(0, stop, 8**level)
        assert (found["amax"] == np.maximum.reduceat(largest, edges, axis=1)).all()
        assert (found["nan_count"] == np.add.reduceat(bad, edges, axis=1)).all()
        assert (found["call_count"] == np.add.reduceat(calls, edges, axis=1)).all(), "a batch is there twice or not"
        found = run.slice(SERIES_PART, ranks, level, 0, stop, ["count", "sum"]).columns
        assert (found["count"][0] == np.add.reduceat(calls[0], edges)).all()


def stored_tiles(run: RunReader) -> Iterator[tuple[int, str, int, int, bytes]]:
    """Every tile of the ranks' streams: rank, part, level, number, bytes."""
    columns, streams = tables.tiles.c, tables.streams.c
    query = (
        select(streams.rank, columns.part, columns.level, columns.tile, columns.payload)
        .join(tables.streams, streams.id == columns.stream_id)
        .where(columns.run_id == run.id, streams.rank >= 0)
    )
    return (tuple(row) for row in run.connection.execute(query))


def is_made_of_the_level_below(run: RunReader, rank: int, part: str, level: int, number: int, payload: bytes) -> bool:
    """Whether the tile has a level below; then it equals what that gives. Its checksum is looked at in any case."""
    rows, columns = tiles.decode(payload)
    if level == 0:
        return False
    span = 8**level * tiles.WIDTH
    names = run.names()
    below = run.slice(part, [rank], level - 1, number * span, (number + 1) * span, sorted(columns), rows)
    made = pyramid.coarser(below, names.rules[part], names.fill[part])
    for name, values in columns.items():
        assert np.array_equal(made.columns[name], values, equal_nan=True), (part, level, number, name)
    return True
