"""A module that runs along the rows of the batch, as the agent's event says."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from rangewatch.wire.events import LossFunction, SequenceAxes, event
from rangewatch_server.rules.loss import loss_plateau
from rangewatch_server.rules.setup import sequence_axes
from tests.server.rules.conftest import Recording, tensor

LAYERS = [tensor("head"), tensor("head.weight", "grad", 1)]
LSTM = SequenceAxes("lstm", "LSTM", False, (48, 40, 32), (48, 40, 2), 48, 4, False, 1, 0)
ATTENTION = msgspec.structs.replace(LSTM, fqn="rows", name="MultiheadAttention")
STEPS = 240


def write(recording: Recording, *known: SequenceAxes, loss: float = 1.0) -> None:
    """`loss`: what it is at the end, from ln 5 on."""
    values = np.linspace(np.log(5), loss, STEPS)
    events = [event(each, 1, 3) for each in known]
    recording.write(LAYERS, STEPS, series={"loss": values}, events=[event(LossFunction("nll", 5), 1, 0), *events])


def test_it_is_named(recording: Recording) -> None:
    write(recording, LSTM)
    (finding,) = recording.diagnose(sequence_axes.RULE).findings
    assert (finding.step, finding.rank, finding.severity, finding.tensor) == (3, 0, "warning", "lstm")
    assert "takes the 48 rows for a sequence and its 40 places for the batch" in finding.summary
    assert finding.facts["cause_class"] == "forward_arithmetic" and "batch_first=True" in finding.remedy[0].text


@pytest.mark.parametrize(
    ("known", "loss", "severity"),
    [
        (msgspec.structs.replace(LSTM, shape=(48, 3, 32), given=(48, 3, 2)), 1.0, "info"),
        (msgspec.structs.replace(LSTM, shape=(48, 3, 32), given=(48, 3, 2)), float(np.log(5)), "warning"),
    ],
    ids=["of three agents", "nothing is learned"],
)
def test_steps_of_a_recording(recording: Recording, known: SequenceAxes, loss: float, severity: str) -> None:
    """Each with a label, beside agents or channels: it is the same shapes."""
    write(recording, known, loss=loss)
    (finding,) = recording.diagnose(sequence_axes.RULE).findings
    assert finding.severity == severity and "(shown)" not in " ".join(finding.evidence)


def test_the_other_way_round(recording: Recording) -> None:
    write(recording, msgspec.structs.replace(LSTM, batch_first=True, shape=(40, 48, 32)))
    (finding,) = recording.diagnose(sequence_axes.RULE).findings
    assert "takes the 48 rows for a sequence and its 40 places for the batch" in finding.summary
    assert "batch_first=False" in finding.remedy[0].text


@pytest.mark.parametrize("known", [LSTM, ATTENTION, msgspec.structs.replace(ATTENTION, name="TransformerEncoderLayer")])
@pytest.mark.parametrize("batch_first", [True, False])
def test_its_code_runs(recording: Recording, known: SequenceAxes, batch_first: bool) -> None:
    write(recording, msgspec.structs.replace(known, batch_first=batch_first))
    (finding,) = recording.diagnose(sequence_axes.RULE).findings
    compile(finding.remedy[0].code, "remedy", "exec")


@pytest.mark.parametrize(
    ("right", "loss", "severity"), [(0, 1.0, "warning"), (2, 1.0, "info"), (2, float(np.log(5)), "warning")]
)
def test_attention_that_may_be_meant(recording: Recording, right: int, loss: float, severity: str) -> None:
    """Where other attention runs along another axis, and something is learned."""
    write(recording, msgspec.structs.replace(ATTENTION, right=right), loss=loss)
    (finding,) = recording.diagnose(sequence_axes.RULE).findings
    assert finding.severity == severity


@pytest.mark.parametrize(
    "known",
    [
        (),
        (SequenceAxes(),),
        (LSTM, SequenceAxes("lstm")),
        (LSTM, msgspec.structs.replace(LSTM, steps=0)),
        (msgspec.structs.replace(LSTM, shape=(48, 40)),),
    ],
    ids=["no event", "an empty one", "taken back", "taken back with its shape", "of two sizes"],
)
def test_without_it_nothing_is_said(recording: Recording, known: tuple[SequenceAxes, ...]) -> None:
    write(recording, *known)
    assert recording.diagnose(sequence_axes.RULE).findings == ()


def test_a_loss_of_a_guess_comes_of_it(recording: Recording) -> None:
    known = event(LSTM, 1, 0)
    loss = np.full(STEPS, np.log(5))
    recording.write(LAYERS, STEPS, series={"loss": loss}, events=[event(LossFunction("nll", 5), 1, 0), known])
    (finding,) = recording.diagnose(sequence_axes.RULE, loss_plateau.RULE).findings
    assert finding.rule == "sequence_axes" and len(finding.consequences) == 1
    assert any("that of a guess" in each for each in finding.evidence)
