"""Settings for debugging that are left on, and choices taken from NCCL."""

from __future__ import annotations

from collections.abc import Iterator

from rangewatch.doctor.checks.settings import setting
from rangewatch.doctor.findings import Facts, Finding, Severity

# name, values that are meant (None: any number but 0), severity, what it does, why that matters
_DEBUG: tuple[tuple[str, tuple[str, ...] | None, Severity, str, str], ...] = (
    ("CUDA_LAUNCH_BLOCKING", None, "warning", "makes every kernel launch wait for the kernel",
     "Nothing overlaps any more: steps take up to several times as long. It is for finding the line that fails."),
    ("TORCH_DISTRIBUTED_DEBUG", ("DETAIL",), "warning", "checks every collective with another one before it",
     "Steps get slower with every rank. It is for finding mismatched collectives."),
    ("NCCL_DEBUG", ("TRACE",), "warning", "writes a line for each call",
     "Logs grow by gigabytes, and writing them holds the training thread up."),
    ("NCCL_DEBUG", ("INFO",), "info", "writes some hundred lines a rank at each start",
     "Harmless to speed; the log of a large job is hard to read."),
    ("PYTORCH_NO_CUDA_MEMORY_CACHING", None, "warning", "switches torch's memory cache off",
     "Each tensor is a cudaMalloc, which waits for the GPU: steps take many times as long."),
    ("CUDA_DEVICE_WAITS_ON_EXCEPTION", None, "warning", "stops at an exception until a debugger comes",
     "A job that fails hangs instead of ending."),
)  # fmt: skip

_PINNED = ("NCCL_ALGO", "NCCL_PROTO", "NCCL_NTHREADS", "NCCL_MAX_NCHANNELS", "NCCL_MIN_NCHANNELS", "NCCL_BUFFSIZE")


def debug_setting(facts: Facts) -> Iterator[Finding]:
    """What is for debugging and costs time in training."""
    for name, values, severity, does, why in _DEBUG:
        found = setting(facts, name)
        if found and (found.value.strip().upper() in values if values else found.number):
            what = f"{name}={found.value} {does}"
            yield Finding("debug_setting", severity, what, why, found.unset, found.where)


def pinned_algorithm(facts: Facts) -> Iterator[Finding]:
    """What NCCL would choose by size and topology, and may not."""
    found = [each for name in _PINNED if (each := setting(facts, name))]
    if found:
        names = ", ".join(f"{each.name}={each.value}" for each in found)
        yield Finding(
            "pinned_algorithm",
            "info",
            f"{names} takes a choice from NCCL",
            "What was best on another machine, or with another NCCL, is often slower here. All ranks need the same.",
            "; ".join(each.unset for each in found) + "  # then compare busbw: rangewatch linkcheck",
            ", ".join(each.where for each in found),
        )
