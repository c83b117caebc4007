"""The T5 example: two added lines are all that its plain version lacks, and its run can be browsed."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from rangewatch.demo.api import get_json
from rangewatch.demo.children import free_port, start_server
from tests import forked

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
STEPS = 4


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """API address of the run that the instrumented example made on a real server."""
    folder = tmp_path_factory.mktemp("examples")
    with ExitStack() as children:
        url, _ = start_server(free_port(), folder / "test.db", folder, children)
        fine_tune({"RANGEWATCH_URL": url, "RANGEWATCH_RUN": "t5"})
        runs = get_json(f"{url}/api/v1/runs")
        assert runs is not None
        yield f"{url}/api/v1/runs/{runs['runs'][0]['id']}"


def fine_tune(environment: dict[str, str]) -> None:
    """Runs the instrumented example on two ranks, as the README says to."""
    launch = ["-m", "torch.distributed.run", "--nproc-per-node=2", f"--master-port={free_port()}"]
    script = [EXAMPLES / "t5_finetune.py", "--size=tiny", f"--steps={STEPS}"]
    done = forked.rank.run(*launch, *script, env={**os.environ, **environment}, timeout=90)
    assert done.returncode == 0, done.stderr


def ask(address: str) -> dict[str, Any]:
    answer = get_json(address)
    assert answer is not None, address
    return answer


def test_two_added_lines_are_the_only_difference() -> None:
    plain = (EXAMPLES / "t5_finetune_plain.py").read_text().splitlines()
    instrumented = (EXAMPLES / "t5_finetune.py").read_text().splitlines()
    changes = [line for line in difflib.ndiff(plain, instrumented) if not line.startswith("  ")]
    assert changes == ["+ import rangewatch", "+     rangewatch.attach(model, optimizer)"]


def test_run_has_both_ranks_and_every_step(api: str) -> None:
    run = ask(api)
    assert (run["name"], run["state"], run["last_step"]) == ("t5", "finished", STEPS - 1)
    assert [rank["rank"] for rank in run["ranks"]] == [0, 1]
    assert run["first_overflow"] is None
    assert not any(rank["faults"] for rank in run["ranks"])


def test_layers_figure_has_a_row_for_the_gated_gelu(api: str) -> None:
    answer = ask(f"{api}/figures/layers?kind=output&q=DenseReluDense")
    labels = [row["label"] for row in answer["meta"]["rows"]]
    assert any("encoder.block.1.layer.1.DenseReluDense.wo" in label for label in labels)
    assert answer["figure"]["data"][0]["type"] == "heatmap"


def test_gradients_are_observed_too(api: str) -> None:
    tensors = ask(f"{api}/tensors?kind=grad&q=DenseReluDense.wo")["tensors"]
    assert {tensor["fqn"] for tensor in tensors} >= {"decoder.block.0.layer.2.DenseReluDense.wo.weight"}
