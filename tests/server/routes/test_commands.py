"""Remote control: who gets a command and for how long, what becomes of it, and who may ask."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.exc import OperationalError

from rangewatch.wire.records import Event
from rangewatch_server.ingest import commands as book
from rangewatch_server.ingest import writer as writer_module
from rangewatch_server.ingest.commands import Ask, CommandRefused, Withdraw
from rangewatch_server.ingest.transaction import Changed
from rangewatch_server.ingest.writer import Unavailable, Writer
from rangewatch_server.routes.commands import one_command
from tests.server.opened_store import Store
from tests.server.process import Run, Server
from tests.server.records import batch, catalogue, opening

KNOWN = catalogue(3)
PATH = "/api/v1/runs/1/commands"
TRACE = {"kind": "trace", "steps": 3, "modules": ["blocks.*"]}


def sent(number: int) -> dict[str, Any]:
    """`TRACE` as ranks get it."""
    return {"id": number, **TRACE}


GREATEST = ['"' * 200] * 100
"""Patterns of modules, as JSON has them."""


def accepted(number: int) -> dict[str, Any]:
    return {"id": number, "state": "accepted", "first_step": 100, "last_step": 102}


def done(number: int) -> dict[str, Any]:
    return {"id": number, "state": "done", "last_step": 102}


class Rank:
    """An agent by hand: opens, sends batches of one step, and says what it is told to say of commands."""

    def __init__(self, server: Server | Run, rank: int = 0, incarnation: str = "a", world_size: int = 2) -> None:
        self.server, self.rank, self.incarnation, self.world_size = server, rank, incarnation, world_size
        self.sequence = -1
        self.opened = self.open()

    def open(self) -> list[Any]:
        """The commands of the reply."""
        return self._post(opening(KNOWN, rank=self.rank, incarnation=self.incarnation, world_size=self.world_size))

    def send(self, *said: dict[str, Any], sequence: int | None = None, kind: str = "command") -> list[Any]:
        """The commands of the reply to the next batch, which says that of commands."""
        self.sequence += sequence is None
        return self._post(self.batch(self.sequence if sequence is None else sequence, *said, kind=kind))

    def batch(self, sequence: int, *said: dict[str, Any], kind: str = "command") -> Any:
        events = tuple(Event(kind, 1, sequence, "", each) for each in said)
        return batch(
            KNOWN, sequence, range(sequence, sequence + 1), rank=self.rank, incarnation=self.incarnation, events=events
        )

    def _post(self, message: Any) -> list[Any]:
        answer = self.server.post(message)
        assert answer.status_code == 202, answer.text
        return answer.json()["commands"]


def asked(run: Run, body: dict[str, Any]) -> int:
    """The number of a new command."""
    answer = run.ask("/commands", "POST", json=body)
    assert answer.status_code == 201, answer.text
    return int(answer.json()["id"])


def states(run: Run, number: int) -> dict[int, str]:
    return {each["rank"]: each["state"] for each in run.get(f"/commands/{number}")["states"]}


def test_a_command_is_in_every_reply_until_it_is_answered(run: Run) -> None:
    first, second = Rank(run, 0), Rank(run, 1)
    assert (first.opened, first.send()) == ([], [])
    made = run.ask("/commands", "POST", json=TRACE).json()
    number = made["id"]
    assert {key: made[key] for key in (*sent(number), "ranks")} == sent(number) | {"ranks": None}
    assert made["expires_ns"] - made["created_ns"] == 600 * 10**9
    assert states(run, number) == {0: "pending", 1: "pending"}
    assert first.send() == first.send() == first.open() == [sent(number)]
    assert first.send(sequence=0) == [sent(number)], "a duplicate's reply too: the first may have been lost"
    assert first.send(accepted(number)) == [], "the reply to the answer itself"
    assert (first.send(), first.open(), second.send()) == ([], [], [sent(number)])
    assert states(run, number) == {0: "accepted", 1: "pending"}
    first.send(done(number))
    second.send({"id": number, "state": "refused", "reason": "no module is named blocks.*"})
    found = run.get(f"/commands/{number}")["states"]
    assert [(e["rank"], e["state"], e["first_step"], e["last_step"], e["reason"], e["live"]) for e in found] == [
        (0, "done", 100, 102, "", True),
        (1, "refused", None, None, "no module is named blocks.*", True),
    ]
    assert second.send() == []


def test_only_the_ranks_named_get_it(run: Run) -> None:
    ranks = [Rank(run, rank, world_size=3) for rank in range(3)]
    number = asked(run, {"kind": "level", "level": "frames", "ranks": [2, 0, 2]})
    level = {"id": number, "kind": "level", "level": "frames"}
    assert [each.send() for each in ranks] == [[level], [], [level]]
    assert states(run, number) == {0: "pending", 2: "pending"}
    assert run.get("/commands")["commands"][0]["ranks"] == [0, 2]
    ranks[1].send({"id": number, "state": "done", "first_step": 5})
    assert states(run, number) == {0: "pending", 2: "pending"}, "who was not asked has no say"
    ranks[2].send({"id": number, "state": "done", "first_step": 5})
    assert states(run, number) == {0: "pending", 2: "done"}


def test_commands_are_listed_newest_first_and_sent_oldest_first(run: Run) -> None:
    rank = Rank(run)
    one, two, three = (asked(run, {"kind": "trace", "steps": steps}) for steps in (1, 2, 3))
    assert [each["steps"] for each in rank.send()] == [1, 2, 3]
    assert [each["id"] for each in run.get("/commands")["commands"]] == [three, two, one]
    assert [each["id"] for each in run.get("/commands?limit=2")["commands"]] == [three, two]
    rank.send({"id": two, "state": "done", "last_step": 1})
    assert [each["id"] for each in rank.send()] == [one, three]


@pytest.mark.parametrize("database_url", ["sqlite", pytest.param("postgres", marks=pytest.mark.slow)], indirect=True)
def test_pending_commands_outlive_the_server(database_url: str, start_server: Callable[..., Server]) -> None:
    server = start_server(db=database_url)
    run = Run(server, "outliving")
    ranks = [Rank(run, rank, world_size=3) for rank in range(2)]
    number = asked(run, TRACE)
    level = asked(run, {"kind": "level", "level": "grads", "ranks": [1]})
    answered = asked(run, TRACE)
    ranks[0].send(accepted(number), accepted(answered))
    ranks[1].send(accepted(answered))
    server.kill()
    run.server = start_server(db=database_url)
    assert [each.send() for each in ranks] == [[], [sent(number), {"id": level, "kind": "level", "level": "grads"}]]
    assert states(run, number) == {0: "accepted", 1: "pending"}
    ranks[0].send(done(number))
    assert states(run, number) == {0: "done", 1: "pending"}
    third = Rank(run, 2, world_size=3)
    assert third.opened == [sent(number), sent(answered)], "it is slow to start, and the run has three ranks"


def test_a_rank_that_joins_later_gets_what_is_for_all(run: Run) -> None:
    first = Rank(run, 0, world_size=3)
    first.send()
    number = asked(run, TRACE)
    asked(run, {"kind": "level", "level": "grads", "ranks": [0]})
    assert Rank(run, 1, world_size=3).opened == [sent(number)]
    first.send(accepted(number), done(number))
    third = Rank(run, 2, world_size=3)
    assert (third.opened, third.open(), third.send()) == ([sent(number)],) * 3
    assert states(run, number) == {0: "done", 1: "pending", 2: "pending"}
    third.send(accepted(number))
    Rank(run, 1, world_size=3).send(accepted(number))
    assert Rank(run, 3, world_size=4).opened == [], "all have answered: it is for no later rank"


def test_a_restarted_rank_does_not_do_what_its_predecessor_was_asked(run: Run) -> None:
    ranks = [Rank(run, rank) for rank in range(2)]
    number = asked(run, TRACE)
    ranks[0].send(accepted(number))
    for rank in range(2):
        again = Rank(run, rank, incarnation="b")
        assert (again.opened, again.send()) == ([], [])
    found = run.get(f"/commands/{number}")["states"]
    assert [(e["state"], e["reason"], e["live"]) for e in found] == [("expired", "the process started anew", False)] * 2
    ranks[0].send(done(number))
    assert states(run, number) == {0: "done", 1: "expired"}, "what it did before its end counts, however late told"
    assert [each.send() for each in ranks] == [[], []]


def test_what_a_rank_has_not_done_at_its_goodbye_is_over(run: Run) -> None:
    ranks = [Rank(run, rank, world_size=3) for rank in range(3)]
    number = asked(run, TRACE)
    ranks[0].send(accepted(number))
    ranks[1].send(accepted(number), done(number))
    for rank in ranks:
        rank.send({}, kind="finished")
    assert states(run, number) == {0: "expired", 1: "done", 2: "expired"}
    assert run.get(f"/commands/{number}")["states"][0]["reason"] == "the process ended first"


def test_answers_may_come_in_any_order(run: Run) -> None:
    rank = Rank(run)
    number = asked(run, TRACE)
    rank.send(done(number) | {"last_step": 101}, sequence=3)
    rank.send(accepted(number), sequence=2)
    found = run.get(f"/commands/{number}")["states"][0]
    assert (found["state"], found["first_step"], found["last_step"]) == ("done", 100, 101)


def test_a_wrong_answer_is_an_event_and_no_more(run: Run) -> None:
    rank = Rank(run)
    number = asked(run, TRACE)
    for wrong in (
        {}, {"id": number}, {"id": str(number), "state": "done"}, {"id": True, "state": "done"},
        {"id": 2**63, "state": "done"}, {"id": number + 99, "state": "done"}, {"id": number, "state": "perhaps"},
        {"id": number, "state": "done", "first_step": 2**62}, {"id": number, "state": "done", "reason": 3},
    ):  # fmt: skip
        assert rank.send(wrong) == [sent(number)], wrong
    assert rank.send({"id": number, "state": "done"}, kind="commanded") == [sent(number)]
    assert rank.send({"id": number, "state": "refused", "reason": "a\0b" + "c" * 9_999}) == []
    assert run.get(f"/commands/{number}")["states"][0]["reason"] == "ab" + "c" * 998


def test_withdrawing(run: Run) -> None:
    ranks = [Rank(run, 0), Rank(run, 1)]
    number = asked(run, TRACE)
    ranks[0].send(accepted(number))
    withdrawn = run.ask(f"/commands/{number}", "DELETE")
    assert withdrawn.status_code == 200
    assert withdrawn.json()["withdrawn_ns"] > withdrawn.json()["created_ns"]
    assert states(run, number) == {0: "accepted", 1: "withdrawn"}
    assert (ranks[1].send(), Rank(run, 2, world_size=3).opened) == ([], [])
    again, unknown = (run.ask(f"/commands/{each}", "DELETE") for each in (number, number + 99))
    assert (again.status_code, again.json()["code"]) == (409, "not_pending")
    assert (unknown.status_code, unknown.json()["code"]) == (404, "unknown_command")
    ranks[1].send(accepted(number))
    assert states(run, number) == {0: "accepted", 1: "accepted"}, "it had heard of it before"


BAD: dict[str, tuple[Any, int, str, str]] = {
    "not JSON": (b"{", 422, "bad_parameter", "the body cannot be read"),
    "not an object": (b"[]", 422, "bad_parameter", "Expected `object`"),
    "nested without end": (b'{"kind":' + b"[" * 50_000, 422, "bad_parameter", "the body cannot be read"),
    "no kind": ({"steps": 1}, 422, "bad_parameter", "missing required field `kind`"),
    "unknown kind": ({"kind": "stop"}, 422, "bad_parameter", "kind 'stop' is not one of trace, level"),
    "unknown field": ({"kind": "trace", "step": 1}, 422, "bad_parameter", "unknown field `step`"),
    "no steps": ({"kind": "trace", "steps": 0}, 422, "bad_parameter", "steps 0 is not from 1 to 1000"),
    "too many steps": ({"kind": "trace", "steps": 1001}, 422, "bad_parameter", "steps 1001 is not from 1 to 1000"),
    "endless steps": (b'{"kind":"trace","steps":' + b"9" * 9_000 + b"}", 422, "bad_parameter", "out of range"),
    "half a step": ({"kind": "trace", "steps": 0.5}, 422, "bad_parameter", "Expected `int`"),
    "many patterns": ({"kind": "trace", "modules": ["a"] * 101}, 422, "bad_parameter", "101 patterns of modules"),
    "empty pattern": ({"kind": "trace", "modules": [""]}, 422, "bad_parameter", "module pattern '' is empty"),
    "long pattern": ({"kind": "trace", "modules": ["é" * 101]}, 422, "bad_parameter", "over 200 bytes"),
    "NUL in a pattern": ({"kind": "trace", "modules": ["a\0"]}, 422, "bad_parameter", "not printable"),
    "pattern not text": ({"kind": "trace", "modules": [1]}, 422, "bad_parameter", "Expected `str`"),
    "unknown level": ({"kind": "level", "level": "all"}, 422, "bad_parameter", "not one of grads, outputs, frames"),
    "no level": ({"kind": "level"}, 422, "bad_parameter", "level '' is not one of"),
    "no ranks": ({"kind": "trace", "ranks": []}, 422, "bad_parameter", "ranks is empty"),
    "unknown rank": ({"kind": "trace", "ranks": [0, 7]}, 404, "unknown_rank", "run 1 has no rank 7"),
    "too large": (b" " * (1 << 17), 413, "too_large", "body is larger than 65536 bytes"),
}


def test_bad_commands_are_refused(run: Run) -> None:
    Rank(run)
    for name, (body, status, code, said) in BAD.items():
        options: dict[str, Any] = {"content": body} if isinstance(body, bytes) else {"json": body}
        answer = run.ask("/commands", "POST", **options)
        assert (answer.status_code, answer.json()["code"]) == (status, code), (name, answer.text)
        assert said.replace("run 1", f"run {run.id}") in answer.json()["error"], name
        assert len(answer.json()["error"].splitlines()) == 1, name
    assert run.get("/commands")["commands"] == []


def test_a_command_of_the_greatest_size_is_taken(run: Run) -> None:
    rank = Rank(run)
    asked(run, {"kind": "trace", "modules": GREATEST})
    assert [each["modules"] for each in rank.send()] == [GREATEST]


def test_unknown_runs_and_commands(run: Run) -> None:
    Rank(run)
    client = run.server.client
    for number in (2**40, 2**70):
        path = f"/api/v1/runs/{number}/commands"
        for answer in (client.get(path), client.post(path, json=TRACE), client.delete(f"{path}/1")):
            assert (answer.status_code, answer.json()["code"]) == (404, "unknown_run")
    for number in (2**40, 2**70, -1):
        for method in ("GET", "DELETE"):
            answer = run.ask(f"/commands/{number}", method)
            assert (answer.status_code, answer.json()["code"]) == (404, "unknown_command")


@pytest.mark.parametrize("end", ["finished", "failed"])
def test_a_run_that_has_ended_cannot_be_asked(run: Run, end: str) -> None:
    ranks = [Rank(run, rank) for rank in range(2)]
    ranks[0].send({}, kind=end)
    named = run.ask("/commands", "POST", json=TRACE | {"ranks": [0]})
    assert (named.status_code, named.json()["code"]) == (409, "not_live")
    assert named.json()["error"] == f"rank 0 of run {run.id} has {end}"
    number = asked(run, TRACE)
    assert states(run, number) == {1: "pending"}, "the other one is there still"
    ranks[1].send({}, kind=end)
    whole = run.ask("/commands", "POST", json=TRACE)
    assert (whole.status_code, whole.json()["code"]) == (409, "not_live")
    assert whole.json()["error"].startswith(f"run {run.id} has {end}")


def waiting(store: Store, sequence: int, *said: dict[str, Any]) -> list[bytes]:
    events = tuple(Event("command", 1, sequence, "", each) for each in said)
    return [bytes(each) for each in store.send(batch(KNOWN, sequence, range(1), events=events)).commands]


def asked_of(store: Store) -> int:
    return store.writer.command(Ask(1, TRACE, None, 1)).result(30)


def poll(condition: Callable[[], bool]) -> None:
    while not condition():  # a hang is ended by pytest's own limit
        time.sleep(0.01)


def heard(store: Store) -> list[Changed]:
    """What the writer tells from now on. What it did before this returns, it has told."""
    reported: list[Changed] = []
    store.writer.work(lambda _: None).result(30)
    store.writer.on_change = reported.extend
    return reported


def test_so_many_commands_fit_a_reply_and_no_more(store: Store) -> None:
    def ask() -> int:
        return store.writer.command(Ask(1, {"kind": "trace", "modules": GREATEST}, None, 2)).result(30)

    store.send(opening(KNOWN, world_size=2))
    assert [ask() for _ in range(20)] == [*range(1, 21)]
    reply = waiting(store, 0)
    assert [json.loads(each)["modules"] for each in reply] == [GREATEST] * 20
    assert sum(map(len, reply)) < 1 << 20, "what an agent reads of a reply"
    with pytest.raises(CommandRefused) as refused:
        ask()
    assert refused.value.code == "too_many_commands"
    waiting(store, 1, {"id": 7, "state": "done"})
    assert ask() == 21, "a rank yet to come must do without number 7"
    second = store.send(opening(KNOWN, rank=1, world_size=2)).commands
    assert [json.loads(bytes(each))["id"] for each in second] == [*range(1, 7), *range(8, 22)]


def test_pages_are_told_of_commands(store: Store) -> None:
    store.send(opening(KNOWN))
    reported = heard(store)
    for change in (lambda: asked_of(store), lambda: store.writer.command(Withdraw(1, 1)).result(30)):
        reported.clear()
        change()
        store.writer.work(lambda _: None).result(30)
        assert reported == [Changed(1, None)]


def test_a_command_expires(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.send(opening(KNOWN))
    reported = heard(store)
    monkeypatch.setattr(book, "EXPIRES_S", 0.02)
    asked_of(store)
    poll(lambda: reported == [Changed(1, None)] * 2)  # asked; and nobody sends anything: the writer wakes up by itself
    assert waiting(store, 0) == []
    with store.queries.read() as reader:
        found = one_command(reader.run(1), 1)
    assert (found["states"][0]["state"], found["states"][0]["reason"]) == ("expired", "no answer within 10 minutes")
    with pytest.raises(Exception, match="no rank is still to answer command 1"):
        store.writer.command(Withdraw(1, 1)).result(30)
    waiting(store, 1, done(1))
    with store.queries.read() as reader:
        assert one_command(reader.run(1), 1)["states"][0]["state"] == "done"


def test_an_expired_command_is_not_read_back(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.send(opening(KNOWN))
    monkeypatch.setattr(book, "EXPIRES_S", -1.0)
    asked_of(store)
    again = Writer(store.engines)
    with store.engines.writer.begin() as connection:
        again.memory.commands.load(connection)
    assert (again.memory.commands.waiting(1, 1), again.memory.commands.expires_in_s()) == ((), None)


def test_a_failed_commit_leaves_memory_and_database_alike(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.send(opening(KNOWN))
    asked_of(store)

    def fail(_: Any) -> None:
        raise OperationalError("COMMIT", {}, Exception("disk full"))

    with monkeypatch.context() as broken:
        broken.setattr(writer_module.Transaction, "finish", fail)
        with pytest.raises(Unavailable):
            asked_of(store)
        with pytest.raises(Unavailable):
            waiting(store, 0, accepted(1))
    assert waiting(store, 0) == [b'{"id":1,"kind":"trace","steps":3,"modules":["blocks.*"]}']
    assert waiting(store, 1, accepted(1)) == []


def test_a_reply_with_commands_costs_no_query(store: Store) -> None:
    statements: list[str] = []
    event.listen(store.engines.writer, "before_cursor_execute", lambda *args: statements.append(args[2]))
    store.send(opening(KNOWN))
    waiting(store, 0)
    asked_of(store)
    statements.clear()
    assert len(waiting(store, 1)) == 1
    assert len(waiting(store, 2)) == 1
    assert any("batches" in each for each in statements)
    assert [each for each in statements if "command" in each] == []
