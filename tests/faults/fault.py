"""A planted fault: the training that has it, and what is to be said of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import rangewatch
from tests.faults.plain import FirstBad


@dataclasses.dataclass
class Job:
    """One rank of one training. `truth` is what plain hooks saw first, apart from Rangewatch: (step, module)."""

    url: str
    run: str
    seed: int = 0
    rank: int = 0
    ranks: int = 1
    truth: tuple[int, str] | None = None

    def train(
        self, model: nn.Module, batch: Callable[[int], Any], loss: Callable[..., torch.Tensor], steps: int, *,
        optimizer: torch.optim.Optimizer | None = None, before: Callable[[int], None] = lambda step: None,
        after_backward: Callable[[int], None] = lambda step: None, dtype: torch.dtype | None = None,
        scaler: Any = None, logged: Callable[[int, float], float] = lambda step, loss: loss, **options: Any,
    ) -> None:  # fmt: skip
        """`steps` steps. `batch(step)` is (inputs, targets); `dtype`: of autocast; `before(step)` changes things."""
        optimizer = optimizer or torch.optim.SGD(model.parameters(), 1e-2)
        first = FirstBad(model)
        whole = DistributedDataParallel(model, bucket_cap_mb=0.001) if self.ranks > 1 else model
        usual = {"collect": (), "budget_percent": 100, "spool_bytes": 0, "watcher": False, "ship_interval_s": 0.05}
        with rangewatch.attach(
            whole, optimizer, scaler=scaler, url=self.url, run=self.run, **usual | options
        ) as handle:
            for step in range(steps):
                before(step)
                first.step = step
                inputs, targets = batch(step)
                with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
                    out = whole(inputs)
                value = loss(out.float() if dtype else out, targets)
                handle.log(loss=logged(step, float(value.detach())))
                (value if scaler is None else scaler.scale(value)).backward()
                first.after_backward(value)
                after_backward(step)
                update(optimizer, scaler)
        first.remove()
        self.truth = first.seen


def update(optimizer: torch.optim.Optimizer, scaler: Any) -> None:
    """With what the backward gave."""
    if scaler is None:
        optimizer.step()
    else:
        scaler.step(optimizer)
        scaler.update()
    optimizer.zero_grad()


@dataclasses.dataclass(frozen=True)
class Fault:
    """What is to be found. `step` and `tensor` are None where plain hooks say them (`Job.truth`).

    `kind`: of the tensor. `facts`: of the finding's own, the class among them; `words` must be in its text. `warned`:
    whether it is gradual, and a warning must come 5 steps before it or more. `also`: rules that may find something,
    too. `rule` "" is a training in which nothing that is critical or a warning may be found. `soak`: too long for each
    run of the tests, or dependent on time.
    """

    train: Callable[[Job], None]
    rule: str
    tensor: str | None = None
    kind: str | None = None
    step: int | range | None = None
    rank: int | None = 0
    facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    words: tuple[str, ...] = ()
    warned: bool = False
    also: tuple[str, ...] = ()
    ranks: int = 1
    soak: bool = False

    @property
    def name(self) -> str:
        return self.train.__name__


def fault(rule: str, origin: str = "", **wanted: Any) -> Callable[[Callable[[Job], None]], Fault]:
    """The training it decorates has this fault. `origin`: of a first NaN or Inf, "kind cause"."""
    if origin:
        kind, _, cause = origin.partition(" ")
        wanted["facts"] = {"origin": kind, "cause": cause} | wanted.get("facts", {})
    return lambda train: Fault(train, rule, **wanted)
