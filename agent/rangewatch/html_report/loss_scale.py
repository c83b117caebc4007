"""Every drop of the loss scale with its cause, and the layers that cause them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rangewatch.client import Run
from rangewatch.html_report.markup import number, paragraph, ranks, scale, table

MOST_DROPS = 50
CAUSES = {
    "gradient": "a gradient overflowed",
    "forward": "the forward pass held NaN or Inf before: the scale is not to blame",
    "reduction": "finite until the ranks were added up, or until the update",
    "unknown": "nothing recorded was to blame",
    "set": "set by the program, or a restart",
}


def write(run: Run, _: dict[str, Any]) -> Iterator[str]:
    found = run.loss_scale()
    if not found["scalers"] and not found["drops"]:
        yield paragraph("No loss scale was recorded: the run has no scaler, or the agent was not told of it.")
        return
    for each in found["scalers"]:
        said = (each["name"], scale(each["min"]), scale(each["max"]), scale(each["last"]))
        yield paragraph("{}: {} to {}, at the end {}.".format(*said))
    skipped = found["skipped_steps"]
    yield paragraph("1 step was skipped." if skipped == 1 else f"{skipped:,} steps were skipped.")
    if found["drops"]:
        more = f", the newest {len(found['drops'])}" if found["next"] is not None else ""
        yield table(f"Drops{more}", ("Step", "Scale", "Cause", "First", "Ranks"), map(_drop, found["drops"]))
    if found["layers"]:
        head = ("Tensor", "First to overflow", "Overflowed", "Last at step", "Largest finite magnitude")
        yield table(f"Layers of {found['layers_of_drops']} drops", head, map(_layer, found["layers"]))


def _layer(layer: dict[str, Any]) -> tuple[Any, ...]:
    return layer["label"], layer["first"], layer["overflows"], layer["last_step"], number(layer["amax"])


def _drop(drop: dict[str, Any]) -> tuple[Any, ...]:
    scales = ", ".join(f"{scale(each['before'])} to {scale(each['after'])}" for each in drop["scales"])
    first = drop["first"]
    where = "" if first is None else f"{first['label']}, rank {first['rank']}"
    more = drop["rank_count"] - len(drop["ranks"])
    who = ranks(drop["ranks"]) + (f" and {more} more" if more > 0 else "")
    step = f"{drop['step']}, skipped" if drop["skipped"] else str(drop["step"])
    return step, scales, CAUSES.get(drop["cause"], drop["cause"]), where or "none", who or "none"
