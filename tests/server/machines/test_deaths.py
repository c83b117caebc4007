"""Ranks that ended without a goodbye: their state, the run's, and what is said."""

from __future__ import annotations

from typing import Any

import pytest

from rangewatch.wire.records import Event
from rangewatch_server.machines.deaths import MOST_DEATHS, Ended, sentence
from rangewatch_server.store.exit_state import STATES, state_after
from tests.server.process import Run
from tests.server.records import batch, catalogue, opening
from tests.server.routes import test_collectives_api

KNOWN = catalogue(3)
SEGFAULT = {"signal": 11, "exit_code": None, "stack": "Fatal Python error: x", "module": "a.b", "oom_kills": 0}
SEGFAULT |= {"collectives": [{"op": "all_reduce", "enqueued": 957, "completed": 956}], "phase": "forward"}
STOPPED = {"signal": 15, "exit_code": None}


def end(run: Run, rank: int, *events: tuple[str, str, dict[str, Any]], incarnation: str = "a") -> dict[str, Any]:
    """A rank of four that ends with these events; the run then."""
    run.post(opening(KNOWN, rank=rank, world_size=4, incarnation=incarnation))
    reported = tuple(Event(kind, 5, 7, message, data) for kind, message, data in events)
    run.post(batch(KNOWN, 0, [0, 1], rank=rank, incarnation=incarnation, events=reported))
    found: dict[str, Any] = run.get()
    return found


def died(text: str = "died of signal 11 (SIGSEGV) in step 7", data: dict[str, Any] = SEGFAULT) -> Any:
    return "died", text, data


@pytest.mark.parametrize(
    ("data", "state"),
    [(SEGFAULT, "died"), (STOPPED, "terminated"), ({"signal": 2}, "interrupted"),
     ({"signal": None, "exit_code": 3}, "died"), ({}, "died"),
     ({"signal": None, "exit_code": 0}, "finished"), ({"signal": "15", "exit_code": "0"}, "died"),
     ({"signal": None, "exit_code": None, "replaced": True}, "finished"),
     ({"signal": 9, "replaced": True}, "died"), ({"exit_code": 3, "replaced": True}, "died")],
)  # fmt: skip
def test_the_state_of_a_rank_by_how_it_ended(data: dict[str, Any], state: str) -> None:
    assert state_after("open", Event("died", 0, 0, "", data)) == state


def test_ctrl_c_is_no_failure() -> None:
    interrupted = Event("failed", 0, 0, "KeyboardInterrupt", {"interrupted": True})
    assert state_after("open", interrupted) == "interrupted"
    assert state_after(state_after("open", interrupted), Event("failed", 0, 0)) == "failed"


def test_what_a_rank_said_itself_is_not_taken_back() -> None:
    failed, finished = Event("failed", 0, 0), Event("finished", 0, 0)
    assert state_after(state_after("open", failed), Event("died", 0, 0, "", SEGFAULT)) == "failed"
    assert state_after("died", finished) == "died"
    assert state_after("finished", Event("died", 0, 0, "", SEGFAULT)) == "died", "as the interpreter ended"
    assert all(state_after(state, Event("attached", 0, 0)) == state for state in STATES)


def test_the_sentence_names_who_died_before_who_was_stopped_for_it(run: Run) -> None:
    end(run, 0, died("was ended by signal 15", STOPPED))
    end(run, 1, ("failed", "RuntimeError: Connection closed by peer", {}))
    end(run, 2, died())
    found = end(run, 3, died("was ended by signal 15", STOPPED))
    assert found["state"] == "died"
    assert [rank["state"] for rank in found["ranks"]] == ["terminated", "failed", "died", "terminated"]
    assert found["death"] == (
        "Rank 2 died of signal 11 (SIGSEGV) in step 7. Rank 0 was ended by signal 15, and so was 1 other rank."
    )
    first = found["deaths"][0]
    assert (first["rank"], first["step"], first["module"], first["phase"]) == (2, 7, "a.b", "forward")
    assert first["collectives"][0]["enqueued"] == 957 and first["stack"].startswith("Fatal")
    line = next(each for each in run.server.get("/api/v1/runs")["runs"] if each["id"] == run.id)
    assert (line["state"], line["reason"]) == ("died", found["death"])


