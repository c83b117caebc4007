"""Rows of alerts, silences, thresholds and deliveries: statements only. Each function is a part of somebody's job."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, delete, func, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite

from rangewatch_server.store import tables

MAX_SILENCES = 1_000
MAX_RESOLVED = 10_000
"""Alerts that are over, of one run: the oldest go, with what was sent of them."""

_alert, _silence, _delivery = tables.alerts.c, tables.silences.c, tables.deliveries.c


class NewAlert(msgspec.Struct, frozen=True):
    """What a row of `alerts` begins with. `finding` is JSON."""

    identity: str
    rule: str
    severity: str
    step: int | None
    finding: bytes


def standing(connection: Connection, run_id: int) -> list[Any]:
    """(id, identity, finding) rows of the run's open alerts, oldest first."""
    query = select(_alert.id, _alert.identity, _alert.finding)
    return list(
        connection.execute(query.where(_alert.run_id == run_id, _alert.resolved_ns.is_(None)).order_by(_alert.id))
    )


def open_of(connection: Connection, run_ids: Sequence[int]) -> list[Any]:
    """(run_id, id, rule, severity, step) rows of the open alerts of these runs, without what they say."""
    query = select(_alert.run_id, _alert.id, _alert.rule, _alert.severity, _alert.step)
    return list(connection.execute(query.where(_alert.run_id.in_(run_ids), _alert.resolved_ns.is_(None))))


def findings(connection: Connection, alert_ids: Sequence[int]) -> dict[int, bytes]:
    """What these alerts say, as JSON."""
    query = select(_alert.id, _alert.finding).where(_alert.id.in_(alert_ids))
    return {row.id: row.finding for row in connection.execute(query)}


def hung(connection: Connection, run_ids: Sequence[int]) -> set[int]:
    """Those of these runs that hang, as an open alert says."""
    query = select(_alert.run_id).where(_alert.run_id.in_(run_ids), _alert.rule == "hang", _alert.resolved_ns.is_(None))
    return set(connection.execute(query).scalars())


def open_alert(connection: Connection, run_id: int, new: NewAlert, now_ns: int) -> int | None:
    """The new alert's id; None when another server has opened it meanwhile."""
    values = {"run_id": run_id, "opened_ns": now_ns} | msgspec.structs.asdict(new)
    row = _dialect(connection).insert(tables.alerts).values(values).on_conflict_do_nothing().returning(_alert.id)
    alert_id: int | None = connection.execute(row).scalar()
    return alert_id


def _dialect(connection: Connection) -> Any:
    return postgresql if connection.dialect.name == "postgresql" else sqlite


def change_alert(connection: Connection, alert_id: int, new: NewAlert) -> None:
    """The same finding reads otherwise now."""
    values = {"severity": new.severity, "step": new.step, "finding": new.finding}
    connection.execute(update(tables.alerts).where(_alert.id == alert_id, _alert.resolved_ns.is_(None)).values(values))


def resolve(connection: Connection, alert_ids: Sequence[int], now_ns: int, step: int | None) -> list[int]:
    """These are over, as from a step on; those that were open until now."""
    mine = _alert.id.in_(alert_ids) & _alert.resolved_ns.is_(None)
    still = list(connection.execute(select(_alert.id).where(mine)).scalars())
    connection.execute(update(tables.alerts).where(_alert.id.in_(still)).values(resolved_ns=now_ns, resolved_step=step))
    return still


def trim(connection: Connection, run_id: int) -> None:
    """Let the oldest alerts of the run go that are over."""
    over = (_alert.run_id == run_id) & _alert.resolved_ns.is_not(None)
    first_kept = (
        select(_alert.id).where(over).order_by(_alert.id.desc()).offset(MAX_RESOLVED).limit(1).scalar_subquery()
    )
    gone = list(connection.execute(select(_alert.id).where(over, _alert.id <= first_kept).limit(100)).scalars())
    if gone:
        connection.execute(delete(tables.deliveries).where(_delivery.alert_id.in_(gone)))
        connection.execute(delete(tables.alerts).where(_alert.id.in_(gone)))


