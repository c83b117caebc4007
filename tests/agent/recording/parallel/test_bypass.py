"""A forward that goes past DistributedDataParallel."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import rangewatch
from tests.agent.ingest_double import IngestDouble


@pytest.fixture
def one_rank(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("attached", ["wrapper", "model"])
@pytest.mark.usefixtures("one_rank")
def test_the_module_inside_is_called(ingest: IngestDouble, attached: str) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh())
    whole = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    with rangewatch.attach(whole if attached == "wrapper" else model, optimizer, url=ingest.url):
        for step in range(30):
            called = model if 5 <= step < 20 else whole
            optimizer.zero_grad()
            called(torch.randn(2, 3)).sum().backward()
            with torch.no_grad():
                model(torch.randn(2, 3))  # to look at what it gives
            optimizer.step()
    told = [(each.step, each.data) for each in ingest.events("wrapper_bypassed")]
    assert told == [(12, {"steps": 8, "name": "Sequential"}), (20, {"steps": 0, "name": ""})]
    assert not model._forward_pre_hooks
