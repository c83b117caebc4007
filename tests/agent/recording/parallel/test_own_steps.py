"""When a rank says that nothing of its parameters' size goes to another. Of real ranks: tests/faults."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from torch import nn

from rangewatch.recording.parallel.own_steps import LASTING, OwnStepsReport
from rangewatch.recording.parallel.placements import Layout
from rangewatch.wire.events import OwnSteps, read
from tests.agent.doubles import EventList

WHOLE = 4 * (64 * 64 + 64)
"""Bytes of the parameters."""


class Heard:
    """In place of the collector: bytes so far."""

    def __init__(self) -> None:
        self.bytes: int | None = 0

    def moved_bytes(self) -> int | None:
        return self.bytes


def said(
    monkeypatch: pytest.MonkeyPatch, sends: Callable[[int], int | None], *, steps: int = 2 * LASTING, ranks: int = 2,
    replicated: bool = False, updates: bool = True,
) -> list[OwnSteps]:  # fmt: skip
    """`sends`: step -> bytes that are sent in it, None where that is not seen."""
    monkeypatch.setattr(Layout, "world_size", ranks)
    model, heard, events = nn.Linear(64, 64), Heard(), EventList()
    report = OwnStepsReport(Layout(model, (), replicated, 0), events, heard)
    for step in range(steps):
        report.begin_step(step)
        more = sends(step)
        heard.bytes = None if more is None or heard.bytes is None else heard.bytes + more
        if updates:
            report.before_update()
        report.end_step()
    found = [read(OwnSteps, data) for _, _, data in events.events]
    return [each for each in found if each is not None]


def test_nothing_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    assert said(monkeypatch, lambda step: 0) == [OwnSteps(LASTING, 0, "weight")]


def test_a_loss_is_no_parameter(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(said(monkeypatch, lambda step: 8)) == 1


@pytest.mark.parametrize("every", [1, 10, LASTING])
def test_what_is_sent_now_and_then(monkeypatch: pytest.MonkeyPatch, every: int) -> None:
    """A gradient, an average, or what of either is left of a hundredfold compression."""
    assert said(monkeypatch, lambda step: WHOLE // 100 * (step % every == every - 1)) == []


def test_an_average_after_many_steps_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    began, over = said(monkeypatch, lambda step: WHOLE * (step == LASTING + 20))
    assert began.updates == LASTING and over.updates == 0


def test_what_is_not_seen_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    assert said(monkeypatch, lambda step: None) == []
    assert [each.updates for each in said(monkeypatch, lambda step: None if step == LASTING + 9 else 0)] == [LASTING, 0]


@pytest.mark.parametrize("given", [{"steps": LASTING - 1}, {"ranks": 1}, {"replicated": True}, {"updates": False}])
def test_who_need_not_say_it(monkeypatch: pytest.MonkeyPatch, given: dict[str, int]) -> None:
    assert said(monkeypatch, lambda step: 0, **given) == []
