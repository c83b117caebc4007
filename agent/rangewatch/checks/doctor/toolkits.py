"""Every CUDA toolkit that can be found, its version, and the one that extensions would be built with.

The host compilers that nvcc and torch's extension builder would use.

CUDA toolkits: which one builds extensions, whether it fits torch, and libraries that are there twice.

The host compiler against what nvcc takes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

from rangewatch.checks.doctor.findings import Details, Finding
from rangewatch.checks.doctor.machine import Machine
from rangewatch.checks.doctor.variables import builds_for_cuda, version

NVCC_TIMEOUT_S = 5.0
MOST = 20  # toolkits that are listed

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
    by_path: dict[str, dict[str, Any]] = {}
    for source, path in _candidates(machine):
        real = machine.resolved(path)
        if real not in by_path and len(by_path) < MOST and _is_toolkit(machine, real):
            by_path[real] = {"path": real, "found_by": []} | _about(machine, real, deep=deep)
        if real in by_path and source not in by_path[real]["found_by"]:
            by_path[real]["found_by"].append(source)
    return list(by_path.values())


def toolkit_of(machine: Machine, installed: list[dict[str, Any]]) -> dict[str, str]:
    """The folder of the toolkit that each variable leads to: the first of those that it names."""
    there = {toolkit["path"] for toolkit in installed}
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
    match = re.search(r"\d+\.\d+", text) if isinstance(text, str) else None
    return match.group() if match else None


def _compiler_limits(machine: Machine, path: str) -> dict[str, int]:
    """The newest majors that this nvcc takes as host compiler: its own header says so, and stops the build."""
    header = machine.text(f"{path}/include/crt/host_config.h")
    gcc = re.search(r"gcc versions later than (\d+) are not supported", header)
    clang = re.search(r"\bclang version must be less than (\d+)", header)
    limits = {"gcc": int(gcc.group(1)) if gcc else 0, "clang": int(clang.group(1)) - 1 if clang else 0}
    return {kind: limit for kind, limit in limits.items() if limit}


COMPILER_TIMEOUT_S = 5.0


def compilers(machine: Machine, *, deep: bool) -> dict[str, dict[str, Any]]:
    """By use: `cxx` (torch: CXX or c++) and `nvcc_host` (nvcc: CC, which torch hands on, or g++).

    Each has `path`, `kind` ("gcc", "clang" or "") and `major` (None where it is not known). Without `deep` no compiler
    is run: where its file is named after its version, as distributions do, that is taken.
    """
    environ = machine.environ
    programs = {"cxx": environ.get("CXX") or "c++", "nvcc_host": environ.get("CC") or "g++"}
    by_use: dict[str, dict[str, Any]] = {}
    for use, program in programs.items():
        parts = program.split()  # CXX="ccache g++" names the compiler last
        path = machine.which(parts[-1]) if parts else None
        if path is not None:
            by_use[use] = {"path": path} | (_asked_compiler(machine, path) if deep else _by_name(machine, path))
    return by_use


def _asked_compiler(machine: Machine, path: str) -> dict[str, Any]:
    first = machine.run([path, "--version"], COMPILER_TIMEOUT_S).split("\n", 1)[0]
    if clang := re.search(r"clang version (\d+)", first):
        return {"kind": "clang", "major": int(clang.group(1)), "version": first[:200]}
    # "g++ (Debian 12.2.0-14) 12.2.0": what is in brackets is the packager's, whatever digits it has
    gcc = re.search(r"\b(\d+)\.\d+", re.sub(r"\([^)]*\)", "", first))
    return {"kind": "gcc" if gcc else "", "major": int(gcc.group(1)) if gcc else None, "version": first[:200]}


def _by_name(machine: Machine, path: str) -> dict[str, Any]:
    name = PurePosixPath(machine.resolved(path)).name
    match = re.search(r"(clang|g\+\+|gcc|c\+\+)-(\d+)$", name)
    if match is None:
        return {"kind": "", "major": None, "version": None}
    return {"kind": "clang" if match.group(1) == "clang" else "gcc", "major": int(match.group(2)), "version": None}


# Within these, torch and DeepSpeed build with another minor version than torch's own. DeepSpeed lists no later major.
_MINOR_MAY_DIFFER = (11, 12)


def two_toolkits(details: Details) -> Iterator[Finding]:
    """PATH, CUDA_HOME and LD_LIBRARY_PATH lead to toolkits of different versions. Others may lie there unused."""
    by_path = {toolkit["path"]: toolkit for toolkit in details["toolkits"] if toolkit["version"]}
    first = {source: by_path[path] for source, path in details["toolkit_of"].items() if path in by_path}
    if not builds_for_cuda(details) or len({toolkit["version"] for toolkit in first.values()}) < 2:
        return
    reported = ", ".join(f"{source} leads to {each['version']} ({each['path']})" for source, each in first.items())
    home = _fitting(details, list(first.values()))["path"]
    yield Finding(
        "two_toolkits",
        "warning",
        f"Two CUDA toolkits are in use: {reported}",
        "What is compiled with one and runs with the other's libraries fails to load, or crashes. torch builds with "
        "CUDA_HOME, build scripts with the nvcc on PATH.",
        f"export CUDA_HOME={home} PATH={home}/bin:$PATH LD_LIBRARY_PATH={home}/lib64:$LD_LIBRARY_PATH",
        ", ".join(first),
    )


def toolkit_mismatch(details: Details) -> Iterator[Finding]:
    """The toolkit that extensions are built with is not of torch's version."""
    wanted, home = details["torch"]["cuda"], details["build_home"]
    has = version(home["version"])[:2] if home else ()
    needs = version(wanted)[:2]
    if home is None or not has or not needs or has == needs:
        return
    is_accepted = has[0] == needs[0] and (has[0] in _MINOR_MAY_DIFFER or not details["deepspeed"]["version"])
    yield Finding(
        "toolkit_minor_mismatch" if is_accepted else "toolkit_mismatch",
        "info" if is_accepted else "error",
        f"torch is built for CUDA {wanted}, and the toolkit that extensions are built with is {home['version']} "
        f"({home['path']}, by {home['found_by']})",
        "Versions of one major fit together; features of the newer one may be missing."
        if is_accepted
        else "torch.utils.cpp_extension and DeepSpeed refuse to build their operators (fused Adam, CPU Adam, ...) "
        "with it: training stops when the first one is needed.",
        _toolkit_to_type(details, needs),
        home["found_by"],
    )


