"""The rules, each: facts of one rank -> findings. To add one is a function in a file here and a line in `ALL`."""

from __future__ import annotations

from rangewatch.checks.doctor.findings import SEVERITIES, Facts, Finding, Rule
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


def findings(facts: Facts) -> list[Finding]:
    """What all rules find, the worst first."""
    found = [finding for rule in ALL for finding in rule(facts)]
    return sorted(found, key=lambda finding: SEVERITIES.index(finding.severity))
