"""The list of runs: a page at a time, newest first, and never older than what is stored."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rangewatch.wire import WireError
from rangewatch_server.core import deadline
from rangewatch_server.core.deadline import limited
from rangewatch_server.query import reader
from rangewatch_server.query.reader import Queries, RunReader
from rangewatch_server.query.slices import Cache
from rangewatch_server.store.batch_checks import SERIES_BOUNDS, check_header
from rangewatch_server.views import extremes, overview, run_list
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


def lines(store: Store) -> list[dict[str, Any]]:
    with store.queries.read() as opened, limited(opened.connection):
        found: list[dict[str, Any]] = run_list.page(opened, run_list.Listing())["runs"]
    return found


def test_a_stored_line_needs_no_names(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of many tensors push one another out of memory: a page must not begin anew each time."""
    fill(store, 3)
    store.queries.live_ns = 0
    first = lines(store)
    store.queries.cache = Cache()  # as when others have filled it
    for name in ("load_tensors", "load_arrays"):
        monkeypatch.setattr(reader, name, lambda *_: pytest.fail("all tensors of a run were loaded"))
    assert lines(store) == first and not any(line["is_partial"] for line in first)


def test_a_line_is_made_without_names(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of steps that are not in tiles yet it sums up what tensors hold: 60 runs of 30,000 took 107 s and 2.9 GiB."""
    monkeypatch.setattr(reader, "load_tensors", lambda *_: pytest.fail("all names of a run were loaded"))
    fill(store, 2)
    store.send(opening(KNOWN, run="bad"))
    store.send(batch(KNOWN, 0, range(10), {"amax": 2.0}, run="bad", series={"loss": 1.0}))
    shown = {line["name"]: line for line in lines(store)}
    assert not any(line["is_partial"] for line in shown.values())
    assert shown["bad"]["least_headroom"]["label"] == "blocks.0.ff output" and len(shown["bad"]["sparkline"]) == 10
    held = store.writer.memory.names._tensors.values()
    assert len(held) == 3 and not any(hasattr(each, "entries") for each in held), "nor does who writes hold any"


def test_a_slow_run_is_shown_as_such_and_costs_no_other_its_line(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(store, 3)
    own, is_slow = overview.sparkline, True

    def slow(run: RunReader) -> Any:
        while run.name == "run 1" and is_slow:
            deadline.check()
        return own(run)

    monkeypatch.setattr(overview, "sparkline", slow)
    monkeypatch.setattr(run_list, "LINE_S", 1.0)  # what the others have: on a busy machine one took 0.2 s
    monkeypatch.setattr(run_list, "PAGE_S", 1e6)
    shown = {line["name"]: line for line in lines(store)}
    assert [line["is_partial"] for line in shown.values()] == [False, True, False]
    assert shown["run 1"]["reason"] == run_list.SLOW and shown["run 1"]["last_step"] == 9
    is_slow = False
    monkeypatch.setattr(run_list, "LINE_S", 1e6)
    monkeypatch.setattr(run_list, "SLOW_AGAIN_S", 1e-9)
    assert not any(line["is_partial"] for line in lines(store))


def test_what_a_page_may_take_is_bounded_and_the_next_one_goes_on(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(store, 3)
    store.queries.live_ns = 0
    monkeypatch.setattr(run_list, "PAGE_S", 0.0)
    assert all(line["is_partial"] for line in lines(store))
    monkeypatch.setattr(run_list, "PAGE_S", 1e6)
    assert not any(line["is_partial"] for line in lines(store))
    monkeypatch.setattr(run_list, "PAGE_S", 0.0)
    assert not any(line["is_partial"] for line in lines(store)), "what was made once is stored"


def test_a_run_that_cannot_be_read_is_listed_as_such(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fill(store, 3)

    def broken(run: RunReader) -> int:
        if run.name == "run 1":
            raise OverflowError("cannot convert float infinity to integer")
        return 0

    monkeypatch.setattr(overview, "skipped_steps", broken)
    for _ in range(2):
        shown = {line["name"]: line for line in lines(store)}
        assert list(shown) == ["run 2", "run 1", "run 0"]
        assert shown["run 1"]["state"] == "unreadable" and "log says why" in shown["run 1"]["reason"]
    assert shown["run 0"].keys() <= shown["run 1"].keys()
    assert caplog.text.count("cannot be read; the list says so") == 1


@pytest.mark.filterwarnings("ignore:overflow encountered")
def test_sums_that_overflow_are_shown(store: Store) -> None:
    """Two incarnations, so that skipped steps are added up; as a database from before the bounds may hold."""
    for incarnation in ("a", "b"):
        store.send(opening(KNOWN, incarnation=incarnation))
        series = {"skipped_step": 1.7e308, "wall_time_s": 1e300, "loss": 1.7e308}
        first = 0 if incarnation == "a" else 5
        store.send(batch(KNOWN, 0, range(first, 10), incarnation=incarnation, series=series))
    (line,) = lines(store)
    assert line["state"] == "live" and line["skipped_steps"] == 2**53
    with store.queries.read() as opened:
        run = opened.run(line["id"])
        assert run is not None
        assert overview.run_detail(run)["skipped_steps"] == 2**53
        assert extremes.step_details(run, 0, 7)["started_ns"] is None


@pytest.mark.parametrize(("name", "most"), SERIES_BOUNDS.items())
def test_what_the_agent_records_itself_is_bounded(name: str, most: float) -> None:
    for value in (0.0, most, np.nan):
        check_header(batch(KNOWN, 0, range(4), series={name: [1.0, value, 0.0, 1.0]}))
    for value in (-1e-9, np.nextafter(most, np.inf), np.inf, -np.inf, 1.7e308):
        with pytest.raises(WireError, match=name):
            check_header(batch(KNOWN, 0, range(4), series={name: [1.0, value, np.nan, 1.0]}))
