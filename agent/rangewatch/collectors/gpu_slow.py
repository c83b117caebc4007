"""What is read off a card every 30 s: memory errors, links, the fabric and what NVIDIA itself says to do.

Counters are as NVML holds them (`volatile`: since the driver was loaded; `aggregate`: in the card's life), so that what
was there before the run can be told from what came in it.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterable

from rangewatch.collectors.gpu_fast import Row
from rangewatch.collectors.nvml import Reader

_RETIRED_CORRECTED, _RETIRED_UNCORRECTED, _RETIRED_PENDING = 29, 30, 31
_LINK_COUNT, _RECOVERY_ACTION = 91, 230
_SLOW_FIELDS = (_RETIRED_CORRECTED, _RETIRED_UNCORRECTED, _RETIRED_PENDING, _RECOVERY_ACTION, _LINK_COUNT)
_CORRECTED, _UNCORRECTED = 0, 1
_VOLATILE, _AGGREGATE = 0, 1

_LINK_COUNTERS = {"replay": 0, "recovery": 1, "crc_flit": 2, "crc_data": 3, "ecc_data": 4}
"""Up to Hopper, by `nvmlDeviceGetNvLinkErrorCounter`."""

_PACKET_FIELDS = (206, 207, 208, 209, 210, 211)
"""From Blackwell on, by field and link: malformed, overruns, received in error (own, remote, general), integrity."""

_RECOVERY_FIELD = 215
_MAX_LINKS = 36


def slow_row(reader: Reader) -> Row:
    """One row. Raises NvmlError when the card or the driver is gone."""
    corrected, uncorrected, pending, recovery_action, links = reader.fields(_SLOW_FIELDS)
    return {
        **_ecc(reader),
        **_remapped(reader),
        "retired_pages_corrected": corrected,
        "retired_pages_uncorrected": uncorrected,
        "retired_pages_pending": pending,
        "pcie_replays": reader.number("nvmlDeviceGetPcieReplayCounter"),
        "pcie_link_generation": reader.number("nvmlDeviceGetCurrPcieLinkGeneration"),
        "pcie_link_width": reader.number("nvmlDeviceGetCurrPcieLinkWidth"),
        "recovery_action": recovery_action,
        **_fabric(reader),
        **_links(reader, links),
    }


def _ecc(reader: Reader) -> Row:
    row = {}
    for kind, name in ((_CORRECTED, "corrected"), (_UNCORRECTED, "uncorrected")):
        for since, word in ((_VOLATILE, "volatile"), (_AGGREGATE, "aggregate")):
            row[f"ecc_{name}_{word}"] = reader.number("nvmlDeviceGetTotalEccErrors", kind, since)
    return row


def _remapped(reader: Reader) -> Row:
    names = ("corrected", "uncorrected", "pending", "failure")
    found = reader.value("nvmlDeviceGetRemappedRows") or [math.nan] * len(names)
    return {f"remapped_rows_{name}": float(value) for name, value in zip(names, found, strict=True)}


def _fabric(reader: Reader) -> Row:
    structure = getattr(reader.nvml.module, "c_nvmlGpuFabricInfoV_t", None)
    info = structure() if structure else None
    if info is None or not reader.filled("nvmlDeviceGetGpuFabricInfoV", ctypes.byref(info)):
        return dict.fromkeys(("fabric_state", "fabric_status", "fabric_health_mask"), math.nan)
    return {
        "fabric_state": float(info.state),
        "fabric_status": float(info.status),
        "fabric_health_mask": float(info.healthMask),
    }


def _links(reader: Reader, count: float) -> Row:
    """All links together, and each link's errors of all kinds as `nvlink_00_errors`, ..."""
    states = _states(reader, count)
    errors = {link: _link_errors(reader, link) for link in states}
    is_known = bool(states) and not any(map(math.isnan, states.values()))
    row = {
        "nvlink_links": float(len(states)) if states else (0.0 if count == 0 else math.nan),
        "nvlink_active_mask": float(sum(1 << link for link in states if states[link])) if is_known else math.nan,
        "nvlink_active_links": float(sum(map(bool, states.values()))) if is_known else math.nan,
    }
    for name in (*_LINK_COUNTERS, "packet"):
        row[f"nvlink_{name}_errors"] = total(each[name] for each in errors.values())
    return row | {f"nvlink_{link:02}_errors": total(each.values()) for link, each in errors.items()}


def _states(reader: Reader, count: float) -> dict[int, float]:
    """Each link's, NaN for one whose question failed: that is not a link that is down, nor the end of the links."""
    states: dict[int, float] = {}
    is_counted = not math.isnan(count)
    for link in range(min(int(count), _MAX_LINKS) if is_counted else _MAX_LINKS):
        state = reader.number("nvmlDeviceGetNvLinkState", link)
        if math.isnan(state) and (not is_counted or reader.is_absent("nvmlDeviceGetNvLinkState", link)):
            break  # links are numbered without gaps: there are no more
        states[link] = state
    return states


def _link_errors(reader: Reader, link: int) -> Row:
    row = {
        name: reader.number("nvmlDeviceGetNvLinkErrorCounter", link, number) for name, number in _LINK_COUNTERS.items()
    }
    row["packet"] = math.nan
    if math.isnan(total(row.values())):
        recovery, *packets = reader.fields([(field, link) for field in (_RECOVERY_FIELD, *_PACKET_FIELDS)])
        row["recovery"], row["packet"] = recovery, total(packets)
    return row


def total(values: Iterable[float]) -> float:
    """The sum of what is known; NaN where nothing is."""
    known = [value for value in values if not math.isnan(value)]
    return math.fsum(known) if known else math.nan
