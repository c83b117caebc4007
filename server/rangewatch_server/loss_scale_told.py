"""How scalers are set to change their scale, as a rank's agent told: event `scaler` of docs/wire.md."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from rangewatch_server.queries import RunReader

KIND = "scaler"
MOST_EVENTS = 64
"""The newest that are looked at: each of at most eight scalers says it when it begins, and when it is changed."""
MOST_LETTERS = 100
SETTINGS = ("growth_factor", "backoff_factor", "growth_interval")


def told(run: RunReader, rank: int | None) -> dict[str, dict[str, Any]]:
    """Series -> class and settings of its scaler in the rank's last process; null for what it did not say."""
    if rank is None or not run.ranks[rank].streams:
        return {}
    found: dict[str, dict[str, Any]] = {}
    for row in run.events(KIND, MOST_EVENTS, stream_id=run.ranks[rank].streams[-1].id):
        said = msgspec.json.decode(row.data)
        if isinstance(said, dict) and isinstance(said.get("series"), str):
            found.setdefault(said["series"], _settings(said))
    return found


def _settings(said: dict[str, Any]) -> dict[str, Any]:
    name = said.get("class")
    known = name[:MOST_LETTERS] if isinstance(name, str) else None
    return {"class": known} | {each: _number(said.get(each)) for each in SETTINGS}


def _number(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) and abs(value) < 2**53 else None
