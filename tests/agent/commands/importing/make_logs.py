"""Writes the logs that the tests read:

    python tests/agent/commands/importing/make_logs.py tests/agent/commands/importing/logs

What is there was written by tensorboard 2.21 with torch 2.13. It knows nothing of Rangewatch.
"""

import sys
from pathlib import Path

import torch
from torch.utils.tensorboard import SummaryWriter


def main(top: Path) -> None:
    with SummaryWriter(str(top / "first")) as writer:
        for step in range(100):
            writer.add_scalar("train/loss", 1 / (step + 1), step)
            if step % 10 == 0:
                writer.add_scalar("lr", 0.1 * 0.5 ** (step // 10), step)
        writer.add_scalar("odd", float("nan"), 0)
        writer.add_scalar("odd", float("inf"), 1)
        writer.add_scalar("odd", -2.5, 2)
        writer.add_histogram("weights", torch.arange(10.0), 0)
        writer.add_image("image", torch.zeros(3, 4, 4), 0)
        writer.add_text("note", "not a number", 0)
    with SummaryWriter(str(top / "first"), filename_suffix=".restarted") as writer:
        for step in range(90, 120):
            writer.add_scalar("train/loss", 2.0, step)
    with SummaryWriter(str(top / "second" / "new_style")) as writer:
        for step in range(5):
            writer.add_scalar("train/loss", step / 4, step * 1000, new_style=True)
            writer.add_scalar("precise", 0.1, step * 1000, new_style=True, double_precision=True)
    with SummaryWriter(str(top / "pairs")) as writer:
        for step in range(3):
            writer.add_scalars("losses", {"train": step, "valid": step + 0.5}, step)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
