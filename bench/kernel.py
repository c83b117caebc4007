"""The fused kernel's bandwidth beside a copy's, and what a launch costs the host: CUDA only.

    python bench/kernel.py [--dtypes bfloat16 float32 ...] [--mebibytes 0.0625 1 16 256 2048] [--rounds 30]

Each size is timed as a training step would meet it: the tensors of one round lie apart and are together larger than the
L2 cache, so that none is read from there. A copy of n bytes moves 2n, a read n; both are given as bytes moved a second.
Times are the device's (events around a round), the median of the rounds; host times are of the launch alone, while the
device has work. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor

from rangewatch.statistics.fused import FORMATS, FusedReads
from rangewatch.statistics.reduce import COLUMNS, fill_identities, measure, merge

CACHE_BYTES = 256 << 20
"""Bytes of a round at least: more than any L2."""
MANY = 300
"""Tensors of one `read_many`: the parameters of a GPT of 24 layers."""


def main() -> int:
    options = parse_options()
    if not torch.cuda.is_available():
        print("no CUDA device here: nothing to measure")
        return 0
    device = torch.device("cuda", torch.cuda.current_device())
    reads = FusedReads(device)
    if reads.why_not:
        print(f"no fused kernel here: {reads.why_not}")
        return 1
    rows = torch.empty(MANY, len(COLUMNS), dtype=torch.float64, device=device)
    fill_identities(rows)
    wanted = [(name, mebibytes) for name in options.dtypes for mebibytes in options.mebibytes]
    sizes = [measure_size(*each, options.rounds, reads, rows) for each in wanted if has_room(*each)]
    print_table(sizes)
    host = host_times(reads, rows)
    for name, microseconds in host.items():
        print(f"{name:<40} {microseconds:>8.1f} us of the host")
    settings = {"device": torch.cuda.get_device_name(device), "torch": torch.__version__, "rounds": options.rounds}
    print(json.dumps({"benchmark": "kernel", "settings": settings, "sizes": sizes, "host_us": host}))
    return 0


def has_room(name: str, mebibytes: float) -> bool:
    """Whether two tensors, their copies and the float32 that they are made of fit the device's free memory."""
    itemsize = getattr(torch, name).itemsize
    free_bytes, _ = torch.cuda.mem_get_info()
    return (4 + 8 / itemsize) * mebibytes * (1 << 20) < free_bytes


def measure_size(name: str, mebibytes: float, rounds: int, reads: FusedReads, rows: Tensor) -> dict[str, float | str]:
    """GB/s moved by a copy, by the fused kernel and by torch's operations, each over tensors of one size."""
    dtype = getattr(torch, name)
    numel = max(1, int(mebibytes * (1 << 20)) // dtype.itemsize)
    count = max(2, min(64, CACHE_BYTES // (numel * dtype.itemsize)))
    tensors = [torch.randn(numel, device=rows.device).to(dtype) for _ in range(count)]
    copies = [torch.empty_like(tensor) for tensor in tensors]
    row, address = rows[0], rows.data_ptr()

    def copy() -> None:
        for target, tensor in zip(copies, tensors, strict=True):
            target.copy_(tensor)

    def fused() -> None:
        for tensor in tensors:
            reads.read(address, tensor)

    def with_torch() -> None:
        for tensor in tensors:
            merge(row, measure(tensor, torch.float64))

    nbytes = count * numel * dtype.itemsize
    found = {"copy": 2 * nbytes / device_s(copy, rounds), "fused": nbytes / device_s(fused, rounds)}
    found["torch"] = nbytes / device_s(with_torch, max(3, rounds // 5))
    return {"dtype": name, "mebibytes": mebibytes, **{way: rate / 1e9 for way, rate in found.items()}}


def device_s(work: Callable[[], None], rounds: int) -> float:
    """Median seconds of the device for one call of `work`, after two that are not counted."""
    events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(rounds)]
    work()
    work()
    for began, ended in events:
        torch.cuda._sleep(2_000_000)  # a millisecond's lead for the host, so that launches do not show
        began.record()
        work()
        ended.record()
    torch.cuda.synchronize()
    return statistics.median(began.elapsed_time(ended) for began, ended in events) / 1e3


def host_times(reads: FusedReads, rows: Tensor) -> dict[str, float]:
    """Microseconds of the host for a launch, for `read_many`, and for what torch's operations cost."""
    small = [torch.randn(1024, 8, device=rows.device, dtype=torch.bfloat16) for _ in range(MANY)]
    places = [(rows[index].data_ptr(), tensor) for index, tensor in enumerate(small)]
    row = rows[0]
    return {
        "read": host_us(lambda: [reads.read(address, tensor) for address, tensor in places]) / MANY,
        f"read_many of {MANY}": host_us(lambda: reads.read_many(places)),
        "torch operations": host_us(lambda: [merge(row, measure(tensor, torch.float64)) for tensor in small]) / MANY,
    }


def host_us(work: Callable[[], object]) -> float:
    """Median microseconds of a call, the device being idle before each."""
    taken_s = []
    for _ in range(20):
        torch.cuda.synchronize()
        started_s = time.perf_counter()
        work()
        taken_s.append(time.perf_counter() - started_s)
    return 1e6 * statistics.median(taken_s)


def print_table(sizes: list[dict[str, float | str]]) -> None:
    print(f"{'dtype':<15} {'MiB':>8} {'copy GB/s':>10} {'fused GB/s':>11} {'of a copy':>10} {'torch GB/s':>11}")
    for size in sizes:
        share = float(size["fused"]) / float(size["copy"])
        figures = f"{size['copy']:>10.0f} {size['fused']:>11.0f} {share:>10.0%} {size['torch']:>11.0f}"
        print(f"{size['dtype']:<15} {size['mebibytes']:>8g} {figures}")


def parse_options() -> argparse.Namespace:
    names = [str(dtype).removeprefix("torch.") for dtype in FORMATS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtypes", nargs="+", choices=names, default=names)
    parser.add_argument("--mebibytes", nargs="+", type=float, default=[0.0625, 1, 16, 256, 2048], help="of a tensor")
    parser.add_argument("--rounds", type=int, default=30)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
