"""What is said of an exception for want of memory: what was asked for, what there was, and who held the rest.

The allocator's message has the figures of the moment at which it failed; those that it is asked for later are of when
the failed step has let go of some. Whatever of it cannot be had is left out: the process is about to end.
"""

from __future__ import annotations

import contextlib
import errno
import inspect
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from rangewatch.core import control_groups
from rangewatch.wire.events import Failed, LiveBlocks

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
_DEVICE = re.compile(r"(CUDA|HIP|XPU|MPS backend) out of memory|CUDA error: out of memory|STATUS_ALLOC_FAILED")
_HOST = re.compile(r"alloc_cpu\.cpp|DefaultCPUAllocator: (can't allocate|not enough) memory")
"""What torch raises as a plain RuntimeError."""

MOST_CAUSES = 4
MOST_MESSAGE = 8_000
"""Characters of a message that are read."""

MOST_BYTES = (1 << 62) - 1
"""That an event holds (see `wire.events.Bytes`): one with more would be read back as 0."""


def failure_details(error: BaseException) -> Failed:
    """What the event says of an error of memory, or of one that was raised `from` it; that it was Ctrl-C; nothing for
    other errors. Never raises.
    """
    if isinstance(error, KeyboardInterrupt):
        return Failed(interrupted=True)
    with contextlib.suppress(Exception):  # of a user's own exception `str` may do anything
        for each in _causes(error):
            text = str(each)[:MOST_MESSAGE]
            if isinstance(each, _ERRORS) or (isinstance(each, RuntimeError) and _DEVICE.search(text)):
                return _of_device(text)
            if _is_of_host(each, text):
                return Failed(out_of_memory=True, on_host=True, asked_bytes=asked_bytes(text), at_failure=_host())
    return Failed()


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    for _ in range(MOST_CAUSES):
        if cause is None:
            return
        yield cause
        cause = cause.__cause__


def _is_of_host(error: BaseException, text: str) -> bool:
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and bool(_HOST.search(text)))


def _of_device(text: str) -> Failed:
    devices: dict[str, dict[str, int]] = {}
    blocks: tuple[LiveBlocks, ...] = ()
    with contextlib.suppress(Exception):  # a device may be in no state to be asked
        cuda: Any = torch.cuda
        if cuda.is_available() and cuda.is_initialized():
            devices = {str(device): _figures(device) for device in range(cuda.device_count())}
            blocks = recorded_blocks()
    return Failed(
        out_of_memory=True, devices=devices, asked_bytes=asked_bytes(text), at_failure=message_figures(text),
        blocks=blocks,
    )  # fmt: skip


def _figures(device: int) -> dict[str, int]:
    stats: dict[str, Any] = torch.cuda.memory_stats(device)
    allocator = {ours: int(stats[name]) for name, ours in _STATS.items() if name in stats}
    free_bytes, total_bytes = torch.cuda.mem_get_info(device)
    return allocator | {"free_bytes": int(free_bytes), "total_bytes": int(total_bytes)}


def _host() -> dict[str, int]:
    """`available_bytes` and `total_bytes` of the host, and of its tightest control group `container_used_bytes` and
    `container_limit_bytes`."""
    known: dict[str, int] = {}
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            name = {"MemAvailable:": "available_bytes", "MemTotal:": "total_bytes"}.get(line.partition(" ")[0])
            if name is not None:
                known[name] = int(line.split()[1]) * 1024
    with contextlib.suppress(OSError, ValueError):
        used, limit = control_groups.memory(Path("/proc"), Path("/sys"))
        if used == used and limit == limit:
            known |= {"container_used_bytes": int(used), "container_limit_bytes": int(limit)}
    return known


# What allocators write. Their sizes are rounded to two digits behind the point.

_UNITS = {
    unit: 1024**power for power, unit in enumerate(("bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"))
}  # fmt: skip
_SIZE = rf"([\d.]+) ({'|'.join(_UNITS)})"
_ASKED = re.compile(rf"(?:[Tt]ried to allocate|Unable to allocate) {_SIZE}")
_FIGURES = {
    "total_bytes": re.compile(rf"total capac(?:i?ty) of {_SIZE}|; {_SIZE} total capacity|max allowed: {_SIZE}"),
    "free_bytes": re.compile(rf"of which {_SIZE} is free|; {_SIZE} free"),
    "process_bytes": re.compile(rf"this process has {_SIZE} memory in use"),
    "allocated_bytes": re.compile(
        rf"Of the allocated memory {_SIZE} is allocated|; {_SIZE} already allocated|MPS allocated: {_SIZE}"
    ),
    "unallocated_bytes": re.compile(rf"{_SIZE} is reserved by PyTorch but unallocated"),
    "reserved_bytes": re.compile(rf"; {_SIZE} reserved in total"),
}
_OTHER = re.compile(rf"Process \d+ has {_SIZE} memory in use")
_NUMBER = re.compile(r"GPU (\d{1,4})\b")


