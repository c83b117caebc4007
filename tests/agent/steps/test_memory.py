"""Memory at the end of a step: of the process as the kernel counts it, of a device as its allocator does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import rangewatch
from rangewatch.steps import memory
from rangewatch.steps.memory import device_bytes, process_bytes
from tests.agent.ingest_double import IngestDouble

MIB = 1 << 20

STATS = {
    "allocated_bytes": {
        "all": {"current": 5 * MIB, "peak": 9 * MIB, "allocated": 40 * MIB, "freed": 35 * MIB},
        "small_pool": {"current": 1 * MIB, "peak": 1 * MIB, "allocated": 2 * MIB, "freed": 1 * MIB},
        "large_pool": {"current": 4 * MIB, "peak": 8 * MIB, "allocated": 38 * MIB, "freed": 34 * MIB},
    },
    "reserved_bytes": {"all": {"current": 22 * MIB, "peak": 22 * MIB, "allocated": 22 * MIB, "freed": 0}},
    "num_ooms": 0,
}  # fmt: skip
"""As `torch.cuda.memory_stats_as_nested_dict` gives them, less what is not read."""


def train(ingest: IngestDouble, steps: int, model: torch.nn.Module | None = None) -> None:
    model = model or torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with rangewatch.attach(model, optimizer, url=ingest.url, collect=()):
        for _ in range(steps):
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()


def test_on_a_cpu_it_is_the_resident_size(ingest: IngestDouble, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "LEAST_S", 0.0)

    class Grows(torch.nn.Linear):
        def forward(self, values: torch.Tensor) -> torch.Tensor:
            held.append(torch.ones(16 * MIB))  # 64 MiB, each page written
            return super().forward(values)

    held: list[torch.Tensor] = []
    train(ingest, 4, Grows(4, 1))
    resident, peak = ingest.series("process_resident_bytes"), ingest.series("process_resident_peak_bytes")
    assert sorted(resident) == sorted(peak) == [0, 1, 2, 3]
    grown = [resident[step + 1] - resident[step] for step in range(3)]
    assert all(56 * MIB < each < 96 * MIB for each in grown), grown
    assert all(peak[step] >= resident[step] for step in range(4))
    assert not any(ingest.series(name) for name in (memory.ALLOCATED, memory.RESERVED, memory.PEAK))


def test_of_quick_steps_few_are_sampled(ingest: IngestDouble, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "LEAST_S", 1000.0)
    train(ingest, 20)
    assert list(ingest.series("process_resident_bytes")) == [0]


def test_of_a_device_it_is_the_allocators_own_count(ingest: IngestDouble, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", lambda device: asked.append(device) or STATS)
    expected = {memory.ALLOCATED: 5 * MIB, memory.RESERVED: 22 * MIB, memory.PEAK: 9 * MIB}
    assert device_bytes(torch.device("cuda:1")) == expected and asked == [torch.device("cuda:1")]
    assert device_bytes(torch.device("cpu")) == expected, "the model may be moved to the current device later"
    assert asked[-1] is None


def test_what_is_not_counted_is_unknown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert device_bytes(torch.device("cpu")) == {}
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(
        torch.cuda, "memory_stats_as_nested_dict", lambda device: {"reserved_bytes": {"all": {"current": 3}}}
    )
    assert device_bytes(torch.device("cuda:0")) == {memory.RESERVED: 3}, "another allocator counts less"
    assert memory.RESIDENT not in process_bytes(tmp_path / "none")
    (tmp_path / "statm").write_text("odd")
    assert memory.RESIDENT not in process_bytes(tmp_path / "statm")


def test_on_mps_and_xpu_torchs_own_operations_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.mps, "current_allocated_memory", lambda: 7)
    monkeypatch.setattr(torch.mps, "driver_allocated_memory", lambda: 11)
    assert device_bytes(torch.device("mps")) == {memory.ALLOCATED: 7, memory.RESERVED: 11}, "it counts no peak"
    monkeypatch.setattr(torch.xpu, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.xpu, "memory_stats_as_nested_dict", lambda device: STATS)
    assert device_bytes(torch.device("xpu:0"))[memory.PEAK] == 9 * MIB
