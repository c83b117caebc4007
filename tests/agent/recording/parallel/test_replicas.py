"""Checksums of replicas: what they notice, which parameter has its turn when, and what is not replicated.

That ranks read the same, and what they find, is in tests/e2e/test_replicas.py, with four of them.
"""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks import noop_hook
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import post_localSGD_hook
from torch.nn.parallel import DistributedDataParallel

import rangewatch
from rangewatch.core.guard import Guard
from rangewatch.recording.events import Drops, Events, OpenStep
from rangewatch.recording.level import Cost
from rangewatch.recording.observer import Observer
from rangewatch.recording.parallel.placements import Layout, own_hook, plain_part, why_not
from rangewatch.recording.parallel.replicas import ReplicaReads
from rangewatch.recording.tensor_names import TensorNames
from rangewatch.statistics import AXIS_MODULUS, balanced, checksum, weight_of
from tests.agent.doubles import own_buffer
from tests.agent.ingest_double import IngestDouble

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn)
SIZES = (1, 7, 100, checksum.WIDTH * 2, checksum.WIDTH * 2 + 1, 5 * checksum.WIDTH + 3)


def values(size: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(size)).to(dtype)


def both(tensor: Tensor) -> float:
    """The checksum, the same in either way."""
    found = checksum.of_host(tensor)
    assert found == checksum.on_device([tensor])[0].item()
    assert found == int(found) and 1 <= found <= 2**53
    return found


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_flipped_bit_shows(dtype: torch.dtype) -> None:
    tensor = values(9, dtype)
    data = tensor.view(torch.uint8)
    found = {both(tensor)}
    for byte in range(len(data)):
        for bit in range(8):
            data[byte] ^= 1 << bit
            found.add(both(tensor))
            data[byte] ^= 1 << bit
    assert len(found) == 8 * len(data) + 1, "each is another one"


@pytest.mark.parametrize("size", SIZES)
def test_any_place_shows(size: int) -> None:
    tensor = values(size)
    bits, usual = tensor.view(torch.int32), both(tensor)
    for place in {0, size // 3, size // 2, size - 1}:
        for bit in (1, 1 << 22, -(1 << 31)):
            bits[place] ^= bit
            assert both(tensor) != usual, (place, bit)
            bits[place] ^= bit
    assert both(tensor) == usual


def test_swapped_elements_and_other_shapes_of_damage_show() -> None:
    tensor = values(4 * checksum.WIDTH)
    usual = both(tensor)
    for first, second in ((0, 1), (3, 900), (10, 2000), (2 * checksum.WIDTH, 2 * checksum.WIDTH + 2)):
        swapped = tensor.clone()
        swapped[first], swapped[second] = tensor[second], tensor[first]
        assert both(swapped) != usual
    signs = torch.ones(2 * checksum.WIDTH)
    signs[5] = -1.0
    moved = signs.roll(2)
    assert both(signs) != both(moved)
    assert len({both(torch.zeros(3)), both(-torch.zeros(3)), both(torch.zeros(3) * torch.inf)}) == 3


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES)
def test_the_same_bits_wherever_they_lie(dtype: torch.dtype, size: int) -> None:
    tensor = values(size, dtype)
    beside = torch.cat([tensor[:1], tensor])[1:]
    strided = torch.stack([tensor, tensor], 1)[:, 0]
    assert both(beside) == both(strided) == both(tensor)
    matrix = values(37 * 53, torch.float32).view(37, 53)
    assert both(matrix.t()) == both(matrix.t().contiguous()) != both(matrix)
    assert both(values(24).view(1, 2, 3, 4).contiguous(memory_format=torch.channels_last)) == both(values(24))
    assert both(torch.tensor(3.0)) == both(torch.tensor([3.0]))


def test_many_at_once() -> None:
    tensors = [values(size) for size in SIZES]
    assert checksum.on_device(tensors).tolist() == [checksum.of_host(each) for each in tensors]


class Reads:
    """Which parameters are read at which step. Everything is real but that there is another rank."""

    def __init__(self, model: nn.Module, every: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Layout, "world_size", 2)
        self.names, self.buffer = TensorNames(), own_buffer()
        self.observer = Observer(self.names, self.buffer, Cost(100.0), Guard())
        for fqn, parameter in model.named_parameters():
            self.observer.number(parameter, fqn, "grad", 0, "Parameter")
        events = Events(OpenStep(0), self.buffer.mirror, Drops())
        self.reads = ReplicaReads(self.observer, self.names, Layout(model, (), True, 0), every, [], events, Guard())

    def at(self, step: int) -> dict[str, float]:
        self.reads.begin_step(step)
        self.reads.read_now()
        self.reads.read_now()  # the step is closed: nothing is left to read
        row = self.buffer.row.columns["checksum_max"]
        found = {self.names.entries[number].fqn: value for number, value in enumerate(row) if value}
        if self.buffer.is_full:
            self.buffer.take()
        self.buffer.close(step)
        return found


def model_of(layers: int) -> nn.Module:
    return nn.Sequential(*(nn.Linear(16, 16) for _ in range(layers)))


