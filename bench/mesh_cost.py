"""What the comparison between ranks costs a training: four gloo ranks on this CPU, with and without it.

    python bench/mesh_cost.py [--rounds 6] [--steps 100] [--layers 4] [--width 256]

A round trains a window of steps of one DDP model twice, in random order: attached with all as it is by default, and
with `replica_every=0`, which compares nothing along the mesh. A window of 100 steps has each parameter's turn and the
three steps at which the rest is compared once; its first step, at which all parameters are read, is not counted. Each
ratio is that of two windows of one round: of the time on the wall, and of processor time of all four ranks, which other
work on the machine disturbs less. The table has the median of the rounds, and the least and the most.

Predicted before measuring: 1.02 at most.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

RANKS, EVERY = 4, 100
VOCABULARY, LENGTH, ROWS = 256, 32, 8


def main() -> None:
    """Print the ratios, and as the last line JSON."""
    options = _options()
    if options.url:
        rank(options)
        return
    from tests.faults.conftest import Runs

    os.environ["RANGEWATCH_WATCHER"] = "0"
    with tempfile.TemporaryDirectory(prefix="rangewatch-bench-") as folder:
        runs = Runs(Path(folder))
        try:
            rounds = launch(runs.url, folder)
        finally:
            runs.server.stop()
    result = {"benchmark": "mesh_cost", "ranks": RANKS, "rounds": len(rounds), "load": os.getloadavg()[0]}
    for at, name in enumerate(("wall", "cpu")):
        ratios = [sum(each["on"][at] for each in ranks) / sum(each["off"][at] for each in ranks) for ranks in rounds]
        result[name] = round(statistics.median(ratios), 4)
        print(f"{name:<5} ratio: median {result[name]}, from {min(ratios):.4f} to {max(ratios):.4f}")
    print(json.dumps(result))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--steps", type=int, default=100, help="of a window")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    return parser.parse_args()


def launch(url: str, folder: str) -> list[list[dict[str, list[float]]]]:
    """Round -> rank -> variant -> seconds on the wall and of the processor. Raises `SystemExit` where a rank failed."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    usual = os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(RANKS)}
    usual |= {"OMP_NUM_THREADS": "1", "RANGEWATCH_SPOOL_DIR": folder, "RANGEWATCH_COLLECT": "environment"}
    started = [
        subprocess.Popen(
            [sys.executable, __file__, *sys.argv[1:], "--url", url], stdout=subprocess.PIPE, text=True,
            env=usual | {"RANK": str(each), "LOCAL_RANK": str(each)},
        )
        for each in range(RANKS)
    ]  # fmt: skip
    texts = [each.communicate()[0] for each in started]
    if any(each.returncode for each in started):
        raise SystemExit("a rank failed")
    return [list(each) for each in zip(*(json.loads(text) for text in texts), strict=True)]


def rank(options: argparse.Namespace) -> None:
    """One of the four: prints its times as JSON."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    import rangewatch

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    block = nn.TransformerEncoderLayer(options.width, 4, 4 * options.width, batch_first=True)
    body = nn.TransformerEncoder(block, options.layers, enable_nested_tensor=False)
    model = DistributedDataParallel(
        nn.Sequential(nn.Embedding(VOCABULARY, options.width), body, nn.Linear(options.width, VOCABULARY))
    )
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    generator = torch.Generator().manual_seed(dist.get_rank())

    def step() -> None:
        tokens = torch.randint(VOCABULARY, (ROWS, LENGTH), generator=generator)
        nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    def window(name: str, every: int) -> list[float]:
        handle = rangewatch.attach(model, optimizer, url=options.url, run=name, replica_every=every, quiet=True)
        with handle:
            step()
            dist.barrier()
            wall_s, cpu_s = time.perf_counter(), time.process_time()
            for _ in range(options.steps):
                step()
            spent = [time.perf_counter() - wall_s, time.process_time() - cpu_s]
        dist.barrier()
        return spent

    order = random.Random(0)
    rounds = []
    for number in range(options.rounds + 1):
        variants = [("on", EVERY), ("off", 0)]
        order.shuffle(variants)
        rounds.append({name: window(f"{name} {number}", every) for name, every in variants})
    print(json.dumps(rounds[1:]))  # the first round warms up
    dist.barrier()  # the first rank holds the store


if __name__ == "__main__":
    main()
