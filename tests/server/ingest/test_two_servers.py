"""Two servers on one PostgreSQL: ranks send to either, one is killed, nothing acknowledged is lost and pages go on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
import pytest

from rangewatch import wire
from rangewatch_server.query.reader import Queries
from rangewatch_server.store.engine import open_database
from tests.server.process import Server
from tests.server.records import batch, catalogue, opening

KNOWN = catalogue(6)
RANKS, BATCHES, STEPS = 4, 30, 16


def amax(rank: int, step: int) -> float:
    return float(1 + (rank * 7 + step * 13) % 1000)


class Sender(threading.Thread):
    """One rank behind a load balancer: each request goes to one of the servers, and to the other when that fails."""

    def __init__(self, rank: int, urls: list[str]) -> None:
        super().__init__(daemon=True)
        self.rank, self.urls = rank, urls
        self.acknowledged: list[int] = []
        self.moves = np.random.default_rng(rank)

    def post(self, message: Any) -> int:
        body = wire.encode(message)
        for _ in range(400):
            url = self.urls[0] if self.moves.random() < 0.8 else self.urls[-1]
            try:
                status = httpx.post(f"{url}/api/v1/ingest", content=body, timeout=20).status_code
            except httpx.TransportError:
                self.urls = [each for each in self.urls if each != url] or self.urls
                continue
            if status in (429, 503):
                time.sleep(0.05)
                continue
            return status
        raise AssertionError("no server took it")

    def run(self) -> None:
        assert self.post(opening(KNOWN, rank=self.rank, world_size=RANKS)) == 202
        for number in range(BATCHES):
            steps = range(number * STEPS, (number + 1) * STEPS)
            values = {"amax": [[amax(self.rank, step) for step in steps]]}
            sent = batch(KNOWN, number, steps, values, rank=self.rank, series={"loss": 1.0})
            assert self.post(sent) == 202
            self.acknowledged.append(number)
            time.sleep(0.02)


def wait_for(said: Callable[[], bool], what: str) -> None:
    for _ in range(600):
        if said():
            return
        time.sleep(0.05)
    raise AssertionError(what)


@pytest.mark.slow
def test_one_of_two_servers_is_killed_in_the_middle(postgres_url: str, start_server: Callable[..., Server]) -> None:
    first, second = start_server(db=postgres_url), start_server(db=postgres_url)
    senders = [
        Sender(rank, [first.url, second.url] if rank % 2 == 0 else [second.url, first.url]) for rank in range(RANKS)
    ]
    heard: list[str] = []
    threading.Thread(target=listen, args=(second, heard), daemon=True).start()
    for sender in senders:
        sender.start()
    wait_for(lambda: all(len(sender.acknowledged) > BATCHES // 3 for sender in senders), "the ranks get on")
    first.kill()
    before = len(heard)
    for sender in senders:
        sender.join(60)
        assert sender.acknowledged == list(range(BATCHES)), sender.rank
    wait_for(lambda: len(heard) > before, "live pages go on")
    check_values(postgres_url)
    assert second.get("/api/v1/runs/1")["last_step"] == BATCHES * STEPS - 1
    # The one that is left keeps the merged ranks from now on, though it did not begin them.
    wait_for(lambda: merged_frontier(postgres_url) >= (BATCHES * STEPS) // 64 * 64 - 64, "merged ranks go on")
    check_values(postgres_url)


def listen(server: Server, heard: list[str]) -> None:
    try:
        with httpx.stream("GET", f"{server.url}/api/v1/live", timeout=60) as answer:
            heard.extend(line for line in answer.iter_lines() if line.startswith("data:"))
    except httpx.TransportError:
        return


def merged_frontier(url: str) -> int:
    engines = open_database(url)
    try:
        with Queries(engines.reader, 15).read() as reader:
            return reader.run(1).merged.frontier
    finally:
        engines.dispose()


def check_values(url: str) -> None:
    """Every rank's values exactly once, and all ranks together."""
    engines = open_database(url)
    stop = BATCHES * STEPS
    try:
        with Queries(engines.reader, 15).read() as reader:
            run = reader.run(1)
            every = np.array([[amax(rank, step) for step in range(stop)] for rank in range(RANKS)])
            for rank in range(RANKS):
                block = run.slice("ranges", [rank], 0, 0, stop, ("amax", "call_count"))
                np.testing.assert_array_equal(block.columns["amax"][0], every[rank])
                assert (block.columns["call_count"] == 1).all()
            block = run.slice("ranges", list(range(RANKS)), 0, 0, stop, ("amax", "call_count"))
            np.testing.assert_array_equal(block.columns["amax"][0], every.max(axis=0))
            assert (block.columns["call_count"] == RANKS).all()
    finally:
        engines.dispose()


@pytest.mark.slow
def test_names_given_by_two_servers_at_once_are_one_numbering(
    postgres_url: str, start_server: Callable[..., Server]
) -> None:
    servers = [start_server(db=postgres_url), start_server(db=postgres_url)]

    def send(rank: int) -> None:
        known = catalogue(5 + rank)
        server = servers[rank % 2]
        for message in (
            opening(known, rank=rank, world_size=8),
            batch(known, 0, range(70), {"amax": float(rank)}, rank=rank, series={f"log{rank}": 1.0, "loss": 2.0}),
        ):
            while (
                httpx.post(f"{server.url}/api/v1/ingest", content=wire.encode(message), timeout=30).status_code != 202
            ):
                time.sleep(0.05)

    threads = [threading.Thread(target=send, args=(rank,)) for rank in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for server in servers:
        assert len(server.get("/api/v1/runs/1/tensors")["tensors"]) == 12
        assert server.get("/api/v1/runs/1")["series"] == sorted([f"log{rank}" for rank in range(8)] + ["loss"])
