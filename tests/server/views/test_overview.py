"""What agents say of themselves: each event is the whole account, so the newest one stands."""

from __future__ import annotations

from typing import Any

from rangewatch.wire.records import Event
from rangewatch_server.views import overview
from tests.server.opened_store import Store
from tests.server.process import Run
from tests.server.records import batch, catalogue, opening

KNOWN = catalogue(3)


def emit(run: Run, sequence: int, *reported: tuple[str, str, dict[str, Any]], incarnation: str = "a") -> Any:
    events = tuple(Event(kind, 1, sequence, message, data) for kind, message, data in reported)
    run.post(batch(KNOWN, sequence, [sequence], incarnation=incarnation, events=events))
    return run.get()["ranks"][0]


def test_what_a_damaged_spool_lost_is_beside_the_ranks_own_account(run: Run) -> None:
    """Whoever sends the spool says it, and may again."""
    run.post(opening(KNOWN))
    emit(run, 0, ("dropped", "", {"queue_full": 3}))
    for sequence in (1, 2):
        rank = emit(run, sequence, ("spool_damaged", "", {"spool_damaged": 2}))
        assert rank["dropped"] == {"queue_full": 3, "spool_damaged": 2}


def test_the_newest_account_stands(run: Run) -> None:
    run.post(opening(KNOWN))
    counts = ("dropped", "", {"queue_full": 3}), ("fault", "", {"hooks": 1})
    late = {"late": "not called", "never": "not called"}
    rank = emit(run, 0, ("not_observed", "", late), ("not_fused", "", {"cuda:0": "no triton"}), *counts)
    assert (rank["not_observed"], rank["dropped"], rank["faults"]) == (late, {"queue_full": 3}, {"hooks": 1})
    rank = emit(run, 1, ("not_observed", "", {"never": "not called"}), ("dropped", "", {"queue_full": 5, "x": 1}))
    assert (rank["not_observed"], rank["dropped"]) == ({"never": "not called"}, {"queue_full": 5, "x": 1})
    assert (rank["faults"], rank["not_fused"]) == ({"hooks": 1}, {"cuda:0": "no triton"})
    rank = emit(run, 2, ("not_observed", "", {"never": "not called"}), ("not_observed", "", {}))
    assert rank["not_observed"] == {}
    run.post(opening(KNOWN, incarnation="b"))
    assert emit(run, 0, incarnation="b")["dropped"] == {}


def test_an_empty_message_takes_recording_less_back(run: Run) -> None:
    run.post(opening(KNOWN))
    assert emit(run, 0)["level"] is None
    assert emit(run, 1, ("level", "5 % of a step is the agent's", {}))["level"].startswith("5 %")
    assert emit(run, 2, ("level", "", {}))["level"] is None
    assert emit(run, 3, ("level", "again", {}))["level"] == "again"


def test_only_the_newest_events_are_read(store: Store) -> None:
    """However many there are: one row a rank and kind."""
    for rank in range(2):
        store.send(opening(KNOWN, rank=rank, world_size=2))
        for sequence in range(5):
            reported = tuple(
                Event(kind, n, sequence, "", {f"m{n}": n}) for n in range(20) for kind in ("dropped", "fault")
            )
            store.send(batch(KNOWN, sequence, [sequence], rank=rank, events=reported))
    with store.queries.read() as reader:
        run = reader.run(1)
        found = run.newest_events(["dropped", "fault", "level"])
        assert sorted((row.rank, row.kind) for row in found) == [
            (rank, kind) for rank in range(2) for kind in ("dropped", "fault")
        ]
        detail = overview.run_detail(run)
    assert [rank["dropped"] for rank in detail["ranks"]] == [{"m19": 19}] * 2


def line_of(run: Run) -> dict[str, Any]:
    """The run's line in the list of all."""
    return next(each for each in run.server.get("/api/v1/runs")["runs"] if each["id"] == run.id)


def test_the_list_says_in_one_line_why_a_run_failed(run: Run) -> None:
    run.post(opening(KNOWN))
    assert line_of(run)["reason"] is None
    emit(run, 0, ("failed", f"RuntimeError: the loader\n  ended {'x' * 400}", {}))
    line = line_of(run)
    assert line["state"] == "failed"
    assert line["reason"].startswith("Rank 0: RuntimeError: the loader ended xxx")
    assert len(line["reason"]) == overview.MOST_REASON
