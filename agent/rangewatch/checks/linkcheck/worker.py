"""One rank's part in one test, in a process of its own: whatever it does, it can only take itself down.

Values that are known bit by bit on every rank, and the comparison with what came over.

Which device a worker has, and which backend that allows. Runs in a worker only: a process that forks others must
not have started CUDA.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist

from rangewatch.checks.linkcheck.faults import Fault, Planted
from rangewatch.checks.linkcheck.store import Address, group_store
from rangewatch.checks.linkcheck.tasks import GLOO, NCCL, Device, Note, Task

COUNT = 1 << 16
"""Elements: 256 KiB, enough for NCCL and gloo to cut the message into pieces."""

_WHOLE = {4: torch.int32, 8: torch.int64}


def bits_of(rank: int) -> torch.Tensor:
    """(COUNT,) int32 on the CPU: every bit of a rank's own pattern is as good as thrown."""
    generator = torch.Generator().manual_seed(1_000_003 + rank)
    return torch.randint(-(2**31), 2**31, (COUNT,), dtype=torch.int64, generator=generator).to(torch.int32)


def whole_numbers(rank: int) -> torch.Tensor:
    """(COUNT,) int64: their sum over ranks is exact, overflow included."""
    return bits_of(rank).to(torch.int64) * 0x1_0000_0001


def exact_floats(rank: int) -> torch.Tensor:
    """(COUNT,) float32: sixteenths up to 64, so that the sum of 4,096 ranks is exact in any order."""
    return (bits_of(rank).remainder(2048) - 1024).to(torch.float32) / 16


def total(pattern: Callable[[int], torch.Tensor], ranks: Iterable[int]) -> torch.Tensor:
    """(COUNT,): the sum over ranks. One at a time: all of a thousand ranks' would be half a gigabyte on each."""
    first, *rest = ranks
    summed = pattern(first)
    for rank in rest:
        summed += pattern(rank)
    return summed


def first_difference(got: torch.Tensor, expected: torch.Tensor) -> str:
    """Where bits differ first, as text; "" where none does. Both (n,), of one dtype, on one device."""
    shape = _WHOLE[got.element_size()]
    got, expected = got.view(shape), expected.view(shape)
    places = (got != expected).nonzero().flatten()
    if not len(places):
        return ""
    first, digits = int(places[0]), 2 * got.element_size()
    mask = (1 << 4 * digits) - 1
    got_bits, wanted = (f"0x{int(values[first]) & mask:0{digits}x}" for values in (got, expected))
    return f"element {first} is {got_bits} and not {wanted} ({len(places)} of {len(got)} wrong)"


def find(local_rank: int) -> tuple[torch.device, Device]:
    """This rank's device, current from now on. Raises what CUDA raises when a GPU is there and does not work."""
    if not torch.cuda.is_available():
        return torch.device("cpu"), Device("cpu", why="torch sees no CUDA device")
    count = torch.cuda.device_count()
    index = local_rank % count  # Slurm and containers may show each rank its own GPU only, as number 0
    device = torch.device("cuda", index)
    torch.cuda.set_device(device)
    return device, Device(f"cuda:{index} {torch.cuda.get_device_name(index)}", _identity(index), *_backend())


def _identity(index: int) -> str:
    """The UUID; "" before torch 2.5, which does not have it: a number may be another GPU's in another container."""
    uuid = getattr(torch.cuda.get_device_properties(index), "uuid", None)
    return "" if uuid is None else str(uuid)


def _backend() -> tuple[str, str]:
    return (NCCL, "") if dist.is_nccl_available() else (GLOO, "this torch was built without NCCL")


