"""What the agent's tests share: the ingest double, and the check that no hook is left."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from rangewatch.api import attachment
from rangewatch.api.agent import Agent
from rangewatch.core.guard import Guarded
from tests.agent.ingest_double import IngestDouble, Reply, refused

# Threads that share small tensors wait for each other longer than they work, where pytest's workers have all cores.
torch.set_num_threads(1)


@pytest.fixture
def ingest() -> Iterator[IngestDouble]:
    double = IngestDouble()
    yield double
    double.stop()


@pytest.fixture
def refuse() -> Callable[..., Callable[[Any], Reply]]:
    """Makes a scripted refusal: `refuse(429, "too_many", Retry_After="0")`."""
    return lambda status, code, **headers: lambda request: refused(status, code, **headers)


@pytest.fixture(autouse=True)
def no_hook_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """After the test, no model, parameter or optimizer that was attached in this process holds a hook of ours."""
    attached: list[tuple[weakref.ref[torch.nn.Module], list[Any], Agent]] = []
    original = attachment._attach

    def remember(model: torch.nn.Module, optimizers: list[Any], *rest: Any) -> attachment.Handle:
        handle = original(model, optimizers, *rest)
        assert handle._agent is not None
        attached.append((weakref.ref(model), [weakref.ref(optimizer) for optimizer in optimizers], handle._agent))
        return handle

    monkeypatch.setattr(attachment, "_attach", remember)
    monkeypatch.delenv("RANGEWATCH_URL", raising=False)
    yield
    still_active = [agent for _, _, agent in attached if agent.observer.is_active]
    for agent in still_active:  # so that one failed test does not fail all after it
        agent.remove()
        agent.finish()
    assert not still_active, "the test left a model attached"
    for model, optimizers, _ in attached:
        assert not _hooks_of_ours(model(), [optimizer() for optimizer in optimizers])


def _hooks_of_ours(model: torch.nn.Module | None, optimizers: list[Any]) -> list[Any]:
    modules = [] if model is None else list(model.modules())
    parameters = [] if model is None else list(model.parameters())
    hooks = [hook for module in modules for hook in module._forward_hooks.values()]
    hooks += [hook for module in modules for hook in module._forward_pre_hooks.values()]
    hooks += [hook for parameter in parameters for hook in (parameter._post_accumulate_grad_hooks or {}).values()]
    hooks += [hook for parameter in parameters for hook in (parameter._backward_hooks or {}).values()]
    hooks += [
        hook
        for each in optimizers
        if each is not None
        for hook in vars(each).get("_optimizer_step_post_hooks", {}).values()
    ]
    return [hook for hook in hooks if isinstance(hook, Guarded)]
