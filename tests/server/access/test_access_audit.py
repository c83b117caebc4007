"""What is dropped of an audit that is too long, and what never is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import make_url

from rangewatch_server.store import tokens
from rangewatch_server.store import tokens as audit_share
from rangewatch_server.store.engine import open_database
from rangewatch_server.store.tokens import DROPPED_BY, AccessStore, Record, fair_share
from tests.server.process import Server

MOST = 30
BOTH = pytest.mark.parametrize(
    "database_url", ["sqlite", pytest.param("postgres", marks=pytest.mark.slow)], indirect=True
)


@pytest.fixture
def store(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[AccessStore]:
    """Which keeps few records."""
    monkeypatch.setattr(audit_share, "MAX_AUDIT", MOST)
    monkeypatch.setattr(audit_share, "CHECKED_EVERY", 4)
    monkeypatch.setattr(tokens, "CHECKED_EVERY", 4)
    open_database(make_url(database_url)).dispose()
    opened = AccessStore(make_url(database_url))
    yield opened
    opened.dispose()


def kept(store: AccessStore, who: str) -> list[Record]:
    return [each for each in store.records(10_000) if each.who == who]


@BOTH
def test_noise_of_one_drops_nothing_of_another(store: AccessStore) -> None:
    """A stolen token made 100,000 records, and what others had done was gone."""
    for number in range(10):
        store.begin_record("ana", "10.0.0.1", f"DELETE /api/v1/runs/{number}")
    for number in range(60):
        store.begin_record("thief", "10.0.0.2", f"DELETE /api/v1/runs/{number}")
    assert [each.what for each in kept(store, "ana")] == [f"DELETE /api/v1/runs/{n}" for n in reversed(range(10))]
    noise = kept(store, "thief")
    assert [each.what for each in noise] == [f"DELETE /api/v1/runs/{n}" for n in range(59, 59 - len(noise), -1)]
    assert 10 < len(noise) <= MOST - 10
    (reported,) = kept(store, DROPPED_BY)
    assert reported.what == "dropped the oldest records of thief"
    gone = msgspec.json.decode(reported.detail)
    assert gone["records"] == 60 - len(noise)
    assert gone["first_ns"] <= gone["last_ns"] <= noise[-1].time_ns <= reported.time_ns


@BOTH
def test_all_who_do_much_share(store: AccessStore) -> None:
    for number in range(30):
        for who in ("a", "b", "c"):
            store.begin_record(who, "10.0.0.1", str(number))
    counts = Counter(each.who for each in store.records(10_000))
    assert max(counts[who] for who in "abc") - min(counts[who] for who in "abc") <= 4
    assert sum(counts[who] for who in "abc") <= MOST
    assert counts[DROPPED_BY] == 3


@settings(max_examples=25)
@given(st.lists(st.integers(1, 1_000), max_size=8), st.integers(8, 2_000))
def test_shares_are_fair(counts: list[int], most: int) -> None:
    share = fair_share(counts, most)
    assert sum(min(count, share) for count in counts) <= most
    if sum(counts) > most:
        assert sum(min(count, share + 1) for count in counts) > most, "and nothing goes that need not"
    else:
        assert all(count <= share for count in counts)


def test_each_record_is_a_line_of_the_log_too(start_server: Callable[..., Server]) -> None:
    server = start_server("--log-level", "info")
    assert server.client.delete("/api/v1/runs/7%0d%0aforged").status_code == 422
    assert server.client.delete("/api/v1/runs/7").status_code == 404
    server.stop()
    lines = [line for line in server.log.whole().splitlines() if " rangewatch.audit: " in line]
    assert [line.partition(" rangewatch.audit: ")[2].split(" who=")[0] for line in lines] == [
        "DELETE /api/v1/runs/7\\r\\nforged", "DELETE /api/v1/runs/7",
    ]  # fmt: skip
    assert lines[1].endswith("who=local client=127.0.0.1 status=404 detail=")
