"""Machines planted as folders: real files, links and executable scripts, and a small `torch` that Python imports."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rangewatch.checks.doctor.machine import Machine

HOST_CONFIG = """
#if __GNUC__ > {gcc}
#error -- unsupported GNU version! gcc versions later than {gcc} are not supported! Use at your own
#endif
#error -- unsupported clang version! clang version must be less than {clang} and greater than 3.2 . Use at
"""

TORCH = """
import types
__version__ = "{version}+cu124"
version = types.SimpleNamespace(cuda={cuda!r}, git_version="abc", hip=None)
_C = types.SimpleNamespace(_cuda_getArchFlags=lambda: {architectures!r}, _nccl_version=lambda: 2 << 32 | 21 << 16 | 5)
backends = types.SimpleNamespace(cudnn=types.SimpleNamespace(version=lambda: 90100))
_device = types.SimpleNamespace(name="NVIDIA H100", major={major}, minor=0, total_memory=85 << 30, uuid="GPU-1")
cuda = types.SimpleNamespace(
    is_available=lambda: True, device_count=lambda: 4, get_device_properties=lambda index: _device)
"""

LIMITS = """Limit                     Soft Limit           Hard Limit           Units
Max open files            1048576              1048576              files
Max locked memory         unlimited            unlimited            bytes
"""

CARD = "Model: \t\t NVIDIA H100\nIRQ:   \t\t 50\nGPU UUID: \t GPU-{0}\nBus Location: \t 0000:0{0}:00.0\n"


@dataclass
class Planted:
    """A machine with four cards, CUDA 12.4, gcc 12 and InfiniBand; nothing wrong with it."""

    root: Path
    environ: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("dev/shm", "root", "tmp", "bin"):
            (self.root / name).mkdir(parents=True)
        self.environ |= {
            "PATH": "/usr/local/cuda/bin:/usr/bin:/bin",
            "LD_LIBRARY_PATH": "/usr/local/cuda/lib64",
            "CUDA_HOME": "/usr/local/cuda",
            "HOME": "/root",
            "PYTHONPATH": str(self.root / "packages"),
            "OMP_NUM_THREADS": "1",
        }
        self.toolkit("12.4")
        (self.root / "usr/local/cuda").symlink_to("cuda-12.4")
        self.compilers("g++ (Debian 12.2.0-14+deb12u1) 12.2.0")
        self.driver()
        self.network()
        self.torch()
        self.write("/proc/self/limits", LIMITS)

    @property
    def machine(self) -> Machine:
        """What the doctor is given."""
        return Machine(environ=self.environ, root=self.root)

    def write(self, path: str, text: str) -> None:
        """A file."""
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def script(self, path: str, text: str) -> None:
        """A program that prints `text`."""
        self.write(path, f"#!/bin/sh\ncat <<'END'\n{text}\nEND\n" if "\n" in text else f"#!/bin/sh\necho '{text}'\n")
        (self.root / path.lstrip("/")).chmod(0o755)

    def toolkit(self, version: str, gcc: int = 13) -> None:
        """A CUDA toolkit in /usr/local/cuda-VERSION."""
        home = f"/usr/local/cuda-{version}"
        self.script(f"{home}/bin/nvcc", f"Cuda compilation tools, release {version}, V{version}.99")
        self.write(f"{home}/version.json", json.dumps({"cuda_nvcc": {"name": "CUDA NVCC", "version": f"{version}.99"}}))
        self.write(f"{home}/include/cuda_runtime.h", "")
        self.write(f"{home}/include/crt/host_config.h", HOST_CONFIG.format(gcc=gcc, clang=18))
        self.write(f"{home}/lib64/libcudart.so.12", "")

    def compilers(self, first_line: str) -> None:
        """c++ and g++."""
        for name in ("c++", "g++"):
            self.script(f"/usr/bin/{name}", first_line)

    def driver(self, version: str = "550.54.15", cards: int = 4) -> None:
        """What the driver tells in /proc."""
        line = f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {version}  Tue Mar  5 22:23:56 UTC 2024\n"
        self.write("/proc/driver/nvidia/version", line)
        for card in range(cards):
            self.write(f"/proc/driver/nvidia/gpus/0000:0{card}:00.0/information", CARD.format(card))

    def without_cards(self) -> Planted:
        """No driver: what is looked at in training sees the torch of the tests, which is built without CUDA."""
        shutil.rmtree(self.root / "proc/driver")
        return self

    def network(self) -> None:
        """An InfiniBand card that is up, and the interfaces."""
        for name, state in (("eth0", "up"), ("ib0", "up"), ("lo", "unknown")):
            self.write(f"/sys/class/net/{name}/operstate", f"{state}\n")
        for name, text in (("state", "4: ACTIVE"), ("link_layer", "InfiniBand"), ("rate", "400 Gb/sec (4X NDR)")):
            self.write(f"/sys/class/infiniband/mlx5_0/ports/1/{name}", f"{text}\n")
        self.write("/dev/infiniband/uverbs0", "")
        self.write("/usr/lib/x86_64-linux-gnu/libibverbs.so.1", "")

    def torch(self, cuda: str | None = "12.4", architectures: str = "sm_80 sm_90", major: int = 9, **more: Any) -> None:
        """The `torch` that a child imports."""
        text = TORCH.format(version="2.6.0", cuda=cuda, architectures=architectures, major=major)
        self.write("/packages/torch/__init__.py", more.get("text", text))
