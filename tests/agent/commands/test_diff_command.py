"""`rangewatch diff A B`: made-up runs for its words, and real trainings that differ in one planted place."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import rangewatch
from rangewatch.statistics import sketches
from rangewatch.wire.records import Catalogue, Event
from tests.agent.commands.command import typed
from tests.server.process import Run, Server
from tests.server.records import batch, catalogue, opening

STEPS = 12
KNOWN = catalogue(3, "float32")


@pytest.fixture
def other(run: Run) -> Run:
    return Run(run.server, f"{run.name} other")


def made(run: Run, amax: Any, lr: int = 1) -> None:
    attached = Event("attached", 1, 0, "", {"options": {"lr": lr}, "versions": {}})
    loss = np.linspace(3, 2, STEPS) + (np.asarray(amax).mean() > 1.5)
    run.post(opening(KNOWN), batch(KNOWN, 0, range(STEPS), {"amax": amax}, series={"loss": loss}, events=(attached,)))


def diff(server: Server, *arguments: str) -> tuple[int, str, str]:
    return typed("diff", *arguments, "--url", server.url)


def test_what_it_says_of_two_runs(run: Run, other: Run) -> None:
    amax = np.ones((3, STEPS))
    made(run, amax)
    amax[1:, 7:] = 2.0
    made(other, amax, lr=2)
    status, out, err = diff(run.server, run.name, other.name)
    assert (status, err) == (1, "")
    lines = out.splitlines()
    assert lines[0] == f"{run.name} and {other.name} part at step 7, first in blocks.1.ff grad_output and 1 more"
    assert " ".join(lines[1].split()) == "blocks.1.ff grad_output amax 1 and 2, 1 bits apart (float32)"
    assert lines[-2:] == ["settings and environment: 1 not equal", "  options.lr: 1 | 2"]
    assert "settings" not in diff(run.server, run.name, other.name, "--ignore-settings")[1]
    assert diff(run.server, run.name, other.name, "--tolerance", "0.6")[0] == 0
    found = json.loads(diff(run.server, run.name, other.name, "--json")[1])
    assert (found["step"], found["count"], found["tensors"][0]["fqn"]) == (7, 2, "blocks.1.ff")


def test_what_it_says_of_sketches(run: Run, other: Run) -> None:
    known = Catalogue((*KNOWN.statistics, *sketches.ALL), KNOWN.tensors)
    for each in (run, other):
        is_other = np.arange(STEPS) >= (5 if each is other else STEPS)
        sent: dict[str, Any] = {sketches.WHOLE: 64.0, sketches.NUMEL: 64.0, sketches.SUM_SQ: 4.0}
        moved = is_other * np.array([[0.0], [0.5], [0.0]])
        sent |= {sketches.LOW: 7.0 + (moved > 0)} | dict.fromkeys(sketches.PLUS, 1.0 + moved)
        each.post(opening(known), batch(known, 0, range(STEPS), sent))
    status, out, _ = diff(run.server, run.name, other.name)
    assert status == 1
    assert out.splitlines()[:4] == [
        f"{run.name} and {other.name} part at step 5, first in blocks.1.ff grad_output",
        "  sketches: of 3 of 3 tensors, 2 of them equal in all bits",
        "  sketches: other bits first at step 5, in blocks.1.ff grad_output; furthest at step 5, blocks.1.ff "
        "grad_output, 0.25 of its norm",
        f"  {'blocks.1.ff grad_output':<40} amax 1 and 1, 0 bits apart (float32); 0.25 of its norm apart "
        "(0.17 to 0.48)",
    ]
    status, out, _ = diff(run.server, run.name, other.name, "--tolerance", "0.3")
    assert (status, "do not part" in out, "2 of them equal in all bits" in out) == (0, True, True)
    found = json.loads(diff(run.server, run.name, other.name, "--json")[1])
    assert found["tensors"][0]["sketch"] == {
        "is_equal": False, "distance": 0.25, "low": 0.169, "high": 0.479, "allowed": 0.0,
    }  # fmt: skip


def test_two_equal_runs_have_nothing_to_say(run: Run, other: Run) -> None:
    made(run, 1.0)
    made(other, 1.0)
    status, out, _ = diff(run.server, run.name, other.name)
    assert (status, out) == (0, f"{run.name} and {other.name} do not part: 3 tensors, steps 0 to {STEPS - 1}\n")
    noisy = diff(run.server, run.name, other.name, "--noise", other.name)
    assert noisy[0] == 0 and f"noise: of {other.name}" in noisy[1]


def test_runs_with_nothing_in_common_are_no_success(run: Run, other: Run) -> None:
    made(run, 1.0)
    other.post(opening(KNOWN), batch(KNOWN, 0, range(100, 110)))
    status, out, _ = diff(run.server, run.name, other.name)
    assert status == 1 and "have no steps in common: nothing was compared" in out


def test_mistakes(run: Run, other: Run) -> None:
    made(run, 1.0)
    assert diff(run.server, run.name, run.name) == (
        2, "", f"rangewatch diff: {run.name} and {run.name} are the same run\n"
    )  # fmt: skip
    status, _, err = diff(run.server, run.name, "nowhere at all")
    assert status == 2 and "no run 'nowhere at all'" in err
    status, _, err = diff(run.server, run.name, "x", *["--noise", "y"] * 7)
    assert status == 2 and "at most 6" in err


class Net(nn.Module):
    """Four blocks; `planted`: (block, step) from which on its output is `factor` times as large."""

    def __init__(self, planted: tuple[int, int] | None, factor: float) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(16, 16), nn.GELU()) for _ in range(4))
        self.planted, self.factor, self.step = planted, factor, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number, block in enumerate(self.blocks):
            x = x + block(x)
            if self.planted is not None and self.planted[0] == number and self.step >= self.planted[1]:
                x = x * self.factor
        return x


def train(
    server: Server, run: str, *, planted: tuple[int, int] | None = None, noise: int = 0, is_compiled: bool = False,
    dtype: torch.dtype = torch.float32,
) -> None:  # fmt: skip
    """`noise`: a seed of rounding errors in the weights, as other kernels have."""
    torch.manual_seed(1)
    model = Net(planted, 1.01 if dtype is torch.float32 else 1.25)
    if noise:
        random = torch.Generator().manual_seed(noise)
        with torch.no_grad():
            for each in model.parameters():
                each.mul_(1 + 1e-6 * torch.randn(each.shape, generator=random))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    with rangewatch.attach(model, optimizer, url=server.url, run=run, kinds=["output", "grad"]):
        called: Callable[..., Any] = torch.compile(model, backend="aot_eager") if is_compiled else model
        for step in range(8):
            model.step = step
            data = torch.randn(8, 16, generator=torch.Generator().manual_seed(step))
            with torch.autocast("cpu", torch.bfloat16, enabled=dtype is torch.bfloat16):
                loss = called(data).float().square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["eager", "compiled", "bfloat16"])
def test_real_trainings_part_where_something_was_planted(run: Run, how: str) -> None:
    server, more = run.server, {"compiled": {"is_compiled": True}, "bfloat16": {"dtype": torch.bfloat16}}.get(how, {})
    train(server, run.name)
    repeats = [f"{run.name} again {each}" for each in (1, 2)]
    for number, name in enumerate(repeats):
        train(server, name, noise=number + 1, **(more if how == "bfloat16" else {}))  # type: ignore[arg-type]
    noise = [word for each in repeats for word in ("--noise", each)]
    train(server, f"{run.name} equal", noise=9, **more)  # type: ignore[arg-type]
    status, out, _ = diff(server, run.name, f"{run.name} equal", *noise, "--ignore-settings")
    assert status == 0, out
    for block, step in ((0, 5), (2, 3)):
        name = f"{run.name} planted {block} {step}"
        train(server, name, noise=7, planted=(block, step), **more)  # type: ignore[arg-type]
        found = json.loads(diff(server, run.name, name, *noise, "--json")[1])
        assert (found["step"], found["tensors"][0]["fqn"]) == (step, f"blocks.{block + 1}.0"), "what comes after it"
