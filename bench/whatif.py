"""What what-if readings cost a training, from outside and by their own clock, in one run.

    python bench/whatif.py [--every 100] [--rounds 1] [--width 64] [--threads 1]

A small transformer trains on a CPU with `whatif_every`. From the start of the first round to that of the round after
the last (a round waits until all so far are no more than 0.5 % of the time since attach, so this takes some 200 times
as long as a round does: minutes) each step's wall time is taken. What a step with readings costs is its time less the
median of the 20 steps without any around it; the sum of these over the time of all steps is the ratio. A loaded machine
shows as noise in both kinds of steps, and is evened out over them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import torch
from torch import nn

import rangewatch
from rangewatch.core import limits

NEAR = 20


def main() -> int:
    """Print the shares, and all of it as a line of JSON at the end."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=int, default=100, help="steps between two rounds at least (default 100)")
    parser.add_argument("--rounds", type=int, default=1, help="rounds that are measured (default 1)")
    parser.add_argument("--width", type=int, default=64, help="features of the model (default 64)")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch (default 1)")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(options.width, 4, 4 * options.width, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 1)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    rows = torch.randn(8, 64, options.width)
    steps: list[tuple[float, bool]] = []
    began: list[int] = []
    with rangewatch.attach(
        model, optimizer, url="http://127.0.0.1:1", whatif_every=options.every, quiet=True, watcher=False,
        spool_bytes=0, collect=(), budget_percent=100, flush_timeout_s=0,
    ) as handle:  # fmt: skip
        agent = handle._agent
        assert agent is not None
        reader = agent.whatif
        next_round = reader._next_round
        while len(began) <= options.rounds:
            started_s, spent_ns = time.perf_counter(), reader._spent_ns
            model(rows).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            steps.append((time.perf_counter() - started_s, reader._spent_ns > spent_ns))
            if reader._next_round != next_round:
                next_round = reader._next_round
                began.append(len(steps))
        first, last = began[0], began[-1]
        own_s = reader._spent_ns / 1e9
        since_attach_s = (time.perf_counter_ns() - reader._began_ns) / 1e9
        tensors = len(agent.names)
    measured = steps[first:last]
    excess_s = sum(each - usual(steps, first + at) for at, (each, has_read) in enumerate(measured) if has_read)
    total_s = sum(each for each, _ in measured)
    reading = sum(has_read for _, has_read in measured)
    result = {
        "tensors": tensors, "steps": len(measured), "steps_with_readings": reading, "seconds": round(total_s, 1),
        "step_ms": round(1e3 * statistics.median(each for each, has_read in measured if not has_read), 2),
        "excess_percent": round(100 * excess_s / total_s, 3),
        "own_clock_percent": round(100 * own_s / since_attach_s, 3),
        "limit_percent": 100 * limits.WHATIF_FRACTION,
    }  # fmt: skip
    print(f"{tensors} tensors, {len(measured)} steps of {result['step_ms']} ms, {reading} of them with readings")
    print(
        f"what-if readings: {result['excess_percent']} % of the steps' time from outside (baseline: steps without any),"
    )
    print(
        f"{result['own_clock_percent']} % of the time since attach by their own clock, of {result['limit_percent']} %"
    )
    print(json.dumps(result))
    return 0


def usual(steps: list[tuple[float, bool]], at: int) -> float:
    """The median of the nearest steps without readings, as many before as after."""
    before = [each for each, has_read in steps[max(0, at - 10 * NEAR) : at] if not has_read][-NEAR // 2 :]
    after = [each for each, has_read in steps[at + 1 : at + 10 * NEAR] if not has_read][: NEAR // 2]
    return statistics.median(before + after)


if __name__ == "__main__":
    raise SystemExit(main())
