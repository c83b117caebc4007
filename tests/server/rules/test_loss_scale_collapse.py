"""A loss scale that falls and falls."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rangewatch.wire.records import Event
from rangewatch_server.rules.loss_scale.collapse import RULE
from rangewatch_server.rules.loss_scale.history import MOST_RECENT
from tests.server.rules.conftest import Recording, tensor
from tests.server.rules.loss_scales import GRAD_A, GRAD_B, GRAD_WEIGHT, LAYERS, OUTPUT_B, bad, reported, scaled


def write(
    recording: Recording, series: dict[str, np.ndarray], *rows: int, count: str = "inf_count", **more: Any
) -> None:
    steps = len(series["skipped_step"])
    recording.write(LAYERS, steps, {count: bad(series, *rows)}, series=series, loss_scaled=True, **more)


def test_gradients_that_overflow_at_each_step(recording: Recording) -> None:
    series = scaled(200, range(188, 200))
    write(recording, series, GRAD_B, GRAD_A)
    (found,) = recording.diagnose(RULE).findings
    assert (found.severity, found.step, found.rank, found.tensor, found.kind) == (
        "critical",
        188,
        0,
        "b",
        "grad_output",
    )
    assert found.summary == (
        "Step 188, rank 0: the loss scale collapses from 65536 to 32, 12 of 12 steps skipped; "
        "the gradient of the output of b holds Inf first."
    )
    assert "All that was recorded of the forward pass was finite at those steps." in found.evidence
    assert any("1 at step 124, 16.00 bits below the limit of float16" in each for each in found.evidence)
    assert "model.get_submodule('b')" in found.remedy[0].code


def test_an_output_that_is_bad_is_to_blame_and_not_the_scale(recording: Recording) -> None:
    series = scaled(200, range(170, 200))
    write(recording, series, OUTPUT_B, GRAD_B, GRAD_A)
    (found,) = recording.diagnose(RULE).findings
    assert (found.tensor, found.kind, found.facts["cause"]) == ("b", "output", "forward")
    assert "which no scale mends" in found.summary


@pytest.mark.parametrize("count", ["nan_count", "inf_count"])
def test_an_output_in_float32_is_not_to_be_computed_in_float32(recording: Recording, count: str) -> None:
    series = scaled(200, range(170, 200))
    layers = [tensor("a", call_index=0), tensor("b", "output", 1, "float32"), *LAYERS[2:]]
    counts = {count: bad(series, OUTPUT_B, GRAD_B, GRAD_A)}
    recording.write(layers, 200, counts, series=series, loss_scaled=True)
    (found,) = recording.diagnose(RULE).findings
    assert found.remedy and not any("in float32" in each.text for each in found.remedy)
    assert "whether its weights are finite" in found.remedy[0].text


@pytest.mark.parametrize("first", [0, GRAD_B], ids=["outputs recorded", "gradients alone"])
def test_a_loss_that_is_bad_itself_is_to_blame_where_outputs_were_seen_finite(recording: Recording, first: int) -> None:
    """Without outputs nothing is known of the forward that the loss is made of."""
    series = scaled(200, range(170, 200))
    counts = {"inf_count": bad(series, GRAD_B, GRAD_A)[first:]}
    series["loss"] = np.where(series["skipped_step"] > 0, np.nan, 2.0)
    recording.write(LAYERS[first:], 200, counts, series=series, loss_scaled=True)
    (found,) = recording.diagnose(RULE).findings
    said = [each for each in found.evidence if "was not finite, before any gradient was computed" in each]
    assert bool(said) == (first == 0), found.evidence


def test_an_output_that_is_always_inf_is_a_mask(recording: Recording) -> None:
    series = scaled(200, range(170, 200))
    counts = bad(series, GRAD_B)
    counts[OUTPUT_B] = 1
    recording.write(LAYERS, 200, {"inf_count": counts}, series=series, loss_scaled=True)
    (found,) = recording.diagnose(RULE).findings
    assert (found.tensor, found.kind) == ("b", "grad_output")


def test_a_gradient_that_stays_nan_is_no_overflow(recording: Recording) -> None:
    write(recording, scaled(200, range(170, 200)), GRAD_B, count="nan_count")
    (found,) = recording.diagnose(RULE).findings
    assert "holds NaN first, which a smaller scale does not mend" in found.summary
    assert found.facts["cause_class"] == "backward_arithmetic"
    assert "epsilon" in found.remedy[0].text


def test_what_no_step_can_have_grown_to(recording: Recording) -> None:
    """By 2**46 within one step: the root of 0 has such a gradient, at any scale."""
    series = scaled(200, range(170, 200))
    write(recording, series, GRAD_B, GRAD_A)
    (found,) = recording.diagnose(RULE).findings
    assert found.facts["cause_class"] == "backward_arithmetic" and "does not mend" in found.summary
    assert "root" in found.remedy[0].text and not any("Clip" in each.text for each in found.remedy)


def test_a_float32_gradient_of_autocast_has_the_limit_of_float16(recording: Recording) -> None:
    write(recording, scaled(200, range(188, 200)), GRAD_WEIGHT)
    (found,) = recording.diagnose(RULE).findings
    assert (found.tensor, found.kind) == ("a.weight", "grad")
    assert any("16.00 bits below the limit of float16, in which it is computed" in each for each in found.evidence)
    assert "model.get_submodule('a')" in found.remedy[0].code


def test_a_scale_that_cannot_fall_any_more(recording: Recording) -> None:
    series = scaled(200, range(190, 200)) | {"loss_scale": np.ones(200)}
    write(recording, series, GRAD_B)
    (found,) = recording.diagnose(RULE).findings
    assert "10 steps are skipped and the loss scale stays at 1, its minimum or fixed" in found.summary


@pytest.mark.parametrize(
    ("event", "sentence"),
    [
        (reported(100), "To grow back to 65536 it takes 2900 clean steps, 29 times its growth_interval of 100."),
        (reported(100, growth_factor=4.0), "To grow back to 65536 it takes 1500 clean steps, 15 times its growth_"),
        (reported(100, backoff_factor=1.0), "Its backoff_factor is 1: a skipped step does not lower it."),
    ],
)
def test_the_way_back_where_the_settings_are_known(recording: Recording, event: Any, sentence: str) -> None:
    write(recording, scaled(200, range(170, 200)), GRAD_B, events=[event])
    (found,) = recording.diagnose(RULE).findings
    assert found.evidence[-1].startswith(sentence)


def test_and_none_where_they_are_not(recording: Recording) -> None:
    write(recording, scaled(200, range(170, 200)), GRAD_B)
    (found,) = recording.diagnose(RULE).findings
    assert not any("growth_interval" in each or "backoff" in each for each in found.evidence)


def test_the_first_of_several_stays(recording: Recording) -> None:
    series = scaled(300, {*range(100, 112), *range(200, 212)}, first=2.0**30)
    counts = bad(series, GRAD_B, GRAD_A, GRAD_WEIGHT)
    recording.write(LAYERS, 300, {"inf_count": counts}, series=series, loss_scaled=True)
    (then,) = recording.diagnose(RULE, stop=150).findings
    (now,) = recording.diagnose(RULE).findings
    assert (then.step, now.step, then.summary) == (100, 100, now.summary)
    assert "It did so once more, the last time from step 200 to 211" in " ".join(now.evidence)
    (critical,) = recording.diagnose(RULE, stop=212).findings
    assert (then.severity, critical.severity, now.severity) == ("warning", "critical", "warning")


def test_a_scale_that_falls_below_use_at_times(recording: Recording) -> None:
    write(recording, scaled(200, range(5, 200, 15), first=2.0**12), GRAD_B)
    (found,) = recording.diagnose(RULE).findings
    assert (found.severity, found.step) == ("warning", 5)
    assert "the loss scale falls from 4096 to 0.5, 13 of 181 steps skipped" in found.summary


def test_the_rank_whose_gradient_it_is(recording: Recording) -> None:
    series = scaled(100, range(80, 100))
    for rank in range(4):
        counts = bad(series, GRAD_A) if rank == 2 else 0
        recording.write(
            LAYERS, 100, {"inf_count": counts}, rank=rank, world_size=4, series=series, loss_scaled=True
        )  # fmt: skip
    (found,) = recording.diagnose(RULE).findings
    assert (found.rank, found.tensor) == (2, "a")
    assert "At step 80 it was so on rank 2 of 4 ranks." in found.evidence


def test_what_was_not_recorded_is_said_to_be_unknown(recording: Recording) -> None:
    write(recording, scaled(100, range(80, 100)))
    (found,) = recording.diagnose(RULE).findings
    assert (found.rank, found.tensor, found.step) == (None, None, 80)
    assert "what overflows was not recorded" in found.summary
    assert "level='frames'" in found.remedy[0].text


def test_the_begin_of_a_long_one_is_found(recording: Recording) -> None:
    steps = 300 + 2 * MOST_RECENT
    series = scaled(steps, range(300, steps))
    series["loss_scale"] = np.maximum(series["loss_scale"], 2.0**-1000)
    write(recording, series, GRAD_B)
    (found,) = recording.diagnose(RULE).findings
    assert (found.step, found.facts["skipped_steps"], found.facts["scale_before"]) == (300, 2 * MOST_RECENT, 65536)


def test_before_it_there_was_none(recording: Recording) -> None:
    write(recording, scaled(200, range(170, 200)), GRAD_B)
    assert recording.diagnose(RULE, stop=170).findings == ()
    assert recording.diagnose(RULE, stop=174).findings == ()


@pytest.mark.parametrize(
    ("first", "most", "interval"),
    [(2.0**16, 2.0**13, 2_000), (2.0**32, 2.0**12, 2_000), (2.0**16, 2.0**14, 40), (2.0**24, 2.0**24, 20)],
)
def test_the_search_for_a_scale_is_healthy(recording: Recording, first: float, most: float, interval: int) -> None:
    write(recording, scaled(500, lambda scale: scale > most, first=first, interval=interval), GRAD_B, GRAD_A)
    for stop in (1, 2, 9, 21, 22, 100, 500):
        assert recording.diagnose(RULE, stop=stop).findings == ()


def test_a_search_that_hardly_moves_is_none(recording: Recording) -> None:
    """Every step is skipped from the first on, and the scale far too large falls by next to nothing."""
    steps = 60
    series = {"loss_scale": 2.0**60 * 0.999 ** np.arange(steps), "found_inf": np.ones(steps)}
    write(recording, series | {"skipped_step": np.ones(steps)}, GRAD_B, GRAD_A)
    assert recording.diagnose(RULE, stop=8).findings == ()
    for stop in (40, 60):
        (found,) = recording.diagnose(RULE, stop=stop).findings
        assert (found.severity, found.step) == ("critical", 0)
    assert "a smaller scale" in found.remedy[0].text and "init_scale=65536" in found.remedy[0].code


def test_so_is_that_of_a_process_that_began_again(recording: Recording) -> None:
    write(recording, scaled(300, ()), GRAD_B)
    series = scaled(200, lambda scale: scale > 2.0**13, first=2.0**30)
    recording.write(
        LAYERS, 200, {"inf_count": bad(series, GRAD_B)}, series=series, loss_scaled=True, first=250, incarnation="b"
    )
    assert recording.diagnose(RULE).findings == ()


def test_a_hard_batch_is_none(recording: Recording) -> None:
    write(recording, scaled(300, (100, 101, 102, 200)), GRAD_B)
    assert recording.diagnose(RULE).findings == ()


def test_nor_is_what_was_mended(recording: Recording) -> None:
    write(recording, scaled(600, range(100, 112), interval=40), GRAD_B)
    assert recording.diagnose(RULE, stop=120).findings != ()
    assert recording.diagnose(RULE).findings == ()


@pytest.mark.parametrize("series", [{}, {"loss_scale": 1.0}, {"loss_scale": np.nan, "skipped_step": 1.0}])
def test_odd_series_do_no_harm(recording: Recording, series: dict[str, float]) -> None:
    recording.write([tensor("a")], 50, series=series)
    report = recording.diagnose(RULE)
    assert (report.findings, report.failed) == ((), {})


def of_loss(value: dict[str, Any], op: str = "Div", name: str = "other") -> Event:
    """What the agent sees of the first loss that is not finite."""
    usual = {"name": name, "dtype": "float16", "numel": 1, "amax": 0.0, "nan_count": 0, "inf_count": 0}
    saved = {"op": op, "name": name, "is_given": False, "value": usual | value}
    return Event("loss_graph", 1, 170, "", {"bad": [saved]})


@pytest.mark.parametrize(
    ("events", "text"),
    [
        ([of_loss({"inf_count": 1})], "The divisor of a division (Div) in the loss was Inf in float16"),
        ([of_loss({"nan_count": 1, "dtype": "float32"}, "Log", "result")], "a logarithm (Log)"),
        ([], "The loss of step 170 was not finite"),
    ],
)
def test_a_loss_that_is_bad_itself(recording: Recording, events: list[Event], text: str) -> None:
    """As where its sums over many pixels are beyond float16: no scale mends it."""
    series = scaled(200, range(170, 200))
    loss = np.where(np.arange(200) < 170, 1.0, np.nan)
    write(recording, series | {"loss": loss}, GRAD_B, GRAD_A, count="nan_count", events=events)
    (found,) = recording.diagnose(RULE).findings
    assert "the loss itself is not finite" in found.summary
    assert found.facts["cause_class"] == "forward_arithmetic"
    assert any(text in each for each in found.evidence), found.evidence
    assert not any("init_scale" in each.code for each in found.remedy)


def test_a_loss_that_was_not_logged_is_not_bad(recording: Recording) -> None:
    series = scaled(200, range(188, 200))
    loss = np.where(np.arange(200) % 10 == 0, 1.0, np.nan)
    loss[170:] = 1.0
    write(recording, series | {"loss": loss}, GRAD_B, GRAD_A)
    (found,) = recording.diagnose(RULE).findings
    assert "cause_class" not in found.facts


def fixed(steps: int) -> dict[str, np.ndarray]:
    ones = np.ones(steps)
    return {"loss_scale": 2.0**24 * ones, "found_inf": ones, "skipped_step": ones}


@pytest.mark.parametrize(("factor", "words"), [(0.5, "made anew in each step"), (1.0, "backoff_factor is 1")])
def test_a_scale_that_no_skip_lowers(recording: Recording, factor: float, words: str) -> None:
    write(recording, fixed(60), GRAD_B, GRAD_A, events=[reported(2_000, backoff_factor=factor)])
    (found,) = recording.diagnose(RULE).findings
    assert found.facts["cause_class"] == "loss_scale"
    assert any(words in each for each in found.evidence)
    assert "one scaler before the loop" in found.remedy[0].text


def test_a_scale_that_is_raised_while_steps_are_skipped(recording: Recording) -> None:
    """By code that gives update() a value."""
    series = fixed(60) | {"loss_scale": 2.0 ** np.minimum(16.0 + np.arange(60), 40.0)}
    write(recording, series, GRAD_B, GRAD_A, events=[reported(2_000, backoff_factor=0.5)])
    (found,) = recording.diagnose(RULE).findings
    assert "is raised from 65536 to 1099511627776 while" in found.summary
    assert found.facts["cause_class"] == "loss_scale"


@pytest.mark.parametrize(("count", "rows"), [("nan_count", (GRAD_B, GRAD_A)), ("nan_count", (OUTPUT_B, GRAD_B))])
def test_what_no_scale_mends_is_not_the_scale_s_doing(recording: Recording, count: str, rows: tuple[int, ...]) -> None:
    write(recording, fixed(60), *rows, count=count)
    (found,) = recording.diagnose(RULE).findings
    assert found.facts.get("cause_class") != "loss_scale"


@pytest.mark.parametrize(
    ("power", "noise", "is_said"), [(2, 0.1, True), (1, 0.1, True), (0, 0.1, False), (2, 6.0, False)]
)
def test_a_loss_that_goes_by_the_scale(recording: Recording, power: int, noise: float, is_said: bool) -> None:
    series = scaled(100, range(12))
    wave = noise * np.random.default_rng(1).normal(0, 1, 100)
    series["loss"] = np.where(series["skipped_step"] > 0, series["loss_scale"] ** power, 1.0) * 2.0**wave
    write(recording, series, GRAD_B, GRAD_A)
    (found,) = recording.diagnose(RULE).findings
    assert (found.facts.get("cause_class") == "loss_scale") == is_said
    assert any("went by the power" in each for each in found.evidence) == is_said


def test_a_scaler_that_attach_was_not_given(recording: Recording) -> None:
    event = reported(2_000, was_passed=False)
    recording.write(LAYERS, 60, {"inf_count": bad(scaled(60, ()))}, series=scaled(60, ()), events=[event])
    with recording.run() as run:
        assert run.is_loss_scaled([0])
