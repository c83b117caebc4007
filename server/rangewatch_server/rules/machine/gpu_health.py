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
WELL_NS = 60 * 10**9  # without a slowed sample ends a slowdown
LAST_NS = 120 * 10**9
"""Before the newest sample: how much of it the card was slowed down."""

SEARCHED_NS = 3600 * 10**9
"""Before the newest sample: how far back the begin of a slowdown is searched."""

LEAST_ROWS = 10
SLOWED_SHARE = 0.5

BEFORE_STEPS = 64
"""A straggler that began so many steps before its card was seen to be slow is still the card's: a card is sampled once
a second, and a rank is late before it is slow on average.
"""


def check(evidence: Evidence, limits: Thresholds) -> Iterator[Finding]:
    """One finding a card; of the newest samples, so none when an earlier step is asked for."""
    if not evidence.is_newest:
        return
    for card in gpus.cards_that_are_not_well(evidence.run)[:MOST]:
        if card["state"] in ("gone", "alarm") or (card["state"] == "slowed" and _stays_slowed(evidence, card)):
            yield _finding(card, _since(evidence, card))


def _since(evidence: Evidence, card: Mapping[str, Any]) -> int | None:
    """The step at which its trouble began, as far as the samples of the last hour and its events show."""
    if card["state"] == "slowed":
        steps = _slow_steps(evidence, card)
    else:
        kinds = ("gpu_lost",) if card["state"] == "gone" else ("xid",)
        steps = [
            each.step
            for each in gpus.events(evidence.run, card["rank"])
            if each.kind in kinds and each.details.uuid == card["key"]
        ][-1:]
    newest = card["step"]
    return min(steps, default=int(newest) if isinstance(newest, float | int) else None)


def _slow_steps(evidence: Evidence, card: Mapping[str, Any]) -> list[int]:
    """Steps of the samples in which it was slowed down, since it was not for a minute or more."""
    stop_ns = card["time_ns"] + 1
    chunks = samples(evidence.run, gpus.GPU, [card["rank"]], [card["key"]], stop_ns - SEARCHED_NS, stop_ns)
    rows = [
        (time_ns, int(step), any(int(bits) & bit for bit in gpus.SLOWING))
        for each in chunks
        if "step" in each.columns and "throttle_reasons" in each.columns
        for time_ns, step, bits in zip(
            each.times_ns.tolist(), each.columns["step"], each.columns["throttle_reasons"], strict=True
        )
        if step == step and bits == bits
    ]
    slow: list[tuple[int, int]] = []
    for time_ns, step, is_slow in rows:
        if is_slow:
            slow = [*slow, (time_ns, step)] if slow and time_ns - slow[-1][0] < WELL_NS else [(time_ns, step)]
    return [step for _, step in slow]


def _stays_slowed(evidence: Evidence, card: Mapping[str, Any]) -> bool:
    """In most samples of the last two minutes: a moment at a limit is nothing."""
    chunks = samples(
        evidence.run, gpus.GPU, [card["rank"]], [card["key"]], card["time_ns"] - LAST_NS, card["time_ns"] + 1
    )
    bits = [value for each in chunks for value in each.columns.get("throttle_reasons", [])]
    known = [int(value) for value in bits if value == value]
    slowed = sum(any(value & bit for bit in gpus.SLOWING) for value in known)
    return len(known) >= LEAST_ROWS and slowed >= SLOWED_SHARE * len(known)


def _finding(card: Mapping[str, Any], since: int | None) -> Finding:
    what = {"gone": "is gone", "alarm": "has errors", "slowed": "is throttled"}[card["state"]]
    now = ", ".join(_readings(card)) if card["state"] == "slowed" else ""
    begin = "" if since is None or card["state"] != "slowed" else f", since step {since}"
    name = f"Rank {card['rank']}: its GPU {card['name'] or ''} on {card['host']}".replace("  ", " ")
    return Finding(
        severity="critical" if card["state"] != "slowed" else "", rank=card["rank"], subject=str(card["key"]),
        step=since, summary=f"{name} {what}{f' ({now})' if now else ''}{begin}.",
        evidence=tuple(_evidence(card)), remedy=tuple(_remedies(card)),
        facts={"uuid": card["key"]} | ({} if since is None else {"cause_step": max(0, since - BEFORE_STEPS)}),
    )  # fmt: skip


def _readings(card: Mapping[str, Any]) -> Iterator[str]:
    """Such as "92 C" and "1,200 of 1,980 MHz"."""
    values, most = card["values"], card["about"].get("maxima")
    if values.get("temperature_c") is not None:
        yield f"{values['temperature_c']:.0f} C"
    if values.get("sm_clock_mhz") is not None:
        limit = most.get("sm_clock_mhz") if isinstance(most, dict) else None
        of = f" of {limit:,.0f}" if isinstance(limit, float | int) else ""
        yield f"{values['sm_clock_mhz']:,.0f}{of} MHz"


def _links(run_id: int, finding: Finding) -> Links:
    """The card's own page of the dashboard."""
    return (("This GPU", f"/runs/{run_id}/gpu?{urlencode({'rank': finding.rank, 'key': finding.subject})}"),)


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
