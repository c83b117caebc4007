"""The benches still run: those of the server at their smallest, since a bench that broke is found out too late."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parent.parent / "bench"
BENCHES = (
    "collectives", "diagnosis", "diff", "fleet", "ingest", "kernel", "mirror", "mirror_threads", "peers", "query",
    "rules", "server_away", "spool", "start", "stragglers", "web",
)  # fmt: skip
PREDICT = ("fleet", "ingest", "query", "start", "web")


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
def test_a_full_spool_counts_every_batch_it_drops() -> None:
    away = run("spool.py", "--quick")["away"]
    assert set(away["lost"]) == {"spool_full"}
    assert away["records"] + away["lost"]["spool_full"] == 600
    assert away["disk_bytes"] <= 1 << 20


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
def test_start_lists_every_run_and_hears_every_rank() -> None:
    found = run("start.py", "--quick", timeout_s=110)["result"]
    (names,) = found["names"]
    assert names["many"]["statuses"] == names["few"]["statuses"] == [200] and not names["many"]["live_partial"]
    for full, empty in found["page"]["rounds"]:
        assert full["statuses"] == [200, 200] and empty["cpu_s"] > 0
    for name in ("first", "first_steps", "later", "later_steps"):
        assert found["ranks"][name]["statuses"] == [202], name


@pytest.mark.slow
def test_web_times_each_view_and_follows_a_live_run() -> None:
    found = run("web.py", "--quick", timeout_s=110)  # starts three servers and a browser
    assert set(found["times"]) == {"first view, cold", "first view, warm", "zoom", "show all steps", "switch"}
    for each in [*found["times"].values(), found["lag_ms"]]:
        assert 0 < each["p50"] <= each["p95"] <= each["max"]
    assert found["empty_ms"] > 0 < found["all_points_ms"]
    assert {name for name, each in found["memory"].items() if each["last"] > 0} == {"heap_bytes", "nodes", "rss_bytes"}


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_planted_differences_and_equal_pairs_are_trained_and_asked_about() -> None:
    """All of them take ten minutes; of other layouts test_layouts has its own."""
    found = run("diff.py", "--quick", timeout_s=170)["result"]
    assert (found["planted"], found["right"], found["equal"], found["quiet"]) == (2, 2, 2, 2)


@pytest.mark.slow
def test_a_mirror_takes_next_to_nothing_of_a_core() -> None:
    (row,) = run("mirror_threads.py", "--only", "tensorboard", "--seconds", "3")["rows"]
    assert row["all"] < 5 and row["rows"] and row["alert_ms"] is not None


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_a_mirror_in_trouble_changes_no_loss() -> None:
    rows = run("mirror.py", "--quick", timeout_s=110)["rows"]
    assert {row["mode"] for row in rows} == {"healthy", "slow", "refusing", "killed"}
    assert {row["sink"] for row in rows} == {"tensorboard", "otlp"}
    assert all(row["equal"] and row["ratio"] > 0 for row in rows)


@pytest.mark.slow
def test_collectives_are_timed_on_two_ranks_by_each_source() -> None:
    sources = run("collectives.py", "--rounds", "1", "--steps", "2", timeout_s=110)["sources"]
    assert {"plain, 1 MB", "wrapped, 1 MB", "plain, 25 MB", "wrapped, 25 MB"} <= set(sources)
    assert all(each["step_ms"] > 0 for each in sources.values())


@pytest.mark.slow
def test_scales_are_read_in_few_steps() -> None:
    pytest.importorskip("torchao.float8", reason="torchao is not installed")
    found = run("scales.py", "--quick", timeout_s=110)
    assert found["steps"] == 60 and found["with_readings"] < 30 and found["ratio"] > 0


@pytest.mark.slow
def test_an_unseen_script_is_run_and_judged() -> None:
    found = run("unseen.py", "--only", "rmsprop_eps0", timeout_s=110)
    assert (found["planted"], found["healthy"]) == (1, 0)
    assert found["right"] + found["weak"] + found["wrong"] == 1
    assert "no run" not in found["reasons"]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_bugs_on_a_mesh_are_named_and_healthy_ones_add_no_collective() -> None:
    planted = run(
        "mesh.py", "--only", "hsdp/norm_of_own_shards", "tp_hand/dropout_by_rank", "pp/same_rows", timeout_s=280
    )
    assert (planted["planted"], planted["right"]) == (3, 3)
    healthy = run("mesh.py", "--healthy", "--only", "fsdp_tp/fp32/none", "pp/fp32/none", timeout_s=280)
    assert (healthy["healthy"], healthy["right"]) == (2, 2)


def in_bench(script: str, *arguments: str) -> Any:
    """What a script prints as JSON that imports benches as they import one another: by names which are only theirs in a
    process of their own.
    """
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], cwd=BENCH, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_a_peer_that_cannot_be_installed_is_a_row_that_says_why(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin" / "python"
    python.write_text("#!/bin/sh\necho 'ERROR: No matching distribution found' >&2\nexit 1\n")
    python.chmod(0o755)
    script = """
