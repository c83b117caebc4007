"""What reading attention logits costs a training, against the same steps without.

    python bench/attention_logits.py [--pairs 150] [--width 128] [--rows 8] [--tokens 128] [--threads 1]

A small transformer with fused attention trains on a CPU under the agent. In every other step the reader of attention
logits listens, in the others it does not: pairs of neighbours in one process, so that a busy machine and the agent's
other readings are in both. The ratio is the median over the pairs, of the training thread's processor time and of wall
time. Prediction, before the first measurement: 1 % at most.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import torch
from torch import Tensor, nn

import rangewatch
from rangewatch.hooks.attention_logits import FUNCTIONS

WARM = 10


class Attention(nn.Module):
    """As models have it: one projection, and torch's fused attention."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, values: Tensor) -> Tensor:
        rows, tokens, width = values.shape
        split = self.qkv(values).view(rows, tokens, 3, 8, -1).permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(*split, is_causal=True)
        values = values + self.proj(attended.transpose(1, 2).reshape(rows, tokens, width))
        result: Tensor = values + self.down(nn.functional.gelu(self.up(values)))
        return result


def main() -> None:
    """Print the ratios, and as the last line the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=150, help="pairs of steps (default 150)")
    parser.add_argument("--width", type=int, default=128, help="features (default 128)")
    parser.add_argument("--rows", type=int, default=8, help="rows of a batch (default 8)")
    parser.add_argument("--tokens", type=int, default=128, help="tokens of a row (default 128)")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch (default 1)")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    model = nn.Sequential(Attention(options.width), Attention(options.width))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    rows = torch.randn(options.rows, options.tokens, options.width)
    times: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    with rangewatch.attach(
        model, optimizer, url="http://127.0.0.1:1", quiet=True, watcher=False, spool_bytes=0, collect=(),
        budget_percent=100, flush_timeout_s=0, full_every=10**6, weight_every=10**6,
    ):  # fmt: skip
        (listener,) = FUNCTIONS[0]._listeners
        for step in range(2 * (options.pairs + WARM)):
            listens = (step + step // 2) % 2 == 0  # on, off, off, on: neither is always the later one
            if not listens:
                FUNCTIONS[0].forget(listener)
            cpu_s, wall_s = time.thread_time(), time.perf_counter()
            model(rows).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            times[listens].append((time.thread_time() - cpu_s, time.perf_counter() - wall_s))
            if not listens:
                FUNCTIONS[0].listen(listener)
    pairs = list(zip(times[True][WARM:], times[False][WARM:], strict=True))
    cpu, wall = (statistics.median(on[which] / off[which] for on, off in pairs) for which in (0, 1))
    step_ms = 1e3 * statistics.median(off[0] for _, off in pairs)
    print(f"{len(pairs)} pairs of steps of {step_ms:.2f} ms of the processor; attention logits of 2 layers, 8 heads")
    print(f"with over without: {cpu:.4f} of processor time, {wall:.4f} of wall time (baseline: not listening)")
    print(
        json.dumps(
            {"pairs": len(pairs), "step_cpu_ms": round(step_ms, 2), "cpu": round(cpu, 4), "wall": round(wall, 4)}
        )
    )


if __name__ == "__main__":
    main()
