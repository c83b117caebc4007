"""Updates of SGD that are far smaller than rate and gradient make them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rangewatch.wire import events
from rangewatch.wire.events import Optimizers, SampledWeights
from rangewatch.wire.records import TensorEntry
from rangewatch_server.rules.gradients.changed_gradients import RULE
from tests.server.rules.conftest import Recording, tensor

STEPS, SCALE = 200, 4096.0
TABLE = [tensor("a.weight", "grad", 0, "float32")]


def write(
    recording: Recording, *, left: float, at: int = 80, gradient: Any = 1.0, rate: Any = 0.1, name: str = "SGD",
    scale: float | None = SCALE, batches: Any = 1.0,
) -> None:  # fmt: skip
    gradient, rate = (np.broadcast_to(each, STEPS) * 1.0 for each in (gradient, rate))
    part = np.where(np.arange(STEPS) < at, 1.0, left)
    series = {"loss": 1.0, "lr": rate, "sampled_update": part * rate * gradient * batches}
    if scale is not None:
        series["loss_scale"] = scale
    recording.write(
        TABLE, STEPS, {"amax": (gradient * (scale or 1.0))[np.newaxis]}, series=series, loss_scaled=scale is not None,
        events=[events.event(Optimizers((name,)), 1, 2), events.event(SampledWeights(("a.weight",), True), 1, 2)],
    )  # fmt: skip


BATCHES = 2.0 ** np.random.default_rng(0).normal(0, 1, STEPS)


@pytest.mark.parametrize(
    ("given", "causes"),
    [
        ({"left": 1 / SCALE}, ["loss_scale"]),
        ({"left": 1 / SCALE, "batches": BATCHES}, ["loss_scale"]),
        ({"left": 1e-6}, ["clip"]),
        ({"left": 1e-4, "scale": None}, ["clip"]),
        ({"left": 1 / SCALE, "rate": np.where(np.arange(STEPS) < 80, 0.1, 1e-3)}, ["loss_scale"]),
        ({"left": 0.01}, []), ({"left": 1.0, "batches": BATCHES}, []), ({"left": 0.0}, []),
        ({"left": 1 / SCALE, "name": "AdamW"}, []),
        ({"left": 1 / SCALE, "at": 180}, []),  # not for long enough
        ({"left": 1.0, "rate": np.where(np.arange(STEPS) < 80, 0.1, 1e-6)}, []),
        # What has grown so is clipped to what it was.
        ({"left": 1e-4, "gradient": np.where(np.arange(STEPS) < 80, 1.0, 1e4)}, []),
    ],
)  # fmt: skip
def test_updates(recording: Recording, given: dict[str, Any], causes: list[str]) -> None:
    write(recording, **given)
    found = recording.diagnose(RULE).findings
    assert [each.facts["cause_class"] for each in found] == causes
    assert all(abs(each.step - 80) <= 4 * ("batches" in given) and each.tensor == "a.weight" for each in found)


@pytest.mark.parametrize(
    ("name", "left", "severity"),
    [
        ("SGD", 1 / SCALE, "warning"), ("Adam", 1 / SCALE, "info"), ("SGD", 0.01, ""), ("SGD", 1.0, ""),
        ("Adam SGD", 1 / SCALE, ""),
    ],
)  # fmt: skip
def test_what_the_optimizer_is_given(recording: Recording, name: str, left: float, severity: str) -> None:
    """Of several groups, of which the rates of each are not known; momentum hides it in the updates for a while. Of two
    optimizers one may be given what the other's loss has left."""
    at = np.arange(STEPS)
    given = BATCHES * np.where(at < 80, 1.0, left)
    groups = Optimizers(tuple(name.split()), groups=("a.weight", "b.weight"))
    recording.write(
        TABLE, STEPS, {"amax": (BATCHES * SCALE)[np.newaxis]}, loss_scaled=True,
        series={"loss": 1.0, "lr": 0.1, "sampled_gradient": given, "loss_scale": SCALE},
        events=[events.event(groups, 1, 2), events.event(SampledWeights(("a.weight",), True), 1, 2)],
    )  # fmt: skip
    found = recording.diagnose(RULE).findings
    expected = [(80, severity, "loss_scale")] * bool(severity)
    assert [(each.step, each.severity, each.facts["cause_class"]) for each in found] == expected


