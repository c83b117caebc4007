"""Real trainings with masks of every kind: none is an overflow, and none hides one."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.faults.fault import Job
from tests.faults.models import LENGTH, WORDS, cross_entropy, tokens
from tests.server.process import Run

INF = float("inf")
STEPS = 24


class Mask(nn.Module):
    """Gives the mask of its kind, for scores of (batch, length, length). `lengths`: of the rows of a batch."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.lengths = kind, torch.full((4,), LENGTH)

    def forward(self, scores: Tensor) -> Tensor:
        length = scores.shape[-1]
        later = torch.ones(length, length, dtype=torch.bool).triu(1)
        if self.kind == "additive":
            return torch.zeros(length, length, dtype=scores.dtype).masked_fill(later, -INF)
        if self.kind == "alibi":
            distance = (torch.arange(length)[None] - torch.arange(length)[:, None]).to(scores.dtype)
            return (0.5 * distance).masked_fill(later, -INF)
        if self.kind == "two lowest":
            lowest = torch.finfo(scores.dtype).min
            return torch.zeros(length, length, dtype=scores.dtype).masked_fill(later, lowest) * 2
        absent = torch.arange(length)[None] >= self.lengths[:, None]
        return torch.zeros(len(absent), 1, length, dtype=scores.dtype).masked_fill(absent[:, None], -INF)


