"""Parameters that the loss depends on and the model does not hold."""

from __future__ import annotations

from typing import Any

import pytest

from rangewatch.wire.events import Unregistered, event
from rangewatch_server.rules.updates.unchanged_weights import RULE
from tests.server.rules.conftest import Recording, tensor

LAYERS = [tensor("head"), tensor("head.weight", "grad", 1)]
INSIDE = {"names": ("body.blocks[0].weight", "body.blocks[0].bias"), "is_inside": True}
OUTSIDE = {"names": ("Linear.weight", "Linear.bias"), "is_serial": True}
SHAPES = ((4, 3), (4,))


def findings(recording: Recording, moved: Any = None, **known: Any) -> Any:
    details = Unregistered(**{"shapes": SHAPES, "count": 2, "elements": 16, "first": 3} | known)
    series = {"loss": 2.0} | ({} if moved is None else {"unregistered_moved": moved})
    recording.write(LAYERS, 60, series=series, events=[event(details, 1, 22)])
    return recording.diagnose(RULE).findings


@pytest.mark.parametrize(
    ("known", "severity", "words", "code"),
    [
        (INSIDE, "warning", "such as body.blocks[0].weight", "self.blocks = nn.ModuleList(self.blocks)"),
        (INSIDE | {"names": ("blocks['a'].weight",)}, "warning", "blocks['a']", "nn.ModuleDict(self.blocks)"),
        (INSIDE | {"names": ("scales[0]",)}, "warning", "scales[0]", "nn.ParameterList(self.scales)"),
        (INSIDE | {"is_alone": True}, "info", "blocks[0]", "ModuleList"),
        (INSIDE | {"is_alone": True, "is_serial": True, "is_fresh": True}, "warning", "blocks[0]", "ModuleList"),
        (OUTSIDE, "info", "beside the model, such as Linear.weight", "optimizer.add_param_group"),
        (OUTSIDE | {"is_fresh": True}, "warning", "beside the model, such as Linear.weight", "optimizer.add_param"),
        (OUTSIDE | {"count": 30}, "info", "30 parameters beside the model", "add_param_group"),
        (OUTSIDE | {"count": 30, "is_fresh": True}, "warning", "30 parameters beside the model", "add_param_group"),
        ({"names": (), "is_anew": True}, "info", "that each forward makes anew", "in __init__"),
    ],
)
def test_what_is_said(recording: Recording, known: dict[str, Any], severity: str, words: str, code: str) -> None:
    (finding,) = findings(recording, **known)
    assert (finding.step, finding.rank, finding.severity, finding.subject) == (3, 0, severity, "unregistered")
    assert words in finding.summary and code in finding.remedy[0].code
    assert finding.facts["cause_class"] == "optimizer" and "(4, 3)" in finding.evidence[0]


@pytest.mark.parametrize(("moved", "count"), [(0.0, 1), (1.0, 0), (None, 0)])
def test_on_an_accelerator_what_has_moved_says_so(recording: Recording, moved: float | None, count: int) -> None:
    assert len(findings(recording, moved, is_on_device=True, **INSIDE)) == count


def test_an_empty_event(recording: Recording) -> None:
    assert findings(recording, count=0) == ()
