"""Merged batches say the same of any span of steps as the batches they were made of."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rangewatch import wire
from rangewatch.delivery.spool import log
from rangewatch.delivery.spool.log import EVENT, halved, merged
from rangewatch.delivery.spool.record import Encoded
from rangewatch.wire import messages
from rangewatch.wire.records import Event, Samples
from tests.agent.delivery.spool.batches import DIGEST, TENSORS, assert_same, batch, decoded, encoded, whole


def test_two_batches_become_one_with_half_the_rows() -> None:
    both = merged([encoded(4, range(8)), encoded(5, range(8, 16))], 2)
    assert both is not None and (both.sequence, both.batches, both.catalogue) == (5, 2, DIGEST)
    message = decoded(both)
    assert message.ranges is not None and message.ranges.steps.tolist() == list(range(1, 16, 2))
    assert message.settled == 5, "the server waits for sequence 4 no more"
    assert message.series[0].steps.tolist() == list(range(16)), "series are not merged"
    assert_same(whole([message], 2), whole([batch(4, range(8)), batch(5, range(8, 16))], 2))


def test_steps_with_nan_traced_steps_and_their_neighbours_stay() -> None:
    both = merged([encoded(0, range(8), bad=[2]), encoded(1, range(8, 16), whole=(13,))], 4)
    assert both is not None and both.whole == (13,)
    ranges = decoded(both).ranges
    assert ranges is not None and ranges.steps.tolist() == [0, 1, 2, 3, 7, 11, 12, 13, 14, 15]


def test_it_says_so_in_the_run_once() -> None:
    kept = Event("failed", 1, 3, "it failed")
    once = merged([encoded(0, range(8), events=(kept,)), encoded(1, range(8, 16))], 2)
    assert once is not None
    twice = merged([once, encoded(2, range(16, 24))], 4)
    assert twice is not None
    events = decoded(twice).events
    assert [event.kind for event in events] == ["failed", EVENT] and events[0] == kept
    assert events[1].data == {"first_step": 0, "last_step": 23, "steps_a_row": 4}


def test_a_batch_without_rows_of_tensors() -> None:
    both = merged([encoded(0, ()), encoded(1, range(4))], 2)
    assert both is not None and decoded(both).ranges is not None
    neither = merged([encoded(0, (), events=(Event("attached", 1, 0),)), encoded(1, ())], 2)
    assert neither is not None and decoded(neither).ranges is None
    assert [event.kind for event in decoded(neither).events] == ["attached"]


def test_samples_that_go_on_become_one_table() -> None:
    both = merged([encoded(0, (), noise=80), encoded(1, (), noise=160)], 2)
    assert both is not None
    (table,) = decoded(both).samples
    assert table.times_ns.tolist() == [1000] * 10 + [1001] * 20 and len(table.columns["load"]) == 30


def test_samples_with_other_facts_stay_apart() -> None:
    tables = [Samples("gpu", "u", np.array([n]), {"x": np.array([1.0])}, {"names": [n]}) for n in range(2)]
    assert log._joined_samples(tables) == tuple(tables)
    late = [Samples("gpu", "u", np.array([9 - n]), {"x": np.array([1.0])}) for n in range(2)]
    assert log._joined_samples(late) == tuple(late)


def test_what_the_wire_would_not_take_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = [encoded(0, range(8)), encoded(1, range(8, 16))]
    monkeypatch.setattr(messages, "MAX_STEPS", 15)
    assert merged(pair, 2) is None and merged(pair[:1], 2) is not None
    monkeypatch.undo()
    monkeypatch.setattr(messages, "MAX_DECOMPRESSED_BYTES", 900)  # one has 764, both have 974
    assert merged(pair, 2) is None
    assert merged([Encoded(b"no batch", 0, "")], 2) is None


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 12), min_size=1, max_size=8), st.sampled_from([2, 4, 64]), st.sets(st.integers(0, 90)))
def test_any_cut_of_a_run_equals_the_whole(sizes: list[int], every: int, bad: set[int]) -> None:
    cuts = np.cumsum([0, *sizes]).tolist()
    pairs = list(pairwise(cuts))
    steps = [range(*pair) for pair in pairs]
    both = merged([encoded(n, each, bad=bad) for n, each in enumerate(steps)], every)
    assert both is not None and both.batches == len(sizes)
    plain = [batch(n, each, bad=bad) for n, each in enumerate(steps)]
    assert_same(whole([decoded(both)], 1 << 20), whole(plain, 1 << 20))
    assert_same(whole([decoded(both)], every), whole(plain, every))


def test_what_one_of_them_has_not_is_not_observed_there() -> None:
    """A column or a tensor that is in one batch alone: elsewhere stand the statistics' neutral elements, no zeros."""
    left, right = batch(0, [0]), batch(1, [1])
    assert left.ranges is not None and right.ranges is not None
    more = {**left.ranges.columns, "amin": np.full((TENSORS, 1), 0.25)}
    left = msgspec.structs.replace(left, ranges=msgspec.structs.replace(left.ranges, columns=more))
    fewer = {name: values[1:] for name, values in right.ranges.columns.items()}
    rows = msgspec.structs.replace(right.ranges, tensors=right.ranges.tensors[1:], columns=fewer)
    right = msgspec.structs.replace(right, ranges=rows)
    both = merged([Encoded(wire.encode(each), TENSORS, DIGEST) for each in (left, right)], 2)
    assert both is not None
    found = decoded(both).ranges
    assert found is not None and found.steps.tolist() == [1]
    assert found.columns["amin"][:, 0].tolist() == [0.25] * TENSORS
    assert found.columns["call_count"][:, 0].tolist() == [1.0] + [2.0] * (TENSORS - 1)


def test_batches_that_the_wire_would_refuse_together_stay_apart() -> None:
    """It takes 1,000 events: one batch more of them would be refused for good, and its steps with it."""
    events = tuple(Event("level", number, 3, "") for number in range(messages.MAX_EVENTS // 2 + 1))
    assert merged([encoded(0, range(8), events=events), encoded(1, range(8, 16), events=events)], 2) is None
    assert merged([encoded(0, range(8), events=events), encoded(1, range(8, 16))], 2) is not None


@pytest.mark.parametrize("first", [0, 1])
def test_batches_of_one_step_are_paired_so_that_they_share_a_row(first: int) -> None:
    """A slow training has one step a batch: pairs across two groups would stay as large as they were, at any level."""
    batches = [encoded(n, [n]) for n in range(first, 17)]
    for every in (2, 4, 8):
        batches = list(halved(batches, every))
    rows = [decoded(each).ranges for each in batches]
    assert [each.steps.tolist() for each in rows if each is not None] == [[7], [15], [16]]
    assert sum(each.batches for each in batches) == 17 - first
    assert_same(whole(map(decoded, batches), 32), whole([batch(n, [n]) for n in range(first, 17)], 32))


def test_what_cannot_be_read_or_joined_stays_in_its_place() -> None:
    odd = Encoded(b"no batch", 0, "", 2)
    found = list(halved([encoded(0, range(8)), encoded(1, range(8, 16)), odd, encoded(3, range(16, 24))], 2))
    assert [each.sequence for each in found] == [1, 2, 3] and found[1] is odd
    late = list(halved([encoded(0, range(8, 16)), encoded(1, range(8)), encoded(2, range(16, 24))], 2))
    assert [each.sequence for each in late] == [0, 2], "of two that cannot be one, the second waits for its neighbour"
