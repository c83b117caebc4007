"""Folders that variables name and that are not there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from rangewatch.doctor.checks.settings import builds_for_cuda
from rangewatch.doctor.findings import Facts, Finding

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


def missing_folder(facts: Facts) -> Iterator[Finding]:
    """Those that somebody needs. Of PATH and LD_LIBRARY_PATH only folders of CUDA and the network: others lie dead."""
    for absent in facts["missing_folders"]:
        if _matters(absent):
            yield _missing(absent, builds=builds_for_cuda(facts))


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
