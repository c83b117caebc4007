"""How a scaler is set is told with its scale, as far as the agent said; whatever else is sent is not believed."""

from __future__ import annotations

from typing import Any

import pytest

from rangewatch.wire.records import Event
from tests.server.process import Run
from tests.server.records import batch, catalogue, opening
from tests.server.rules.loss_scales import reported, scaled

KNOWN = catalogue(2)


def send(run: Run, *said: Event, incarnation: str = "a", first: int = 0) -> None:
    series = scaled(20, (10,))
    run.post(opening(KNOWN, incarnation=incarnation))
    sent = batch(KNOWN, 0, range(first, first + 20), incarnation=incarnation, series=series, events=said)
    assert run.post(sent).status_code == 202


def settings(run: Run) -> Any:
    return run.get("/loss_scale")["scalers"][0]["settings"]


def test_the_newest_settings_of_each_scaler(run: Run) -> None:
    send(run, reported(100), reported(7, series="loss_scale/1"), reported(2_000, step=5))
    assert settings(run) == {
        "class": "GradScaler", "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 2_000.0,
    }  # fmt: skip


def test_those_of_an_older_process_are_over(run: Run) -> None:
    send(run, reported(100))
    send(run, incarnation="b", first=20)
    assert settings(run) is None


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({"series": "loss_scale", "growth_interval": "often", "class": 7}, [None, None, None, None]),
        ({"series": "loss_scale", "growth_factor": 1e300, "backoff_factor": True}, [None, None, None, None]),
        ({"series": "loss_scale", "class": "S" * 5_000, "growth_factor": 2}, ["S" * 100, 2.0, None, None]),
        ({"series": ["loss_scale"]}, None),
    ],
)
def test_odd_details_are_not_known(run: Run, data: dict[str, Any], expected: list[Any] | None) -> None:
    send(run, Event("scaler", 1, 0, "", data))
    found = settings(run)
    assert (None if found is None else list(found.values())) == expected
