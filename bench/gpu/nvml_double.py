"""NVML's double of the tests in place of the driver, for `--dry-run`: tests/testdata/nvml."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pynvml

ROOT = Path(__file__).resolve().parents[2]
TESTDATA = ROOT / "tests" / "testdata" / "nvml"


def install() -> str:
    """From here on this process talks with it. Why not, where there is no C compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        return "no C compiler for NVML's double"
    folder = Path(tempfile.mkdtemp(prefix="nvml-double-"))  # a loaded library stays until the process ends
    library = folder / "libnvidia-ml.so.1"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, TESTDATA / "nvml_double.c"], check=True, timeout=60)
    os.environ["NVML_DOUBLE"] = str(TESTDATA / "h100.txt")
    os.environ["CUDA_VISIBLE_DEVICES"] = "0"  # so that a rank on a CPU has a card
    pynvml.nvmlLib = ctypes.CDLL(str(library))
    pynvml._nvmlGetFunctionPointer_cache = {}
    shutil.rmtree(folder)
    return ""
