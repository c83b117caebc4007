"""Who kept whom waiting, and how fast each kind of collective was."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rangewatch.client import Run
from rangewatch.html_report.markup import number, paragraph, seconds, size, table

MOST_ROWS = 60
HEAD = ("Group", "Op", "Ranks", "Size from", "Count", "Time p50", "Time p99", "algbw", "busbw", "Wait p50", "Wait p99")


def write(run: Run, _: dict[str, Any]) -> Iterator[str]:
    found = run.collectives()
    if not found["table"]:
        yield paragraph("No collective was recorded.")
        return
    verdict = found["verdict"]
    yield paragraph(verdict["text"] if verdict else found["why_no_verdict"] or "Nobody stands out.")
    coverage = "an unknown share" if found["coverage"] is None else f"{100 * found['coverage']:.3g} %"
    yield paragraph(f"Steps {found['start']} to {found['stop'] - 1}; {coverage} of the durations are known.", "muted")
    shown = found["table"][:MOST_ROWS]
    more = f", {len(shown)} of {len(found['table'])}" if len(shown) < len(found["table"]) else ""
    yield table(f"By group, op and size{more}", HEAD, map(_row, shown))
    slowest = sorted(found["by_rank"], key=lambda each: -(each["cost_to_others_s"] or 0))[:MOST_ROWS]
    yield table(
        "By rank, means of these steps",
        ("Rank", "Came last", "Costs others a step", "Waits a step"),
        map(_rank, slowest),
    )


def _row(row: dict[str, Any]) -> tuple[Any, ...]:
    return (
        row["group"], row["op"], row["ranks"], size(row["size_class_bytes"]), number(row["count"]),
        seconds(row["duration_p50_s"]), seconds(row["duration_p99_s"]), size(row["algbw_bytes_per_s"], "/s"),
        size(row["busbw_bytes_per_s"], "/s"), seconds(row["wait_p50_s"]), seconds(row["wait_p99_s"]),
    )  # fmt: skip


def _rank(row: dict[str, Any]) -> tuple[Any, ...]:
    share = None if row["last_share"] is None else f"{100 * row['last_share']:.3g} %"
    return f"rank {row['rank']}", share, seconds(row["cost_to_others_s"]), seconds(row["wait_s"])
