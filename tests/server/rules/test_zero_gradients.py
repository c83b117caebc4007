"""Most parameters with a gradient of exactly 0, since the first step or for long."""

from __future__ import annotations

import numpy as np
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


def test_few_that_are_unused_are_quiet(recording: Recording) -> None:
    layers = [tensor(f"experts.{at}.weight", "grad", at, "float32") for at in range(8)]
    amax = np.ones((8, 300))
    amax[5:] = 0.0
    recording.write(layers, 300, {"amax": amax})
    assert recording.diagnose(RULE).findings == ()
