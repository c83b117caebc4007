"""How many rows a loss compares, by the shapes in its graph."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from rangewatch.steps.loss.loss_rows import loss_rows

ROWS, PLACES, CLASSES = 6, 4, 3


def out(*shape: int) -> Tensor:
    """Something that has a gradient and is no leaf."""
    return torch.randn(shape, requires_grad=True).tanh()


def classes(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.int64)


@pytest.mark.parametrize(
    ("loss", "rows"),
    [
        (lambda: F.cross_entropy(out(ROWS, CLASSES), classes(ROWS)), (ROWS,)),
        (lambda: F.cross_entropy(out(ROWS, CLASSES, PLACES), classes(ROWS, PLACES)), (ROWS, 1, PLACES)),
        (lambda: F.cross_entropy(out(ROWS, CLASSES, 5, 7), classes(ROWS, 5, 7)) * 0.5, (ROWS, 5, 7)),
        (lambda: F.mse_loss(out(ROWS, 2), torch.zeros(ROWS, 2)) / 4, (ROWS, 2)),
        (lambda: F.l1_loss(out(ROWS), torch.zeros(ROWS)), (ROWS,)),
        (lambda: ((out(ROWS, PLACES) - 1.0) ** 2).sum(1).mean(), (ROWS, PLACES)),
        (lambda: F.mse_loss(out(ROWS), torch.zeros(ROWS), reduction="none").mul(torch.ones(ROWS)).sum() / 3, (ROWS,)),
        (lambda: F.cross_entropy(out(ROWS, 2), classes(ROWS)) + F.mse_loss(out(ROWS), torch.zeros(ROWS)), (ROWS,)),
        (lambda: F.cross_entropy(out(ROWS, 2), classes(ROWS)) + 0.1 * (out(9, 9) ** 2).sum(), (ROWS,)),
        (lambda: F.mse_loss(out(ROWS), torch.zeros(ROWS)) + F.mse_loss(out(9), torch.zeros(9)), ()),
        (lambda: out(ROWS)[0], ()),
    ],
    ids=[
        "classes", "classes of places", "of points", "squares", "distances", "by hand", "weighted", "two of the same",
        "a penalty besides", "of other rows", "one number",
    ],
)  # fmt: skip
def test_rows(loss: Callable[[], Tensor], rows: tuple[int, ...]) -> None:
    assert loss_rows(loss().grad_fn) == rows


def test_of_no_graph() -> None:
    assert loss_rows(None) == ()
