"""The rows of the data that steps were made of: of which step, which are sent and when, and what is refused."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import rangewatch
from rangewatch.core import limits
from rangewatch.wire import events
from rangewatch.wire.events import BatchRows, RowLoss
from tests.agent.ingest_double import IngestDouble

STEPS = 40


def sent(ingest: IngestDouble) -> dict[int, BatchRows]:
    rows: dict[int, BatchRows] = {}
    for batch in ingest.batches:
        for event in batch.events:
            if event.kind == BatchRows.KIND:
                assert event.step not in rows, "each step is sent once"
                details = events.read(BatchRows, event.data)
                assert details is not None
                rows[event.step] = details
    return rows


def ids_of(step: int) -> list[int]:
    return [10 * step, 10 * step + 1, 10 * step + 2, 10 * step + 3]


def train(
    url: str, *, bad: int | None = None, spike: int | None = None, steps: int = STEPS, where: str = "top",
    given: Callable[[int], Any] = ids_of, losses: bool = False, fails: int | None = None, **options: Any,
) -> list[float]:  # fmt: skip
    """`where` the loop names the rows: at its "top", in the "step" or at its "end". The losses."""
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    reduced = []
    with rangewatch.attach(model, optimizer, url=url, ship_interval_s=0.0, **options):
        for step in range(steps):
            x = torch.randn(4, 3)
            if where == "top":
                rangewatch.batch(ids=given(step))
            if step == fails:
                raise IndexError("row 7")
            if step == bad:
                x[2, 1] = float("nan")
            if step == spike:
                x[1] *= 1e3
            each = (model(x) - 1).pow(2).mean(1)
            if where == "step":
                rangewatch.batch(given(step), each if losses else None)
            loss = each.mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if where == "end":
                rangewatch.batch(given(step), losses=each if losses else None)
            reduced.append(loss.item())
    return reduced


@pytest.mark.parametrize("where", ["top", "step", "end"])
def test_rows_of_a_step_with_nan_and_of_the_two_before(ingest: IngestDouble, where: str) -> None:
    train(ingest.url, bad=30, where=where)
    rows = sent(ingest)
    assert {step: each.ids for step, each in rows.items()} == {step: tuple(ids_of(step)) for step in (28, 29, 30)}
    assert [rows[step].reason for step in (28, 29, 30)] == ["before", "before", "nonfinite"]
    assert all(each.count == 4 and each.microbatches == 1 for each in rows.values())


def test_a_batch_that_a_normalisation_hides_from_the_loss(ingest: IngestDouble) -> None:
    """Its running statistics have it."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with rangewatch.attach(model, optimizer, url=ingest.url, ship_interval_s=0.0):
        for step in range(STEPS):
            rangewatch.batch(ids=ids_of(step))
            model(torch.randn(4, 3) * (1e8 if step == 30 else 1)).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    rows = sent(ingest)
    assert {step: each.reason for step, each in rows.items()} == {28: "before", 29: "before", 30: "output"}
    assert rows[30].ids == tuple(ids_of(30))


def test_a_spike_of_the_loss_or_of_a_gradient(ingest: IngestDouble) -> None:
    train(ingest.url, spike=33, where="step", losses=True)
    rows = sent(ingest)
    assert rows[33].reason in ("loss", "gradient") and rows[33].largest[0].row == 331
    assert isinstance(rows[33].largest[0].loss, float)
    assert rows[33].median is not None and rows[33].largest[0].loss > 100 * rows[33].median


def test_a_healthy_training_sends_none(ingest: IngestDouble) -> None:
    train(ingest.url, where="step", losses=True, steps=100)
    assert sent(ingest) == {}


def test_losses_are_those_without_it(ingest: IngestDouble) -> None:
    plain = train(ingest.url, bad=30, where="step", losses=False)
    assert np.array_equal(plain, train(ingest.url, bad=30, where="step", losses=True), equal_nan=True)


@pytest.mark.parametrize("backend", ["auto", "device"])
def test_the_loss_of_each_row(ingest: IngestDouble, backend: str) -> None:
    train(ingest.url, bad=30, where="step", losses=True, backend=backend)
    row = sent(ingest)[30]
    assert row.largest[0] == RowLoss(302, "NaN") and row.loss_count == 4 and len(row.largest) == 4


def test_the_rows_of_the_open_step_when_training_fails(ingest: IngestDouble) -> None:
    with pytest.raises(IndexError):
        train(ingest.url, fails=12)
    rows = sent(ingest)
    assert sorted(rows) == [10, 11, 12] and rows[12].ids == tuple(ids_of(12)) and rows[12].reason == "failed"


