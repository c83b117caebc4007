"""Runs beside each other: where they part, what is set otherwise, and their series, against numbers worked out here."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rangewatch.wire.records import Event
from tests.server.plots import array
from tests.server.process import Server
from tests.server.records import batch, catalogue, opening

STEPS = 100
KNOWN = catalogue(4)


def send(server: Server, run: str, *, loss: Any, amax: Any = 1.0, **options: Any) -> int:
    """A run of one rank; the number of it."""
    run = f"compared {run}"
    values = {"PATH_OF": {"pid": 1}, "torch": {"version": options.pop("torch", "2.13")}, "odd": [1, {"a": None}]}
    events = (
        Event("attached", 1, 0, "", {"options": {"run": run, "lr": 1, **options}, "versions": {}}),
        Event("environment", 1, 0, "", {"facts": values, "findings": []}),
    )
    series = {"loss": loss, "wall_time_s": 1e9 + 2.0 * np.arange(STEPS), "tokens": 512.0 * np.arange(STEPS)}
    assert server.post(opening(KNOWN, run=run)).status_code == 202
    sent = batch(KNOWN, 0, range(STEPS), {"amax": amax}, run=run, series=series, events=events)
    assert server.post(sent).status_code == 202
    number: int = next(each["id"] for each in server.get("/api/v1/runs")["runs"] if each["name"] == run)
    return number


def asked(server: Server, *runs: int, more: str = "") -> dict[str, Any]:
    found: dict[str, Any] = server.get(f"/api/v1/compare?{'&'.join(f'run={run}' for run in runs)}{more}")
    return found


def test_runs_part_at_an_exact_step_and_the_first_tensor_of_it_is_named(served: Server) -> None:
    loss = 3.0 - np.arange(STEPS) / 100
    other, amax = loss.copy(), np.ones((4, STEPS))
    other[40:] = np.nextafter(other[40:], 9)
    other[70:] *= 1.01
    amax[2:, 39:] = 4.0
    one, two = send(served, "one", loss=loss), send(served, "two", loss=other, amax=amax, torch="2.14", lr=2)
    alike = send(served, "alike", loss=loss)
    found = asked(served, one, two)
    (parted,) = found["parting"]
    assert parted["differs"] == {"step": 40, "values": [loss[40], other[40]]}
    assert parted["beyond"] == {"step": 70, "values": [loss[70], other[70]]}
    assert (parted["start"], parted["stop"], parted["steps_per_column"], parted["is_whole"]) == (0, STEPS, 1, True)
    assert found["tensors"]["step"] == 39 and found["tensors"]["count"] == 2
    assert [each["tensor"] for each in found["tensors"]["tensors"]] == [2, 3], "in call order"
    assert found["tensors"]["tensors"][0]["difference_bits"] == pytest.approx(2.0)
    assert asked(served, one, two, more="&tolerance=0.1")["parting"][0]["beyond"] is None
    differences = {each["key"]: each["values"] for each in found["differences"]}
    assert differences == {"options.lr": ["1", "2"], "environment.torch.version": ["2.13", "2.14"]}
    three = asked(served, one, alike, two)
    assert three["tensors"] is None
    assert [each["differs"] and each["differs"]["step"] for each in three["parting"]] == [None, 40]
    assert three["parting"][0]["compared"] == STEPS
    same = asked(served, one, alike)
    assert same["differences"] == [] and same["same"] > 3 and same["tensors"]["step"] is None


def test_a_loss_that_is_nan_in_one_run_alone_parts_them(served: Server) -> None:
    loss = np.full(STEPS, 2.0)
    bad = loss.copy()
    bad[50] = np.nan
    one, two = send(served, "finite", loss=loss), send(served, "bad", loss=bad)
    parted = asked(served, one, two)["parting"][0]
    assert parted["differs"] == parted["beyond"] == {"step": 50, "values": [2.0, None]}


def test_series_are_each_over_the_runs_own_steps_time_and_tokens(served: Server) -> None:
    loss = np.arange(STEPS) / 10
    one, two = send(served, "first", loss=loss, amax=2.0), send(served, "second", loss=loss + 1)
    found = served.get(f"/api/v1/compare/series?run={one}&run={two}&name=loss&name=none&columns=50")["runs"]
    assert [each["id"] for each in found] == [one, two] and list(found[0]["series"]) == ["loss"]
    assert found[0]["steps_per_column"] == 2
    assert array(found[1]["series"]["loss"]["mean"]) == pytest.approx(loss.reshape(50, 2).mean(axis=1) + 1)
    assert array(found[0]["series"]["loss"]["high"]) == pytest.approx(loss[1::2])
    assert array(found[0]["seconds"]) == pytest.approx(4.0 * np.arange(50))
    assert array(found[0]["tokens"]) == pytest.approx(512.0 * np.arange(1, STEPS, 2))
    assert (array(found[1]["headroom"]) - array(found[0]["headroom"]) == pytest.approx(1.0, abs=1e-3)) is True


def test_what_cannot_be_compared_is_refused(served: Server) -> None:
    one = send(served, "alone", loss=1.0)
    cases = {
        f"run={one}": 422, f"run={one}&run={one}": 422, f"run={one}&run=999": 404, "": 422,
        "&".join(f"run={each}" for each in range(9)): 422, f"run={one}&run=-1": 404, f"run={one}&run=x": 422,
        f"run={one}&run=2&tolerance=-1": 422, f"run={one}&run=2&tolerance=nan": 422,
    }  # fmt: skip
    for query, status in cases.items():
        answer = served.client.get(f"/api/v1/compare?{query}")
        assert answer.status_code == status, (query, answer.text)
        assert answer.json()["code"] in ("bad_parameter", "unknown_run"), query


def test_runs_without_steps_or_loss_part_nowhere(served: Server) -> None:
    one = send(served, "with", loss=1.0)
    assert served.post(opening(KNOWN, run="compared empty")).status_code == 202
    empty = next(each["id"] for each in served.get("/api/v1/runs")["runs"] if each["name"] == "compared empty")
    found = asked(served, empty, one)
    assert found["parting"][0]["differs"] is None and found["parting"][0]["compared"] == 0
    assert found["tensors"]["tensors"] == []
    lines = served.get(f"/api/v1/compare/series?run={empty}&run={one}&name=loss")["runs"]
    assert lines[0]["series"] == {} and len(array(lines[0]["steps"])) == 0
