"""A real `rangewatch serve`, and a run on one."""

from __future__ import annotations

import time
from subprocess import PIPE
from typing import Any

import httpx
import msgspec

from rangewatch import wire
from rangewatch.wire.records import Batch, StreamHeader
from rangewatch_server.core.settings import Settings
from tests import forked
from tests.server.databases import lay_tables
from tests.server.server_log import ServerLog


class Server:
    """A real `rangewatch serve` on a free port; `log` has what it says on stderr."""

    def __init__(self, db: str, *arguments: str) -> None:
        lay_tables(Settings(db=db).database_url)
        command = ["-m", "rangewatch", "serve", "--port", "0", "--db", db, *arguments]
        self.process = forked.server.start(*command, stdout=PIPE, stderr=PIPE, text=True, errors="replace")
        assert self.process.stdout is not None and self.process.stderr is not None
        self.log = ServerLog(f"the server with {db}", self.process.stderr)
        self.process.stderr = None  # `communicate` would read it, too
        first = self.process.stdout.readline()
        if not first:
            self.process.communicate(timeout=20)
            raise AssertionError(f"server did not start: {self.log.whole()}")
        self.url = first.split()[-1]
        self.client = httpx.Client(base_url=self.url, timeout=30)
        for _ in range(400):
            try:
                self.client.get("/healthz")
                return
            except httpx.TransportError:
                time.sleep(0.02)
        raise AssertionError(f"server did not answer: {self.log.text()}")

    def post(self, message: StreamHeader | Batch | bytes, **headers: str) -> httpx.Response:
        body = message if isinstance(message, bytes) else wire.encode(message)
        return self.client.post("/api/v1/ingest", content=body, headers=headers)

    def get(self, path: str) -> Any:
        answer = self.client.get(path)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def kill(self) -> None:
        self.process.kill()
        self._end()

    def stop(self) -> None:
        self.process.terminate()
        self._end()

    def _end(self) -> None:
        self.client.close()
        self.process.communicate(timeout=20)


class Run:
    """One run on a server that has others too. `name` is its own alone."""

    def __init__(self, server: Server, name: str) -> None:
        self.server, self.name = server, name
        self._id: int | None = None

    def post(self, *messages: StreamHeader | Batch) -> httpx.Response:
        """Send messages as this run's, whatever run they were made for: the last one's answer."""
        assert messages
        for message in messages:
            answer = self.server.post(_named(message, self.name))
        return answer

    @property
    def id(self) -> int:
        """Its number. Raises `AssertionError` before anything was taken of it."""
        if self._id is None:
            listed = self.server.get("/api/v1/runs")["runs"]
            self._id = next((each["id"] for each in listed if each["name"] == self.name), None)
        assert self._id is not None, f"the server has no run {self.name!r}"
        return self._id

    def path(self, below: str = "") -> str:
        """The API's path of the run, and of what is `below` it: `path("/figures/layers?rank=0")`."""
        return f"/api/v1/runs/{self.id}{below}"

    def get(self, below: str = "") -> Any:
        """What the API says of it."""
        return self.server.get(self.path(below))

    def ask(self, below: str = "", method: str = "GET", **options: Any) -> httpx.Response:
        """The answer, whatever its status. `options` as httpx has them."""
        return self.server.client.request(method, self.path(below), **options)


def _named(message: StreamHeader | Batch, run: str) -> StreamHeader | Batch:
    if isinstance(message, StreamHeader):
        return msgspec.structs.replace(message, info=msgspec.structs.replace(message.info, run=run))
    return msgspec.structs.replace(message, run=run)