def test_many_deaths_are_counted_not_listed(run: Run) -> None:
    for rank in range(4):
        found = end(run, rank, died(f"died in its own way, {rank}"))
    assert found["death"].endswith("Rank 2 died in its own way, 2. 1 more rank died.")
    assert len(found["deaths"]) == 4


def ranks_of(state: str, *messages: str) -> list[Ended]:
    return [Ended(number, number, state, message) for number, message in enumerate(messages)]


def test_all_are_counted_however_many_are_shown() -> None:
    stopped = ranks_of("terminated", *["was ended by signal 15"] * (MOST_DEATHS + 10))
    assert sentence(stopped) == f"Rank 0 was ended by signal 15, and so were {MOST_DEATHS + 9} other ranks."
    died_alike = ranks_of("died", "died of a", "died of b", "died of a", "died of a")
    assert sentence(died_alike) == "Rank 0 died of a, and so were 2 other ranks. Rank 1 died of b."


def test_nobody_is_said_to_have_ended_where_another_one_did() -> None:
    stopped = ranks_of("terminated", "was ended by signal 15 in step 7", "was ended by signal 15 in step 9")
    assert sentence(stopped) == "Rank 0 was ended by signal 15 in step 7; so was 1 other rank, each where it was."


def test_who_died_and_who_was_stopped_are_counted_apart() -> None:
    found = [*ranks_of("died", *"abcde"), *ranks_of("terminated", "was stopped", "was stopped")]
    assert sentence(found) == (
        "Rank 0 a. Rank 1 b. Rank 2 c. 2 more ranks died. Rank 0 was stopped, and so was 1 other rank."
    )


def test_a_rank_that_is_started_again_has_not_died(run: Run) -> None:
    assert end(run, 0, died())["death"]
    found = end(run, 0, incarnation="b")
    assert (found["death"], found["deaths"], found["ranks"][0]["state"]) == (None, [], "live")


def test_no_death_no_sentence(run: Run) -> None:
    found = end(run, 0, ("finished", "", {}))
    assert (found["death"], found["deaths"], found["reason"]) == (None, [], None)


def test_hostile_data_stays_data(run: Run) -> None:
    stack = "</pre><script>alert(1)</script>" * 2_000
    data = {"signal": [1], "exit_code": {"a": 1}, "stack": stack, "module": 7, "collectives": "x"}
    found = end(run, 0, died("<img src=x onerror=alert(1)>", data))
    assert found["ranks"][0]["state"] == "died"
    assert found["deaths"][0]["stack"] == stack[: 16 << 10]
    assert found["death"] == "Rank 0 <img src=x onerror=alert(1)>."


def test_nobody_can_be_asked_for_anything(run: Run) -> None:
    end(run, 0, died())
    answer = run.ask("/commands", "POST", json={"kind": "trace", "steps": 1, "modules": []})
    assert answer.status_code == 409 and "died" in answer.json()["error"]


def test_who_the_others_wait_for_is_told_with_how_it_ended(run: Run) -> None:
    test_collectives_api.send(run, late=None)
    waits = {"op": "all_reduce", "sequence": 80, "bytes": 4096, "dtype": "float32", "waited_s": 9.0}
    for rank in range(test_collectives_api.RANKS):
        what, text, data = died()
        event = Event(what, 5, 7, text, data) if rank == 2 else test_collectives_api.hung(rank, 80, waits)
        run.post(batch(KNOWN, 1, [], rank=rank, events=(event,)))
    test_collectives_api.wait_for(lambda: run.get("/hang")["hang"])
    found, hang = run.get(), run.get("/hang")["hang"]
    assert (hang["culprits"], hang["silent"], hang["ranks"][2]["has_ended"]) == ([2], [], True)
    assert hang["text"].endswith("Rank 2 has ended. Rank 2 died of signal 11 (SIGSEGV) in step 7.")
    assert found["hang"].endswith(found["death"]) and found["ranks"][2]["state"] == "died"
    assert found["state"] == "hung", "the others are still there"
