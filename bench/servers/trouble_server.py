"""An ingest server that can be in any kind of trouble, as a process of its own, and knows what it has stored.

A line `mode NAME` on its standard input is answered by `ok`; `told RUN` by what it has of a run, as JSON.
"""

from __future__ import annotations

import contextlib
import json
import random
import subprocess
import sys
import threading
import time
from collections import defaultdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from rangewatch import wire
from rangewatch.wire.records import Batch, StreamHeader

MODES = ("there", "away", "slow", "500", "429", "413", "garbage", "closing")


class TroubleServer:
    """The process, as the bench sees it."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.url = f"http://127.0.0.1:{self._asked(None)['port']}"

    def mode(self, name: str) -> None:
        """Be in this trouble from the next request on."""
        self._asked(f"mode {name}")

    def reported(self, run: str) -> dict[str, Any]:
        """Steps whose time is stored, calls of the first tensor and highest sequences of a run."""
        return self._asked(f"told {run}")

    def stop(self) -> None:
        self._process.stdin.close()  # type: ignore[union-attr]
        self._process.wait()

    def _asked(self, line: str | None) -> dict[str, Any]:
        if line is not None:
            print(line, file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline())  # type: ignore[union-attr]


class _Run:
    def __init__(self) -> None:
        self.sequences: set[int] = set()
        self.steps: set[int] = set()
        self.calls = 0.0
        self.dropped: dict[str, int] = {}
        self.is_finished = False

    def add(self, batch: Batch) -> None:
        if batch.sequence in self.sequences:
            return
        self.sequences.add(batch.sequence)
        if batch.ranges is not None:
            self.calls += float(batch.ranges.columns["call_count"][0].sum())
        for rows in batch.series:
            if rows.name == "agent_time_s" or rows.name == "loss":
                self.steps.update(rows.steps.tolist())
        for event in batch.events:
            self.is_finished |= event.kind == "finished"
            if event.kind == "dropped":
                self.dropped = event.data


class _Ingest:
    def __init__(self) -> None:
        self.mode = "there"
        self.runs: dict[str, _Run] = defaultdict(_Run)
        self._opened: set[str] = set()
        self._random = random.Random(0)
        self._server: ThreadingHTTPServer | None = None
        self.port = 0

    def listen(self) -> None:
        ingest = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_POST(self) -> None:
                with contextlib.suppress(OSError):
                    ingest.answer(self)

            def log_message(self, *args: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = allow_reuse_address = True

            def handle_error(self, request: Any, address: Any) -> None:
                pass

        self._server = Server(("127.0.0.1", self.port), Handler)
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def change(self, mode: str) -> None:
        was, self.mode = self.mode, mode
        if mode == "away" and self._server is not None:
            self._server.shutdown()
            self._server.server_close()
        elif was == "away" and mode != "away":
            self.listen()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        body = request.rfile.read(int(request.headers["Content-Length"]))
        if self.mode == "away" or (self.mode == "closing" and self._random.random() < 0.7):
            if self._random.random() < 0.5:
                request.wfile.write(b"HTTP/1.1 202 Acc")
            request.close_connection = True
        elif self.mode == "slow":
            self._trickle(request, self._stored(body))
        elif self.mode == "garbage":
            request.wfile.write(self._random.randbytes(3000))
            request.close_connection = True
        elif self.mode.isdecimal():
            self._reply(request, int(self.mode), {"error": "planted", "code": "planted"})
        else:
            self._reply(request, *self._stored(body))

    def _stored(self, body: bytes) -> tuple[int, dict[str, Any]]:
        message = wire.decode(body)
        if isinstance(message, StreamHeader):
            self._opened.add(message.info.incarnation)
        elif message.incarnation not in self._opened:
            return 409, {"error": "not opened", "code": "unknown_run"}
        else:
            self.runs[message.run].add(message)
        return 202, {"contiguous": 0, "commands": []}

    def _reply(self, request: BaseHTTPRequestHandler, status: int, said: dict[str, Any]) -> None:
        text = json.dumps(said).encode()
        request.send_response(status)
        request.send_header("Content-Length", str(len(text)))
        if status == 429:
            request.send_header("Retry-After", "1")
        request.end_headers()
        request.wfile.write(text)

    def _trickle(self, request: BaseHTTPRequestHandler, answer: tuple[int, dict[str, Any]]) -> None:
        """One byte a second."""
        for byte in f"HTTP/1.1 {answer[0]} Said\r\nContent-Length: 2\r\n\r\n{{}}".encode():
            if self.mode != "slow":
                break
            request.wfile.write(bytes([byte]))
            time.sleep(1)
        request.close_connection = True


def main() -> None:
    """Serve until standard input ends."""
    ingest = _Ingest()
    ingest.listen()
    print(json.dumps({"port": ingest.port}), flush=True)
    for line in sys.stdin:
        verb, _, name = line.strip().partition(" ")
        if verb == "mode":
            ingest.change(name)
            print(json.dumps({}), flush=True)
        else:
            run = ingest.runs[name]
            said = {"steps": len(run.steps), "calls": run.calls, "batches": len(run.sequences)}
            said |= {"dropped": run.dropped, "finished": run.is_finished}
            print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
