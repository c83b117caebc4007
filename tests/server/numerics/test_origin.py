"""Which NaN or Inf of a step was first: the rule by itself, and in every place that names a tensor."""

from __future__ import annotations

import numpy as np
import pytest

from rangewatch import statistics
from rangewatch.wire.records import KINDS, Catalogue, Statistic, TensorEntry
from rangewatch_server.numerics import first_nonfinite
from tests.server.process import Run
from tests.server.records import batch, opening

CLOCK = Statistic("nonfinite_ns", "ns", "min", float("inf"), "When NaN or Inf was first seen in the step.")
OLD = tuple(each for each in statistics.ALL if each.name != CLOCK.name)
NONE = float("inf")


def first(calls: list[int], bad: list[int], ns: list[float] | None = None, kinds: str = "", order=None) -> int | None:
    """`kinds`: a letter a tensor, o(utput) or w(eight)."""
    shape = len(calls)
    nan_count = np.zeros(shape)
    nan_count[bad] = 3
    columns = {"call_count": np.array(calls, float), "nan_count": nan_count, "inf_count": np.zeros(shape)}
    columns |= {} if ns is None else {"nonfinite_ns": np.array(ns, float)}
    rows = np.array([KINDS.index({"o": "output", "w": "weight"}[each]) for each in kinds or "o" * shape])
    return first_nonfinite.first_bad(columns, np.arange(shape) if order is None else np.array(order), rows)


def test_nothing_is_bad() -> None:
    assert first([1, 1], []) is None
    assert first([], []) is None


def test_the_clock_says_it() -> None:
    assert first([2, 1, 1], [0, 2], [900, NONE, 400]) == 2
    assert first([1, 1, 1], [0, 1, 2], [NONE, 700, 500]) == 2  # what has no time comes after
    assert first([1, 1], [0, 1], [5, 5], order=[1, 0]) == 1  # a tie: call order
    assert first([1, 1, 1], [1, 2], [NONE, NONE, NONE]) == 1


@pytest.mark.parametrize("ns", [None, [NONE] * 5])
def test_without_a_clock_it_is_call_order(ns: list[float] | None) -> None:
    assert first([1] * 5, [1, 2, 3, 4], ns) == 1
    assert first([1] * 5, [1, 2, 3, 4], ns, order=[0, 4, 3, 2, 1]) == 4
    assert first([2, 1, 1, 1, 1], [0, 2, 3, 4], ns) == 2  # the shared one at 0 got it in its later call
    assert first([2, 1, 1, 1, 1], [0, 1, 2, 3, 4], ns) == 0  # in its first call
    assert first([3, 2, 1, 1, 1], [0, 1, 3, 4], ns) == 3
    assert first([2, 2, 2, 2, 2], [1, 2, 3, 4], ns) == 1  # two microbatches
    assert first([1, 1, 2, 1, 1], [2], ns) == 2  # nobody is better
    assert first([1, 1, 1, 1, 2], [4], ns) == 4
    assert first([2, 0, 1, 1, 1], [0, 2], ns) == 0  # what was not observed says nothing


def test_a_weight_is_read_once_and_says_nothing() -> None:
    assert first([2, 1, 2, 2], [0, 2, 3], kinds="owoo") == 0
    assert first([1, 2, 2], [0, 1, 2], kinds="woo") == 0


def test_it_takes_one_pass() -> None:
    """All suspects, no two with the same count: what compares each with each would take hours."""
    size = 100_000
    calls = np.repeat(np.arange(size // 2, 0, -1) * 2, 2)
    calls[1::2] -= 1
    bad = list(range(0, size, 2))
    assert first(calls.tolist(), bad) == 0


# A ReLU that is used after both layers: its place is that of its first call. The second layer is where it broke.
SHARED = [("relu", 2), ("first", 1), ("second", 1), ("head", 1)]


def model(statistics_: tuple[Statistic, ...], kind: str = "output") -> Catalogue:
    entries = (TensorEntry(fqn, kind, 0, "float32", (4,), n, "Linear") for n, (fqn, _) in enumerate(SHARED))
    return Catalogue(statistics_, tuple(entries))


@pytest.mark.parametrize(("kind", "has_clock"), [("output", True), ("output", False), ("grad_output", True)])
def test_every_place_names_the_same(run: Run, has_clock: bool, kind: str) -> None:
    known = model((*OLD, CLOCK) if has_clock else OLD, kind)
    bad = np.zeros((4, 70))
    bad[[0, 2, 3], 66] = 1
    ns = np.full((4, 70), NONE)
    ns[[0, 2, 3], 66] = [2_000, 1_000, 3_000]
    columns = {"call_count": np.array([[2.0], [1], [1], [1]]), "inf_count": bad}
    columns |= {"nonfinite_ns": ns} if has_clock else {}
    run.post(opening(known))
    run.post(batch(known, 0, range(70), columns))
    for start in (2, 60):  # as raw rows, then in tiles
        whole, found = run.get(), run.get("/step?step=66")
        assert (whole["first_overflow"]["fqn"], whole["first_overflow"]["step"]) == ("second", 66)
        assert "second" in str(whole["verdict"]["parts"])
        place = run.get(f"/locate?start={start}")
        assert (place["step"], place["label"]) == (66, f"second {kind}")
        assert found["frames"][found["first_nonfinite"]]["fqn"] == "second"
        assert found["frames"][2]["nonfinite_ns"] == (1_000 if has_clock else None)
        lines = found["report"].splitlines()
        assert lines[0].startswith("Detected") and lines[-2].split()[0] == "second" and "inf" in lines[-1]
        assert not any("head" in line for line in lines)
        run.post(batch(known, 1, range(70, 140), {"call_count": columns["call_count"]}))
