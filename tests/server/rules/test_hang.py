"""Whom a hang's finding names while ranks report one after the other."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from rangewatch import statistics, wire
from rangewatch.wire.records import Batch, Catalogue, Event
from rangewatch_server.rules import Finding
from rangewatch_server.rules.machine.hang import RULE
from tests.server.collectives.test_hangs import WORLD, call, reported
from tests.server.rules.conftest import Stored, tensor

LAYERS = [tensor("a")]
DIGEST = wire.catalogue_digest(Catalogue(statistics.ALL, tuple(LAYERS)))
STEPS = 8


def report(stored: Stored, rank: int, calls: Sequence[dict[str, Any]], stalled_s: float) -> None:
    """Rank says that no step has ended for so long, and said it 30 s ago."""
    data = reported((WORLD, 16, list(calls)), stalled_s=stalled_s)
    said = Event("hang", time.time_ns() - 30 * 10**9, STEPS - 1, "", data)
    stored.send(Batch("run", rank, "a", 1, DIGEST, None, (), (said,)))


def findings(stored: Stored) -> tuple[Finding, ...]:
    return stored.diagnose(RULE).findings


def test_nobody_is_named_before_the_ranks_have_reported(stored: Stored) -> None:
    for rank in range(4):
        stored.write(LAYERS, STEPS, rank=rank, world_size=4)
    report(stored, 0, [call(17)], stalled_s=9.0)
    assert findings(stored) == ()
    report(stored, 2, [], stalled_s=9.0)
    (finding,) = findings(stored)
    assert (finding.rank, finding.facts["culprits"], finding.facts["missing"]) == (2, (2,), (2,))
    assert finding.summary == (
        "The run waits for rank 2, which has not joined a collective (group data parallel), after step 7."
    )
    for rank in (1, 3):
        report(stored, rank, [call(17)], stalled_s=9.0)
    (whole,) = findings(stored)
    assert (whole.rank, whole.subject) == (finding.rank, finding.subject)


def test_a_long_wait_is_reported_without_a_name(stored: Stored) -> None:
    for rank in range(4):
        stored.write(LAYERS, STEPS, rank=rank, world_size=4)
    report(stored, 0, [call(17)], stalled_s=60.0)
    (finding,) = findings(stored)
    assert (finding.rank, finding.facts["culprits"], finding.remedy) == (None, (), ())
    assert "who has not joined it is not known" in finding.summary


def test_ranks_that_nothing_was_ever_heard_of_are_not_named(stored: Stored) -> None:
    """As where rank 0 alone has attached an agent, or the others' first messages are still on their way."""
    stored.write(LAYERS, STEPS, rank=0, world_size=4)
    report(stored, 0, [call(17)], stalled_s=9.0)
    assert findings(stored) == ()
    said_ns, data = time.time_ns() - 30 * 10**9, reported((WORLD, 16, [call(17)]), stalled_s=90.0)
    report_later = Event("hang", said_ns + 10**9, STEPS - 1, "", data)
    stored.send(Batch("run", 0, "a", 2, DIGEST, None, (), (report_later,)))
    (finding,) = findings(stored)
    assert (finding.rank, finding.subject, finding.facts["culprits"]) == (None, "undecided", ())
    assert finding.facts["missing"] == ()


def test_of_ranks_one_of_which_was_never_heard_of_nobody_is_named(stored: Stored) -> None:
    for rank in range(3):
        stored.write(LAYERS, STEPS, rank=rank, world_size=4)
    for rank in range(3):
        report(stored, rank, [call(17)], stalled_s=90.0)
    (finding,) = findings(stored)
    assert (finding.rank, finding.facts["culprits"], finding.facts["missing"]) == (None, (), ())
