"""The host compiler against what nvcc takes."""

from __future__ import annotations

from collections.abc import Iterator

from rangewatch.doctor.checks.settings import builds_for_cuda, version
from rangewatch.doctor.findings import Facts, Finding

# Newest gcc and clang by toolkit, as in its include/crt/host_config.h; used where that file is not there.
_NEWEST = {
    (11, 0): (9, 9), (11, 1): (10, 10), (11, 2): (10, 11), (11, 3): (10, 11), (11, 4): (11, 12), (11, 5): (11, 12),
    (11, 6): (11, 13), (11, 7): (11, 13), (11, 8): (11, 14), (12, 0): (12, 14), (12, 1): (12, 15), (12, 2): (12, 15),
    (12, 3): (12, 16), (12, 4): (13, 17), (12, 5): (13, 17), (12, 6): (13, 18), (12, 8): (14, 19), (12, 9): (14, 19),
    (13, 0): (15, 20),
}  # fmt: skip

_VARIABLES = {"cxx": ("CXX", "g++-{0}", "clang++-{0}"), "nvcc_host": ("CC", "gcc-{0}", "clang-{0}")}


def compiler_too_new(facts: Facts) -> Iterator[Finding]:
    """The compiler is newer than any that the toolkit's nvcc takes. Once, where both uses have the same."""
    home = facts["build_home"]
    if home is None or not builds_for_cuda(facts):
        return
    seen = set()
    for use, compiler in facts["compilers"].items():
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
