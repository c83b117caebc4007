"""An optimizer that is given another state while it is watched."""

from __future__ import annotations

import copy

import torch
from torch import nn

import rangewatch
from tests.agent.ingest_double import IngestDouble


def test_a_state_that_is_loaded_in_mid_run(ingest: IngestDouble) -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.Adam(model.parameters())
    with rangewatch.attach(model, optimizer, url=ingest.url):
        for step in range(4):
            if step == 2:
                optimizer.load_state_dict(optimizer.state_dict())
            optimizer.zero_grad()
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
        copy.deepcopy(optimizer).load_state_dict(optimizer.state_dict())  # another one's
    optimizer.load_state_dict(optimizer.state_dict())
    assert [(each.step, each.data) for each in ingest.events("state_loaded")] == [(2, {"name": "Adam"})]
