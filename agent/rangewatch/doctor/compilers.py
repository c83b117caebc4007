"""The host compilers that nvcc and torch's extension builder would use."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Any

from rangewatch.doctor.machine import Machine

COMPILER_TIMEOUT_S = 5.0


def compilers(machine: Machine, *, deep: bool) -> dict[str, dict[str, Any]]:
    """By use: `cxx` (torch: CXX or c++) and `nvcc_host` (nvcc: CC, which torch hands on, or g++).

    Each has `path`, `kind` ("gcc", "clang" or "") and `major` (None where it is not known). Without `deep` no compiler
    is run: where its file is named after its version, as distributions do, that is taken.
    """
    environ = machine.environ
    programs = {"cxx": environ.get("CXX") or "c++", "nvcc_host": environ.get("CC") or "g++"}
    found: dict[str, dict[str, Any]] = {}
    for use, program in programs.items():
        words = program.split()  # CXX="ccache g++" names the compiler last
        path = machine.which(words[-1]) if words else None
        if path is not None:
            found[use] = {"path": path} | (_asked(machine, path) if deep else _by_name(machine, path))
    return found


def _asked(machine: Machine, path: str) -> dict[str, Any]:
    first = machine.run([path, "--version"], COMPILER_TIMEOUT_S).split("\n", 1)[0]
    if clang := re.search(r"clang version (\d+)", first):
        return {"kind": "clang", "major": int(clang.group(1)), "version": first[:200]}
    # "g++ (Debian 12.2.0-14) 12.2.0": what is in brackets is the packager's, whatever digits it has
    gcc = re.search(r"\b(\d+)\.\d+", re.sub(r"\([^)]*\)", "", first))
    return {"kind": "gcc" if gcc else "", "major": int(gcc.group(1)) if gcc else None, "version": first[:200]}


def _by_name(machine: Machine, path: str) -> dict[str, Any]:
    name = PurePosixPath(machine.resolved(path)).name
    found = re.search(r"(clang|g\+\+|gcc|c\+\+)-(\d+)$", name)
    if found is None:
        return {"kind": "", "major": None, "version": None}
    return {"kind": "clang" if found.group(1) == "clang" else "gcc", "major": int(found.group(2)), "version": None}
