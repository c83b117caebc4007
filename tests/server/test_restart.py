"""Kill -9 in the middle of ingest: every acknowledged batch is there once, and the database is sound."""

from __future__ import annotations

import os
import random
import sqlite3
import threading
import time

import httpx
import pytest

from rangewatch import wire
from tests.server.conftest import Server, batch, catalogue, opening

SOAK = bool(os.environ.get("RANGEWATCH_SOAK"))
KILLS = 200 if SOAK else 3
STEPS_A_BATCH = 7


@pytest.mark.parametrize("backend", ["sqlite", "postgres"])
def test_kill_9_loses_nothing_acknowledged(
    backend: str, tmp_path, request: pytest.FixtureRequest, kills: int = KILLS
) -> None:
    path = tmp_path / "a.db"
    db = str(path) if backend == "sqlite" else request.getfixturevalue("postgres_url").replace("+psycopg", "")
    known = catalogue(4)
    acknowledged = -1
    for _kill in range(kills):
        server = Server(db)
        assert server.post(opening(known)).status_code == 202
        timer = threading.Timer(random.uniform(0.05, 0.4), server.process.kill)
        timer.start()
        acknowledged = send_until_dead(server, known, acknowledged)
        timer.join()
        server.kill()
        if backend == "sqlite":
            with sqlite3.connect(path) as connection:
                assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    server = Server(db)
    for step in range(0, (acknowledged + 1) * STEPS_A_BATCH, max(1, acknowledged // 20)):
        frames = server.get(f"/api/v1/runs/1/step?step={step}&rank=0")["frames"]
        assert [frame["call_count"] for frame in frames] == [1] * 4, step
    runs = server.get("/api/v1/runs")["runs"]
    assert runs[0]["last_step"] >= (acknowledged + 1) * STEPS_A_BATCH - 1
    server.stop()


def send_until_dead(server: Server, known, acknowledged: int) -> int:
    client = httpx.Client(timeout=5)
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        sequence = acknowledged + 1
        body = wire.encode(batch(known, sequence, range(sequence * STEPS_A_BATCH, (sequence + 1) * STEPS_A_BATCH)))
        try:
            answer = client.post(f"{server.url}/api/v1/ingest", content=body)
        except httpx.TransportError:
            return acknowledged
        assert answer.status_code == 202, answer.text
        acknowledged = answer.json()["contiguous"]
    raise AssertionError("the server was never killed")
