"""What the agent adds to a step: kernels launched, their time, times that the host waits, and memory held on the card.

    python bench/gpu/launches.py [--dry-run]

Aims: no waiting, and fewer launches than tensors. `--dry-run` counts the launches that would be made.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections import Counter
from typing import Any

os.environ.setdefault("RANGEWATCH_QUIET", "1")
if "--dry-run" in sys.argv:
    os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported

import torch
from checks import Checks, parser
from tests.agent.ingest_double import IngestDouble
from torch.nn import functional as F

import rangewatch
from rangewatch.statistics.fused import FusedReads
from training.models import Gpt

STEPS, WARM = 5, 3
NAMED = 12
"""Kernels that are named, of those a level adds."""


def main() -> int:
    chosen = parser(__doc__).parse_args()
    checks = Checks()
    device = torch.device("cpu") if chosen.dry_run else torch.device("cuda", 0)
    ingest = IngestDouble()
    try:
        plain = measured(device, None, ingest)
        for level in ("grads", "outputs", "frames"):
            watched = measured(device, level, ingest)
            row = {name: watched[name] - plain[name] for name in plain if name not in ("tensors", "names")}
            more = Counter(watched["names"])
            more.subtract(plain["names"])
            most = {name: count / STEPS for name, count in more.most_common(NAMED) if count > 0}
            checks.figures[level] = row | {"tensors": watched["tensors"], "of these": most}
            checks.that(row["waits"] <= 0, f"{level}: the host waits {row['waits']} times more a step")
            checks.that(watched["tensors"] > 0, f"{level}: nothing was observed")
            words = ", ".join(f"{name} {value:+.1f}" for name, value in row.items())
            print(f"{level:<8} a step: {words}; {watched['tensors']} tensors")
    finally:
        ingest.stop()
    return checks.end()


def shorter(kernel: str) -> str:
    """A kernel's name without its return type, namespaces and template arguments, of which a C++ one is full."""
    name = kernel.removeprefix("void ").split("<")[0].split("(")[0].split("::")[-1]
    words = ("copy", "fill", "norm", "aminmax", "isfinite", "sum")
    does = [word for word in words if word in kernel.lower() and word not in name.lower()]
    return f"{name} {does[0]}" if does else name


def measured(device: torch.device, level: str | None, ingest: IngestDouble) -> dict[str, Any]:
    """Of one step of a GPT: kernels launched, our own among them, times waited, bytes allocated at its end and peak."""
    torch.manual_seed(0)
    is_cuda = device.type == "cuda"
    sizes = {"layers": 12, "width": 768, "heads": 12, "length": 512, "vocabulary": 32_000}
    small = {"layers": 1, "width": 32, "heads": 2, "length": 16, "vocabulary": 64}
    model = Gpt(**(sizes if is_cuda else small)).to(device, torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=is_cuda)
    ids = torch.randint(60, (4, 513 if is_cuda else 17), device=device)
    handle: Any = None
    if level is not None:
        backend = {} if is_cuda else {"backend": "device"}
        handle = rangewatch.attach(
            model, optimizer, url=ingest.url, level=level, budget_percent=100, ship_interval_s=3600, **backend
        )

    def step() -> None:
        loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1).float(), ids[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(WARM if is_cuda else 0):
        step()
    counted = on_cuda(step) if is_cuda else without_device(step)
    counted["tensors"] = len(handle._agent.names) if handle else 0
    if handle is not None:
        handle.detach()
    return counted


def on_cuda(step: Any) -> dict[str, Any]:
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        for _ in range(STEPS):
            step()
        torch.cuda.synchronize()
    events = profiler.events()
    on_device = [event for event in events if event.device_type == torch.autograd.DeviceType.CUDA]
    ours = sum("measure" in event.name or "count_exponents" in event.name for event in events)
    torch.cuda.set_sync_debug_mode("warn")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        step()
    torch.cuda.set_sync_debug_mode("default")
    waits = sum("synchroniz" in str(each.message) for each in caught)
    torch.cuda.synchronize()
    return {
        "launches": len(on_device) / STEPS, "ours": ours / STEPS, "waits": float(waits),
        "device_us": sum(event.time_range.elapsed_us() for event in on_device) / STEPS,
        "names": Counter(shorter(event.name) for event in on_device),
        "allocated_bytes": float(torch.cuda.memory_allocated()), "peak_bytes": float(torch.cuda.max_memory_allocated()),
    }  # fmt: skip


def without_device(step: Any) -> dict[str, Any]:
    """Launches are counted and not made: the interpreter takes a second for each."""
    count, launch = [0], FusedReads._launch

    def counting(self: FusedReads, *arguments: Any, **options: Any) -> bool:
        count[0] += 1
        return True

    FusedReads._launch = counting  # type: ignore[method-assign]
    try:
        step()
    finally:
        FusedReads._launch = launch  # type: ignore[method-assign]
    return {"launches": float(count[0]), "ours": float(count[0]), "waits": 0.0, "names": Counter()}


if __name__ == "__main__":
    sys.exit(main())
