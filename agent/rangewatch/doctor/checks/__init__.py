"""The rules, each: facts of one rank -> findings. To add one is a function in a file here and a line in `ALL`."""

from __future__ import annotations

from rangewatch.doctor.checks.architectures import architecture_missing, driver_too_old, gpu_unused, torch_broken
from rangewatch.doctor.checks.compilers import compiler_too_new
from rangewatch.doctor.checks.deprecated import deprecated_variable, unreadable_number
from rangewatch.doctor.checks.folders import missing_folder
from rangewatch.doctor.checks.links import peer_to_peer_off, shared_memory_off
from rangewatch.doctor.checks.network import (
    infiniband_off,
    infiniband_unusable,
    interface_missing,
    loopback_chosen,
    sockets_chosen,
)
from rangewatch.doctor.checks.room import few_open_files, little_locked_memory, small_shared_memory
from rangewatch.doctor.checks.slow import debug_setting, pinned_algorithm
from rangewatch.doctor.checks.threads import thread_count
from rangewatch.doctor.checks.timeouts import misread_timeout, unread_timeout
from rangewatch.doctor.checks.toolkits import library_twice, toolkit_incomplete, toolkit_mismatch, two_toolkits
from rangewatch.doctor.checks.visible_devices import visible_devices
from rangewatch.doctor.checks.waiting import waiting
from rangewatch.doctor.findings import SEVERITIES, Facts, Finding, Rule

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
