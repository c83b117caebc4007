"""The driver and its cards, as the driver itself tells: from /proc in training, from NVML too where there is time."""

from __future__ import annotations

import contextlib
import importlib
import re
from typing import Any

from rangewatch.doctor.machine import Machine

MOST = 32  # cards of one machine that are told of

_CARDS = "/proc/driver/nvidia/gpus"


def gpus(machine: Machine, *, deep: bool) -> dict[str, Any]:
    """`driver`, `driver_cuda` (the newest CUDA that it runs), `cards` with name, uuid, bus_id; `nvml_error`."""
    found: dict[str, Any] = {"driver": _driver(machine), "driver_cuda": None, "nvml_error": None}
    found["cards"] = [_card(machine, bus_id) for bus_id in machine.names(_CARDS)[:MOST]]
    # NVML starts slowly where no other process has the driver open, and knows of this machine only
    return found | (_from_nvml() if deep and str(machine.root) == "/" else {})


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
