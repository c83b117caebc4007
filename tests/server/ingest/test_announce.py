"""Two real servers on one PostgreSQL database: each hears what the other commits, and outlives it."""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import httpx
import pytest
from fastapi.testclient import TestClient
from sqlalchemy import create_engine, text

from rangewatch_server.core.settings import Settings
from rangewatch_server.http.app import create_app
from rangewatch_server.ingest import announce as announcing
from rangewatch_server.ingest.announce import ENTRIES, PAYLOAD_BYTES, Listener, announce, payloads
from rangewatch_server.ingest.transaction import Changed
from rangewatch_server.store.engine import Engines, open_database
from tests.server.databases import Databases
from tests.server.process import Server
from tests.server.records import batch, catalogue, opening

KNOWN = catalogue(2)
Heard = queue.Queue[tuple[str, object]]


class Page:
    """A page's live stream on one server; `hear` waits for an event."""

    def __init__(self, server: Server) -> None:
        self.events: queue.Queue[dict[str, int | None]] = queue.Queue()
        self.connected = threading.Event()
        self.client = httpx.Client(base_url=server.url, timeout=30)
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()
        assert self.connected.wait(20)

    def _read(self) -> None:
        try:
            with self.client.stream("GET", "/api/v1/live") as live:
                for line in live.iter_lines():
                    self.connected.set()
                    if line.startswith("data: "):
                        self.events.put(json.loads(line[6:]))
        except (httpx.TransportError, httpx.StreamError):
            return

    def hear(self, run: int, last_step: int) -> None:
        while True:
            event = self.events.get(timeout=20)
            if (event["run"], event["last_step"]) == (run, last_step):
                return


@pytest.fixture
def two(postgres_url: str, start_server: Callable[..., Server]) -> tuple[Server, Server]:
    return start_server(db=postgres_url), start_server(db=postgres_url)


def send(server: Server, sequence: int) -> None:
    answer = server.post(batch(KNOWN, sequence, range(sequence * 4, sequence * 4 + 4)))
    assert answer.status_code == 202, answer.text


@pytest.mark.slow
def test_a_page_of_one_server_hears_of_a_batch_sent_to_the_other(
    two: tuple[Server, Server], postgres_url: str, start_server: Callable[..., Server]
) -> None:
    first, second = two
    page = Page(first)
    assert second.post(opening(KNOWN)).status_code == 202
    send(second, 0)
    page.hear(1, 3)
    second.kill()
    send(first, 1)
    page.hear(1, 7)
    third = start_server(db=postgres_url)
    assert third.post(opening(KNOWN)).status_code == 202
    send(third, 2)
    page.hear(1, 11)


@pytest.mark.slow
def test_a_page_hears_again_after_the_database_was_away(two: tuple[Server, Server], postgres_url: str) -> None:
    """The listener's connection is cut; what was committed meanwhile is told when it is back."""
    first, second = two
    second.post(opening(KNOWN))
    page = Page(first)
    assert cut_off(postgres_url) == 2
    send(second, 0)
    page.hear(1, 3)
    send(second, 1)
    page.hear(1, 7)


def cut_off(postgres_url: str) -> int:
    """How many listeners had a connection."""
    engine = create_engine(postgres_url, isolation_level="AUTOCOMMIT")
    with engine.connect() as admin:
        cut = (
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
            f"WHERE datname = current_database() AND application_name = '{announcing.NAME}'"
        )
        found = int(admin.execute(text(cut)).scalar_one())
    engine.dispose()
    return found


# Without servers


