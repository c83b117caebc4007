"""A loss of an evaluation that is NaN or Inf though the training is well."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rangewatch_server.rules import ALL
from rangewatch_server.rules.nonfinite.evaluation_nonfinite import RULE
from tests.server.rules.conftest import Recording, tensor

AT = np.arange(200)


def write(recording: Recording, name: str = "val_loss", values: Any = None, loss: Any = 1.0, **more: Any) -> None:
    of_evaluation = np.where(AT == 150, np.nan, 1.2) if values is None else values
    recording.write([tensor("head")], 200, series={"loss": loss, name: of_evaluation, **more})


@pytest.mark.parametrize("name", ["val_loss", "eval/loss", "test_nll", "valid.mse", "loss/val", "dev-perplexity"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_one_that_was_finite(recording: Recording, name: str, value: float) -> None:
    write(recording, name, np.where(AT == 150, value, 1.2))
    assert recording.diagnose(RULE, stop=150).findings == ()
    (finding,) = recording.diagnose(RULE).findings
    assert (finding.step, finding.severity, finding.facts["cause_class"]) == (150, "warning", "eval")
    assert name in finding.summary and f"is {'NaN' if np.isnan(value) else 'Inf'}" in finding.summary
    assert "150 times before, and 49 times after it" in finding.evidence[0]
    assert "learning rate" not in " ".join(each.text for each in finding.remedy)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("val_loss", np.full(200, np.nan)),  # it may have no targets
        ("val_loss", np.full(200, 1.2)),
        ("val_auc", None),  # not defined where all are of one class
        ("train_loss_2", None),
        ("interval_loss", None),
        ("contest_loss", None),
        ("loss_std_dev", None),
        ("val_loss", np.where(AT % 50, np.nan, 1.2)),  # NaN stands for no evaluation
    ],
)
def test_what_is_none(recording: Recording, name: str, values: Any) -> None:
    write(recording, name, values)
    assert recording.diagnose(RULE).findings == ()


@pytest.mark.parametrize(
    ("passes", "bad", "said"),
    [
        (0.0, 0.0, "was not evaluated beside that step"),
        (3.0, 0.0, "look at the loss, and at later ones"),
        (3.0, 2.0, "Outputs of the model in that evaluation held NaN or Inf"),
        (None, None, "was never seen in an evaluation"),
    ],
)
def test_what_the_model_itself_gave(recording: Recording, passes: Any, bad: Any, said: str) -> None:
    write(recording, **({} if passes is None else {"eval_passes": passes, "eval_nonfinite": bad}))
    (finding,) = recording.diagnose(RULE).findings
    assert said in " ".join(finding.evidence)


def test_it_follows_from_a_training_that_broke_before(recording: Recording) -> None:
    write(recording, values=np.where(AT >= 150, np.nan, 1.2), loss=np.where(AT >= 120, np.nan, 1.0))
    rules = [each for each in ALL if each.name in ("loss_nonfinite", "evaluation_nonfinite")]
    (finding,) = recording.diagnose(*rules).findings
    assert finding.rule == "loss_nonfinite" and any("val_loss" in each for each in finding.consequences)
