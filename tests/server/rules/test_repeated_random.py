"""Random numbers that are the same again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rangewatch.wire.events import RepeatedRandom, StateLoaded, event
from rangewatch_server.rules.setup import repeated_random
from tests.server.rules.conftest import Recording, tensor

LAYERS = [tensor("head.weight", "grad", 0)]
STEPS, PERIOD = 60, 12
SIZES = 1 + np.arange(STEPS) % PERIOD / 100


def found(recording: Recording, sizes: Any = None, *, same: bool | None = None, events: Any = ()) -> Any:
    series = {"loss": 1.0} if sizes is None else {"loss": 1.0, "input_rms": sizes}
    said = event(RepeatedRandom(PERIOD, PERIOD, same), 1, PERIOD + 3)
    recording.write(LAYERS, STEPS, series=series, events=[said, *events])
    return recording.diagnose(repeated_random.RULE).findings


def test_batches_of_the_same_sizes(recording: Recording) -> None:
    (finding,) = found(recording, SIZES)
    assert (finding.severity, finding.step, finding.rank) == ("warning", PERIOD, 0)
    assert finding.summary.startswith("Step 12, rank 0: batches and all that is drawn at random are the same again")
    assert "manual_seed" in finding.remedy[0].code and finding.facts["cause_class"] == "data"


@pytest.mark.parametrize(("sizes", "words"), [(None, "is not known"), (1 + np.arange(STEPS) / 100, "were others")])
def test_batches_that_are_others_or_not_known(recording: Recording, sizes: Any, words: str) -> None:
    (finding,) = found(recording, sizes)
    assert finding.severity == "info" and words in " ".join(finding.evidence)
    assert "dropout, noise" in finding.summary


def test_all_of_the_data_in_each_step(recording: Recording) -> None:
    """It would be the same with other random numbers, too."""
    (finding,) = found(recording, np.ones(STEPS))
    assert finding.severity == "info" and "is not known" in " ".join(finding.evidence)


@pytest.mark.parametrize(("same", "severity"), [(True, "warning"), (False, "info")])
def test_batches_of_whole_numbers(recording: Recording, same: bool, severity: str) -> None:
    (finding,) = found(recording, same=same)
    assert finding.severity == severity


def test_steps_that_are_made_again_from_a_checkpoint(recording: Recording) -> None:
    assert found(recording, SIZES, events=[event(StateLoaded("AdamW"), 2, PERIOD)]) == ()


AT = np.arange(300)
SIX = 1 + AT % 6 / 100


def few_batches(recording: Recording, sizes: Any, events: Any = ()) -> Any:
    recording.write(LAYERS, len(AT), series={"loss": 1.0, "input_rms": sizes}, events=events)
    return recording.diagnose(repeated_random.RULE).findings


@pytest.mark.parametrize(("sizes", "step"), [(SIX, 6), (np.where(AT < 40, 3 + AT / 100, SIX), 46)])
def test_a_few_batches_again_and_again_by_random_numbers_of_their_own(
    recording: Recording, sizes: Any, step: int
) -> None:
    """A generator that is made anew with one seed, of which torch's own numbers show nothing."""
    (finding,) = few_batches(recording, sizes)
    assert (finding.severity, finding.step, finding.facts["period"]) == ("info", step, 6)
    assert "the same 6 batches" in finding.summary and "seed" in finding.remedy[0].text
    assert finding.facts["cause_class"] == "data"


@pytest.mark.parametrize(
    "sizes",
    [
        np.ones(len(AT)),
        1 + AT % 2 / 100,
        1 + AT % 80 / 100,
        1 + AT % 50 / 100,
        1 + AT % 6 // 3 / 100,
        np.where(AT < 240, SIX, 2 + AT / 100),
        np.where(AT % 6 == 3, 1 + AT / 1000, SIX),
        np.where(AT % 4 == 1, np.nan, SIX),
        np.random.default_rng(0).permuted(np.tile(1 + np.arange(6) / 100, (50, 1)), axis=1).ravel(),
    ],
    ids=[
        "one", "two in turn", "long passes", "few passes", "sizes of two kinds", "until some step", "all but one",
        "not all known", "shuffled in each pass",
    ],
)  # fmt: skip
def test_batches_of_which_that_is_not_known(recording: Recording, sizes: Any) -> None:
    assert few_batches(recording, sizes) == ()


def test_a_training_that_goes_on_from_a_checkpoint_is_given_batches_again(recording: Recording) -> None:
    assert few_batches(recording, SIX, [event(StateLoaded("AdamW"), 2, 30)]) == ()
