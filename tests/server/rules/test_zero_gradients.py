"""Most parameters with a gradient of exactly 0, since the first step or for long."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rangewatch_server.rules.gradients.vanishing_gradient import RULE
from tests.faults.fault import Job
from tests.faults.models import CLASSES, FEATURES, cross_entropy, rows
from tests.server.process import Run
from tests.server.rules.conftest import Recording, tensor


class Functional(nn.Module):
    """Its ReLUs are functions; the last one is dead from the start."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = nn.Linear(FEATURES, 16), nn.Linear(16, 16), nn.Linear(16, 16)
        self.head = nn.Linear(16, CLASSES)
        with torch.no_grad():
            self.three.bias.fill_(-100.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.three(F.relu(self.two(F.relu(self.one(x)))))))


def test_a_relu_that_is_called_as_a_function(run: Run) -> None:
    torch.manual_seed(0)
    Job(run.server.url, run.name).train(Functional(), rows(0), cross_entropy, 90)
    found = next(each for each in run.get("/diagnosis")["findings"] if each["rule"] == RULE.name)
    assert (found["severity"], found["tensor"], found["facts"]["where"]) == ("warning", "head.weight", "head")
    assert (found["facts"]["zero"], found["facts"]["parameters"]) == (7, 8)


@pytest.mark.parametrize(("loss", "since", "count"), [(0.5, 100, 1), (0.0, 100, 0), (0.5, 4, 0)])
def test_all_from_one_step_on(recording: Recording, loss: float, since: int, count: int) -> None:
    """As where the output is rounded. A hinge's are rightly so, and what died in the first updates has its own rule."""
    layers = [tensor("head")] + [tensor(f"{at}.weight", "grad", at + 1, "float32") for at in range(4)]
    amax = np.ones((5, 250))
    amax[1:, since:] = 0.0
    recording.write(layers, 250, {"amax": amax}, series={"loss": loss})
    found = recording.diagnose(RULE).findings
    assert [each.severity for each in found] == ["warning"] * count
    assert all("the gradients of all 4 parameters are zero" in each.summary for each in found)


def test_few_that_are_unused_are_quiet(recording: Recording) -> None:
    layers = [tensor(f"experts.{at}.weight", "grad", at, "float32") for at in range(8)]
    amax = np.ones((8, 300))
    amax[5:] = 0.0
    recording.write(layers, 300, {"amax": amax})
    assert recording.diagnose(RULE).findings == ()
