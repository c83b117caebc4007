"""Updates of an Adam whose squares have become Inf: nothing of the gradients is in them any more."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rangewatch.wire.events import Optimizers, event
from rangewatch_server.rules.rule import Finding
from rangewatch_server.rules.updates.unchanged_weights import RULE
from tests.server.rules.conftest import Recording, tensor

STEPS, AT = 320, 100
EACH = np.arange(STEPS)


def found(
    recording: Recording, *, optimizer: str = "AdamW", decay: float = 0.0, before: float = 2e-3, after: float = 0.0,
    gradient: Any = 0.25, dtype: str = "float32", rate: Any = 1e-3,
) -> list[Finding]:  # fmt: skip
    """`before`, `after`: what of a weight the gradients' part of an update is until `AT`, and from then on."""
    is_read = (EACH > 0) & ((EACH % 32 == 0) | ((EACH < 32) & (EACH & (EACH - 1) == 0)))
    part = np.where(EACH < AT, before, after)
    series = {
        "lr": rate,
        "update_fraction": np.where(is_read, np.hypot(part, decay), np.nan),
        "decay_fraction": np.where(is_read, np.where(part > decay, 0.0, decay), np.nan),
    }
    known = [event(Optimizers((optimizer,)), 1, 2)]
    recording.write([tensor("a.weight", "grad", 0, dtype)], STEPS, {"amax": gradient}, series=series, events=known)
    return [each for each in recording.diagnose(RULE).findings if each.subject == "frozen"]


@pytest.mark.parametrize("decay", [0.0, 1e-5])
def test_updates_of_nothing_but_decay(recording: Recording, decay: float) -> None:
    (finding,) = found(recording, decay=decay)
    assert (finding.step, finding.facts["readings"], finding.facts["cause_class"]) == (97, 6, "clip")
    assert finding.facts["latest_step"] == 128, "what began by then may have led to it"
    assert "nothing of the gradients is in the updates" in finding.summary
    assert "The largest gradient that a backward made in those steps was 0.25." in finding.evidence[1]


def test_a_gradient_that_the_backward_made_so_large(recording: Recording) -> None:
    (finding,) = found(recording, gradient=np.where(EACH == AT, 1e30, 0.25))
    assert finding.facts["cause_class"] == "optimizer"
    assert (finding.step, finding.summary[:9]) == (AT, "Step 100,")
    assert "a gradient of 1e+30 at step 100" in finding.evidence[1]


@pytest.mark.parametrize("decay", [0.0, 1e-5])
def test_updates_that_are_dwarfed_by_squares(recording: Recording, decay: float) -> None:
    """With decay alone left it cannot be told from nothing."""
    (finding,) = found(recording, after=1e-8, decay=decay)
    assert (finding.step, finding.facts["readings"], finding.facts["cause_class"]) == (97 if decay else 65, 6, "clip")
    assert ("next to nothing is learned" in finding.summary) == (not decay)
    assert ("a gradient far too large" in finding.evidence[1]) == (not decay)


def test_a_gradient_that_the_backward_made_far_too_large(recording: Recording) -> None:
    (finding,) = found(recording, after=1e-8, gradient=np.where(EACH == AT, 1e10, 0.25))
    assert finding.facts["cause_class"] == "optimizer" and "4e+10 times as large as before" in finding.evidence[1]


@pytest.mark.parametrize(
    "otherwise",
    [
        {"after": 1e-5},
        {"after": 1e-5, "decay": 1e-5},
        {"after": 1e-8, "gradient": np.where(EACH < AT, 0.25, 1e-3)},
        {"after": 1e-8, "rate": np.where(EACH < AT, 1e-3, 1e-8)},
        {"gradient": 1e-9},
        {"gradient": np.where(EACH < AT, 0.25, 0.0)},
        {"optimizer": "SGD"},
        {"dtype": "bfloat16"},
        {"rate": np.where(EACH < AT, 1e-3, 0.0)},
        {"rate": 1e-3 * np.exp(-EACH / 40)},
        {"before": 1e-8},
        {"before": 0.0, "decay": 1e-5},
        {"before": 0.05, "decay": 0.09},
    ],
)
def test_updates_that_are_small_for_another_reason(recording: Recording, otherwise: dict[str, Any]) -> None:
    assert found(recording, **otherwise) == []


def test_updates_of_hardly_anything_but_a_strong_decay(recording: Recording) -> None:
    """What the gradients add is rounding beside the decay, and more than a thousandth of what they moved before."""
    (finding,) = found(recording, before=0.5, after=0.03, decay=0.3)
    assert (finding.step, finding.facts["readings"]) == (97, 6)


def test_updates_that_were_not_read_yet(recording: Recording) -> None:
    assert not found(recording, before=np.nan, after=np.nan)
