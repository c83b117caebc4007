"""What is left of a tensor in the format in use: the sums against plain arithmetic, and when they are read."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import rangewatch
from rangewatch.recording.in_use import format_of, formats_in_use
from rangewatch.statistics import in_use, whatif
from rangewatch.statistics.formats import BY_NAME
from rangewatch.wire.events import FormatsInUse, read
from tests.agent.ingest_double import IngestDouble


def sums_of(rows: Tensor, name: str, amax: float | None = None) -> dict[str, float]:
    largest = float(rows.abs().max()) if amax is None else amax
    return dict(zip(in_use.NAMES, whatif.measure_in_use(rows, BY_NAME[name], largest, largest), strict=True))


def test_a_block_whose_elements_become_the_largest_code() -> None:
    rows = torch.linspace(0.94, 0.99, 32)[None]  # all above 0.875, the largest number at their block's scale
    sums = sums_of(rows, "mxfp8_e4m3")
    assert sums["count"] == 32 and sums["flushed_count"] == 0
    assert sums["saturated_count"] == int((rows > 0.90625).sum())
    assert sums["error_sq"] == pytest.approx(float((rows.double() - 0.875).square().sum()))
    assert sums["spread_sq"] == pytest.approx(float((rows.double() - rows.double().mean()).square().sum()))
    assert sums["error_sq"] > 10 * sums["spread_sq"]


def test_the_finer_format_of_blocks_has_a_smaller_error_and_loses_nothing() -> None:
    rows = torch.randn(64, 64, generator=torch.Generator().manual_seed(0))
    sums = sums_of(rows, "mxfp8_e5m2")
    other = sums_of(rows, "mxfp8_e4m3")
    assert sums["finer_error_sq"] == other["error_sq"] < sums["error_sq"] / 2
    assert sums["finer_lost_count"] == other["flushed_count"] + other["saturated_count"]
    assert other["finer_error_sq"] == 0


def test_an_outlier_takes_the_range_of_the_rest() -> None:
    rows = torch.randn(8, 64, generator=torch.Generator().manual_seed(0))
    rows[0, 0] = 2.0**20
    sums = sums_of(rows, "e4m3_tensor")
    assert sums["flushed_count"] > 0.9 * sums["count"]
    assert sums["relative_error"] > 0.9 * sums["count"]


def test_nan_and_zeros_are_left_out() -> None:
    rows = torch.tensor([[float("nan"), 0.0, 1.0, float("inf")]])
    sums = sums_of(rows, "e4m3_tensor", 1.0)
    assert (sums["count"], sums["sum_sq"], sums["relative_error"]) == (1, 1.0, 0.0)


def test_which_tensors_are_meant() -> None:
    said = formats_in_use(
        (("weight:*.norm*", "mxfp8_e4m3"), ("weight", "mxfp4"), ("grad_output", "mxfp8_e5m2"))
    ).formats
    assert format_of(said, "weight", "blocks.0.norm.weight") is BY_NAME["mxfp8_e4m3"]
    assert format_of(said, "weight", "blocks.0.up.weight") is BY_NAME["mxfp4"]
    assert format_of(said, "weight", "blocks.0.up.bias") is None
    assert format_of(said, "input", "blocks.0.up") is None


@pytest.mark.parametrize(
    ("given", "text"),
    [({"weight": "fp7"}, "none of"), ({"grads": "mxfp4"}, "kinds"), ("mxfp4", "kinds")],
    ids=["format", "kind", "word"],
)
def test_what_cannot_be_is_refused(given: object, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        rangewatch.attach(nn.Linear(2, 2), formats=given)


def test_it_is_sent_with_what_was_declared(ingest: IngestDouble) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    formats = {"input:1": "mxfp8_e4m3", "grad_output": "mxfp8_e5m2"}
    with rangewatch.attach(model, optimizer, url=ingest.url, quiet=True, level="frames", formats=formats):
        for _ in range(30):
            model(torch.randn(8, 64)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    (event,) = ingest.events("formats_in_use")
    said = read(FormatsInUse, event.data)
    assert said is not None
    assert [(each.kind, each.pattern, each.format) for each in said.formats] == [
        ("input", "1", "mxfp8_e4m3"), ("grad_output", "", "mxfp8_e5m2"),
    ]  # fmt: skip
    named = set()
    for batch in ingest.batches:
        if batch.ranges is not None and "in_use_count" in batch.ranges.columns:
            tensors = ingest.catalogues[batch.catalogue]
            rows = np.flatnonzero(batch.ranges.columns["in_use_count"].any(axis=1))
            named |= {(tensors[number].kind, tensors[number].fqn) for number in batch.ranges.tensors[rows].tolist()}
    # The gradient of the whole model's output has a row of its own, though it is that of the last layer's too.
    assert named == {("input", "1"), ("grad_output", ""), ("grad_output", "0"), ("grad_output", "1")}
    assert not ingest.events("fault")


def test_formats_of_kinds_that_are_not_recorded_are_named(
    ingest: IngestDouble, caplog: pytest.LogCaptureFixture
) -> None:
    model = nn.Linear(2, 2)
    for level, is_warned in (("outputs", True), ("frames", False)):
        caplog.clear()
        rangewatch.attach(model, url=ingest.url, level=level, quiet=True, formats={"input": "e4m3_tensor"}).detach()
        assert ("not recorded, of which nothing is read: input" in caplog.text) == is_warned
