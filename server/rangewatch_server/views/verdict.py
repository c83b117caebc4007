"""One sentence on a run's numerics, with its evidence linked: what broke first, or how near it came."""

from __future__ import annotations

from typing import Any

from rangewatch_server.query.reader import RunReader
from rangewatch_server.views.extremes import Place, place_at

WARNING_BITS = 2.0

_OWNERS = {"output": "the output of ", "grad_output": "the gradient of the output of ", "grad": "the gradient of "}


def verdict(run: RunReader, first: dict[str, Any] | None, least: dict[str, Any] | None, skipped: int) -> dict[str, Any]:
    """`first`: the first NaN or Inf but gradient overflows that the loss scaler skipped; `least`: the least finite
    headroom; `skipped`: how many steps the scaler skipped.
    """
    if first is not None:
        return _overflow(run, first)
    by_scaler = _by_scaler(skipped)
    if least is None:
        nothing = run.last_step is None
        said = "No step has been recorded yet." if nothing else "No overflow; nothing but zeros has been recorded."
        return {"level": "empty" if nothing else "ok", "parts": [["text", said + by_scaler]], "links": []}
    near = least["bits"] < WARNING_BITS
    entry = run.names().tensors.entries[least["tensor"]]
    parts = [
        ["text", f"{'Little headroom' if near else 'No overflow'}; least headroom {least['bits']:.1f} bits ("],
        ["code", entry.fqn or "(model)"],
        ["text", f" {entry.kind}, rank {least['rank']}, step {least['step']}).{by_scaler}"],
    ]
    return {"level": "warning" if near else "ok", "parts": parts, "links": _links(run, least)}


def _by_scaler(skipped: int) -> str:
    steps = "a step" if skipped == 1 else f"{skipped:,} steps"
    return f" The loss scaler skipped {steps} whose gradients overflowed, as it is meant to." if skipped else ""


def _overflow(run: RunReader, first: dict[str, Any]) -> dict[str, Any]:
    held = "NaN" if first["what"] == "nan" else "Inf"
    parts = [
        ["strong", "Overflow."],
        ["text", f" Step {first['step']}, rank {first['rank']}: {_OWNERS.get(first['kind'], first['kind'] + ' of ')}"],
        ["code", first["fqn"] or "(model)"],
        ["text", f" is the first to hold {held}.{_before(run, first)}"],
    ]
    return {"level": "overflow", "parts": parts, "links": _links(run, first)}


def _before(run: RunReader, first: dict[str, Any]) -> str:
    """How the same tensor stood one step and some hundred steps earlier, where that was recorded."""
    places: list[Place] = []
    for back in (1, 100):
        step = first["step"] - back
        if step >= 0:
            places.append(place_at(run, first["rank"], step, first["tensor"]))
    reported = [f"{place.bits:.1f} bits at step {place.step}" for place in places if place.bits is not None]
    return f" Its headroom was {' and '.join(reported)}." if reported else ""


def _links(run: RunReader, place: dict[str, Any]) -> list[dict[str, str]]:
    where = f"rank={place['rank']}"
    return [
        {"label": "Step frames", "path": f"/runs/{run.id}/step?step={place['step']}&{where}"},
        {"label": "This tensor over time", "path": f"/runs/{run.id}/tensor?tensor={place['tensor']}&{where}"},
    ]
