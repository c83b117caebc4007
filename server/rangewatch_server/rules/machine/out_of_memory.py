"""A rank ran out of memory: what it asked for, who held the rest, and whether its memory had grown before."""

from __future__ import annotations

from collections.abc import Iterator

from rangewatch.wire.events import Died, Failed
from rangewatch_server.core.text import bytes_text
from rangewatch_server.machines.gpus import GPU, HOST
from rangewatch_server.query.events import StoredEvent
from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.machine.memory_growth import Growth, growth_by_steps, growth_by_time
from rangewatch_server.rules.phrases import loader_with
from rangewatch_server.rules.rule import Finding, Remedy, Rule, Threshold, Thresholds

GIB = 2**30
MOST = 8
MOST_PLACES = 4
ALLOCATED, RESIDENT = "memory_allocated_bytes", "process_resident_bytes"
"""Series of what a rank holds, by the agent."""

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
        is_failure = failed is not None and failed.out_of_memory
        if event.rank in reported or len(reported) == MOST or not (is_failure or _killed(event)):
            continue
        reported.add(event.rank)
        yield _finding(evidence, event, failed or Failed(), limits)


def _killed(event: StoredEvent) -> bool:
    died = event.read(Died) if event.kind == Died.KIND else None
    return died is not None and (died.oom_kills or 0) > 0


class _Case:
    """What is known of one failure."""

    def __init__(self, evidence: Evidence, event: StoredEvent, failed: Failed, limits: Thresholds) -> None:
        self.failed, self.then, self.limits = failed, failed.at_failure, limits
        self.is_device = failed.out_of_memory and not failed.on_host
        self.asked = failed.asked_bytes
        self.is_killed = event.kind == Died.KIND
        share = limits["growth_share"]
        series, source = (ALLOCATED, GPU) if self.is_device else (RESIDENT, HOST)
        stop = event.step + 1 if event.step >= 0 else evidence.stop
        self.own = growth_by_steps(evidence, series, event.rank, stop, share)
        self.used = None if self.own is not None else growth_by_time(evidence, source, event.rank, share)

    @property
    def growth(self) -> Growth | None:
        return self.own or self.used

    @property
    def total(self) -> int:
        """Of the device, or of what the process could have of its host; 0 where that is not known."""
        if self.is_device:
            return self.then.get("total_bytes", 0)
        return min(filter(None, (self.then.get("container_limit_bytes"), self.then.get("total_bytes"))), default=0)

    @property
    def is_too_large(self) -> bool:
        """More was asked for at once than there is in all: no batch size that trains asks for that."""
        return bool(self.total) and self.asked > self.total

    @property
    def is_fragmented(self) -> bool:
        """With what torch held for no tensor there was enough, in pieces: it gives back what lies in one of its own."""
        unallocated = self.then.get("unallocated_bytes", 0)
        return self.asked > 0 and unallocated > 0 and unallocated + self.then.get("free_bytes", 0) >= self.asked

    @property
    def is_shared(self) -> bool:
        """Without what other processes held there had been enough."""
        others, free = self.then.get("others_bytes", 0), self.then.get("free_bytes", 0)
        is_much = others >= self.limits["others_share"] * self.then.get("total_bytes", 0) > 0
        return self.asked > 0 and is_much and others + free >= self.asked


def _finding(evidence: Evidence, event: StoredEvent, failed: Failed, limits: Thresholds) -> Finding:
    case = _Case(evidence, event, failed, limits)
    where = "its GPU's memory" if case.is_device else "its host's or container's memory"
    growth = case.growth
    return Finding(
        rank=event.rank, step=event.step if event.step >= 0 else None, subject="memory",
        summary=f"Rank {event.rank} ran out of {where}{_asked(case)}.",
        evidence=(_message_of(event), *_at_failure(case), *_figures(failed), *_held(failed), *_used(case, event.rank)),
        remedy=tuple(_remedies(case)),
        facts={"asked_bytes": case.asked, "since_step": None if growth is None else growth.since_step},
    )  # fmt: skip


def _asked(case: _Case) -> str:
    free = case.then.get("free_bytes", case.then.get("available_bytes")) if case.asked else None
    room = case.then.get("container_limit_bytes", 0) - case.then.get("container_used_bytes", 0)
    if free is not None and not case.is_device and "container_limit_bytes" in case.then:
        free = min(free, max(0, room))
    asked = f": it asked for {bytes_text(case.asked)}" if case.asked else ""
    return asked if free is None else f"{asked} with {bytes_text(free)} free"


def _message_of(event: StoredEvent) -> str:
    return f"It {event.message}." if event.kind == Died.KIND else event.message[:500]


def _at_failure(case: _Case) -> Iterator[str]:
    """What the figures of the moment mean."""
    then = case.then
    if case.is_too_large:
        yield f"That is more than all there is, {bytes_text(case.total)}: a shape is not what it should be."
    if case.is_fragmented:
        beside = f", beside {bytes_text(then['allocated_bytes'])} of tensors" if "allocated_bytes" in then else ""
        yield (
            f"PyTorch held {bytes_text(then['unallocated_bytes'])} in which no tensor lay{beside}: "
            "with what was free that was enough, but in pieces."
        )
    elif case.is_device and case.asked and "unallocated_bytes" in then and "allocated_bytes" in then:
        yield (
            f"Tensors took {bytes_text(then['allocated_bytes'])}, and PyTorch held "
            f"{bytes_text(then['unallocated_bytes'])} more for none: not fragmentation."
        )
    if case.is_shared:
        yield f"Other processes held {bytes_text(then['others_bytes'])} of the same GPU."


