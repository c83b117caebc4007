"""Where the run ran: cards, hosts, what is odd or wrong with them, and the ranks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from html import escape
from typing import Any

from rangewatch.client import Run
from rangewatch.html_report.markup import number, paragraph, size, table
from rangewatch.html_report.markup import ranks as numbers

MOST_CARDS, MOST_RANKS, MOST_FACTS = 128, 1_024, 200
DEEPEST = 3


def gpus(run: Run, _: dict[str, Any]) -> Iterator[str]:
    """The newest sample of every card and host."""
    found = run.gpus()
    if found["gpus"]:
        cards = found["gpus"][:MOST_CARDS]
        more = f", {len(cards)} of {len(found['gpus'])}, worst first" if len(cards) < len(found["gpus"]) else ""
        head = ("Rank", "Host", "Card", "State", "Why", "Busy", "Power", "Chip", "Memory")
        yield table(f"Cards, newest samples{more}", head, map(_card, cards))
    else:
        yield paragraph("No GPU is recorded.")
        for each in found["notes"][:MOST_CARDS]:
            yield paragraph(f"Rank {each['rank']}: {each['message']}", "muted")
    if found["hosts"]:
        yield table(
            "Hosts, newest samples", ("Host", "Rank", "CPU", "Load", "Memory"), map(_host, found["hosts"][:MOST_CARDS])
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


def environment(run: Run, _: dict[str, Any]) -> Iterator[str]:
    """Findings, ranks that differ, and every fact with who has it."""
    found = run.environment()
    if not found["ranks"]:
        yield paragraph("No rank has told of its environment.")
        return
    if not found["findings"]:
        yield paragraph("Nothing wrong was found.")
    for each in found["findings"]:
        yield f'<section class="{escape(each["severity"])}"><h3>{escape(each["what"])}</h3>'
        yield paragraph(f"{each['severity']}, ranks {numbers(each['ranks'])}", "muted")
        yield paragraph(each["why"]) if each["why"] else ""
        yield f"<pre>{escape(each['do'])}</pre>" if each["do"] else ""
        yield "</section>\n"
    facts = _facts(found["ranks"])
    more = f", {MOST_FACTS} of {len(facts)}" if len(facts) > MOST_FACTS else ""
    yield table(f"Facts, those first that differ{more}", ("Fact", "Value, and on which ranks"), facts[:MOST_FACTS])


def _facts(told: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Dotted names; a value is followed by its ranks where they do not agree."""
    found: dict[str, dict[str, list[int]]] = {}
    for each in told:
        for name, text in _flat(each["facts"], "", 0):
            found.setdefault(name, {}).setdefault(text, []).append(each["rank"])
    rows = [(name, _values(values, len(told))) for name, values in found.items()]
    differs = {name for name, values in found.items() if len(values) > 1}
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


def ranks(_: Run, facts: dict[str, Any]) -> Iterator[str]:
    """Each rank as it is now."""
    shown = facts["ranks"][:MOST_RANKS]
    rows = [
        (f"rank {each['rank']}", each["state"], each["host"], each["device"], each["last_step"], each["failure"] or "")
        for each in shown
    ]
    more = f", {len(shown)} of {len(facts['ranks'])}" if len(shown) < len(facts["ranks"]) else ""
    yield table(f"Ranks{more}", ("Rank", "State", "Host", "Device", "Last step", "Failure"), rows)
