"""The same training run with Transformers' `DebugUnderflowOverflow` and with ours: both name the same first bad frame.

Theirs is a module that has finished, with its weights, positional inputs and outputs, and ends the training. Ours is
told twice by the server: as the first bad tensor in call order, and as the frame that ends the classic text report,
which has their layout. A frame here is (module, class, tensor), the tensor as their reports have it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import rangewatch
from tests.agent.hooks.planted_models import Transformer
from tests.server.process import Run

SLOW = pytest.mark.slow
Frame = tuple[str, str, str]
Rates = dict[str, float]
"""Learning rates by parameter; the others do not move."""
IDS = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]])
STEPS = 3


def steps_of(model: Transformer, rates: Rates) -> tuple[torch.optim.Optimizer, Callable[[], None]]:
    # Only what has a rate may step: a NaN times a rate of 0 would go from a gradient into its weight.
    rates = rates or {"head.logits.bias": 0.0}
    optimizer = torch.optim.SGD([{"params": [model.get_parameter(name)], "lr": rate} for name, rate in rates.items()])

    def step() -> None:
        model.zero_grad()
        model(IDS).backward()
        optimizer.step()

    return optimizer, step


def theirs(model: Transformer, rates: Rates, capsys: pytest.CaptureFixture[str]) -> tuple[int, Frame] | None:
    """The batch and the frame in which their detector ended the training; None when it let it pass."""
    from transformers.debug_utils import DebugUnderflowOverflow  # takes seconds

    DebugUnderflowOverflow(model)
    _, step = steps_of(model, rates)
    capsys.readouterr()
    try:
        for _ in range(STEPS):
            step()
    except ValueError as error:
        assert "inf/nan detected" in str(error)
        return parsed(capsys.readouterr().out)
    return None


def parsed(report: str) -> tuple[int, Frame]:
    """The last frame of their report, and its first line with an inf or nan."""
    (batch,) = re.findall(r"^Detected inf/nan during batch_number=(\d+)$", report, re.MULTILINE)
    headers = list(re.finditer(r"^ {18}(\S*) (\w+)$", report, re.MULTILINE))
    lines = report[headers[-1].end() :].splitlines()
    bad = next(line for line in lines if re.match(r" *\S*(inf|nan)| *\S+ +(inf|nan) ", line))
    return int(batch), (headers[-1][1], headers[-1][2], bad.split()[-1])


class Ours(NamedTuple):
    """A step that the server calls bad, its first bad tensor, and the last frame of its report."""

    step: int
    first: Frame
    reported: Frame


def ours(model: Transformer, rates: Rates, run: Run) -> tuple[Ours, ...]:
    """The bad steps."""
    optimizer, step = steps_of(model, rates)
    options: dict[str, Any] = {"url": run.server.url, "run": run.name, "level": "frames", "weight_every": 1}
    with rangewatch.attach(model, optimizer, **options) as handle:
        for _ in range(STEPS):
            step()
        assert handle.stats()["faults"] == {}
    found = [run.get(f"/step?step={step}&rank=0") for step in range(STEPS)]
    bad = tuple(as_ours(model, each) for each in found if each["first_nonfinite"] is not None)
    first = run.get()["first_overflow"]
    assert (first["step"], first["kind"]) == (bad[0].step, bad[0].first[2].partition("[")[0])
    return bad


def as_ours(model: nn.Module, found: dict[str, Any]) -> Ours:
    batch, reported = parsed(found["report"])
    assert batch == found["step"]
    tensor = found["frames"][found["first_nonfinite"]]
    fqn, kind, module = tensor["fqn"], tensor["kind"], tensor["module"]
    if kind == "weight":
        owner, _, parameter = fqn.rpartition(".")
        return Ours(batch, (owner, type(model.get_submodule(owner)).__name__, parameter), reported)
    return Ours(batch, (fqn, module, "output" if kind == "output" else f"{kind}[{tensor['index']}]"), reported)


def an_activation(model: Transformer) -> Rates:
    nn.init.constant_(model.blocks[1].up.weight, 3e38)
    return {}


def attention_logits(model: Transformer) -> Rates:
    attention: Any = model.blocks[0].attention
    for layer in (attention.q, attention.k):
        layer.weight.data *= 1e20
    return {}


def an_embedding(model: Transformer) -> Rates:
    model.tokens.scale = 3e38
    return {}


def a_weight(model: Transformer) -> Rates:
    """As a checkpoint may bring it."""
    model.blocks[1].down.weight.data[0, 0] = torch.inf
    return {}


def an_update(model: Transformer) -> Rates:
    """The learning rate is mad: the first update of a weight overflows."""
    model.before_head = lambda x: x * 1e5  # or the gradient is too small for that
    return {"blocks.1.down.weight": 3e38}


def a_gradient(model: Transformer) -> Rates:
    """The gradient of a root at zero; forward nothing is large."""
    root: Any = model.blocks[1].root
    seen: list[Tensor] = []
    hook = root.register_forward_hook(lambda module, inputs, output: seen.append(output.detach()))
    model(IDS)
    hook.remove()
    root.shift = seen[0].max()
    return {}


class TestBothSee:
    @pytest.mark.parametrize(
        ("plant", "frame"),
        [
            pytest.param(an_activation, ("blocks.1.up", "Linear", "output"), marks=SLOW),
            (attention_logits, ("blocks.0.attention.o", "Linear", "input[0]")),
            pytest.param(an_embedding, ("tokens", "ScaledEmbedding", "output"), marks=SLOW),
            (a_weight, ("blocks.1.down", "Linear", "weight")),
        ],
    )
    def test_the_same_frame(self, run: Run, capsys: Any, plant: Callable[[Transformer], Rates], frame: Frame) -> None:
        there, here = Transformer(), Transformer()
        assert theirs(there, plant(there), capsys) == (0, frame)
        assert ours(here, plant(here), run)[0] == (0, frame, frame)

    def test_a_weight_that_its_update_ruined(self, run: Run, capsys: Any) -> None:
        """The same frame in the same step; ours has named the update in the step before."""
        frame, update = ("blocks.1.down", "Linear", "weight"), ("blocks.1.down.weight", "Parameter", "update[0]")
        there, here = Transformer(), Transformer()
        assert theirs(there, an_update(there), capsys) == (1, frame)
        first, second, *_ = ours(here, an_update(here), run)
        assert (first.step, first.first) == (0, update)
        assert second == (1, frame, frame)

    @SLOW
    def test_between_two_modules(self, run: Run, capsys: Any) -> None:
        """The same frame: the innermost module that takes it is the first to finish. The outermost takes it first."""
        there, here = Transformer(), Transformer()
        for model in (there, here):
            model.between_blocks = lambda x: x * torch.inf
        frame = ("blocks.1.norm", "LayerNorm", "input[0]")
        assert theirs(there, {}, capsys) == (0, frame)
        assert ours(here, {}, run)[0] == (0, ("blocks.1", "Block", "input[0]"), frame)


class TestTheirsCannotSee:
    def test_what_is_in_the_backward_alone(self, run: Run, capsys: Any) -> None:
        there, here = Transformer(), Transformer()
        frame = ("blocks.1.act", "ReLU", "grad_output[0]")
        assert theirs(there, a_gradient(there), capsys) is None
        assert ours(here, a_gradient(here), run)[0] == (0, frame, frame)

    def test_what_is_in_a_dictionary(self, run: Run, capsys: Any) -> None:
        """Nor in the keyword that takes it: theirs is two modules late."""
        there, here = Transformer(), Transformer()
        for model in (there, here):
            model.scaled.factor = 3e38
        frame = ("scaled", "Scaled", "output")
        assert theirs(there, {}, capsys) == (0, ("head.logits", "Linear", "input[0]"))
        assert ours(here, {}, run)[0] == (0, frame, frame)

    @SLOW
    def test_what_is_in_a_keyword(self, run: Run, capsys: Any) -> None:
        """The module that takes it by name is the first in call order; the first to finish is the same as theirs."""
        there, here = Transformer(), Transformer()
        for model in (there, here):
            model.before_head = lambda x: x * torch.inf
        frame = ("head.logits", "Linear", "input[0]")
        assert theirs(there, {}, capsys) == (0, frame)
        assert ours(here, {}, run)[0] == (0, ("head", "Head", "input[0]"), frame)
