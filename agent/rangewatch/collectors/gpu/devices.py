"""Which card is this rank's: by UUID, never by number, since CUDA and NVML number cards differently.

Once torch runs CUDA it knows; until then what the launcher set is taken. CUDA is never started from here.

What a card is, which does not change while it runs: names, maxima and limits.
"""

from __future__ import annotations

import math
import socket
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

from rangewatch.collectors.gpu.nvml import INVALID_ARGUMENT, NOT_FOUND, Nvml, NvmlError, Reader, about_names
from rangewatch.collectors.gpu.readings import Row

_LEAST_SHARE = 0.1
"""Devices with less than this share of the memory of the fullest are strays: a tensor that was loaded onto `cuda:0`."""


class Device(NamedTuple):
    """One card or MIG instance that this rank uses."""

    uuid: str
    handle: Any
    cuda_index: int | None
    """torch's number for it."""
    mapped_by: str
    """How it was found: "torch" for certain, anything else until CUDA runs."""


def cuda() -> Any | None:
    """`torch.cuda` if it runs CUDA in this process, else None."""
    torch = sys.modules.get("torch")
    is_running = torch is not None and torch.cuda.is_initialized() and torch.version.hip is None
    return torch.cuda if torch is not None and is_running else None


def has_launcher_cards(environment: Mapping[str, str]) -> bool:
    """The launcher gave this process cards of its own."""
    return environment.get("CUDA_VISIBLE_DEVICES", "") not in {"", "-1", "NoDevFiles"}


def devices_of(nvml: Nvml, local_rank: int, environment: Mapping[str, str]) -> list[Device]:
    """This rank's devices. Raises NvmlError with the reason when there is none, or none that is certain."""
    running = cuda()
    if running is not None:
        matched = [_by_torch(nvml, index, running.get_device_properties(index)) for index in held_indices(running)]
        known = [device for device in matched if device is not None]
        if known:
            return known
    return _by_launcher(nvml, local_rank, environment)


def held_indices(running: Any) -> list[int]:
    """torch's numbers of the devices that hold memory of this process."""
    # Not current_device(), which is each thread's own: here it would always be 0.
    try:
        held = [running.memory_reserved(index) for index in range(running.device_count())]
    except RuntimeError:  # an allocator that keeps no statistics, such as a CUDAPluggableAllocator
        return []
    return [index for index, bytes_ in enumerate(held) if bytes_ and bytes_ >= max(held) * _LEAST_SHARE]


def _by_torch(nvml: Nvml, index: int, properties: Any) -> Device | None:
    """None where this version of torch tells neither UUID nor PCI address."""
    if hasattr(properties, "uuid"):
        return _by_bare_uuid(nvml, str(properties.uuid), index)
    if not hasattr(properties, "pci_bus_id"):
        return None
    bus_id = f"{properties.pci_domain_id:08X}:{properties.pci_bus_id:02X}:{properties.pci_device_id:02X}.0"
    return _device(nvml, nvml.call("nvmlDeviceGetHandleByPciBusId", bus_id), index, "torch")


def _by_bare_uuid(nvml: Nvml, bare: str, index: int) -> Device:
    # torch tells the UUID of a card or of a MIG instance alike without its prefix.
    try:
        return Device(f"GPU-{bare}", nvml.call("nvmlDeviceGetHandleByUUID", f"GPU-{bare}"), index, "torch")
    except NvmlError as error:
        if error.code not in {NOT_FOUND, INVALID_ARGUMENT}:
            raise
    return Device(f"MIG-{bare}", nvml.call("nvmlDeviceGetHandleByUUID", f"MIG-{bare}"), index, "torch")


def _by_launcher(nvml: Nvml, local_rank: int, environment: Mapping[str, str]) -> list[Device]:
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return [_by_order(nvml, local_rank, local_rank, environment)]
    entries = [entry.strip() for entry in visible.split(",") if entry.strip()]
    if not entries or entries[0] == "-1":
        raise NvmlError(0, "CUDA_VISIBLE_DEVICES hides every GPU from this rank")
    index = local_rank if len(entries) > 1 else 0
    if index >= len(entries):
        raise NvmlError(
            0, f"CUDA_VISIBLE_DEVICES names {len(entries)} GPUs, and local rank {local_rank} has none of them"
        )
    entry = entries[index]
    if entry.startswith(("GPU-", "MIG-")):
        return [_by_uuid(nvml, entry, index)]
    if not entry.isdecimal():
        raise NvmlError(0, f"CUDA_VISIBLE_DEVICES has {entry!r}, which is neither a number nor a UUID")
    return [_by_order(nvml, int(entry), index, environment)]


