"""What the callbacks have in common, where no trainer on a CPU comes by: FSDP hands out the compiled model itself."""

from __future__ import annotations

import torch
from torch import nn

from rangewatch.integrations.trainer_run import TrainerRun
from tests.agent.ingest_double import IngestDouble


def test_a_model_given_to_the_compiler_is_read(ingest: IngestDouble) -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    compiled, optimizer = torch.compile(model, backend="eager"), torch.optim.SGD(model.parameters(), lr=0.1)
    run = TrainerRun({"url": ingest.url})
    run.begin(compiled, [optimizer], step=7)
    compiled(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    run.end()
    assert sorted(ingest.tensors()["0", "output", 0]) == [7]
