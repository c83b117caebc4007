"""What watching a training costs: Rangewatch at each level, and other ways of looking into it, in one run.

    python bench/overhead.py [--model t5|gpt|gpt-1b|both] [--mode eager|compiled|both] [--device cpu|cuda] [--rounds 6]

A round runs a window of steps of every variant, in random order, on one model (or, compiled, on copies that are each
compiled once). A ratio is that of a variant's window to the plain window of the same round, so that slow drift of the
machine cancels; the table has the median of the rounds and the range from the 10th to the 90th percentile. The first
step of a window is not counted: it meets cold caches, and an agent that has just been attached.

A window is far shorter than 100 steps: what happens every 100th step is in the rows that do it every step, and not in
the others. On a CPU the step of a window is its median step; on CUDA it is the mean, and the device is synchronised
before and after a window and never within.

On a CPU the default is eager mode: compiling the T5 takes a minute or two for each variant.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from rangewatch.commands.demo.children import free_port, start_server
from training.lanes import Lane, Setting
from training.models import WORKLOADS
from training.variants import VARIANTS, NotInstalled, end_wandb

COMPILED_COPIES = 2 * len(VARIANTS)
"""Torch's limit of compilations of one function, which each variant's copy of the model takes part of."""

SLOW_RATIO, SLOW_ROUNDS = 3.0, 2
"""A variant that takes this many times the plain step runs one counted step, and only in the first rounds."""


def main() -> int:
    """Print the table of each model and mode, and all of it as a line of JSON at the end."""
    options = parse_options()
    torch.set_num_threads(options.threads)
    torch._dynamo.config.recompile_limit = COMPILED_COPIES
    torch._logging.set_logs(dynamo=logging.ERROR)  # the graph breaks of others
    results = []
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        url, _ = start_server(free_port(), folder / "bench.db", folder, stack)
        stack.callback(end_wandb)
        for model in options.model:
            for mode in options.mode:
                torch.manual_seed(0)
                setting = Setting(WORKLOADS[model](options.device), mode == "compiled", url, folder)
                results.append(measure(setting, options))
                torch._dynamo.reset()
    for result in results:
        print_table(result)
    print(json.dumps({"benchmark": "overhead", "settings": settings(options), "tables": results}))
    return 0


def measure(setting: Setting, options: argparse.Namespace) -> dict[str, Any]:
    """All rounds of one model in one mode."""
    reasons: dict[str, str] = {}
    with ExitStack() as stack:
        lanes, warm_s = start_lanes(setting, options.variants, stack, reasons)
        times_s: dict[str, list[float]] = {name: [] for name in lanes}
        order = random.Random(0)
        for number in range(options.rounds):
            for name in order.sample(list(lanes), len(lanes)):
                is_slow = warm_s[name] > SLOW_RATIO * warm_s["plain"]
                if number < SLOW_ROUNDS or not is_slow:
                    times_s[name].append(lanes[name].window(1 if is_slow else options.steps))
            say(f"{setting.title}: round {number + 1}/{options.rounds}")
    rows = {name: {"fails": reasons[name]} if name in reasons else row(name, times_s) for name in options.variants}
    return {"title": setting.title, "rows": rows}


def start_lanes(
    setting: Setting, variants: list[str], stack: ExitStack, reasons: dict[str, str]
) -> tuple[dict[str, Lane], dict[str, float]]:
    """The variants that work and their seconds a step, once warm or compiled; `reasons` gets why others do not."""
    lanes: dict[str, Lane] = {}
    warm_s: dict[str, float] = {}
    for name in variants:
        started_s = time.perf_counter()
        own = ExitStack()
        try:
            lane = Lane(setting, VARIANTS[name], own)
            lane.window(1)
            warm_s[name] = lane.window(1)
        except Exception as error:  # noqa: BLE001 - others' tools fail in their own ways, and the table says so
            reasons[name] = why_not(error)
            own.close()
        else:
            lanes[name] = lane
            stack.push(own.pop_all())
        say(f"{setting.title}: {name.strip()} ready after {time.perf_counter() - started_s:.1f} s")
    return lanes, warm_s


def why_not(error: Exception) -> str:
    """The error in a few words."""
    if isinstance(error, NotInstalled):
        return str(error)
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"fails: {type(error).__name__}: {lines[0] if lines else ''}"[:100]


def row(name: str, times_s: dict[str, list[float]]) -> dict[str, Any]:
    """A variant's median step in ms, and its ratio to plain: median, 10th and 90th percentile of the rounds."""
    # A slow one has fewer rounds.
    ratios = sorted(mine / plain for mine, plain in zip(times_s[name], times_s["plain"], strict=False))
    low, high = ratios[round(0.1 * (len(ratios) - 1))], ratios[round(0.9 * (len(ratios) - 1))]
    step_ms = 1e3 * statistics.median(times_s[name])
    return {"step_ms": step_ms, "ratio": statistics.median(ratios), "ratio_p10": low, "ratio_p90": high}


def print_table(result: dict[str, Any]) -> None:
    print(f"\n{result['title']}")
    print(f"{'variant':<25} {'step ms':>8} {'ratio':>7}  {'10 - 90 %':<15} records")
    for name, found in result["rows"].items():
        if "fails" in found:
            print(f"{name:<25} {'-':>8} {'-':>7}  {'':<15} {found['fails']}")
            continue
        spread = f"{found['ratio_p10']:.3f} - {found['ratio_p90']:.3f}"
        print(f"{name:<25} {found['step_ms']:>8.1f} {found['ratio']:>7.3f}  {spread:<15} {VARIANTS[name].records}")


def say(text: str) -> None:
    """Progress, kept apart from the table."""
    print(text, file=sys.stderr, flush=True)


def settings(options: argparse.Namespace) -> dict[str, Any]:
    device = torch.cuda.get_device_name() if options.device == "cuda" else f"{os.cpu_count()} CPUs"
    return {**vars(options), "torch": torch.__version__, "machine": device}


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model", choices=[*WORKLOADS, "both"], default="both")
    add("--mode", choices=["eager", "compiled", "both"], help="default: eager on a CPU, both on CUDA")
    add("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    add("--rounds", type=int, default=6)
    add("--steps", type=int, help="counted steps a window (default: 3 on a CPU, 20 on CUDA)")
    add("--threads", type=int, default=1, help="of torch on the CPU; the server needs a core of its own")
    add("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    options = parser.parse_args()
    on_cuda = options.device == "cuda"
    mode = options.mode or ("both" if on_cuda else "eager")
    options.model = ["t5", "gpt"] if options.model == "both" else [options.model]
    options.mode = ["eager", "compiled"] if mode == "both" else [mode]
    options.steps = options.steps or (20 if on_cuda else 3)
    options.variants = ["plain", *(name for name in options.variants if name != "plain")]
    return options


if __name__ == "__main__":
    sys.exit(main())
