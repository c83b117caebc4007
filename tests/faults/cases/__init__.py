"""The planted faults, by what is at fault: of small models made for it, and of scripts as strangers write them."""

from __future__ import annotations

from tests.faults.cases import (
    apart,
    arithmetic,
    batches,
    built,
    epochs,
    exchanges,
    functions,
    gradients,
    loaded,
    loss_scales,
    losses,
    masks,
    microbatches,
    overflow,
    quiet,
    ranks,
    rates,
    resumes,
    schedules,
    shapes,
    spikes,
    starts,
    weights,
)
from tests.faults.fault import Fault

ALL: tuple[Fault, ...] = (
    *overflow.ALL, *functions.ALL, *weights.ALL, *gradients.ALL, *loss_scales.ALL, *losses.ALL, *ranks.ALL,
)  # fmt: skip

SCRIPTS: tuple[Fault, ...] = (
    *masks.SCRIPTS, *rates.SCRIPTS, *arithmetic.SCRIPTS, *batches.SCRIPTS, *weights.SCRIPTS, *loss_scales.SCRIPTS,
    *losses.SCRIPTS, *ranks.SCRIPTS, *spikes.SCRIPTS, *quiet.SCRIPTS,
    *schedules.SCRIPTS, *exchanges.SCRIPTS, *shapes.SCRIPTS, *microbatches.SCRIPTS, *apart.SCRIPTS,
    *epochs.SCRIPTS, *resumes.SCRIPTS, *loaded.SCRIPTS, *built.SCRIPTS, *starts.SCRIPTS,
)  # fmt: skip
"""What is planted in `families`, and said before any rule was written for it."""

BY_NAME = {each.name: each for each in (*ALL, *SCRIPTS)}
