"""A tiny ingest server on a real socket: stores what arrives, and refuses what a script tells it to."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from rangewatch import statistics, wire
from rangewatch.wire.records import Batch, Event, StreamHeader, TensorEntry

IDENTITIES = {statistic.name: statistic.identity for statistic in statistics.ALL}
Reply = tuple[int, dict[str, str], bytes]


class IngestDouble:
    """Keeps what arrives, by the protocol of docs/wire.md. Replies in `script` answer the next requests instead."""

    def __init__(self) -> None:
        self.script: deque[Callable[[BaseHTTPRequestHandler], Reply | None]] = deque()
        self.openings: list[StreamHeader] = []
        self.batches: list[Batch] = []
        self.requests: list[dict[str, str]] = []
        self.duplicates = 0
        self.send_every_s: Any = 0.0
        self.also_live: Any = None
        """Where not None, sent with the answer to each batch."""
        self.health: Any = None
        """The same."""
        self.commands: list[Any] = []
        """Sent with the answer to each batch."""
        self.catalogues: dict[str, tuple[TensorEntry, ...]] = {}
        self._runs: set[tuple[str, int, str]] = set()
        self._stored: set[tuple[str, int, str, int]] = set()
        self.port = 0
        self._connections: list[socket.socket] = []
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Listen, on the same port as before."""
        double = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def setup(self) -> None:
                super().setup()
                double._connections.append(self.connection)

            def do_POST(self) -> None:
                double._handle(self)

            def log_message(self, *args: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            allow_reuse_address = True

            def handle_error(self, request: Any, address: Any) -> None:
                pass  # clients that go away are part of the tests

        self._server = Server(("127.0.0.1", self.port), Handler)
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop listening, and cut the connections that are open."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._connections.clear()

    def forget(self) -> None:
        """As a server with a fresh database."""
        self._runs.clear()
        self.catalogues.clear()

    def events(self, kind: str) -> list[Event]:
        return [event for batch in self.batches for event in batch.events if event.kind == kind]

    def series(self, name: str, rank: int = 0) -> dict[int, float]:
        found: dict[int, float] = {}
        for batch in self.batches:
            for rows in batch.series:
                if rows.name == name and batch.rank == rank:
                    assert not set(found) & set(rows.steps.tolist()), "a series value was sent twice"
                    found.update(zip(rows.steps.tolist(), rows.values.tolist(), strict=True))
        return found

    def tensors(self, rank: int = 0) -> dict[tuple[str, str, int], dict[int, dict[str, float]]]:
        """(fqn, kind, index) -> step -> statistic -> value, of the cells that were observed."""
        found: dict[tuple[str, str, int], dict[int, dict[str, float]]] = defaultdict(dict)
        for batch in self.batches:
            if batch.ranges is None or batch.rank != rank:
                continue
            ranges, entries = batch.ranges, self.catalogues[batch.catalogue]
            for row, number in enumerate(ranges.tensors.tolist()):
                entry = entries[number]
                for column, step in enumerate(ranges.steps.tolist()):
                    cell = {
                        name: float(ranges.columns[name][row, column]) if name in ranges.columns else identity
                        for name, identity in IDENTITIES.items()
                    }
                    if cell["call_count"]:
                        steps = found[entry.fqn, entry.kind, entry.index]
                        assert step not in steps, "a cell was sent twice, or in two dtypes in one step"
                        steps[step] = cell
        return dict(found)

    def entry(self, fqn: str, kind: str, index: int = 0) -> TensorEntry:
        """The newest catalogue's entry."""
        catalogue = max(self.catalogues.values(), key=len)
        return [each for each in catalogue if (each.fqn, each.kind, each.index) == (fqn, kind, index)][-1]

    def _handle(self, request: BaseHTTPRequestHandler) -> None:
        body = request.rfile.read(int(request.headers["Content-Length"]))
        self.requests.append(dict(request.headers))
        scripted = self.script.popleft()(request) if self.script else self._take(wire.decode(body))
        if scripted is None:
            request.close_connection = True
            return
        status, headers, text = scripted
        request.send_response(status)
        for name, value in {"Content-Length": str(len(text)), **headers}.items():
            request.send_header(name, value)
        request.end_headers()
        request.wfile.write(text)

    def _take(self, message: StreamHeader | Batch) -> Reply:
        if isinstance(message, StreamHeader):
            info = message.info
            self._runs.add((info.run, info.rank, info.incarnation))
            self.catalogues[wire.catalogue_digest(message.catalogue)] = message.catalogue.tensors
            self.openings.append(message)
            return accepted()
        key = (message.run, message.rank, message.incarnation)
        if key not in self._runs:
            return refused(409, "unknown_run")
        if message.catalogue not in self.catalogues:
            return refused(409, "unknown_catalogue")
        if (*key, message.sequence) in self._stored:
            self.duplicates += 1
        else:
            self._stored.add((*key, message.sequence))
            self.batches.append(message)
        return accepted(self.commands, self.send_every_s, self.also_live, self.health)


def accepted(commands: Sequence[Any] = (), send_every_s: Any = 0.0, also_live: Any = None, health: Any = None) -> Reply:
    said = {"contiguous": 0, "duplicate": False, "commands": list(commands), "send_every_s": send_every_s}
    optional = {"also_live": also_live, "health": health}
    return 202, {}, json.dumps(said | {name: each for name, each in optional.items() if each is not None}).encode()


def refused(status: int, code: str, **headers: str) -> Reply:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return status, named, json.dumps({"error": "scripted", "code": code}).encode()
