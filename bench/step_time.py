"""What watching costs: step time of a T5 with 291 modules, plain and under each way of watching it, in one process.

    python bench/step_time.py [--rounds 8] [--steps 6] [--dtype float32] [--variants plain agent ...]

A round runs a short block of steps of every variant, in random order; a block's first step is not counted. A variant's
ratio in a round is its median step over the plain block's median step of the same round, so that slow drift of the
machine cancels. The table gives the median ratio over rounds with a bootstrap 95 % interval; the last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))

from rangewatch.demo.children import free_port, start_server
from step_time_variants import VARIANTS, Watched
from t5_model import SpanCorruption, build_model

BOOTSTRAP_DRAWS = 10_000
StepTimes = dict[str, list[list[float]]]
"""Variant -> a list for each round: seconds of its counted steps."""


def main() -> int:
    options = parse_options()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as children:
        watched = build(options, server_url(options, Path(folder), children))
        times = measure(options, watched)
    results = {name: summary(name, times) for name in options.variants}
    print_table(results)
    print(json.dumps({"benchmark": "step_time", "settings": settings(options, watched.model), "variants": results}))
    return 0


def build(options: argparse.Namespace, url: str) -> Watched:
    model = build_model(options.size).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    return Watched(model, optimizer, url)


def server_url(options: argparse.Namespace, folder: Path, children: ExitStack) -> str:
    if "agent" not in options.variants:
        return ""
    return start_server(free_port(), folder / "bench.db", folder, children)[0]


def measure(options: argparse.Namespace, watched: Watched) -> StepTimes:
    """Runs all rounds. One model serves all variants, so that they share its memory and its place in the caches."""
    step = one_step(options, watched)
    times: StepTimes = {name: [] for name in options.variants}
    order = random.Random(0)
    for _ in range(2):
        step()
    for round_number in range(options.rounds):
        for name in order.sample(options.variants, len(options.variants)):
            with VARIANTS[name].watch(watched):
                block = [timed(step) for _ in range(options.steps + 1)]
            times[name].append(block[1:])
        print(f"round {round_number + 1}/{options.rounds}", file=sys.stderr, flush=True)
    return times


def one_step(options: argparse.Namespace, watched: Watched) -> Callable[[], None]:
    batches = SpanCorruption(batch=options.batch, length=options.length)
    dtype = getattr(torch, options.dtype)

    def step() -> None:
        watched.optimizer.zero_grad()
        with torch.autocast("cpu", dtype=dtype, enabled=dtype is not torch.float32):
            loss = watched.model(**batches()).loss
        loss.backward()
        watched.optimizer.step()

    return step


def timed(step: Callable[[], None]) -> float:
    started_s = time.perf_counter()
    step()
    return time.perf_counter() - started_s


def summary(name: str, times: StepTimes) -> dict[str, float]:
    """Median step in ms, and the median over rounds of the ratio to plain with its 95 % interval."""
    medians = [statistics.median(block) for block in times[name]]
    plain = [statistics.median(block) for block in times["plain"]]
    ratios = [mine / theirs for mine, theirs in zip(medians, plain, strict=True)]
    low, high = bootstrap_interval(ratios)
    step_ms = 1e3 * statistics.median(medians)
    return {"step_ms": step_ms, "ratio": statistics.median(ratios), "ratio_low": low, "ratio_high": high}


def bootstrap_interval(ratios: list[float]) -> tuple[float, float]:
    """95 % interval of the median by resampling rounds."""
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(BOOTSTRAP_DRAWS))
    return medians[int(0.025 * BOOTSTRAP_DRAWS)], medians[int(0.975 * BOOTSTRAP_DRAWS)]


def print_table(results: dict[str, dict[str, float]]) -> None:
    print(f"{'variant':<18} {'step ms':>8} {'ratio':>7}  {'95 % interval':<15} what")
    for name, found in results.items():
        interval = f"{found['ratio_low']:.3f} .. {found['ratio_high']:.3f}"
        print(f"{name:<18} {found['step_ms']:>8.0f} {found['ratio']:>7.3f}  {interval:<15} {VARIANTS[name].help}")


def settings(options: argparse.Namespace, model: nn.Module) -> dict[str, object]:
    modules = sum(1 for _ in model.named_modules())
    return {**vars(options), "modules": modules, "torch": torch.__version__, "machine": platform.machine()}


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=6, help="counted steps a block")
    parser.add_argument("--size", default="base291")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=128, help="bytes a window")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    options = parser.parse_args()
    if "plain" not in options.variants:
        options.variants.insert(0, "plain")
    return options


if __name__ == "__main__":
    sys.exit(main())
