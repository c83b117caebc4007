"""Sequences that were given up and never came, as ranges."""

from __future__ import annotations

import random

import pytest

from rangewatch_server.ingest import skipped


def test_what_was_passed_is_what_has_not_arrived() -> None:
    assert skipped.passed([], 0, 5, {1, 3, 7}) == [(0, 0), (2, 2), (4, 4)]
    assert skipped.passed([(0, 2)], 5, 6, ()) == [(0, 2), (5, 5)]
    assert skipped.passed([(0, 2)], 5, 7, {5, 6}) == [(0, 2)]


def test_one_that_comes_after_all_is_taken_out() -> None:
    ranges = skipped.passed([], 3, 2**62, ())
    assert skipped.without(ranges, 3) == [(4, 2**62 - 1)]
    assert skipped.without(ranges, 5) == [(3, 4), (6, 2**62 - 1)]
    assert skipped.without([(4, 4)], 4) == []
    assert skipped.without([(4, 4)], 5) == [(4, 4)]


def test_an_agent_is_answered_up_to_what_may_yet_come() -> None:
    ranges = [(5, 9), (12, 2**62)]
    assert [skipped.stored_up_to(ranges, 2**62 + 1, at) for at in (0, 4, 10, 11)] == [4, 4, 11, 11]
    assert skipped.stored_up_to([(5, 9)], 20, 15) == 20
    assert skipped.stored_up_to([], 20, 3) == 20


def test_of_too_many_the_widest_stay() -> None:
    ranges: list[skipped.Range] = []
    for place in range(2 * skipped.MOST):
        ranges = skipped.passed(ranges, place * 100, place * 100 + 1 + place, ())
    assert len(ranges) == skipped.MOST and ranges == sorted(ranges) and ranges[0][0] == skipped.MOST * 100
    for place in range(3 * skipped.MOST):
        ranges = skipped.without([(0, 2**62)] if not place else ranges, place * 2 + 1)
    assert len(ranges) == skipped.MOST and ranges[-1][1] == 2**62


def test_it_is_a_set_of_numbers() -> None:
    """As few as are not narrowed down."""
    chance = random.Random(5)
    ranges: list[skipped.Range] = []
    expected: set[int] = set()
    next_ = 0
    for _ in range(60):
        stop = next_ + chance.randint(0, 4)
        arrived = {each for each in range(next_, stop) if chance.random() < 0.5}
        ranges = skipped.passed(ranges, next_, stop, arrived)
        expected |= set(range(next_, stop)) - arrived
        next_ = stop
        if expected and chance.random() < 0.7:
            come = chance.choice(sorted(expected))
            ranges = skipped.without(ranges, come)
            expected.discard(come)
        assert {each for each in range(next_) if skipped.holds(ranges, each)} == expected
    assert skipped.decoded(skipped.encoded(ranges)) == ranges


@pytest.mark.parametrize("text", ["[[3, 2]]", "[[0, 4], [2, 9]]", "[[-1, 2]]", "[1]", "x", f"[{'[1, 1],' * 65}[1, 1]]"])
def test_what_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # msgspec's errors are ValueErrors
        skipped.decoded(text)
