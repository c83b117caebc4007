"""Which machine this is: card, driver, torch, Triton, and the tools that other parts use."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from importlib import metadata
from typing import Any

import torch
from checks import Checks, parser

TOOLS = ("nvidia-smi", "compute-sanitizer", "nvcc", "cc", "chromium")


def main() -> int:
    parser(__doc__).parse_args()
    checks = Checks()
    checks.figures = described()
    checks.that(checks.figures["card"] or not torch.cuda.is_available(), "torch sees a card and does not name it")
    for name, value in checks.figures.items():
        print(f"{name:<18} {value}")
    return checks.end()


def described() -> dict[str, Any]:
    """Names and versions; empty texts for what is not there."""
    has_card = torch.cuda.is_available()
    properties = torch.cuda.get_device_properties(0) if has_card else None
    return {
        "card": properties.name if properties else "",
        "capability": f"{properties.major}.{properties.minor}" if properties else "",
        "multiprocessors": properties.multi_processor_count if properties else 0,
        "memory_bytes": properties.total_memory if properties else 0,
        "driver": driver(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda or "",
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if has_card else "",
        "triton": version("triton"),
        "transformers": version("transformers"),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "cores": len(os.sched_getaffinity(0)),
        "tools": [name for name in TOOLS if shutil.which(name)],
    }


def driver() -> str:
    """The driver's version, by nvidia-smi."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.splitlines()[0].strip() if done.stdout else ""


def version(name: str) -> str:
    """Of an installed distribution."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


if __name__ == "__main__":
    sys.exit(main())
