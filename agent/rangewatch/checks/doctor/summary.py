"""The facts in some twenty lines, for a person."""

from __future__ import annotations

from collections.abc import Iterator

from rangewatch.checks.doctor.findings import Facts

_WIDTH = 18
_MOST = 12  # of a list that may be long


def summary(facts: Facts) -> list[str]:
    """One line a fact, name first; what is not known is left out."""
    return [
        f"{name:<{_WIDTH}} {value}" for part in (_torch, _gpus, _building, _surroundings) for name, value in part(facts)
    ]


def _torch(facts: Facts) -> Iterator[tuple[str, str]]:
    torch, python = facts["torch"], facts["python"]
    yield "Python", f"{python['version']} ({python['path']})"
    if not torch["version"]:
        yield (
            "torch",
            "cannot be imported" if torch["installed"] else "not installed" if facts["deep"] else "not loaded",
        )
        return
    yield (
        "torch",
        f"{torch['version']}, CUDA {torch['cuda'] or 'not built in'}"
        + (f" ({torch['path']})" if torch["path"] else ""),
    )
    libraries = [f"{name} {torch[key]}" for key, name in (("nccl", "NCCL"), ("cudnn", "cuDNN")) if torch[key]]
    if libraries:
        yield "its libraries", ", ".join(libraries)
    if torch["arch_list"]:
        yield "built for", " ".join(torch["arch_list"])


def _gpus(facts: Facts) -> Iterator[tuple[str, str]]:
    gpu = facts["gpu"]
    runs = f", runs CUDA {gpu['driver_cuda']} and older" if gpu["driver_cuda"] else ""
    yield "NVIDIA driver", f"{gpu['driver']}{runs}" if gpu["driver"] else "none"
    cards = facts["torch"]["devices"] or gpu["cards"]
    kinds = dict.fromkeys((card["name"], card.get("capability")) for card in cards)
    for name, capability in kinds:
        count = sum(1 for card in cards if card["name"] == name)
        yield "GPU", f"{count} x {name}" + (f", sm_{capability.replace('.', '')}" if capability else "")


def _building(facts: Facts) -> Iterator[tuple[str, str]]:
    for toolkit in facts["toolkits"][:_MOST]:
        yield (
            "CUDA toolkit",
            f"{toolkit['version'] or 'version unknown'} in {toolkit['path']} (by {', '.join(toolkit['found_by'])})",
        )
    if not facts["toolkits"]:
        yield "CUDA toolkit", "none"
    if nvcc := facts["nvcc"]:
        yield "nvcc on PATH", f"{nvcc['version'] or 'version unknown'} ({nvcc['path']})"
    if home := facts["build_home"]:
        yield "torch builds with", f"{home['version'] or 'version unknown'} in {home['path']} (by {home['found_by']})"
    for use, name in (("cxx", "C++ compiler"), ("nvcc_host", "nvcc's compiler")):
        if compiler := facts["compilers"].get(use):
            yield name, f"{compiler['kind']} {compiler['major'] or 'of unknown version'} ({compiler['path']})"
    if facts["deepspeed"]["version"]:
        yield "DeepSpeed", facts["deepspeed"]["version"] + _operators(facts)


def _operators(facts: Facts) -> str:
    ops = facts["deepspeed"]["ops"]
    built = [name for name, op in ops.items() if op["installed"]]
    when_used = [name for name, op in ops.items() if op["compatible"] and not op["installed"]]
    never = [name for name, op in ops.items() if not op["compatible"] and not op["installed"]]
    parts = (("built", built), ("built when used", when_used), ("cannot be built here", never))
    return "".join(f"; {name}: {', '.join(of_them)}" for name, of_them in parts if of_them)


def _surroundings(facts: Facts) -> Iterator[tuple[str, str]]:
    for port in facts["infiniband"]["ports"][:_MOST]:
        yield (
            "InfiniBand",
            f"{port['device']} port {port['port']}: {port['state']}, {port['rate']}, {port['link_layer']}",
        )
    if not facts["infiniband"]["ports"]:
        yield "InfiniBand", "none"
    yield (
        "interfaces",
        ", ".join(f"{name} {state}" for name, state in list(facts["interfaces"].items())[:_MOST]) or "none",
    )
    host = facts["host"]
    if "shm_bytes" in host:
        yield "shared memory", f"{host['shm_free_bytes'] >> 20} MiB free of {host['shm_bytes'] >> 20} MiB"
    yield "processors", str(host["cpus"])
    for name, value in facts["variables"].items():
        if name.startswith(("NCCL_", "TORCH_NCCL_", "TORCH_FR_", "CUDA_", "OMP_", "GLOO_")):
            yield name, value
    for path, settings in facts["nccl_files"].items():
        for name, value in settings.items():
            yield name, f"{value} ({path})"