def asked_bytes(text: str) -> int:
    """What the allocation that failed had asked for; 0 where the message does not say."""
    match = _ASKED.search(text)
    return 0 if match is None else _size(match.groups())


def message_figures(text: str) -> dict[str, int]:
    """What the message of a device's allocator says of the moment: `device`, its number; bytes in `total_bytes`,
    `free_bytes`, `process_bytes` (this process, its libraries too), `others_bytes` (other processes),
    `allocated_bytes` (tensors), `unallocated_bytes` (held by torch for none) and `reserved_bytes`, the last two's sum.
    What it does not say is left out.
    """
    matches = {name: pattern.search(text) for name, pattern in _FIGURES.items()}
    known = {name: _size(match.groups()) for name, match in matches.items() if match is not None}
    number = _NUMBER.search(text)
    if number is not None:
        known["device"] = int(number[1])
    if "process_bytes" in known:  # else this process may be one of those with a number: in a container it has another
        known["others_bytes"] = sum(_size(match) for match in _OTHER.findall(text))
    allocated, unallocated = known.get("allocated_bytes"), known.get("unallocated_bytes")
    if allocated is not None and unallocated is not None:
        known.setdefault("reserved_bytes", allocated + unallocated)
    elif allocated is not None and "reserved_bytes" in known:
        known["unallocated_bytes"] = max(0, known["reserved_bytes"] - allocated)
    return {name: min(each, MOST_BYTES) for name, each in known.items()}


def _size(groups: Sequence[str | None]) -> int:
    number, unit = [each for each in groups if each is not None][:2]
    return min(int(float(number) * _UNITS[unit]), MOST_BYTES)


# Who holds what, where torch records the history of allocations.

MOST_BLOCKS = 100_000
"""With more live blocks none are asked for: each comes with its whole stack, and a process that dies must end."""
MOST_PLACES = 8
MOST_CHARACTERS = 200
READ_S = 1.0
"""Seconds in which blocks are read, once torch has listed them."""

_LIBRARY = re.compile(r"[/\\](site-packages|dist-packages|lib[/\\]python[\d.]+)[/\\]")


def recorded_blocks() -> tuple[LiveBlocks, ...]:
    """The places that hold most, by what `torch.cuda.memory._record_memory_history` has recorded; none where it has
    not.
    """
    c: Any = torch._C
    if not getattr(c, "_cuda_isHistoryEnabled", bool)():
        return ()
    nested: Any = torch.cuda.memory_stats_as_nested_dict
    counts = (nested(device).get("active", {}).get("all", {}) for device in range(torch.cuda.device_count()))
    if sum(int(each.get("current", 0)) for each in counts) > MOST_BLOCKS:
        return ()
    listed: Any = torch.cuda.memory_snapshot
    # The history itself may be millions of entries long; older versions of torch list it in any case.
    past = {"include_traces": False} if "include_traces" in inspect.signature(listed).parameters else {}
    return live_blocks(listed(**past))


def live_blocks(segments: Sequence[Mapping[str, Any]], *, within_s: float = READ_S) -> tuple[LiveBlocks, ...]:
    """Live blocks by the place that allocated them, the largest sums first. `segments`: of `memory_snapshot`, or of
    the key of that name of `_snapshot`; the structure is in the docstring of `torch.cuda.memory._snapshot`.
    """
    until_s = time.monotonic() + within_s
    held: dict[str, list[int]] = {}
    for segment in segments:
        if time.monotonic() > until_s:
            break
        for block in segment.get("blocks", ()):
            if block.get("state") == "active_allocated":
                sums = held.setdefault(_place(block), [0, 0, 0])
                size = int(block.get("size", 0))
                sums[0], sums[1], sums[2] = sums[0] + size, sums[1] + 1, max(sums[2], size)
    largest = sorted(held.items(), key=lambda item: -item[1][0])[:MOST_PLACES]
    return tuple(LiveBlocks(place, *sums) for place, sums in largest)


def _place(block: Mapping[str, Any]) -> str:
    """The innermost frame of the user's code, or else of a library's; "" where none was recorded."""
    frames = block.get("frames") or next((each.get("frames") for each in block.get("history", ())), None) or ()
    python = [frame for frame in frames if str(frame.get("filename", "")).endswith(".py")]
    own = next((frame for frame in python if not _LIBRARY.search(str(frame["filename"]))), None)
    of_library = next((frame for frame in python if not re.search(r"[/\\]torch[/\\]", str(frame["filename"]))), None)
    frame = own or of_library or next(iter(python), None)
    if frame is None:
        return ""
    where = "/".join(str(frame["filename"]).replace("\\", "/").split("/")[-2:])  # not the whole path of somebody's home
    return f"{frame.get('name', '')} ({where}:{frame.get('line', 0)})"[:MOST_CHARACTERS]
