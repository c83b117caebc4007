"""Details of this process's environment, as JSON: what the rules look at, and what each rank ships."""

from __future__ import annotations

import math
import os
import platform
import re
import socket
import sys
from importlib import metadata
from typing import Any

from rangewatch.checks.doctor.findings import Details
from rangewatch.checks.doctor.folders import missing_folders
from rangewatch.checks.doctor.gpus import gpus
from rangewatch.checks.doctor.machine import Machine
from rangewatch.checks.doctor.network import infiniband, interfaces
from rangewatch.checks.doctor.toolkits import build_home, compilers, nvcc, toolkit_of, toolkits
from rangewatch.checks.doctor.torch_details import deepspeed, torch_details
from rangewatch.checks.doctor.variables import limits, nccl_files, variables
from rangewatch.core import control_groups

VERSION = 1  # of the shape of the details

MAPS_BYTES = 4 << 20  # of /proc/self/maps: some 40,000 mappings
_LIBRARIES = re.compile(r"/\S*/(lib(?:nccl|cudart|cudnn|cublas|cublasLt|nccl-net)\.so[.\d]*)$", re.MULTILINE)
_PACKAGES = (
    "accelerate", "apex", "datasets", "deepspeed", "flash-attn", "lightning", "nvidia-cublas-cu12",
    "nvidia-cudnn-cu12", "nvidia-nccl-cu12", "nvidia-nccl-cu13", "pytorch-lightning", "rangewatch",
    "transformer-engine", "transformers", "triton",
)  # fmt: skip


def environment(machine: Machine | None = None, *, deep: bool = False) -> Details:
    """The details, every section always there: plain JSON, bounded.

    Without `deep`: files and memory only, some milliseconds; starts no process, imports no torch and never starts CUDA,
    so it may run in a thread beside training. With it: programs are run and torch is asked in a child, some seconds.
    """
    machine = machine or Machine()
    installed = toolkits(machine, deep=deep)
    return {
        "version": VERSION,
        "deep": deep,
        "python": {"version": platform.python_version(), "path": sys.executable},
        "platform": _platform(),
        "host": _host(machine),
        "torch": torch_details(machine, deep=deep),
        "packages": _packages(),
        "gpu": gpus(machine, deep=deep),
        "toolkits": installed,
        "toolkit_of": toolkit_of(machine, installed),
        "nvcc": nvcc(machine, deep=deep),
        "build_home": build_home(machine, deep=deep),
        "compilers": compilers(machine, deep=deep),
        "deepspeed": deepspeed(machine, deep=deep),
        "missing_folders": missing_folders(machine),
        "variables": variables(machine),
        "nccl_files": nccl_files(machine),
        "loaded_libraries": _loaded_libraries(machine),
        "infiniband": infiniband(machine),
        "interfaces": interfaces(machine),
    }


def _platform() -> dict[str, str]:
    return {"system": platform.system(), "release": platform.release(), "machine": platform.machine()}


def _host(machine: Machine) -> dict[str, Any]:
    return (
        {"name": socket.gethostname(), "cpus": _cpus(machine), "is_root": _is_root()} | limits(machine) | _shm(machine)
    )


def _cpus(machine: Machine) -> int:
    """Processors that this process may use: its affinity, and a container's quota where that is less."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = control_groups.cpus(machine.at("/proc"), machine.at("/sys"))
    return allowed if math.isnan(quota) else min(allowed, max(1, int(quota)))


def _is_root() -> bool:
    return hasattr(os, "geteuid") and os.geteuid() == 0


def _shm(machine: Machine) -> dict[str, int]:
    """Size of /dev/shm and what is free of it, in bytes."""
    try:
        stat = os.statvfs(machine.at("/dev/shm"))  # noqa: S108  # looked at, not written to
    except (OSError, AttributeError):
        return {}
    return {"shm_bytes": stat.f_frsize * stat.f_blocks, "shm_free_bytes": stat.f_frsize * stat.f_bavail}


def _packages() -> dict[str, str]:
    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _loaded_libraries(machine: Machine) -> dict[str, list[str]]:
    """Which files of NVIDIA's libraries this process has mapped, by name: the only proof of which one is used."""
    try:
        with machine.at("/proc/self/maps").open("rb") as file:
            maps = file.read(MAPS_BYTES).decode(errors="replace")
    except OSError:
        return {}
    paths_by_name: dict[str, set[str]] = {}
    for match in _LIBRARIES.finditer(maps):
        paths_by_name.setdefault(match.group(1), set()).add(match.group())
    return {name: sorted(paths)[:5] for name, paths in sorted(paths_by_name.items())[:30]}
