"""What goes wrong around a real server process: each fault is said, bounded, and nothing acknowledged is lost by it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import numpy as np
import pytest
from fastapi import Request
from sqlalchemy import create_engine, make_url, text

from rangewatch_server.access import body
from rangewatch_server.core.errors import ApiError
from tests import forked
from tests.server.databases import POSTGRES
from tests.server.own_loop import in_own_loop
from tests.server.process import Server
from tests.server.records import batch, catalogue, opening

KNOWN = catalogue(3)
FIGURE = "/api/v1/runs/1/figures/layers"


def send(server: Server, sequence: int) -> httpx.Response:
    """10 steps, and some 100 KiB of series that do not compress, so that a disk feels it."""
    noise = np.random.default_rng(sequence)
    series = {f"logged {n}": noise.random(10) for n in range(200)}
    return server.post(batch(KNOWN, sequence, range(sequence * 10, sequence * 10 + 10), series=series))


def are_there(server: Server, batches: int) -> None:
    """All steps of the first `batches` batches are there once."""
    run = server.get("/api/v1/runs/1")
    assert run["last_step"] == batches * 10 - 1
    for step in range(0, batches * 10, 7):
        frames = server.get(f"/api/v1/runs/1/step?step={step}&rank=0")["frames"]
        assert [frame["call_count"] for frame in frames] == [1] * 3, step


def is_refused_for_now(answer: httpx.Response) -> bool:
    """Whether an agent keeps what it sent, and knows when to try again."""
    said = (answer.status_code, answer.json().get("code"), answer.headers.get("retry-after"))
    return said == (503, "unavailable", "1")


def is_readable(server: Server) -> bool:
    return all(server.client.get(path).status_code == 200 for path in ("/api/v1/runs", "/api/v1/runs/1", FIGURE))


def goes_on_after(server: Server, makes_room: Callable[[], object], most: int = 40) -> None:
    """Batches are taken until one is refused; pages stay readable; with room again all that was refused is taken."""
    stored = next(n for n in range(1, most) if is_refused_for_now(send(server, n)))
    assert is_refused_for_now(send(server, stored)), "and again, since nothing has changed"
    assert is_readable(server)
    makes_room()
    for sequence in range(stored, stored + 3):
        assert send(server, sequence).status_code == 202
    are_there(server, stored + 3)


def is_sound(path: Path) -> bool:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


@pytest.mark.slow
def test_a_file_that_may_not_grow(tmp_path: Path, start_server: Callable[..., Server]) -> None:
    """A quota, as the limit on the size of a process's files; it is lifted while the server runs."""
    server = start_server(db=str(tmp_path / "a.db"))
    server.post(opening(KNOWN))
    assert send(server, 0).status_code == 202
    limit(server, (1 << 20, resource.RLIM_INFINITY))
    goes_on_after(server, lambda: limit(server, (resource.RLIM_INFINITY, resource.RLIM_INFINITY)))
    server.stop()
    assert is_sound(tmp_path / "a.db")


