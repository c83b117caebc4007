"""What is wrong with the run: why, how it went on, and what to try.

The tensors with the least headroom over the whole run, all ranks merged.

Who kept whom waiting, and how fast each kind of collective was.

Every drop of the loss scale with its cause, and the layers that cause them.

Where the run ran: cards, hosts, what is odd or wrong with them, and the ranks.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from html import escape
from typing import Any

import numpy as np

from rangewatch.report.markup import listed, number, paragraph, ranks, scale, seconds, size, table
from rangewatch.report.markup import ranks as numbers
from rangewatch.report.source import Finding, Source, headline


def write_findings(source: Source, _: dict[str, Any]) -> Iterator[str]:
    diagnosis = source.get("/diagnosis")
    if not diagnosis["findings"]:
        yield paragraph("No open finding.")
    for each in diagnosis["findings"]:
        yield from _finding(each)
    for rule, reason in diagnosis["failed"].items():
        yield paragraph(f"The rule {rule} could not be applied: what it would find is unknown ({reason}).")


def _finding(finding: Finding) -> Iterator[str]:
    yield f'<section class="{escape(finding["severity"])}"><h3>{escape(headline(finding))}</h3>'
    yield paragraph(f"{finding['severity']}, rule {finding['rule']}", "muted")
    yield listed("Why", finding["evidence"])
    yield listed("How it went on", finding["path"])
    yield listed("What it explains", finding["consequences"])
    if finding["remedy"]:
        yield "<h4>What to try</h4>"
    for remedy in finding["remedy"]:
        yield paragraph(remedy["text"] + (f" ({remedy['because']})" if remedy["because"] else ""))
        yield f"<pre>{escape(remedy['code'])}</pre>" if remedy["code"] else ""
    yield "</section>\n"


MOST_LAYERS = 40
EXTREMES = ("headroom_bits", "amax", "nan_count", "inf_count")


def write_layers(source: Source, _: dict[str, Any]) -> Iterator[str]:
    answer = source.get("/slice", {"statistic": EXTREMES, "columns": 1})
    labels = answer["rows"]["labels"]
    if not labels or not any(answer["values"]["amax"]):
        yield paragraph("No tensor was observed.")
        return
    # (tensors, columns): a column or a few; NaN is what was not measured.
    values = {name: np.array(answer["values"][name], np.float64).reshape(len(labels), -1) for name in EXTREMES}
    bits = np.where(np.isnan(values["headroom_bits"]), np.inf, values["headroom_bits"]).min(axis=1)
    amax = np.where(np.isnan(values["amax"]), -np.inf, values["amax"]).max(axis=1)
    bad = np.nan_to_num(values["nan_count"]).sum(axis=1) + np.nan_to_num(values["inf_count"]).sum(axis=1)
    order = np.lexsort((bits, -(bad > 0).astype(int)))[:MOST_LAYERS]
    rows = [(labels[at], _bits(bits[at]), _largest(amax[at]), f"{int(bad[at]):,}") for at in order]
    title = f"The {len(rows)} of {len(bits)} tensors with NaN or Inf, or with the least headroom"
    yield table(title, ("Tensor", "Least headroom (bits)", "Largest magnitude", "NaN and Inf"), rows)


def _bits(value: float) -> str:
    return f"{value:.2f}" if math.isfinite(value) else "not measured"


def _largest(value: float) -> str:
    return f"{value:.3g}" if math.isfinite(value) else "none finite"


MOST_COLLECTIVES = 60
HEAD = ("Group", "Op", "Ranks", "Size from", "Count", "Time p50", "Time p99", "algbw", "busbw", "Wait p50", "Wait p99")


def write_collectives(source: Source, _: dict[str, Any]) -> Iterator[str]:
    summary = source.get("/collectives")
    if not summary["table"]:
        yield paragraph("No collective was recorded.")
        return
    verdict = summary["verdict"]
    yield paragraph(verdict["text"] if verdict else summary["why_no_verdict"] or "No straggler.")
    coverage = "an unknown share" if summary["coverage"] is None else f"{100 * summary['coverage']:.3g} %"
    yield paragraph(
        f"Steps {summary['start']} to {summary['stop'] - 1}; {coverage} of the durations are known.", "muted"
    )
    shown = summary["table"][:MOST_COLLECTIVES]
    more = f", {len(shown)} of {len(summary['table'])}" if len(shown) < len(summary["table"]) else ""
    yield table(f"By group, op and size{more}", HEAD, map(_row, shown))
    slowest = sorted(summary["by_rank"], key=lambda each: -(each["cost_to_others_s"] or 0))[:MOST_COLLECTIVES]
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


MOST_DROPS = 50
CAUSES = {
    "gradient": "a gradient overflowed",
    "forward": "the forward pass held NaN or Inf before: the scale is not to blame",
    "reduction": "finite until the all-reduce, or until the update",
    "unknown": "nothing recorded was to blame",
    "set": "set by the program, or a restart",
}


def write_loss_scale(source: Source, _: dict[str, Any]) -> Iterator[str]:
    history = source.get("/loss_scale")
    if not history["scalers"] and not history["drops"]:
        yield paragraph("No loss scale was recorded: the run has no scaler, or the agent was not given it.")
        return
    for each in history["scalers"]:
        cells = (each["name"], scale(each["min"]), scale(each["max"]), scale(each["last"]))
        yield paragraph("{}: {} to {}, at the end {}.".format(*cells))
    skipped = history["skipped_steps"]
    yield paragraph("1 step was skipped." if skipped == 1 else f"{skipped:,} steps were skipped.")
    if history["drops"]:
        more = f", the newest {len(history['drops'])}" if history["next"] is not None else ""
        yield table(f"Drops{more}", ("Step", "Scale", "Cause", "First", "Ranks"), map(_drop, history["drops"]))
    if history["layers"]:
        head = ("Tensor", "First to overflow", "Overflowed", "Last at step", "Largest finite magnitude")
        yield table(f"Layers of {history['layers_of_drops']} drops", head, map(_layer, history["layers"]))


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


MOST_CARDS, MOST_RANKS, MOST_FACTS = 128, 1_024, 200
DEEPEST = 3


def gpus(source: Source, _: dict[str, Any]) -> Iterator[str]:
    """The newest sample of every card and host."""
    answer = source.get("/gpus")
    if answer["gpus"]:
        cards = answer["gpus"][:MOST_CARDS]
        more = f", {len(cards)} of {len(answer['gpus'])}, worst first" if len(cards) < len(answer["gpus"]) else ""
        head = ("Rank", "Host", "Card", "State", "Why", "Busy", "Power", "Chip", "Memory")
        yield table(f"Cards, newest samples{more}", head, map(_card, cards))
    else:
        yield paragraph("No GPU is recorded.")
        for each in answer["notes"][:MOST_CARDS]:
            yield paragraph(f"Rank {each['rank']}: {each['message']}", "muted")
    if answer["hosts"]:
        yield table(
            "Hosts, newest samples", ("Host", "Rank", "CPU", "Load", "Memory"), map(_host, answer["hosts"][:MOST_CARDS])
        )


def _card(gpu: dict[str, Any]) -> tuple[Any, ...]:
    of = gpu["values"]
    return (
        f"rank {gpu['rank']}", gpu["host"], gpu["name"], gpu["state"], "; ".join(gpu["why"]),
        number(of.get("utilization_gpu_percent"), " %"), number(of.get("power_w"), " W"),
        number(of.get("temperature_c"), " °C"), _part(of),
    )  # fmt: skip


def _host(host: dict[str, Any]) -> tuple[Any, ...]:
    of = host["values"]
    return (
        host["host"],
        f"rank {host['rank']}",
        number(of.get("cpu_percent"), " %"),
        number(of.get("load_1m")),
        _part(of),
    )


def _part(values: dict[str, Any]) -> str:
    used, total = values.get("memory_used_bytes"), values.get("memory_total_bytes")
    return size(used) if total is None else f"{size(used)} of {size(total)}"


def environment(source: Source, _: dict[str, Any]) -> Iterator[str]:
    """Findings, ranks that differ, and every fact with who has it."""
    answer = source.get("/environment")
    if not answer["ranks"]:
        yield paragraph("No rank has sent its environment.")
        return
    if not answer["findings"]:
        yield paragraph("No problem found.")
    for each in answer["findings"]:
        yield f'<section class="{escape(each["severity"])}"><h3>{escape(each["what"])}</h3>'
        yield paragraph(f"{each['severity']}, ranks {numbers(each['ranks'])}", "muted")
        yield paragraph(each["why"]) if each["why"] else ""
        yield f"<pre>{escape(each['do'])}</pre>" if each["do"] else ""
        yield "</section>\n"
    rows = _shared_details(answer["ranks"])
    more = f", {MOST_FACTS} of {len(rows)}" if len(rows) > MOST_FACTS else ""
    yield table(
        f"Environment, where ranks differ first{more}", ("Fact", "Value, and on which ranks"), rows[:MOST_FACTS]
    )


def _shared_details(reported: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Dotted names; a value is followed by its ranks where they do not agree."""
    by_name: dict[str, dict[str, list[int]]] = {}
    for each in reported:
        for name, text in _flat(each["facts"], "", 0):
            by_name.setdefault(name, {}).setdefault(text, []).append(each["rank"])
    rows = [(name, _values(values, len(reported))) for name, values in by_name.items()]
    differs = {name for name, values in by_name.items() if len(values) > 1}
    return sorted(rows, key=lambda row: row[0] not in differs)


def _values(values: dict[str, list[int]], all_ranks: int) -> str:
    if len(values) == 1:
        ((text, who),) = values.items()
        return text if len(who) == all_ranks else f"{text} (ranks {numbers(who)})"
    return "; ".join(f"{text} (ranks {numbers(who)})" for text, who in values.items())


def _flat(value: Any, name: str, depth: int) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and depth < DEEPEST:
        for key, inner in value.items():
            yield from _flat(inner, f"{name}.{key}" if name else str(key), depth + 1)
    elif value is None or value == "":
        yield name, "unknown"
    else:
        yield name, value if isinstance(value, str) else json.dumps(value)


def write_ranks(_: Source, details: dict[str, Any]) -> Iterator[str]:
    """Each rank as it is now."""
    shown = details["ranks"][:MOST_RANKS]
    rows = [
        (f"rank {each['rank']}", each["state"], each["host"], each["device"], each["last_step"], each["failure"] or "")
        for each in shown
    ]
    more = f", {len(shown)} of {len(details['ranks'])}" if len(shown) < len(details["ranks"]) else ""
    yield table(f"Ranks{more}", ("Rank", "State", "Host", "Device", "Last step", "Failure"), rows)
