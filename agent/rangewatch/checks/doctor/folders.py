"""Folders that variables name and that are not there, and limits of the machine or its container: shared memory,
locked memory, open files.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

from rangewatch.checks.doctor.findings import Details, Finding
from rangewatch.checks.doctor.machine import Machine
from rangewatch.checks.doctor.variables import builds_for_cuda

MOST = 50

SEARCHED = ("PATH", "LD_LIBRARY_PATH")
MADE_WHEN_NEEDED = ("HF_HOME", "TORCH_HOME", "TORCH_EXTENSIONS_DIR", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")
NEEDED = ("TMPDIR", "CUDA_HOME", "CUDA_PATH")


def missing_folders(machine: Machine) -> list[dict[str, Any]]:
    """`variable`, `path`, and whether who uses it could make it (`can_be_made`); at most 50."""
    named = [(variable, path) for variable in SEARCHED for path in machine.entries(variable)]
    named += [(variable, path) for variable in (*NEEDED, *MADE_WHEN_NEEDED) if (path := machine.environ.get(variable))]
    absent = [each for each in named if each[1].startswith("/") and not machine.is_folder(each[1])]
    return [
        {"variable": variable, "path": path, "can_be_made": _can_be_made(machine, path)}
        for variable, path in absent[:MOST]
    ]


def _can_be_made(machine: Machine, path: str) -> bool:
    """Whether the nearest thing above it that exists is a folder that we may write to."""
    above = next((str(each) for each in PurePosixPath(path).parents if machine.exists(str(each))), "/")
    return machine.is_folder(above) and os.access(machine.at(above), os.W_OK)


# NVIDIA's container images name these on every start, for drivers that put libraries there; most no longer do.
_OFTEN_ABSENT = re.compile(r"/usr/local/nvidia/(bin|lib|lib64)$")
_OF_CUDA = re.compile(r"cuda|nccl|cudnn|nvidia|mpi|libfabric|efa", re.IGNORECASE)

_WHY = {
    "PATH": "A program that should come from there comes from elsewhere: another toolkit's nvcc, for one.",
    "LD_LIBRARY_PATH": "A library that should come from there comes from elsewhere, in another version.",
    "TMPDIR": "Python and compilers then write to /tmp without a word, which may be small.",
    "CUDA_HOME": "torch and DeepSpeed look for nvcc only there: no extension can be built.",
    "CUDA_PATH": "torch and DeepSpeed look for nvcc only there where CUDA_HOME is not set: no extension can be built.",
}
_WHY_CACHE = (
    "What should be kept there cannot be: downloads and compiled kernels fail, or are made again at each start."
)


def missing_folder(details: Details) -> Iterator[Finding]:
    """Those that somebody needs. Of PATH and LD_LIBRARY_PATH only folders of CUDA and the network: others lie dead."""
    for absent in details["missing_folders"]:
        if _matters(absent):
            yield _missing(absent, builds=builds_for_cuda(details))


def _matters(absent: dict[str, Any]) -> bool:
    variable, path = absent["variable"], absent["path"]
    if variable in ("PATH", "LD_LIBRARY_PATH"):
        return bool(_OF_CUDA.search(path)) and not _OFTEN_ABSENT.match(path)
    return variable in _WHY or not absent["can_be_made"]


def _missing(absent: dict[str, Any], *, builds: bool) -> Finding:
    variable, path = absent["variable"], absent["path"]
    is_searched, is_toolkit = variable in ("PATH", "LD_LIBRARY_PATH"), variable in ("CUDA_HOME", "CUDA_PATH")
    if is_searched:
        do = f"remove {path} from {variable}, or correct it"
    else:
        do = f"unset {variable}  # or name the right folder" if is_toolkit else f"mkdir -p {path}"
    return Finding(
        "missing_folder",
        ("error" if builds else "info") if is_toolkit else "warning",
        f"{variable} names {path}, which is not there",
        _WHY.get(variable, _WHY_CACHE),
        do,
        variable,
    )


MIB = 1 << 20
SHM = "/dev/shm"  # noqa: S108  # named, not written to
SHM_LEAST_BYTES = 512 * MIB  # Docker's default is 64 MiB; NCCL alone takes some 10 MB a pair of ranks
MEMLOCK_LEAST_BYTES = 1 << 30  # NCCL registers its buffers with the card: some hundred MB a rank
NOFILE_LEAST = 1024  # the usual default; tensors from worker processes are files


def small_shared_memory(details: Details) -> Iterator[Finding]:
    """Shared memory is small, or full."""
    size, free = details["host"].get("shm_bytes"), details["host"].get("shm_free_bytes")
    if size is None or free is None or min(size, free) >= SHM_LEAST_BYTES:
        return
    is_full = size >= SHM_LEAST_BYTES
    yield Finding(
        "small_shared_memory",
        "warning",
        f"{SHM} has {free // MIB} MiB free of {size // MIB} MiB",
        'DataLoader workers end with "bus error", and NCCL fails with "No space left on device" or becomes slow.',
        "ls -lhS /dev/shm  # remove what ended jobs have left"
        if is_full
        else "docker run --shm-size=8g ...  # or --ipc=host",
        SHM,
    )


def little_locked_memory(details: Details) -> Iterator[Finding]:
    """Too little memory may be locked for InfiniBand."""
    limit = details["host"].get("memlock_bytes", None)
    has_port = any(port["state"] == "ACTIVE" for port in details["infiniband"]["ports"])
    if has_port and limit is not None and limit < MEMLOCK_LEAST_BYTES and not details["host"]["is_root"]:
        yield Finding(
            "little_locked_memory",
            "warning",
            f"This process may lock {limit // 1024} KiB of memory, and an InfiniBand port is up",
            'NCCL fails with "ibv_reg_mr failed: Cannot allocate memory" when it connects.',
            "ulimit -l unlimited  # in a container: docker run --ulimit memlock=-1",
            "ulimit -l",
        )


def few_open_files(details: Details) -> Iterator[Finding]:
    """Few files may be open."""
    limit = details["host"].get("nofile")
    if limit is not None and limit < NOFILE_LEAST:
        yield Finding(
            "few_open_files",
            "info",
            f"This process may have {limit} files open",
            'Many DataLoader workers, or NCCL with many ranks by TCP, end with "too many open files".',
            "ulimit -n 65536",
            "ulimit -n",
        )
