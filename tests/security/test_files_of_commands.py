"""CVE-2026-91771: a client that wrote files under the names that its server gave them."""

from __future__ import annotations

import re
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from rangewatch.commands.maintenance import backup
from rangewatch.commands.maintenance.requests import opened


class Evil(BaseHTTPRequestHandler):
    """Answers every request with a file that is meant to land elsewhere."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Disposition", "attachment; filename=\"../../escaped\"; filename*=UTF-8''..%2Fescaped")
        self.send_header("Content-Length", "4")
        self.end_headers()
        self.wfile.write(b"evil")

    def log_message(self, *_: Any) -> None:
        """Nothing."""


def trusting(url: str, path: Path) -> None:
    """As the command would be, if it took the server's name."""
    with opened("GET", url, "/api/v1/backup") as answer:
        name = re.search(r'filename="([^"]*)"', answer.headers["Content-Disposition"])
        assert name is not None
        (path.parent / name[1]).write_bytes(answer.read())
    path.touch()


def test_a_backup_lands_where_it_was_told_to(weakened: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if weakened:
        monkeypatch.setattr(backup, "_receive", trusting)
    server = HTTPServer(("127.0.0.1", 0), Evil)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    target = tmp_path / "mine" / "a.db"
    target.parent.mkdir()
    backup.main([str(target), "--no-verify", "--url", f"http://127.0.0.1:{server.server_address[1]}"])
    server.shutdown()
    thread.join()
    server.server_close()
    assert target.exists()
    files = {each.name for each in tmp_path.rglob("*") if each.is_file()}
    assert files == ({"a.db", "escaped"} if weakened else {"a.db"})