def _by_uuid(nvml: Nvml, uuid: str, index: int) -> Device:
    try:
        return Device(uuid, nvml.call("nvmlDeviceGetHandleByUUID", uuid), index, "CUDA_VISIBLE_DEVICES")
    except NvmlError as error:
        if error.is_gone:
            raise
    matching = [device for device in _all(nvml, index) if device.uuid.startswith(uuid)]  # CUDA takes a beginning of one
    if len(matching) != 1:
        raise NvmlError(0, f"CUDA_VISIBLE_DEVICES names {uuid}, and {len(matching)} of this host's GPUs are called so")
    return matching[0]


def _by_order(nvml: Nvml, number: int, index: int, environment: Mapping[str, str]) -> Device:
    """By CUDA's number: NVML's order is CUDA's only by PCI bus, or where all cards are alike."""
    names = {_name(nvml, device.handle) for device in _all(nvml, index)}
    if environment.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID" and len(names) > 1:
        raise NvmlError(
            0, "this host's GPUs differ, so that CUDA numbers them in its own order; waiting for CUDA to start"
        )
    handle = nvml.call("nvmlDeviceGetHandleByIndex", number)
    return _device(nvml, _first_instance(nvml, handle), index, "order of devices")


def _all(nvml: Nvml, index: int) -> list[Device]:
    devices = []
    for number in range(nvml.call("nvmlDeviceGetCount")):
        try:
            devices.append(
                _device(nvml, nvml.call("nvmlDeviceGetHandleByIndex", number), index, "CUDA_VISIBLE_DEVICES")
            )
        except NvmlError as error:
            if error.is_driver:
                raise
    return devices


def _first_instance(nvml: Nvml, handle: Any) -> Any:
    """What CUDA takes for a number when the card is cut up: its first MIG instance."""
    try:
        if not nvml.call("nvmlDeviceGetMigMode", handle)[0]:
            return handle
        return nvml.call("nvmlDeviceGetMigDeviceHandleByIndex", handle, 0)
    except NvmlError as error:
        if error.is_gone:
            raise
        return handle


def _device(nvml: Nvml, handle: Any, index: int, mapped_by: str) -> Device:
    uuid = nvml.call("nvmlDeviceGetUUID", handle)
    return Device(uuid.decode() if isinstance(uuid, bytes) else str(uuid), handle, index, mapped_by)


def _name(nvml: Nvml, handle: Any) -> Any:
    try:
        return nvml.call("nvmlDeviceGetName", handle)
    except NvmlError:
        return None


_SM, _MEMORY = 1, 2


def about(reader: Reader, device: Device, limits: Row) -> dict[str, Any]:
    """JSON details of one card; what NVML does not say is left out. Raises NvmlError when the card is gone."""
    parent = parent_of(reader.nvml, device.handle)
    whole = reader if parent is None else Reader(reader.nvml, parent)
    details = {
        "name": reader.text("nvmlDeviceGetName"),
        "uuid": device.uuid,
        "serial": whole.text("nvmlDeviceGetSerial"),
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
    return {name: value for name, value in details.items() if value is not None}


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
    pci = reader.value("nvmlDeviceGetPciInfo")
    if pci is None:
        return None
    return pci.busId.decode(errors="replace") if isinstance(pci.busId, bytes) else str(pci.busId)


def _driver_version(nvml: Nvml) -> str | None:
    try:
        version = nvml.call("nvmlSystemGetDriverVersion")
    except NvmlError as error:
        if error.is_gone:
            raise
        return None
    return version.decode(errors="replace") if isinstance(version, bytes) else str(version)


def _known(row: Row) -> Row:
    return {name: value for name, value in row.items() if not math.isnan(value)}
