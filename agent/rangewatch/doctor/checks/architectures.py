"""Torch against the driver and the cards."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rangewatch.doctor.checks.settings import version
from rangewatch.doctor.findings import Facts, Finding

# The oldest Linux driver that runs any CUDA of the major: minor versions are compatible from there on.
_OLDEST_DRIVER = {11: (450, 80, 2), 12: (525, 60, 13), 13: (580, 65, 6)}
_START = "https://pytorch.org/get-started/locally"


def torch_broken(facts: Facts) -> Iterator[Finding]:
    """Torch is installed and cannot be imported."""
    error = facts["torch"]["error"]
    if error:
        yield Finding(
            "torch_broken",
            "error",
            f"torch is installed and cannot be imported: {error}",
            "Nothing trains. Often a library of another CUDA comes first by LD_LIBRARY_PATH.",
            "env -u LD_LIBRARY_PATH python -c 'import torch'  # if that fails too, install torch anew",
            "torch",
        )


def gpu_unused(facts: Facts) -> Iterator[Finding]:
    """There are cards and this torch cannot use any."""
    torch, gpu = facts["torch"], facts["gpu"]
    if gpu["nvml_error"]:
        yield Finding(
            "driver_fault",
            "error",
            f"The driver does not answer: {gpu['nvml_error']}",
            "A driver that was updated under a running kernel, or a card that is lost, fails every CUDA program.",
            "nvidia-smi  # then restart the machine, or ask who runs it",
            "driver",
        )
    if not gpu["cards"] or not torch["version"] or torch["hip"]:
        return
    if torch["cuda"] is None:
        yield Finding(
            "torch_without_cuda",
            "error",
            f"torch {torch['version']} is built without CUDA, and there are {len(gpu['cards'])} NVIDIA cards",
            "Training runs on the CPU, or stops at the first .cuda().",
            f"install torch for CUDA {gpu['driver_cuda'] or 'of your driver'} or older: {_START}",
            "torch",
        )
    elif torch["cuda_available"] is False and not _hidden(facts):
        told = f": {torch['warnings'][0]}" if torch.get("warnings") else ""
        yield Finding(
            "cuda_unavailable",
            "error",
            f"torch sees no GPU, and there are {len(gpu['cards'])} NVIDIA cards{told}",
            "Training runs on the CPU, or stops at the first .cuda().",
            "python -c 'import torch; torch.zeros(1).cuda()'  # says why",
            "torch",
        )


def driver_too_old(facts: Facts) -> Iterator[Finding]:
    """The driver is older than the oldest one for torch's CUDA."""
    needs = version(facts["torch"]["cuda"])
    oldest = _OLDEST_DRIVER.get(needs[0]) if needs else None
    driver = version(facts["gpu"]["driver"])
    works = facts["torch"]["cuda_available"] or facts["torch"]["devices"]  # with NVIDIA's compatibility package
    if oldest and driver and driver < oldest and not works:
        text = f"{oldest[0]}.{oldest[1]:02d}.{oldest[2]:02d}"
        yield Finding(
            "driver_too_old",
            "error",
            f"Driver {facts['gpu']['driver']} is older than {text}, which torch's CUDA {facts['torch']['cuda']} needs",
            "torch.cuda.is_available() is False: training runs on the CPU, or stops at the first .cuda().",
            f"update the driver to {oldest[0]} or later, or install a torch for an older CUDA",
            "driver",
        )


def architecture_missing(facts: Facts) -> Iterator[Finding]:
    """A visible card's architecture is none that torch has code for."""
    built = facts["torch"]["arch_list"]
    cards = facts["torch"]["devices"] or [card for card in facts["gpu"]["cards"] if card.get("capability")]
    for name, capability in dict.fromkeys((card["name"], card["capability"]) for card in cards) if built else ():
        if _runs(capability, built):
            continue
        is_compiled_late = any(
            _number(each) <= _capability(capability) for each in built if each.startswith("compute_")
        )
        yield Finding(
            "architecture_by_ptx" if is_compiled_late else "architecture_missing",
            "warning" if is_compiled_late else "error",
            f"{name} is sm_{capability.replace('.', '')}, and this torch has code for {' '.join(built)}",
            "The driver compiles every kernel at first use: minutes at the first start, and slower kernels."
            if is_compiled_late
            else 'CUDA kernels fail with "no kernel image is available for execution on the device".',
            "install a torch whose torch.cuda.get_arch_list() has this architecture: " + _START,
            "torch",
        )


def _runs(capability: str, built: list[str]) -> bool:
    """Code for an architecture runs on later ones of its major; with a letter (sm_90a) on that one only."""
    wanted = _capability(capability)
    return any(
        _number(each) // 10 == wanted // 10
        and (_number(each) == wanted or (_number(each) < wanted and each[-1].isdigit()))
        for each in built
        if each.startswith("sm_")
    )


def _capability(text: str) -> int:
    major, _, minor = text.partition(".")
    return int(major) * 10 + int(minor or 0)


def _number(architecture: str) -> int:
    digits = re.search(r"\d+", architecture)
    return int(digits.group()) if digits else 0


def _hidden(facts: Facts) -> bool:
    """Whether the user has asked for no GPU; `visible_devices` tells of that."""
    return facts["variables"].get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1")
