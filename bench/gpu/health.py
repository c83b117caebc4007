"""NVML's fields as the agent reads them against `nvidia-smi -q -x` of the same second, one by one; Xid events; load.

    python bench/gpu/health.py [--dry-run]

Two answers of nvidia-smi lie around the agent's reading: a field is right that lies between them, give or take what the
last digit that is printed stands for. `--dry-run` reads NVML's double and an answer that was written by hand.
"""

from __future__ import annotations

import math
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from typing import NamedTuple
from xml.etree import ElementTree

import nvml_double
from checks import Checks, parser

from rangewatch.collectors.gpu.devices import Device
from rangewatch.collectors.gpu.nvml import CLOCKS_EVENT_REASONS, Nvml, NvmlError, Reader
from rangewatch.collectors.gpu.readings import FastReadings, Row, slow_row
from rangewatch.collectors.gpu.xid import XidWatch
from rangewatch.recording.events import Events

XID_S, LOAD_S = 3.0, 8.0


class Field(NamedTuple):
    """Where nvidia-smi has a column: its path, what one of its units is, and how far a reading may be apart."""

    path: str
    unit: float
    tolerance: float = 0.0


FIELDS = {
    "utilization_gpu_percent": Field("utilization/gpu_util", 1, 10),
    "utilization_memory_percent": Field("utilization/memory_util", 1, 10),
    "memory_total_bytes": Field("fb_memory_usage/total", 1 << 20, 1 << 20),
    "memory_used_bytes": Field("fb_memory_usage/used", 1 << 20, 2 << 20),
    "power_w": Field("gpu_power_readings/average_power_draw", 1, 15),
    "power_limit_w": Field("gpu_power_readings/current_power_limit", 1, 0.01),
    "temperature_c": Field("temperature/gpu_temp", 1, 1),
    "temperature_memory_c": Field("temperature/memory_temp", 1, 1),
    "sm_clock_mhz": Field("clocks/sm_clock", 1, 60),
    "memory_clock_mhz": Field("clocks/mem_clock", 1, 1),
    "pcie_replays": Field("pci/replay_counter", 1),
    "pcie_link_generation": Field("pci/pci_gpu_link_info/pcie_gen/current_link_gen", 1),
    "pcie_link_width": Field("pci/pci_gpu_link_info/link_widths/current_link_width", 1),
    "remapped_rows_corrected": Field("remapped_rows/remapped_row_corr", 1),
    "remapped_rows_uncorrected": Field("remapped_rows/remapped_row_unc", 1),
    "remapped_rows_pending": Field("remapped_rows/remapped_row_pending", 1),
    "remapped_rows_failure": Field("remapped_rows/remapped_row_failure", 1),
    "retired_pages_corrected": Field("retired_pages/multiple_single_bit_retirement/retired_count", 1),
    "retired_pages_uncorrected": Field("retired_pages/double_bit_retirement/retired_count", 1),
}
SUMS = {
    f"ecc_{kind}_{since}": tuple(f"ecc_errors/{since}/{name}" for name in names)
    for since in ("volatile", "aggregate")
    for kind, names in {
        "corrected": ("sram_correctable", "dram_correctable"),
        "uncorrected": ("sram_uncorrectable_parity", "sram_uncorrectable_secded", "dram_uncorrectable"),
    }.items()
}
"""Columns that nvidia-smi has in parts."""
TLIMITS = {
    "slowdown_margin_c": "temperature/gpu_temp_slow_tlimit_threshold",
    "shutdown_margin_c": "temperature/gpu_temp_max_tlimit_threshold",
}
REASONS = {
    "gpu_idle": 0x1, "applications_clocks_setting": 0x2, "sw_power_cap": 0x4, "hw_slowdown": 0x8, "sync_boost": 0x10,
    "sw_thermal_slowdown": 0x20, "hw_thermal_slowdown": 0x40, "hw_power_brake_slowdown": 0x80,
    "display_clocks_setting": 0x100,
}  # fmt: skip
"""As nvidia-smi ends its names; before driver 535 they begin otherwise."""


def main() -> int:
    chosen = parser(__doc__).parse_args()
    checks = Checks()
    why_not = nvml_double.install() if chosen.dry_run else ""
    if not chosen.dry_run and shutil.which("nvidia-smi") is None:
        why_not = "nvidia-smi is not here"
    if why_not:
        checks.notes.append(why_not)
        return checks.end()
    ask = _by_hand if chosen.dry_run else _asked
    nvml = Nvml()
    nvml.open()
    handle = nvml.call("nvmlDeviceGetHandleByIndex", 0)
    reader = Reader(nvml, handle)
    compare(checks, reader, ask, "idle")
    watch_xid(checks, nvml, handle)
    if not chosen.dry_run:
        under_load(checks, reader, ask)
    nvml.close()
    return checks.end()