@pytest.mark.parametrize(
    ("left", "update", "rate", "expected"),
    [
        (1 / 65536, 1e-4, 1e-3, ("", "loss_scale")), (1 / 65536, 1.0, 1e-3, ("info", "loss_scale")),
        (1 / 65536, 0.01, 1e-5, ("info", "loss_scale")), (1e-4, 1e-4, 1e-3, ("", "clip")),
    ],
    ids=["divided twice", "and Adam makes up for it", "at a rate that has fallen", "by another number"],
)  # fmt: skip
def test_a_loss_that_is_scaled_by_hand(
    recording: Recording, left: float, update: float, rate: float, expected: tuple[str, str]
) -> None:
    is_after = np.arange(STEPS) >= 80
    given = BATCHES / 65536 * np.where(is_after, left, 1.0)
    rates = np.where(np.arange(STEPS) >= 120, rate, 1e-3)
    series = {"loss": 1.0, "lr": rates, "sampled_gradient": given, "sampled_update": np.where(is_after, update, 1.0)}
    recording.write(
        TABLE, STEPS, {"amax": BATCHES[np.newaxis]}, series=series,
        events=[events.event(Optimizers(("Adam",)), 1, 2), events.event(SampledWeights(("a.weight",), True), 1, 2)],
    )  # fmt: skip
    (finding,) = recording.diagnose(RULE).findings
    severity, cause = expected
    assert (finding.step, finding.severity, finding.facts["cause_class"]) == (80, severity or "warning", cause)
    assert ("65536, once" in finding.remedy[0].text) == (left == 1 / 65536)


@pytest.mark.parametrize(("others", "count"), [(1e4, 0), (1.0, 1)])
def test_a_clip_by_the_norm_of_all(recording: Recording, others: float, count: int) -> None:
    """That of another parameter grew: it is what the clip divides by."""
    at = np.arange(STEPS)
    part, other = np.where(at < 80, 1.0, 1e-4), np.where(at < 80, 1.0, others)
    model = [*TABLE, tensor("b.weight", "grad", 1, "float32")]
    recording.write(
        model, STEPS, {"amax": np.stack([np.ones(STEPS), other])},
        series={"loss": 1.0, "lr": 0.1, "sampled_update": 0.1 * part, "sampled_gradient": part},
        events=[events.event(Optimizers(("SGD",)), 1, 2), events.event(SampledWeights(("a.weight",), True), 1, 2)],
    )  # fmt: skip
    assert len(recording.diagnose(RULE).findings) == count


@pytest.mark.parametrize("steps", [STEPS, 1_500])
@pytest.mark.parametrize(
    ("name", "size", "left", "severity"),
    [
        ("SGD", 1.0, 1.0, "warning"), ("Adam", 1e-3, 1.0, "warning"), ("Adam", 1e3, 1.0, "info"),
        ("SGD", 1.0, 1.5, ""), ("SGD", 1.0, None, ""),
    ],
    ids=["SGD", "near Adam's eps", "far above it", "another number", "once"],
)  # fmt: skip
def test_divided_by_the_loss_scale_twice_since_the_first_step(
    recording: Recording, name: str, size: float, left: float | None, severity: str, steps: int
) -> None:
    """The scale is halved once on the way, and what the optimizer is given follows it."""
    at = np.arange(steps)
    scale = np.where(at < 50, 2 * SCALE, SCALE)
    gradient = size * 2.0 ** np.random.default_rng(0).normal(0, 1, steps)
    given = gradient if left is None else left * gradient / scale
    recording.write(
        TABLE, steps, {"amax": (gradient * scale)[np.newaxis]}, loss_scaled=True,
        series={"loss": 1.0, "lr": 0.1, "sampled_gradient": given, "loss_scale": scale},
        events=[events.event(Optimizers((name,)), 1, 2), events.event(SampledWeights(("a.weight",), True), 1, 2)],
    )  # fmt: skip
    found = recording.diagnose(RULE).findings
    expected = [(0, severity, "loss_scale")] * bool(severity)
    assert [(each.step, each.severity, each.facts["cause_class"]) for each in found] == expected


