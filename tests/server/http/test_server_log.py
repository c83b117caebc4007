"""The tests' own server: what it says is read, however much, and shown where a test fails."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.server.process import Server


@pytest.mark.slow
def test_a_server_that_says_much_is_not_held_up(start_server: Callable[..., Server]) -> None:
    """Over the 64 KiB that a pipe holds: it stopped in the middle of a line, and so did its test."""
    server = start_server("--log-level", "debug")
    for _ in range(80):
        assert server.client.get(f"/api/{'x' * 2_000}").status_code == 404
    server.stop()
    assert server.log.whole().count("rangewatch.requests: request") >= 80
    assert len(server.log.text()) > 128 << 10
    assert server.log.tail().count("\n") == 40


FAILS = """
    from tests.server.process import Server

    def test_it(tmp_path):
        server = Server(str(tmp_path / "a.db"), "--log-level", "debug")
        server.get("/healthz")
        server.kill()
        server.log.whole()
        assert False
"""


@pytest.mark.slow
def test_a_failure_shows_what_the_server_said(tmp_path: Path) -> None:
    path = tmp_path / "conftest.py"
    path.write_text("from tests.conftest import pytest_runtest_makereport\n")
    (tmp_path / "test_fails.py").write_text(textwrap.dedent(FAILS))
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(tmp_path),
        str(tmp_path),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "stderr of the server with" in done.stdout
    assert "path=/healthz" in done.stdout
