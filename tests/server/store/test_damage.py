"""Tiles whose bytes have changed on the disk: what is around them stays readable, and ingest goes on."""

from __future__ import annotations

import base64
import logging
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from fastapi.testclient import TestClient
from sqlalchemy import create_engine, make_url, select, text, tuple_, update

from rangewatch import wire
from rangewatch.wire.records import Batch, StreamHeader
from rangewatch_server.core.settings import Settings
from rangewatch_server.http.app import create_app
from rangewatch_server.numerics.headroom import State
from rangewatch_server.numerics.pyramid import RANGES
from rangewatch_server.store import tables
from tests.server.opened_store import Store
from tests.server.process import Server
from tests.server.records import batch, catalogue, opening

KNOWN = catalogue(3)
STEPS, SPIKE = 1_100, 200  # two tiles of level 1; the spike is in tile 3 of level 0
COLUMNS = ["amax", "call_count"]


class Damaged:
    """The real application in this process over a real database, whose tiles somebody breaks."""

    def __init__(self, client: TestClient, url: str) -> None:
        self.client, self.url = client, url
        self.state = client.app.state

    def send(self, message: StreamHeader | Batch) -> None:
        body = wire.encode(message)
        self.state.writer.submit(wire.decode(body), body).result(30)

    def slice(self, level: int, part: str = RANGES, start: int = 0, stop: int = STEPS) -> dict[str, np.ndarray]:
        with self.state.queries.read() as reader:
            return reader.run(1).slice(part, [0], level, start, stop, COLUMNS).columns

    def figure(self, name: str = "layers", **query: object) -> dict[str, Any]:
        answer = self.client.get(f"/api/v1/runs/1/figures/{name}", params={"rank": 0, **query})
        assert answer.status_code == 200, answer.text
        return answer.json()["meta"]

    def wait_until(self, holds: Callable[[Any], bool]) -> None:
        """Tiles may be made after the answer: wait for what the row of the stream must say."""
        while True:  # the test's own time limit ends it
            with self.state.queries.read() as reader:
                if holds(reader.run(1).ranks[0].row):
                    return
            time.sleep(0.01)

    def break_tiles(self, part: str, *places: tuple[int, int]) -> None:
        """Tiles of rank 0, by level and number."""
        columns = tables.tiles.c
        here = (columns.part == part) & tuple_(columns.level, columns.tile).in_(places)
        here &= columns.stream_id.in_(select(tables.streams.c.id).where(tables.streams.c.rank == 0))
        engine = create_engine(self.url)
        with engine.begin() as connection:
            done = connection.execute(update(tables.tiles).where(here).values(payload=b"RWT1 and no more"))
        engine.dispose()
        assert done.rowcount == len(places)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database: one rank whose tiles are all made, with a spike; nothing is broken yet."""
    path = tmp_path_factory.mktemp("damage") / "whole.db"
    store = Store(f"sqlite:///{path}")
    store.send(opening(KNOWN))
    for sequence, low in enumerate(range(0, STEPS, 100)):
        amax = np.ones((3, 100))
        amax[1, SPIKE - low if low <= SPIKE < low + 100 else 0] = 65504.0 if low <= SPIKE < low + 100 else 1.0
        store.send(batch(KNOWN, sequence, range(low, low + 100), {"amax": amax}))
    store.close()  # after which nothing waits to be made into tiles
    return path


@pytest.fixture
def damaged(whole: Path, sqlite_url: str) -> Iterator[Damaged]:
    """A copy, to be damaged."""
    shutil.copy(whole, make_url(sqlite_url).database or "")
    with TestClient(create_app(Settings(db=sqlite_url)), base_url="http://127.0.0.1") as client:
        found = Damaged(client, sqlite_url)
        found.wait_until(lambda row: row.frontier == STEPS // 64 * 64)
        yield found


def states(meta: dict[str, Any]) -> np.ndarray:
    encoded = meta["states"]
    values = np.frombuffer(base64.b64decode(encoded["bdata"]), np.uint8)
    return values.reshape([int(n) for n in encoded["shape"].split(",")])


def test_a_tile_above_is_read_from_below(damaged: Damaged) -> None:
    whole = [damaged.slice(level) for level in range(4)]
    damaged.state.queries.cache.__init__()
    damaged.break_tiles("ranges", (1, 0))
    for level, before in enumerate(whole):
        for name, values in damaged.slice(level).items():
            assert np.array_equal(values, before[name]), (level, name)
    meta = damaged.figure(columns=STEPS // 8)
    assert (meta["level"], meta["damaged_tiles"]) == (1, 1)
    assert meta["damaged"] == [{"rank": 0, "part": "ranges", "level": 1, "first_step": 0, "last_step": 511}]
    assert (states(meta) == State.SATURATED).sum() == 1


def test_at_the_bottom_its_steps_are_not_observed(damaged: Damaged, caplog: pytest.LogCaptureFixture) -> None:
    damaged.break_tiles("ranges", (0, 3))
    with caplog.at_level(logging.WARNING, "rangewatch.server"):
        meta = damaged.figure(columns=2_000)
        damaged.slice(0)  # other columns: the same tile again
    assert meta["damaged"] == [{"rank": 0, "part": "ranges", "level": 0, "first_step": 192, "last_step": 255}]
    assert np.flatnonzero((states(meta) == State.NOT_OBSERVED).all(axis=0)).tolist() == list(range(192, 256))
    assert len([record for record in caplog.records if "damaged" in record.message]) == 1
    assert (damaged.slice(1)["amax"][1] == 65504).sum() == 1, "the tile above still has what it was made of"
    step = damaged.client.get("/api/v1/runs/1/step", params={"step": SPIKE, "rank": 0}).json()
    assert (step["observed"], step["damaged_tiles"]) == (False, 1)
    assert "damaged" not in damaged.figure(start=300, stop=400), "what is asked of other steps says nothing of it"


def test_every_tile_of_a_part_is_damaged(damaged: Damaged) -> None:
    places = [(0, n) for n in range(STEPS // 64)] + [(1, 0), (1, 1)]
    for part in ("summary", "ranges"):
        damaged.break_tiles(part, *places)
    for figure, tensor in (("timeline", {}), ("timeline", {"tensor": 1}), ("tensor", {"tensor": 1})):
        meta = damaged.figure(figure, columns=20, **tensor)
        assert meta["damaged_tiles"] == 2 + 17, "both of level 1, and below them all that they are made of"
    assert damaged.client.get("/api/v1/runs").status_code == 200
    assert damaged.client.get("/api/v1/runs/1").status_code == 200


@pytest.mark.parametrize("level", [0, 1])
def test_late_rows_for_a_damaged_tile_are_taken(damaged: Damaged, level: int) -> None:
    """A client goes back to step 130, whose tile, or that above it, cannot be read."""
    tile = 130 // (64 * 8**level)
    damaged.break_tiles("ranges", (level, tile))
    damaged.send(batch(KNOWN, STEPS // 100, [130], {"amax": 3.0}))
    damaged.send(batch(KNOWN, STEPS // 100 + 1, range(STEPS, STEPS + 10)))
    damaged.wait_until(lambda row: row.rewrites > 0)
    found = damaged.slice(0, start=128, stop=192)
    assert (found["amax"][:, 2] == 3).all()
    assert found["call_count"].sum() == (3 if level == 0 else 3 * 65), (
        "of a damaged tile at the bottom only that is known"
    )
    assert damaged.slice(1)["amax"][:, 130 // 8].tolist() == [3.0] * 3
    assert "damaged" not in damaged.figure(columns=2_000)
    assert "damaged" not in damaged.figure(columns=STEPS // 8)


def test_a_damaged_batch_costs_its_steps_only(sqlite_url: str, open_store: Callable[[str], Store]) -> None:
    """One that is not in tiles yet: it is read neither by pages nor after a start, and the rank goes on."""
    store = open_store(sqlite_url)
    known = catalogue(3)
    store.send(opening(known))
    for number in range(3):
        store.send(batch(known, number, range(number * 10, number * 10 + 10), {"amax": number + 1.0}))

    def damage(connection: Any) -> None:
        connection.execute(text("UPDATE batches SET body = :body WHERE sequence = 1"), {"body": b"RW?"})

    store.writer.work(damage, forgets=True).result(30)
    store.send(batch(known, 3, range(30, 40), {"amax": 4.0}))
    with store.queries.read() as reader:
        run = reader.run(1)
        found = run.slice("ranges", [0], 0, 0, 40, ("amax",), np.arange(1)).columns["amax"][0]
    assert found.tolist() == [1.0] * 10 + [0.0] * 10 + [3.0] * 10 + [4.0] * 10


def test_damaged_pages_are_no_readiness(start_server: Callable[..., Server], tmp_path: Path) -> None:
    """All reads of a table fail, and writes elsewhere work: a balancer went on sending here."""
    path = tmp_path / "server.db"
    server = start_server(db=str(path))
    assert server.post(opening(KNOWN)).status_code == 202
    server.stop()  # the log is in the file now
    with sqlite3.connect(path) as connection:
        page = connection.execute("PRAGMA page_size").fetchone()[0]
        (root,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'streams'").fetchone()
    connection.close()
    with path.open("r+b") as file:
        file.seek((root - 1) * page)
        file.write(b"\xff" * page)
    again = start_server(db=str(path))
    assert httpx.get(f"{again.url}/api/v1/runs").status_code >= 500
    answer = httpx.get(f"{again.url}/readyz")
    pages = next(each for each in answer.json()["checks"] if each["name"] == "pages")
    assert answer.status_code == 503 and pages["state"] == "failed" and "malformed" in pages["value"]
