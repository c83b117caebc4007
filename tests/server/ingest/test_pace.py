"""How often ranks are asked to send: as they like while they are few, seldom and not together when they are many."""

from __future__ import annotations

import time

import pytest

from rangewatch_server.ingest import pace
from rangewatch_server.ingest.pace import LEAST_S, MOST_S, REQUESTS_PER_S, Pace
from rangewatch_server.ingest.stream import StreamState


def streams(count: int, *, state: str = "open", age_s: float = 0.0) -> dict[int, StreamState]:
    seen_ns = time.time_ns() - int(age_s * 1e9)
    return {each: StreamState(each, 1, each, last_seen_ns=seen_ns, state=state) for each in range(count)}


@pytest.mark.parametrize("few", [streams(0), streams(64), streams(5_000, state="finished"), streams(5_000, age_s=60)])
def test_few_ranks_send_as_they_like(few: dict[int, StreamState]) -> None:
    assert Pace(few).send_every_s(3) == LEAST_S


@pytest.mark.slow
def test_many_ranks_share_the_requests_and_spread_out() -> None:
    many = Pace(streams(1_024))
    asked = [many.send_every_s(rank) for rank in range(1_024)]
    assert sum(asked) / len(asked) == pytest.approx(1_024 / REQUESTS_PER_S, rel=0.01)
    assert len(set(asked)) > 1_000, "ranks that begin together do not stay together"
    assert max(Pace(streams(4_096)).send_every_s(rank) for rank in range(100)) == MOST_S


def test_ranks_are_counted_before_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first reply to the first of a thousand ranks asks for the pace of a thousand."""
    coming = Pace({})
    coming.opened(1, 1_024)
    assert coming.send_every_s(0) > 4
    monkeypatch.setattr(pace, "COMING_S", -1.0)
    monkeypatch.setattr(pace, "COUNT_EVERY_S", 0.0)
    assert coming.send_every_s(0) == LEAST_S, "a rank that has not come by then is not waited for"