@pytest.mark.parametrize("every", [1, 3, 8, 50])
def test_each_has_its_turn_by_the_number_of_the_step(every: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of(6)
    names = [name for name, _ in model.named_parameters()]
    usual, later = Reads(model, every, monkeypatch), Reads(model, every, monkeypatch)
    assert sorted(usual.at(0)) == sorted(names), "all before the first update"
    first = [usual.at(step) for step in range(every, 4 * every)]
    assert sorted(name for step in first[:every] for name in step) == sorted(names)
    assert first == first[:every] * 3
    assert sorted(later.at(every + 1)) == sorted(names)
    assert [later.at(step) for step in range(every + 2, 4 * every)] == first[2:], "a rank that began anew"
    parameters = dict(model.named_parameters())
    most = max(sum(parameters[name].nbytes for name in step) for step in first)
    total = sum(each.nbytes for each in parameters.values())
    assert most <= total / every + max(each.nbytes for each in parameters.values())


def test_what_is_no_replica_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of(2)
    model[0].weight.requires_grad_(False)
    model[1].weight.tensor_model_parallel = True  # as Megatron marks its parts
    assert set(Reads(model, 1, monkeypatch).at(0)) == {"0.bias", "1.bias"}
    assert plain_part(torch.randn(3).to_sparse()) is plain_part(torch.empty(2, device="meta")) is None


def test_a_parameter_that_is_gone_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of(2)
    reads = Reads(model, 1, monkeypatch)
    assert len(reads.at(0)) == 4
    model[1] = nn.Linear(16, 16)
    assert set(reads.at(1)) == {"0.weight", "0.bias"}


@pytest.mark.parametrize("reported", [False, True])
def test_one_process_reads_none(ingest: IngestDouble, reported: bool) -> None:
    model = model_of(2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with rangewatch.attach(model, optimizer, url=ingest.url, replica_every=1, replicated=reported) as handle:
        for _ in range(3):
            model(torch.randn(4, 16)).sum().backward()
            optimizer.step()
        assert not handle.stats()["faults"]
    assert all("checksum_max" not in batch.ranges.columns for batch in ingest.batches if batch.ranges)


@pytest.mark.parametrize("size", [2, 3, 7, 1024])
def test_the_weighted_checksums_of_ranks_that_are_alike_add_up_to_0(size: int) -> None:
    for seed in range(5):
        found = both(values(50 + seed))
        weights = [weight_of(size, index) for index in range(size)]
        parts = [balanced(found, weight) for weight in weights]
        on_device = [float(balanced(torch.tensor([found], dtype=torch.float64), each)) for each in weights]
        assert parts == on_device and all(0 <= each < AXIS_MODULUS for each in parts)
        assert sum(parts) < 2**53 and sum(parts) % AXIS_MODULUS == 0
        parts[-1] = balanced(both(values(200 + seed)), weights[-1])
        assert sum(parts) % AXIS_MODULUS != 0


def test_the_numbers_never_change() -> None:
    """Ranks of one run may have other releases: a checksum of the same bits is the same in all."""
    assert both(torch.arange(100, dtype=torch.float32)) == 3325996895709912
    tensor = values(3 * checksum.WIDTH + 5)
    assert both(tensor) == by_words(tensor.numpy().tobytes())


def by_words(data: bytes) -> int:
    """The checksum as it is defined, a word at a time in Python's own whole numbers."""
    mask = 2**64 - 1

    def mixed(word: int) -> int:
        word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 & mask
        word = (word ^ word >> 27) * 0x94D049BB133111EB & mask
        return word ^ word >> 31

    sums = [0] * 1021
    for place in range(0, len(data), 8):
        sums[place // 8 % 1021] += int.from_bytes(data[place : place + 8], "little")
    rows = [mixed((place + 1) * 0x9E3779B97F4A7C15 & mask) for place in range(1021)]
    total = sum(mixed(each + row & mask) for each, row in zip(sums, rows, strict=True))
    return (mixed(total & mask) >> 11) + 1


def test_by_which_hooks_ranks_may_come_to_differ() -> None:
    """Of a hook of the user's nobody knows whether it reduces: ranks are compared, and it is named."""

    def mine(state: object, bucket: object) -> None: ...

    def wrapper(hook: object) -> Any:
        made: Any = DistributedDataParallel.__new__(DistributedDataParallel)
        vars(made).update(
            _join_config=SimpleNamespace(enable=False), require_backward_grad_sync=True, _comm_hooks=[(hook, None)]
        )  # fmt: skip
        return made

    assert why_not(wrapper(mine)) == "" and own_hook(wrapper(mine)).endswith("mine")
    assert why_not(wrapper(functools.partial(mine, 1))) == ""
    assert why_not(wrapper(allreduce_hook)) == own_hook(wrapper(allreduce_hook)) == ""
    assert why_not(wrapper(noop_hook)) and not own_hook(wrapper(noop_hook))
    assert why_not(wrapper(post_localSGD_hook))