def synchronize(device: torch.device) -> None:
    """Wait for what was queued."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


SMALL_BYTES = 8
TRIALS = 4
SMALL_OPS, LARGE_OPS = 5, 2
"""Operations of one trial. The best trial counts: noise only ever adds time."""
LINGER_S = 2.0
"""For peers to end their last operation: who leaves first closes its connections."""

Send = Callable[[Note], None]


class Part(NamedTuple):
    """Who this worker is in which test."""

    task: Task
    number_of_group: int
    rank: int
    local_rank: int
    address: Address
    faults: Sequence[Fault]

    @property
    def group(self) -> tuple[int, ...]:
        """The ranks that are tested together."""
        return self.task.groups[self.number_of_group]


def run(part: Part, send: Send) -> None:
    """Go through all phases and report each, with errors and what a library raises."""
    try:
        _Worker(part, send).run()
    except (RuntimeError, OSError, ValueError, TypeError, AssertionError) as error:
        send(Note(error=f"{type(error).__name__}: {_first_line(error)}"))


class _Worker:
    def __init__(self, part: Part, send: Send) -> None:
        self._part, self._send = part, send
        self._planted = Planted(part.faults, part.rank, part.group)

    def run(self) -> None:
        torch.set_num_threads(1)
        self._phase("device")
        self._device, device = find(self._part.local_rank)
        self._send(Note(device=device))
        self._join(self._part.task.backend or device.backend)
        self._planted.before_first_collective()
        self._phase("all_reduce")
        self._ones()
        self._phase("barrier")
        dist.barrier()
        self._phase("allocate")
        self._large = self._allocate()
        self._phase("values")
        self._values()
        if len(self._part.group) > 1:
            self._measure()
        self._end()

    def _phase(self, name: str) -> None:
        self._send(Note(phase=name))

    def _join(self, backend: str) -> None:
        self._phase("init")
        part = self._part
        if backend == GLOO:
            self._device = torch.device("cpu")
        self._store = group_store(part.address, part.task.number, part.number_of_group)
        # The supervisor's timeout is the one that counts, since it can say who is missing.
        patience = datetime.timedelta(seconds=4 * part.task.timeout_s)
        me, size = part.group.index(part.rank), len(part.group)
        dist.init_process_group(backend, store=self._store, rank=me, world_size=size, timeout=patience)

    def _ones(self) -> None:
        total = torch.ones(1, device=self._device)
        dist.all_reduce(total)
        if total.item() != len(self._part.group):
            self._send(Note(wrong=f"all_reduce of ones gave {total.item()} and not {len(self._part.group)}"))

    def _allocate(self) -> torch.Tensor:
        count = max(self._part.task.large_bytes // 4, 1)
        large = torch.arange(count, dtype=torch.int32, device=self._device)
        expected = torch.arange(count, dtype=torch.int32)
        if difference := first_difference(large.cpu(), expected):
            self._send(Note(wrong=f"memory of its own device: {difference}"))
        return torch.zeros(count, dtype=torch.float32, device=self._device)

    def _values(self) -> None:
        self._gathered()
        for name, pattern in (("int64", whole_numbers), ("float32", exact_floats)):
            mine = pattern(self._part.rank)
            self._planted.corrupt(mine)
            mine = mine.to(self._device)
            dist.all_reduce(mine)
            expected = total(pattern, self._part.group)
            if difference := first_difference(mine.cpu(), expected):
                self._send(Note(wrong=f"rank {self._part.rank} got a wrong {name} sum: {difference}"))

    def _gathered(self) -> None:
        """All ranks' bits as they come over: these show whose are wrong, which a sum does not."""
        mine = bits_of(self._part.rank)
        self._planted.corrupt(mine)
        mine = mine.to(self._device)
        came = [torch.empty_like(mine) for _ in self._part.group]
        dist.all_gather(came, mine)
        for source, values in zip(self._part.group, came, strict=True):
            if difference := first_difference(values.cpu(), bits_of(source)):
                text = f"rank {self._part.rank} got wrong values from rank {source}: {difference}"
                self._send(Note(wrong=text, sources=(source,)))

    def _measure(self) -> None:
        self._phase("latency")
        small = torch.zeros(SMALL_BYTES // 4, device=self._device)
        self._send(Note(latency_s=self._seconds_of_one(small, SMALL_OPS)))
        self._phase("busbw")
        self._send(Note(large_s=self._seconds_of_one(self._large, LARGE_OPS)))

    def _seconds_of_one(self, values: torch.Tensor, ops: int) -> float:
        self._all_reduce(values, 1)  # connections and buffers are made by the first
        return min(self._all_reduce(values, ops) for _ in range(TRIALS)) / ops

    def _all_reduce(self, values: torch.Tensor, ops: int) -> float:
        """Seconds of `ops` operations, until they are done."""
        synchronize(self._device)
        begin_s = time.perf_counter()
        for _ in range(ops):
            self._planted.delay()
            dist.all_reduce(values)
        synchronize(self._device)
        return time.perf_counter() - begin_s

    def _end(self) -> None:
        """Leave without taking the process group down, which can hang by itself and shows nothing."""
        self._phase("end")
        here, end_s = self._store.add("ended", 1), time.monotonic() + LINGER_S
        while here < len(self._part.group) and time.monotonic() < end_s:
            time.sleep(0.005)
            here = self._store.add("ended", 0)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [""])[0][:400]
