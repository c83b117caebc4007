"""Phases of two gloo ranks under DDP. Run as a module, this is one of the ranks."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import rangewatch
from rangewatch.recording.phase_times import SERIES
from tests.agent.hooks.test_distributed import launch
from tests.agent.ingest_double import IngestDouble

ASLEEP_S = 0.5


@pytest.mark.slow
def test_who_waits_for_the_last_bucket_waits_in_backward(ingest: IngestDouble, tmp_path: Path) -> None:
    """DDP waits in a callback of the engine's, after all hooks: backward too, unless collectives are timed."""
    launch(ingest.url, tmp_path, "steps.test_phases_ddp")
    for rank, expected in ((0, "backward"), (1, "other")):
        found = {phase: ingest.series(name, rank) for phase, name in SERIES.items()}
        assert sorted(found["backward"]) == [1, 2, 3]
        total = {phase: sum(seconds.values()) for phase, seconds in found.items()}
        assert max(total, key=lambda phase: total[phase]) == expected


def main(url: str, path: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = DistributedDataParallel(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with rangewatch.attach(model, optimizer, url=url, run="phases", collect=()):
        for _ in range(4):
            loss = model(torch.ones(2, 4)).sum()
            time.sleep(ASLEEP_S * dist.get_rank())
            loss.backward()
            optimizer.step()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
