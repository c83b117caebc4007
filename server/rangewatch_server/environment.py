"""What the ranks said of their environments, which of them are odd, and the last linkcheck."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
from sqlalchemy import select

from rangewatch_server.odd_ranks import odd_ranks
from rangewatch_server.queries import RunReader
from rangewatch_server.store import tables

SEVERITIES = ("error", "warning", "info")
FIELDS = ("code", "severity", "what", "why", "do", "where")


def environment(run: RunReader) -> dict[str, Any]:
    """By rank: facts and findings; then who is out against the majority."""
    said = {rank: msgspec.json.decode(data) for rank, _, _, data in sorted(run.newest_events(["environment"]))}
    facts = {rank: _object(data.get("facts")) for rank, data in said.items()}
    ranks = [
        {"rank": rank, "host": run.ranks[rank].info.host, "facts": facts[rank], "findings": _findings(data)}
        for rank, data in said.items()
    ]
    odd = _odd(run, facts, said)
    return {"ranks": ranks, "odd": odd, "findings": [*odd, *_merged(ranks)], "linkcheck": linkcheck(run)}


def _odd(run: RunReader, facts: dict[int, dict[str, Any]], said: dict[int, Any]) -> list[dict[str, Any]]:
    """Kept while nobody says anything else: 1,024 ranks with 100 variables each are compared in a second."""
    digest = hashlib.blake2b(msgspec.json.encode(sorted(said.items())), digest_size=16).digest()
    key = (run.id, "odd ranks", digest)
    found: list[dict[str, Any]] | None = run.reader.cache.get(key)
    if found is None:
        found = [msgspec.to_builtins(each) for each in odd_ranks(facts)]
        run.reader.cache.put(key, found, 4_096 * (1 + len(found)))
    return found


def _merged(ranks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What ranks found themselves, once each, with the `ranks` that did; the worst first."""
    found: dict[tuple[str, ...], list[int]] = {}
    for each in ranks:
        for finding in each["findings"]:
            found.setdefault(tuple(finding.values()), []).append(each["rank"])
    merged = [dict(zip(FIELDS, values, strict=True)) | {"ranks": those} for values, those in found.items()]
    return sorted(merged, key=lambda each: SEVERITIES.index(each["severity"]) if each["severity"] in SEVERITIES else 9)


def _object(said: Any) -> dict[str, Any]:
    return said if isinstance(said, dict) else {}


def _findings(data: dict[str, Any]) -> list[dict[str, str]]:
    """With exactly the fields that pages show, as text."""
    said = data.get("findings")
    known = [_object(each) for each in said] if isinstance(said, list) else []
    return [{name: str(each.get(name) or "") for name in FIELDS} for each in known]


def linkcheck(run: RunReader) -> dict[str, Any] | None:
    """The newest result that was posted to the run, with `time_ns`; None when there is none."""
    event, stream = tables.events.c, tables.streams.c
    query = (
        select(event.time_ns, event.data)
        .join(tables.streams, stream.id == event.stream_id)
        .where(stream.run_id == run.id, event.kind == "linkcheck")
        .order_by(event.id.desc())
        .limit(1)
    )
    row = run.connection.execute(query).first()
    return None if row is None else msgspec.json.decode(row.data) | {"time_ns": row.time_ns}
