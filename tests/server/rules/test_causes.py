"""Causes that compete, in real trainings: the best is named, and no advice goes against its evidence."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.faults.cases.gradients import Times
from tests.faults.fault import Job
from tests.faults.models import MLP, Attention, Transformer, cross_entropy, rows, tokens
from tests.server.process import Run

BACKWARD_ADVICE = "sqrt, norm, pow below 1"


def first(run: Run) -> dict[str, Any]:
    diagnosis = run.get("/diagnosis")
    assert not diagnosis["failed"], diagnosis["failed"]
    found = diagnosis["findings"][0]
    assert found["rule"] == "first_nonfinite", diagnosis["findings"]
    return dict(found)


def advice(found: dict[str, Any]) -> str:
    return " ".join(each["text"] for each in found["remedy"])


@pytest.mark.parametrize("model", [MLP, Transformer])
def test_a_learning_rate_of_1e12_at_one_step(model: type[nn.Module], run: Run) -> None:
    torch.manual_seed(0)
    made = model()
    optimizer = torch.optim.SGD(made.parameters(), 1e-2)

    def before(step: int) -> None:
        optimizer.param_groups[0]["lr"] = 1e12 if step == 50 else 1e-2

    data = rows(0) if model is MLP else tokens(0)
    Job(run.server.url, run.name).train(made, data, cross_entropy, 60, optimizer=optimizer, before=before)
    found = first(run)
    assert found["facts"]["cause_class"] == "learning_rate", found["evidence"]
    assert "learning rate" in found["remedy"][0]["text"] and BACKWARD_ADVICE not in advice(found)
    assert any(each.startswith("What would decide") for each in found["evidence"])


def test_a_high_learning_rate_in_bf16(run: Run) -> None:
    torch.manual_seed(0)
    model = MLP()
    Job(run.server.url, run.name).train(
        model, rows(0), cross_entropy, 60, optimizer=torch.optim.SGD(model.parameters(), 30.0), dtype=torch.bfloat16
    )
    found = first(run)
    assert found["facts"]["cause_class"] == "learning_rate", found["evidence"]
    assert "eps" not in advice(found)


@pytest.mark.parametrize("logged", [True, False], ids=["loss is logged", "loss is not"])
def test_log_of_zero_stays_what_it_is(logged: bool, run: Run) -> None:
    """The loss is finite until it is not: no learning rate did it."""
    torch.manual_seed(0)

    def loss(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        p = out.softmax(-1)
        p = p * (p > (0.999 if loss.step >= 30 else 0.0))  # type: ignore[attr-defined]
        return F.nll_loss(p.log(), y)

    def before(step: int) -> None:
        loss.step = step  # type: ignore[attr-defined]

    value = (lambda step, loss: loss) if logged else (lambda step, loss: 1.0)
    Job(run.server.url, run.name).train(MLP(), rows(0), loss, 40, before=before, logged=value)
    found = first(run)
    assert found["step"] == 30
    assert found["facts"]["cause_class"] in ("forward_arithmetic", "backward_arithmetic")
    assert "learning rate" not in advice(found)


def test_a_batch_of_huge_finite_values(run: Run) -> None:
    torch.manual_seed(0)
    data = rows(0)

    def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = data(step)
        if step == 30:
            x[3] = 3e38
        return x, y

    Job(run.server.url, run.name).train(MLP(), batch, cross_entropy, 40)
    found = first(run)
    assert found["facts"]["cause_class"] == "data", found["evidence"]
    assert "batch" in found["summary"] and "batch" in found["remedy"][0]["text"]
    assert not any("made it large" in each for each in found["evidence"])


def test_a_clip_that_divides_by_zero(run: Run) -> None:
    torch.manual_seed(0)
    model = MLP()

    def clip(step: int) -> None:
        if step == 30:
            for each in model.parameters():
                each.grad *= 0.0 / (each.grad - each.grad).norm()

    Job(run.server.url, run.name).train(
        model, rows(0), cross_entropy, 40, optimizer=torch.optim.AdamW(model.parameters(), 1e-3), after_backward=clip
    )
    found = first(run)
    assert found["facts"]["cause_class"] == "clip", found["evidence"]
    assert "learning rate" not in advice(found) and "clip" in found["remedy"][0]["text"]


def test_a_row_masked_whole_in_a_softmax_that_is_called(run: Run) -> None:
    torch.manual_seed(0)
    model = Transformer(called=True)
    attention: Attention = model.blocks[0].attn  # type: ignore[assignment]

    def before(step: int) -> None:
        if step == 30:
            attention.mask = lambda logits: (torch.arange(logits.shape[-2]) == 2)[:, None].expand(logits.shape[-2:])

    Job(run.server.url, run.name).train(model, tokens(0), cross_entropy, 34, before=before)
    found = first(run)
    assert found["facts"]["cause_class"] == "mask", found["evidence"]
    assert "masked whole" in found["remedy"][0]["text"]


def test_a_little_growth_far_from_the_limit_explains_no_nan(run: Run) -> None:
    """A backward of one's own makes NaN while the gradients grow by a bit or two."""
    torch.manual_seed(0)
    middle = Times()

    def before(step: int) -> None:
        middle.factor = float("nan") if step == 45 else 1.04**step

    Job(run.server.url, run.name).train(MLP(middle), rows(0), cross_entropy, 50, before=before)
    found = first(run)
    assert found["facts"]["cause_class"] == "backward_arithmetic", found["evidence"]
    assert "learning rate" not in advice(found)


def test_no_scaler_is_advised_where_there_is_one(run: Run) -> None:
    torch.manual_seed(0)
    model = MLP()
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=1000)

    def before(step: int) -> None:
        if step >= 30:
            with torch.no_grad():
                model.wo.weight *= 4.0

    Job(run.server.url, run.name).train(
        model, rows(0), cross_entropy, 60, before=before, dtype=torch.float16, scaler=scaler
    )
    assert "Train with a loss scaler" not in advice(first(run))


def test_a_weight_in_the_middle_that_was_overwritten(run: Run) -> None:
    """What comes before it is as usual, so that it is no batch; outputs stay finite, and their square is Inf."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 32), nn.Linear(32, 1))

    def before(step: int) -> None:
        if step == 40:
            with torch.no_grad():
                model[2].weight[3, 4] = 1e35

    def batch(step: int) -> Any:
        x = torch.randn(32, 16)
        return x, x[:, :1]

    def loss(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (out - y).square().mean()

    Job(run.server.url, run.name).train(model, batch, loss, 50, before=before)
    found = first(run)
    assert (found["step"], found["facts"]["cause_class"]) == (40, "weight"), found["evidence"]
    assert "wrote to the weights" in advice(found)
