"""What reading the scales of a float8 training costs, against steps of the same training without.

    python bench/scales.py [--recipe tensorwise] [--steps 600] [--every 0] [--width 256] [--rows 512] [--threads 1]

Layers that torchao casts train on a CPU under the agent. Of the steps that the schedule does not read, every other one
has its reader's hook on the casts and the others have none: those are the baseline. So neighbours in one process are
compared, and a busy machine and the agent's other readings are in both. With `--every 1`, as it was before there was a
schedule, every other step is read and the others are the baseline.

What a step costs is its processor time less the median of the nearest baseline steps. `ratio` is all of that, readings
and the hook in the steps without, over the time of as many baseline steps; the first 20 steps are not counted.
`wall_ratio` is the same of wall time. `inside` is 1 and what a clock around the hook says of both kinds of steps:
without what torch needs to come to it, half a microsecond a cast, and without what other steps differ by.

Prediction, before the first measurement: 1.08 with `--every 1`, as a profile had shown, 1.16 with rows; 1.01 at most by
default.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torchao.float8 import Float8LinearConfig, convert_to_float8_training

import rangewatch
from rangewatch.hooks.scales.casts import FUNCTIONS

WARM = 20
NEAR = 10


class Step(NamedTuple):
    """Seconds of one step, whether the hook was there, and whether scales were read; `inside_s`: those in the hook."""

    cpu_s: float
    wall_s: float
    is_hooked: bool
    has_read: bool
    inside_s: float


class Block(nn.Module):
    """A residual block of two products, as in a transformer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, values: Tensor) -> Tensor:
        result: Tensor = values + self.down(nn.functional.gelu(self.up(self.norm(values))))
        return result


def main() -> None:
    """Print the ratio, and as the last line the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="tensorwise", help="tensorwise (default), rowwise or rowwise_with_gw_hp")
    parser.add_argument("--steps", type=int, default=600, help="steps that are counted (default 600)")
    parser.add_argument("--every", type=int, default=0, help="the option scales_every (default 0: by what it costs)")
    parser.add_argument("--width", type=int, default=256, help="features (default 256)")
    parser.add_argument("--rows", type=int, default=512, help="rows of a batch (default 512)")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch (default 1)")
    parser.add_argument("--quick", action="store_true", help="few small steps: only whether it runs")
    options = parser.parse_args()
    if options.quick:
        options.steps, options.width, options.rows = 60, 64, 64
    torch.set_num_threads(options.threads)
    report(train(options), options)


def train(options: argparse.Namespace) -> list[Step]:
    """The steps after the first `WARM`."""
    torch.manual_seed(0)
    model = nn.Sequential(Block(options.width), Block(options.width))
    convert_to_float8_training(model, config=Float8LinearConfig.from_recipe_name(options.recipe))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    rows = torch.randn(options.rows, options.width)
    steps: list[Step] = []
    with rangewatch.attach(
        model, optimizer, url="http://127.0.0.1:1", quiet=True, watcher=False, spool_bytes=0, collect=(),
        budget_percent=100, flush_timeout_s=0, full_every=100, weight_every=10**6, scales_every=options.every,
    ) as handle:  # fmt: skip
        agent = handle._agent
        assert agent is not None
        (listener,) = FUNCTIONS[0]._listeners
        inside_ns: list[int] = []

        def timed(*call: Any) -> None:
            began_ns = time.thread_time_ns()
            own(*call)
            inside_ns.append(time.thread_time_ns() - began_ns)

        own, listener = listener, timed
        FUNCTIONS[0].forget(own)
        FUNCTIONS[0].listen(listener)
        for step in range(WARM + options.steps):
            is_due = agent.scale_schedule.is_due
            is_hooked = (step + step // 2) % 2 == 0  # on, off, off, on: neither is always the later one
            if is_due and options.every != 1:
                is_hooked = True
            if not is_hooked:
                FUNCTIONS[0].forget(listener)
            inside_ns.clear()
            cpu_s, wall_s = time.thread_time(), time.perf_counter()
            model(rows).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            cpu_s, wall_s = time.thread_time() - cpu_s, time.perf_counter() - wall_s
            steps.append(Step(cpu_s, wall_s, is_hooked, is_hooked and is_due, sum(inside_ns) / 1e9))
            if not is_hooked:
                FUNCTIONS[0].listen(listener)
    return steps[WARM:]


def report(steps: list[Step], options: argparse.Namespace) -> None:
    """Of all of them."""
    baseline = [each for each in steps if not each.is_hooked]
    read, unread = ([each for each in steps if each.is_hooked and each.has_read == has_read] for has_read in (1, 0))
    share_read = 1.0 if options.every == 1 else len(read) / len(steps)
    ratios = {}
    for which in ("cpu_s", "wall_s"):
        usual = statistics.median(getattr(each, which) for each in baseline)
        # Of steps with readings the mean, since some cost more than others; of those without, which are alike, the
        # median, as what a busy machine does to one of them is no cost of the hook.
        of_read, of_unread = (
            [
                getattr(each, which) - _near(steps, at, which)
                for at, each in enumerate(steps)
                if each.is_hooked and each.has_read == has_read
            ]
            for has_read in (True, False)
        )
        ratios[which] = [
            1 + share_read * (statistics.fmean(of_read) if of_read else 0) / usual
            + (1 - share_read) * (statistics.median(of_unread) if of_unread else 0) / usual,
            1 + (statistics.median(of_read) if of_read else 0) / usual,
            1 + (statistics.median(of_unread) if of_unread else 0) / usual,
        ]  # fmt: skip
    step_ms = 1e3 * statistics.median(each.cpu_s for each in baseline)
    cpu, wall = ratios["cpu_s"], ratios["wall_s"]
    print(
        f"{options.recipe}, {len(steps)} steps of {step_ms:.2f} ms of the processor, {len(read)} of them with readings"
    )
    print(
        f"with over without: {cpu[0]:.4f} of processor time, {wall[0]:.4f} of wall time (baseline: no hook); a step "
        f"that is read {cpu[1]:.3f}, one that is not {cpu[2]:.4f} of processor time"
    )
    inside = [statistics.fmean([each.inside_s for each in part]) if part else 0.0 for part in (read, unread)]
    of_inside = 1 + 1e3 * (share_read * inside[0] + (1 - share_read) * inside[1]) / step_ms
    print(f"by the clock around the hook: {of_inside:.4f}; {1e6 * inside[1]:.0f} us in a step that is not read")
    figures = {
        "recipe": options.recipe, "every": options.every, "steps": len(steps), "with_readings": len(read),
        "hooked_without": len(unread), "step_cpu_ms": round(step_ms, 2), "ratio": round(cpu[0], 4),
        "inside": round(of_inside, 4), "inside_unread_us": round(1e6 * inside[1], 1),
        "wall_ratio": round(wall[0], 4), "ratio_read": round(cpu[1], 4), "ratio_unread": round(cpu[2], 4),
    }  # fmt: skip
    print(json.dumps(figures))


def _near(steps: list[Step], at: int, which: str) -> float:
    """The median of the nearest baseline steps, as many before as after."""
    before = [getattr(each, which) for each in steps[max(0, at - 8 * NEAR) : at] if not each.is_hooked][-NEAR:]
    after = [getattr(each, which) for each in steps[at + 1 : at + 8 * NEAR] if not each.is_hooked][:NEAR]
    return statistics.median(before + after)


if __name__ == "__main__":
    main()
