"""A planted fault: the training that has it, and what is to be said of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import rangewatch
from tests.faults.plain import FirstBad

Cause = Literal[
    "", "mask", "data", "learning_rate", "weight", "optimizer", "clip", "forward_arithmetic", "backward_arithmetic",
    "loss_scale", "communication", "replicas", "dead_units", "no_gradient", "eval", "crash",
]  # fmt: skip
"""What an engineer who reads the script would call the cause, whatever the rules call it. "": nothing is wrong."""

USUAL = {"collect": (), "budget_percent": 100, "spool_bytes": 0, "watcher": False, "ship_interval_s": 0.05}


class Plant:
    """What is wrong with a script of `families`, which asks here at each place of its loop; with no arguments nothing.

    Each takes the step and the value that the script has, and gives the one to go on with: `batch`, `rate` (the
    learning rate), `inside` (a tensor in the forward; its second argument is the place's name), `loss`, `held_out` (an
    evaluation's batch). `weights` (before the forward) and `gradients` (after the backward) change the model.
    """

    def __init__(self, **changes: Callable[..., Any]) -> None:
        self._changes, self.step = changes, 0

    def steps(self, count: int) -> Iterator[int]:
        """The script's loop."""
        for self.step in range(count):
            yield self.step

    def inside(self, name: str, value: torch.Tensor) -> torch.Tensor:
        """Not of an evaluation's forward."""
        change = self._changes.get("inside")
        return value if change is None or not torch.is_grad_enabled() else change(self.step, name, value)

    def __getattr__(self, name: str) -> Callable[[Any], Any]:
        if name not in ("batch", "rate", "loss", "held_out", "weights", "gradients"):
            raise AttributeError(name)
        change = self._changes.get(name)
        return (lambda value: value) if change is None else lambda value: change(self.step, value)

    def __deepcopy__(self, memo: Any) -> Plant:
        return self  # an EMA or a reference copies the model that asks it


@dataclasses.dataclass
class Job:
    """One rank of one training. `truth` is what plain hooks saw first, apart from Rangewatch: (step, module)."""

    url: str
    run: str
    seed: int = 0
    rank: int = 0
    ranks: int = 1
    truth: tuple[int, str] | None = None

    def attach(self, model: nn.Module, optimizer: Any = None, scaler: Any = None, **options: Any) -> rangewatch.Handle:
        """As a script does that is to be watched."""
        return rangewatch.attach(model, optimizer, scaler=scaler, url=self.url, run=self.run, **USUAL | options)

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
        with self.attach(whole, optimizer, scaler, **options) as handle:
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

    Of those planted in `families` (`planted`): `cause`, the `rules` any of which may say it, and `against`, regular
    expressions of advice that the evidence speaks against. Their `tensor` is the place, None where there is none, and
    their `rank` None where it is of all; both are matched as `verdict.judged` says. `least`: the severity that it must
    have, or a higher one. `ends`: the process dies of it.
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
    cause: Cause = ""
    rules: tuple[str, ...] = ()
    against: tuple[str, ...] = ()
    least: str = "warning"
    ends: bool = False

    @property
    def name(self) -> str:
        return self.train.__name__


def fault(rule: str, origin: str = "", **wanted: Any) -> Callable[[Callable[[Job], None]], Fault]:
    """The training it decorates has this fault. `origin`: of a first NaN or Inf, "kind cause"."""
    if origin:
        kind, _, cause = origin.partition(" ")
        wanted["facts"] = {"origin": kind, "cause": cause} | wanted.get("facts", {})
    return lambda train: Fault(train, rule, **wanted)


def planted(
    cause: Cause, *rules: str, place: str | None = None, **wanted: Any
) -> Callable[[Callable[[Job], None]], Fault]:
    """The script it decorates has this wrong with it; the first of `rules` is the one that is expected."""
    rule = rules[0] if rules else ""
    return lambda train: Fault(train, rule, place, cause=cause, rules=rules, **{"rank": None} | wanted)
