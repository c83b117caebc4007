"""A collector of OTLP over HTTP that answers, is slow, refuses, or is gone."""

from __future__ import annotations

import contextlib
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

SLOW_S = 5.0


class Collector:
    """`mode`: healthy, slow or refusing; `pushes`: how many requests came. One port for all its life."""

    def __init__(self) -> None:
        self.mode = "healthy"
        self.pushes = 0
        self._port = 0
        self._server: ThreadingHTTPServer | None = None

    @property
    def url(self) -> str:
        """What `--otlp` is given."""
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Listen, unless it does."""
        if self._server is not None:
            return
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                collector.pushes += 1
                if collector.mode == "slow":
                    time.sleep(SLOW_S)
                with contextlib.suppress(OSError):
                    self.send_response(503 if collector.mode == "refusing" else 200)
                    self.send_header("Content-Length", "0")
                    self.end_headers()

            def log_message(self, *args: Any) -> None:
                pass

        class Listening(ThreadingHTTPServer):
            daemon_threads = allow_reuse_address = True

        self._server = Listening(("127.0.0.1", self._port), Handler)
        self._port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self) -> None:
        """Be gone: connections are refused."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def __enter__(self) -> Collector:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
