"""The parts of both commands: a program each, with a time limit of its own, and what can be seen without a GPU."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

from wheels import ROOT

Figures = dict[str, Any]
_OUT = "{out}"


class Part(NamedTuple):
    """`command` is what Python is given, or begins with a program's name; `{out}` in it is the folder of the report."""

    name: str
    title: str
    command: tuple[str, ...]
    limit_s: int
    dry_command: tuple[str, ...] = ()
    """What runs without a GPU; nothing where there is nothing to see."""
    dry_where: str = ""
    """What takes the GPU's place there."""
    needs: str = ""
    """A program that has to be on PATH."""
    read: Callable[[Path, str], Figures] | None = None
    """Makes figures of a program that is not one of these: of the report's folder and what it printed."""
    aims: tuple[Aim, ...] = ()


class Aim(NamedTuple):
    """Where a figure is, what it should be at most (or least), and what it is called."""

    path: tuple[str, ...]
    bound: float
    title: str
    is_most: bool = True


def of_pytest(out: Path, printed: str) -> Figures:
    """Counts and names of pytest's own report."""
    file = out / "pytest.xml"
    if not file.exists():
        return {"collected": printed.strip().splitlines()[-1] if printed.strip() else ""}
    suite = next(ElementTree.parse(file).iter("testsuite"))
    counts = {name: int(suite.get(name, 0)) for name in ("tests", "failures", "errors", "skipped")}
    failed = [
        f"{case.get('classname')}::{case.get('name')}"
        for case in suite.iter("testcase")
        if case.find("failure") is not None or case.find("error") is not None
    ]
    file.unlink()
    return counts | {"failed": failed}


def of_kernel(out: Path, printed: str) -> Figures:
    """bench/kernel.py's last line, and its least share of a copy among what is large."""
    whole = json.loads(printed.strip().splitlines()[-1])
    large = [size["fused"] / size["copy"] for size in whole["sizes"] if size["mebibytes"] >= 64]
    return {"sizes": whole["sizes"], "host_us": whole["host_us"], "least_share_of_copy": min(large, default=0.0)}


def of_overhead(out: Path, printed: str) -> Figures:
    """The rows of bench/overhead.py's last line, by variant."""
    (table,) = json.loads(printed.strip().splitlines()[-1])["tables"]
    return {"title": table["title"], "rows": table["rows"]}


def _mode(name: str, title: str, limit_s: int = 120, *, dry: bool = True) -> Part:
    program = ("bench/gpu/modes.py", name)
    dry_command = (*program, "--dry-run") if dry else ()
    return Part(name, title, program, limit_s, dry_command, "a CPU, by way of the device's rows" if dry else "")


_PYTEST = ("-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider")


def marked_gpu() -> list[str]:
    """The files that have such tests: others import what a GPU machine lacks."""
    files = sorted((ROOT / "tests").glob("**/test_*.py"))
    return [str(file.relative_to(ROOT)) for file in files if "pytest.mark.gpu" in file.read_text()]


