"""A GPU that is gone, slowed down or has errors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlencode

from rangewatch_server.machines import gpus
from rangewatch_server.query.samples import samples
from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.rule import Finding, Links, Remedy, Rule, Thresholds

MOST = 16
LAST_NS = 120 * 10**9
"""Before the newest sample: how much of it the card was slowed down."""

LEAST_ROWS = 10
SLOWED_SHARE = 0.5


def check(evidence: Evidence, limits: Thresholds) -> Iterator[Finding]:
    """One finding a card; of the newest samples, so none when an earlier step is asked for."""
    if not evidence.is_newest:
        return
    for card in gpus.summary(evidence.run)["gpus"][:MOST]:
        if card["state"] in ("gone", "alarm") or (card["state"] == "slowed" and _stays_slowed(evidence, card)):
            yield _finding(card)


def _stays_slowed(evidence: Evidence, card: Mapping[str, Any]) -> bool:
    """In most samples of the last two minutes: a moment at a limit is nothing."""
    chunks = samples(
        evidence.run, gpus.GPU, [card["rank"]], [card["key"]], card["time_ns"] - LAST_NS, card["time_ns"] + 1
    )
    bits = [value for each in chunks for value in each.columns.get("throttle_reasons", [])]
    known = [int(value) for value in bits if value == value]
    slowed = sum(any(value & bit for bit in gpus.SLOWING) for value in known)
    return len(known) >= LEAST_ROWS and slowed >= SLOWED_SHARE * len(known)


def _finding(card: Mapping[str, Any]) -> Finding:
    what = {"gone": "is gone", "alarm": "has errors", "slowed": "is slowed down"}[card["state"]]
    step = card["step"]
    return Finding(
        severity="critical" if card["state"] != "slowed" else "", rank=card["rank"], subject=str(card["key"]),
        step=int(step) if isinstance(step, float | int) else None,
        summary=f"Rank {card['rank']}: its GPU {card['name'] or ''} on {card['host']} {what}.".replace("  ", " "),
        evidence=tuple(_evidence(card)), remedy=tuple(_remedies(card)),
        facts={"uuid": card["key"]},
    )  # fmt: skip


def _links(run_id: int, found: Finding) -> Links:
    """The card's own page of the dashboard."""
    return (("This GPU", f"/runs/{run_id}/gpu?{urlencode({'rank': found.rank, 'key': found.subject})}"),)


def _evidence(card: Mapping[str, Any]) -> Iterator[str]:
    yield from (f"{str(each)[:1].upper()}{str(each)[1:]}." for each in card["why"])
    values = card["values"]
    for name, text in (
        ("temperature_c", "Its temperature is {:.0f} C."), ("sm_clock_mhz", "Its SM clock is {:.0f} MHz."),
        ("power_w", "It takes {:.0f} W."),
    ):  # fmt: skip
        if values.get(name) is not None:
            yield text.format(values[name])


def _remedies(card: Mapping[str, Any]) -> Iterator[Remedy]:
    if card["state"] == "slowed":
        yield Remedy(
            "Look at the node's cooling and power: fans, inlet temperature, power caps, cables.",
            "nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER", "the card itself says that it runs below its clocks",
        )  # fmt: skip
    else:
        yield Remedy(
            "Take the node out of the job and do what the message says; go on from the last checkpoint without it.",
            "nvidia-smi -q -d ECC,ROW_REMAPPER; dmesg --ctime | grep -i xid", "the driver reports it",
        )  # fmt: skip


RULE = Rule(
    name="gpu_health",
    title="A GPU is not well",
    severity="warning",
    explanation="The card of a rank does not answer, reports errors (Xid, uncorrectable memory, a recovery action) or "
    "has run below its clocks for most of the last two minutes, for heat or for want of power. It makes its rank slow, "
    "and with it all others; with memory errors it may compute wrong values.",
    check=check,
    explains=("straggler", "hang", "rank_died", "replica_mismatch"),
    links=_links,
)
