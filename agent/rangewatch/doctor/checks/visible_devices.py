"""CUDA_VISIBLE_DEVICES, as CUDA reads it: up to the first entry that it cannot use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from rangewatch.doctor.checks.settings import ranks_here
from rangewatch.doctor.findings import Facts, Finding
from rangewatch.doctor.gpus import MOST

_NAME = "CUDA_VISIBLE_DEVICES"


def visible_devices(facts: Facts) -> Iterator[Finding]:
    """No device, one twice, one that is not there, or fewer than ranks."""
    value = facts["variables"].get(_NAME)
    cards = facts["gpu"]["cards"]
    if value is None or not cards:
        return
    entries = [entry.strip() for entry in value.split(",")]
    if len(entries) > 1 and not entries[-1]:
        entries.pop()  # a comma at the end takes nothing away
    twice = [entry for entry, count in Counter(entries).items() if count > 1]
    usable = _usable(entries, cards)
    if twice:
        yield _found("twice", "error", f"{_NAME}={value} names {twice[0]} twice", "CUDA then shows no device at all.")
    elif not usable:
        yield _found("none", "warning", f"{_NAME}={value!r} hides all {len(cards)} cards", "Training runs on the CPU.")
    elif len(usable) < len(entries):
        lost = entries[len(usable)]
        yield _found(
            "absent",
            "error",
            f"{_NAME}={value} names {lost!r}, and there are {len(cards)} cards",
            f"CUDA shows no device from there on: {len(usable)} instead of {len(entries)}.",
        )
    elif 1 < len(usable) < ranks_here(facts):
        yield _found(
            "too_few",
            "error",
            f"{_NAME}={value} shows {len(usable)} devices, and {ranks_here(facts)} ranks run on this machine",
            'Two ranks share a card, which NCCL refuses ("Duplicate GPU detected"), or get an invalid device.',
        )


def _usable(entries: list[str], cards: list[dict[str, Any]]) -> list[str]:
    uuids = [card["uuid"] for card in cards]
    found = []
    for entry in entries:
        is_there = entry.isdecimal() and int(entry) < len(cards)
        if not (is_there or entry.startswith("MIG-") or (entry.startswith("GPU-") and _is_named(entry, uuids))):
            break
        found.append(entry)
    return found


def _is_named(entry: str, uuids: list[str]) -> bool:
    """Whether a card is called so, or begins so, as CUDA takes it; True where any card's UUID is not known."""
    # The kernel tells "GPU-????????-..." until the driver has started the card.
    is_known = all(uuid.startswith("GPU-") and "?" not in uuid for uuid in uuids) and len(uuids) < MOST
    return not is_known or any(uuid.lower().startswith(entry.lower()) for uuid in uuids)


def _found(code: str, severity: str, what: str, why: str) -> Finding:
    is_error = severity == "error"
    do = f"unset {_NAME}  # or name each card once, as nvidia-smi -L lists them"
    return Finding(f"visible_devices_{code}", "error" if is_error else "warning", what, why, do, _NAME)