def deliver(connection: Connection, alert_id: int, targets: Iterable[str], what: str, now_ns: int) -> None:
    """Have it sent to these targets."""
    rows = [{"alert_id": alert_id, "target": each, "what": what, "next_ns": now_ns} for each in targets]
    if rows:
        connection.execute(insert(tables.deliveries), rows)


def deliver_end(connection: Connection, alert_id: int, targets: Sequence[str], now_ns: int) -> None:
    """Have its end sent to those of these targets that were sent its beginning."""
    mine = (_delivery.alert_id == alert_id) & (_delivery.what == "opened") & _delivery.target.in_(targets)
    deliver(
        connection, alert_id, connection.execute(select(_delivery.target).where(mine)).scalars(), "resolved", now_ns
    )


def acknowledge(connection: Connection, alert_id: int, who: str, now_ns: int | None) -> bool:
    """Note that somebody has seen it; with `now_ns` None that nobody has. False when there is no such alert."""
    values = {"acknowledged_ns": now_ns, "acknowledged_by": who if now_ns is not None else ""}
    return bool(connection.execute(update(tables.alerts).where(_alert.id == alert_id).values(values)).rowcount)


def listed(
    connection: Connection, run_id: int | None, *, is_open: bool | None, before: int | None, limit: int
) -> list[Any]:
    """Rows of alerts, newest first: of a run or of all that are shown, open, over, or both (None)."""
    shown = select(tables.runs.c.id).where(tables.runs.c.deleted_ns.is_(None))
    query = (
        select(tables.alerts, tables.runs.c.name.label("run"))
        .join(tables.runs, tables.runs.c.id == _alert.run_id)
        .where(_alert.run_id.in_(shown))
    )
    if run_id is not None:
        query = query.where(_alert.run_id == run_id)
    if is_open is not None:
        query = query.where(_alert.resolved_ns.is_(None) if is_open else _alert.resolved_ns.is_not(None))
    if before is not None:
        query = query.where(_alert.id < before)
    return list(connection.execute(query.order_by(_alert.id.desc()).limit(limit)))


def one(connection: Connection, alert_id: int) -> Any:
    """One alert's row with its run's name, or None."""
    query = select(tables.alerts, tables.runs.c.name.label("run")).join(tables.runs, tables.runs.c.id == _alert.run_id)
    return connection.execute(query.where(_alert.id == alert_id, tables.runs.c.deleted_ns.is_(None))).first()


def silences(connection: Connection, now_ns: int) -> list[Any]:
    """Rows of those that still hold, oldest first."""
    query = select(tables.silences).where(_silence.until_ns > now_ns)
    return list(connection.execute(query.order_by(_silence.id)))


def silence(connection: Connection, values: dict[str, Any], now_ns: int) -> int | None:
    """The new silence's id; None when there are too many. Those that are over go."""
    connection.execute(delete(tables.silences).where(_silence.until_ns <= now_ns))
    count = connection.execute(select(func.count()).select_from(tables.silences)).scalar() or 0
    if count >= MAX_SILENCES:
        return None
    made = insert(tables.silences).values(values | {"created_ns": now_ns}).returning(_silence.id)
    silence_id: int | None = connection.execute(made).scalar()
    return silence_id


def unsilence(connection: Connection, silence_id: int) -> bool:
    """End a silence; False when there is none of that number."""
    return bool(connection.execute(delete(tables.silences).where(_silence.id == silence_id)).rowcount)


def thresholds(connection: Connection, run_id: int) -> bytes | None:
    """What was set for the run in the page, as JSON."""
    stored: bytes | None = connection.execute(
        select(tables.thresholds.c.given).where(tables.thresholds.c.run_id == run_id)
    ).scalar()
    return stored


def set_thresholds(connection: Connection, run_id: int, given: bytes, now_ns: int) -> None:
    """Set all of them at once."""
    values = {"given": given, "changed_ns": now_ns}
    new = _dialect(connection).insert(tables.thresholds).values(run_id=run_id, **values)
    connection.execute(new.on_conflict_do_update(index_elements=[tables.thresholds.c.run_id], set_=values))


