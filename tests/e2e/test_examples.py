"""The T5 example: two added lines are all that its plain version lacks, and its run can be browsed."""

from __future__ import annotations

import difflib
import os
from pathlib import Path

import pytest

from rangewatch.commands.demo.children import free_port
from tests import forked
from tests.server.process import Run

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
STEPS = 4


def fine_tune(environment: dict[str, str]) -> None:
    """Runs the instrumented example on two ranks, as the README says to."""
    launch = ["-m", "torch.distributed.run", "--nproc-per-node=2", f"--master-port={free_port()}"]
    script = [EXAMPLES / "t5_finetune.py", "--size=tiny", f"--steps={STEPS}"]
    done = forked.rank.run(*launch, *script, env={**os.environ, **environment}, timeout=90)
    assert done.returncode == 0, done.stderr


def test_two_added_lines_are_the_only_difference() -> None:
    plain = (EXAMPLES / "t5_finetune_plain.py").read_text().splitlines()
    instrumented = (EXAMPLES / "t5_finetune.py").read_text().splitlines()
    changes = [line for line in difflib.ndiff(plain, instrumented) if not line.startswith("  ")]
    assert changes == ["+ import rangewatch", "+     rangewatch.attach(model, optimizer)"]


@pytest.mark.slow
def test_its_run_can_be_browsed(run: Run) -> None:
    fine_tune({"RANGEWATCH_URL": run.server.url, "RANGEWATCH_RUN": run.name})
    found = run.get()
    assert (found["name"], found["state"], found["last_step"]) == (run.name, "finished", STEPS - 1)
    assert [rank["rank"] for rank in found["ranks"]] == [0, 1]
    assert found["first_overflow"] is None
    assert not any(rank["faults"] for rank in found["ranks"])

    answer = run.get("/figures/layers?kind=output&q=DenseReluDense")
    labels = [row["label"] for row in answer["meta"]["rows"]]
    assert any("encoder.block.1.layer.1.DenseReluDense.wo" in label for label in labels), "the gated gelu has a row"
    assert "z" in answer["figure"]["data"][0]

    tensors = run.get("/tensors?kind=grad&q=DenseReluDense.wo")["tensors"]
    assert {tensor["fqn"] for tensor in tensors} >= {"decoder.block.0.layer.2.DenseReluDense.wo.weight"}
