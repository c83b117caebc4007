"""Changes of the slow readings that are worth an event: what nobody would look for in a chart."""

from __future__ import annotations

import math
import re
from typing import Any

from rangewatch.collectors.gpu_fast import Row
from rangewatch.collectors.nvml_names import RECOVERY_ACTIONS

_LINK = re.compile(r"nvlink_(\d\d)_errors")

_GROWING = {
    "ecc_uncorrected_volatile": "uncorrectable memory errors; what was computed with them may be wrong",
    "remapped_rows_uncorrected": "rows of its memory remapped after an uncorrectable error, from the next reset on",
    "remapped_rows_failure": "row remapping has failed: have the card replaced",
    "remapped_rows_pending": "a row remapping waits for a reset of the GPU",
    "retired_pages_uncorrected": "pages of its memory retired after an uncorrectable error",
}


def changes(before: Row, now: Row) -> list[tuple[str, dict[str, Any]]]:
    """Message and data of each event between what was last known and `now`; nothing where either is not known."""
    found = [
        (
            f"{text} ({_count(before[name])} -> {_count(now[name])})",
            {"column": name, "from": before[name], "to": now[name]},
        )
        for name, text in _GROWING.items()
        if _grew(before, now, name)
    ]
    return found + _links_down(before, now) + _link_errors(before, now) + _recovery(before, now)


def _links_down(before: Row, now: Row) -> list[tuple[str, dict[str, Any]]]:
    was, mask = before.get("nvlink_active_mask", math.nan), now.get("nvlink_active_mask", math.nan)
    if math.isnan(was) or math.isnan(mask):
        return []
    down = [link for link in range(64) if int(was) >> link & 1 and not int(mask) >> link & 1]
    return [(f"NVLink {link} went down", {"link": link}) for link in down]


def _link_errors(before: Row, now: Row) -> list[tuple[str, dict[str, Any]]]:
    grown = {name: now[name] - before[name] for name in now if _LINK.fullmatch(name) and _grew(before, now, name)}
    return [
        (
            f"{_count(errors)} errors on NVLink {int(name[7:9])} since the last look",
            {"link": int(name[7:9]), "errors": errors},
        )
        for name, errors in grown.items()
    ]


def _recovery(before: Row, now: Row) -> list[tuple[str, dict[str, Any]]]:
    was, action = before.get("recovery_action", math.nan), now.get("recovery_action", math.nan)
    if math.isnan(action) or was == action or (math.isnan(was) and action == 0):
        return []
    text = RECOVERY_ACTIONS.get(int(action), f"action {int(action)}")
    return [(f"the driver's own verdict on how to recover it: {text}", {"recovery_action": int(action), "text": text})]


def _grew(before: Row, now: Row, name: str) -> bool:
    return now.get(name, math.nan) > before.get(name, math.nan)


def _count(value: float) -> str:
    return f"{value:.0f}"