TEST = (
    Part(
        "environment", "Which machine this is", ("bench/gpu/environment.py",), 60, ("bench/gpu/environment.py",),
        "this machine",
    ),
    Part(
        "kernels", "Every statistic, dtype, layout and size against plain torch, to a billion elements",
        ("bench/gpu/kernels.py",), 240, ("bench/gpu/kernels.py", "--dry-run"), "Triton's interpreter",
    ),
    Part(
        "pytest", "The tests marked gpu",
        (*_PYTEST, f"--junitxml={_OUT}/pytest.xml", *marked_gpu()), 300,
        (*_PYTEST, "--collect-only", *marked_gpu()), "collected alone", read=of_pytest,
    ),
    _mode("eager", "A GPT, eager: losses, records, no waiting"),
    _mode("autocast_fp16", "The same under autocast in fp16, with a scaler"),
    _mode("compiled", "The same under torch.compile", 180),
    _mode("max_autotune", "The same with mode max-autotune, whose regions are CUDA graphs", 240, dry=False),
    _mode("cuda_graph", "Forward and backward in a CUDA graph: not observed, or read at each replay", dry=False),
    _mode("checkpointing", "The same with activation checkpointing"),
    _mode("streams", "The same on two streams", dry=False),
    _mode("ddp", "The same under DDP, one rank"),
    _mode("fsdp2", "The same under FSDP2, one rank"),
    Part(
        "nccl", "NCCL's collectives of one rank: sizes, durations, no waiting",
        ("bench/gpu/nccl.py",), 90, ("bench/gpu/nccl.py", "--dry-run"), "gloo",
    ),
    Part(
        "launches", "Launches, waiting and memory that the agent adds to a step",
        ("bench/gpu/launches.py",), 120, ("bench/gpu/launches.py", "--dry-run"), "counted, not made",
    ),
    Part(
        "sanitizer", "The kernels under compute-sanitizer's memcheck",
        ("compute-sanitizer", "--tool=memcheck", "--error-exitcode=9", "{python}", "bench/gpu/kernels.py", "--quick"),
        240, needs="compute-sanitizer",
    ),
    Part(
        "health", "NVML's fields against nvidia-smi, idle and under load; Xid events",
        ("bench/gpu/health.py",), 90, ("bench/gpu/health.py", "--dry-run"), "NVML's double", needs="nvidia-smi",
    ),
    Part(
        "gpus_page", "The GPUs page of a training",
        ("bench/gpu/page.py", "--out", _OUT), 120, ("bench/gpu/page.py", "--out", _OUT, "--dry-run"),
        "a CPU and NVML's double",
    ),
)  # fmt: skip
"""What `make test-gpu` runs, what matters most first."""

_ALL = ("plain", "plain again", "rangewatch grads", "rangewatch outputs", "rangewatch frames", "  full_every=1",
        "aminmax", "DebugUnderflowOverflow")  # fmt: skip
_FEW = ("plain", "rangewatch grads", "rangewatch outputs", "rangewatch frames", "aminmax")


def _overhead(name: str, title: str, model: str, mode: str, limit_s: int, variants: tuple[str, ...]) -> Part:
    program = ("bench/overhead.py", "--model", model, "--mode", mode)
    most = 1.01 if mode == "compiled" else 1.02
    aim = Aim(("rows", "rangewatch outputs", "ratio"), most, f"step ratio of level outputs, {title}")
    dry = (
        *program[:3],
        "--mode",
        "eager",
        "--device",
        "cpu",
        "--rounds",
        "1",
        "--steps",
        "1",
        "--variants",
        *variants[:3],
    )
    on_cuda = (*program, "--device", "cuda", "--rounds", "5", "--variants", *variants)
    shows = dry if mode == "eager" and model == "gpt" else ()
    where = "a CPU, whose figures are no claim" if shows else ""
    return Part(name, f"Step ratios, {title}", on_cuda, limit_s, shows, where, read=of_overhead, aims=(aim,))


BENCH = (
    TEST[0],
    Part(
        "kernel", "The kernels' bytes a second over a copy's, by dtype and size", ("bench/kernel.py",), 150,
        read=of_kernel,
        aims=(Aim(("least_share_of_copy",), 0.9, "share of the copy's bandwidth, 64 MiB and more", is_most=False),),
    ),
    next(part for part in TEST if part.name == "launches"),
    Part(
        "budget", "What the default budget makes of a GPT of 350 M in bf16, eager",
        ("bench/gpu/budget.py",), 150, ("bench/gpu/budget.py", "--dry-run"), "a CPU, by way of the device's rows",
        aims=(Aim(("ratio",), 1.03, "step ratio with the default budget, once it has been judged"),),
    ),
    _overhead("gpt_eager", "GPT of 350 M in bf16, eager", "gpt", "eager", 240, _ALL),
    _overhead("gpt_1b_eager", "GPT of 1.3 B in bf16, eager", "gpt-1b", "eager", 240, _FEW),
    _overhead("gpt_compiled", "GPT of 350 M in bf16, compiled", "gpt", "compiled", 560, _FEW),
    _overhead("gpt_1b_compiled", "GPT of 1.3 B in bf16, compiled", "gpt-1b", "compiled", 560, _FEW[:3]),
)  # fmt: skip
"""What `make bench-gpu` runs."""
