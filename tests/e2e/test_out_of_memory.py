"""A training that leaks and then asks for more than there is: the whole way from the allocation to the sentence."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

import rangewatch
from rangewatch.steps import memory
from tests.server.process import Run, Server

MIB = 1 << 20
STEPS = 40


def test_a_real_allocation_that_fails_is_explained(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(server, "leaks")  # alone there: a server's rules take 1.5 % of a core, of some hundred runs in turn
    monkeypatch.setattr(memory, "LEAST_S", 0.0)
    model, held = torch.nn.Linear(4, 1), list[Any]()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    handle = rangewatch.attach(model, optimizer, url=run.server.url, run=run.name, collect=())
    with pytest.raises(RuntimeError, match="tried to allocate"), handle:
        for step in range(STEPS):
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            if step >= STEPS // 2:
                held.append(torch.ones(8 * MIB))  # 32 MiB, each page written
        torch.empty(10**15)
    held.clear()
    (found,) = (each for each in run.get("/diagnosis")["findings"] if each["rule"] == "out_of_memory")
    assert found["rank"] == 0 and "its host's or container's memory: it asked for 3.55 PiB" in found["summary"]
    said = " ".join(found["evidence"])
    assert "more than all there is" in said, "no machine has that much"
    assert "more with each step since" in said
    assert STEPS // 2 - 4 <= found["facts"]["since_step"] <= STEPS // 2 + 4
    give_up_s, shown = time.monotonic() + 60, run.get()
    while shown["verdict"]["level"] != "critical" and time.monotonic() < give_up_s:
        time.sleep(0.1)  # the verdict is made of alerts, which rules open by and by
        shown = run.get()
    assert shown["state"] == "failed" and shown["verdict"]["level"] == "critical"
    lines = run.get("/figures/memory")["figure"]["data"]
    assert [each["name"] for each in lines] == ["resident", "resident peak"]
