"""Who else is on the card.

NVML tells process ids of the host. In a container they name nothing, or another process, so an id is only looked up
when the ids are known to be ours: this process is among them, or it lives in the host's own namespace of ids.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

from rangewatch.collectors.gpu_fast import Row
from rangewatch.collectors.nvml import Reader

_HOST_NAMESPACE = "pid:[4026531836]"
"""The kernel's own number for the first namespace of process ids (PROC_PID_INIT_INO)."""

_PROCESSES_NAMED = 16


class CardProcesses:
    """What the last look found."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self.others: list[dict[str, Any]] = []
        """Other processes: `pid` and `memory_bytes`, and `command` where it is known."""
        self.hidden = 0
        """Processes that are not in this container."""

    def row(self, reader: Reader) -> Row:
        """One row. Raises NvmlError when the card or the driver is gone."""
        found = reader.value("nvmlDeviceGetComputeRunningProcesses")
        self.others, self.hidden = [], 0
        if found is None:
            return dict.fromkeys(("processes", "processes_hidden", "processes_memory_bytes"), math.nan)
        self._sort_out(found)
        used = [each.usedGpuMemory for each in found if each.usedGpuMemory is not None]
        return {
            "processes": float(len(found)),
            "processes_hidden": float(self.hidden),
            "processes_memory_bytes": float(sum(used)) if used or not found else math.nan,
        }

    def _sort_out(self, found: list[Any]) -> None:
        pids = {int(each.pid) for each in found}
        are_ours = os.getpid() in pids or self._is_host()
        for each in found:
            pid = int(each.pid)
            command = self._command(pid) if are_ours else None
            if command is None:
                self.hidden += 1
            elif pid != os.getpid() and len(self.others) < _PROCESSES_NAMED:
                self.others.append({"pid": pid, "command": command, "memory_bytes": each.usedGpuMemory})

    def _is_host(self) -> bool:
        try:
            return str((self._proc / "self/ns/pid").readlink()) == _HOST_NAMESPACE
        except OSError:
            return False

    def _command(self, pid: int) -> str | None:
        try:
            return (self._proc / str(pid) / "comm").read_text(errors="replace").strip()
        except OSError:
            return None
