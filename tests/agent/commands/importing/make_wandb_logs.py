"""Writes the W&B runs that the tests read, with wandb itself, in an environment that has it and pillow:

    python tests/agent/commands/importing/make_wandb_logs.py tests/agent/commands/importing/wandb_logs

What is there was written by wandb 0.31.0, but for the run of `older/`: that is of 0.16.6, whose writer was another one
(`... older .../wandb_logs/older`). It knows nothing of Rangewatch, and keeps the files
small and free of what is of the machine: its paths, its name, its disks.
"""

import gzip
import math
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import wandb

QUIET = {"MODE": "offline", "CONSOLE": "off", "DISABLE_GIT": "true", "HOST": "node", "DATA_DIR": "data"}
QUIET |= {f"{each}_DISABLE_{what}": "true" for each in ("", "X") for what in ("META", "STATS")}  # older and newer names


def main(top: Path, is_older: bool) -> None:
    top = top.resolve()
    os.environ.update({f"WANDB_{name}": value for name, value in QUIET.items()})
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        if is_older:
            everything("older000", "older")
        else:
            everything("aaaa1111", "base run")
            same_name("bbbb2222")
            trainer("cccc3333")
            unnamed_and_long("dddd4444")
        for path in sorted(Path("wandb").glob("offline-run-*/run-*.wandb")):
            (top / path.parent.name).mkdir(parents=True)
            shutil.copy(path, top / path.parent.name)
    for path in top.glob("*/run-dddd4444.wandb"):  # several blocks of 32 KiB: kept small
        (top / "dddd4444.wandb.gz").write_bytes(gzip.compress(path.read_bytes(), mtime=0))
        shutil.rmtree(path.parent)


def everything(identity: str, name: str) -> None:
    """All kinds of values that a row may have."""
    with wandb.init(project="p", id=identity, name=name, tags=["tag"], config={"lr": 0.1, "m": {"n": 2}}) as run:
        for step in range(20):
            nested = {"grad_norm": 2.0 * step, "deep": {"er": step}}
            run.log({"train/loss": 1 / (step + 1), "optimizer": nested, "flag": step % 2 == 0})
        run.log({"odd": math.nan, "whole": 2**70, "float32": np.float32(0.1), "one": np.array([1.5])})
        run.log({"odd": math.inf, "text": "a note", "list": [1, 2], "none": None})
        run.log({"odd": -math.inf, "histogram": wandb.Histogram([1, 2, 3], num_bins=4)})
        picture, table = wandb.Image(np.zeros((2, 2, 3), np.uint8)), wandb.Table(columns=["a"], data=[[1]])
        run.log({"picture": picture, "table": table, "nested": {"histogram": wandb.Histogram([1], num_bins=2)}})
        run.log({"late": 1.0}, step=100)
        run.log({"late": 2.0, "later": 3.0}, step=100)  # one row: the step is the same
        run.log({"late": 9.0}, step=50)  # wandb warns and drops it


def same_name(identity: str) -> None:
    """A second run of that name, with the system's figures."""
    settings = wandb.Settings(x_disable_stats=False, x_stats_sampling_interval=0.5, x_stats_disk_paths=())
    with wandb.init(project="p", id=identity, name="base run", settings=settings) as run:
        for step in range(3):
            run.log({"train/loss": step / 8})
        time.sleep(1)


def trainer(identity: str) -> None:
    """As Transformers' callback logs: wandb counts the rows, and `train/global_step` the steps."""
    with wandb.init(project="p", id=identity, name="trainer") as run:
        run.define_metric("train/global_step")
        run.define_metric("*", step_metric="train/global_step", step_sync=True)
        for step in (10, 20, 30, 20, 40):  # as after a checkpoint was loaded again
            run.log({"train/loss": 1 / step, "train/global_step": step})
            run.log({"mine": step / 2})


def unnamed_and_long(identity: str) -> None:
    with wandb.init(project="p", id=identity) as run:
        for step in range(60):
            run.log({"loss": step / 8, "text": "x" * (100_000 if step == 30 else 10)})


if __name__ == "__main__":
    main(Path(sys.argv[-1]), sys.argv[1] == "older")
