"""What what-if readings cost a training on their default schedule, in one run of at most four minutes.

    python bench/whatif.py [--every 100] [--rounds 1] [--width 64] [--threads 1] [--seconds 150]

A small transformer trains on a CPU with `whatif_every`. Steps of a round, which read some tensors each, lie among steps
that read none, the baseline. Of each step the wall time and the training thread's processor time are taken. What a step
with readings costs is its time less the median of the 20 steps without any around it; the sum of these over the time of
all steps from the start of a round to that of the next one is the ratio. A loaded machine shows in the wall time of
both kinds of steps; the processor time hardly knows of it.

The next round begins when all so far are no more than 0.35 % of the time since attach by the agent's own clock: some
290 times what a round took. The limit is 0.5 %.
Where `--seconds` end before that, the time of the cycle is reckoned from what the reader's own clock has spent, by the
same rule, and the last line says `is_whole: false`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import NamedTuple

import torch
from torch import nn

import rangewatch
from rangewatch.core import limits

NEAR = 20

LIMIT_PERCENT = 0.5


class Step(NamedTuple):
    """Seconds of one step, and whether anything was read in it."""

    wall_s: float
    cpu_s: float
    has_read: bool


def main() -> int:
    """Print the shares, and all of it as a line of JSON at the end."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=int, default=100, help="steps between two rounds at least (default 100)")
    parser.add_argument("--rounds", type=int, default=1, help="rounds that are measured (default 1)")
    parser.add_argument("--width", type=int, default=64, help="features of the model (default 64)")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch (default 1)")
    parser.add_argument("--seconds", type=float, default=150.0, help="at most so long (default 150)")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(options.width, 4, 4 * options.width, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 1)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    rows = torch.randn(8, 64, options.width)
    steps: list[Step] = []
    began: list[int] = []
    with rangewatch.attach(
        model, optimizer, url="http://127.0.0.1:1", whatif_every=options.every, quiet=True, watcher=False,
        spool_bytes=0, collect=(), budget_percent=100, flush_timeout_s=0,
    ) as handle:  # fmt: skip
        agent = handle._agent
        assert agent is not None
        reader = agent.whatif
        next_round, until_s = reader._next_round, time.perf_counter() + options.seconds
        while len(began) <= options.rounds and (time.perf_counter() < until_s or not began):
            spent_ns, cpu_s, wall_s = reader._spent_ns, time.thread_time(), time.perf_counter()
            model(rows).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            took_s, wall_s = time.thread_time() - cpu_s, time.perf_counter() - wall_s
            steps.append(Step(wall_s, took_s, reader._spent_ns > spent_ns))
            if reader._next_round != next_round:
                next_round = reader._next_round
                began.append(len(steps))
        own_s = reader._spent_ns / 1e9
        tensors = len(agent.names)
    report(steps, began, tensors, own_s, is_whole=len(began) > options.rounds)
    return 0


def report(steps: list[Step], began: list[int], tensors: int, own_s: float, *, is_whole: bool) -> None:
    """Of the steps from the first round on."""
    first, last = began[0], began[-1] if is_whole else len(steps)
    measured = steps[first:last]
    wall, cpu = (([each[which] for each in steps], [each[which] for each in measured]) for which in (0, 1))
    has_read = [each.has_read for each in steps]
    excess_wall, excess_cpu = (_excess(of_all, has_read, first, last) for of_all, _ in (wall, cpu))
    total_wall, total_cpu = sum(wall[1]), sum(cpu[1])
    if not is_whole:  # the rule of the schedule: the next round waits until then
        cycle_s = own_s / limits.WHATIF_FRACTION
        total_wall, total_cpu = cycle_s, total_cpu * cycle_s / total_wall
    result = {
        "tensors": tensors, "steps": len(measured), "steps_with_readings": sum(each.has_read for each in measured),
        "is_whole": is_whole, "seconds": round(sum(wall[1]), 1),
        "step_ms": round(1e3 * statistics.median(each.wall_s for each in measured if not each.has_read), 2),
        "step_cpu_ms": round(1e3 * statistics.median(each.cpu_s for each in measured if not each.has_read), 2),
        "round_cpu_ms": round(1e3 * excess_cpu, 1),
        "wall_percent": round(100 * excess_wall / total_wall, 3), "cpu_percent": round(100 * excess_cpu / total_cpu, 3),
        "limit_percent": LIMIT_PERCENT,
    }  # fmt: skip
    print(
        f"{tensors} tensors, {len(measured)} steps of {result['step_ms']} ms ({result['step_cpu_ms']} ms of the "
        f"processor), {result['steps_with_readings']} of them with readings{'' if is_whole else '; no whole cycle'}"
    )
    print(
        f"what-if readings: {result['cpu_percent']} % of the training thread's processor time, "
        f"{result['wall_percent']} % of the wall time (baseline: steps without any; limit {result['limit_percent']} %)"
    )
    print(json.dumps(result))


def _excess(times: list[float], has_read: list[bool], first: int, last: int) -> float:
    """Seconds of the steps with readings in [first, last) over the nearest ones without."""
    return sum(times[at] - usual(times, has_read, at) for at in range(first, last) if has_read[at])


def usual(times: list[float], has_read: list[bool], at: int) -> float:
    """The median of the nearest steps without readings, as many before as after."""
    near = range(max(0, at - 10 * NEAR), min(len(times), at + 10 * NEAR))
    before = [times[each] for each in near if each < at and not has_read[each]][-NEAR // 2 :]
    after = [times[each] for each in near if each > at and not has_read[each]][: NEAR // 2]
    return statistics.median(before + after)


if __name__ == "__main__":
    raise SystemExit(main())
