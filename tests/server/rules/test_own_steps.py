"""Ranks of one process group whose gradients nobody reduces."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rangewatch.wire.events import Details, Optimizers, OwnSteps
from rangewatch_server.rules import Finding
from rangewatch_server.rules.mesh import not_reduced
from tests.server.rules.conftest import Recording
from tests.server.rules.test_along_mesh import AT, STEPS, found, number, write

PAIR = {"trial": 2}
OWN = OwnSteps(128, 0, "a.weight")


def apart(
    recording: Recording, *, alike: int = 1, said: Any = lambda rank: [OWN], still: int = -1, **series: Any
) -> tuple[Finding, ...]:
    """Two ranks that hold the same in the first `alike` steps; `still`: what that rank holds never changes."""

    def columns(rank: int) -> dict[str, np.ndarray]:
        held = np.where(alike > AT, number(3), number(rank, 5))
        held = np.full(STEPS, held[0]) if rank == still else held
        return {"axis_checksum": np.stack([held, held]), "axis_balance": np.zeros((2, STEPS))}

    write(recording, PAIR, said, columns=columns, **{"lr": lambda rank, place: 0.1} | series)
    return found(recording, not_reduced.RULE)


def test_nobody_reduces_anything(recording: Recording) -> None:
    (finding,) = apart(recording)
    assert (finding.severity, finding.step, finding.rank) == ("warning", 0, None)
    assert finding.facts["cause_class"] == "replicas" and finding.facts["ranks"] == [0, 1]
    assert finding.facts["apart_step"] == 1 and "DiLoCo" in finding.evidence[-1]


def of_one(rank: int) -> list[Details]:
    return [OWN] if rank == 0 else []


def own_decay(rank: int) -> list[Details]:
    return [OWN, Optimizers(("AdamW",), initial_lr=0.1, weight_decay=0.1 * (1 + rank))]


@pytest.mark.parametrize(
    "given",
    [
        {"alike": 0}, {"alike": STEPS}, {"still": 1}, {"said": lambda rank: []}, {"said": of_one},
        {"said": lambda rank: [OWN, OwnSteps(0)]}, {"said": lambda rank: [OwnSteps(128, 0, "a.weight", ("pp",))]},
        {"said": own_decay}, {"lr": lambda rank, place: 0.1 + rank},
        {"weights_written": lambda rank, place: 1.0 * (AT == 30)},
        {"input_elements": lambda rank, place: 64.0 * (1 + rank)},
    ],
    ids=[
        "an ensemble", "they agree", "one evaluates", "nothing is said", "one of two says it", "they have sent since",
        "stages", "a sweep of decays", "a sweep of rates", "averaged by other code", "a sweep of batch sizes",
    ],
)  # fmt: skip
def test_ranks_that_may_train_apart(recording: Recording, given: dict[str, Any]) -> None:
    assert apart(recording, **given) == ()


def test_texts_of_other_lengths_are_no_setting(recording: Recording) -> None:
    assert len(apart(recording, input_elements=lambda rank, place: 64.0 + AT % 7 + 5 * rank)) == 1
