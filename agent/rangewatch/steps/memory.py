"""How much memory a rank holds when a step ends: of its device, and of its host.

Of the device these are the numbers of torch's caching allocator, which lie in host memory: nothing waits for the
device. Of the host it is what the kernel counts as resident. What the backend does not count stays unknown.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from rangewatch.recording.observer import StepReader
from rangewatch.steps.interface import StepRecorder

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

ALLOCATED, RESERVED, PEAK = "memory_allocated_bytes", "memory_reserved_bytes", "memory_peak_bytes"
"""Series, of the device that the model is on: what tensors take, what the allocator holds of the device for them, and
the most that tensors have taken since the process began or `reset_peak_memory_stats` was called."""

RESIDENT, RESIDENT_PEAK = "process_resident_bytes", "process_resident_peak_bytes"
"""Series, of the process: its pages in host memory, and the most there ever were of them."""

SERIES = (ALLOCATED, RESERVED, PEAK, RESIDENT, RESIDENT_PEAK)

LEAST_S = 0.05
"""Seconds between two samples: one takes some 30 us, and so at most a thousandth of the time."""

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
_MAXRSS_BYTES = 1 if sys.platform == "darwin" else 1024


class MemoryUse(StepReader):
    """Samples at ends of steps: of the first, and then at most one each `LEAST_S`. Called by the training thread."""

    def __init__(self, agent: StepRecorder, device: torch.device, proc: Path = Path("/proc")) -> None:
        self._agent, self._device, self._statm = agent, device, proc / "self/statm"
        self._due_s = float("-inf")

    def end_step(self) -> None:
        """The open step is about to be closed."""
        now_s = time.monotonic()
        if now_s < self._due_s:
            return
        self._due_s = now_s + LEAST_S
        for name, value in {**device_bytes(self._device), **process_bytes(self._statm)}.items():
            self._agent.values.record(name, self._agent.step, float(value))


def device_bytes(device: torch.device) -> dict[str, int]:
    """`ALLOCATED`, `RESERVED` and `PEAK` in bytes, as far as the device's backend counts them; nothing of a CPU.

    Of a model in host memory, the current CUDA device where the process has started CUDA: a model may be moved there
    after `attach`.
    """
    if device.type == "mps":
        mps: Any = torch.mps
        return {ALLOCATED: mps.current_allocated_memory(), RESERVED: mps.driver_allocated_memory()}
    backend: Any = torch.xpu if device.type == "xpu" else torch.cuda
    if not backend.is_initialized():
        return {}
    stats = backend.memory_stats_as_nested_dict(device if device.type in ("cuda", "xpu") else None)
    places = {ALLOCATED: ("allocated_bytes", "current"), RESERVED: ("reserved_bytes", "current")}
    places[PEAK] = "allocated_bytes", "peak"
    known = {name: _in(stats, kind, which) for name, (kind, which) in places.items()}
    return {name: value for name, value in known.items() if value is not None}


def _in(stats: Mapping[str, Any], kind: str, which: str) -> int | None:
    value = stats.get(kind, {}).get("all", {}).get(which)
    return value if isinstance(value, int) else None


def process_bytes(statm: Path) -> dict[str, int]:
    """`RESIDENT` and `RESIDENT_PEAK` in bytes, as far as the system counts them. `statm`: of Linux, in pages."""
    known = {}
    with contextlib.suppress(OSError, ValueError, IndexError):
        known[RESIDENT] = int(statm.read_bytes().split()[1]) * _PAGE_BYTES
    if resource is not None:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _MAXRSS_BYTES
        known[RESIDENT_PEAK] = max(peak, known.get(RESIDENT, 0))  # the kernel's own counts may lag by some pages
    return known
