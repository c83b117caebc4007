"""`python run_blocks.py` runs the Python blocks of the docs in one process, each page with names of its own, and prints
what became of each as JSON. Each is a line of its input, as JSON: where it is, its page, its section and its text.
RANGEWATCH_URL is a server that has the run of `tests.docs.reported`. Only what users have can be imported here.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn

from rangewatch.api import attachment

Names = dict[str, Any]
ADDRESS = "http://127.0.0.1:8642"


class Block(NamedTuple):
    """What is needed here of one of `tests.docs.blocks`."""

    place: str
    page: str
    section: str
    text: str


def main() -> None:
    """Run them in the order in which they are told."""
    sys.path[0] = ""  # as where users type; a block finds nothing that lies beside this file
    names: dict[str, Names] = {}
    for block in [Block(*json.loads(line)) for line in sys.stdin]:
        problem = run(block, names.setdefault(block.page, {}))
        print(json.dumps([block.place, problem]), flush=True)


def run(block: Block, names: Names) -> str:
    """What went wrong, or nothing. Prepared names are made anew for each block; a page's own last to its end."""
    prepare = PREPARED.get((block.page, block.section)) or PREPARED.get((block.page, ""))
    code = block.text.replace(ADDRESS, os.environ["RANGEWATCH_URL"])
    try:
        names.update(prepare() if prepare else {})
        with contextlib.redirect_stdout(io.StringIO()):
            exec(compile(code, block.place, "exec"), names)  # the docs' own code
    except BaseException:
        return traceback.format_exc()
    finally:
        for handle in list(attachment._attached.values()):
            handle.detach()
    return ""


def a_loop() -> Names:
    """What a training loop has."""
    model = build_model()
    optimizer = torch.optim.AdamW(model.parameters())
    return {
        "torch": torch, "model": model, "optimizer": optimizer, "scaler": torch.amp.GradScaler("cpu"),
        "loss": torch.tensor(2.0), "lr": 1e-3, "inputs": torch.randn(4, 8), "checkpoint": {"step": 120},
        "build_model": build_model, "rangewatch": __import__("rangewatch"),
    }  # fmt: skip


def build_model() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 1))


def a_trainer() -> Names:
    """What `docs/integrations.md` takes for granted of Transformers."""
    from transformers import Trainer, TrainingArguments

    class Regression(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = build_model()

        def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": nn.functional.mse_loss(self.layers(inputs)[:, 0], labels)}

    data = [{"inputs": each, "labels": each.sum()} for each in torch.randn(16, 8)]
    args = TrainingArguments(
        output_dir="out", max_steps=3, use_cpu=True, report_to="none", save_strategy="no", disable_tqdm=True
    )
    return {"Trainer": Trainer, "args": args, "data": data, "model": Regression()}


def a_lightning_trainer() -> Names:
    """What it takes for granted of Lightning."""
    from functools import partial

    import lightning.pytorch as pl
    from torch.utils.data import DataLoader

    class Regression(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layers = build_model()

        def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
            return nn.functional.mse_loss(self.layers(batch)[:, 0], batch.sum(1))

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters())

    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "accelerator": "cpu"}
    trainer = partial(pl.Trainer, max_steps=3, enable_model_summary=False, **quiet)
    return {"Trainer": trainer, "module": Regression(), "loader": DataLoader(torch.randn(16, 8), batch_size=4)}


def an_accelerator() -> Names:
    """What it takes for granted of Accelerate."""
    from accelerate import Accelerator
    from torch.utils.data import DataLoader

    loader = DataLoader(torch.randn(16, 8), batch_size=4)
    return a_loop() | {"accelerator": Accelerator(cpu=True), "loader": loader}


def an_export() -> Names:
    """What docs/api.md takes for granted of a slice that was asked for as a file."""
    import pandas
    import pyarrow
    import requests

    url = os.environ["RANGEWATCH_URL"]
    asked = f"{url}/api/v1/runs/3/slice?axes=step,rank,tensor&rank=0&statistic=amax&format=arrow"
    body = requests.get(asked, timeout=30).content
    frame = pyarrow.ipc.open_stream(body).read_pandas()
    return {
        "pandas": pandas, "pyarrow": pyarrow, "requests": requests, "io": io, "url": url, "body": body, "frame": frame,
    }  # fmt: skip


PREPARED: dict[tuple[str, str], Callable[[], Names]] = {
    ("README.md", ""): a_loop,
    ("docs/index.md", ""): a_loop,
    ("docs/recipes/plain.md", ""): a_loop,
    ("docs/api.md", "Exports"): an_export,
    ("docs/integrations.md", "Transformers"): a_trainer,
    ("docs/integrations.md", "Lightning"): a_lightning_trainer,
    ("docs/integrations.md", "Accelerate"): an_accelerator,
}

if __name__ == "__main__":
    main()