class Scores(nn.Module):
    """`kind`: "filled" by a boolean mask, "top-k", or a mask of a module is added."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.mask = kind, Mask(kind)

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        if self.kind == "filled":
            return scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -INF)
        if self.kind == "top-k":
            return scores.masked_fill(scores < scores.topk(3, -1).values[..., -1:], -INF)
        return scores + self.mask(scores)


class Attending(nn.Module):
    def __init__(self, kind: str, width: int = 24) -> None:
        super().__init__()
        self.embed, self.norm, self.head = nn.Embedding(WORDS, width), nn.LayerNorm(width), nn.Linear(width, WORDS)
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.scores, self.drop = Scores(kind), nn.Dropout(0.0)

    def forward(self, words: Tensor) -> Tensor:
        x = self.embed(words)
        weights = self.drop(self.scores(self.q(x), self.k(x)).softmax(-1))
        return self.head(self.norm(x + weights @ self.v(x)))


KINDS = ("additive", "alibi", "two lowest", "padding", "filled", "top-k")


def trained(run: Run, kind: str, before: Callable[[int, Attending], None] = lambda step, model: None,
            steps: int = STEPS, **options: Any) -> dict[str, Any]:  # fmt: skip
    """The diagnosis."""
    torch.manual_seed(0)
    model = Attending(kind)
    lengths = torch.Generator().manual_seed(1)

    def prepare(step: int) -> None:
        if kind == "padding":
            model.scores.mask.lengths = torch.randint(LENGTH // 2, LENGTH + 1, (4,), generator=lengths)
        before(step, model)

    Job(run.server.url, run.name).train(
        model,
        tokens(0),
        cross_entropy,
        steps,
        before=prepare,
        kinds=("output", "input", "grad_output", "grad"),
        **options,
    )
    diagnosis: dict[str, Any] = run.get("/diagnosis")
    assert not diagnosis["failed"]
    return diagnosis


@pytest.mark.parametrize("dtype", [torch.float16, None], ids=["fp16", "fp32"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_mask_is_no_overflow(kind: str, dtype: torch.dtype | None, run: Run) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10) if dtype else None
    findings = trained(run, kind, dtype=dtype, scaler=scaler)["findings"]
    (mask,) = [each for each in findings if each["rule"] == "inf_by_design"]
    assert [each["severity"] for each in findings] == ["info"], findings
    assert "by design" in mask["summary"] and "scores" in mask["remedy"][0]["code"]
    detail = run.get("")
    assert detail["first_overflow"] is None and detail["least_headroom"]["state"] not in ("inf", "nan")
    assert detail["verdict"]["level"] != "critical" and -1.0 not in detail["sparkline"]
    figure = run.get("/figures/layers")
    assert figure["meta"]["nonfinite_columns"] == []
    assert any("by design" in each["what"] for each in run.get("/step?step=3")["frames"])


def test_a_fault_beside_a_mask_is_told(run: Run) -> None:
    """Gradients that explode are no consequence of the mask."""

    def explode(step: int, model: Attending) -> None:
        if step >= 90:
            with torch.no_grad():
                model.norm.weight *= 1.6

    findings = trained(run, "additive", explode, 110)["findings"]
    assert "exploding_gradient" in [each["rule"] for each in findings]
    (mask,) = [each for each in findings if each["rule"] == "inf_by_design"]
    assert mask["consequences"] == []


def test_nan_behind_a_mask_is_told_where_it_is(run: Run) -> None:
    def spoil(step: int, model: Attending) -> None:
        if step == 30:
            with torch.no_grad():
                model.q.weight[0, 0] = float("nan")  # before the forward

    findings = trained(run, "additive", spoil, 40)["findings"]
    assert (findings[0]["rule"], findings[0]["tensor"], findings[0]["step"]) == ("first_nonfinite", "q", 30)
    assert findings[0]["facts"]["cause"] == "written" or findings[0]["facts"]["origin"] in ("weight", "optimizer")


def test_overflow_of_masked_scores_is_told(run: Run) -> None:
    """Inf that is no mask, in a tensor that holds a mask."""

    def enlarge(step: int, model: Attending) -> None:
        if step >= 30:
            with torch.no_grad():
                model.q.weight *= 2.5

    findings = trained(run, "filled", enlarge, 60, dtype=torch.float16)["findings"]
    assert (findings[0]["rule"], findings[0]["severity"]) == ("first_nonfinite", "critical")
    assert findings[0]["tensor"] in ("scores", "q"), findings[0]["summary"]


@pytest.mark.parametrize("kind", ["additive", "padding"])
def test_a_row_that_is_masked_whole_is_named_so(kind: str, run: Run) -> None:
    def mask_all(step: int, model: Attending) -> None:
        if step >= 30:
            model.scores.mask.kind, model.scores.mask.lengths = "padding", torch.tensor([0, 8, 8, 8])

    findings = trained(run, kind, mask_all, 34)["findings"]
    first = findings[0]
    assert (first["rule"], first["step"], first["facts"]["cause"]) == ("first_nonfinite", 30, "masked"), first


class Causal(nn.Module):
    def forward(self, length: int) -> Tensor:
        return torch.full((length, length), -INF).triu(1)


class MaskFirst(nn.Module):
    """The mask's module is called right before a norm that it has nothing to do with."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.embed, self.norm, self.head = nn.Embedding(WORDS, width), nn.LayerNorm(width), nn.Linear(width, WORDS)
        self.mask = Causal()

    def forward(self, words: Tensor) -> Tensor:
        x, mask = self.embed(words), self.mask(words.shape[1])
        x = self.norm(x)
        return self.head((x @ x.transpose(-1, -2) + mask).softmax(-1) @ x)


def test_rows_that_a_norm_cannot_square_are_not_masked_ones(run: Run) -> None:
    def enlarge(step: int, model: MaskFirst) -> None:
        if step == 30:
            with torch.no_grad():
                model.embed.weight[::2] *= 1e25

    torch.manual_seed(0)
    model = MaskFirst()
    Job(run.server.url, run.name).train(
        model, tokens(0), cross_entropy, 34, before=lambda step: enlarge(step, model),
        kinds=("output", "input", "grad_output", "grad"),
    )  # fmt: skip
    first = run.get("/diagnosis")["findings"][0]
    assert (first["rule"], first["tensor"], first["step"]) == ("first_nonfinite", "norm", 30)
    assert first["facts"]["cause_class"] != "mask", first


def test_a_mask_that_changes_is_news(run: Run) -> None:
    def shorten(step: int, model: Attending) -> None:
        if step >= 20:
            model.scores.mask.kind, model.scores.mask.lengths = "padding", torch.full((4,), LENGTH // 2)

    mask, changed = trained(run, "additive", shorten, 30)["findings"]
    assert (changed["rule"], changed["subject"], changed["step"]) == ("inf_by_design", "changed", 20)
    assert (mask["subject"], changed["severity"], mask["severity"]) == ("by design", "info", "info")
