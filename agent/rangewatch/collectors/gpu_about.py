"""What a card is, which does not change while it runs: names, maxima and limits."""

from __future__ import annotations

import math
import socket
from typing import Any

from rangewatch.collectors.gpu_devices import Device
from rangewatch.collectors.gpu_fast import Row
from rangewatch.collectors.nvml import Nvml, NvmlError, Reader
from rangewatch.collectors.nvml_names import about_names

_SM, _MEMORY = 1, 2


def about(reader: Reader, device: Device, limits: Row) -> dict[str, Any]:
    """JSON facts of one card; what NVML does not say is left out. Raises NvmlError when the card is gone."""
    parent = parent_of(reader.nvml, device.handle)
    whole = reader if parent is None else Reader(reader.nvml, parent)
    facts = {
        "name": reader.text("nvmlDeviceGetName"),
        "uuid": device.uuid,
        "parent_uuid": None if parent is None else whole.text("nvmlDeviceGetUUID"),
        "pci_bus_id": _bus_id(whole),
        "driver_version": _driver_version(reader.nvml),
        "host": socket.gethostname(),
        "device_index": device.cuda_index,
        "mapped_by": device.mapped_by,
        "maxima": _known(_maxima(reader)),
        "limits": _known(limits),
        "names": about_names(),
    }
    return {name: value for name, value in facts.items() if value is not None}


def parent_of(nvml: Nvml, handle: Any) -> Any | None:
    """The card that a MIG instance is a part of; None for a whole card."""
    try:
        return nvml.call("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", handle)
    except NvmlError as error:
        if error.is_gone:
            raise
        return None


def _maxima(reader: Reader) -> Row:
    return {
        "sm_clock_mhz": reader.number("nvmlDeviceGetMaxClockInfo", _SM),
        "memory_clock_mhz": reader.number("nvmlDeviceGetMaxClockInfo", _MEMORY),
        "pcie_link_generation": reader.number("nvmlDeviceGetMaxPcieLinkGeneration"),
        "pcie_link_width": reader.number("nvmlDeviceGetMaxPcieLinkWidth"),
        "power_w": reader.number("nvmlDeviceGetPowerManagementDefaultLimit", scale=1e-3),
    }


def _bus_id(reader: Reader) -> str | None:
    found = reader.value("nvmlDeviceGetPciInfo")
    if found is None:
        return None
    return found.busId.decode(errors="replace") if isinstance(found.busId, bytes) else str(found.busId)


def _driver_version(nvml: Nvml) -> str | None:
    try:
        found = nvml.call("nvmlSystemGetDriverVersion")
    except NvmlError as error:
        if error.is_gone:
            raise
        return None
    return found.decode(errors="replace") if isinstance(found, bytes) else str(found)


def _known(row: Row) -> Row:
    return {name: value for name, value in row.items() if not math.isnan(value)}
