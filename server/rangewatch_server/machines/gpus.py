"""What the pages say of GPUs and hosts: the newest sample of each with its state, and one card's lanes over time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from sqlalchemy import select

from rangewatch_server.query.reader import RunReader
from rangewatch_server.query.samples import Chunk, Latest, downsample, newest, samples
from rangewatch_server.store import tables

GPU, HOST = "gpu", "host"
STATES = ("gone", "alarm", "slowed", "stale", "ok")  # the worst first
SILENT_NS = 15 * 10**9  # without a sample while the rank's other samples come
SLOWING = {
    0x8: "HW slowdown", 0x20: "SW thermal slowdown", 0x40: "HW thermal slowdown", 0x80: "HW power brake slowdown",
    0x200: "board limit", 0x400: "reliability limit",
}  # fmt: skip
"""Bits of `throttle_reasons` that are no normal operation; the power cap is, under load."""
ALARMS = {
    "recovery_action": "the driver asks for a recovery action",
    "remapped_rows_failure": "row remapping has failed",
    "remapped_rows_pending": "a row remapping waits for a reset",
    "ecc_uncorrected_volatile": "uncorrectable memory errors since the driver was loaded",
    "retired_pages_pending": "a page retirement waits for a reset",
}
IGNORED = "ignore"
MERGES = {
    "present": "min", "sm_clock_mhz": "min", "memory_clock_mhz": "min", "slowdown_margin_c": "min",
    "shutdown_margin_c": "min", "power_limit_w": "min", "pcie_link_generation": "min", "pcie_link_width": "min",
    "throttle_reasons": "or", "clocks_event_reasons": "or", "memory_available_bytes": "min",
}  # fmt: skip
"""How rows become one: what is bad must survive. Others by `max`; what is counted since the last row by `sum`."""
EVENT_KINDS = ("xid", "gpu_lost", "gpu")
MOST_EVENTS = 500  # of one kind of one card
MOST_EVENTS_OF_RUN = 5_000  # of one kind: a thousand ranks without a driver say so one by one


class Said(msgspec.Struct, frozen=True):
    """An event of a rank about its cards."""

    rank: int
    time_ns: int
    step: int
    kind: str
    message: str
    data: dict[str, Any]


def summary(run: RunReader) -> dict[str, Any]:
    """All cards and hosts of the run, the worst first."""
    hosts = {each.rank: each for each in newest(run, HOST)}
    said = list(events(run, most=MOST_EVENTS_OF_RUN))
    of_card: dict[tuple[int, str], list[Said]] = {}
    for each in said:
        uuid = each.data.get("uuid")
        if isinstance(uuid, str):  # details are the sender's: it may be a list, which no dict has for a key
            of_card.setdefault((each.rank, uuid), []).append(each)
    cards = [_card(run, each, hosts.get(each.rank), of_card.get((each.rank, each.key), [])) for each in watched(run)]
    cards.sort(key=lambda card: (STATES.index(card["state"]), _margin(card), card["rank"]))
    known = {card["rank"] for card in cards}
    notes = {each.rank: each.message for each in said if each.kind == "gpu" and "reason" in each.data}
    return {
        "gpus": cards, "hosts": [_host(run, each) for each in hosts.values()],
        "notes": [{"rank": rank, "message": text} for rank, text in sorted(notes.items()) if rank not in known],
        "throttle_reasons": {str(bit): name for bit, name in SLOWING.items()},
    }  # fmt: skip


def watched(run: RunReader) -> list[Latest]:
    """The newest sample of each card that its rank uses.

    A rank's agent may have taken another card for its own before CUDA ran: its last row has NaN for `present`.
    """
    return [each for each in newest(run, GPU) if not math.isnan(each.columns.get("present", 1.0))]


def _margin(card: Mapping[str, Any]) -> float:
    margin = card["values"].get("slowdown_margin_c")
    return math.inf if margin is None else float(margin)


def _card(run: RunReader, found: Latest, host: Latest | None, said: list[Said]) -> dict[str, Any]:
    state, why = _state(run, found, host, said)
    return {
        "rank": found.rank, "key": found.key, "name": found.about.get("name"), "host": _host_name(run, found),
        "device_index": found.about.get("device_index"), "state": state, "why": why, "time_ns": found.time_ns,
        "step": _plain(found.columns.get("step", math.nan)), "values": _values(found.columns), "about": found.about,
    }  # fmt: skip


def _state(run: RunReader, found: Latest, host: Latest | None, said: list[Said]) -> tuple[str, list[str]]:
    if found.columns.get("present") == 0:
        lost = [each.message for each in said if each.kind == "gpu_lost"]
        return "gone", lost[-1:] or ["it does not answer any more"]
    # Both by the clock of the rank's host: a card whose rows have ended while the host's go on has vanished.
    if host is not None and host.time_ns - found.time_ns > SILENT_NS:
        return "gone", ["its samples have ended while the host's go on"]
    why = list(_alarms(found, said))
    slowed = list(_slowed(found))
    if why:
        return "alarm", why + slowed
    if slowed:
        return "slowed", slowed
    rank = run.ranks[found.rank]
    if rank.row.state == "open" and not run.is_live(rank):
        return "stale", ["its rank is silent"]
    return "ok", []


def _alarms(found: Latest, said: list[Said]) -> Iterator[str]:
    for column, text in ALARMS.items():
        value = found.columns.get(column, math.nan)
        if value > 0:
            yield f"{text}: {_named(found, column, value)}"
    serious = [each.message for each in said if each.kind == "xid" and each.data.get("resolution") != IGNORED]
    yield from dict.fromkeys(serious[-3:])


def _named(found: Latest, column: str, value: float) -> str:
    """A number by its name, if the agent sent any."""
    names = found.about.get("names")
    known = names.get(column) if isinstance(names, dict) else None
    return str(known.get(f"{value:.0f}", f"{value:g}")) if isinstance(known, dict) else f"{value:g}"


def _slowed(found: Latest) -> Iterator[str]:
    bits = found.columns.get("throttle_reasons", math.nan)
    if math.isfinite(bits):
        yield from (name for bit, name in SLOWING.items() if int(bits) & bit)


def _host(run: RunReader, found: Latest) -> dict[str, Any]:
    return {
        "rank": found.rank, "host": _host_name(run, found), "time_ns": found.time_ns,
        "values": _values(found.columns), "about": found.about,
    }  # fmt: skip


def _host_name(run: RunReader, found: Latest) -> str:
    return str(found.about.get("host") or run.ranks[found.rank].info.host)


def lanes(
    run: RunReader, rank: int, key: str, start_ns: int | None, stop_ns: int | None, columns: int
) -> dict[str, Any]:  # fmt: skip
    """One card over time, or with no key the rank's host: at most `columns` rows, no spike lost."""
    source = GPU if key else HOST
    chunks = samples(run, source, [rank], [key], start_ns, stop_ns)
    if not chunks:
        return {"rank": rank, "key": key, "about": {}, "times_ns": [], "steps": [], "values": {}, "merge": {}} | {
            "events": []
        }
    low = min(int(each.times_ns[0]) for each in chunks) if start_ns is None else start_ns
    high = max(int(each.times_ns[-1]) for each in chunks) + 1 if stop_ns is None else stop_ns
    rules = {name: _merge(name) for each in chunks for name in each.columns}
    fewer = [downsample(each, columns, rules, low, high) for each in chunks]
    said = [each for each in events(run, rank) if low <= each.time_ns < high and each.data.get("uuid", key) == key]
    return {
        "rank": rank, "key": key, "about": chunks[-1].about, "merge": rules,
        "times_ns": [time for each in fewer for time in each.times_ns.tolist()], "steps": _joined(fewer, "step"),
        "values": {name: _joined(fewer, name) for name in rules if name != "step"},
        "events": [msgspec.to_builtins(each) for each in said] if key else [],
    }  # fmt: skip


