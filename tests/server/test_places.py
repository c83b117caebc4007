"""What is shown of one step: merged steps, restarts that merge otherwise, and what was no tensor."""

from __future__ import annotations

import base64
from collections.abc import Sequence

import msgspec
import numpy as np
import pytest

from rangewatch.records import Event, Opening
from rangewatch_server.headroom import State
from tests.server.conftest import Server, batch, catalogue, opening

KNOWN = catalogue(3)


def merging(ship_every: int, incarnation: str = "a") -> Opening:
    given = opening(KNOWN, incarnation=incarnation)
    return msgspec.structs.replace(given, info=msgspec.structs.replace(given.info, ship_every=ship_every))


def observed(server: Server, steps: Sequence[int]) -> list[int]:
    return [step for step in steps if server.get(f"/api/v1/runs/1/step?step={step}")["observed"]]


def test_steps_that_never_were_are_not_shown(server: Server) -> None:
    server.post(merging(8))
    server.post(batch(KNOWN, 0, [7, 15, 18]))  # it ended within a column
    assert observed(server, range(30)) == list(range(19))


def test_of_steps_that_came_one_by_one_none_stands_for_another(server: Server) -> None:
    """Around NaN and Inf nothing is merged: step 11 was dropped, and 12 is not it."""
    server.post(merging(8))
    server.post(batch(KNOWN, 0, [7, 8, 9, 10, 12, 13, 14, 15, 23]))
    assert observed(server, range(26)) == [step for step in range(24) if step != 11]


@pytest.mark.parametrize(("before", "after"), [(8, 1), (1, 8), (8, 64)])
def test_a_restart_may_merge_otherwise(server: Server, before: int, after: int) -> None:
    steps = [step for step in range(64) if step % before == before - 1]
    server.post(merging(before))
    server.post(batch(KNOWN, 0, [step for step in steps if step not in (5, 6)]))
    server.post(merging(after, "b"))
    server.post(batch(KNOWN, 0, [step for step in range(64, 128) if step % after == after - 1], incarnation="b"))
    dropped = [5, 6] if before == 1 else []
    assert observed(server, [3, 5, 6, 7, 9, 66, 127, 128]) == [
        step for step in (3, 5, 6, 7, 9, 66, 127) if step not in dropped
    ]
    for name in ("layers", "timeline"):
        meta = server.get(f"/api/v1/runs/1/figures/{name}")["meta"]
        assert meta["steps_per_column"] == max(before, after)
        states = np.frombuffer(base64.b64decode(meta["states"]["bdata"]), np.uint8)
        assert (states == State.VALUE).all()


def test_the_account_of_a_step_is_the_first_sent_after_it(server: Server) -> None:
    server.post(opening(KNOWN))

    def told(step: int, *names: str) -> Event:
        return Event("other_values", step, step, "", {"blocks.0.ff": dict.fromkeys(names, "None")})

    server.post(batch(KNOWN, 0, range(3), events=(told(3, "input[1]"),)))
    server.post(batch(KNOWN, 1, range(3, 6), events=(told(6, "input[1]", "input[2]"),)))
    server.post(batch(KNOWN, 2, range(6, 9)))
    for step, count in ((0, 1), (2, 1), (3, 2), (5, 2), (7, 2)):
        assert server.get(f"/api/v1/runs/1/step?step={step}")["report"].count("None input") == count
    server.post(opening(KNOWN, incarnation="b"))
    server.post(batch(KNOWN, 0, range(6, 9), incarnation="b", events=(told(9, "input[1]"),)))
    for step, count in ((2, 1), (5, 2), (7, 1)):
        assert server.get(f"/api/v1/runs/1/step?step={step}")["report"].count("None input") == count


def test_a_time_past_all_reason_is_still_an_answer(server: Server) -> None:
    server.post(opening(KNOWN))
    assert "nonfinite_ns" in {each.name for each in KNOWN.statistics}
    server.post(batch(KNOWN, 0, range(1), {"nonfinite_ns": 1e300, "nan_count": 1.0}))
    assert server.get("/api/v1/runs/1/step?step=0")["frames"][0]["nonfinite_ns"] == 2**53
