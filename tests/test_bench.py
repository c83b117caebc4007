"""The benches still run: those of the server at their smallest, since a bench that broke is found out too late."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parent.parent / "bench"
BENCHES = (
    "collectives", "diagnosis", "fleet", "ingest", "kernel", "peers", "query", "server_away", "spool", "stragglers",
    "web",
)  # fmt: skip
PREDICT = ("fleet", "ingest", "query", "web")


def run(*arguments: str, timeout_s: float = 60) -> dict[str, Any]:
    """The bench's last line, which is JSON."""
    name, *options = arguments
    done = subprocess.run([sys.executable, BENCH / name, *options], capture_output=True, text=True, timeout=timeout_s)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_ingest_acknowledges_and_counts_what_is_stored() -> None:
    (found,) = run("ingest.py", "--quick")["results"]
    assert found["values_per_s"] > 0
    assert found["p99_ms"] >= found["p50_ms"] > 0
    assert found["bytes_per_value"] > 0.1  # five values a step, one of which has 11 significant bits or more


@pytest.mark.slow
def test_fleet_acknowledges_every_step_of_every_rank() -> None:
    found = run("fleet.py", "--quick")
    options, result = found["options"], found["result"]
    assert result["made"] == result["acknowledged"]
    assert result["rejected"] == 0
    values_a_step = options["ranks"] * options["tensors"] * 5
    assert result["steps"] >= 2
    assert result["values"] == result["steps"] * values_a_step
    assert result["page_max_ms"] > 0
    assert result["rss_mib"] > 10


@pytest.mark.slow
def test_fleet_with_live_pages_that_nobody_looks_at() -> None:
    assert run("fleet.py", "--quick", "--pages", "20")["result"]["rejected"] == 0


@pytest.mark.slow
def test_the_spool_loses_nothing() -> None:
    assert run("spool.py", "--quick")["away"]["lost"] == {}


@pytest.mark.slow
def test_query_asks_every_kind_at_every_zoom_cold_and_warm() -> None:
    (found,) = run("query.py", "--quick")["results"]
    assert set(found["by_zoom"]) == {"64", "512", "700"}
    assert {"layers", "timeline", "tensor", "loss", "step x tensor", "step x rank", "rank x tensor"} == set(
        found["by_kind"]
    )
    for each in found["by_kind"].values():
        assert each["cold"]["p50_ms"] > 0 < each["warm"]["p50_ms"]


@pytest.mark.slow
def test_web_times_each_view_and_follows_a_live_run() -> None:
    found = run("web.py", "--quick", timeout_s=110)  # starts three servers and a browser
    assert set(found["times"]) == {"first view, cold", "first view, warm", "zoom", "show all steps", "switch"}
    for each in [*found["times"].values(), found["lag_ms"]]:
        assert 0 < each["p50"] <= each["p95"] <= each["max"]
    assert found["empty_ms"] > 0 < found["all_points_ms"]
    assert {name for name, each in found["memory"].items() if each["last"] > 0} == {"heap_bytes", "nodes", "rss_bytes"}


def test_a_peer_that_cannot_be_installed_is_a_row_that_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin" / "python"
    python.write_text("#!/bin/sh\necho 'ERROR: No matching distribution found' >&2\nexit 1\n")
    python.chmod(0o755)
    monkeypatch.syspath_prepend(str(BENCH))
    peers = importlib.import_module("peers")
    found = peers.measure_all(3, 0.1, tmp_path)
    assert [each["name"] for each in found] == ["trackio", "mlflow", "tensorboard"]
    for each in found:
        assert peers.row(each).endswith("not measured: ERROR: No matching distribution found")


def test_each_can_be_read_and_predicts(monkeypatch: pytest.MonkeyPatch) -> None:
    """What they import of ours is there, in all of them but overhead.py, which needs seconds for its trainers."""
    monkeypatch.syspath_prepend(str(BENCH))
    for name in BENCHES:
        text = importlib.import_module(name).__doc__
        assert text and (name not in PREDICT or "Predicted before measuring" in text), name


@pytest.mark.slow
def test_the_overhead_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    assert importlib.import_module("overhead").__doc__