def limit(server: Server, bytes_of_a_file: tuple[int, int]) -> None:
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, bytes_of_a_file)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 3 MiB; needs root."""
    place = tmp_path / "disk"
    place.mkdir()
    if os.geteuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(place)]).returncode:
        pytest.skip("may not mount a file system here")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


@pytest.mark.slow
def test_a_full_disk(small_disk: Path, start_server: Callable[..., Server]) -> None:
    filler = small_disk / "filler"
    filler.write_bytes(bytes(1 << 20))
    server = start_server("--min-free-mib", "0", db=str(small_disk / "a.db"))
    server.post(opening(KNOWN))
    assert send(server, 0).status_code == 202
    goes_on_after(server, filler.unlink)
    server.stop()
    assert is_sound(small_disk / "a.db")


@pytest.mark.slow
def test_a_read_only_file_is_said_at_the_start(tmp_path: Path, start_server: Callable[..., Server]) -> None:
    path = tmp_path / "a.db"
    server = start_server(db=str(path))
    server.post(opening(KNOWN))
    assert send(server, 0).status_code == 202
    server.stop()
    with read_only(path):
        done = forked.server.run("-m", "rangewatch", "serve", "--port", "0", "--db", path, timeout=30)
    assert done.returncode == 2
    assert done.stderr == f"rangewatch serve: cannot open {path}: Operation not permitted\n"
    are_there(start_server(db=str(path)), 1)


@contextlib.contextmanager
def read_only(path: Path) -> Iterator[None]:
    """A mode does not stop root; the attribute `immutable` does."""
    path.chmod(0o444)
    is_root = os.geteuid() == 0
    if is_root and subprocess.run(["chattr", "+i", str(path)], capture_output=True).returncode:
        pytest.skip("root may write anything here, and the file system knows no attribute that says otherwise")
    yield
    if is_root:
        subprocess.run(["chattr", "-i", str(path)], check=True)
    path.chmod(0o644)


@pytest.mark.slow
def test_a_postgres_that_turns_read_only(postgres_url: str, start_server: Callable[..., Server]) -> None:
    """As after a failover to a standby, or when a managed server runs out of disk."""
    server = start_server(db=plain(postgres_url))
    server.post(opening(KNOWN))
    assert send(server, 0).status_code == 202
    turn(postgres_url, "on")
    goes_on_after(server, lambda: turn(postgres_url, "off"), most=3)


def turn(url: str, read_only: str) -> None:
    """Set it for new connections, and end those there are."""
    name = make_url(url).database
    engine = create_engine(POSTGRES, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(f"ALTER DATABASE {name} SET default_transaction_read_only = {read_only}"))
        connection.execute(text(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"))
    engine.dispose()


def plain(url: str) -> str:
    return url.replace("+psycopg", "")


@pytest.mark.slow
def test_a_lock_held_by_another(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start_server: Callable[..., Server]
) -> None:
    """A shell or a backup holds it for longer than the writer waits, here 0.2 s."""
    patch_children(monkeypatch, tmp_path, "from rangewatch_server.store import engine; engine.BUSY_TIMEOUT_MS = 200")
    server = start_server(db=plain(database_url))
    server.post(opening(KNOWN))
    assert send(server, 0).status_code == 202
    engine = create_engine(database_url)
    with engine.connect() as other:
        other.exec_driver_sql(
            "BEGIN IMMEDIATE" if engine.dialect.name == "sqlite" else "LOCK TABLE streams IN EXCLUSIVE MODE"
        )
        goes_on_after(server, other.rollback, most=2)
    engine.dispose()


def patch_children(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: str) -> None:
    """Run `code` at the start of every Python process that the test starts from here on."""
    (tmp_path / "sitecustomize.py").write_text(f"{code}\n")
    before = [each for each in (os.environ.get("PYTHONPATH"),) if each]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([*before, str(tmp_path)]))


@pytest.mark.slow
def test_a_client_that_sends_a_byte_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start_server: Callable[..., Server]
) -> None:
    """It is answered when its time is up, here 0.5 s, though a byte came every 0.05 s."""
    patch_children(monkeypatch, tmp_path, "from rangewatch_server.access import body; body.BODY_S = 0.5")
    server = start_server()
    where = urlsplit(server.url)
    with socket.create_connection((where.hostname, where.port), timeout=20) as slow:
        slow.sendall(b"POST /api/v1/ingest HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 10000\r\n\r\n")
        slow.setblocking(False)
        assert answer_to(slow).startswith(b"HTTP/1.1 408 ")
    assert server.post(opening(KNOWN)).status_code == 202


def test_a_body_that_does_not_come_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often a part of it comes. No room is kept for it."""
    monkeypatch.setattr(body, "BODY_S", 0.01)

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(0.001)
        return {"type": "http.request", "body": b"x", "more_body": True}

    async def read() -> None:
        room = body.Room(10**9)
        with pytest.raises(ApiError) as raised, room.taken() as taken:
            await body.read_body(Request({"type": "http", "headers": []}, receive), 2_000, taken)
        assert (raised.value.status, raised.value.code, room.left_bytes) == (408, "slow_body", 10**9)

    in_own_loop(read)


def answer_to(slow: socket.socket) -> bytes:
    """A byte now and then, until something comes back; at most 10 s."""
    for _ in range(200):
        slow.send(b"x")
        time.sleep(0.05)
        with contextlib.suppress(BlockingIOError):
            return slow.recv(4096)
    return b""


@pytest.mark.slow
def test_a_damaged_page_of_the_database_is_no_fault_of_the_message(
    tmp_path: Path, start_server: Callable[..., Server]
) -> None:
    """SQLite says that the file is malformed: the agents keep what they have, since somebody may put a backup back."""
    path = tmp_path / "a.db"
    server = start_server(db=str(path))
    server.post(opening(KNOWN))
    for sequence in range(3):
        assert send(server, sequence).status_code == 202
    server.stop()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        (page,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'streams'").fetchone()
        (size,) = connection.execute("PRAGMA page_size").fetchone()
    good = path.read_bytes()
    path.write_bytes(good[: (page - 1) * size] + b"\xff" * size + good[page * size :])
    server = start_server(db=str(path))
    assert is_refused_for_now(send(server, 3))
    server.stop()
    path.write_bytes(good)
    server = start_server(db=str(path))
    assert send(server, 3).status_code == 202
    are_there(server, 4)
