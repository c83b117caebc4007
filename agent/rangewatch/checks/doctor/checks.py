"""The rules, each: details of one rank -> findings. To add one is a function in a file here and a line in `ALL`.

And what a rank in training ships: its details and what the rules find, at most 32 KiB of JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict

from rangewatch.checks.doctor.details import environment
from rangewatch.checks.doctor.findings import SEVERITIES, Details, Finding, Rule
from rangewatch.checks.doctor.folders import few_open_files, little_locked_memory, missing_folder, small_shared_memory
from rangewatch.checks.doctor.gpus import (
    architecture_missing,
    driver_too_old,
    gpu_unused,
    peer_to_peer_off,
    shared_memory_off,
    torch_broken,
    visible_devices,
)
from rangewatch.checks.doctor.machine import Machine
from rangewatch.checks.doctor.network import (
    infiniband_off,
    infiniband_unusable,
    interface_missing,
    loopback_chosen,
    sockets_chosen,
)
from rangewatch.checks.doctor.toolkits import (
    compiler_too_new,
    library_twice,
    toolkit_incomplete,
    toolkit_mismatch,
    two_toolkits,
)
from rangewatch.checks.doctor.variables import (
    debug_setting,
    deprecated_variable,
    misread_timeout,
    pinned_algorithm,
    thread_count,
    unread_timeout,
    unreadable_number,
    waiting,
)
from rangewatch.wire.events import Environment, EnvironmentFinding, details_of

ALL: list[Rule] = [
    torch_broken,
    gpu_unused,
    driver_too_old,
    architecture_missing,
    visible_devices,
    two_toolkits,
    toolkit_mismatch,
    toolkit_incomplete,
    library_twice,
    compiler_too_new,
    missing_folder,
    unread_timeout,
    misread_timeout,
    waiting,
    deprecated_variable,
    unreadable_number,
    peer_to_peer_off,
    shared_memory_off,
    infiniband_off,
    sockets_chosen,
    infiniband_unusable,
    interface_missing,
    loopback_chosen,
    debug_setting,
    pinned_algorithm,
    thread_count,
    small_shared_memory,
    little_locked_memory,
    few_open_files,
]


def findings(details: Details) -> list[Finding]:
    """What all rules find, the worst first."""
    unsorted = [finding for rule in ALL for finding in rule(details)]
    return sorted(unsorted, key=lambda finding: SEVERITIES.index(finding.severity))


EVENT_BYTES = 32 << 10
MOST_FINDINGS = 40

# What is left out of details that are too large, first what other ranks have least use for.
_LEAST_NEEDED = (
    "loaded_libraries",
    "missing_folders",
    "interfaces",
    "toolkits",
    "packages",
    "nccl_files",
    "infiniband",
)


def environment_event(machine: Machine | None = None) -> Environment:
    """The details (without the slow ones) and findings of this rank, for an event.

    Some milliseconds of files and no process; safe in a background thread. What had to be left out to stay within
    32 KiB is named in `facts["left_out"]`.
    """
    details = environment(machine, deep=False)
    shipped = tuple(EnvironmentFinding(**asdict(finding)) for finding in findings(details)[:MOST_FINDINGS])
    for smaller in _ever_smaller(details):
        event = Environment(smaller, shipped)
        if len(json.dumps(details_of(event))) <= EVENT_BYTES:
            return event
    return Environment({"version": details["version"], "left_out": sorted(details)}, shipped[:10])


def _ever_smaller(details: Details) -> Iterator[Details]:
    """The details, and again with one section less each time; then with variables cut to 64 characters."""
    yield details
    left_out: list[str] = []
    for section in _LEAST_NEEDED:
        left_out.append(section)
        details = {name: value for name, value in details.items() if name != section} | {"left_out": list(left_out)}
        yield details
    yield details | {"variables": {name[:64]: value[:64] for name, value in details["variables"].items()}}
