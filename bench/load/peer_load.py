"""One process that logs for so many seconds into one peer. Runs in the peers' environment: `peers.py` starts it.

    python peer_load.py trackio|mlflow|tensorboard DATA.npz FOLDER SECONDS RANK

The clock runs from the first value to the end of what makes the last one durable. Prints {"values", "seconds"}.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

BATCH_METRICS = 1_000  # the most that MLflow's log_batch takes

Steps = Iterator[tuple[int, list[float]]]


def main() -> None:
    name, data, folder, seconds, rank = sys.argv[1:]
    loaded = np.load(data)
    names, values = [str(each) for each in loaded["names"]], loaded["values"]
    log, finish = PEERS[name](Path(folder), rank, names)
    began_s = time.perf_counter()
    count = 0
    for step in itertools.count():
        log(step, values[step % len(values)].tolist())
        count += len(names)
        if time.perf_counter() - began_s > float(seconds):
            break
    finish()
    print(json.dumps({"values": count, "seconds": time.perf_counter() - began_s}))


def trackio(folder: Path, rank: str, names: list[str]) -> tuple[Callable[..., Any], Callable[[], Any]]:
    """One row of JSON a step, written by a thread twice a second."""
    os.environ["TRACKIO_DIR"] = str(folder)
    import trackio

    trackio.init(project="bench", name=f"rank{rank}", embed=False, auto_log_gpu=False, auto_log_cpu=False)
    return lambda step, values: trackio.log(dict(zip(names, values, strict=True)), step=step), trackio.finish


def mlflow(folder: Path, rank: str, names: list[str]) -> tuple[Callable[..., Any], Callable[[], Any]]:
    """A transaction of at most 1,000 metrics."""
    from mlflow import MlflowClient
    from mlflow.entities import Metric

    client = MlflowClient(tracking_uri=f"sqlite:///{folder}/mlflow{rank}.db")  # a file each: no waiting for locks
    run = client.create_run(client.create_experiment("bench")).info.run_id
    plain = [name.replace(".", "_") for name in names]

    def log(step: int, values: list[float]) -> None:
        now_ms = int(time.time() * 1e3)
        metrics = [Metric(name, value, now_ms, step) for name, value in zip(plain, values, strict=True)]
        for first in range(0, len(metrics), BATCH_METRICS):
            client.log_batch(run, metrics=metrics[first : first + BATCH_METRICS])

    return log, lambda: client.set_terminated(run)


def tensorboard(folder: Path, rank: str, names: list[str]) -> tuple[Callable[..., Any], Callable[[], Any]]:
    """An event a value, in a file of its own for each process."""
    from tensorboardX import SummaryWriter

    writer = SummaryWriter(str(folder / f"rank{rank}"), max_queue=BATCH_METRICS)

    def log(step: int, values: list[float]) -> None:
        for name, value in zip(names, values, strict=True):
            writer.add_scalar(name, value, step)

    return log, writer.close


PEERS = {"trackio": trackio, "mlflow": mlflow, "tensorboard": tensorboard}

if __name__ == "__main__":
    main()
