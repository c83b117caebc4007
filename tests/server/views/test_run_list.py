"""The list of runs: a page at a time, newest first, and never older than what is stored."""

from __future__ import annotations

from typing import Any

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
    for query in ("limit=0", "limit=501", "limit=x", "before=-1", "before=x"):
        answer = served.client.get(f"/api/v1/runs?{query}")
        assert answer.status_code == 422, query
        assert query.split("=")[0] in answer.json()["error"]
        assert len(answer.json()["error"].splitlines()) == 1, query