def standing_counts(connection: Connection, run_ids: Sequence[int]) -> dict[int, dict[str, int]]:
    """Of each run how many alerts of each severity stand; runs without any are left out."""
    query = select(_alert.run_id, _alert.severity, func.count()).group_by(_alert.run_id, _alert.severity)
    stands = query.where(_alert.run_id.in_(run_ids), _alert.resolved_ns.is_(None))
    counts: dict[int, dict[str, int]] = {}
    for run_id, severity, count in connection.execute(stands):
        counts.setdefault(run_id, {})[severity] = count
    return counts


def examined(connection: Connection, run_id: int, versions: int) -> None:
    """The rules were applied to the run as it is with these versions of its streams, and nobody speaks for it."""
    row = tables.examined.c
    new = _dialect(connection).insert(tables.examined).values(run_id=run_id, versions=versions)
    connection.execute(new.on_conflict_do_update(index_elements=[row.run_id], set_={"versions": versions}))


def unexamined(connection: Connection, since_ns: int, most: int) -> list[int]:
    """Runs heard of since then of which that cannot be said, the newest `most`."""
    run, stream = tables.runs.c, tables.streams.c
    versions, row = func.sum(stream.version), tables.examined.c
    query = (
        select(stream.run_id)
        .join(tables.runs, (run.id == stream.run_id) & run.deleted_ns.is_(None))
        .outerjoin(tables.examined, row.run_id == stream.run_id)
        .where(stream.rank >= 0)
        .group_by(stream.run_id, row.versions)
        .having(func.max(stream.last_seen_ns) >= since_ns, versions != func.coalesce(row.versions, -1))
    )
    return list(connection.execute(query.order_by(stream.run_id.desc()).limit(most)).scalars())


def waiting(connection: Connection, now_ns: int, limit: int, target: str | None, known: Sequence[str]) -> list[Any]:
    """Rows of what is due, oldest first: for a target, or with None for those that are not `known`. Each with its
    alert's `finding`, `run_id`, `opened_ns` and `resolved_ns`, and the `run`'s name: None where it was deleted.
    """
    mine = _delivery.target.not_in(known) if target is None else _delivery.target == target
    due = _delivery.done_ns.is_(None) & (_delivery.next_ns <= now_ns) & mine
    columns = ("id", "alert_id", "target", "what", "attempts", "next_ns")
    of_alert = (_alert.finding, _alert.run_id, _alert.opened_ns, _alert.resolved_ns, tables.runs.c.name.label("run"))
    query = (
        select(*(_delivery[each] for each in columns), *of_alert)
        .outerjoin(tables.alerts, _alert.id == _delivery.alert_id)
        .outerjoin(tables.runs, (tables.runs.c.id == _alert.run_id) & tables.runs.c.deleted_ns.is_(None))
    )
    return list(connection.execute(query.where(due).order_by(_delivery.next_ns, _delivery.id).limit(limit)))


def claimed(connection: Connection, delivery_id: int, seen_ns: int, until_ns: int) -> bool:
    """Whether it is this server's to send until then: of several that saw it due at `seen_ns` one gets it."""
    mine = (_delivery.id == delivery_id) & (_delivery.next_ns == seen_ns) & _delivery.done_ns.is_(None)
    return bool(connection.execute(update(tables.deliveries).where(mine).values(next_ns=until_ns)).rowcount)


def delivered(connection: Connection, delivery_id: int, now_ns: int, error: str = "") -> None:
    """It was sent; or, with `error`, given up."""
    values = {"done_ns": now_ns, "error": error, "attempts": _delivery.attempts + 1}
    connection.execute(update(tables.deliveries).where(_delivery.id == delivery_id).values(values))


def postponed(connection: Connection, delivery_id: int, next_ns: int, error: str) -> None:
    """It did not go through; it is tried again."""
    values = {"next_ns": next_ns, "error": error, "attempts": _delivery.attempts + 1}
    connection.execute(update(tables.deliveries).where(_delivery.id == delivery_id).values(values))


def deliveries(connection: Connection, alert_ids: Sequence[int]) -> list[Any]:
    """Rows of what was sent, or is to be, of these alerts."""
    query = select(tables.deliveries).where(_delivery.alert_id.in_(alert_ids))
    return list(connection.execute(query.order_by(_delivery.id)))
