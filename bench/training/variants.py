"""The ways of watching a training that `overhead.py` compares. Each is put on a model, then taken off again."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

import rangewatch
from rangewatch.core.options import Options
from rangewatch.recording.tensor_names import leaves

AfterStep = Callable[[int], None]
"""Called at the end of each step, inside the time that is measured, with the step's number."""


class NotInstalled(Exception):
    """A variant's library is missing; the message says how to get it."""


@dataclass(frozen=True)
class Watched:
    """What a variant may watch, the URL of a running Rangewatch server, and a folder for what others write."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    url: str
    folder: Path


@dataclass(frozen=True)
class Variant:
    """A way of watching: what it records, in a line, and what puts it on and takes it off."""

    records: str
    watch: Callable[[Watched], AbstractContextManager[AfterStep]]


@contextmanager
def _plain(watched: Watched) -> Iterator[AfterStep]:
    yield _nothing


def _nothing(step: int) -> None:
    pass


def _rangewatch(**options: Any) -> Callable[[Watched], AbstractContextManager[AfterStep]]:
    @contextmanager
    def watch(watched: Watched) -> Iterator[AfterStep]:
        with rangewatch.attach(
            watched.model, watched.optimizer, url=watched.url, run="bench-overhead", **options, **_unlimited()
        ) as handle:
            yield _nothing
            if handle.stats()["faults"] or handle.stats()["dropped"]:
                raise RuntimeError(f"the agent lost something: {handle.stats()}")

    return watch


def _unlimited() -> dict[str, Any]:
    """Where the agent keeps a budget of its own: none, or it would record less than the table says."""
    return {field.name: 100 for field in dataclasses.fields(Options) if field.name == "budget_percent"}


@contextmanager
def _debug_underflow_overflow(watched: Watched) -> Iterator[AfterStep]:
    _library("transformers")
    before = {module: set(module._forward_hooks) for module in watched.model.modules()}
    importlib.import_module("transformers.debug_utils").DebugUnderflowOverflow(watched.model)
    try:
        yield _nothing
    finally:
        # It throws its handles away: what was not there before is its own.
        for module, known in before.items():
            for key in set(module._forward_hooks) - known:
                del module._forward_hooks[key]


@contextmanager
def _aminmax(watched: Watched) -> Iterator[AfterStep]:
    def on_output(module: nn.Module, inputs: object, output: object) -> None:
        for tensor in leaves(output):
            if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
                torch.aminmax(tensor.detach())
                if tensor.requires_grad:
                    tensor.register_hook(on_gradient)

    def on_gradient(gradient: torch.Tensor) -> None:
        torch.aminmax(gradient)

    handles = [module.register_forward_hook(on_output) for module in watched.model.modules()]
    try:
        yield _nothing
    finally:
        for handle in handles:
            handle.remove()


def _wandb_watch(log_freq: int) -> Callable[[Watched], AbstractContextManager[AfterStep]]:
    @contextmanager
    def watch(watched: Watched) -> Iterator[AfterStep]:
        wandb = _library("wandb")
        run = wandb.run or _start_wandb(wandb, watched.folder)
        run.watch(watched.model, log="all", log_freq=log_freq)
        try:
            # Its hooks only gather; `log` is what the user's loop calls, and what writes them.
            yield lambda step: run.log({"step": step})
        finally:
            run.unwatch(watched.model)

    return watch


def _start_wandb(wandb: Any, folder: Path) -> Any:
    """One offline run for the whole process: it has a process of its own, which takes seconds to start."""
    os.environ["WANDB_SILENT"] = "true"
    settings = wandb.Settings(silent=True, console="off", x_disable_stats=True, disable_git=True)
    return wandb.init(project="bench-overhead", mode="offline", dir=folder, settings=settings)


def end_wandb() -> None:
    """End its run and its process, if there are any."""
    with contextlib.suppress(NotInstalled):
        wandb = _library("wandb")
        if wandb.run is not None:
            wandb.finish()


@contextmanager
def _tensorboard(watched: Watched) -> Iterator[AfterStep]:
    _library("tensorboard")
    writer = importlib.import_module("torch.utils.tensorboard").SummaryWriter(watched.folder / "tensorboard")
    model = watched.model

    def write(step: int) -> None:
        for name, parameter in model.named_parameters():
            writer.add_histogram(name, _array(parameter), step)
            if parameter.grad is not None:
                writer.add_histogram(f"{name}.grad", _array(parameter.grad), step)

    try:
        yield write
    finally:
        writer.close()


def _array(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach()
    return tensor.float() if tensor.dtype is torch.bfloat16 else tensor  # numpy has no bf16


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise NotInstalled(f"not installed (pip install {name})") from None


_OUTPUTS = "outputs, gradients of outputs and parameters, every step"
VARIANTS = {
    "plain": Variant("nothing", _plain),
    "plain again": Variant("nothing: how far two equal rows differ", _plain),
    "rangewatch grads": Variant("gradients of parameters, every step", _rangewatch(level="grads")),
    "rangewatch outputs": Variant(f"{_OUTPUTS} (default)", _rangewatch(level="outputs")),
    "  full_every=1": Variant("the same, all statistics at every step, not every 100th", _rangewatch(full_every=1)),
    "rangewatch frames": Variant("the default and inputs; weights every 100th step", _rangewatch(level="frames")),
    "  weight_every=1": Variant("the same, weights every step", _rangewatch(level="frames", weight_every=1)),
    "  moment_every=1": Variant("frames, and moments every step", _rangewatch(level="frames", moment_every=1)),
    "aminmax": Variant("nothing; it reads outputs and their gradients once: the floor", _aminmax),
    "DebugUnderflowOverflow": Variant("weights, inputs and outputs, every step", _debug_underflow_overflow),
    "wandb.watch log_freq=1": Variant("histograms of weights and gradients, every step", _wandb_watch(1)),
    "wandb.watch log_freq=100": Variant("the same, every 100th step", _wandb_watch(100)),
    "TensorBoard": Variant("histograms of weights and gradients, every step", _tensorboard),
}
"""Indented names continue the row above."""