LAYERS = ("a", "b", "c")


def layered(recording: Recording, parts: Any, given: Any, *, name: str = "SGD", scale: Any = SCALE) -> list[Any]:
    """Three linear layers of 64 rows: the largest gradient of each one's parameters is `parts` times the largest that
    reaches its output, which is scaled; the optimizer is given `given` times what the backward left of the first."""
    kinds = ("grad_output", "grad", "grad")
    names = ("", ".weight", ".bias")
    table = [
        TensorEntry(f"{fqn}{names[at]}", kinds[at], 0, "float32", (64, 8) if not at else (8, 8), 3 * place + at,
                    "Linear" if not at else "Parameter")
        for place, fqn in enumerate(LAYERS) for at in range(3)
    ]  # fmt: skip
    scales = np.broadcast_to(scale, STEPS) * 1.0
    reaching = 0.1 * scales * BATCHES
    parts = np.broadcast_to(parts, (3, STEPS))
    amax = np.concatenate([[reaching, 0.3 * each * reaching, each * reaching] for each in parts])
    series = {"loss": 1.0, "lr": 0.1, "sampled_gradient": given * amax[2] / scales, "loss_scale": scales}
    recording.write(
        table, STEPS, {"amax": amax}, loss_scaled=True, series=series,
        events=[events.event(Optimizers((name,)), 1, 2), events.event(SampledWeights(("a.bias",), True), 1, 2)],
    )  # fmt: skip
    return list(recording.diagnose(RULE).findings)


RISES = np.where(np.arange(STEPS) < 30, SCALE, 2 * SCALE)


@pytest.mark.parametrize(
    ("parts", "given", "more", "severities"),
    [
        (20 / SCALE, 1.0, {}, ["warning"]),
        (20 / SCALE, 0.2, {}, ["warning"]),
        (20 / RISES, 1.0, {"scale": RISES}, ["warning"]),
        (20 / SCALE, 1.0, {"name": "Adam"}, ["info"]),
        (1e-3 / SCALE, 1.0, {}, []),
        (1_000 / 65_536, 1.0, {"scale": 65_536.0}, []),
        (20.0, 1.0, {}, []),
        (0.3, 1.0, {}, []),
        ([[20 / SCALE], [20 / SCALE], [0.3]], 1.0, {}, []),
        (20 / SCALE, SCALE, {}, []),
        (20 / 64, 1.0, {"scale": 64.0}, []),
        (np.where(np.arange(STEPS) < 20, 1.0, 20 / SCALE), 1.0, {}, []),
    ],
    ids=["in hooks and by the scaler", "and clipped", "whatever the scale is", "Adam makes up for it",
         "by another number", "clamped", "as usual", "rows that cancel", "one layer has its own",
         "stepped without the scaler", "a scale that shows nothing", "of late"],
)  # fmt: skip
def test_divided_before_they_are_there(
    recording: Recording, parts: Any, given: Any, more: dict[str, Any], severities: list[str]
) -> None:
    """By a hook of the parameter itself, which the backward calls before anything else sees the gradient."""
    found = layered(recording, parts, given, **more)
    assert [(each.step, each.severity, each.facts["cause_class"]) for each in found] == [
        (0, each, "loss_scale") for each in severities
    ]
    assert all("hook" in each.remedy[0].text for each in found)
