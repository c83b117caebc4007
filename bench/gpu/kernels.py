"""Every statistic of every dtype, layout and size, by the fused kernels, against plain torch operations on the device.

    python bench/gpu/kernels.py [--quick] [--dry-run]

The reference works in float64 and int64 on the whole tensor, block by block: it shares no line with the agent. Counts,
extremes and histograms must be equal; `sum_sq` within 1e-6, since the kernel sums a tile in float32.

`--quick` leaves out what is large: for compute-sanitizer, under which all is a hundred times slower. `--dry-run` runs
small tensors in Triton's interpreter.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator

if "--dry-run" in sys.argv:
    os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported

import torch
from checks import Checks, parser
from torch import Tensor

from rangewatch.statistics import exponents
from rangewatch.statistics.fused import FORMATS, FusedReads
from rangewatch.statistics.reduce import COLUMNS, fill_identities

BLOCK = 1 << 24
BILLION = 1_000_000_007
"""Odd, so that the last tile is not whole."""
PLANTED = {"NaN": (float("nan"),), "Inf": (float("inf"),), "-Inf and NaN": (-float("inf"), float("nan"))}


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--quick", action="store_true", help="small tensors only")
    chosen = options.parse_args()
    checks = Checks()
    device = torch.device("cpu") if chosen.dry_run else torch.device("cuda", torch.cuda.current_device())
    reads = FusedReads(device)
    if checks.that(not reads.why_not, f"no kernels here: {reads.why_not}"):
        compare = Comparison(checks, reads, device)
        for dtype in FORMATS:
            check_dtype(compare, dtype, is_small=chosen.dry_run or chosen.quick)
        check_many(compare, is_small=chosen.dry_run or chosen.quick)
        if not (chosen.quick or chosen.dry_run):
            check_large(compare)
    checks.figures["kernels"] = len(reads._compiled)
    return checks.end()


class Comparison:
    """Reads tensors and holds what comes out against the reference."""

    def __init__(self, checks: Checks, reads: FusedReads, device: torch.device) -> None:
        self.checks, self.reads, self.device = checks, reads, device

    def check(self, tensor: Tensor, what: str) -> None:
        """By `read`, `read_many`, `capture` (outside of one) and `count_exponents`."""
        rows = self.rows(3)
        counts = torch.zeros(exponents.BINS, dtype=torch.int64, device=self.device)
        if tensor.numel() == 0:
            return  # the agent reads none
        is_read = self.reads.read(rows[0].data_ptr(), tensor) and self.reads.count_exponents(counts.data_ptr(), tensor)
        if not self.checks.that(is_read, f"{what}: not read: {self.reads.why_not or self.reads.why_no_exponents}"):
            return
        self.checks.equal(self.reads.read_many([(rows[1].data_ptr(), tensor)]), [], f"{what}: left by read_many")
        ways = {"read": rows[0], "read_many": rows[1]}
        if self.reads.capture(rows[2].data_ptr(), tensor):
            ways["capture"] = rows[2]
            self.checks.equal(rows[2, -2:].tolist(), [1.0, float(tensor.numel())], f"{what}: calls and elements")
        expected, histogram = reference(tensor)
        for way, row in ways.items():
            self.same(row, expected, f"{what}, {way}")
        self.checks.that(torch.equal(counts, histogram), f"{what}: exponents differ in {differing(counts, histogram)}")

    def same(self, row: Tensor, expected: dict[str, float], what: str) -> None:
        """A row is as it should be."""
        for name, value in zip(COLUMNS, row.tolist(), strict=False):
            wanted = expected[name]
            bound = 1e-6 * wanted if name == "sum_sq" and wanted < float("inf") else 0.0
            is_same = value == wanted or abs(value - wanted) <= bound
            self.checks.that(is_same, f"{what}: {name} {value!r}, expected {wanted!r}")

    def rows(self, count: int) -> Tensor:
        """Rows with the two columns of calls and elements behind."""
        rows = torch.zeros(count, len(COLUMNS) + 2, dtype=torch.float64, device=self.device)
        fill_identities(rows[:, : len(COLUMNS)])
        return rows


def check_dtype(compare: Comparison, dtype: torch.dtype, *, is_small: bool) -> None:
    name, form = str(dtype).removeprefix("torch."), FORMATS[dtype]
    tile = form.lanes * form.unroll
    sizes = [17] if is_small else [1, 2, 15, 16, 17, tile - 1, tile, tile + 1, 100_003, 1_048_577, 12 * 132 * tile + 77]
    for size in sizes:
        compare.check(random(size, dtype, compare.device), f"{name}, {size} elements")
    if compare.device.type == "cpu" and dtype not in (torch.bfloat16, torch.float8_e4m3fn):
        return  # the interpreter is slow, and tests/agent/statistics/test_fused.py has it look at the others
    whole = random(60 * 70 if is_small else 3000 * 700, dtype, compare.device)
    for layout, shown in layouts(whole.reshape(60, 70) if is_small else whole.reshape(3000, 700)):
        compare.check(shown, f"{name}, {layout}")
    for planted, values in PLANTED.items():
        for place in places(tile + 33)[: 2 if is_small else None]:
            tensor = random(tile + 33, dtype, compare.device)
            tensor[place] = values[0]
            tensor[(place + 7) % (tile + 33)] = values[-1]
            compare.check(tensor, f"{name}, {planted} at {place}")
    info = torch.finfo(dtype)
    ends = [0.0, info.smallest_normal * info.eps, info.smallest_normal, 1.0, info.max]
    both = torch.tensor([*ends, *(-end for end in ends)], dtype=torch.float64).to(dtype).to(compare.device)
    compare.check(both, f"{name}, the ends of its range")
    compare.check(torch.zeros(1000, dtype=dtype, device=compare.device), f"{name}, zeros alone")
    compare.check(torch.full((1000,), float("nan")).to(dtype).to(compare.device), f"{name}, NaN alone")
    if dtype.itemsize <= 2 and not (compare.device.type == "cpu" and dtype.itemsize == 2):
        info = torch.iinfo({1: torch.int8, 2: torch.int16}[dtype.itemsize])
        patterns = torch.arange(info.min, info.max + 1, device=compare.device)
        compare.check(patterns.to(getattr(torch, info.dtype)).view(dtype), f"{name}, every bit pattern")


def layouts(whole: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Names and views of a matrix with rows and columns that are multiples of 10."""
    cube = whole.reshape(whole.shape[0] // 10, 10, whole.shape[1])
    yield "a scalar", whole[3, 3]
    yield "transposed", whole.t()
    yield "every third column", whole[:, ::3]
    yield "every second row", whole[::2]
    yield "without its first row and column", whole[1:, 1:]
    yield "not aligned", whole.flatten()[1:]
    yield "a row", whole[1]
    yield "permuted", cube.permute(1, 2, 0)
    yield "three strides", cube[::2, ::3, ::2]
    yield "expanded", whole[:1].expand(50, whole.shape[1])
    yield "an expanded scalar", whole[3, 3].expand(9, 9)
    yield "overlapping", whole.flatten().as_strided((50, 8), (3, 1))
    yield "no elements", whole[:0]


def check_many(compare: Comparison, *, is_small: bool) -> None:
    """Many tensors in one call, several of them into one row."""
    sizes = [1, 9, 4096, 70_001] if is_small else [1, 9, 4096, 70_001, 1 << 20, 5_000_003] * 8
    kinds = list(FORMATS)
    tensors = [random(size, kinds[place % len(kinds)], compare.device) for place, size in enumerate(sizes)]
    rows = compare.rows(len(tensors) + 1)
    both = [tensors[0], random(3333, kinds[0], compare.device)]
    pairs = [(row.data_ptr(), tensor) for row, tensor in zip(rows, tensors, strict=False)]
    left = compare.reads.read_many([*pairs, *((rows[-1].data_ptr(), tensor) for tensor in both)])
    compare.checks.equal(left, [], "left by read_many")
    for row, tensor in zip(rows, tensors, strict=False):
        compare.same(row, reference(tensor)[0], f"{tensor.dtype} of {tensor.numel()} among many")
    compare.same(rows[-1], reference(torch.cat(both))[0], "two of them in one row")


def check_large(compare: Comparison) -> None:
    """A billion elements, with what is not finite at either end; and offsets beyond 32 bits."""
    for dtype in (torch.float8_e5m2, torch.bfloat16, torch.float32):
        needed = BILLION * dtype.itemsize + (4 << 30)
        if torch.cuda.mem_get_info()[0] < needed:
            compare.checks.notes.append(f"{dtype}: no {needed >> 30} GiB free for a billion elements")
            continue
        tensor = torch.empty(BILLION, dtype=dtype, device=compare.device)
        for block in torch.split(tensor, BLOCK):
            block.copy_(torch.randn(block.shape, device=compare.device))
        tensor[0], tensor[-1] = float("nan"), -float("inf")
        compare.check(tensor, f"{dtype}, a billion elements")
        square = tensor[: 31_000 * 31_000].view(31_000, 31_000)
        compare.check(square[:, : 31_000 - 3], f"{dtype}, 961 million elements in rows with gaps")
        del tensor, square
    if torch.cuda.mem_get_info()[0] > 6 << 30:
        beyond = torch.zeros((1 << 32) + 5, dtype=torch.uint8, device=compare.device)
        beyond[-1], beyond[-2] = 0x7C, 0x3C
        compare.check(beyond.view(torch.float8_e5m2), "float8_e5m2, 2^32 + 5 elements")


def random(numel: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Of all magnitudes that the dtype has, with zeros."""
    generator = torch.Generator(device).manual_seed(numel)
    info = torch.finfo(dtype)
    values = torch.randn(numel, dtype=torch.float64, device=device, generator=generator)
    powers = torch.rand(numel, dtype=torch.float64, device=device, generator=generator) * 24 - 12
    values = torch.where(values.abs() < 0.05, 0.0, values * torch.exp2(powers))
    return values.clamp(-info.max, info.max).to(dtype)


def places(numel: int) -> tuple[int, ...]:
    """The first, the last, and some between that are always the same."""
    between = torch.randint(1, numel - 1, (3,), generator=torch.Generator().manual_seed(numel))
    return 0, numel - 1, *between.tolist()


def reference(tensor: Tensor) -> tuple[dict[str, float], Tensor]:
    """The statistics and the histogram, by torch operations that the agent does not use."""
    totals: dict[str, list[float]] = {name: [] for name in COLUMNS}
    counts = torch.zeros(exponents.BINS, dtype=torch.int64, device=tensor.device)
    smallest_normal = torch.finfo(tensor.dtype).smallest_normal
    for block in blocks(tensor):
        values = block.to(torch.float64)
        is_nan, is_inf = values != values, values.abs() == float("inf")
        finite = values[~(is_nan | is_inf)].abs()
        above = finite[finite > 0]
        of_block: dict[str, Callable[[], float]] = {
            "amax": lambda finite=finite: finite.max().item() if finite.numel() else 0.0,
            "amin": lambda above=above: above.min().item() if above.numel() else float("inf"),
            "nan_count": lambda is_nan=is_nan: float(is_nan.sum()),
            "inf_count": lambda is_inf=is_inf: float(is_inf.sum()),
            "zero_count": lambda finite=finite, above=above: float(finite.numel() - above.numel()),
            "subnormal_count": lambda above=above: float((above < smallest_normal).sum()),
            "sum_sq": lambda finite=finite: (finite * finite).sum().item(),
        }
        for name, of in of_block.items():
            totals[name].append(of())
        powers = torch.frexp(above).exponent.long() - 1 - exponents.FIRST
        counts += torch.bincount(powers.clamp(0, exponents.BINS - 1), minlength=exponents.BINS)
    merged = {name: sum(values) for name, values in totals.items()}
    return merged | {"amax": max(totals["amax"]), "amin": min(totals["amin"])}, counts


def blocks(tensor: Tensor) -> Iterator[Tensor]:
    if tensor.numel() <= BLOCK:
        yield tensor.reshape(-1)
    elif tensor.is_contiguous():
        yield from torch.split(tensor.view(-1), BLOCK)
    else:
        for row in torch.split(tensor, max(1, BLOCK // tensor.shape[-1])):
            yield row.reshape(-1)


def differing(counts: Tensor, expected: Tensor) -> list[int]:
    """The exponents, at most five."""
    return ((counts != expected).nonzero().flatten()[:5] + exponents.FIRST).tolist()


if __name__ == "__main__":
    sys.exit(main())
