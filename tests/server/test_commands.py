"""Remote control: who gets a command and for how long, what becomes of it, and who may ask."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from sqlalchemy import event
from sqlalchemy.exc import OperationalError

from rangewatch.records import Event
from rangewatch_server import command_states
from rangewatch_server.store import commands as book
from rangewatch_server.store import writer as writer_module
from rangewatch_server.store.command_rows import Ask, Withdraw
from rangewatch_server.store.transaction import Changed
from rangewatch_server.store.writer import Unavailable, Writer
from tests.server.process import Server
from tests.server.records import batch, catalogue, opening
from tests.server.store import Store

KNOWN = catalogue(3)
PATH = "/api/v1/runs/1/commands"
TRACE = {"kind": "trace", "steps": 3, "modules": ["blocks.*"]}
SENT = {"id": 1, "kind": "trace", "steps": 3, "modules": ["blocks.*"]}
ACCEPTED = {"id": 1, "state": "accepted", "first_step": 100, "last_step": 102}
DONE = {"id": 1, "state": "done", "last_step": 102}


class Rank:
    """An agent by hand: opens, sends batches of one step, and says what it is told to say of commands."""

    def __init__(self, server: Server, rank: int = 0, incarnation: str = "a", world_size: int = 2) -> None:
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


@pytest.fixture(params=["sqlite", "postgres"])
def db(request: pytest.FixtureRequest, tmp_path) -> str:
    if request.param == "sqlite":
        return str(tmp_path / "a.db")
    return request.getfixturevalue("postgres_url").replace("+psycopg", "")


@pytest.fixture
def served(db: str, start_server: Callable[..., Server]) -> Server:
    """A server on either database."""
    return start_server(db=db)


def ask(server: Server, body: dict[str, Any], path: str = PATH, **headers: str) -> Any:
    answer = server.client.post(path, json=body, headers=headers)
    assert answer.status_code == 201, answer.text
    return answer.json()


def states(server: Server, number: int = 1) -> dict[int, str]:
    return {each["rank"]: each["state"] for each in server.get(f"{PATH}/{number}")["states"]}


def test_a_command_is_in_every_reply_until_it_is_answered(served: Server) -> None:
    first, second = Rank(served, 0), Rank(served, 1)
    assert (first.opened, first.send()) == ([], [])
    asked = ask(served, TRACE)
    assert {key: asked[key] for key in (*SENT, "ranks")} == SENT | {"ranks": None}
    assert asked["expires_ns"] - asked["created_ns"] == 600 * 10**9
    assert states(served) == {0: "pending", 1: "pending"}
    assert first.send() == first.send() == first.open() == [SENT]
    assert first.send(sequence=0) == [SENT], "a duplicate's reply too: the first may have been lost"
    assert first.send(ACCEPTED) == [], "the reply to the answer itself"
    assert (first.send(), first.open(), second.send()) == ([], [], [SENT])
    assert states(served) == {0: "accepted", 1: "pending"}
    first.send(DONE)
    second.send({"id": 1, "state": "refused", "reason": "no module is named blocks.*"})
    found = served.get(f"{PATH}/1")["states"]
    assert [(e["rank"], e["state"], e["first_step"], e["last_step"], e["reason"], e["live"]) for e in found] == [
        (0, "done", 100, 102, "", True),
        (1, "refused", None, None, "no module is named blocks.*", True),
    ]
    assert second.send() == []


def test_only_the_ranks_named_get_it(served: Server) -> None:
    ranks = [Rank(served, rank, world_size=3) for rank in range(3)]
    ask(served, {"kind": "level", "level": "frames", "ranks": [2, 0, 2]})
    level = {"id": 1, "kind": "level", "level": "frames"}
    assert [each.send() for each in ranks] == [[level], [], [level]]
    assert (states(served), served.get(PATH)["commands"][0]["ranks"]) == ({0: "pending", 2: "pending"}, [0, 2])
    ranks[1].send({"id": 1, "state": "done", "first_step": 5})
    assert states(served) == {0: "pending", 2: "pending"}, "who was not asked has no say"
    ranks[2].send({"id": 1, "state": "done", "first_step": 5})
    assert states(served) == {0: "pending", 2: "done"}


def test_commands_are_listed_newest_first_and_sent_oldest_first(served: Server) -> None:
    rank = Rank(served)
    for steps in (1, 2, 3):
        ask(served, {"kind": "trace", "steps": steps})
    assert [each["steps"] for each in rank.send()] == [1, 2, 3]
    assert [each["id"] for each in served.get(PATH)["commands"]] == [3, 2, 1]
    assert [each["id"] for each in served.get(f"{PATH}?limit=2")["commands"]] == [3, 2]
    rank.send({"id": 2, "state": "done", "last_step": 1})
    assert [each["id"] for each in rank.send()] == [1, 3]


def test_pending_commands_outlive_the_server(db: str, start_server: Callable[..., Server]) -> None:
    server = start_server(db=db)
    ranks = [Rank(server, 0), Rank(server, 1)]
    ask(server, TRACE)
    ask(server, {"kind": "level", "level": "grads", "ranks": [1]})
    ranks[0].send(ACCEPTED)
    server.kill()
    again = start_server(db=db)
    for rank in ranks:
        rank.server = again
    assert [each.send() for each in ranks] == [[], [SENT, {"id": 2, "kind": "level", "level": "grads"}]]
    assert states(again) == {0: "accepted", 1: "pending"}
    ranks[0].send(DONE)
    assert states(again) == {0: "done", 1: "pending"}


def test_a_rank_that_joins_later_gets_what_is_for_all(served: Server) -> None:
    first = Rank(served, 0, world_size=3)
    first.send()
    ask(served, TRACE)
    ask(served, {"kind": "level", "level": "grads", "ranks": [0]})
    assert Rank(served, 1, world_size=3).opened == [SENT]
    first.send(ACCEPTED)
    third = Rank(served, 2, world_size=3)
    assert (third.opened, third.open(), third.send()) == ([SENT], [SENT], [SENT])
    assert states(served) == {0: "accepted", 1: "pending", 2: "pending"}


def test_a_rank_that_is_slow_to_start_is_waited_for(db: str, start_server: Callable[..., Server]) -> None:
    server = start_server(db=db)
    first = Rank(server, 0, world_size=3)
    ask(server, TRACE)
    first.send(ACCEPTED, DONE)
    assert Rank(server, 1, world_size=3).opened == [SENT], "the run has three ranks, whoever has answered already"
    server.kill()
    assert Rank(start_server(db=db), 2, world_size=3).opened == [SENT]


def test_a_command_that_all_have_answered_is_for_no_later_rank(served: Server) -> None:
    ranks = [Rank(served, rank) for rank in range(2)]
    ask(served, TRACE)
    for rank in ranks:
        rank.send(ACCEPTED)
    assert Rank(served, 2, world_size=3).opened == []


def test_a_restarted_rank_does_not_do_what_its_predecessor_was_asked(served: Server) -> None:
    ranks = [Rank(served, rank) for rank in range(2)]
    ask(served, TRACE)
    ranks[0].send(ACCEPTED)
    for rank in range(2):
        again = Rank(served, rank, incarnation="b")
        assert (again.opened, again.send()) == ([], [])
    found = served.get(f"{PATH}/1")["states"]
    assert [(e["state"], e["reason"], e["live"]) for e in found] == [("expired", "the process started anew", False)] * 2
    ranks[0].send(DONE)
    assert states(served) == {0: "done", 1: "expired"}, "what it did before its end counts, however late it is told"
    assert [each.send() for each in ranks] == [[], []]


def test_what_a_rank_has_not_done_at_its_goodbye_is_over(served: Server) -> None:
    ranks = [Rank(served, rank, world_size=3) for rank in range(3)]
    ask(served, TRACE)
    ranks[0].send(ACCEPTED)
    ranks[1].send(ACCEPTED, DONE)
    for rank in ranks:
        rank.send({}, kind="finished")
    assert states(served) == {0: "expired", 1: "done", 2: "expired"}
    assert served.get(f"{PATH}/1")["states"][0]["reason"] == "the process ended first"


def test_answers_may_come_in_any_order(served: Server) -> None:
    rank = Rank(served)
    ask(served, TRACE)
    rank.send(DONE | {"last_step": 101}, sequence=3)
    rank.send(ACCEPTED, sequence=2)
    found = served.get(f"{PATH}/1")["states"][0]
    assert (found["state"], found["first_step"], found["last_step"]) == ("done", 100, 101)


def test_a_wrong_answer_is_an_event_and_no_more(served: Server) -> None:
    rank = Rank(served)
    ask(served, TRACE)
    for wrong in (
        {}, {"id": 1}, {"id": "1", "state": "done"}, {"id": True, "state": "done"}, {"id": 2**63, "state": "done"},
        {"id": 99, "state": "done"}, {"id": 1, "state": "perhaps"}, {"id": 1, "state": "done", "first_step": 2**62},
        {"id": 1, "state": "done", "reason": 3},
    ):  # fmt: skip
        assert rank.send(wrong) == [SENT], wrong
    assert rank.send({"id": 1, "state": "done"}, kind="commanded") == [SENT]
    assert rank.send({"id": 1, "state": "refused", "reason": "a\0b" + "c" * 9_999}) == []
    assert served.get(f"{PATH}/1")["states"][0]["reason"] == "ab" + "c" * 998


def test_withdrawing(served: Server) -> None:
    ranks = [Rank(served, 0), Rank(served, 1)]
    ask(served, TRACE)
    ranks[0].send(ACCEPTED)
    withdrawn = served.client.delete(f"{PATH}/1")
    assert withdrawn.status_code == 200
    assert withdrawn.json()["withdrawn_ns"] > withdrawn.json()["created_ns"]
    assert states(served) == {0: "accepted", 1: "withdrawn"}
    assert (ranks[1].send(), Rank(served, 2, world_size=3).opened) == ([], [])
    again, unknown = (served.client.delete(f"{PATH}/{number}") for number in (1, 2))
    assert (again.status_code, again.json()["code"]) == (409, "not_pending")
    assert (unknown.status_code, unknown.json()["code"]) == (404, "unknown_command")
    ranks[1].send(ACCEPTED)
    assert states(served) == {0: "accepted", 1: "accepted"}, "it had heard of it before"


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


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(str(tmp_path_factory.mktemp("commands") / "a.db"))
    Rank(server)
    yield server
    server.stop()


@pytest.mark.parametrize("name", BAD)
def test_bad_commands_are_refused(opened: Server, name: str) -> None:
    body, status, code, said = BAD[name]
    options: dict[str, Any] = {"content": body} if isinstance(body, bytes) else {"json": body}
    answer = opened.client.post(PATH, **options)
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
    assert said in answer.json()["error"]
    assert len(answer.json()["error"].splitlines()) == 1
    assert opened.get(PATH)["commands"] == []


def test_a_command_of_the_greatest_size_is_taken(server: Server) -> None:
    rank = Rank(server, world_size=2)
    modules = ['"' * 200] * 100
    for _ in range(20):
        ask(server, {"kind": "trace", "modules": modules})
    reply = server.post(rank.batch(0))
    assert [each["modules"] for each in reply.json()["commands"]] == [modules] * 20
    assert len(reply.content) < 1 << 20, "what an agent reads of a reply"
    refused = server.client.post(PATH, json=TRACE)
    assert (refused.status_code, refused.json()["code"]) == (409, "too_many_commands")
    rank.send({"id": 7, "state": "done"}, sequence=1)
    assert ask(server, TRACE)["id"] == 21, "a rank yet to come must do without number 7"
    assert [each["id"] for each in Rank(server, 1).opened] == [*range(1, 7), *range(8, 22)]


@pytest.mark.parametrize("path", ["/api/v1/runs/9/commands", f"/api/v1/runs/{2**70}/commands"])
def test_unknown_runs_and_commands(opened: Server, path: str) -> None:
    for answer in (opened.client.get(path), opened.client.post(path, json=TRACE), opened.client.delete(f"{path}/1")):
        assert (answer.status_code, answer.json()["code"]) == (404, "unknown_run")
    for number in (5, 2**70, -1):
        for method in ("GET", "DELETE"):
            answer = opened.client.request(method, f"{PATH}/{number}")
            assert (answer.status_code, answer.json()["code"]) == (404, "unknown_command")


@pytest.mark.parametrize("end", ["finished", "failed"])
def test_a_run_that_has_ended_cannot_be_asked(served: Server, end: str) -> None:
    ranks = [Rank(served, rank) for rank in range(2)]
    ranks[0].send({}, kind=end)
    named = served.client.post(PATH, json=TRACE | {"ranks": [0]})
    assert (named.status_code, named.json()["code"]) == (409, "not_live")
    assert named.json()["error"] == f"rank 0 of run 1 has {end}"
    ask(served, TRACE)
    assert states(served) == {1: "pending"}, "the other one is there still"
    ranks[1].send({}, kind=end)
    whole = served.client.post(PATH, json=TRACE)
    assert (whole.status_code, whole.json()["code"]) == (409, "not_live")
    assert whole.json()["error"].startswith(f"run 1 has {end}")


def test_only_who_may_see_the_run_may_ask(start_server: Callable[..., Server]) -> None:
    server = start_server("--token", "s3cret")
    bearer = {"Authorization": "Bearer s3cret"}
    assert server.post(opening(KNOWN), **bearer).status_code == 202
    assert server.client.post(PATH, json=TRACE).status_code == 401
    assert server.client.post("/login", data={"token": "s3cret"}).status_code == 204
    foreign = {"Origin": "https://evil.example"}  # a page of another site, with the cookie that lets ours in
    for answer in (
        server.client.post(PATH, json=TRACE, headers=foreign),
        server.client.post(PATH, content=b'{"kind":"trace"}', headers=foreign | {"Content-Type": "text/plain"}),
        server.client.post(PATH, json=TRACE, headers={"Origin": "null"}),
    ):
        assert (answer.status_code, answer.json()["code"]) == (403, "wrong_origin")
    assert server.get(PATH)["commands"] == []
    ask(server, TRACE, Origin=server.url)
    assert server.client.delete(f"{PATH}/1", headers=foreign).json()["code"] == "wrong_origin"
    assert states(server) == {0: "pending"}
    assert server.client.delete(f"{PATH}/1", headers={"Origin": server.url}).status_code == 200


def test_live_pages_are_told(served: Server) -> None:
    rank = Rank(served)
    rank.send()
    with httpx.stream("GET", f"{served.url}/api/v1/live", timeout=10) as stream:
        lines = stream.iter_lines()
        next(line for line in lines if line.startswith(":"))
        for change in (
            lambda: ask(served, TRACE),
            lambda: rank.send(ACCEPTED),
            lambda: ask(served, TRACE),
            lambda: served.client.delete(f"{PATH}/2"),
        ):
            change()
            told = next(line for line in lines if line.startswith("data:"))
            assert '"run":1' in told.replace(" ", "")


def waiting(store: Store, sequence: int, *said: dict[str, Any]) -> list[bytes]:
    events = tuple(Event("command", 1, sequence, "", each) for each in said)
    return [bytes(each) for each in store.send(batch(KNOWN, sequence, range(1), events=events)).commands]


def asked_of(store: Store) -> int:
    return store.writer.command(Ask(1, TRACE, None, 1)).result(30)


def poll(condition: Callable[[], bool]) -> None:
    while not condition():  # a hang is ended by pytest's own limit
        time.sleep(0.01)


def test_a_command_expires(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Changed] = []
    store.writer.on_change = told.extend
    store.send(opening(KNOWN))
    monkeypatch.setattr(book, "EXPIRES_S", 0.5)
    asked_of(store)
    told.clear()
    poll(lambda: told == [Changed(1, None)])  # nobody sends anything: the writer wakes up by itself
    assert waiting(store, 0) == []
    with store.queries.read() as reader:
        found = command_states.one(reader.run(1), 1)
    assert (found["states"][0]["state"], found["states"][0]["reason"]) == ("expired", "no answer within 10 minutes")
    with pytest.raises(Exception, match="no rank is still to answer command 1"):
        store.writer.command(Withdraw(1, 1)).result(30)
    waiting(store, 1, DONE)
    with store.queries.read() as reader:
        assert command_states.one(reader.run(1), 1)["states"][0]["state"] == "done"


def test_an_expired_command_is_not_read_back(
    sqlite_url: str, open_store: Callable[[str], Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(sqlite_url)
    store.send(opening(KNOWN))
    monkeypatch.setattr(book, "EXPIRES_S", 0.2)
    asked_of(store)
    expires_ns = time.time_ns() + int(0.2e9)
    poll(lambda: time.time_ns() > expires_ns)
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
            waiting(store, 0, ACCEPTED)
    assert waiting(store, 0) == [b'{"id":1,"kind":"trace","steps":3,"modules":["blocks.*"]}']
    assert waiting(store, 1, ACCEPTED) == []


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
