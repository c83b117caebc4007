"""Updates too large or too small for their weight."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rangewatch.wire.events import LossFunction, Optimizers, event
from rangewatch_server.rules.presets import BY_NAME as PRESETS
from rangewatch_server.rules.updates.update_ratio import RULE
from tests.server.rules.conftest import Recording, tensor

LAYERS = [
    tensor("a.weight", "weight", 0, "float32"),
    tensor("b.weight", "weight", 1, "float32"),
    tensor("a.weight", "update", 2, "float32"),
    tensor("b.weight", "update", 3, "float32"),
]


def write(recording: Recording, ratio: Any, steps: int = 350, every: int = 100, *, full: bool = True) -> None:
    """Weights of size 1, read every so many steps; `ratio` of b's update; a's is 0.001."""
    read = (np.arange(steps) % every == 0).astype(float)
    sizes = np.stack([read, read, 0.001 * read, read * np.broadcast_to(ratio, steps)])
    columns = {"call_count": read, "numel": 32 * read, "amax": sizes}
    recording.write(LAYERS, steps, columns | ({"full_numel": 32 * read, "sum_sq": 32 * sizes**2} if full else {}))


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize(("ratio", "word"), [(2.0, "large"), (1e-10, "small")])
def test_out_of_bounds_is_told(recording: Recording, ratio: float, word: str, full: bool) -> None:
    write(recording, ratio, full=full)
    (found,) = recording.diagnose(RULE).findings
    assert (found.tensor, found.kind, found.rank, found.subject) == ("b.weight", "update", 0, word)
    assert found.facts["ratio"] == pytest.approx(ratio)


@pytest.mark.parametrize(
    ("ratio", "words"),
    [
        (2.0, "too large: each is 2 times the weight's own size."),
        (0.5, "too large: each is 50 % of the weight's own size."),
        (1e-10, "too small: each is 1e-08 % of the weight's own size."),
    ],
)
def test_the_ratio_is_said_in_words(recording: Recording, ratio: float, words: str) -> None:
    write(recording, ratio)
    (found,) = recording.diagnose(RULE).findings
    assert found.summary.endswith(words)
    assert "the limit is" in found.evidence[0]
    assert "about 0.1 % is usual" in found.evidence[0]


def test_two_readings_are_not_enough(recording: Recording) -> None:
    write(recording, 2.0, steps=190)
    assert recording.diagnose(RULE).findings == ()


def test_one_that_goes_back_in_bounds_is_quiet(recording: Recording) -> None:
    write(recording, np.where(np.arange(550) < 400, 2.0, 0.01), steps=550)
    assert recording.diagnose(RULE).findings == ()


@pytest.mark.parametrize("ratio", [0.05, 1e-6, 0.0])
def test_usual_ones_and_zero_are_quiet(recording: Recording, ratio: float) -> None:
    write(recording, ratio)
    assert recording.diagnose(RULE).findings == ()


def test_weights_that_begin_at_zero_and_biases(recording: Recording) -> None:
    layers = [tensor("b", "weight", 0), type(LAYERS[0])("b", "update", 0, "float32", (8,), 1, "")]
    recording.write(layers, 350, {"amax": np.array([[0.0], [1.0]])})
    assert recording.diagnose(RULE).findings == ()


def test_without_updates(recording: Recording) -> None:
    recording.write([tensor("a")], 350)
    assert recording.diagnose(RULE).findings == ()


def test_the_preset_is_wider(recording: Recording) -> None:
    write(recording, 2.0)
    assert recording.diagnose(RULE, thresholds=PRESETS["sagemaker"].thresholds).findings == ()


STEPS = 240
FLAT, AT = 2.3 * np.ones(STEPS), np.arange(STEPS)


def low_rate(
    recording: Recording, rate: Any, loss: Any = FLAT, initial: float = 1e-3, fraction: float = 1e-4,
    classes: int = 1_000, optimizer: str = "AdamW", gradient: float = 1.0,
) -> Any:  # fmt: skip
    """What is said of a schedule's rate, of a loss and of the size of updates and gradients."""
    at = np.arange(STEPS)
    is_read = (at > 0) & ((at % 32 == 0) | ((at < 32) & (at & (at - 1) == 0)))
    series = {"lr": rate, "loss": loss, "update_fraction": np.where(is_read, fraction, np.nan)}
    known = [event(Optimizers((optimizer,), initial_lr=initial), 1, 2)]
    known.append(event(LossFunction("nll", classes), 1, 0))
    layer = [tensor("a.weight", "grad", 0, "float32")]
    recording.write(layer, STEPS, {"amax": gradient}, series=series, events=known)
    return recording.diagnose(RULE).findings


