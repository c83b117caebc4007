"""The variables that change how training runs, without anything that may be a secret; NCCL's own files too.

A variable as torch or NCCL gets it: the process's own, or for NCCL one of its files; and how they read it.

How torch waits for NCCL, and what it does when a collective fails.

Old names of variables, and values that NCCL cannot read.

Settings for debugging that are left on, and choices taken from NCCL.

How many threads the CPU part of each rank has.

Timeouts of collectives set where nobody reads them, or in the wrong unit.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from rangewatch.checks.doctor.findings import Details, Finding, Severity
from rangewatch.checks.doctor.machine import Machine
from rangewatch.checks.doctor.variable_names import NAMES, PREFIXES
from rangewatch.core.redaction import HIDDEN, redacted

MOST = 200  # variables
VALUE_CHARACTERS = 512  # of one value

_SECRET_NAME = re.compile(r"TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|COOKIE|AUTH|PRIVATE|(?<!IB_P)KEY|_PAT$|SIGNATURE")


def variables(machine: Machine) -> dict[str, str]:
    """What is set of the variables of CUDA, NCCL, torch and the like: at most 200, each value cut at 512 characters.

    Of those that are not known by their whole name, which may be anybody's, the value is `HIDDEN`.
    """
    names = sorted(name for name in machine.environ if _is_reported(name))
    return {name: _value(name, machine.environ[name]) for name in names[:MOST]}


def _value(name: str, value: str) -> str:
    return shown(value) if name in NAMES else HIDDEN


def shown(value: str) -> str:
    """A value without what looks like a secret in it, cut where it is long."""
    text = redacted(value.encode(errors="replace").decode())
    return text if len(text) <= VALUE_CHARACTERS else text[: VALUE_CHARACTERS - 3] + "..."


def nccl_files(machine: Machine) -> dict[str, dict[str, str]]:
    """What NCCL's configuration files set, by file, the stronger file first. They show in no `env`.

    NCCL reads NCCL_CONF_FILE (or ~/.nccl.conf), then /etc/nccl.conf; the process's own variables win over both.
    """
    user = machine.environ.get("NCCL_CONF_FILE") or f"{machine.environ.get('HOME', '/root')}/.nccl.conf"
    files = {path: _settings(machine.text(path)) for path in (user, "/etc/nccl.conf")}
    return {path: settings for path, settings in files.items() if settings}


def _settings(text: str) -> dict[str, str]:
    lines = [line.split("=", 1) for line in text.splitlines() if "=" in line and not line.startswith("#")]
    return {name[:100]: _value(name, value) for name, value in lines[:MOST] if _is_reported(name)}


def _is_reported(name: str) -> bool:
    return (name in NAMES or name.startswith(PREFIXES)) and not _SECRET_NAME.search(name.upper())


def limits(machine: Machine) -> dict[str, Any]:
    """`memlock_bytes` and `nofile`, the soft limits of this process; None is unlimited, a missing one unknown."""
    text = machine.text("/proc/self/limits")
    names = {"memlock_bytes": "Max locked memory", "nofile": "Max open files"}
    matches = {key: re.search(rf"{name}\s+(\w+)", text) for key, name in names.items()}
    return {key: None if each.group(1) == "unlimited" else int(each.group(1)) for key, each in matches.items() if each}


_TRUE = {"1", "y", "yes", "t", "true"}


@dataclass(frozen=True)
class Setting:
    """A variable's value, and where it is set: its name, or a file's path and its name."""

    name: str
    value: str
    where: str

    @property
    def unset(self) -> str:
        """What to type so that it is not set."""
        return (
            f"unset {self.name}" if self.where == self.name else f"remove {self.name} from {self.where.split(':')[0]}"
        )

    @property
    def number(self) -> int:
        """As NCCL reads it: the digits at its beginning, else 0; so "true" is 0."""
        digits = re.match(r"\s*([+-]?)(0[xX][0-9a-fA-F]+|\d+)", self.value)
        if digits is None:
            return 0
        return int(digits.group(1) + "1") * int(digits.group(2), 16 if "x" in digits.group(2).lower() else 10)

    @property
    def is_true(self) -> bool:
        """As torch reads a switch."""
        return self.value.strip().lower() in _TRUE


def setting(details: Details, name: str) -> Setting | None:
    """The variable, wherever it is set; None where it is not set, or empty."""
    if value := details["variables"].get(name):
        return Setting(name, value, name)
    for path, settings in details["nccl_files"].items():
        if name.startswith("NCCL_") and (value := settings.get(name)):
            return Setting(name, value, f"{path}: {name}")
    return None


def ranks_here(details: Details) -> int:
    """How many ranks the launcher started on this machine; 1 where it does not say."""
    value = details["variables"].get("LOCAL_WORLD_SIZE", "")
    return max(1, int(value)) if value.isdecimal() else 1


def builds_for_cuda(details: Details) -> bool:
    """Whether anybody here would compile for CUDA: not with a torch that was built without it."""
    return details["torch"]["cuda"] is not None or not details["torch"]["installed"]


def version(text: object) -> tuple[int, ...]:
    """The numbers of a version: "13.0" is (13, 0), None is ()."""
    match = re.match(r"\d+(?:\.\d+)*", text) if isinstance(text, str) else None
    return tuple(int(part) for part in match.group().split(".")) if match else ()


def waiting(details: Details) -> Iterator[Finding]:
    """Blocking wait on, or the handling of errors off."""
    if (blocking := _either(details, "BLOCKING_WAIT")) and blocking.is_true:
        yield Finding(
            "blocking_wait",
            "warning",
            f"{blocking.name}={blocking.value}: each wait for a collective holds the CPU until the GPU is done",
            "Python then queues no further kernels meanwhile, so steps get slower; and the handling of asynchronous "
            "errors, which ends a hung job by itself, is off with it.",
            blocking.unset,
            blocking.where,
        )
    if (handling := _either(details, "ASYNC_ERROR_HANDLING")) and handling.value.strip() == "0":
        yield Finding(
            "errors_not_handled",
            "warning",
            f"{handling.name}=0: torch does nothing when a collective fails or times out",
            "One rank that dies leaves all others waiting for ever, with their cards reserved.",
            f"{handling.unset}  # torch's default ends the process",
            handling.where,
        )
    monitoring = setting(details, "TORCH_NCCL_ENABLE_MONITORING")
    if monitoring and monitoring.value.strip().lower() in ("0", "n", "no", "f", "false"):
        yield Finding(
            "monitoring_off",
            "info",
            f"TORCH_NCCL_ENABLE_MONITORING={monitoring.value}: nobody watches torch's NCCL watchdog",
            "A process whose watchdog is stuck in CUDA never ends, and writes no flight recorder dump.",
            monitoring.unset,
            monitoring.where,
        )


def _either(details: Details, name: str) -> Setting | None:
    # torch reads the new name first, then the old one
    return setting(details, f"TORCH_NCCL_{name}") or setting(details, f"NCCL_{name}")


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


def deprecated_variable(details: Details) -> Iterator[Finding]:
    """An old name, of a setting that is fine otherwise: nobody should be asked to give a bad one a new name."""
    torch = version(details["torch"]["version"])
    bad = {finding.where for finding in waiting(details)}
    for name, renamed in _RENAMED.items():
        variable = setting(details, name)
        is_old = not renamed.since_torch or not torch or torch >= renamed.since_torch
        if variable and is_old and variable.where not in bad:
            yield _old(variable, renamed)


def unreadable_number(details: Details) -> Iterator[Finding]:
    """A word where NCCL takes a number."""
    for name in _NUMBERS:
        variable = setting(details, name)
        if variable and not re.fullmatch(r"\s*[+-]?(0[xX][0-9a-fA-F]+|\d+)\s*", variable.value):
            yield Finding(
                "unreadable_number",
                "warning",
                f"{name}={variable.value} is no number, and NCCL takes it for {variable.number}",
                "NCCL reads digits only: true, yes and on all mean 0.",
                f"{variable.unset}  # or export {name}=<a number>",
                variable.where,
            )


def _old(variable: Setting, renamed: _Renamed) -> Finding:
    effect = "is deprecated" if renamed.is_read else "has no effect any more"
    return Finding(
        "deprecated_variable",
        renamed.severity,
        f"{variable.name} {effect}" + (f"; it is {renamed.new} now" if renamed.new else ""),
        "It still works, with a warning at each start, until a later version stops reading it."
        if renamed.is_read
        else "What it was set for does not happen.",
        f"{variable.unset}; export {renamed.new}=..."
        if renamed.new and not renamed.is_read
        else _renaming(variable, renamed),
        variable.where,
    )


def _renaming(variable: Setting, renamed: _Renamed) -> str:
    return f"{variable.unset}; export {renamed.new}={variable.value}" if renamed.new else variable.unset


# name, values that are meant (None: any number but 0), severity, what it does, why that matters
_DEBUG: tuple[tuple[str, tuple[str, ...] | None, Severity, str, str], ...] = (
    ("CUDA_LAUNCH_BLOCKING", None, "warning", "makes every kernel launch wait for the kernel",
     "Nothing overlaps any more: steps take up to several times as long. It is for finding the line that fails."),
    ("TORCH_DISTRIBUTED_DEBUG", ("DETAIL",), "warning", "checks every collective with another one before it",
     "Steps get slower with every rank. It is for finding mismatched collectives."),
    ("NCCL_DEBUG", ("TRACE",), "warning", "writes a line for each call",
     "Logs grow by gigabytes, and writing them delays the training thread."),
    ("NCCL_DEBUG", ("INFO",), "info", "writes some hundred lines a rank at each start",
     "No effect on speed; the log of a large job is hard to read."),
    ("PYTORCH_NO_CUDA_MEMORY_CACHING", None, "warning", "switches torch's memory cache off",
     "Each tensor is a cudaMalloc, which waits for the GPU: steps take many times as long."),
    ("CUDA_DEVICE_WAITS_ON_EXCEPTION", None, "warning", "stops at an exception until a debugger comes",
     "A job that fails hangs instead of ending."),
)  # fmt: skip

_PINNED = ("NCCL_ALGO", "NCCL_PROTO", "NCCL_NTHREADS", "NCCL_MAX_NCHANNELS", "NCCL_MIN_NCHANNELS", "NCCL_BUFFSIZE")


def debug_setting(details: Details) -> Iterator[Finding]:
    """What is for debugging and costs time in training."""
    for name, values, severity, does, why in _DEBUG:
        variable = setting(details, name)
        if variable and (variable.value.strip().upper() in values if values else variable.number):
            what = f"{name}={variable.value} {does}"
            yield Finding("debug_setting", severity, what, why, variable.unset, variable.where)


def pinned_algorithm(details: Details) -> Iterator[Finding]:
    """What NCCL would choose by size and topology, and may not."""
    pinned = [each for name in _PINNED if (each := setting(details, name))]
    if pinned:
        names = ", ".join(f"{each.name}={each.value}" for each in pinned)
        yield Finding(
            "pinned_algorithm",
            "info",
            f"{names} takes a choice from NCCL",
            "What was best on another machine, or with another NCCL, is often slower here. All ranks need the same.",
            "; ".join(each.unset for each in pinned) + "  # then compare busbw: rangewatch linkcheck",
            ", ".join(each.where for each in pinned),
        )


_NAME = "OMP_NUM_THREADS"


def thread_count(details: Details) -> Iterator[Finding]:
    """OMP_NUM_THREADS that is no number, or more threads than processors. 1 is what torchrun sets, and no fault."""
    value = details["variables"].get(_NAME)
    if value is None:
        return
    cpus, ranks = details["host"]["cpus"], ranks_here(details)
    best = max(1, cpus // ranks)
    if not re.fullmatch(r"\s*[1-9]\d*\s*(,\s*[1-9]\d*\s*)*", value):
        yield Finding(
            "thread_count",
            "warning",
            f"{_NAME}={value!r} is no number of threads",
            "OpenMP ignores it: each rank then takes all processors, and ranks slow each other down.",
            f"export {_NAME}={best}",
            _NAME,
        )
    elif (threads := int(value.split(",")[0])) > 1 and threads * ranks > cpus:
        yield Finding(
            "thread_count",
            "warning",
            f"{_NAME}={value} and {ranks} rank{'s' * (ranks > 1)} here: {threads * ranks} threads on {cpus} processors",
            "Threads wait for each other: data loading and CPU optimizers get slower, not faster.",
            f"export {_NAME}={best}",
            _NAME,
        )


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


def unread_timeout(details: Details) -> Iterator[Finding]:
    """A timeout in a variable that nobody reads."""
    for name in _UNREAD:
        if variable := setting(details, name):
            yield Finding(
                "unread_timeout",
                "warning",
                f"{name}={variable.value} has no effect: neither torch nor NCCL reads it",
                "Collectives still time out after torch's default, 10 minutes with NCCL and 30 with gloo, unless your "
                "own script reads the variable.",
                f"{variable.unset}; init_process_group(timeout=timedelta(seconds=...)), in Transformers "
                "TrainingArguments(ddp_timeout=...), in DeepSpeed DEEPSPEED_TIMEOUT (minutes)",
                variable.where,
            )


def misread_timeout(details: Details) -> Iterator[Finding]:
    """A timeout that is read, and as something else."""
    if (variable := setting(details, "NCCL_IB_TIMEOUT")) and not 1 <= variable.number <= _IB_MOST:
        yield _misread(
            variable,
            f"NCCL_IB_TIMEOUT={variable.value} is not in seconds: it is the n of 4.096 us x 2^n, from 1 to {_IB_MOST}",
            "The card takes its lowest five bits, which may be a few microseconds: connections then break under load.",
            "export NCCL_IB_TIMEOUT=22  # 17 s a try, with NCCL_IB_RETRY_CNT tries",
        )
    if (variable := setting(details, "DEEPSPEED_TIMEOUT")) and variable.number > _MINUTES_MOST:
        yield _misread(
            variable,
            f"DEEPSPEED_TIMEOUT={variable.value} is in minutes: {variable.number / 60:.0f} hours",
            "A hang holds all cards for as long.",
            "export DEEPSPEED_TIMEOUT=30",
        )
    if (variable := setting(details, "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC")) and variable.number < _HEARTBEAT_LEAST_S:
        yield _misread(
            variable,
            f"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC={variable.value} is not the timeout of collectives: it ends the process "
            "when torch's watchdog thread is stuck that long",
            "A healthy process is killed while a long CUDA call holds the watchdog up; collectives time out as before.",
            f"{variable.unset}; give the collectives' timeout to init_process_group(timeout=...)",
        )


def _misread(variable: Setting, what: str, why: str, do: str) -> Finding:
    return Finding("misread_timeout", "warning", what, why, do, variable.where)