def toolkit_incomplete(details: Details) -> Iterator[Finding]:
    """The folder that torch takes for the toolkit has no compiler or no headers: a wrapper script elsewhere, often."""
    home = details["build_home"]
    if home is None or details["torch"]["cuda"] is None or (home["has_nvcc"] and home["has_headers"]):
        return
    lacks = "nvcc (bin/nvcc)" if not home["has_nvcc"] else "headers (include/cuda_runtime.h)"
    whole = [toolkit for toolkit in details["toolkits"] if toolkit["has_nvcc"] and toolkit["has_headers"]]
    best = _fitting(details, whole)["path"] if whole else None
    yield Finding(
        "toolkit_incomplete",
        "warning",
        f"torch takes {home['path']} for the CUDA toolkit (by {home['found_by']}), and that has no {lacks}",
        "Extensions, DeepSpeed's operators among them, do not compile there.",
        f"export CUDA_HOME={best}" if best else "install a whole CUDA toolkit and export CUDA_HOME=<its folder>",
        home["found_by"],
    )


def library_twice(details: Details) -> Iterator[Finding]:
    """One of NVIDIA's libraries is loaded from two files."""
    for name, paths in details["loaded_libraries"].items():
        if len(paths) > 1:
            yield Finding(
                "library_twice",
                "warning",
                f"This process has loaded {name} twice: {' and '.join(paths)}",
                "Two copies keep two states: NCCL then may hang or fail, cuBLAS may fail to start.",
                f"remove {paths[-1].rpartition('/')[0]} from LD_LIBRARY_PATH, or uninstall one of the two packages",
                "LD_LIBRARY_PATH",
            )


def _fitting(details: Details, toolkits: list[dict[str, Any]]) -> dict[str, Any]:
    """The one of torch's version, else of its major, else the first."""
    wanted = version(details["torch"]["cuda"])
    return max(
        toolkits,
        key=lambda each: (version(each["version"])[:2] == wanted[:2], version(each["version"])[:1] == wanted[:1]),
    )


def _toolkit_to_type(details: Details, needs: tuple[int, ...]) -> str:
    there = [each for each in details["toolkits"] if version(each["version"])[:2] == needs and each["has_nvcc"]]
    if there:
        return f"export CUDA_HOME={there[0]['path']} PATH={there[0]['path']}/bin:$PATH"
    wanted = ".".join(str(part) for part in needs)
    return f"install the CUDA {wanted} toolkit and export CUDA_HOME=<its folder>"


# Newest gcc and clang by toolkit, as in its include/crt/host_config.h; used where that file is not there.
_NEWEST = {
    (11, 0): (9, 9), (11, 1): (10, 10), (11, 2): (10, 11), (11, 3): (10, 11), (11, 4): (11, 12), (11, 5): (11, 12),
    (11, 6): (11, 13), (11, 7): (11, 13), (11, 8): (11, 14), (12, 0): (12, 14), (12, 1): (12, 15), (12, 2): (12, 15),
    (12, 3): (12, 16), (12, 4): (13, 17), (12, 5): (13, 17), (12, 6): (13, 18), (12, 8): (14, 19), (12, 9): (14, 19),
    (13, 0): (15, 20),
}  # fmt: skip

_VARIABLES = {"cxx": ("CXX", "g++-{0}", "clang++-{0}"), "nvcc_host": ("CC", "gcc-{0}", "clang-{0}")}


def compiler_too_new(details: Details) -> Iterator[Finding]:
    """The compiler is newer than any that the toolkit's nvcc takes. Once, where both uses have the same."""
    home = details["build_home"]
    if home is None or not builds_for_cuda(details):
        return
    seen = set()
    for use, compiler in details["compilers"].items():
        kind, major = compiler["kind"], compiler["major"]
        limit = _limits(home).get(kind)
        if major is None or limit is None or major <= limit or (kind, major) in seen:
            continue
        seen.add((kind, major))
        yield _too_new(use, compiler, limit, home["version"] or home["path"])


def _too_new(use: str, compiler: dict[str, object], limit: int, toolkit: str) -> Finding:
    variable, gcc, clang = _VARIABLES[use]
    name = (clang if compiler["kind"] == "clang" else gcc).format(limit)
    cxx = name.replace("gcc", "g++")
    return Finding(
        "compiler_too_new",
        "error",
        f"{compiler['path']} is {compiler['kind']} {compiler['major']}; nvcc of CUDA {toolkit} takes {limit} at most",
        "Its headers stop the build with \"unsupported GNU version\": torch's extensions and DeepSpeed's operators do "
        "not compile, and training stops when the first one is needed.",
        f"export CC={name} CXX={cxx}  # after: apt install {cxx}, or conda install gxx={limit}",
        variable,
    )


def _limits(home: dict[str, object]) -> dict[str, int]:
    limits = home["compiler_limits"]
    if isinstance(limits, dict) and limits:
        return limits
    newest = _NEWEST.get(tuple(version(home["version"])[:2]))  # type: ignore[arg-type]
    return {"gcc": newest[0], "clang": newest[1]} if newest else {}
