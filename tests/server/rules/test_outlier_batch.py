"""One batch far larger than all before it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rangewatch.wire.records import TensorEntry
from rangewatch_server.rules.activations.outlier_batch import LASTING, RULE
from rangewatch_server.rules.loss import loss_spike
from tests.server.rules.conftest import Recording, tensor

NOISE = np.random.default_rng(3)
NET = [
    tensor("stem", module="Conv2d", dtype="float32"), tensor("bn", call_index=1, module="BatchNorm2d", dtype="float32"),
    tensor("layer1.conv", call_index=2, module="Conv2d"), tensor("layer1", call_index=3, module="Block"),
    tensor("fc", call_index=4), tensor("", call_index=5, module="Net"),
]  # fmt: skip
STEM = 0


def usual(rows: int, steps: int) -> np.ndarray:
    return np.exp(NOISE.normal(0, 0.3, (rows, steps)))


def write(
    recording: Recording, factor: float, at: int, steps: int = 300, lasts: int = 1, net: list[TensorEntry] = NET,
    places: Any = STEM, **more: Any,
) -> None:  # fmt: skip
    amax = usual(len(net), steps)
    amax[places, at : at + lasts] *= factor
    recording.write(net, steps, {"amax": amax}, **more)


@pytest.mark.parametrize("factor", [1e5, 1e8, 1e30])
@pytest.mark.parametrize(("steps", "at"), [(300, 20), (300, 150), (300, 298), (6_000, 400), (6_000, 5_000)])
def test_it_is_named_with_what_it_left(recording: Recording, factor: float, steps: int, at: int) -> None:
    write(recording, factor, at, steps)
    assert recording.diagnose(RULE, stop=at).findings == ()
    (found,) = recording.diagnose(RULE).findings
    assert (found.tensor, found.kind, found.rank, found.step) == ("stem", "output", 0, at)
    assert (found.facts["cause_class"], found.facts["running_statistics"]) == ("data", "bn")
    assert found.severity == "warning"
    assert "the batch itself" in found.evidence[1]


def test_what_was_said_first_is_said_at_the_end(recording: Recording) -> None:
    write(recording, 1e8, 150, 3_000)
    (then,) = recording.diagnose(RULE, stop=152).findings
    (now,) = recording.diagnose(RULE).findings
    assert then == now


def test_the_second_network_is_given_a_batch_of_its_own(recording: Recording) -> None:
    """A discriminator is called by the script: what follows a whole model, and is not in it, is another call."""
    names = ("generator.up", "generator", "", "discriminator.conv1", "discriminator.conv2", "discriminator")
    net = [tensor(name, call_index=at) for at, name in enumerate(names)]
    write(recording, 1e8, 200, net=net, places=[3, 4])
    (found,) = recording.diagnose(RULE).findings
    assert (found.tensor, found.step) == ("discriminator.conv1", 200)
    assert "the batch was that large" in found.summary


def test_what_has_a_label_embedded_before_it(recording: Recording) -> None:
    net = [tensor("time", module="Embedding"), *(tensor(each.fqn, call_index=1 + each.call_index) for each in NET)]
    write(recording, 1e8, 200, net=net, places=1)
    (found,) = recording.diagnose(RULE).findings
    assert found.tensor == "stem"
    assert "or code before it" in found.summary


def test_a_norm_that_was_given_what_is_usual_has_taken_nothing(recording: Recording) -> None:
    net = [NET[0], tensor("norm", call_index=1, module="LayerNorm"), tensor("bn", call_index=2, module="BatchNorm1d")]
    write(recording, 1e8, 200, net=net)
    (found,) = recording.diagnose(RULE).findings
    assert found.facts["running_statistics"] is None
    assert len(found.remedy) == 1


def test_the_rank_that_was_given_it(recording: Recording) -> None:
    for rank in range(3):
        write(recording, 1e8 if rank == 1 else 1.0, 200, rank=rank, world_size=3)
    (found,) = recording.diagnose(RULE).findings
    assert (found.rank, found.step) == (1, 200)


def test_the_loss_that_jumped_with_it_is_its_consequence(recording: Recording) -> None:
    loss = 2 + NOISE.normal(0, 0.05, 300)
    loss[201:240] += 5
    write(recording, 1e8, 200, series={"loss": loss})
    (found,) = recording.diagnose(RULE, loss_spike.RULE).findings
    assert found.rule == RULE.name and "jumped" in found.consequences[0]


@pytest.mark.parametrize(
    ("factor", "lasts", "place"),
    [(1e3, 1, STEM), (1e8, 100, STEM), (1e8, LASTING + 2, STEM), (1e8, 1, 5)],
    ids=["not by so much", "for good", "for too long", "the last output"],
)
def test_what_is_no_single_batch_is_quiet(recording: Recording, factor: float, lasts: int, place: int) -> None:
    net = [*NET[:5], tensor("head", call_index=5), tensor("", call_index=6)]
    write(recording, factor, 200, lasts=lasts, net=net, places=place)
    for stop in (205, 260, None):
        assert recording.diagnose(RULE, stop=stop).findings == ()


def test_data_with_a_long_tail_is_quiet(recording: Recording) -> None:
    amax = np.exp(NOISE.normal(0, 3.0, (len(NET), 600)))
    amax[:, 300] *= 1e3
    recording.write(NET, 600, {"amax": amax})
    assert recording.diagnose(RULE).findings == ()


def test_a_training_that_has_diverged_is_another_s(recording: Recording) -> None:
    loss = np.full(300, 2.0)
    loss[195:] = 1e6
    write(recording, 1e8, 200, series={"loss": loss})
    assert recording.diagnose(RULE).findings == ()


def test_where_it_turns_nan_that_is_said(recording: Recording) -> None:
    bad = np.zeros((len(NET), 300))
    bad[4, 200] = 8
    amax = usual(len(NET), 300)
    amax[STEM, 200] *= 1e30
    recording.write(NET, 300, {"amax": amax, "nan_count": bad})
    assert recording.diagnose(RULE).findings == ()


@pytest.mark.parametrize(
    ("first", "factor", "steps", "at", "is_named"),
    [
        ("BatchNorm1d", 1e8, 300, 150, True), ("BatchNorm1d", 1e8, 6_000, 5_000, True),
        ("BatchNorm1d", 1e8, 40_000, 700, True), ("LayerNorm", 1e8, 300, 150, False),
        ("Linear", 1e8, 300, 150, False), ("BatchNorm1d", 30, 300, 150, False),
    ],
)  # fmt: skip
def test_a_batch_that_is_given_to_a_norm_at_once(
    recording: Recording, first: str, factor: float, steps: int, at: int, is_named: bool
) -> None:
    """No output shows it; what the model was given does. A LayerNorm keeps nothing of it, and what the first module of
    another call, such as a discriminator, is given is not known."""
    net = [
        tensor("norm", module=first), tensor("up", call_index=1), tensor("", call_index=2, module="Net"),
        tensor("disc.norm", call_index=3, module="BatchNorm1d"), tensor("disc", call_index=4, module="Net"),
    ]  # fmt: skip
    given = usual(1, steps)[0]
    given[at] *= factor
    recording.write(net, steps, {"amax": usual(5, steps)}, series={"loss": 0.1, "input_rms": given})
    findings = recording.diagnose(RULE).findings
    assert [(each.step, each.facts["running_statistics"]) for each in findings] == ([(at, "norm")] if is_named else [])
    assert recording.diagnose(RULE, stop=at + 1).findings == ()  # whether it stays so is not known yet


@pytest.mark.parametrize(
    ("given", "is_named"),
    [
        ({}, True), ({"steps": 6_000, "at": 5_000}, True), ({"first": "Linear"}, True), ({"left": 0.5}, False),
        ({"left": 0.2}, False),
        ({"at": 295}, False), ({"back": 60}, True), ({"back": 4}, False), ({"inputs": 1.0}, False),
        ({"shrinks": 160}, False),
    ],
    ids=["spoiled", "late", "of any class", "no smaller", "hardly smaller", "too early to say", "forgotten in time",
         "for some steps", "usual inputs", "at another step"],
)  # fmt: skip
def test_running_statistics_of_one_s_own(recording: Recording, given: dict[str, Any], is_named: bool) -> None:
    """As of observations, which are clipped behind it: it goes by its statistics in training too, and what it gives is
    next to nothing since."""
    usual_given = {"steps": 300, "at": 150, "first": "RunningNorm", "left": 0.01, "inputs": 1e7, "back": 10_000}
    known: dict[str, Any] = {**usual_given, **given}
    net = [tensor("norm", module=known["first"]), tensor("up", call_index=1), tensor("", call_index=2, module="Net")]
    steps, at = known["steps"], known["at"]
    amax, inputs = usual(3, steps), usual(1, steps)[0]
    since = known.get("shrinks", at + 1)
    amax[0, since : since + known["back"]] *= known["left"]
    inputs[at] *= known["inputs"]
    recording.write(net, steps, {"amax": amax}, series={"loss": 0.1, "input_rms": inputs})
    findings = recording.diagnose(RULE).findings
    said = [(each.step, each.tensor, each.facts["cause_class"]) for each in findings]
    assert said == [(at, "norm", "data")] * is_named
    assert all("statistics" in each.remedy[1].text for each in findings)
