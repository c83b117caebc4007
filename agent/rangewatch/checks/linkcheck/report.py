"""A result as text: one line a rank, two matrices, and the verdict in words."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from rangewatch.checks.linkcheck.group_result import ranges

Result = dict[str, Any]

MATRIX_RANKS = 16
"""More are no longer read at a glance: then only the worst links are listed."""
LISTED = 10


def text(result: Result, width: int | None = None) -> Iterator[str]:
    """The lines of the report; matrices in parts that fit `width` characters, where there is a terminal."""
    yield from map(_rank, result["ranks"], [result] * result["world_size"])
    if result["pairs"]:
        yield ""
        yield from _tables(result, width)
    yield ""
    yield from verdict(result)
    yield f"{'OK' if result['ok'] else 'BAD'} after {result['duration_s']:.1f} s"


def verdict(result: Result) -> Iterator[str]:
    """What was found, ranks first; one line when all is well."""
    errors = {(each["a"], each["b"]): each["error"] for each in result["pairs"]}
    if result["ok"]:
        yield f"all {result['world_size']} ranks and all links tested are fine{_instead(result)}"
    for each in result["ranks"]:
        if not each["ok"]:
            yield f"rank {each['rank']} is bad ({each['fault']}): {each['error']}"
    for first, second in result["bad_hosts"]:
        yield f"no pair of ranks between {first} and {second} works: look at the network between them"
    for a, b in result["bad_pairs"]:
        yield f"the link of ranks {a} and {b} is bad: {errors[a, b]}"
    for a, b in result["slow_pairs"]:
        yield f"the link of ranks {a} and {b} is slow, and no other of theirs"
    yield from _groups(result)


def _instead(result: Result) -> str:
    """A check by gloo says nothing of the GPUs' links, which one who has GPUs must not overlook."""
    has_gpus = any(rank["device"].startswith("cuda") for rank in result["ranks"])
    return f", by gloo and not NCCL: {result['backend_reason']}" if has_gpus and result["backend_reason"] else ""


def _groups(result: Result) -> Iterator[str]:
    for group in result["bad_groups"]:
        yield f"{ranges(group)} fail together, and no smaller group of them was found to"
    if result["nccl_error"]:
        yield f"NCCL does not work here, gloo was checked instead: {result['nccl_error']}"
    if result["is_passing_again"]:
        yield f"all ranks together failed once, and passed when tried again: {result['all_ranks']['error']}"
    whole = result["all_ranks"]
    elsewhere = (result["bad_ranks"], result["bad_pairs"], result["bad_groups"], result["is_passing_again"])
    if whole and not whole["ok"] and not any(elsewhere):
        yield f"all ranks together: {whole['error']}"
    working = [each for each in result["subsets"] if each["ok"]]
    if not result["ok"] and working:
        yield f"{ranges(max((each['ranks'] for each in working), key=len))} work together"


def _rank(rank: dict[str, Any], result: Result) -> str:
    where = f"[{rank['host'] or '?'}:{'?' if rank['local_rank'] is None else rank['local_rank']}]"
    what = f": {rank['device']}, {result['backend']}" if rank["device"] else ""
    return f"{where} {'OK ' if rank['ok'] else 'BAD'} rank {rank['rank']} of {result['world_size']}{what}"


def _tables(result: Result, width: int | None) -> Iterator[str]:
    if result["world_size"] > MATRIX_RANKS:
        yield from _worst(result)
        return
    size = f"{result['message_bytes'] / 2**20:g} MiB"
    yield f"busbw of pairs in GB/s (all_reduce of {size})"
    yield from _matrix(result, width, lambda pair: _number(pair["busbw_bytes_per_s"], 1e9))
    yield "latency of pairs in us (all_reduce of 8 bytes)"
    yield from _matrix(result, width, lambda pair: _number(pair["latency_s"], 1e-6))


def _matrix(result: Result, width: int | None, cell: Callable[[dict[str, Any]], str]) -> Iterator[str]:
    cells = {(each["a"], each["b"]): _cell(each, cell) for each in result["pairs"]}
    ranks = range(result["world_size"])
    together = MATRIX_RANKS if width is None else max((width - 5) // 8, 1)
    for first in ranks[::together]:
        columns = ranks[first : first + together]
        yield " " * 5 + "".join(f"{rank:>8}" for rank in columns)
        for row in ranks:
            yield f"{row:>5}" + "".join(f"{cells.get((min(row, each), max(row, each)), '.'):>8}" for each in columns)


def _cell(pair: dict[str, Any], cell: Callable[[dict[str, Any]], str]) -> str:
    if pair["ok"] is None:
        return "-"
    return cell(pair) + "*" * pair["slow"] if pair["ok"] else "FAILED"


def _number(value: float | None, unit: float) -> str:
    return "?" if value is None else f"{value / unit:.3g}" if value / unit < 1000 else f"{value / unit:.0f}"


def _worst(result: Result) -> Iterator[str]:
    timed = [each for each in result["pairs"] if each["ok"] and each["busbw_bytes_per_s"]]
    yield f"{len(result['pairs'])} pairs; those with the least busbw:"
    for each in sorted(timed, key=lambda pair: pair["busbw_bytes_per_s"])[:LISTED]:
        rate, latency = _number(each["busbw_bytes_per_s"], 1e9), _number(each["latency_s"], 1e-6)
        yield f"  {each['a']:>5} {each['b']:>5}  {rate:>8} GB/s  {latency:>8} us{' slow' * each['slow']}"
