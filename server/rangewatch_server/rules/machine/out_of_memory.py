"""A rank ran out of memory; and whether its memory had grown before."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rangewatch.wire.events import Died, Failed
from rangewatch_server.machines.gpus import GPU, HOST
from rangewatch_server.query.events import StoredEvent
from rangewatch_server.query.samples import newest, samples
from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.phrases import loader_with
from rangewatch_server.rules.rule import Finding, Remedy, Rule, Threshold, Thresholds

GIB = 2**30
MOST = 8
LEAST_ROWS = 10
WINDOW_NS = 7_200 * 10**9
"""Of samples before the end: 7,200 at one a second, of each GPU. A run of weeks has more than can be read at once."""

_RECOMPUTE = """\
from torch.utils.checkpoint import checkpoint

def recomputed(forward):
    return lambda *args, **kwargs: checkpoint(forward, *args, use_reentrant=False, **kwargs)

for each in model.modules():
    if isinstance(each, torch.nn.ModuleList):  # the blocks of a transformer
        for block in each:
            block.forward = recomputed(block.forward)"""


def check(evidence: Evidence, limits: Thresholds) -> Iterator[Finding]:
    """One finding a rank that failed so, or whose process the kernel killed for it."""
    reported: set[int] = set()
    for event in evidence.events(Failed.KIND, Died.KIND):
        failed = event.read(Failed) if event.kind == Failed.KIND else None
        is_device = failed is not None and failed.out_of_memory
        if event.rank in reported or len(reported) == MOST or not (is_device or _killed(event)):
            continue
        reported.add(event.rank)
        yield _finding(evidence, event, failed or Failed(), limits)


def _killed(event: StoredEvent) -> bool:
    died = event.read(Died) if event.kind == Died.KIND else None
    return died is not None and (died.oom_kills or 0) > 0


def _finding(evidence: Evidence, event: StoredEvent, failed: Failed, limits: Thresholds) -> Finding:
    is_device = failed.out_of_memory
    used = _growth(evidence, event.rank, is_device=is_device)
    grew = used is not None and used[1] >= used[0] * (1 + limits["growth_share"])
    where = "its GPU's memory" if is_device else "its host's or container's memory"
    return Finding(
        rank=event.rank, step=event.step if event.step >= 0 else None, subject="memory",
        summary=f"Rank {event.rank} ran out of {where}.",
        evidence=(_message_of(event), *_figures(failed), *_used(used, grew)),
        remedy=tuple(_remedies(is_device=is_device, grew=grew)),
    )  # fmt: skip


def _message_of(event: StoredEvent) -> str:
    return f"It {event.message}." if event.kind == Died.KIND else event.message[:500]


def _figures(failed: Failed) -> Iterator[str]:
    for name, numbers in failed.devices.items():
        if {"allocated_peak_bytes", "reserved_bytes", "total_bytes"} <= numbers.keys():
            peak, held, total = (
                numbers[key] / GIB for key in ("allocated_peak_bytes", "reserved_bytes", "total_bytes")
            )
            yield f"GPU {name}: {peak:.1f} GiB allocated at the peak, {held:.1f} held of {total:.1f} GiB."


def _growth(evidence: Evidence, rank: int, *, is_device: bool) -> tuple[float, float] | None:
    """Bytes in use in the last `WINDOW_NS`: the median of the first half of the samples, and of the last tenth.

    None with too few samples.
    """
    column = "memory_used_bytes"
    source = GPU if is_device else HOST
    ends_ns = [each.time_ns for each in newest(evidence.run, source) if each.rank == rank]
    start_ns = max(ends_ns) - WINDOW_NS if ends_ns else None
    chunks = samples(evidence.run, source, [rank], start_ns=start_ns)
    used = np.concatenate([each.columns[column] for each in chunks if column in each.columns] or [np.zeros(0)])
    used = used[np.isfinite(used)]
    if len(used) < LEAST_ROWS:
        return None
    return float(np.median(used[: len(used) // 2])), float(np.median(used[-max(1, len(used) // 10) :]))


def _used(used: tuple[float, float] | None, grew: bool) -> Iterator[str]:
    if used is not None:
        before, after = (each / GIB for each in used)
        had = "had grown" if grew else "had not grown"
        yield f"Memory in use {had}: {before:.1f} GiB before, {after:.1f} GiB at the end."


def _remedies(*, is_device: bool, grew: bool) -> Iterator[Remedy]:
    if not is_device:
        yield Remedy(
            "Load less at once in the data loader's workers, or give the job more memory.",
            loader_with("num_workers=2, prefetch_factor=2"), "the kernel ended a process of its control group",
        )  # fmt: skip
        return
    yield Remedy(
        "Make a step smaller and accumulate gradients, or recompute activations in the backward.",
        _RECOMPUTE, "the allocator found no room",
    )  # fmt: skip
    if grew:
        yield Remedy(
            "Look for what keeps tensors of earlier steps, such as a loss that is added up with its graph.",
            "total = 0.0  # before the loop\ntotal += loss.detach()  # in it",
            "memory in use had grown from step to step",
        )  # fmt: skip


RULE = Rule(
    name="out_of_memory",
    title="Out of memory",
    severity="critical",
    explanation="A rank asked for more memory than there was: on its GPU, or on its host, where the kernel ends the "
    "process. Memory that grew from step to step is a leak; memory that did not is a step that is too large.",
    check=check,
    thresholds=(Threshold("growth_share", 0.1, "of what was used", "From here on memory has grown."),),
    explains=("rank_died", "hang", "straggler"),
)
