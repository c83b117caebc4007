"""The variables that change how training runs, without anything that may be a secret; NCCL's own files too."""

from __future__ import annotations

import re
from typing import Any

from rangewatch.doctor.machine import Machine

MOST = 200  # variables
VALUE_CHARACTERS = 512  # of one value

_PREFIXES = (
    "NCCL_", "TORCH", "PYTORCH_", "CUDA_", "CUDNN_", "CUBLAS_", "NVIDIA_", "NVTE_", "OMP_", "MKL_", "GLOO_", "UCX_",
    "FI_", "DS_", "DEEPSPEED_", "ACCELERATE_", "TRITON_", "KINETO_",
)  # fmt: skip
_NAMES = {
    "HF_HOME", "TMPDIR", "LD_PRELOAD", "CC", "CXX", "CONDA_PREFIX", "VIRTUAL_ENV", "MASTER_ADDR", "MASTER_PORT", "RANK",
    "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "SLURM_JOB_ID", "SLURM_PROCID", "SLURM_LOCALID",
    "SLURM_NODEID", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "PYTHONHASHSEED", "MALLOC_CONF",
}  # fmt: skip
_SECRET_NAME = re.compile(r"TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|COOKIE|AUTH|PRIVATE|(?<!IB_P)KEY|_PAT$|SIGNATURE")
_SECRET_VALUE = re.compile(
    r"(?<=://)[^/@\s]+(?=@)"  # user:password of a URL
    r"|\b(?:hf|sk|ghp|gho|ghs|glpat|xox[abprs]|github_pat)[_-][A-Za-z0-9_-]{16,}"
    r"|\bAKIA[0-9A-Z]{16}\b"
    r"|\beyJ[A-Za-z0-9_-]{20,}\.[A-Za-z0-9_.-]+"
)


def variables(machine: Machine) -> dict[str, str]:
    """What is set of the variables of CUDA, NCCL, torch and the like: at most 200, each value cut at 512 characters."""
    names = sorted(name for name in machine.environ if _is_told(name))
    return {name: shown(machine.environ[name]) for name in names[:MOST]}


def shown(value: str) -> str:
    """A value without what looks like a secret in it, cut where it is long."""
    text = _SECRET_VALUE.sub("***", value.encode(errors="replace").decode())
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
    return {name[:100]: shown(value) for name, value in lines[:MOST] if _is_told(name)}


def _is_told(name: str) -> bool:
    return (name in _NAMES or name.startswith(_PREFIXES)) and not _SECRET_NAME.search(name.upper())


def limits(machine: Machine) -> dict[str, Any]:
    """`memlock_bytes` and `nofile`, the soft limits of this process; None is unlimited, a missing one unknown."""
    text = machine.text("/proc/self/limits")
    names = {"memlock_bytes": "Max locked memory", "nofile": "Max open files"}
    found = {key: re.search(rf"{name}\s+(\w+)", text) for key, name in names.items()}
    return {key: None if each.group(1) == "unlimited" else int(each.group(1)) for key, each in found.items() if each}
