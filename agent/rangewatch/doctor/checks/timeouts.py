"""Timeouts of collectives set where nobody reads them, or in the wrong unit."""

from __future__ import annotations

from collections.abc import Iterator

from rangewatch.doctor.checks.settings import Setting, setting
from rangewatch.doctor.findings import Facts, Finding

# Neither torch nor NCCL has ever read one of these: the timeout is an argument of init_process_group.
_UNREAD = (
    "NCCL_TIMEOUT", "NCCL_TIMEOUT_MS", "NCCL_TIMEOUT_SEC", "NCCL_TIMEOUT_SECONDS", "NCCL_COMM_TIMEOUT",
    "NCCL_COLLECTIVE_TIMEOUT", "TORCH_NCCL_TIMEOUT", "TORCH_NCCL_TIMEOUT_SEC", "TORCH_NCCL_TIMEOUT_MS",
    "TORCH_NCCL_COLLECTIVE_TIMEOUT", "TORCH_DISTRIBUTED_TIMEOUT", "TORCH_DIST_TIMEOUT", "TORCH_TIMEOUT",
    "TORCH_DISTRIBUTED_DEFAULT_TIMEOUT", "PYTORCH_NCCL_TIMEOUT", "GLOO_TIMEOUT", "GLOO_TIMEOUT_SECONDS",
    "TORCH_GLOO_TIMEOUT", "DEEPSPEED_COMM_TIMEOUT",
)  # fmt: skip

_IB_MOST = 31  # five bits: 4.096 us x 2^value
_MINUTES_MOST = 600  # ten hours; who writes more has meant seconds
_HEARTBEAT_LEAST_S = 60


def unread_timeout(facts: Facts) -> Iterator[Finding]:
    """A timeout in a variable that nobody reads."""
    for name in _UNREAD:
        if found := setting(facts, name):
            yield Finding(
                "unread_timeout",
                "warning",
                f"{name}={found.value} has no effect: neither torch nor NCCL reads it",
                "Collectives still time out after torch's default, 10 minutes with NCCL and 30 with gloo, unless your "
                "own script reads the variable.",
                f"{found.unset}; init_process_group(timeout=timedelta(seconds=...)), in Transformers "
                "TrainingArguments(ddp_timeout=...), in DeepSpeed DEEPSPEED_TIMEOUT (minutes)",
                found.where,
            )


def misread_timeout(facts: Facts) -> Iterator[Finding]:
    """A timeout that is read, and as something else."""
    if (found := setting(facts, "NCCL_IB_TIMEOUT")) and not 1 <= found.number <= _IB_MOST:
        yield _misread(
            found,
            f"NCCL_IB_TIMEOUT={found.value} is not in seconds: it is the n of 4.096 us x 2^n, from 1 to {_IB_MOST}",
            "The card takes its lowest five bits, which may be a few microseconds: connections then break under load.",
            "export NCCL_IB_TIMEOUT=22  # 17 s a try, with NCCL_IB_RETRY_CNT tries",
        )
    if (found := setting(facts, "DEEPSPEED_TIMEOUT")) and found.number > _MINUTES_MOST:
        yield _misread(
            found,
            f"DEEPSPEED_TIMEOUT={found.value} is in minutes: {found.number / 60:.0f} hours",
            "A hang holds all cards for as long.",
            "export DEEPSPEED_TIMEOUT=30",
        )
    if (found := setting(facts, "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC")) and found.number < _HEARTBEAT_LEAST_S:
        yield _misread(
            found,
            f"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC={found.value} is not the timeout of collectives: it ends the process "
            "when torch's watchdog thread is stuck that long",
            "A healthy process is killed while a long CUDA call holds the watchdog up; collectives time out as before.",
            f"{found.unset}; give the collectives' timeout to init_process_group(timeout=...)",
        )


def _misread(found: Setting, what: str, why: str, do: str) -> Finding:
    return Finding("misread_timeout", "warning", what, why, do, found.where)
