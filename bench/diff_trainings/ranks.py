"""One of two gloo ranks, or the one process, that trains a small model once for each run.

    ranks.py URL RUN...

RUN is "LAYOUT PRECISION MODE HOW FACTOR PLACE STEP SEED": LAYOUT is one, fsdp2, tp2 or pp2; HOW, by FACTOR in the
module PLACE from STEP on, is what is planted (`plants.py`), "none" for nothing; SEED is that of the data and its order.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.e2e.layout_ranks import BATCH, WIDTH, Net, laid_out, run_each, take_step

import rangewatch
from diff_trainings.plants import Plant

STEPS, RATE = 8, 0.05
KINDS = ("input", "output", "grad_output", "grad", "weight")
"""As docs/diff.md advises. Without inputs 39 of the 40 were right: of a batch that differs in one row a LayerNorm
leaves the largest magnitude and the mean square what they were, so that the module after it was named.
"""

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def train(url: str, run: str) -> None:
    layout, precision, mode, how, factor, place, first, seed = run.split()
    torch.manual_seed(1)
    torch.compiler.reset()
    plant, whole = Plant(how, float(factor), place, int(first)), Net()
    plant.before_layout(whole)
    dtype = DTYPES[precision]
    model = laid_out(whole.to(dtype), layout)
    plant.hook(model)
    optimizer = torch.optim.SGD(plant.groups(model, RATE), RATE)
    mesh = {"pp": 2} if layout == "pp2" else None  # else it is not known whether ranks hold copies of plain tensors
    handle = rangewatch.attach(
        model, optimizer, url=url, run=run, kinds=KINDS, weight_every=1, full_every=1, collect=(), mesh=mesh
    )
    updated = take_step(torch.compile(model) if mode == "compiled" else model, layout)
    with handle:
        for step in range(STEPS):
            generator = torch.Generator().manual_seed(1000 * int(seed) + step)
            data, target = (torch.randn(BATCH, each, generator=generator) for each in (WIDTH, 2))
            plant.begin(step, optimizer, RATE)
            updated(plant.data(step, data).to(dtype), target.to(dtype))
            optimizer.step()
            optimizer.zero_grad()
    assert not handle.stats().get("faults")


if __name__ == "__main__":
    run_each(train, *sys.argv[1:])
