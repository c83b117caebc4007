"""The driver and its cards, as the driver itself tells: from /proc in training, from NVML too where there is time.

CUDA_VISIBLE_DEVICES, as CUDA reads it: up to the first entry that it cannot use.

Torch against the driver and the cards.

Faster ways between the cards of one machine that are switched off.
"""

from __future__ import annotations

import contextlib
import importlib
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from rangewatch.checks.doctor.findings import Details, Finding
from rangewatch.checks.doctor.machine import Machine
from rangewatch.checks.doctor.variables import ranks_here, setting, version

MOST = 32  # cards of one machine that are listed

_CARDS = "/proc/driver/nvidia/gpus"


def gpus(machine: Machine, *, deep: bool) -> dict[str, Any]:
    """`driver`, `driver_cuda` (the newest CUDA that it runs), `cards` with name, uuid, bus_id; `nvml_error`."""
    driver: dict[str, Any] = {"driver": _driver(machine), "driver_cuda": None, "nvml_error": None}
    driver["cards"] = [_card(machine, bus_id) for bus_id in machine.names(_CARDS)[:MOST]]
    # NVML starts slowly where no other process has the driver open, and knows of this machine only
    return driver | (_from_nvml() if deep and str(machine.root) == "/" else {})


def _driver(machine: Machine) -> str | None:
    version = re.search(r"Kernel Module.*?\s(\d+\.\d+(?:\.\d+)?)\s", machine.text("/proc/driver/nvidia/version"))
    return version.group(1) if version else None


def _card(machine: Machine, bus_id: str) -> dict[str, str]:
    lines = machine.text(f"{_CARDS}/{bus_id}/information").splitlines()
    about = {name.strip(): value.strip()[:100] for name, _, value in (line.partition(":") for line in lines)}
    return {"name": about.get("Model", ""), "uuid": about.get("GPU UUID", ""), "bus_id": bus_id}


def _from_nvml() -> dict[str, Any]:
    try:
        nvml: Any = importlib.import_module("pynvml")
    except ImportError:
        return {}
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        # No library is a machine without a driver, which is no fault; any other reason is.
        is_absent = error.value in (nvml.NVML_ERROR_LIBRARY_NOT_FOUND, nvml.NVML_ERROR_DRIVER_NOT_LOADED)
        return {} if is_absent else {"nvml_error": str(error)[:200]}
    try:
        return _asked(nvml)
    except nvml.NVMLError as error:
        return {"nvml_error": str(error)[:200]}
    finally:
        with contextlib.suppress(nvml.NVMLError):  # where the driver has gone meanwhile
            nvml.nvmlShutdown()


def _asked(nvml: Any) -> dict[str, Any]:
    cuda = nvml.nvmlSystemGetCudaDriverVersion_v2()
    handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(min(nvml.nvmlDeviceGetCount(), MOST))]
    return {
        "driver": _text(nvml.nvmlSystemGetDriverVersion()),
        "driver_cuda": f"{cuda // 1000}.{cuda % 1000 // 10}",
        "cards": [_asked_card(nvml, handle) for handle in handles],
    }


def _asked_card(nvml: Any, handle: Any) -> dict[str, Any]:
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    return {
        "name": _text(nvml.nvmlDeviceGetName(handle)),
        "uuid": _text(nvml.nvmlDeviceGetUUID(handle)),
        "bus_id": _text(nvml.nvmlDeviceGetPciInfo(handle).busId),
        "capability": f"{major}.{minor}",
    }


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


_NAME = "CUDA_VISIBLE_DEVICES"


def visible_devices(details: Details) -> Iterator[Finding]:
    """No device, one twice, one that is not there, or fewer than ranks."""
    value = details["variables"].get(_NAME)
    cards = details["gpu"]["cards"]
    if value is None or not cards:
        return
    entries = [entry.strip() for entry in value.split(",")]
    if len(entries) > 1 and not entries[-1]:
        entries.pop()  # a comma at the end takes nothing away
    twice = [entry for entry, count in Counter(entries).items() if count > 1]
    usable = _usable(entries, cards)
    if twice:
        yield _found("twice", "error", f"{_NAME}={value} names {twice[0]} twice", "CUDA then shows no device at all.")
    elif not usable:
        yield _found("none", "warning", f"{_NAME}={value!r} hides all {len(cards)} cards", "Training runs on the CPU.")
    elif len(usable) < len(entries):
        lost = entries[len(usable)]
        yield _found(
            "absent",
            "error",
            f"{_NAME}={value} names {lost!r}, and there are {len(cards)} cards",
            f"CUDA shows no device from there on: {len(usable)} instead of {len(entries)}.",
        )
    elif 1 < len(usable) < ranks_here(details):
        yield _found(
            "too_few",
            "error",
            f"{_NAME}={value} shows {len(usable)} devices, and {ranks_here(details)} ranks run on this machine",
            'Two ranks share a card, which NCCL refuses ("Duplicate GPU detected"), or get an invalid device.',
        )


