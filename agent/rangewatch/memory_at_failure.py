"""What the allocator held when training ran out of an accelerator's memory."""

from __future__ import annotations

import contextlib
from typing import Any

import torch

_STATS = {
    "allocated_bytes.all.current": "allocated_bytes", "allocated_bytes.all.peak": "allocated_peak_bytes",
    "reserved_bytes.all.current": "reserved_bytes", "reserved_bytes.all.peak": "reserved_peak_bytes",
    "active_bytes.all.current": "active_bytes", "inactive_split_bytes.all.current": "inactive_split_bytes",
    "requested_bytes.all.current": "requested_bytes", "num_alloc_retries": "alloc_retry_count", "num_ooms": "oom_count",
}  # fmt: skip
"""torch's names, and the ones under which they are sent."""

_ERRORS: tuple[type[BaseException], ...] = tuple(
    error
    for error in (getattr(torch, "OutOfMemoryError", None), getattr(torch.cuda, "OutOfMemoryError", None))
    if error is not None
)


def memory_at_failure(error: BaseException) -> dict[str, Any]:
    """Data of the event `failed`: `out_of_memory` and, on CUDA, the allocator's figures by device, in bytes and counts.

    Empty for other errors. The current figures are those of now: what the failed step held may be free again.
    """
    if not isinstance(error, _ERRORS):
        return {}
    data: dict[str, Any] = {"out_of_memory": True}
    with contextlib.suppress(Exception):  # a device may be in no state to be asked
        cuda: Any = torch.cuda
        if cuda.is_available() and cuda.is_initialized():
            data["devices"] = {str(device): _figures(device) for device in range(torch.cuda.device_count())}
    return data


def _figures(device: int) -> dict[str, int]:
    stats: dict[str, Any] = torch.cuda.memory_stats(device)
    found = {ours: int(stats[name]) for name, ours in _STATS.items() if name in stats}
    free_bytes, total_bytes = torch.cuda.mem_get_info(device)
    return found | {"free_bytes": int(free_bytes), "total_bytes": int(total_bytes)}
