"""How torch waits for NCCL, and what it does when a collective fails."""

from __future__ import annotations

from collections.abc import Iterator

from rangewatch.doctor.checks.settings import Setting, setting
from rangewatch.doctor.findings import Facts, Finding


def waiting(facts: Facts) -> Iterator[Finding]:
    """Blocking wait on, or the handling of errors off."""
    if (blocking := _either(facts, "BLOCKING_WAIT")) and blocking.is_true:
        yield Finding(
            "blocking_wait",
            "warning",
            f"{blocking.name}={blocking.value}: each wait for a collective holds the CPU until the GPU is done",
            "Python then queues no further kernels meanwhile, so steps get slower; and the handling of asynchronous "
            "errors, which ends a hung job by itself, is off with it.",
            blocking.unset,
            blocking.where,
        )
    if (handling := _either(facts, "ASYNC_ERROR_HANDLING")) and handling.value.strip() == "0":
        yield Finding(
            "errors_not_handled",
            "warning",
            f"{handling.name}=0: torch does nothing when a collective fails or times out",
            "One rank that dies leaves all others waiting for ever, with their cards reserved.",
            f"{handling.unset}  # torch's default ends the process",
            handling.where,
        )
    monitoring = setting(facts, "TORCH_NCCL_ENABLE_MONITORING")
    if monitoring and monitoring.value.strip().lower() in ("0", "n", "no", "f", "false"):
        yield Finding(
            "monitoring_off",
            "info",
            f"TORCH_NCCL_ENABLE_MONITORING={monitoring.value}: nobody watches torch's NCCL watchdog",
            "A process whose watchdog is stuck in CUDA never ends, and writes no flight recorder dump.",
            monitoring.unset,
            monitoring.where,
        )


def _either(facts: Facts, name: str) -> Setting | None:
    # torch reads the new name first, then the old one
    return setting(facts, f"TORCH_NCCL_{name}") or setting(facts, f"NCCL_{name}")
