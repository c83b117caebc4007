"""`attach` for real DeepSpeed engines, on a CPU and in a process of their own, which runs a process group."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rangewatch.commands.demo.children import free_port
from tests import forked
from tests.agent.ingest_double import IngestDouble

pytestmark = pytest.mark.slow

WORKER = Path(__file__).with_name("deepspeed_worker.py")
ENGINES = ("fp32", "bf16", "fp16", "zero1_fp16", "zero2_bf16", "zero3_bf16")
STEPS = list(range(10, 16))


class Trained:
    """What the worker told, and what arrived, of each engine."""

    def __init__(self, reported: dict[str, list[dict[str, Any]]], double: IngestDouble) -> None:
        self.reported, self._double = reported, double

    def arrived(self, engine: str) -> IngestDouble:
        view = copy.copy(self._double)
        view.batches = [batch for batch in view.batches if batch.run == engine]
        return view


@pytest.fixture(scope="module")
def trained() -> Iterator[Trained]:
    double = IngestDouble()
    environment = {
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    done = forked.rank.run(WORKER, double.url, env={**os.environ, **environment}, timeout=110)
    assert done.returncode == 0, done.stderr
    yield Trained(json.loads(done.stdout.splitlines()[-1]), double)
    double.stop()


@pytest.mark.parametrize("engine", ENGINES)
def test_training_is_the_same_to_the_last_bit_and_nothing_is_left_behind(trained: Trained, engine: str) -> None:
    plain, attached = trained.reported[engine]
    assert attached == plain
    assert attached["steps"] == STEPS[-1] + 1


@pytest.mark.parametrize("engine", ENGINES)
def test_steps_are_those_of_global_steps(trained: Trained, engine: str) -> None:
    """Each is two microbatches, and each kind is seen, whatever ZeRO does with the parameters."""
    arrived = trained.arrived(engine)
    assert sorted(arrived.series("wall_time_s")) == STEPS
    for fqn, kind in (("0", "output"), ("0", "grad_output"), ("3.weight", "grad")):
        cells = arrived.tensors()[fqn, kind, 0]
        assert sorted(cells) == STEPS
        assert {cell["call_count"] for cell in cells.values()} == {2}
    losses = trained.reported[engine][1]["losses"]
    assert arrived.series("loss") == dict(zip(STEPS, losses[1::2], strict=True))
    assert len(arrived.events("finished")) == 1


@pytest.mark.parametrize("engine", ENGINES)
def test_the_loss_scale_is_the_engines(trained: Trained, engine: str) -> None:
    arrived, reported = trained.arrived(engine), trained.reported[engine][1]
    scales = {int(step): scale for step, scale in reported["scales"].items()}
    assert arrived.series("loss_scale") == (scales if "fp16" in engine else {})
    assert sum(arrived.series("found_inf").values()) == reported["skips"]


def test_skipped_steps_are_among_them(trained: Trained) -> None:
    assert trained.reported["zero1_fp16"][1]["skips"] == 2