import json, pathlib, sys, peers
measured = peers.measure_all(3, 0.1, pathlib.Path(sys.argv[1]))
print(json.dumps([[each["name"], peers.row(each)] for each in measured]))
"""
    rows = dict(in_bench(script, str(tmp_path)))
    assert list(rows) == ["trackio", "mlflow", "tensorboard"]
    for row in rows.values():
        assert row.endswith("not measured: ERROR: No matching distribution found")


@pytest.mark.slow
def test_what_is_said_of_an_unseen_script_is_judged_by_what_was_expected() -> None:
    script = """
import json, unseen
usual = {"rule": "first_nonfinite", "severity": "critical", "step": 100, "rank": 0, "tensor": "head.weight",
    "summary": "NaN", "consequences": [], "facts": {"origin": "forward"},
    "remedy": [{"text": "Add an eps.", "because": "x was 0"}]}
expected = unseen.Expected(["forward_arithmetic"], (99, 100), "head.*", 0, right="eps", wrong=["learning rate"])
def judge(polls=((50, []), (125, [usual])), expected=expected, failed=(), **other):
    answers = [(stop, {"findings": findings}) for stop, findings in polls]
    end = {"findings": [usual | other] if other.get("rule") != "" else [], "failed": failed}
    verdict = unseen.judged(expected, end, answers)
    return [verdict.grade, *verdict.reasons]
silent, quiet = {"rule": ""}, unseen.Expected(healthy=True)
advice = lambda text: [{"text": text, "because": ""}]
print(json.dumps([
    judge(), judge(remedy=advice("Look.")), judge(remedy=advice("An eps, or a lower learning rate.")),
    judge(facts={"origin": "data"}), judge(tensor="body"), judge(step=98), judge(rank=1), judge(failed=["a_rule"]),
    judge([(75, [usual])]), judge([(125, [usual | {"step": 99}])]), judge(**silent),
    judge([], quiet, **silent), judge([], quiet), judge([(25, [usual])], quiet, **silent),
    judge([(25, [usual | {"severity": "info"}])], quiet, **silent),
]))
"""
    assert in_bench(script) == [
        ["right"], ["weak", "no fitting advice"], ["wrong", "wrong advice"],
        ["wrong", "cause"], ["wrong", "place", "another root at first"], ["wrong", "step", "another root at first"],
        ["wrong", "rank", "another root at first"], ["wrong", "a rule failed"],
        ["wrong", "early"], ["wrong", "another root at first"], ["wrong", "nothing said"],
        ["right"], ["wrong", "alarm"], ["wrong", "alarm"], ["right"],
    ]  # fmt: skip


def docs_of(*names: str) -> dict[str, str]:
    """The docstring of each bench, by its name; what it imports of ours is there."""
    script = (
        "import importlib, json, sys; print(json.dumps({n: importlib.import_module(n).__doc__ for n in sys.argv[1:]}))"
    )
    return in_bench(script, *names)


@pytest.mark.slow
def test_each_can_be_read_and_predicts() -> None:
    """All of them but overhead.py, which needs seconds for its trainers."""
    for name, text in docs_of(*BENCHES).items():
        assert text and (name not in PREDICT or "Predicted before measuring" in text), name


@pytest.mark.slow
def test_the_overhead_can_be_read() -> None:
    assert docs_of("overhead")["overhead"]