def test_microbatches_add_up_and_more_is_cut(ingest: IngestDouble) -> None:
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    losses = torch.zeros(900)
    losses[700] = 5.0
    with rangewatch.attach(model, optimizer, url=ingest.url) as handle:
        for step in range(4):
            for micro in range(2):
                handle.batch(torch.arange(900) + 1000 * micro, losses + micro)
                model(torch.full((2, 3), float("nan") if step == 3 else 1.0)).mean().backward()
            optimizer.step()
    row = sent(ingest)[3]
    assert (row.count, row.microbatches, len(row.ids), row.loss_count) == (1800, 2, limits.BATCH_IDS, 1800)
    assert row.ids[:901] == (*range(900), 1000)
    assert row.largest[:2] == (RowLoss("at 1600", 6.0), RowLoss(700, 5.0))  # the first has no id: its place is said


KEYS: list[tuple[Any, tuple[int | str, ...]]] = [
    (["a/b.png", "x" * 500], ("a/b.png", "x" * limits.BATCH_ID_CHARACTERS)),
    (torch.tensor([5, 6], dtype=torch.int32), (5, 6)),
    (np.array([5, 6]), (5, 6)),
    (np.array(["u", "v"]), ("u", "v")),
    ((np.int64(5), torch.tensor(6)), (5, 6)),
    (range(2), (0, 1)),
    ([2**70, -1], (str(2**70), -1)),
]


@pytest.mark.parametrize(("given", "expected"), KEYS)
def test_whole_numbers_and_strings_of_any_kind(
    ingest: IngestDouble, given: Any, expected: tuple[int | str, ...]
) -> None:
    train(ingest.url, bad=3, steps=5, given=lambda step: given)
    assert sent(ingest)[3].ids == expected


REFUSED: list[tuple[Any, Any, str]] = [
    (torch.zeros(2, 2, dtype=torch.int64), None, "1-D"),
    (torch.zeros(2), None, "whole numbers"),
    (torch.zeros(2, dtype=torch.int64, device="meta"), None, "waited for"),
    ([torch.zeros((), dtype=torch.int64, device="meta")], None, "waited for"),
    ("abc", None, "a str"),
    (7, None, "a int"),
    ([1.5], None, "a float"),
    ([True], None, "a bool"),
    ((each for each in "ab"), None, "a generator"),
    ([1, 2], torch.zeros(()), "one loss a row"),
    ([1, 2], [0.1, 0.2], "a list"),
    ([1, 2], torch.zeros(3), "3 of 2 ids"),
]


@pytest.mark.parametrize(("ids", "losses", "text"), REFUSED)
def test_what_cannot_be_recorded_is_warned_of_once(
    ingest: IngestDouble, caplog: pytest.LogCaptureFixture, ids: Any, losses: Any, text: str
) -> None:
    model = nn.Linear(3, 1)
    with caplog.at_level(logging.WARNING, "rangewatch"), rangewatch.attach(model, url=ingest.url) as handle:
        for _ in range(3):
            handle.batch(ids, losses)
        argument = "ids" if losses is None else "losses"
        assert handle.stats()["dropped"] == {f"batch_{argument}": 3}
    (record,) = [each for each in caplog.records if "batch(" in each.message]
    assert f"batch({argument}=...)" in record.message and text in record.message


def test_without_a_run_it_does_nothing() -> None:
    rangewatch.batch([1, 2])
    rangewatch.attach(nn.Linear(1, 1), enabled=False).batch([1, 2])


def test_what_was_inf_all_along_is_no_news(ingest: IngestDouble) -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.ff, self.mask = nn.Linear(3, 1), nn.Identity()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.mask(torch.full((2,), float("-inf")))
            out: torch.Tensor = self.ff(x)
            return out

    model = Masked()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with rangewatch.attach(model, optimizer, url=ingest.url):
        for step in range(20):
            rangewatch.batch(ids_of(step))
            model(torch.full((2, 3), float("nan") if step == 15 else 1.0)).mean().backward()
            optimizer.step()
    assert sorted(sent(ingest)) == [0, 13, 14, 15]


class Never:
    def record(self) -> None: ...

    def query(self) -> bool:
        return False


def test_a_copy_that_is_never_complete_is_not_waited_for(ingest: IngestDouble, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows are sent at the end, without their losses."""
    from rangewatch.recording.nonfinite import batch_rows

    def read(part: Any, given: Any) -> None:
        part.losses, part.loss_count, part.copied = torch.zeros(4), 4, Never()

    monkeypatch.setattr(batch_rows, "_read_losses", read)
    train(ingest.url, bad=30, where="step", losses=True)
    row = sent(ingest)[30]
    assert row.ids == tuple(ids_of(30)) and row.largest == () and row.loss_count == 4


def test_memory_is_bounded(ingest: IngestDouble) -> None:
    model = nn.Linear(3, 1)
    with rangewatch.attach(model, url=ingest.url) as handle:
        agent: Any = handle._agent
        for step in range(limits.BATCH_STEPS + 20):
            handle.batch([step])
            handle.step()
        known: Sequence[int] = list(agent.batches._parts)
    assert known == list(range(20, limits.BATCH_STEPS + 20))
