"""A real `rangewatch serve` in a process of its own, and what it costs: memory, processor time, bytes on disk."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import urllib3
from sqlalchemy import Connection, create_engine, make_url, text

START_S = 30.0  # seconds for a server to answer: it imports for one or two on a busy machine


class Server:
    """Started on a free port unless one is given; `db` is a path or a URL. Use with `with`."""

    def __init__(self, db: Path | str, port: int = 0, *arguments: str) -> None:
        command = [sys.executable, "-m", "rangewatch", "serve", "--port", str(port), "--db", str(db), *arguments]
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # a bench that is ended leaves no server behind
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        first = self.process.stdout.readline()
        if not first:
            raise RuntimeError(f"the server did not start: exit status {self.process.wait()}")
        self.url = first.split()[-1]

    def stop(self) -> None:
        """Shut down as Ctrl-C does: what is queued is committed, and the WAL is folded into the file."""
        self.process.terminate()
        self.process.wait(60)

    def rss_bytes(self) -> int:
        """Memory of its processes now."""
        return sum(each.memory_info().rss for each in self._processes())

    def cpu_s(self) -> float:
        """Processor seconds that its processes have used."""
        times = [each.cpu_times() for each in self._processes()]
        return sum(each.user + each.system for each in times)

    def _processes(self) -> list[psutil.Process]:
        first = psutil.Process(self.process.pid)
        return [first, *first.children(recursive=True)]

    def __enter__(self) -> Server:
        deadline_s = time.monotonic() + START_S
        pool = urllib3.PoolManager()
        while time.monotonic() < deadline_s:
            with contextlib.suppress(urllib3.exceptions.HTTPError):
                if pool.request("GET", f"{self.url}/healthz", retries=False).status == 200:
                    return self
            time.sleep(0.05)
        self.stop()
        raise RuntimeError(f"the server did not answer within {START_S:.0f} s")

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.stop()


class Database:
    """An empty database of this run's own: a SQLite file, or one made on the given PostgreSQL and dropped after."""

    def __init__(self, db: str) -> None:
        """`db`: what is given to `serve`, a URL or the path of the SQLite file."""
        self.db = db

    @property
    def is_sqlite(self) -> bool:
        """Whether it is a file."""
        return "://" not in self.db

    def nbytes(self) -> int:
        """Bytes on disk: the files, or what PostgreSQL says of the database (an empty one is some 8 MB)."""
        if self.is_sqlite:
            path = Path(self.db)
            return sum(each.stat().st_size for each in path.parent.glob(f"{path.name}*"))
        with _connected(self.db) as connection:
            return int(connection.execute(text("SELECT pg_database_size(current_database())")).scalar_one())


@contextlib.contextmanager
def fresh_database(server_url: str = "") -> Iterator[Database]:
    """Empty: on the PostgreSQL at `server_url`, or as a SQLite file in a folder for the time of the run."""
    if not server_url:
        with tempfile.TemporaryDirectory(prefix="rangewatch-bench-") as folder:
            yield Database(str(Path(folder) / "bench.db"))
        return
    name = f"rangewatch_bench_{uuid.uuid4().hex[:12]}"
    with _connected(server_url) as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    try:
        yield Database(make_url(server_url).set(database=name).render_as_string(hide_password=False))
    finally:
        with _connected(server_url) as connection:
            connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))


@contextlib.contextmanager
def _connected(url: str) -> Iterator[Connection]:
    engine = create_engine(make_url(url).set(drivername="postgresql+psycopg"), isolation_level="AUTOCOMMIT")
    try:
        with engine.connect() as connection:
            yield connection
    finally:
        engine.dispose()


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0))
