"""What a rank does when the server raises an alert of its run."""

from __future__ import annotations

from typing import Any

import pytest

import rangewatch
from rangewatch.core.guard import Guard
from rangewatch.core.options import Options
from tests.agent.api.test_control import EVERY_KIND, Loop
from tests.agent.ingest_double import IngestDouble

RAISED = {"rule": "headroom_trend", "severity": "warning", "summary": "Overflow in about 9 steps.", "rank": 5}
RAISED |= {"step": 1033, "tensor": "blocks.2", "kind": "output"}


def reported(loop: Loop, number: int = 1, **more: Any) -> str:
    """The answer to an alert."""
    loop.obey(id=number, kind="alert", alert=RAISED | more)
    return next(each.message for each in loop.ingest.events("command") if each.data["id"] == number)


def test_by_default_it_is_only_shown(ingest: IngestDouble) -> None:
    with Loop(ingest) as loop:
        assert reported(loop) == "alert headroom_trend: record"
        assert ingest.openings[0].info.takes_alerts is False


def test_a_function_gets_the_alert_between_steps(ingest: IngestDouble) -> None:
    got: list[rangewatch.Alert] = []
    with Loop(ingest, on_alert=got.append) as loop:
        assert reported(loop) == "alert headroom_trend: record"
        assert ingest.openings[0].info.takes_alerts is True
        assert got == [rangewatch.Alert(run=loop.handle.run, **RAISED)]


def test_it_stops_the_training_after_the_step(ingest: IngestDouble) -> None:
    with Loop(ingest, on_alert="stop") as loop:
        loop.steps(1)
        with pytest.raises(rangewatch.TrainingStopped, match=r"headroom_trend.*Overflow in about 9 steps"):
            reported(loop)
        loop.steps(1)  # who goes on knows what he does


def test_what_a_function_returns_is_done(ingest: IngestDouble) -> None:
    def choose(alert: rangewatch.Alert) -> str | None:
        return {"warning": "trace", "critical": "grads"}.get(alert.severity)

    with Loop(ingest, on_alert=choose) as loop:
        loop.steps(1)
        assert reported(loop, 1) == "alert headroom_trend: trace"
        first = loop.answers()[-1]["first_step"]
        assert loop.kinds_at(first) == EVERY_KIND
        assert reported(loop, 2, severity="info") == "alert headroom_trend: record"
        assert reported(loop, 3, severity="critical") == "alert headroom_trend: grads"
        assert loop.kinds_at(loop.answers()[-1]["first_step"]) == {"grad"}


def test_a_function_that_raises_is_no_matter_to_the_training(
    ingest: IngestDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Guard, "fatal", False)

    def wrong(alert: rangewatch.Alert) -> None:
        raise RuntimeError("the user's own")

    with Loop(ingest, on_alert=wrong) as loop:
        assert reported(loop) == "alert headroom_trend: record"
        assert loop.handle.stats()["faults"] == {"on_alert": 1}


@pytest.mark.parametrize(
    "alert", [None, {"rule": 3}, RAISED | {"summary": "x" * 9_999}, RAISED | {"tensor": "x" * 999}]
)
def test_what_cannot_be_read_is_refused_or_ignored(ingest: IngestDouble, alert: Any) -> None:
    with Loop(ingest, on_alert="stop") as loop:
        ingest.commands = [{"id": 1, "kind": "alert", "alert": alert}]
        loop.steps(2)
        loop.obey(id=2, kind="level", level="grads")
        assert loop.handle.stats()["faults"] == {}


@pytest.mark.parametrize("value", ["loud", 3, ["stop"]])
def test_what_it_cannot_be(value: Any) -> None:
    with pytest.raises(ValueError, match="on_alert"):
        Options(on_alert=value)
