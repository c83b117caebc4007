"""Old names of variables, and values that NCCL cannot read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from rangewatch.doctor.checks.settings import Setting, setting, version
from rangewatch.doctor.checks.waiting import waiting
from rangewatch.doctor.findings import Facts, Finding, Severity


class _Renamed(NamedTuple):
    new: str | None
    """None: it has gone without a successor."""
    is_read: bool = True
    """Whether the old name still has an effect."""
    since_torch: tuple[int, ...] = ()
    severity: Severity = "warning"


_RENAMED = {
    "NCCL_ASYNC_ERROR_HANDLING": _Renamed("TORCH_NCCL_ASYNC_ERROR_HANDLING", since_torch=(2, 2)),
    "NCCL_BLOCKING_WAIT": _Renamed("TORCH_NCCL_BLOCKING_WAIT", since_torch=(2, 2)),
    "NCCL_DESYNC_DEBUG": _Renamed("TORCH_NCCL_DESYNC_DEBUG", since_torch=(2, 2)),
    "NCCL_ENABLE_TIMING": _Renamed("TORCH_NCCL_ENABLE_TIMING", since_torch=(2, 2)),
    "NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK": _Renamed(
        "TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK", since_torch=(2, 2)
    ),
    "TORCH_NCCL_TRACE_BUFFER_SIZE": _Renamed("TORCH_FR_BUFFER_SIZE", since_torch=(2, 8), severity="info"),
    "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": _Renamed("TORCH_FR_DUMP_TEMP_FILE", since_torch=(2, 8), severity="info"),
    "PYTORCH_CUDA_ALLOC_CONF": _Renamed("PYTORCH_ALLOC_CONF", since_torch=(2, 9), severity="info"),
    "NCCL_CHECKS_DISABLE": _Renamed("NCCL_CHECK_POINTERS"),
    "NCCL_IB_CUDA_SUPPORT": _Renamed("NCCL_NET_GDR_LEVEL", is_read=False),
    "NCCL_IB_GDR_LEVEL": _Renamed("NCCL_NET_GDR_LEVEL", is_read=False),
    "NCCL_MAX_NRINGS": _Renamed("NCCL_MAX_NCHANNELS"),
    "NCCL_MIN_NRINGS": _Renamed("NCCL_MIN_NCHANNELS"),
    "NCCL_LL_THRESHOLD": _Renamed("NCCL_PROTO", is_read=False),
    "NCCL_TREE_THRESHOLD": _Renamed("NCCL_ALGO", is_read=False),
    "NCCL_SINGLE_RING_THRESHOLD": _Renamed(None, is_read=False),
}

# NCCL reads these as numbers: a word is 0, with no message below NCCL_DEBUG=INFO.
_NUMBERS = (
    "NCCL_P2P_DISABLE", "NCCL_IB_DISABLE", "NCCL_SHM_DISABLE", "NCCL_NVLS_ENABLE", "NCCL_P2P_DIRECT_DISABLE",
    "NCCL_BUFFSIZE", "NCCL_NTHREADS", "NCCL_MAX_NCHANNELS", "NCCL_MIN_NCHANNELS", "NCCL_IB_TIMEOUT",
    "NCCL_IB_RETRY_CNT", "NCCL_IB_GID_INDEX", "NCCL_IB_TC", "NCCL_IB_SL", "NCCL_CROSS_NIC", "NCCL_SOCKET_NTHREADS",
    "NCCL_NSOCKS_PERTHREAD", "NCCL_IB_QPS_PER_CONNECTION", "NCCL_CUMEM_ENABLE",
)  # fmt: skip


def deprecated_variable(facts: Facts) -> Iterator[Finding]:
    """An old name, of a setting that is fine otherwise: nobody should be told to give a bad one a new name."""
    torch = version(facts["torch"]["version"])
    bad = {finding.where for finding in waiting(facts)}
    for name, renamed in _RENAMED.items():
        found = setting(facts, name)
        is_old = not renamed.since_torch or not torch or torch >= renamed.since_torch
        if found and is_old and found.where not in bad:
            yield _old(found, renamed)


def unreadable_number(facts: Facts) -> Iterator[Finding]:
    """A word where NCCL takes a number."""
    for name in _NUMBERS:
        found = setting(facts, name)
        if found and not re.fullmatch(r"\s*[+-]?(0[xX][0-9a-fA-F]+|\d+)\s*", found.value):
            yield Finding(
                "unreadable_number",
                "warning",
                f"{name}={found.value} is no number, and NCCL takes it for {found.number}",
                "NCCL reads digits only: true, yes and on all mean 0.",
                f"{found.unset}  # or export {name}=<a number>",
                found.where,
            )


def _old(found: Setting, renamed: _Renamed) -> Finding:
    effect = "is deprecated" if renamed.is_read else "has no effect any more"
    return Finding(
        "deprecated_variable",
        renamed.severity,
        f"{found.name} {effect}" + (f"; it is {renamed.new} now" if renamed.new else ""),
        "It still works, with a warning at each start, until a later version stops reading it."
        if renamed.is_read
        else "What it was set for does not happen.",
        f"{found.unset}; export {renamed.new}=..."
        if renamed.new and not renamed.is_read
        else _renaming(found, renamed),
        found.where,
    )


def _renaming(found: Setting, renamed: _Renamed) -> str:
    return f"{found.unset}; export {renamed.new}={found.value}" if renamed.new else found.unset
