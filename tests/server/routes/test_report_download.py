"""The report as a download: the file that the command writes, for who may read, whole or broken off."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from starlette.testclient import TestClient

from rangewatch_server.core.errors import ApiError, BrokenOff
from rangewatch_server.core.settings import Settings
from rangewatch_server.http import app
from rangewatch_server.routes import machines
from rangewatch_server.routes.report import file_name
from tests.agent.commands.command import typed
from tests.agent.crash.job import wait_for
from tests.server.opened_store import Store
from tests.server.process import Run, Server
from tests.server.records import batch, catalogue, opening

KNOWN = catalogue(3)


def recorded(run: Run) -> Run:
    bad = np.zeros((3, 20))
    bad[1, 12:] = 2
    run.post(opening(KNOWN), batch(KNOWN, 0, range(20), {"inf_count": bad}, series={"loss": 2.0}))
    return run


@pytest.mark.slow
def test_it_is_the_file_that_the_command_writes(run: Run, tmp_path: Path) -> None:
    recorded(run)
    wait_for(lambda: run.get()["verdict"]["fix"])  # what the rules find, they find a moment later
    answer = run.ask("/report")
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["content-disposition"] == f'attachment; filename="{file_name(run.name, run.id)}"'
    written = tmp_path / "report.html"
    assert typed("export", run.name, str(written), "--url", run.server.url)[0] == 0
    # The minute in which it was made, and figures of a run that goes on.
    when = re.compile(r"as it was on [\d: -]+ UTC|\d+(?:\.\d+)? (?:s|min|h)\b")
    assert when.sub("", answer.text) == when.sub("", written.read_text())
    assert answer.text.rstrip().endswith("</html>") and "Layers nearest to their limit" in answer.text


def test_names_of_files_are_safe_everywhere() -> None:
    assert file_name('t5 base/лр\r\n"x', 7) == "rangewatch-t5-base-x-run-7.html"
    assert file_name("../..", 7) == "rangewatch-run-7.html" and len(file_name("a" * 900, 7)) < 120


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_part_that_is_refused_is_said_and_a_run_that_is_gone_ends_the_file(
    database_url: str, store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store.send(opening(KNOWN))
    store.send(batch(KNOWN, 0, range(20)))

    def refused(*_: Any, **__: Any) -> Any:
        raise ApiError(503, "time_limit", "reading took longer than it may")

    def gone(*_: Any, **__: Any) -> Any:
        raise ApiError(404, "unknown_run", "there is no run 1")

    with TestClient(app.create_app(Settings(db=database_url)), base_url="http://127.0.0.1") as client:
        monkeypatch.setattr(machines, "list_gpus", refused)
        text = client.get("/api/v1/runs/1/report").text
        assert "Not known: the server refused it (reading took longer than it may)." in text
        assert text.rstrip().endswith("</html>") and "Environment" in text
        monkeypatch.setattr(machines, "list_gpus", gone)
        with pytest.raises(BrokenOff, match="the run was deleted while its report was made"):
            client.get("/api/v1/runs/1/report")
        assert "a download was broken off" in caplog.text
        answer = client.get("/api/v1/runs/999999/report")
        assert (answer.status_code, answer.json()["code"]) == (404, "unknown_run")


@pytest.mark.slow
def test_who_may_not_read_gets_none(start_server: Callable[..., Server], tmp_path: Path) -> None:
    server = start_server("--token", "a-long-token-of-the-test")
    client = httpx.Client(base_url=server.url, headers={"authorization": "Bearer a-long-token-of-the-test"})
    assert server.client.get("/api/v1/runs/1/report").status_code == 401
    assert client.get("/api/v1/runs/1/report").status_code == 404
