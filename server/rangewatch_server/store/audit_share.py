"""What of the audit is dropped when it is too long: never the records of one for the noise of another."""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec
from sqlalchemy import Connection, delete, func, insert, select

from rangewatch_server.store import tables

MAX_AUDIT = 100_000  # records kept, 30 MB at most
CHECKED_EVERY = 256  # records between two looks whether there are too many: to count them takes milliseconds
DROPPED_BY = "rangewatch audit"  # no token is called so: a name has no spaces
LOCK = int.from_bytes(b"rw audit", "big")


def drop_oldest(connection: Connection) -> None:
    """Who does much loses what is old of their own, never others': noise must not hide what somebody else has done."""
    if connection.dialect.name == "postgresql":  # SQLite has one that writes at a time
        connection.execute(select(func.pg_advisory_xact_lock(LOCK)))
    who = tables.audit.c.who
    found = connection.execute(select(who, func.count()).where(who != DROPPED_BY).group_by(who))
    counts = {row[0]: int(row[1]) for row in found}
    share = fair_share(list(counts.values()), MAX_AUDIT - CHECKED_EVERY)
    for name in [name for name, count in counts.items() if count > share]:
        _drop_of(connection, name, counts[name] - share)


def fair_share(counts: Sequence[int], most: int) -> int:
    """How many each may keep so that all together keep at most `most`: what some do not need the others may have."""
    left = most
    for place, count in enumerate(sorted(counts)):
        share = left // (len(counts) - place)
        if count > share:
            return share
        left -= count
    return most


def _drop_of(connection: Connection, who: str, number: int) -> None:
    """The oldest `number` records of `who`; one record says how many have gone so far, and of which time."""
    table, what = tables.audit, f"dropped the oldest records of {who}"
    told = (table.c.who == DROPPED_BY) & (table.c.what == what)
    oldest = select(table.c.id, table.c.time_ns).where(table.c.who == who).order_by(table.c.id).limit(number)
    gone = connection.execute(oldest).all()
    before = connection.execute(select(table.c.detail).where(told)).scalar()
    sum_up = msgspec.json.decode(before) if before else {"records": 0, "first_ns": gone[0].time_ns}
    sum_up |= {"records": sum_up["records"] + len(gone), "last_ns": gone[-1].time_ns}
    connection.execute(delete(table).where((table.c.who == who) & (table.c.id <= gone[-1].id)))
    connection.execute(delete(table).where(told))
    row = {"time_ns": time.time_ns(), "who": DROPPED_BY, "client": "", "what": what, "status": 200}
    connection.execute(insert(table).values(row | {"detail": msgspec.json.encode(sum_up).decode()}))
