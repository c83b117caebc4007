"""Training scripts as strangers write them, functional code among them: each healthy as it is, and asking its `Plant`
at each place of its loop what is wrong there. They are at most a few hundred steps of a few milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tests.faults.families import (
    apart,
    built,
    compiled,
    diffusion,
    epochs,
    exchanges,
    far,
    fsdp,
    gan,
    loaded,
    lora,
    microbatches,
    moe,
    nanogpt,
    ppo,
    preference,
    resumes,
    scaled,
    schedules,
    setups,
    sft,
    shapes,
    starts,
    trainer,
    unusual,
)

Train = Callable[..., None]

HEALTHY: dict[str, tuple[Train, Mapping[str, Mapping[str, Any]]]] = {
    "nanogpt": (nanogpt.train, nanogpt.HEALTHY),
    "trainer": (trainer.train, trainer.HEALTHY),
    "gan": (gan.train, gan.HEALTHY),
    "fsdp": (fsdp.train, fsdp.HEALTHY),
    "compiled": (compiled.train, compiled.HEALTHY),
    "moe": (moe.train, moe.HEALTHY),
    "diffusion": (diffusion.train, diffusion.HEALTHY),
    "ppo": (ppo.train, ppo.HEALTHY),
    "sft": (sft.train, sft.HEALTHY),
    "lora": (lora.train, lora.HEALTHY),
    "dpo": (preference.train_dpo, preference.HEALTHY_DPO),
    "grpo": (preference.train_grpo, preference.HEALTHY_GRPO),
    "unusual": (unusual.train, unusual.HEALTHY),
    "far": (far.train, far.HEALTHY),
    "setups": (setups.train, setups.HEALTHY),
    "schedules": (schedules.train, schedules.HEALTHY),
    "exchanges": (exchanges.train, exchanges.HEALTHY),
    "shapes": (shapes.train, shapes.HEALTHY),
    "microbatches": (microbatches.train, microbatches.HEALTHY),
    "apart": (apart.any_of_them, apart.HEALTHY),
    "epochs": (epochs.train, epochs.HEALTHY),
    "resumes": (resumes.train, resumes.HEALTHY),
    "loaded": (loaded.train, loaded.HEALTHY),
    "scaled": (scaled.train, scaled.HEALTHY),
    "built": (built.train, built.HEALTHY),
    "starts": (starts.train, starts.HEALTHY),
}
"""Family -> its script, and the variants in which nothing is wrong: name -> arguments."""

OF_RANKS = {"fsdp": 2, "apart": 2}
"""Families whose script wants several."""
