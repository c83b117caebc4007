"""The last lines of stderr by rank: the newest stand whatever comes first, and what is not known is said."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import func, select

from rangewatch.wire.events import Stderr, event
from rangewatch.wire.records import Event
from rangewatch_server.machines.stderr import MOST_CHARACTERS, MOST_LINES, NOT_RECORDED
from rangewatch_server.store import tables
from tests.agent.commands.command import typed
from tests.server.opened_store import Store
from tests.server.process import Run
from tests.server.records import batch, catalogue, opening

KNOWN = catalogue(3)
DIED = Event("died", 9, 7, "died of signal 9 (SIGKILL) in step 7", {"signal": 9})


def rank(run: Run, number: int, *events: Event) -> None:
    run.post(opening(KNOWN, rank=number, world_size=3))
    run.post(batch(KNOWN, 0, [0, 1], rank=number, events=events))


def tail(run: Run, query: str = "") -> dict[str, Any]:
    found: dict[str, Any] = run.get(f"/stderr{query}")
    return found


def test_what_was_not_recorded_is_said_with_what_to_turn_on(run: Run) -> None:
    rank(run, 0)
    found = tail(run)
    assert (found["is_recorded"], found["lines"], found["note"]) == (False, [], NOT_RECORDED)
    assert "attach(stderr_tail=True)" in NOT_RECORDED and "RANGEWATCH_STDERR_TAIL=1" in NOT_RECORDED
    status, out, err = typed("logs", run.name, "--url", run.server.url)
    assert (status, out) == (1, "") and NOT_RECORDED in err
    refused = run.ask("/stderr?rank=5")
    assert (refused.status_code, refused.json()["code"]) == (404, "unknown_rank")
    assert typed("logs", run.name, "--rank", "5", "--url", run.server.url)[0] == 2


def test_the_rank_that_died_is_asked_for_first_and_a_shared_file_is_said(run: Run) -> None:
    file = Stderr(source="file", path="/logs/all.txt")
    rank(run, 0, event(Stderr(source="python", stream="a pipe", lines=("a",), dropped_count=2), 1, 3))
    rank(run, 1, event(file, 1, 3))
    rank(run, 2, event(Stderr(source="file", path="/logs/all.txt", lines=("b\x1b[2J", "c")), 1, 3), DIED)
    found = tail(run)
    assert (found["rank"], found["step"], found["lines"]) == (2, 3, ["b\x1b[2J", "c"])
    assert found["note"] == (
        "The end of /logs/all.txt on host. Ranks 1 and 2 write to the same file: the lines are of all of them."
    )
    assert tail(run, "?rank=1")["note"].startswith("Nothing has been written to it. The end of ")
    of_python = tail(run, "?rank=0")["note"]
    assert (
        "stderr is a pipe" in of_python
        and "C++, CUDA and NCCL" in of_python
        and "missing among them, 2 times" in of_python
    )
    status, out, err = typed("logs", run.name, "--url", run.server.url)
    assert status == 0 and out == "b\\x1b[2J\nc\n" and "rank 2, step 3" in err


def test_lines_that_no_agent_of_ours_sends_are_cut_and_no_harm(run: Run) -> None:
    rank(run, 0, event(Stderr(lines=("x" * 1_500,) * 600), 1, 3))
    found = tail(run)
    assert len(found["lines"]) == MOST_LINES and {*map(len, found["lines"])} == {MOST_CHARACTERS} and found["is_cut"]
    rank(run, 1, Event("stderr", 1, 3, "", {"lines": [1, "two", None], "source": 7, "dropped_count": "x"}))
    assert tail(run, "?rank=1")["lines"] == ["two"]


@pytest.mark.parametrize("order", [(1, 2, 3), (3, 1, 2), (2, 3, 1)])
def test_of_a_process_one_is_stored_the_newest(store: Store, order: tuple[int, ...]) -> None:
    store.send(opening(KNOWN))
    for number, time_ns in enumerate(order):
        told = (event(Stderr(lines=(str(time_ns),)), time_ns, 0), Event("finished", time_ns, 0))
        store.send(batch(KNOWN, number, [number], events=told))
    events = tables.events.c
    with store.engines.reader.connect() as connection:
        stored = connection.execute(select(events.data).where(events.kind == Stderr.KIND)).scalars().all()
        others = connection.execute(select(func.count()).where(events.kind == "finished")).scalar()
    assert [b'"3"' in each for each in stored] == [True] and others == 3