STAIRS = 2.5e-6 * (1 + np.arange(STEPS) // 60)


def test_a_warm_up_that_is_moved_once_an_epoch(recording: Recording) -> None:
    (finding,) = low_rate(recording, STAIRS)
    assert (finding.step, finding.rank, finding.facts["cause_class"]) == (0, 0, "learning_rate")
    assert "it has been 1e-05 at most, where its schedule was given 0.001" in finding.summary
    assert "about step 24,000" in finding.summary and "'interval': 'step'" in finding.remedy[0].code


@pytest.mark.parametrize(("moves", "count"), [(100, 1), (40, 0)])
def test_a_warm_up_of_many_moves_is_none_of_epochs(recording: Recording, moves: int, count: int) -> None:
    """A hundred steps were meant: it would take three thousand. One of 40 epochs may be meant."""
    assert len(low_rate(recording, 2e-3 / moves * (1 + AT // 30), initial=2e-3)) == count


def test_a_scheduler_that_is_never_moved(recording: Recording) -> None:
    (finding,) = low_rate(recording, 2e-6, classes=10)
    assert "it has not moved once in 240 steps" in finding.summary


def test_a_trainer_that_logs_the_rate_each_tenth_step(recording: Recording) -> None:
    at = np.arange(STEPS)
    series = {"learning_rate": np.where(at % 10 == 9, STAIRS, np.nan), "lr": np.where(at < 9, STAIRS, np.nan)}
    known = [event(Optimizers(("AdamW",), initial_lr=1e-3), 1, 2)]
    layer = [tensor("a.weight", "grad", 0, "float32")]
    recording.write(layer, STEPS, series={"loss": FLAT, **series}, events=known)
    (finding,) = recording.diagnose(RULE).findings
    assert "it has moved 3 times in 240 steps" in finding.summary


def test_a_function_that_returns_the_rate_with_its_warm_up(recording: Recording) -> None:
    (finding,) = low_rate(recording, 1e-6 * np.minimum(1.0, (AT + 1) / 20), initial=1e-3)
    assert "about the square of the 0.001 that its schedule was given" in finding.summary
    assert finding.remedy[0].text == "Have the function return a factor, 1.0 at the full rate."


def test_updates_that_are_next_to_nothing(recording: Recording) -> None:
    (finding,) = low_rate(recording, 1e-9, initial=0.0, fraction=1e-8)
    assert "learning rate of 1e-09" in finding.summary and finding.facts["lr"] == 1e-9


NOISY = 2.3 * np.exp(np.random.default_rng(0).normal(0, 0.3, STEPS))


@pytest.mark.parametrize("shift", [0.98, 1.1])
@pytest.mark.parametrize(("optimizer", "fraction"), [("AdamW", 2e-6), ("SGD", 8e-6)])
def test_a_noisy_loss_of_weights_that_do_not_move(
    recording: Recording, shift: float, optimizer: str, fraction: float
) -> None:
    loss = NOISY * np.where(AT < 64, 1.0, shift)
    (finding,) = low_rate(recording, 4e-7, loss, initial=0.0, fraction=fraction, optimizer=optimizer)
    assert finding.facts["cause_class"] == "learning_rate" and "Raise the learning rate" in finding.remedy[0].text


@pytest.mark.parametrize(
    ("optimizer", "gradient", "cause"),
    [("Adam", 3e-11, "optimizer"), ("Adam", 3e-8, "learning_rate"), ("SGD", 3e-11, "learning_rate")],
)
def test_gradients_far_below_the_eps_of_adam(
    recording: Recording, optimizer: str, gradient: float, cause: str
) -> None:  # fmt: skip
    """As of a quantity in a unit in which it is next to nothing: ten times the rate would be the wrong advice."""
    known = {"optimizer": optimizer, "gradient": gradient}
    (finding,) = low_rate(recording, 2e-3, initial=0.0, fraction=2.8e-6, **known)  # type: ignore[arg-type]
    assert finding.facts["cause_class"] == cause
    advice = finding.remedy[0].text
    assert ("smaller eps" in advice, "Raise" in advice) == (cause == "optimizer", cause != "optimizer")


@pytest.mark.parametrize(
    "given",
    [
        {"rate": 1e-3 * np.linspace(0.0005, 0.04, STEPS)},  # a long warm-up, at each step
        {"rate": np.where(AT % 25 == 0, 1e-7 * (1 + AT), np.nan)},  # a warm-up over 10,000 steps, seldom logged
        {"rate": 1e-3, "initial": 0.1},  # the end of a schedule, resumed: the loss is far below chance
        {"rate": 1e-5, "initial": 0.0, "classes": 10},  # of groups that differ: the head's rate is the higher one
        {"rate": 1e-9, "initial": 0.0, "fraction": 1e-8, "loss": np.where(AT < 100, 2.3, 2.9)},  # something else
        {"rate": STAIRS, "initial": 1e308},
        {"rate": 1e-6 * np.linspace(0.01, 1.0, STEPS), "initial": 1e-3},  # a warm-up that passes the square
        {"rate": 1e-5 * ((AT > 0) & (AT < STEPS - 1)), "initial": 1e-3},
        {"rate": 0.2e-3 * (1 + np.arange(STEPS) // 60)},  # a warm-up by epochs
        {"rate": 1e-5, "initial": 1e-5},  # fine-tuning
        {"rate": 1e-5, "initial": 0.0, "fraction": 2e-4},
        {"rate": np.linspace(1e-5, 1e-6, STEPS)},  # the end of a schedule
        {"rate": 1e-9, "initial": 0.0, "fraction": 0.0},  # rounded away, or nothing is updated
        {"rate": 1e-9, "initial": 0.0, "fraction": 1e-8, "loss": np.linspace(2.3, 2.2, STEPS)},
        {"rate": 1e-9, "initial": 0.0, "fraction": 1e-8, "loss": NOISY * np.where(AT < 64, 1.0, 0.6)},
        {"rate": 1e-9, "initial": 0.0, "fraction": 1e-8, "loss": np.where(AT < 232, 1.15 * NOISY, 9.0)},
        {"rate": 4e-7, "initial": 0.0, "fraction": 2e-5},  # a large model that is tuned
        {"rate": 1e-2, "initial": 0.0, "fraction": 2e-5, "optimizer": "SGD"},  # nothing is left to learn
    ],
)
def test_low_rates_that_are_meant(recording: Recording, given: dict[str, Any]) -> None:
    assert low_rate(recording, **given) == ()


def test_a_warm_up_that_is_moved_once_an_epoch_is_info_where_it_learns(recording: Recording) -> None:
    """More slowly than was meant."""
    (found,) = low_rate(recording, rate=STAIRS, loss=np.linspace(2.3, 1.6, STEPS))
    assert (found.severity, found.facts["cause_class"]) == ("info", "learning_rate")
    assert "hardly fallen" not in found.remedy[0].because


def decayed(recording: Recording, part: Any, loss: Any = FLAT, decay: float = 0.1, rate: float = 1e-3) -> Any:
    at = np.arange(STEPS)
    is_read = (at > 0) & ((at % 32 == 0) | ((at < 32) & (at & (at - 1) == 0)))
    series = {"lr": rate, "loss": loss, "decay_fraction": np.where(is_read, part, np.nan)}
    known = [event(Optimizers(("AdamW",), weight_decay=decay), 1, 2)]
    recording.write([tensor("a.weight", "grad", 0, "float32")], STEPS, series=series, events=known)
    return recording.diagnose(RULE).findings


@pytest.mark.parametrize(
    ("decay", "rate", "text"),
    [
        (0.1, 1e-3, "it is not multiplied by the learning rate (0.001)"),
        (100.0, 1e-3, "times the learning rate of 0.001 that is what is taken"),
    ],
)
def test_a_decay_that_takes_a_tenth_of_the_weights(recording: Recording, decay: float, rate: float, text: str) -> None:
    """Until the weights are so small that updates make up for it."""
    (finding,) = decayed(recording, np.where(np.arange(STEPS) < 20, 0.1, 0.0), decay=decay, rate=rate)
    assert (finding.step, finding.severity, finding.facts["cause_class"]) == (1, "warning", "optimizer")
    assert text in finding.evidence[1] and "half of it is gone after 7 steps" in finding.summary


def test_a_strong_decay_under_which_the_loss_falls_is_info(recording: Recording) -> None:
    (finding,) = decayed(recording, 0.01, np.linspace(2.3, 1.0, STEPS))
    assert finding.severity == "info"


@pytest.mark.parametrize("decay", [0.0, 0.01])
def test_updates_against_the_weights_that_no_decay_makes(recording: Recording, decay: float) -> None:
    """As of one matrix behind whitened inputs, with noisy targets: it is drawn from noise to next to nothing."""
    assert decayed(recording, 0.1, decay=decay) == ()


def test_a_decay_is_not_named_before_losses_can_be_compared(recording: Recording) -> None:
    assert len(decayed(recording, 0.1)) == 1
    assert recording.diagnose(RULE, stop=20).findings == ()


@pytest.mark.parametrize(("until", "count"), [(20, 0), (STEPS, 1)])
def test_less_than_the_decay_that_is_set_must_go_on(recording: Recording, until: int, count: int) -> None:
    assert len(decayed(recording, np.where(until > AT, 0.01, 0.0))) == count


@pytest.mark.parametrize("part", [0.001, np.where(np.arange(STEPS) % 64 == 0, 0.1, 0.0)])
def test_usual_decay(recording: Recording, part: Any) -> None:
    assert decayed(recording, part) == ()
