"""Four real ranks with real trouble planted on rank 2: who is named, and with which class, live over HTTP.

Agents tell of a hang after `HANG_S` here, and in a soak after their usual 8 s. bench/stragglers.py has twenty seeds.
"""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import forked
from tests.server.process import Server

WORKER = Path(__file__).with_name("four_ranks.py")
RANKS = 4
HANG_S = 4.0
ENOUGH_STEPS = 60
SLOW = pytest.mark.slow
SOAK = [pytest.mark.soak, pytest.mark.timeout(300)]


class Job:
    """Four ranks of one run, started by hand as a launcher would."""

    def __init__(self, url: str, trouble: str, hang_s: float | None) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        usual = os.environ | {
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(RANKS), "OMP_NUM_THREADS": "1",
        } | ({"RANGEWATCH_HANG_S": str(hang_s)} if hang_s else {})  # fmt: skip
        self.processes = [
            forked.rank.start(
                WORKER, url, trouble, stderr=subprocess.DEVNULL,
                env=usual | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            )
            for rank in range(RANKS)
        ]  # fmt: skip

    def end(self) -> None:
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait(30)


@pytest.fixture
def start(served: Server) -> Iterator[Callable[..., tuple[Server, int]]]:
    jobs: list[Job] = []

    def begin(trouble: str, hang_s: float | None = HANG_S) -> tuple[Server, int]:
        before = {each["id"] for each in served.get("/api/v1/runs")["runs"]}
        jobs.append(Job(served.url, trouble, hang_s))
        return served, wait_for(lambda: number_of(served, trouble, before))

    yield begin
    for each in jobs:
        each.end()


def number_of(server: Server, run: str, before: set[int]) -> int | None:
    """Of the run of that name which was not there before."""
    listed = server.get("/api/v1/runs")["runs"]
    return next((each["id"] for each in listed if each["name"] == run and each["id"] not in before), None)


def wait_for(condition: Callable[[], Any]) -> Any:
    while not (found := condition()):  # the test's own time limit ends it
        time.sleep(0.05)
    return found


def collectives(server: Server, run: int) -> dict[str, Any]:
    return server.get(f"/api/v1/runs/{run}/collectives")


def test_who_is_late_is_named_and_then_who_stops(start: Any) -> None:
    server, run = start("backward, skip")
    late_is_named(server, run, "backward")
    stopped_is_named(server, run, "skip")


@pytest.mark.parametrize(
    "where", [pytest.param("data loader", marks=SLOW), pytest.param("backward", marks=SOAK),
              pytest.param("before backward", marks=SOAK)],
)  # fmt: skip
def test_the_late_rank_is_named_and_what_it_is_late_with(start: Any, where: str) -> None:
    late_is_named(*start(where), where)


def late_is_named(server: Server, run: int, where: str) -> None:
    verdict = wait_for(lambda: named(collectives(server, run)))
    assert verdict["rank"] == 2 and verdict["class"] == "non-communication slow", verdict
    wanted = {"before backward": {"before backward", "forward"}, "backward": {"inside backward"}}
    assert verdict["where"] in wanted.get(where, {where}), verdict
    assert verdict["text"] and verdict["cost_s"] > 0.01


def reported(server: Server, run: int, *, of_all: bool) -> dict[str, Any] | None:
    """The finding; of those who called different things most are known once all have told, a second or two later."""
    found = server.get(f"/api/v1/runs/{run}/hang")["hang"]
    is_whole = found and (not of_all or sum(len(side["ranks"]) for side in found["mismatch"]) == RANKS)
    return found if is_whole else None


def who_wait(server: Server, run: int) -> int:
    found = reported(server, run, of_all=False)
    return sum(each["role"] == "waiting" for each in found["ranks"]) if found else 0


def of_rank_2(server: Server, run: int, key: str) -> dict[str, Any] | None:
    """What is known of it once `key` is."""
    found = reported(server, run, of_all=False)
    return found["ranks"][2] if found and found["ranks"][2][key] else None


def named(found: dict[str, Any]) -> dict[str, Any] | None:
    steps = found["stop"] - found["start"]
    return found["verdict"] if steps >= ENOUGH_STEPS else None


@SLOW
def test_nobody_is_named_where_nothing_is_planted(start: Any) -> None:
    server, run = start("nothing")
    wait_for(lambda: len(collectives(server, run)["steps"]) >= ENOUGH_STEPS)
    for _ in range(4):
        found = collectives(server, run)
        assert found["verdict"] is None or found["verdict"]["rank"] is None, found["verdict"]
        assert found["coverage"] > 0.5
        time.sleep(0.5)


@pytest.mark.parametrize(
    ("trouble", "hang_s"),
    [
        pytest.param("SIGSTOP", HANG_S, marks=SLOW),
        *(pytest.param(each, None, marks=SOAK) for each in ("skip", "SIGSTOP", "size", "SIGKILL")),
    ],
)
def test_who_stops_is_named_while_the_others_wait(start: Any, trouble: str, hang_s: float | None) -> None:
    stopped_is_named(*start(trouble, hang_s), trouble)


def stopped_is_named(server: Server, run: int, trouble: str) -> None:
    found = wait_for(lambda: reported(server, run, of_all=trouble == "size"))
    if trouble != "size":  # until the others have said that they wait, they are as missing as it is
        found = wait_for(lambda: who_wait(server, run) >= RANKS - 1 and reported(server, run, of_all=False))
    assert found["culprits"] == [2], found["text"]
    assert server.get(f"/api/v1/runs/{run}")["hang"]
    if trouble == "skip":
        # The others' tellings name it; where it is comes with its own, which may be a second later.
        rank = wait_for(lambda: of_rank_2(server, run, "where"))
        assert rank["where"]["function"] == "wait_elsewhere" and "wait_elsewhere" in rank["stacks"]
    elif trouble == "size":
        assert {side["bytes"] for side in found["mismatch"]} == {16, 32}
    else:
        # It is missing before it counts as silent, which takes 8 s.
        wait_for(lambda: server.get(f"/api/v1/runs/{run}/hang")["hang"]["silent"] == [2])
