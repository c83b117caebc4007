"""Watching changes no bit: every healthy script trains the same parameters with the agent and without it."""

from __future__ import annotations

import contextlib
import hashlib
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_post_hook

from tests.faults.fault import Job
from tests.faults.healthy import SCRIPTS, Script

STEPS = 24
NOWHERE = "http://127.0.0.1:9"
QUICK_FAMILIES = ("gan",)


def trained(script: Script) -> list[str]:
    """A digest of the optimizer's parameters after each of its steps, and of what their gradients were."""
    digests: list[str] = []

    def digest(optimizer: Any, *args: Any) -> None:
        found = hashlib.blake2b(digest_size=8)
        for each in (each for group in optimizer.param_groups for each in group["params"]):
            for tensor in (each, each.grad):
                if tensor is not None:
                    local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
                    dense = local.coalesce().values() if local.is_sparse else local
                    found.update(dense.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        digests.append(found.hexdigest())

    random.seed(0)
    np.random.seed(0)
    hook = register_optimizer_step_post_hook(digest)
    try:
        script.train(Job(NOWHERE, "bits"), STEPS)
    finally:
        hook.remove()
    torch.compiler.reset()
    return digests


@contextlib.contextmanager
def group_of_one(script: Script) -> Iterator[None]:
    """Scripts of several ranks want a process group."""
    if script.ranks > 1:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        if script.ranks > 1:
            dist.destroy_process_group()


def scripts() -> Iterator[Any]:
    seen = set()
    for each in SCRIPTS:
        mark = pytest.mark.soak if each.family in seen else pytest.mark.slow
        is_quick = each.family in QUICK_FAMILIES and each.family not in seen
        seen.add(each.family)
        yield pytest.param(each, id=each.name, marks=[] if is_quick else [mark])


@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore:.*should not be instantiated.*:DeprecationWarning")  # torch 2.13's own, in dynamo
@pytest.mark.parametrize("script", list(scripts()))
def test_a_script_trains_the_same_with_the_agent(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    with group_of_one(script):
        watched = trained(script)
        monkeypatch.setenv("RANGEWATCH_ENABLED", "0")
        assert trained(script) == watched
    skipped = 8 if script.family == "scaled" else 0  # no update is made until the first scale fits
    assert len(watched) >= STEPS - skipped
