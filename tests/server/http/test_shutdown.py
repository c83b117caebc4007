"""The server's end and its neighbours: a stop loses nothing, one server a file, slow clients. Real processes."""

from __future__ import annotations

import os
import signal
import socket
import sqlite3
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient
from sqlalchemy import create_engine, text

from rangewatch import wire
from rangewatch_server.core.errors import DatabaseError
from rangewatch_server.core.settings import Settings
from rangewatch_server.http.app import create_app
from rangewatch_server.store.engine import hold
from tests import forked
from tests.server.http.test_operations import until
from tests.server.process import Server
from tests.server.records import batch, catalogue, opening

KNOWN = catalogue(3)


class Load:
    """Threads that post batches, a run each, until the server is gone; what it acknowledged is remembered."""

    def __init__(self, server: Server, threads: int) -> None:
        self.url = server.url
        self.acknowledged = dict.fromkeys(range(threads), -1)
        self.statuses: set[int] = set()
        self.threads = [threading.Thread(target=self._post, args=(each,)) for each in range(threads)]
        for thread in self.threads:
            thread.start()

    def _post(self, number: int) -> None:
        with httpx.Client(base_url=self.url, timeout=30) as client:
            client.post("/api/v1/ingest", content=wire.encode(opening(KNOWN, run=f"run {number}")))
            for sequence in range(100_000):
                steps = range(sequence * 4, sequence * 4 + 4)
                body = wire.encode(batch(KNOWN, sequence, steps, run=f"run {number}"))
                try:
                    answer = client.post("/api/v1/ingest", content=body)
                except httpx.TransportError:
                    return
                self.statuses.add(answer.status_code)
                if answer.status_code != 202:
                    return
                self.acknowledged[number] = sequence

    def join(self) -> None:
        for thread in self.threads:
            thread.join(60)
            assert not thread.is_alive()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "threads"),
    [
        (signal.SIGTERM, 2),
        pytest.param(signal.SIGINT, 4, marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, 12, marks=pytest.mark.soak),
    ],
)
def test_a_stop_under_load_loses_nothing(number: signal.Signals, threads: int, tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    server = Server(str(path))
    load = Load(server, threads)
    with server.client.stream("GET", "/api/v1/live"):  # would keep a server that waits for it
        until(lambda: min(load.acknowledged.values()) >= 3)
        server.process.send_signal(number)
        server.process.communicate(timeout=60)
        load.join()
    said = server.log.whole()
    server.client.close()
    assert server.process.returncode == 0, said
    assert "Traceback" not in said
    assert load.statuses <= {202, 503}
    assert not (tmp_path / "a.db-wal").exists(), "the log is folded back"
    with sqlite3.connect(path) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        found = dict(
            database.execute("SELECT name, contiguous FROM runs JOIN streams ON runs.id = run_id WHERE rank = 0")
        )
    database.close()
    for each, sequence in load.acknowledged.items():
        assert found[f"run {each}"] >= sequence
    again = Server(str(path))
    assert len(again.get("/api/v1/runs")["runs"]) == threads
    again.stop()


@pytest.mark.slow
def test_a_queued_message_is_committed_and_answered(tmp_path: Path) -> None:
    """A locked file holds the writer; the message that waits for it is answered after the signal, and is stored."""
    server = Server(str(tmp_path / "a.db"))
    server.post(opening(KNOWN))
    other = sqlite3.connect(tmp_path / "a.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    answers: list[httpx.Response] = []
    sending = threading.Thread(target=lambda: answers.append(server.post(batch(KNOWN, 0, range(4)))))
    sending.start()
    with httpx.Client(base_url=server.url) as client:
        until(lambda: b'route="/api/v1/ingest"' in client.get("/metrics").content)
    server.process.terminate()
    assert server.log.wait_for("draining: "), "work that takes longer than a second says so"
    other.execute("ROLLBACK")
    sending.join(30)
    server.process.communicate(timeout=60)
    server.client.close()
    assert (server.process.returncode, [answer.status_code for answer in answers]) == (0, [202])
    assert other.execute("SELECT contiguous FROM streams WHERE rank = 0").fetchone() == (0,)
    other.close()


def test_while_draining_requests_are_told_to_come_back(sqlite_url: str) -> None:
    app = create_app(Settings(db=sqlite_url))
    with TestClient(app, base_url="http://127.0.0.1") as client:
        app.state.draining = True
        answer, watched = client.post("/api/v1/ingest", content=b"x"), client.get("/metrics")
    assert (answer.status_code, answer.json()["code"], answer.headers["retry-after"]) == (503, "draining", "2")
    assert answer.headers["connection"] == "close"
    assert "rangewatch_draining 1.0" in watched.text


@pytest.mark.soak  # takes the whole bound, 25 s
def test_a_database_that_hangs_does_not_hold_the_process(postgres_url: str) -> None:
    server = Server(postgres_url)
    server.post(opening(KNOWN))
    engine = create_engine(postgres_url)
    with engine.begin() as other:
        other.execute(text("LOCK TABLE streams"))
        with pytest.raises(httpx.TransportError):
            server.client.post("/api/v1/ingest", content=wire.encode(batch(KNOWN, 0, range(4))), timeout=0.5)
        server.process.terminate()
        server.process.communicate(timeout=60)
    engine.dispose()
    server.client.close()
    said = server.log.whole()
    assert (server.process.returncode, "gave up after 25 s" in said) == (1, True), said


@pytest.mark.slow
def test_a_second_signal_ends_at_once(tmp_path: Path) -> None:
    """A request whose body never comes would hold the drain for its whole bound."""
    server = Server(str(tmp_path / "a.db"))
    where = server.client.base_url
    with socket.create_connection((where.host, where.port)) as slow:
        head = (
            b"POST /api/v1/ingest HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\nExpect: 100-continue\r\n\r\n"
        )
        slow.sendall(head)
        assert slow.recv(100).startswith(b"HTTP/1.1 100"), "the server waits for the body from here on"
        server.process.terminate()
        assert server.log.wait_for("draining: ")
        server.process.terminate()
        server.process.communicate(timeout=60)
    server.client.close()
    said = server.log.whole()
    assert server.process.returncode == 128 + signal.SIGTERM
    assert "ended by SIGTERM" in said


# One server a file


def serve_again(path: Path) -> subprocess.CompletedProcess[str]:
    return forked.server.run("-m", "rangewatch", "serve", "--port", "0", "--db", path, timeout=30)


def test_a_second_server_on_the_file_is_refused(tmp_path: Path, start_server: Callable[..., Server]) -> None:
    server = start_server(db=str(tmp_path / "a.db"))
    (tmp_path / "link.db").symlink_to(tmp_path / "a.db")
    refused = serve_again(tmp_path / "link.db")
    assert refused.returncode == 2
    assert len(refused.stderr.splitlines()) == 1
    assert f"process {server.process.pid} on {socket.gethostname()}" in refused.stderr
    assert "PostgreSQL" in refused.stderr
    server.kill()
    assert start_server(db=str(tmp_path / "a.db")).client.get("/readyz").status_code == 200, (
        "a dead server holds nothing"
    )


def test_offline_work_holds_the_file_too(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a.db"
    with hold(path):
        with pytest.raises(DatabaseError, match=f"process {os.getpid()} on"), hold(f"sqlite:///{path}"):
            pass
        (tmp_path / "new" / "a.db.lock").write_text("\x1b[31m not JSON")
        with pytest.raises(DatabaseError, match="in use by another process"), hold(path):
            pass
        with hold("postgresql://nobody@nowhere/x"):
            pass
    with hold(path):
        pass


def test_another_name_of_the_file_is_the_same_file(tmp_path: Path, start_server: Callable[..., Server]) -> None:
    """A hard link, as a bind mount, has a lock file of its own beside it."""
    server = start_server(db=str(tmp_path / "a.db"))
    (tmp_path / "other").mkdir()
    os.link(tmp_path / "a.db", tmp_path / "other" / "b.db")
    refused = serve_again(tmp_path / "other" / "b.db")
    assert refused.returncode == 2 and len(refused.stderr.splitlines()) == 1
    assert "under another name or mount of the same file" in refused.stderr
    assert server.client.get("/readyz").status_code == 200
    server.kill()
    with hold(tmp_path / "other" / "b.db"):  # a dead server holds nothing
        pass


def test_another_mount_of_the_file_is_the_same_file(tmp_path: Path) -> None:
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.db").touch()
    there = tmp_path / "there" / "a.db"
    mounting = ["mount", "--bind", str(tmp_path / "here" / "a.db"), str(there)]
    if subprocess.run(mounting, capture_output=True, check=False).returncode:
        pytest.skip("this user may not mount")
    try:
        refused = pytest.raises(DatabaseError, match="under another name or mount")
        with hold(tmp_path / "here" / "a.db"), refused, hold(there):
            pass
    finally:
        subprocess.run(["umount", str(there)], check=True)


def test_nobody_else_may_read_the_files(tmp_path: Path, start_server: Callable[..., Server]) -> None:
    server = start_server(db=str(tmp_path / "new" / "a.db"))
    assert server.client.get("/readyz").status_code == 200
    modes = {each.name: each.stat().st_mode & 0o777 for each in (tmp_path / "new").iterdir() if each.is_file()}
    assert {"a.db", "a.db-wal"} <= modes.keys() and set(modes.values()) == {0o600}, modes


def test_a_lock_file_that_cannot_be_made_is_said() -> None:
    with pytest.raises(DatabaseError, match=r"cannot open /proc/nowhere/a\.db"), hold("/proc/nowhere/a.db"):
        pass


# Slow clients


def test_headers_that_do_not_come_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a shorter limit, in this process: one says nothing, one stops inside its second request's headers."""
    import asyncio

    import uvicorn

    from rangewatch_server.http import connections

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(0.15)  # an answer may take longer than headers may
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    monkeypatch.setattr(connections, "HEADERS_S", 0.05)
    config = uvicorn.Config(app, http=connections.BoundedConnection, port=0, lifespan="off", log_config=None)
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    with socket.create_connection(listening.getsockname()) as silent:
        silent.settimeout(30)
        assert silent.recv(1) == b""
    with socket.create_connection(listening.getsockname()) as slow:
        slow.settimeout(30)
        slow.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert slow.recv(65536).startswith(b"HTTP/1.1 204 ")
        slow.sendall(b"GET / HT")
        assert slow.recv(1) == b""
    server.should_exit = True
    thread.join(20)