def compare(checks: Checks, reader: Reader, ask: Callable[[], str], when: str) -> None:
    """One reading between two answers."""
    before = card_of(ask())
    row = read(reader)
    after = card_of(ask())
    figures = checks.figures.setdefault(when, {})
    for name, low, high, tolerance in expected(before, after):
        value = row[name]
        figures[name] = [value, low, high]
        if math.isnan(low) or math.isnan(high):
            checks.that(math.isnan(value), f"{when}: {name} is {value}, which nvidia-smi does not know")
        else:
            is_between = min(low, high) - tolerance <= value <= max(low, high) + tolerance
            checks.that(is_between, f"{when}: {name} is {value}, nvidia-smi says {low} and {high}")
    bits = {_reasons(card) for card in (before, after)}
    known = sum(CLOCKS_EVENT_REASONS)
    if not math.isnan(row["clocks_event_reasons"]) and None not in bits:
        value = int(row["clocks_event_reasons"])
        figures["clocks_event_reasons"] = [value, *bits]
        checks.that(
            value & sum(REASONS.values()) in bits, f"{when}: clocks event reasons {value:#x}, nvidia-smi {bits}"
        )
        checks.that(value & ~known == 0, f"{when}: a clocks event reason without a name in {value:#x}")
    unknown = [name for name, value in row.items() if math.isnan(value)]
    if unknown:
        checks.notes.append(f"{when}: the driver does not say {', '.join(unknown)}")


def read(reader: Reader) -> Row:
    """What the agent records, both its fast and its slow readings."""
    reader.begin(forget=True)
    fast = FastReadings(reader)
    fast.row(time.time_ns())  # rates are known from the second row on
    time.sleep(0.05)
    return fast.row(time.time_ns()) | slow_row(reader)


def expected(before: ElementTree.Element, after: ElementTree.Element) -> list[tuple[str, float, float, float]]:
    """Column, what it is in either answer, and how far it may be off."""
    columns = [
        (name, number(before, path) * unit, number(after, path) * unit, tolerance)
        for name, (path, unit, tolerance) in FIELDS.items()
    ]
    for name, paths in SUMS.items():
        low, high = (sum(number(card, path) for path in paths) for card in (before, after))
        columns.append((name, low, high, 0.0))
    now = "temperature/gpu_temp_tlimit"
    columns += [
        (name, number(before, now) - number(before, path), number(after, now) - number(after, path), 1.0)
        for name, path in TLIMITS.items()
    ]
    return columns


def card_of(answer: str) -> ElementTree.Element:
    """The first card of an answer. Raises ValueError where there is none."""
    card = ElementTree.fromstring(answer).find("gpu")
    if card is None:
        raise ValueError("nvidia-smi's answer has no card")
    return card


def number(card: ElementTree.Element, path: str) -> float:
    """NaN where there is none, such as "N/A"."""
    text = (card.findtext(path) or "").strip()
    if text in ("Yes", "No"):
        return float(text == "Yes")
    found = re.match(r"-?\d+(\.\d+)?", text)
    return float(found[0]) if found else math.nan


def _reasons(card: ElementTree.Element) -> int | None:
    for group, prefix in (
        ("clocks_event_reasons", "clocks_event_reason_"),
        ("clocks_throttle_reasons", "clocks_throttle_reason_"),
    ):
        parts = card.find(group)
        if parts is not None:
            return sum(bit for name, bit in REASONS.items() if parts.findtext(prefix + name) == "Active")
    return None


def watch_xid(checks: Checks, nvml: Nvml, handle: object) -> None:
    """The reader of Xid waits, hears of none, and ends when it is told to."""
    heard: list[str] = []

    class Heard(Events):
        def __init__(self) -> None:
            pass

        def add(self, kind: object, message: str = "", data: object = None) -> None:
            heard.append(f"{kind}: {message}")

    name = str(nvml.call("nvmlDeviceGetUUID", handle))
    watch = XidWatch(nvml, [(Device(name, handle, 0, "index"), "the card")], Heard())
    watch.start()
    time.sleep(XID_S)
    checks.that(watch.is_watching, "the reader of Xid events has ended by itself")
    checks.that(watch.stop(), "the reader of Xid events did not end in time")
    checks.equal(heard, [], "events without an Xid")


def under_load(checks: Checks, reader: Reader, ask: Callable[[], str]) -> None:
    """Large products: what nvidia-smi says of a busy card, and what slows it down."""
    import torch

    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    seen: set[str] = set()
    until_s = time.monotonic() + LOAD_S
    busy = 0.0
    while time.monotonic() < until_s:
        for _ in range(200):
            torch.mm(a, b)  # some 1.5 ms each: the host is ahead, and the card busy while it is read
        try:
            row = read(reader)
        except NvmlError as error:
            checks.that(False, f"no reading under load: {error}")
            return
        busy = max(busy, row["utilization_gpu_percent"])
        seen |= {name for bit, name in CLOCKS_EVENT_REASONS.items() if int(row["clocks_event_reasons"]) & bit}
        torch.cuda.synchronize()
    for _ in range(2000):
        torch.mm(a, b)
    compare(checks, reader, ask, "under load")
    torch.cuda.synchronize()
    checks.that(busy > 50, f"the card was busy for {busy} % of the time by its own account")
    checks.figures["reasons_under_load"] = sorted(seen)


def _asked() -> str:
    return subprocess.run(
        ["nvidia-smi", "-q", "-x", "-i", "0"], capture_output=True, text=True, timeout=60, check=True
    ).stdout


def _by_hand() -> str:
    return (nvml_double.TESTDATA / "h100.xml").read_text()


if __name__ == "__main__":
    sys.exit(main())
