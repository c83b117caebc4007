"""Recompiles and graph breaks of a step, with the guard that failed."""

from __future__ import annotations

from typing import Any

import torch

import rangewatch
from rangewatch.steps.compilations import _short
from tests.agent.ingest_double import IngestDouble


def test_what_is_compiled_anew_is_said_with_its_guard(ingest: IngestDouble) -> None:
    torch._dynamo.reset()
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    @torch.compile(backend="eager")
    def loss_of(values: Any) -> Any:
        return values.square().mean()

    @torch.compile(backend="eager")
    def broken(values: Any) -> Any:
        torch._dynamo.graph_break()
        return values + 1

    with rangewatch.attach(model, optimizer, url=ingest.url, ship_interval_s=0) as handle:
        for rows in (2, 2, 3, 3):
            data = torch.ones(rows, 4)
            loss_of(data)
            if handle.stats()["step"] == 3:
                broken(data)
            model(data).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert ingest.series("recompiles") == {2: 1.0, 3: 0.0}
    assert ingest.series("graph_breaks") == {2: 0.0, 3: 1.0}
    anew, broke = ingest.events("compiled")
    assert (anew.step, anew.data["recompiles"], anew.data["graph_breaks"]) == (2, 1, 0)
    (one,) = anew.data["compilations"]
    assert one["place"].startswith("loss_of (steps/test_compilations.py:")
    assert "size mismatch at index 0. expected 2, actual 3" in one["reason"]
    assert (broke.step, broke.data["graph_breaks"], len(broke.data["break_reasons"])) == (3, 1, 1)
    torch._dynamo.reset()


def test_without_torch_compile_nothing_is_said(ingest: IngestDouble) -> None:
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with rangewatch.attach(model, optimizer, url=ingest.url):
        for _ in range(3):
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
    assert ingest.series("recompiles") == {} and ingest.events("compiled") == []


def test_a_reason_is_one_line_without_secrets() -> None:
    assert _short("tensor 'x' size mismatch\n  Hint: more") == "tensor 'x' size mismatch"
    assert "hf_abcdefghijklmnop" not in _short("G['token'] == 'hf_abcdefghijklmnopqrst'")
