"""Every CUDA toolkit that can be found, its version, and the one that extensions would be built with."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

from rangewatch.doctor.machine import Machine

NVCC_TIMEOUT_S = 5.0
MOST = 20  # toolkits that are told of

_LIBRARY_FOLDERS = ("lib64", "lib", "targets")
_HEADERS = (
    "include/cuda_runtime.h",
    "targets/x86_64-linux/include/cuda_runtime.h",
    "targets/sbsa-linux/include/cuda_runtime.h",
)


def toolkits(machine: Machine, *, deep: bool) -> list[dict[str, Any]]:
    """Each toolkit once, by its real folder: `path`, `version`, `found_by`, `has_nvcc`, `has_headers`, compiler limits.

    With `deep`, an nvcc is asked for its version where no file tells.
    """
    found: dict[str, dict[str, Any]] = {}
    for source, path in _candidates(machine):
        real = machine.resolved(path)
        if real not in found and len(found) < MOST and _is_toolkit(machine, real):
            found[real] = {"path": real, "found_by": []} | _about(machine, real, deep=deep)
        if real in found and source not in found[real]["found_by"]:
            found[real]["found_by"].append(source)
    return list(found.values())


def toolkit_of(machine: Machine, found: list[dict[str, Any]]) -> dict[str, str]:
    """The folder of the toolkit that each variable leads to: the first of those that it names."""
    there = {toolkit["path"] for toolkit in found}
    first: dict[str, str] = {}
    for source, path in _candidates(machine):
        if source.isupper() and source not in first and (real := machine.resolved(path)) in there:
            first[source] = real
    return first


def nvcc(machine: Machine, *, deep: bool) -> dict[str, Any] | None:
    """The nvcc that the shell would run: `path`, `version` (None where no file tells and it may not be asked)."""
    path = machine.which("nvcc")
    if path is None:
        return None
    home = str(PurePosixPath(machine.resolved(path)).parent.parent)
    asked = _asked(machine, path) if deep else None
    return {"path": path, "version": asked or _version(machine, home)}


def build_home(machine: Machine, *, deep: bool) -> dict[str, Any] | None:
    """The toolkit that torch.utils.cpp_extension, and with it DeepSpeed, builds with; by torch's own order."""
    for source in ("CUDA_HOME", "CUDA_PATH"):
        if path := machine.environ.get(source):
            return {"path": path, "found_by": source} | _about(machine, path, deep=deep)
    if path := machine.which("nvcc"):
        home = str(PurePosixPath(path).parent.parent)  # torch does not follow links here
        return {"path": home, "found_by": "PATH"} | _about(machine, home, deep=deep)
    if machine.exists("/usr/local/cuda"):
        return {"path": "/usr/local/cuda", "found_by": "/usr/local"} | _about(machine, "/usr/local/cuda", deep=deep)
    return None


def _candidates(machine: Machine) -> Iterator[tuple[str, str]]:
    for variable in ("CUDA_HOME", "CUDA_PATH", "CUDA_ROOT"):
        if path := machine.environ.get(variable):
            yield variable, path
    for folder in machine.entries("PATH"):
        if machine.which(f"{folder}/nvcc"):
            yield "PATH", str(PurePosixPath(machine.resolved(f"{folder}/nvcc")).parent.parent)
    for folder in machine.entries("LD_LIBRARY_PATH"):
        yield "LD_LIBRARY_PATH", _home_of_library(folder)
    for folder in ("/usr/local", "/opt", "/opt/nvidia"):
        for name in machine.names(folder, "cuda*"):
            yield folder, f"{folder}/{name}"
    if prefix := machine.environ.get("CONDA_PREFIX"):
        yield "CONDA_PREFIX", prefix


def _home_of_library(folder: str) -> str:
    """`/usr/local/cuda/lib64` and `/usr/local/cuda/targets/x86_64-linux/lib` are of `/usr/local/cuda`."""
    path = PurePosixPath(folder)
    return next((str(each.parent) for each in (path, *path.parents) if each.name in _LIBRARY_FOLDERS), folder)


def _is_toolkit(machine: Machine, path: str) -> bool:
    # /usr has an nvcc where a distribution packages it; any other prefix with only a library is a toolkit's runtime.
    return bool(
        machine.exists(f"{path}/bin/nvcc")
        or _has_headers(machine, path)
        or machine.exists(f"{path}/version.json")
        or machine.names(f"{path}/lib64", "libcudart.so*")
    )


def _about(machine: Machine, path: str, *, deep: bool) -> dict[str, Any]:
    nvcc_path = f"{path}/bin/nvcc"
    has_nvcc = machine.exists(nvcc_path)
    version = _version(machine, path) or (_asked(machine, nvcc_path) if deep and has_nvcc else None)
    return {
        "version": version,
        "has_nvcc": has_nvcc,
        "has_headers": _has_headers(machine, path),
        "compiler_limits": _compiler_limits(machine, path),
    }


def _has_headers(machine: Machine, path: str) -> bool:
    return any(machine.exists(f"{path}/{header}") for header in _HEADERS)


def _version(machine: Machine, path: str) -> str | None:
    """Major and minor, such as "12.4", from the files that NVIDIA puts into a toolkit."""
    for read in (_from_json, _from_text, _from_header):
        if version := read(machine, path):
            return version
    return None


def _from_json(machine: Machine, path: str) -> str | None:
    try:
        about = json.loads(machine.text(f"{path}/version.json") or "{}")
        version = (about.get("cuda_nvcc") or about.get("cuda") or {}).get("version")
    except (ValueError, AttributeError, RecursionError):
        return None
    return _two_parts(version)


def _from_text(machine: Machine, path: str) -> str | None:
    return _two_parts(machine.text(f"{path}/version.txt"))


def _from_header(machine: Machine, path: str) -> str | None:
    define = re.search(r"#define\s+CUDA_VERSION\s+(\d{4,6})\b", machine.text(f"{path}/include/cuda.h"))
    number = int(define.group(1)) if define else 0
    return f"{number // 1000}.{number % 1000 // 10}" if number else None


def _asked(machine: Machine, nvcc_path: str) -> str | None:
    release = re.search(r"release (\d+\.\d+)", machine.run([nvcc_path, "--version"], NVCC_TIMEOUT_S))
    return release.group(1) if release else None


def _two_parts(text: object) -> str | None:
    found = re.search(r"\d+\.\d+", text) if isinstance(text, str) else None
    return found.group() if found else None


def _compiler_limits(machine: Machine, path: str) -> dict[str, int]:
    """The newest majors that this nvcc takes as host compiler: its own header says so, and stops the build."""
    header = machine.text(f"{path}/include/crt/host_config.h")
    gcc = re.search(r"gcc versions later than (\d+) are not supported", header)
    clang = re.search(r"\bclang version must be less than (\d+)", header)
    limits = {"gcc": int(gcc.group(1)) if gcc else 0, "clang": int(clang.group(1)) - 1 if clang else 0}
    return {kind: limit for kind, limit in limits.items() if limit}
