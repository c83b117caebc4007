"""When each parameter was last compared between ranks: compared, never, in parts, or not known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rangewatch.statistics import balanced, weight_of
from rangewatch.wire import events
from rangewatch.wire.events import Placement, Placements
from rangewatch_server.views.replicas import replicas
from tests.server.rules.conftest import Recording, tensor
from tests.server.rules.test_axis_replicas import line, mesh


@pytest.fixture
def recording() -> Recording:
    return Recording()


SIZES = {"dp": 2, "tp": 2}
NAMES = ("norm.weight", "norm.bias", "up.weight", "plain.weight")
TENSORS = [tensor(name, "grad", at) for at, name in enumerate(NAMES)] + [tensor(NAMES[0], "reduced_grad", 9)]
STEPS = 200
READ_AT = (37, 137)
"""The turn of the norm's weight; its bias has had none."""


def write(recording: Recording) -> None:
    sharded, alike = (
        Placement({"dp": "shard(0)", "tp": "shard(0)"}),
        Placement({"dp": "shard(0)", "tp": "replicate"}, ("tp",)),
    )
    said = Placements((sharded, alike, Placement({})), dict(zip(NAMES, (1, 1, 0, 2), strict=True)), 4)
    for rank in range(4):
        values = np.zeros((len(TENSORS), STEPS))
        values[0, READ_AT] = values[4, READ_AT[:1]] = 4096.0
        values[2, READ_AT] = 77.0  # a part, that is read to see whether it is changed
        columns = {"axis_checksum": values, "axis_balance": balanced(values, weight_of(*line(SIZES, rank, ["tp"])))}
        reported = tuple(events.event(each, 1, 0) for each in (mesh(SIZES, rank), said))
        recording.write(
            TENSORS,
            STEPS,
            columns,
            rank=rank,
            world_size=4,
            events=reported,
        )


def answer(recording: Recording) -> dict[str, Any]:
    with recording.run() as run:
        return replicas(run)


def test_each_parameter_says_when_it_was_last_compared(recording: Recording) -> None:
    write(recording)
    found = answer(recording)
    assert (found["stop"], found["oldest_step"]) == (STEPS, READ_AT[1])
    assert found["counts"] == {"compared": 1, "never": 1, "parts": 1, "unknown": 1}
    by_name = {each.pop("parameter"): each for each in found["parameters"]}
    assert list(by_name) == list(NAMES)
    assert by_name["norm.weight"] == {
        "state": "compared", "alike": ("tp",), "unknown_axes": (), "step": READ_AT[1], "gradient_step": READ_AT[0],
    }  # fmt: skip
    assert by_name["norm.bias"]["state"] == "never" and by_name["norm.bias"]["step"] is None
    assert by_name["up.weight"]["state"] == "parts"
    assert (by_name["plain.weight"]["state"], by_name["plain.weight"]["unknown_axes"]) == ("unknown", ("dp", "tp"))


def test_what_all_ranks_hold_is_compared_between_all(recording: Recording) -> None:
    values = np.zeros((len(TENSORS), STEPS))
    values[0, READ_AT] = 4096.0
    for rank in range(2):
        recording.write(TENSORS, STEPS, {"checksum_max": values, "checksum_min": values}, rank=rank, world_size=2)
    (found,) = answer(recording)["parameters"]
    assert (found["parameter"], found["state"], found["alike"], found["step"]) == (
        "norm.weight", "compared", ("all ranks",), READ_AT[1],
    )  # fmt: skip


def test_one_rank_compares_nothing(recording: Recording) -> None:
    recording.write(TENSORS, STEPS)
    found = answer(recording)
    assert (found["parameters"], found["counts"], found["oldest_step"]) == ([], {}, None)
