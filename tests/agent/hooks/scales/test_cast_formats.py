"""Layers that torchao casts, and nobody has declared a format: what does not survive its own cast is named."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import rangewatch
from rangewatch.statistics import in_use
from tests.agent.ingest_double import IngestDouble
from tests.server.process import Run

float8 = pytest.importorskip("torchao.float8", reason="torchao is not installed")

STEPS, ROWS = 8, 64


def train(url: str, run: str, lost: str, recipe: str = "tensorwise", **options: Any) -> None:
    """With what is `lost` in its format: a gradient, a weight, or "" nothing."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))
    if lost == "weight":
        with torch.no_grad():
            model.get_submodule("3").weight[5, 7] = 1e6
    float8.convert_to_float8_training(model, config=float8.Float8LinearConfig.from_recipe_name(recipe))
    share = torch.full((ROWS, 1), 1e-11 if lost == "gradient" else 1.0)
    share[0] = 1.0
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    with rangewatch.attach(
        model, optimizer, url=url, run=run, quiet=True, watcher=False, collect=(), budget_percent=100, **options
    ) as handle:
        for step in range(STEPS):
            x = torch.randn(ROWS, 32, generator=torch.Generator().manual_seed(step))
            loss = (model(x).square() * share).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            handle.log(loss=loss.item())


@pytest.mark.parametrize(
    ("lost", "kind", "fqn", "title"),
    [
        ("gradient", "scaled_grad_output", "3", "E5M2 by tensor"),
        ("weight", "scaled_weight", "3", "E4M3 by tensor"),
        ("", "", "", ""),
    ],
)
def test_what_is_lost_in_the_real_format_is_named(lost: str, kind: str, fqn: str, title: str, run: Run) -> None:
    train(run.server.url, run.name, lost)
    answer = run.get("/diagnosis")
    assert not answer["failed"]
    found = [each for each in answer["findings"] if each["rule"] == "format_in_use"]
    if not lost:
        assert found == [] and all(each["severity"] == "info" for each in answer["findings"])
        return
    assert [(each["tensor"], each["kind"]) for each in found] == [(fqn, kind)]
    assert f"does not survive in {title}" in found[0]["summary"]
    assert found[0]["facts"]["flushed"] > 0.9


def readings(ingest: IngestDouble) -> dict[tuple[str, str, int], float]:
    """Elements that were lost in the format in use, by operand."""
    found: dict[tuple[str, str, int], float] = {}
    for batch in ingest.batches:
        name = f"{in_use.PREFIX}flushed_count"
        if batch.ranges is None or f"{in_use.PREFIX}count" not in batch.ranges.columns:
            continue
        for row, number in enumerate(batch.ranges.tensors.tolist()):
            entry = ingest.catalogues[batch.catalogue][number]
            if batch.ranges.columns[f"{in_use.PREFIX}count"][row].any():
                lost = batch.ranges.columns[name][row].sum() if name in batch.ranges.columns else 0.0
                found[entry.fqn, entry.kind, entry.index] = float(lost)
    return found


def test_what_is_declared_wins(ingest: IngestDouble) -> None:
    train(ingest.url, "declared", "gradient", formats={"grad_output:3": "mxfp8_e4m3"})
    found = readings(ingest)
    assert found["3", "scaled_grad_output", 0] == 0, "by blocks of a row nothing is lost"
    assert ("1", "scaled_weight", 0) in found, "of what is not declared the cast is taken"


def test_each_direction_is_read_by_its_own_scales(ingest: IngestDouble) -> None:
    """The rows of the gradient differ by powers of ten: a scale for each row keeps them, one for a column not."""
    train(ingest.url, "rows", "gradient", "rowwise")
    found = readings(ingest)
    assert found["3", "scaled_grad_output", 0] < 5
    assert found["3", "scaled_grad_output", 1] > 0.9 * ROWS * 32
    assert len(found) == 12
