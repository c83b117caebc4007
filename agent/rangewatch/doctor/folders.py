"""Folders that variables name and that are not there."""

from __future__ import annotations

import os
from pathlib import PurePosixPath
from typing import Any

from rangewatch.doctor.machine import Machine

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