def _merge(column: str) -> str:
    if column == "step":
        return "last"
    return "sum" if column.startswith("violation_") else MERGES.get(column, "max")


def _joined(chunks: list[Chunk], name: str) -> list[float | None]:
    parts = [each.columns.get(name, np.full(len(each.times_ns), np.nan)) for each in chunks]
    return [_plain(value) for part in parts for value in part.tolist()]


def events(run: RunReader, rank: int | None = None, most: int = MOST_EVENTS) -> Iterator[Said]:
    """What ranks said of their cards, oldest first; of each kind the last `most`, so that none hides another."""
    ids = {row.id: each.rank for each in run.ranks.values() for row in each.rows if rank in (None, each.rank)}
    rows = [row for kind in EVENT_KINDS for row in _newest_events(run, rank, kind, most)]
    for row in sorted(rows, key=lambda each: int(each.id)):
        if row.stream_id in ids:
            data = msgspec.json.decode(row.data)
            yield Said(ids[row.stream_id], row.time_ns, row.step, row.kind, row.message, data)


def _newest_events(run: RunReader, rank: int | None, kind: str, most: int) -> Sequence[Any]:
    event, stream = tables.events.c, tables.streams.c
    query = (
        select(event.id, event.stream_id, event.time_ns, event.step, event.kind, event.message, event.data)
        .join(tables.streams, stream.id == event.stream_id)
        .where(stream.run_id == run.id, event.kind == kind)
        .order_by(event.id.desc())
    )
    if rank is not None:
        query = query.where(stream.rank == rank)
    return run.connection.execute(query.limit(most)).all()


def _values(columns: Mapping[str, float]) -> dict[str, float | None]:
    return {name: _plain(value) for name, value in columns.items() if name != "step"}


def _plain(value: float) -> float | None:
    return value if math.isfinite(value) else None
