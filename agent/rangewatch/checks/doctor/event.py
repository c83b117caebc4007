"""What a rank in training ships of its environment: the facts and what is found in them, at most 32 KiB of JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from rangewatch.checks.doctor import checks
from rangewatch.checks.doctor.details import environment
from rangewatch.checks.doctor.findings import Facts
from rangewatch.checks.doctor.machine import Machine

EVENT_BYTES = 32 << 10
MOST_FINDINGS = 40

# What is left out of facts that are too large, first what other ranks have least use for.
_LEAST_NEEDED = (
    "loaded_libraries",
    "missing_folders",
    "interfaces",
    "toolkits",
    "packages",
    "nccl_files",
    "infiniband",
)


def environment_event(machine: Machine | None = None) -> dict[str, Any]:
    """`facts` (without the slow ones) and `findings` of this rank, for an event of kind "environment".

    Some milliseconds of files and no process; safe in a background thread. What had to be left out to stay within
    32 KiB is named in `facts["left_out"]`.
    """
    facts = environment(machine, deep=False)
    findings = [asdict(finding) for finding in checks.findings(facts)[:MOST_FINDINGS]]
    for smaller in _ever_smaller(facts):
        event = {"facts": smaller, "findings": findings}
        if len(json.dumps(event)) <= EVENT_BYTES:
            return event
    return {"facts": {"version": facts["version"], "left_out": sorted(facts)}, "findings": findings[:10]}


def _ever_smaller(facts: Facts) -> Iterator[Facts]:
    """The facts, and again with one section less each time; then with variables cut to 64 characters."""
    yield facts
    left_out: list[str] = []
    for section in _LEAST_NEEDED:
        left_out.append(section)
        facts = {name: value for name, value in facts.items() if name != section} | {"left_out": list(left_out)}
        yield facts
    yield facts | {"variables": {name[:64]: value[:64] for name, value in facts["variables"].items()}}
