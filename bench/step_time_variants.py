"""The ways of watching a model that `step_time.py` compares. Each is put on for a block of steps, then taken off."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers.debug_utils import DebugUnderflowOverflow

import rangewatch
from rangewatch.demo.children import free_port


@dataclass(frozen=True)
class Watched:
    """What a variant may watch; `url` is that of a running Rangewatch server."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    url: str


@dataclass(frozen=True)
class Variant:
    """A way of watching: one line of help, and what puts it on and takes it off again."""

    help: str
    watch: Callable[[Watched], AbstractContextManager[object]]


@contextmanager
def _agent(watched: Watched) -> Iterator[None]:
    with rangewatch.attach(watched.model, watched.optimizer, url=watched.url, run="bench-step-time"):
        yield


@contextmanager
def _agent_without_server(watched: Watched) -> Iterator[None]:
    url = f"http://127.0.0.1:{free_port()}"
    with rangewatch.attach(watched.model, watched.optimizer, url=url, run="bench-no-server"):
        yield


@contextmanager
def _debug_underflow_overflow(watched: Watched) -> Iterator[None]:
    before = {module: set(module._forward_hooks) for module in watched.model.modules()}
    DebugUnderflowOverflow(watched.model)
    try:
        yield
    finally:
        # It throws its handles away: what was not there before is its own.
        for module, known in before.items():
            for key in set(module._forward_hooks) - known:
                del module._forward_hooks[key]


@contextmanager
def _aminmax(watched: Watched) -> Iterator[None]:
    """The cheapest look at the same tensors that torch itself offers: nothing is kept, sent or shown."""

    def on_output(module: nn.Module, inputs: object, output: object) -> None:
        tensors = [output] if isinstance(output, Tensor) else list(_tensors_in(output))
        for tensor in tensors:
            torch.aminmax(tensor.detach())
            if tensor.requires_grad:
                tensor.register_hook(on_gradient)

    def on_gradient(gradient: Tensor) -> None:
        torch.aminmax(gradient)

    handles = [module.register_forward_hook(on_output) for module in watched.model.modules()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _tensors_in(output: object) -> Iterator[Tensor]:
    values = output.values() if isinstance(output, dict) else output if isinstance(output, tuple) else ()
    for value in values:
        if isinstance(value, Tensor) and value.is_floating_point():
            yield value


VARIANTS = {
    "plain": Variant("nothing attached", lambda watched: contextlib.nullcontext()),
    "agent": Variant("rangewatch.attach, default settings, server on the same machine", _agent),
    "agent_no_server": Variant("rangewatch.attach, no server answers", _agent_without_server),
    "debug_hf": Variant("transformers DebugUnderflowOverflow (forward only)", _debug_underflow_overflow),
    "aminmax": Variant("torch.aminmax on each output and its gradient: the floor", _aminmax),
}
