"""The examples of the trainers run as they are, as their users start them, and say where the dashboard is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rangewatch.commands.demo.children import free_port
from tests import forked
from tests.agent.ingest_double import IngestDouble

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
STEPS = 3
NOT_COMPILED = """
import os, runpy, sys
import deepspeed
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
sys.argv, sys.path[0] = sys.argv[1:], os.path.dirname(sys.argv[1])
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Runs a script on DeepSpeed without what it would compile, for a minute, to reduce faster on a CPU."""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["transformers_trainer", "lightning_trainer", "accelerate_loop", "deepspeed_loop"])
def test_example(ingest: IngestDouble, name: str) -> None:
    environment = {"RANGEWATCH_URL": ingest.url, "MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}
    start = ["-c", NOT_COMPILED] if name.startswith("deepspeed") else []
    script = [*start, EXAMPLES / f"{name}.py", f"--steps={STEPS}"]
    done = forked.rank.run(*script, env={**os.environ, **environment}, timeout=110)
    assert done.returncode == 0, done.stderr
    assert f"dashboard: {ingest.url}\n" in done.stdout
    assert {opening.info.run for opening in ingest.openings} == {name.replace("_", "-")}
    prefix = "t5." if name.startswith("lightning") else ""
    cells = ingest.tensors()[f"{prefix}decoder.block.0.layer.2.DenseReluDense.wo", "output", 0]
    assert sorted(cells) == list(range(STEPS))
    assert {cell["call_count"] for cell in cells.values()} == {2.0}
    assert not ingest.events("fault") and len(ingest.events("finished")) == 1
    assert ingest.series("loss")
