"""The list of runs: a page at a time, newest first, and never older than what is stored."""

from __future__ import annotations

from typing import Any

import numpy as np

from rangewatch_server.query.reader import Queries
from rangewatch_server.views import run_list
from tests.server.opened_store import Store
from tests.server.process import Server
from tests.server.records import batch, catalogue, opening

KNOWN = catalogue(3)


def fill(store: Store, runs: int) -> None:
    for number in range(runs):
        store.send(opening(KNOWN, run=f"run {number}"))
        store.send(batch(KNOWN, 0, range(10), run=f"run {number}"))


def page(queries: Queries, limit: int = 100, before: int | None = None) -> tuple[list[str], int | None]:
    with queries.read() as reader:
        found = run_list.page(reader, run_list.Listing(limit, before))
    return [line["name"] for line in found["runs"]], found["next"]


def test_pages_hold_every_run_once(store: Store) -> None:
    fill(store, 5)
    names, seen, before = [], 0, None
    while seen < 5:
        some, before = page(store.queries, 2, before)
        names += some
        seen += 1
        if before is None:
            break
    assert names == [f"run {number}" for number in (4, 3, 2, 1, 0)]
    assert page(store.queries) == (names, None)
    assert page(store.queries, 5) == (names, None), "a full page that is the last has no next"


def listed(store: Store, sort: Any, *, is_down: bool = False, states: tuple[str, ...] = ()) -> list[str]:
    with store.queries.read() as reader:
        found = run_list.page(reader, run_list.Listing(sort=sort, is_down=is_down, states=states))
    assert found["total"] == len(found["runs"]) and found["of_newest"] is None
    return [line["name"] for line in found["runs"]]


def test_every_column_sorts_and_what_is_not_known_comes_last(store: Store) -> None:
    for name, steps, loss, scale in (("b", 10, 3.0, 2.0), ("a", 30, 1.0, 8.0), ("c", 20, None, 4.0)):
        store.send(opening(KNOWN, run=name))
        series = {"loss_scale": scale} | ({} if loss is None else {"loss": loss})
        store.send(batch(KNOWN, 0, range(steps), {"amax": steps}, run=name, series=series))
    store.send(opening(KNOWN, run="d"))
    assert listed(store, "name") == ["a", "b", "c", "d"] == listed(store, "name", is_down=True)[::-1]
    assert (listed(store, "loss"), listed(store, "loss", is_down=True)) == (["a", "b", "d", "c"], ["b", "a", "d", "c"])
    assert (listed(store, "step"), listed(store, "step", is_down=True)) == (["b", "c", "a", "d"], ["a", "c", "b", "d"])
    assert listed(store, "headroom") == ["a", "c", "b", "d"]
    assert listed(store, "scale", is_down=True) == ["a", "c", "b", "d"]
    assert listed(store, "state") == ["c", "a", "b", "d"], "of equal ones the newest first"
    assert listed(store, "oldest") == ["b", "a", "c", "d"] == listed(store, "newest", is_down=True)
    for sort in run_list.SORTS:
        assert len(listed(store, sort)) == len(listed(store, sort, is_down=True)) == 4


def test_runs_are_had_by_state(store: Store) -> None:
    fill(store, 2)
    store.send(opening(KNOWN, run="begun"))
    assert listed(store, "newest", states=("empty",)) == ["begun"]
    assert listed(store, "newest", states=("live", "empty")) == ["begun", "run 1", "run 0"]
    assert listed(store, "newest", states=("hung",)) == []


def test_the_loss_is_the_newest_value_and_some_over_the_run(store: Store) -> None:
    store.send(opening(KNOWN, run="run"))
    loss = np.linspace(4.0, 1.0, 100)
    loss[50], loss[99] = np.nan, np.inf
    store.send(batch(KNOWN, 0, range(100), run="run", series={"loss": loss}))
    store.send(opening(KNOWN, run="silent"))
    store.send(batch(KNOWN, 0, range(100), run="silent"))
    with store.queries.read() as reader:
        silent, line = run_list.page(reader, run_list.Listing())["runs"]
    assert silent["loss"] is None
    assert (line["loss"]["last"], line["loss"]["step"]) == (None, 99)
    assert line["loss"]["values"][0] == np.mean(loss[:2]) and len(line["loss"]["values"]) == 50
    assert line["loss"]["bad"] == [25, 49]


def test_a_quiet_run_is_remembered_until_it_speaks_again(store: Store) -> None:
    fill(store, 1)
    quiet = Queries(store.engines.reader, live_s=0.0)
    with quiet.read() as reader:
        assert run_list.page(reader, run_list.Listing(10))["runs"][0]["last_step"] == 9
        made: list[Any] = []
        reader.run = lambda run_id: made.append(run_id)  # type: ignore[method-assign,return-value,func-returns-value]
        assert run_list.page(reader, run_list.Listing(10))["runs"][0]["last_step"] == 9
        assert made == [], "nothing was read again"
    store.send(batch(KNOWN, 1, range(10, 20), run="run 0"))
    with quiet.read() as reader:
        assert run_list.page(reader, run_list.Listing(10))["runs"][0]["last_step"] == 19


def test_bad_pages_are_said_in_one_line(served: Server) -> None:
    for query in ("limit=0", "limit=501", "limit=x", "before=-1", "before=x", "sort=size", "state=odd"):
        answer = served.client.get(f"/api/v1/runs?{query}")
        assert answer.status_code == 422, query
        assert query.split("=")[0] in answer.json()["error"]
        assert len(answer.json()["error"].splitlines()) == 1, query
