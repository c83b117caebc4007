"""What the pages say of GPUs and hosts: the newest sample of each with its state, and one card's lanes over time."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from rangewatch.wire.events import GPU_KINDS, GpuEvent
from rangewatch_server.query.reader import RunReader
from rangewatch_server.query.samples import Chunk, Latest, downsample, newest, newest_times, samples

GPU, HOST = "gpu", "host"
STATES = ("gone", "alarm", "slowed", "stale", "ok")  # the worst first
NOT_WELL = STATES[:3]
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
MOST_EVENTS = 500  # of one kind of one card
MOST_EVENTS_OF_RUN = 5_000  # of one kind: a thousand ranks without a driver say so one by one


class CardEvent(msgspec.Struct, frozen=True):
    """An event of a rank about its cards. `data`: all its details as JSON; `details`: those that are read."""

    rank: int
    time_ns: int
    step: int
    kind: str
    message: str
    data: bytes
    details: GpuEvent

    def shown(self) -> dict[str, Any]:
        """As docs/api.md has it."""
        names = ("rank", "time_ns", "step", "kind", "message")
        return {name: getattr(self, name) for name in names} | {"data": msgspec.json.decode(self.data)}


def summary(run: RunReader) -> dict[str, Any]:
    """All cards and hosts of the run, the worst first."""
    hosts = newest(run, HOST)
    card_events = list(events(run, most=MOST_EVENTS_OF_RUN))
    cards = cards_of(run, card_events, {each.rank: each.time_ns for each in hosts})
    known = {card["rank"] for card in cards}
    notes = {each.rank: each.message for each in card_events if each.kind == "gpu" and each.details.reason is not None}
    return {
        "gpus": cards, "hosts": [_host(run, each) for each in hosts],
        "notes": [{"rank": rank, "message": text} for rank, text in sorted(notes.items()) if rank not in known],
        "throttle_reasons": {str(bit): name for bit, name in SLOWING.items()},
    }  # fmt: skip


def cards_that_are_not_well(run: RunReader) -> list[dict[str, Any]]:
    """Of `summary`'s cards those that are gone, raise an alarm or are slowed down; hosts' samples are not unpacked."""
    cards = cards_of(run, list(events(run, most=MOST_EVENTS_OF_RUN)), newest_times(run, HOST))
    return [card for card in cards if card["state"] in NOT_WELL]


def cards_of(
    run: RunReader, card_events: Sequence[CardEvent], host_times_ns: Mapping[int, int]
) -> list[dict[str, Any]]:
    """All cards, the worst first. `host_times_ns`: rank -> the newest sample of its host."""
    of_card: dict[tuple[int, str], list[CardEvent]] = {}
    for event in card_events:
        if event.details.uuid is not None:
            of_card.setdefault((event.rank, event.details.uuid), []).append(event)
    cards: list[dict[str, Any]] = []
    for each in watched(run):
        state, why = _state(run, each, host_times_ns.get(each.rank), of_card.get((each.rank, each.key), []))
        values = _finite(each.columns)
        step = values.pop("step", None)
        cards.append({
            "rank": each.rank, "key": each.key, "name": each.about.get("name"), "host": _host_name(run, each),
            "device_index": each.about.get("device_index"), "state": state, "why": why, "time_ns": each.time_ns,
            "step": step, "values": values, "about": each.about,
        })  # fmt: skip
    cards.sort(key=lambda card: (STATES.index(card["state"]), _margin(card), card["rank"]))
    return cards


def watched(run: RunReader) -> list[Latest]:
    """The newest sample of each card that its rank uses.

    A rank's agent may have taken another card for its own before CUDA ran: its last row has NaN for `present`.
    """
    return [each for each in newest(run, GPU) if not math.isnan(each.columns.get("present", 1.0))]


def card_texts(run: RunReader, ranks: Collection[int]) -> dict[int, str]:
    """Rank -> which card it uses, such as "GPU-5c1f..., serial 1563221012345", of these ranks, where it is known."""
    texts: dict[int, str] = {}
    for each in watched(run):
        if each.rank in ranks:
            serial = each.about.get("serial")
            text = f"{each.key}, serial {serial}" if serial else each.key
            texts[each.rank] = f"{texts[each.rank]}; {text}" if each.rank in texts else text
    return texts


def _margin(card: Mapping[str, Any]) -> float:
    margin = card["values"].get("slowdown_margin_c")
    return math.inf if margin is None else float(margin)


def _state(run: RunReader, latest: Latest, host_ns: int | None, card_events: list[CardEvent]) -> tuple[str, list[str]]:
    if latest.columns.get("present") == 0:
        lost = [each.message for each in card_events if each.kind == "gpu_lost"]
        return "gone", lost[-1:] or ["it does not answer any more"]
    # Both by the clock of the rank's host: a card whose rows have ended while the host's go on has vanished.
    if host_ns is not None and host_ns - latest.time_ns > SILENT_NS:
        return "gone", ["its samples have ended while the host's go on"]
    why = list(_alarms(latest, card_events))
    slowed = list(_slowed(latest))
    if why:
        return "alarm", why + slowed
    if slowed:
        return "slowed", slowed
    rank = run.ranks[latest.rank]
    if rank.row.state == "open" and not run.is_live(rank):
        return "stale", ["its rank is silent"]
    return "ok", []


def _alarms(latest: Latest, card_events: list[CardEvent]) -> Iterator[str]:
    for column, text in ALARMS.items():
        value = latest.columns.get(column, math.nan)
        if value > 0:
            yield f"{text}: {_named(latest, column, value)}"
    serious = [each.message for each in card_events if each.kind == "xid" and each.details.resolution != IGNORED]
    yield from dict.fromkeys(serious[-3:])


def _named(latest: Latest, column: str, value: float) -> str:
    """A number by its name, if the agent sent any."""
    names = latest.about.get("names")
    known = names.get(column) if isinstance(names, dict) else None
    return str(known.get(f"{value:.0f}", f"{value:g}")) if isinstance(known, dict) else f"{value:g}"


def _slowed(latest: Latest) -> Iterator[str]:
    bits = latest.columns.get("throttle_reasons", math.nan)
    if math.isfinite(bits):
        yield from (name for bit, name in SLOWING.items() if int(bits) & bit)


def _host(run: RunReader, latest: Latest) -> dict[str, Any]:
    values = _finite(latest.columns)
    values.pop("step", None)
    return {
        "rank": latest.rank, "host": _host_name(run, latest), "time_ns": latest.time_ns, "values": values,
        "about": latest.about,
    }  # fmt: skip


def _host_name(run: RunReader, latest: Latest) -> str:
    return str(latest.about.get("host") or run.ranks[latest.rank].info.host)


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
    during = [each for each in events(run, rank) if low <= each.time_ns < high]
    card_events = [each for each in during if each.details.uuid in (None, key)]
    return {
        "rank": rank, "key": key, "about": chunks[-1].about, "merge": rules,
        "times_ns": [time for each in fewer for time in each.times_ns.tolist()], "steps": _joined(fewer, "step"),
        "values": {name: _joined(fewer, name) for name in rules if name != "step"},
        "events": [each.shown() for each in card_events] if key else [],
    }  # fmt: skip


def _merge(column: str) -> str:
    if column == "step":
        return "last"
    return "sum" if column.startswith("violation_") else MERGES.get(column, "max")


def _joined(chunks: list[Chunk], name: str) -> list[float | None]:
    parts = [each.columns.get(name, np.full(len(each.times_ns), np.nan)) for each in chunks]
    return [value if math.isfinite(value) else None for part in parts for value in part.tolist()]


def events(run: RunReader, rank: int | None = None, most: int = MOST_EVENTS) -> Iterator[CardEvent]:
    """What ranks said of their cards, oldest first; of each kind the last `most`, so that none hides another."""
    shown = {row.id for each in run.ranks.values() for row in each.rows}
    stored = [event for kind in GPU_KINDS for event in run.events(kind, most, rank=rank)]
    for event in sorted(stored):
        if event.stream_id in shown:
            about = event.rank, event.time_ns, event.step, event.kind, event.message, event.data
            yield CardEvent(*about, event.read(GpuEvent) or GpuEvent())


def _finite(columns: Mapping[str, float]) -> dict[str, float | None]:
    """What JSON can say: None for NaN and Inf."""
    return {name: value if math.isfinite(value) else None for name, value in columns.items()}
