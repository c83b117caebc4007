"""What the tests of the collectors share: NVML's double, and events that were told."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rangewatch.collectors.gpu import collector as gpu
from rangewatch.collectors.gpu import xid
from rangewatch.collectors.gpu.collector import GpuCollector
from rangewatch.core.options import Options
from rangewatch.wire.records import RankInfo, Samples
from tests.agent.doubles import EventList

TESTDATA = Path(__file__).parents[2] / "testdata" / "nvml"

H100 = "GPU-4a1e5d3c-0000-4000-8000-0000000000a0"
SECOND_H100 = "GPU-9b2f6e4d-0000-4000-8000-0000000000b1"


def info(device: str = "NVIDIA H100 80GB HBM3", local_rank: int = 0) -> RankInfo:
    """One rank's identity."""
    return RankInfo("run", local_rank, 8, local_rank, "host", "incarnation", 0, device=device)


class Reported(EventList):
    """Remembers events."""

    def of(self, kind: str) -> list[tuple[str, dict[str, Any]]]:
        return [(message, data) for each, message, data in self.events if each == kind]

    def wait_for(self, kind: str, count: int = 1) -> list[tuple[str, dict[str, Any]]]:
        until_s = time.monotonic() + 20
        while len(self.of(kind)) < count and time.monotonic() < until_s:
            time.sleep(0.01)
        return self.of(kind)


class Driver:
    """What NVML's double says."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def load(self, name: str) -> None:
        self.path.write_text((TESTDATA / f"{name}.txt").read_text())

    def say(self, *lines: str) -> None:
        """From here on; the last line that fits wins."""
        with self.path.open("a") as file:
            file.writelines(f"{line}\n" for line in lines)


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """NVML's double, compiled."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("there is no C compiler")
    path = tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1"
    source = TESTDATA / "nvml_double.c"
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-Werror=all", "-o", path, source], check=True, timeout=60)
    return path


@pytest.fixture
def driver(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Driver:
    """The double in place of the driver of this process, with one H100; and no waiting between two slow readings."""
    pynvml = pytest.importorskip("pynvml")
    copy = tmp_path / library.name
    shutil.copy(library, copy)  # of its own for each test: what is loaded keeps its state
    said = Driver(tmp_path / "driver.txt")
    said.load("h100")
    monkeypatch.setenv("NVML_DOUBLE", str(said.path))
    monkeypatch.setattr(pynvml, "nvmlLib", ctypes.CDLL(str(copy)))
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    monkeypatch.setattr(gpu, "SLOW_EVERY_S", 0.0)
    monkeypatch.setattr(gpu, "PATIENCE_S", 20.0)
    monkeypatch.setattr(xid, "WAIT_MS", 20)
    monkeypatch.setattr(xid, "PAUSE_S", 0.01)
    return said


@pytest.fixture
def reported() -> Reported:
    return Reported()


Collecting = Callable[..., GpuCollector]


@pytest.fixture
def collecting(reported: Reported) -> Iterator[Collecting]:
    """Makes a started collector, which is stopped after the test."""
    started: list[GpuCollector] = []

    def start(rank: RankInfo | None = None, **environment: str) -> GpuCollector:
        collector = GpuCollector(Options(), rank or info(), environment)
        collector.start(reported)
        started.append(collector)
        return collector

    yield start
    for collector in started:
        collector.stop()


def row(samples: Samples) -> dict[str, float]:
    """The only row of `samples`."""
    assert samples.times_ns.shape == (1,)
    assert all(column.shape == (1,) for column in samples.columns.values())
    return {name: float(column[0]) for name, column in samples.columns.items()}
