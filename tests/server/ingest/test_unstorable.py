"""What a database cannot hold is stopped at the door; what comes through all the same costs the others nothing."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import pytest

from rangewatch import wire
from rangewatch.wire.records import Event
from rangewatch_server.ingest.transaction import Answer, Refused
from rangewatch_server.store.batch_checks import MAX_INDEXED_BYTES, check_header, check_opening
from tests.server.opened_store import Store
from tests.server.records import batch, catalogue, opening

KNOWN = catalogue(2)


def random_text(characters: int, seed: int = 0) -> str:
    """Repeated characters compress, and an index takes them."""
    return "".join(chr(random.Random(f"{seed} {n}").randrange(33, 0x2FF)) for n in range(characters))


def poisoned(rank: int, event: Event) -> Any:
    return batch(KNOWN, 0, range(4), rank=rank, events=(event,))


@pytest.mark.parametrize("length", [MAX_INDEXED_BYTES + 1, 4_000])
def test_long_kinds_and_incarnations_are_refused_at_the_door(length: int) -> None:
    text = random_text(length)
    for check, message in (
        (check_header, batch(KNOWN, 0, range(4), incarnation=text)),
        (check_header, poisoned(0, Event(text, 1, 0))),
        (check_opening, opening(KNOWN, incarnation=text)),
    ):
        with pytest.raises(wire.WireError, match="longer than") as caught:
            check(message)  # type: ignore[arg-type]
        assert caught.value.code == "bad_header"


def test_what_just_fits_is_taken_by_either_engine(store: Store) -> None:
    text = random_text(MAX_INDEXED_BYTES // 2)
    store.send(opening(KNOWN, run=random_text(2_000), incarnation=text))
    sent = batch(KNOWN, 0, range(4), run=random_text(2_000), incarnation=text, events=(Event(text, 1, 0),))
    check_header(sent)
    assert store.send(sent).contiguous == 0


def all_but_the_poisoned(store: Store, event: Event) -> None:
    ranks = range(12)
    store.send_all([opening(KNOWN, rank=rank, world_size=len(ranks)) for rank in ranks])
    is_queued = threading.Event()
    waits = store.writer.work(lambda connection: is_queued.wait(30))
    sent = [poisoned(rank, event) if rank in (3, 4, 9) else batch(KNOWN, 0, range(4), rank=rank) for rank in ranks]
    futures = [store.writer.submit(each, wire.encode(each)) for each in sent]
    is_queued.set()
    assert waits.result(30)
    answers = [each.exception(30) or each.result() for each in futures]
    for rank, answer in enumerate(answers):
        if rank in (3, 4, 9):
            assert isinstance(answer, Refused) and answer.code == "unstorable", rank
        else:
            assert isinstance(answer, Answer) and answer.contiguous == 0, rank


def test_one_that_cannot_be_stored_costs_its_group_nothing(sqlite_url: str, open_store: Callable[[str], Store]) -> None:
    all_but_the_poisoned(open_store(sqlite_url), Event("xid", 2**63, 0))


@pytest.mark.slow
def test_on_postgresql_too(postgres_url: str, open_store: Callable[[str], Store]) -> None:
    """Its error is an `OperationalError`, as that of a server that is away, and was taken for one."""
    all_but_the_poisoned(open_store(postgres_url), Event(random_text(4_000), 1, 0))