def _usable(entries: list[str], cards: list[dict[str, Any]]) -> list[str]:
    uuids = [card["uuid"] for card in cards]
    usable = []
    for entry in entries:
        is_there = entry.isdecimal() and int(entry) < len(cards)
        if not (is_there or entry.startswith("MIG-") or (entry.startswith("GPU-") and _is_named(entry, uuids))):
            break
        usable.append(entry)
    return usable


def _is_named(entry: str, uuids: list[str]) -> bool:
    """Whether a card is called so, or begins so, as CUDA takes it; True where any card's UUID is not known."""
    # The kernel tells "GPU-????????-..." until the driver has started the card.
    is_known = all(uuid.startswith("GPU-") and "?" not in uuid for uuid in uuids) and len(uuids) < MOST
    return not is_known or any(uuid.lower().startswith(entry.lower()) for uuid in uuids)


def _found(code: str, severity: str, what: str, why: str) -> Finding:
    is_error = severity == "error"
    do = f"unset {_NAME}  # or name each card once, as nvidia-smi -L lists them"
    return Finding(f"visible_devices_{code}", "error" if is_error else "warning", what, why, do, _NAME)


# The oldest Linux driver that runs any CUDA of the major: minor versions are compatible from there on.
_OLDEST_DRIVER = {11: (450, 80, 2), 12: (525, 60, 13), 13: (580, 65, 6)}
_START = "https://pytorch.org/get-started/locally"


def torch_broken(details: Details) -> Iterator[Finding]:
    """Torch is installed and cannot be imported."""
    error = details["torch"]["error"]
    if error:
        yield Finding(
            "torch_broken",
            "error",
            f"torch is installed and cannot be imported: {error}",
            "Nothing trains. Often a library of another CUDA comes first by LD_LIBRARY_PATH.",
            "env -u LD_LIBRARY_PATH python -c 'import torch'  # if that fails too, install torch anew",
            "torch",
        )


def gpu_unused(details: Details) -> Iterator[Finding]:
    """There are cards and this torch cannot use any."""
    torch, gpu = details["torch"], details["gpu"]
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
    elif torch["cuda_available"] is False and not _hidden(details):
        reported = f": {torch['warnings'][0]}" if torch.get("warnings") else ""
        yield Finding(
            "cuda_unavailable",
            "error",
            f"torch sees no GPU, and there are {len(gpu['cards'])} NVIDIA cards{reported}",
            "Training runs on the CPU, or stops at the first .cuda().",
            "python -c 'import torch; torch.zeros(1).cuda()'  # says why",
            "torch",
        )


def driver_too_old(details: Details) -> Iterator[Finding]:
    """The driver is older than the oldest one for torch's CUDA."""
    needs = version(details["torch"]["cuda"])
    oldest = _OLDEST_DRIVER.get(needs[0]) if needs else None
    driver = version(details["gpu"]["driver"])
    works = details["torch"]["cuda_available"] or details["torch"]["devices"]  # with NVIDIA's compatibility package
    if oldest and driver and driver < oldest and not works:
        text = f"{oldest[0]}.{oldest[1]:02d}.{oldest[2]:02d}"
        yield Finding(
            "driver_too_old",
            "error",
            f"Driver {details['gpu']['driver']} is older than {text}, which torch's CUDA "
            f"{details['torch']['cuda']} needs",
            "torch.cuda.is_available() is False: training runs on the CPU, or stops at the first .cuda().",
            f"update the driver to {oldest[0]} or later, or install a torch for an older CUDA",
            "driver",
        )


def architecture_missing(details: Details) -> Iterator[Finding]:
    """A visible card's architecture is none that torch has code for."""
    built = details["torch"]["arch_list"]
    cards = details["torch"]["devices"] or [card for card in details["gpu"]["cards"] if card.get("capability")]
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


def _hidden(details: Details) -> bool:
    """Whether the user has asked for no GPU; `visible_devices` tells of that."""
    return details["variables"].get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1")


def peer_to_peer_off(details: Details) -> Iterator[Finding]:
    """NCCL may not let cards write to each other's memory."""
    disable, level = setting(details, "NCCL_P2P_DISABLE"), setting(details, "NCCL_P2P_LEVEL")
    variable = disable if disable and disable.number else None
    if variable is None and level and level.value.strip().upper() in ("LOC", "0"):
        variable = level
    if variable:
        yield Finding(
            "peer_to_peer_off",
            "warning",
            f"{variable.name}={variable.value} switches off direct copies between cards, over NVLink and over PCIe",
            "Everything between cards of one machine goes through host memory, several times slower. It is a "
            "workaround for PCIe access control or cards that cannot do it, often left over.",
            f"{variable.unset}  # then rangewatch linkcheck --nproc <cards>; disable PCIe ACS if that hangs",
            variable.where,
        )


def shared_memory_off(details: Details) -> Iterator[Finding]:
    """NCCL may not use shared memory."""
    if (variable := setting(details, "NCCL_SHM_DISABLE")) and variable.number:
        yield Finding(
            "shared_memory_off",
            "warning",
            f"NCCL_SHM_DISABLE={variable.value} switches off shared memory between ranks of one machine",
            "Where cards have no direct way to each other, NCCL then uses the network inside the machine.",
            f"{variable.unset}  # and give the container room: docker run --shm-size=8g (or --ipc=host)",
            variable.where,
        )