def _figures(failed: Failed) -> Iterator[str]:
    """Of the devices, as they were afterwards."""
    for name, numbers in failed.devices.items():
        if {"allocated_peak_bytes", "reserved_bytes", "total_bytes"} <= numbers.keys():
            peak, held, total = (
                numbers[key] / GIB for key in ("allocated_peak_bytes", "reserved_bytes", "total_bytes")
            )
            split = numbers.get("inactive_split_bytes", 0)
            parts = f"; {bytes_text(split)} of that in parts of segments that tensors still use" if split else ""
            yield f"GPU {name}: {peak:.1f} GiB allocated at the peak, {held:.1f} held of {total:.1f} GiB{parts}."


def _held(failed: Failed) -> Iterator[str]:
    known = [each for each in failed.blocks if each.total_bytes]
    if known:
        parts = (
            f"{bytes_text(each.total_bytes)} in {each.count:,} block{'s' if each.count != 1 else ''} from "
            f"{each.place or 'a place that is not known'}"
            for each in known[:MOST_PLACES]
        )
        yield f"What was live and where it was allocated, the most first: {'; '.join(parts)}."


def _used(case: _Case, rank: int) -> Iterator[str]:
    growth = case.growth
    if growth is None:
        return
    before, after = bytes_text(growth.before_bytes), bytes_text(growth.after_bytes)
    if case.own is None:
        had = "had grown" if growth.has_grown else "had not grown"
        yield (
            f"Memory in use {had}: {growth.before_bytes / GIB:.1f} GiB before, {growth.after_bytes / GIB:.1f} GiB at "
            "the end."
        )
        return
    what = f"Tensors of rank {rank}" if case.is_device else f"The process of rank {rank}"
    if not growth.has_grown:
        yield f"{what} took {after} between steps, and had not grown: {before} before."
        if case.is_killed:
            yield "What grew is not this process itself: its data loader's workers, say, are others."
    elif growth.is_at_once:
        yield f"{what} took {before} until step {growth.since_step} and {after} at the end: more at once, and no leak."
    elif growth.is_over:
        yield (
            f"{what} took {before} at step {growth.since_step} and {after} from about step {growth.until_step} on: no "
            "more since then, and no leak."
        )
    else:
        a_step = growth.a_step_bytes or 0.0
        yield (
            f"{what} took {before} at step {growth.since_step} and {after} at the end: {bytes_text(a_step)} more with "
            "each step since."
        )


def _remedies(case: _Case) -> Iterator[Remedy]:
    if case.is_too_large:
        yield Remedy(
            "Read the traceback: the line that allocates, and the shapes that its sizes are made of.",
            "", "one allocation asked for more than there is in all",
        )  # fmt: skip
        return
    yield from _of_device(case) if case.is_device else _of_host(case)
    growth = case.growth
    is_own = case.is_device or case.own is not None  # else what grew may be any process of the host
    if growth is not None and growth.is_leak and is_own:
        yield Remedy(
            "Look for what keeps tensors of earlier steps, such as a loss that is added up with its graph.",
            "total = 0.0  # before the loop\ntotal += loss.detach()  # in it",
            "memory in use had grown from step to step",
        )  # fmt: skip


def _of_device(case: _Case) -> Iterator[Remedy]:
    if case.is_shared:
        yield Remedy(
            "See which other processes are on this GPU, and end those that were left behind.",
            "nvidia-smi --query-compute-apps=pid,used_memory --format=csv  # on AMD GPUs: amd-smi process",
            "without what they held there had been enough",
        )  # fmt: skip
    if case.is_fragmented:
        yield Remedy(
            "Let the allocator's segments grow instead of being cut in pieces.",
            "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True  # then start the job as before",
            "there was room enough, in pieces",
        )  # fmt: skip
    yield Remedy(
        "Make a step smaller and accumulate gradients, or recompute activations in the backward.",
        _RECOMPUTE, "the allocator found no room",
    )  # fmt: skip
    if not case.failed.blocks:
        yield Remedy(
            "Have torch record who allocates: the next such finding says which lines held most.",
            "if torch.cuda.is_available():  # before the first step\n"
            "    torch.cuda.memory._record_memory_history(max_entries=100_000, stacks=\"python\")",
            "it was not recorded",
        )  # fmt: skip


def _of_host(case: _Case) -> Iterator[Remedy]:
    because = "the kernel ended a process of its control group" if case.is_killed else "the host had no more to give"
    yield Remedy(
        "Load less at once in the data loader's workers, or give the job more memory.",
        loader_with("num_workers=2, prefetch_factor=2"), because,
    )  # fmt: skip


RULE = Rule(
    name="out_of_memory",
    title="Out of memory",
    severity="critical",
    explanation="A rank asked for more memory than there was: on its GPU, or on its host, where the kernel ends the "
    "process. Memory that grew from step to step is a leak; memory that did not is a step that is too large. With "
    "much in pieces that fit nothing it is fragmentation, and what other processes hold of a GPU is nobody's step.",
    check=check,
    thresholds=(
        Threshold("growth_share", 0.1, "of what was used", "From here on memory has grown."),
        Threshold("others_share", 0.05, "of the GPU", "From here on other processes hold much of it."),
    ),
    explains=("rank_died", "hang", "straggler"),
)
