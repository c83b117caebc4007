"""CUDA toolkits: which one builds extensions, whether it fits torch, and libraries that are there twice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rangewatch.doctor.checks.settings import builds_for_cuda, version
from rangewatch.doctor.findings import Facts, Finding

# Within these, torch and DeepSpeed build with another minor version than torch's own. DeepSpeed lists no later major.
_MINOR_MAY_DIFFER = (11, 12)


def two_toolkits(facts: Facts) -> Iterator[Finding]:
    """PATH, CUDA_HOME and LD_LIBRARY_PATH lead to toolkits of different versions. Others may lie there unused."""
    by_path = {toolkit["path"]: toolkit for toolkit in facts["toolkits"] if toolkit["version"]}
    first = {source: by_path[path] for source, path in facts["toolkit_of"].items() if path in by_path}
    if not builds_for_cuda(facts) or len({toolkit["version"] for toolkit in first.values()}) < 2:
        return
    told = ", ".join(f"{source} leads to {each['version']} ({each['path']})" for source, each in first.items())
    home = _fitting(facts, list(first.values()))["path"]
    yield Finding(
        "two_toolkits",
        "warning",
        f"Two CUDA toolkits are in use: {told}",
        "What is compiled with one and runs with the other's libraries fails to load, or crashes. torch builds with "
        "CUDA_HOME, build scripts with the nvcc on PATH.",
        f"export CUDA_HOME={home} PATH={home}/bin:$PATH LD_LIBRARY_PATH={home}/lib64:$LD_LIBRARY_PATH",
        ", ".join(first),
    )


def toolkit_mismatch(facts: Facts) -> Iterator[Finding]:
    """The toolkit that extensions are built with is not of torch's version."""
    wanted, home = facts["torch"]["cuda"], facts["build_home"]
    has = version(home["version"])[:2] if home else ()
    needs = version(wanted)[:2]
    if home is None or not has or not needs or has == needs:
        return
    is_accepted = has[0] == needs[0] and (has[0] in _MINOR_MAY_DIFFER or not facts["deepspeed"]["version"])
    yield Finding(
        "toolkit_minor_mismatch" if is_accepted else "toolkit_mismatch",
        "info" if is_accepted else "error",
        f"torch is built for CUDA {wanted}, and the toolkit that extensions are built with is {home['version']} "
        f"({home['path']}, by {home['found_by']})",
        "Versions of one major fit together; features of the newer one may be missing."
        if is_accepted
        else "torch.utils.cpp_extension and DeepSpeed refuse to build their operators (fused Adam, CPU Adam, ...) "
        "with it: training stops when the first one is needed.",
        _toolkit_to_type(facts, needs),
        home["found_by"],
    )


def toolkit_incomplete(facts: Facts) -> Iterator[Finding]:
    """The folder that torch takes for the toolkit has no compiler or no headers: a wrapper script elsewhere, often."""
    home = facts["build_home"]
    if home is None or facts["torch"]["cuda"] is None or (home["has_nvcc"] and home["has_headers"]):
        return
    lacks = "nvcc (bin/nvcc)" if not home["has_nvcc"] else "headers (include/cuda_runtime.h)"
    whole = [toolkit for toolkit in facts["toolkits"] if toolkit["has_nvcc"] and toolkit["has_headers"]]
    best = _fitting(facts, whole)["path"] if whole else None
    yield Finding(
        "toolkit_incomplete",
        "warning",
        f"torch takes {home['path']} for the CUDA toolkit (by {home['found_by']}), and that has no {lacks}",
        "Extensions, DeepSpeed's operators among them, do not compile there.",
        f"export CUDA_HOME={best}" if best else "install a whole CUDA toolkit and export CUDA_HOME=<its folder>",
        home["found_by"],
    )


def library_twice(facts: Facts) -> Iterator[Finding]:
    """One of NVIDIA's libraries is loaded from two files."""
    for name, paths in facts["loaded_libraries"].items():
        if len(paths) > 1:
            yield Finding(
                "library_twice",
                "warning",
                f"This process has loaded {name} twice: {' and '.join(paths)}",
                "Two copies keep two states: NCCL then may hang or fail, cuBLAS may fail to start.",
                f"remove {paths[-1].rpartition('/')[0]} from LD_LIBRARY_PATH, or uninstall one of the two packages",
                "LD_LIBRARY_PATH",
            )


def _fitting(facts: Facts, toolkits: list[dict[str, Any]]) -> dict[str, Any]:
    """The one of torch's version, else of its major, else the first."""
    wanted = version(facts["torch"]["cuda"])
    return max(
        toolkits,
        key=lambda each: (version(each["version"])[:2] == wanted[:2], version(each["version"])[:1] == wanted[:1]),
    )


def _toolkit_to_type(facts: Facts, needs: tuple[int, ...]) -> str:
    there = [each for each in facts["toolkits"] if version(each["version"])[:2] == needs and each["has_nvcc"]]
    if there:
        return f"export CUDA_HOME={there[0]['path']} PATH={there[0]['path']}/bin:$PATH"
    wanted = ".".join(str(part) for part in needs)
    return f"install the CUDA {wanted} toolkit and export CUDA_HOME=<its folder>"
