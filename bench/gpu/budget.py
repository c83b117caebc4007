"""Whether the default budget holds on a device: a GPT's step with nothing said but `attach`, from the first step on.

    python bench/gpu/budget.py [--dry-run]

Every output is read until the cost is known, and then as many as the budget has room for. The figures are the step's
ratio to the plain one before that and at the end. `--dry-run`: a small model on a CPU, by way of the device's rows.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

os.environ.setdefault("RANGEWATCH_QUIET", "1")

import torch
from checks import Checks, parser
from tests.agent.ingest_double import IngestDouble

import rangewatch
from training.models import WORKLOADS, Gpt, Workload, next_token_loss

BEGIN, PLAIN, WATCHED, LAST = 5, 60, 480, 122
"""Steps: not counted, plain (before and after), watched, and those of the watched that are counted at the end, a
multiple of the largest of `limits.FORWARD_EVERY`."""
FIRST = 60
"""Watched steps that are counted before the budget can have been judged."""
MOST_RATIO = 1.05
"""The budget is 3 %, of what the agent can see of itself."""


def main() -> int:
    chosen = parser(__doc__).parse_args()
    checks = Checks()
    torch.manual_seed(0)
    workload = small() if chosen.dry_run else WORKLOADS["gpt"]("cuda")
    optimizer = torch.optim.AdamW(workload.model.parameters(), lr=1e-5)

    def mean_s(steps: int) -> float:
        _wait(workload)
        began_s = time.perf_counter()
        for _ in range(steps):
            optimizer.zero_grad()
            workload.compute_loss(workload.model, workload.next_batch()).backward()
            optimizer.step()
        _wait(workload)
        return (time.perf_counter() - began_s) / steps

    mean_s(BEGIN)
    before_s = mean_s(PLAIN)
    ingest = IngestDouble()
    try:
        backend: dict[str, Any] = {"backend": "device"} if chosen.dry_run else {}
        with rangewatch.attach(workload.model, optimizer, url=ingest.url, **backend):
            mean_s(BEGIN)
            first_s = mean_s(FIRST)
            mean_s(WATCHED - BEGIN - FIRST - LAST)
            last_s = mean_s(LAST)
        said = [(event.step, event.message) for event in ingest.events("level")]
        device_s = ingest.series("agent_device_time_s")
        host_s = ingest.series("agent_time_s")
    finally:
        ingest.stop()
    plain_s = (before_s + mean_s(PLAIN)) / 2
    is_finite = all(bool(each.isfinite().all()) for each in workload.model.parameters())
    checks.that(is_finite, "a weight is not finite: what is measured is no training")
    checks.figures |= {
        "plain_ms": 1e3 * plain_s, "ratio_before": first_s / plain_s, "ratio": last_s / plain_s, "said": said,
        "device_ms": {step: 1e3 * seconds for step, seconds in device_s.items()},
        "host_ms": {step: 1e3 * seconds for step, seconds in host_s.items()},
    }  # fmt: skip
    if not chosen.dry_run:
        checks.that(last_s / plain_s <= MOST_RATIO, f"a step is {last_s / plain_s:.3f} of a plain one at the end")
    return checks.end()


def small() -> Workload:
    """A model whose steps a CPU makes in some milliseconds."""
    model = Gpt(layers=2, width=64, heads=4, length=32, vocabulary=128)
    ids = torch.randint(128, (2, 33))
    return Workload("a small GPT", model, lambda: ids, next_token_loss, torch.float32)


def _wait(workload: Workload) -> None:
    if workload.device.type == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    sys.exit(main())
