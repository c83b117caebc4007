"""A step that the loss scaler skipped is named where growth of the scale does not explain it, and nobody denies it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rangewatch.wire.records import KINDS
from rangewatch_server.rules.loss_scale import skip_cause
from rangewatch_server.rules.loss_scale.unexplained_skip import RULE
from tests.faults.cases.loss_scales import with_gradient
from tests.faults.fault import Job
from tests.server.process import Run
from tests.server.rules.conftest import Recording
from tests.server.rules.loss_scales import GRAD_A, GRAD_B, LAYERS, bad, scaled
from tests.server.views.test_report import report

NEAR, FAR = 4e4, 16.0


def write(recording: Recording, series: dict[str, np.ndarray], amax: float = NEAR, **more: object) -> None:
    columns = {"inf_count": bad(series, GRAD_B, GRAD_A), "amax": amax}
    recording.write(LAYERS, len(series["skipped_step"]), columns, series=series, loss_scaled=True, **more)


def test_a_scale_that_had_not_grown(recording: Recording) -> None:
    write(recording, scaled(60, [31], first=4096.0), amax=FAR)
    (found,) = recording.diagnose(RULE).findings
    assert (found.severity, found.step, found.rank, found.tensor, found.kind) == ("info", 31, 0, "b", "grad_output")
    assert "skipped this step, from 4096 to 2048" in found.summary
    assert "The scale had not grown before: steps at 4096 had been taken." in found.evidence


def test_near_the_limit_no_growth_is_needed(recording: Recording) -> None:
    write(recording, scaled(60, [31], first=4096.0), amax=NEAR)
    assert recording.diagnose(RULE).findings == ()


def test_but_nearness_does_not_explain_nan(recording: Recording) -> None:
    series = scaled(60, [31], first=4096.0)
    recording.write(LAYERS, 60, {"nan_count": bad(series, GRAD_B), "amax": 1.1e5}, series=series, loss_scaled=True)
    (found,) = recording.diagnose(RULE).findings
    assert found.step == 31
    assert any("0.75 bits above the limit of float16" in each for each in found.evidence)


@pytest.mark.parametrize(("skipped", "is_batch"), [(range(31, 32), True), (range(31, 43), False)])
def test_one_batch_does_not_explain_many_steps(recording: Recording, skipped: range, is_batch: bool) -> None:
    series = scaled(60, skipped, first=65536.0)
    recording.write(LAYERS, 60, {"nan_count": bad(series, GRAD_B), "amax": FAR}, series=series, loss_scaled=True)
    (found,) = recording.diagnose(RULE).findings
    assert ("Look at the batch" in found.remedy[0].text) is is_batch
    assert any("for a moment" in each for each in found.evidence) is is_batch


def test_the_rank_that_it_was(recording: Recording) -> None:
    series = scaled(60, [31], first=4096.0)
    for rank in range(2):
        counts = bad(series, GRAD_B) * rank
        recording.write(LAYERS, 60, {"inf_count": counts}, rank=rank, world_size=2, series=series, loss_scaled=True)
    (found,) = recording.diagnose(RULE).findings
    assert (found.rank, found.step) == (1, 31)


@pytest.mark.parametrize("overflows", [range(3), range(12), lambda scale: scale > 2.0**12])
def test_the_search_at_the_start_is_none(recording: Recording, overflows: object) -> None:
    write(recording, scaled(80, overflows, interval=2_000))  # type: ignore[arg-type]
    assert recording.diagnose(RULE).findings == ()


def test_growth_explains_a_skip_near_the_limit_alone(recording: Recording) -> None:
    write(recording, scaled(200, lambda scale: scale > 2.0**16, interval=20))
    assert recording.diagnose(RULE).findings == ()


def test_growth_does_not_explain_a_skip_far_from_it(recording: Recording) -> None:
    write(recording, scaled(60, [45], interval=20), amax=FAR)
    (found,) = recording.diagnose(RULE).findings
    assert found.step == 45 and found.facts["had_grown"]


def test_nobody_denies_it(run: Run) -> None:
    """A real training: one gradient is Inf in the backward of one step."""
    torch.manual_seed(0)
    scaler = torch.amp.GradScaler("cpu", init_scale=4096.0, growth_interval=2_000)
    with_gradient(Job(run.server.url, run.name), lambda step: 1e30 if step == 31 else 1.0, 60, scaler)
    (found,) = run.get("/diagnosis")["findings"]
    assert (found["rule"], found["severity"], found["step"], found["rank"]) == (RULE.name, "info", 31, 0)
    assert found["tensor"] == "wo"
    detail = run.get()
    assert (detail["first_overflow"], detail["first_skipped"]["step"]) == (None, 31)
    assert "wo" in [text for _, text in detail["verdict"]["parts"]]
    told = report(run).stdout
    assert "in a step that was taken" in told and "the first at step 31, rank 0: wo grad_output held Inf" in told


def test_each_kind_has_a_class() -> None:
    """A kind that was new had none, and a report of a run that held it stopped half way."""
    assert sorted(kind for kinds in skip_cause.CLASSES.values() for kind in kinds) == sorted(KINDS)