def test_what_is_heard_reaches_pages_and_the_writer(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wires of the application, in this process; the other server is who announces."""
    application = create_app(Settings(db=url))
    heard: Heard = queue.Queue()
    state = application.state
    monkeypatch.setattr(state.broker, "publish", lambda changes: heard.put(("changes", changes)))
    monkeypatch.setattr(state.writer, "reload_commands", lambda: heard.put(("commands", None)))
    with TestClient(application, base_url="http://127.0.0.1"):
        assert heard.get(timeout=30) == ("commands", None), "at first anything may have changed"
        with state.writer.engine.begin() as connection:
            announce(connection, "another", [(1, 5)], [7])
        assert [heard.get(timeout=30) for _ in range(2)] == [("changes", [Changed(1, 5)]), ("commands", None)]


@pytest.fixture(scope="module")
def url(databases: Databases) -> Iterator[str]:
    """A database on which several tests announce and listen."""
    with databases.one() as found:
        yield found


@contextmanager
def closing_engines(url: str) -> Iterator[Engines]:
    opened = open_database(url)
    try:
        yield opened
    finally:
        opened.dispose()


@pytest.fixture(scope="module")
def engines(url: str) -> Iterator[Engines]:
    with closing_engines(url) as opened:
        yield opened


@contextmanager
def listening(engines: Engines, server_id: str) -> Iterator[Heard]:
    """A listener that has connected, as the queue of what it passes on."""
    heard: Heard = queue.Queue()
    listener = Listener(
        engines.writer, server_id, lambda each: heard.put(("changes", each)), lambda each: heard.put(("commands", each))
    )
    listener.start()
    assert heard.get(timeout=20) == ("commands", None), "at first anything may have changed"
    try:
        yield heard
    finally:
        listener.stop()


@pytest.fixture
def listen(engines: Engines) -> Iterator[Callable[[str], Heard]]:
    with ExitStack() as stack:
        yield lambda server_id: stack.enter_context(listening(engines, server_id))


def test_what_is_committed_is_heard_by_the_others_only(engines: Engines, listen: Callable[[str], Heard]) -> None:
    mine, other = listen("a"), listen("b")
    with engines.writer.begin() as connection:
        announce(connection, "a", [(1, 5), (2, None)], [7])
    assert other.get(timeout=20) == ("changes", [(1, 5), (2, None)])
    assert other.get(timeout=20) == ("commands", [7])
    with engines.writer.begin() as connection:
        announce(connection, "b", [(3, 1)])
    assert mine.get(timeout=20) == ("changes", [(3, 1)]), "its own was not passed on before"


def test_what_is_rolled_back_is_not_heard(engines: Engines, listen: Callable[[str], Heard]) -> None:
    heard = listen("b")
    with engines.writer.connect() as connection:
        with connection.begin() as transaction:
            announce(connection, "a", [(1, 1)])
            transaction.rollback()
        with connection.begin():
            announce(connection, "a", [(2, 2)])
    assert heard.get(timeout=20) == ("changes", [(2, 2)])


def test_what_comes_after_the_database_was_away_is_heard(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(announcing, "FIRST_WAIT_S", 0.01)
    with closing_engines(postgres_url) as engines, listening(engines, "b") as heard:
        assert cut_off(postgres_url) == 1
        assert heard.get(timeout=30) == ("commands", None), "anything may have changed meanwhile"
        with engines.writer.begin() as connection:
            announce(connection, "a", [(2, 2)])
        assert heard.get(timeout=30) == ("changes", [(2, 2)])


STRANGE = (
    "", "not JSON", "[]", '{"server": "x", "changes": [["a", 1]]}', '{"server": "x", "changes": [[-1, 1]]}',
    '{"server": "x", "commands": [99999999999999999999]}', "[" * 7_000, '{"changes": []}',
)  # fmt: skip


def test_a_strangers_payload_is_passed_over(
    engines: Engines, listen: Callable[[str], Heard], caplog: pytest.LogCaptureFixture
) -> None:
    heard = listen("b")
    for payload in STRANGE:
        with engines.writer.begin() as connection:
            connection.execute(announcing._NOTIFY, {"channel": announcing.CHANNEL, "payload": payload})
    with engines.writer.begin() as connection:
        announce(connection, "a", [(2, 2)])
    assert heard.get(timeout=20) == ("changes", [(2, 2)])
    assert caplog.text.count("not from a Rangewatch server") == len(STRANGE)


def test_a_database_that_is_away_is_asked_again_more_and_more_slowly(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(announcing, "FIRST_WAIT_S", 0.01)
    away = create_engine("postgresql+psycopg://nobody@127.0.0.1:1/x")
    listener = Listener(away, "a", lambda _: None, lambda _: None)
    listener.start()
    while len(caplog.records) < 4:  # the test's own time limit ends it
        time.sleep(0.01)
    listener.stop()
    assert listener._wait_s >= 0.01 * 2**3
    away.dispose()


def test_a_callback_that_fails_ends_nothing(engines: Engines, caplog: pytest.LogCaptureFixture) -> None:
    heard: queue.Queue[list[tuple[int, int | None]]] = queue.Queue()

    def fail_once(changes: list[tuple[int, int | None]]) -> None:
        heard.put(changes)
        if changes == [(1, 1)]:
            raise RuntimeError("no")

    ready = threading.Event()
    listener = Listener(engines.writer, "b", fail_once, lambda _: ready.set())
    listener.start()
    assert ready.wait(20)
    for each in (1, 2):
        with engines.writer.begin() as connection:
            announce(connection, "a", [(each, each)])
        assert heard.get(timeout=20) == [(each, each)]
    listener.stop()
    assert "was not passed on" in caplog.text


def test_payloads_are_small_enough_and_hold_everything() -> None:
    most = 2**62
    changes = [(most - each, most) for each in range(3 * ENTRIES + 1)]
    commands = [most - each for each in range(ENTRIES + 1)]
    found = payloads("f" * 64, list(changes), commands)
    assert [len(each) <= PAYLOAD_BYTES for each in found] == [True] * 4
    said = [json.loads(each) for each in found]
    assert [tuple(pair) for each in said for pair in each.get("changes", [])] == changes
    assert [run for each in said for run in each.get("commands", [])] == commands


def test_sqlite_has_nobody_to_tell(sqlite_url: str) -> None:
    opened = open_database(sqlite_url)
    with opened.writer.begin() as connection:
        announce(connection, "a", [(1, 1)], [1])
    opened.dispose()
