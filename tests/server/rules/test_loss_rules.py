"""The rules that look at the logged loss: not finite, jumped, does not fall."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rangewatch.wire import events
from rangewatch_server.rules.evidence import WINDOW, Evidence
from rangewatch_server.rules.loss import loss_plateau, loss_spike
from rangewatch_server.rules.nonfinite import loss_nonfinite
from tests.server.rules.conftest import EVERY, Recording, tensor

NOISE = np.random.default_rng(11)


def write(recording: Recording, loss: Any, name: str = "loss", rank: int = 0, world_size: int = 1, **more: Any) -> None:
    series = {name: loss, **more.pop("series", {})}
    recording.write([tensor("a")], len(loss), series=series, rank=rank, world_size=world_size, **more)


def falling(steps: int) -> np.ndarray:
    return 1 + 2 * np.exp(-np.arange(steps) / 100) + NOISE.normal(0, 0.1, steps)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("name", ["loss", "train/loss"])
def test_a_loss_that_is_not_finite(recording: Recording, value: float, name: str) -> None:
    loss = falling(700)
    loss[650:] = value
    write(recording, loss, name)
    assert recording.diagnose(loss_nonfinite.RULE, stop=650).findings == ()
    (found,) = recording.diagnose(loss_nonfinite.RULE).findings
    assert (found.rank, found.step, found.severity) == (0, 650, "critical")
    called = "the loss" if name == "loss" else f"the loss ({name})"
    assert found.summary == f"Step 650, rank 0: {called} is {'NaN' if np.isnan(value) else 'Inf'}."


def test_one_that_the_scaler_skipped_is_quiet(recording: Recording) -> None:
    loss, skipped = falling(100), np.zeros(100)
    loss[[0, 1, 50]], skipped[[0, 1, 50]] = np.inf, 1
    write(recording, loss, series={"skipped_step": skipped}, loss_scaled=True)
    assert recording.diagnose(loss_nonfinite.RULE).findings == ()


def test_the_rank_whose_loss_it_is(recording: Recording) -> None:
    for rank in range(3):
        loss = falling(100)
        loss[60:] = np.nan if rank == 1 else loss[60:]
        write(recording, loss, rank=rank, world_size=3)
    (found,) = recording.diagnose(loss_nonfinite.RULE).findings
    assert (found.rank, found.step) == (1, 60)
    assert found.evidence[0] == "It was so on 1 of the 3 ranks that logged it: 1."


def test_ranks_that_log_none_are_not_asked(recording: Recording) -> None:
    loss = falling(100)
    loss[60:] = np.nan
    recording.write([tensor("a")], 100, rank=0, world_size=2)
    write(recording, loss, rank=1, world_size=2)
    (found,) = recording.diagnose(loss_nonfinite.RULE).findings
    assert found.rank == 1


def test_a_jump_that_lasts(recording: Recording) -> None:
    loss = falling(200)
    loss[190:] += 3
    write(recording, loss)
    assert recording.diagnose(loss_spike.RULE, stop=192).findings == ()  # two: it may be a hard batch, and one more
    for stop in range(193, 201):
        (found,) = recording.diagnose(loss_spike.RULE, stop=stop).findings
        assert (found.rank, found.step, found.subject) == (0, 190, "spike")
        assert found.facts["loss"] == pytest.approx(4.3, abs=0.3)
        assert "has been high since" in found.summary


@EVERY
@pytest.mark.parametrize("high", [3, 12, 500], ids=["three steps", "twelve steps", "for good"])
def test_a_jump_stays_told(recording: Recording, high: int, every: int) -> None:
    loss = 2 + NOISE.normal(0, 0.1, 600)
    loss[200 : 200 + high] += 3
    write(recording, loss)
    for stop in [*range(203, 200 + WINDOW, 3 * every), 200 + WINDOW]:
        assert [found.step for found in recording.diagnose(loss_spike.RULE, stop=stop).findings] == [200]
    (later,) = recording.diagnose(loss_spike.RULE).findings
    assert (later.step, later.severity) == (200, "warning" if high > WINDOW else "info")
    (found,) = recording.diagnose(loss_spike.RULE, stop=300).findings
    assert (found.facts["back_step"] is None) == (high > 100)
    assert (f"was low again at step {200 + high}" in found.summary) == (high < 100)


def test_a_loss_scale_of_zero_and_a_loss_that_is_logged_later_raise_nothing(recording: Recording) -> None:
    """A scale that only falls ends at 0; and a loss may not be logged in the first steps."""
    loss = np.r_[np.full(8, np.nan), np.full(200, 2.0) + NOISE.normal(0, 0.05, 200)]
    loss[120:] += 3
    size = np.where(np.arange(208) < 120, 32.0, 64.0)
    series = {"loss": loss, "loss_scale": np.where(np.arange(208) < 20, 8.0, 0.0), "input_elements": size}
    recording.write([tensor("a"), tensor("a.weight", "grad", 1)], 208, series=series, loss_scaled=True)
    assert [each.step for each in recording.diagnose(loss_spike.RULE).findings] == [120]


def test_where_single_high_values_are_usual_more_are_waited_for(recording: Recording) -> None:
    loss = 2 + NOISE.normal(0, 0.1, 400)
    loss[np.arange(13, 300, 20)] += 3
    loss[303:] += 3
    write(recording, loss)
    assert recording.diagnose(loss_spike.RULE, stop=307).findings == ()
    (found,) = recording.diagnose(loss_spike.RULE, stop=309).findings
    assert found.step == 303


@pytest.mark.parametrize(
    ("skipped", "optimizers", "is_told"), [(8, 1, True), (7, 1, False), (0, 1, False), (8, 2, False)]
)
def test_a_jump_whose_updates_were_all_skipped(
    recording: Recording, skipped: int, optimizers: int, is_told: bool
) -> None:
    """Of two optimizers the scaler may have skipped one."""
    loss, found_inf = 2 + NOISE.normal(0, 0.05, 200), np.zeros(200)
    loss[150:158] *= 5e3
    found_inf[150 : 150 + skipped] = 1
    known = events.event(events.Optimizers(("AdamW",) * optimizers), 1, 0)
    series = {"found_inf": found_inf, "loss_scale": 1024.0}
    write(recording, loss, series=series, loss_scaled=True, events=[known])
    (found,) = recording.diagnose(loss_spike.RULE).findings
    advice = " ".join(each.text for each in found.remedy)
    assert ("no weight was changed" in " ".join(found.evidence)) == is_told
    assert ("Leave the weights as they are" in advice) == is_told
    assert ("checkpoint" not in advice) == is_told


def test_the_first_of_several_jumps_is_told_with_the_others(recording: Recording) -> None:
    loss = 2 + NOISE.normal(0, 0.05, 400)
    loss[200:] += 2
    loss[300:] += 4
    write(recording, loss)
    (found,) = recording.diagnose(loss_spike.RULE).findings
    assert (found.step, found.facts["jumps"]) == (200, 2)
    assert "Jumps after it: 1, the last at step 300." in found.evidence


def test_each_remedy_has_its_own_code(recording: Recording) -> None:
    loss = falling(200)
    loss[190:] += 3
    write(recording, loss)
    (found,) = recording.diagnose(loss_spike.RULE).findings
    remedies = {each.text.split(" ")[0]: each.code for each in found.remedy}
    assert remedies["Go"] == ""
    assert "clip_grad_norm_" in remedies["Clip"]
    assert "rangewatch.batch" in remedies["Look"]
    assert "Lower" not in remedies, "the batch is what is named, if only as possible"


@pytest.mark.parametrize(
    "loss",
    [
        falling(400),
        falling(400) + 3 * (np.arange(400) % 20 == 0),  # a hard batch now and then
        1 + NOISE.exponential(1, 400),
        1 + 0.05 * np.sin(np.arange(400) / 10) + NOISE.normal(0, 0.001, 400),
        np.full(400, 2.0),
        np.r_[np.full(200, 1e-6), np.full(200, 1.2e-6)],
        np.linspace(1, 3, 400) + NOISE.normal(0, 0.2, 400),
        2 + NOISE.normal(0, 0.1, 400) + 3 * np.isin(np.arange(400), (200, 201)),
        np.exp(NOISE.normal(0, 1, 400)),
        2 + 3 * (NOISE.random(400) < 0.1) + NOISE.normal(0, 0.1, 400),
    ],
    ids=[
        "falling", "hard batches", "skewed noise", "waves", "constant", "small", "rises slowly", "two hard batches",
        "very skewed noise", "hard batches by chance",
    ],
)  # fmt: skip
@EVERY
def test_no_jump(recording: Recording, loss: np.ndarray, every: int) -> None:
    write(recording, loss)
    for stop in range(20, 401, 5 * every):
        assert recording.diagnose(loss_spike.RULE, stop=stop).findings == ()


def test_a_loss_that_does_not_fall(recording: Recording) -> None:
    write(recording, 2.3 + NOISE.normal(0, 0.1, 1_300))
    assert recording.diagnose(loss_plateau.RULE, stop=1_000).findings == ()
    (found,) = recording.diagnose(loss_plateau.RULE).findings
    assert (found.severity, found.step) == ("info", 1_299)


@pytest.mark.parametrize(
    "loss",
    [falling(1_300) - 0.8, np.linspace(3, 2, 1_300), 2 + np.linspace(0, 1, 1_300), np.full(1_300, np.nan)],
    ids=["has learned", "falls", "rises", "NaN"],
)
def test_no_plateau(recording: Recording, loss: np.ndarray) -> None:
    write(recording, loss)
    diagnosis = recording.diagnose(loss_plateau.RULE)
    assert (diagnosis.findings, diagnosis.failed) == ((), {})


@pytest.mark.parametrize("rule", [loss_nonfinite.RULE, loss_plateau.RULE, loss_spike.RULE])
@pytest.mark.parametrize("steps", [0, 1, 5])
def test_short_runs_and_none_logged(recording: Recording, rule: Any, steps: int) -> None:
    recording.write([tensor("a")], steps, series={"val_loss": np.nan})
    diagnosis = recording.diagnose(rule)
    assert (diagnosis.findings, diagnosis.failed) == ((), {})


def test_a_bad_loss_is_that_of_the_first_rank_that_has_one(recording: Recording) -> None:
    """Its kind is read, and not the value of a rank whose loss is finite."""
    for rank in range(3):
        loss = np.ones(40)
        loss[30:] = (1.0, -np.inf, np.nan)[rank]
        recording.write([tensor("a")], 40, rank=rank, world_size=3, series={"loss": loss})
    with recording.run() as run:
        values = Evidence(run).series("loss", 28, 40)
    assert values[:2].tolist() == [1.0, 1.0] and np.isneginf(values[2:]).all()


@pytest.mark.parametrize("lasts", [4, 40])
def test_a_batch_that_is_trained_on_four_times_in_a_row_counts_once(recording: Recording, lasts: int) -> None:
    """As PPO does with each rollout: one that is harder is no jump, and what lasts is."""
    chance = np.random.default_rng(7)
    loss = np.repeat(0.32 + chance.normal(0, 0.05, 75), 4) + chance.normal(0, 0.01, 300)
    loss[200 : 200 + lasts] += 0.5
    write(recording, loss)
    found = recording.diagnose(loss_spike.RULE).findings
    assert [each.step for each in found] == ([] if lasts == 4 else [200])


def descent(steps: int = 240, noise: float = 0.04, at: int = 140, to: float = 1.6, lasts: int = 100) -> np.ndarray:
    """A loss that falls to 0.45 by `at`, and is at `to` for `lasts` steps from there on."""
    loss = np.maximum(1.65 - 1.2 * np.arange(steps) / 140, 0.45) + np.random.default_rng(6).normal(0, noise, steps)
    loss[at : at + lasts] = to + np.random.default_rng(7).normal(0, 0.01, min(lasts, steps - at))
    return loss


def test_a_jump_out_of_a_descent(recording: Recording) -> None:
    """To above all of the last 64 values, whose own fall is too large for a multiple of their scatter to show it."""
    write(recording, descent())
    (finding,) = recording.diagnose(loss_spike.RULE).findings
    assert (finding.step, finding.facts["back_step"]) == (140, None)
    assert "far above the 8 before" in finding.evidence[0] and 0.4 < finding.facts["before"] < 0.6


def test_a_jump_out_of_a_steep_descent_that_is_made_up_for(recording: Recording) -> None:
    """As of a table that is overwritten: a quarter of the 64 values before it were as high, in the descent."""
    each = np.arange(170)
    loss = np.where(each < 110, 0.3 + 1.7 * np.exp(-each / 48), 0.45 + 0.8 * np.exp(-(each - 110) / 25))
    write(recording, loss + np.random.default_rng(5).normal(0, 0.04, 170))
    (finding,) = recording.diagnose(loss_spike.RULE).findings
    assert finding.step == 110 and 0.4 < finding.facts["before"] < 0.55


@pytest.mark.parametrize(
    "loss",
    [descent(to=0.8), descent(to=1.6, lasts=4), descent(noise=0.25), descent(at=100, to=1.25)],
    ids=["less than double", "for a moment", "within the noise", "not above those of the last 64"],
)
def test_none_out_of_a_descent(recording: Recording, loss: np.ndarray) -> None:
    write(recording, loss)
    assert recording.diagnose(loss_spike.RULE).findings == ()


def descent_to(since: float = 2.0, noise: float = 0.15) -> np.ndarray:
    """A loss that falls from 2 to 0.3 in 100 steps, and is about `since` from then on."""
    each = np.arange(160)
    return np.where(each < 100, 2 * np.exp(-each / 50), since) * (1 + np.random.default_rng(3).normal(0, noise, 160))


@pytest.mark.parametrize(("size", "since"), [(5.0, 1.0), (1 / 255, 1.0), (1.2, 1.0), (5.0, 0.3)])
@pytest.mark.parametrize(
    ("series", "said"),
    [("input_rms", "What the model is given changed"), ("target_rms", "What the loss compares with changed")],
)
def test_a_loss_that_rises_with_the_size_of_what_is_given(
    recording: Recording, size: float, since: float, series: str, said: str
) -> None:
    """It is no higher than half of what it was at first, and some values are low: only the sizes show that it rose."""
    inputs = np.where(np.arange(160) < 100, 1.0, size) * (1 + np.random.default_rng(4).normal(0, 0.01, 160))
    loss = descent_to(since)
    loss[103] = 0.3
    recording.write([tensor("a")], 160, series={"loss": loss, series: inputs})
    found = recording.diagnose(loss_spike.RULE).findings
    assert [(each.step, each.severity) for each in found] == [(100, "warning")] * (size != 1.2 and since == 1.0)
    for each in found:
        assert each.facts["cause_class"] == "data" and said in " ".join(each.evidence)
        (at_once,) = recording.diagnose(loss_spike.RULE, stop=104).findings
        assert at_once.summary == each.summary and at_once.evidence[0] == each.evidence[0]


@pytest.mark.parametrize(("since", "is_told"), [(1.0, True), (0.27, False)])
def test_a_loss_that_rises_where_a_mask_is_lost(recording: Recording, since: float, is_told: bool) -> None:
    shares = np.where(np.arange(160) < 100, 0.27 + 0.02 * np.sin(np.arange(160)), since)
    recording.write([tensor("a")], 160, series={"loss": descent_to(0.7), "added_mask_share": shares})
    found = recording.diagnose(loss_spike.RULE).findings
    assert [(each.step, each.facts["cause_class"]) for each in found] == [(100, "mask")] * is_told


@pytest.mark.parametrize(("size", "severity"), [(2.1, "info"), (5.0, "warning")])
def test_noise_that_is_added_by_a_plan(recording: Recording, size: float, severity: str) -> None:
    """Inputs are twice as large, gradients are there and no larger than at first; none has lost its normalisation."""
    inputs = np.where(np.arange(160) < 100, 1.0, size) * (1 + np.random.default_rng(4).normal(0, 0.01, 160))
    amax = np.ones((2, 160))
    tensors = [tensor("a"), tensor("a.weight", "grad", 1)]
    recording.write(tensors, 160, {"amax": amax}, series={"loss": descent_to(1.0), "input_rms": inputs})
    (finding,) = recording.diagnose(loss_spike.RULE).findings
    assert (finding.step, finding.severity) == (100, severity)


def test_a_jump_out_of_a_descent_to_what_was_usual_48_steps_before(recording: Recording) -> None:
    recording.write([tensor("a")], 160, series={"loss": descent_to(0.9, 0.05)})
    (finding,) = recording.diagnose(loss_spike.RULE).findings
    assert (finding.step, finding.severity) == (100, "warning")


def test_an_explosion_begins_with_the_value_that_led_up_to_it(recording: Recording) -> None:
    """300 times as high, and 1e8 times in the step after: the loss is Inf before there are more."""
    loss = np.r_[0.3 + 0.05 * np.sin(np.arange(100)), 95.0, 2.7e7, np.full(20, np.inf)]
    recording.write([tensor("a")], 122, series={"loss": loss})
    (finding,) = recording.diagnose(loss_spike.RULE).findings
    assert (finding.step, finding.facts["back_step"]) == (100, None)


def test_a_first_value_half_as_high_does_not_hide_an_early_jump(recording: Recording) -> None:
    loss = np.r_[2.95, np.full(49, 2.0), np.full(8, 5.0), np.full(42, 2.5)] * (1 + 0.01 * np.sin(np.arange(100)))
    recording.write([tensor("a")], 100, series={"loss": loss})
    (finding,) = recording.diagnose(loss_spike.RULE).findings
    assert finding.step == 50


@pytest.mark.parametrize(("back", "severity"), [(108, "warning"), (150, "info")])
def test_a_few_batches_are_no_harder_data(recording: Recording, back: int, severity: str) -> None:
    """The loss is no higher than at first, and no gradient is larger; but it is low again at once."""
    each = np.arange(200)
    loss = 4 * np.exp(-each / 30) + 0.3 + np.where((each >= 100) & (each < back), 2.0, 0.0)
    tensors = [tensor("a"), tensor("a.weight", "grad", 1)]
    recording.write(tensors, 200, series={"loss": loss * (1 + 0.02 * np.sin(each))})
    (finding,) = recording.diagnose(loss_spike.RULE).findings
    assert (finding.step, finding.severity) == (100, severity)


@pytest.mark.parametrize("count", [1, 8])
def test_a_loss_that_rises_with_the_only_write_to_the_weights(recording: Recording, count: int) -> None:
    """As where an average is left in the model. Of many writes one with a rise is chance, or a batch."""
    written = np.zeros(160)
    written[100 - 8 * np.arange(count)] = 0.5
    recording.write([tensor("a")], 160, series={"loss": descent_to(0.5), "weights_written": written})
    found = recording.diagnose(loss_spike.RULE).findings
    assert [(each.step, each.facts["cause_class"]) for each in found] == [(100, "weight")] * (count == 1)


@pytest.mark.parametrize(("size", "severity"), [(1.3e-4, "warning"), (0.0045, "info"), (0.5, "info"), (0.0, "info")])
def test_a_classifier_whose_inputs_are_next_to_nothing(recording: Recording, size: float, severity: str) -> None:
    loss = np.log(4) + 0.01 * np.sin(np.arange(240))
    known = [events.event(events.LossFunction("nll", 4), 1, 0)]
    recording.write([tensor("a")], 240, series={"loss": loss, "input_rms": size}, events=known)
    (finding,) = recording.diagnose(loss_plateau.RULE).findings
    assert finding.severity == severity and ("divided by 255 twice" in finding.evidence[1]) == (severity == "warning")


@pytest.mark.parametrize(("first", "last", "count"), [(2.5, 2.48, 1), (2.5, 2.2, 0), (0.5, 0.4, 0)])
def test_a_classifier_that_still_guesses(recording: Recording, first: float, last: float, count: int) -> None:
    loss = np.linspace(first, last, 240) + 0.05 * np.sin(np.arange(240))
    known = [events.event(events.LossFunction("nll", 12), 1, 0)]
    recording.write([tensor("a")], 240, series={"loss": loss}, events=known)
    found = recording.diagnose(loss_plateau.RULE).findings
    assert [(each.severity, each.facts["cause_class"]) for each in found] == [("info", "data")] * count


@pytest.mark.parametrize(
    ("before", "since", "said"),
    [
        (0.75, 0.25, "What a mask leaves is turned around"), (0.75, 1.0, "nothing is masked any more"),
        (0.75, 0.0, "all is masked"), (0.97, 1.0, "nothing is masked any more"), (0.55, 0.5, ""),
        (1.0, 1.0, ""), (0.75, 0.72, ""),
    ],
)  # fmt: skip
@pytest.mark.parametrize("every", [1, 4])
def test_a_loss_that_jumps_with_the_share_that_a_mask_leaves(
    recording: Recording, before: float, since: float, said: str, every: int
) -> None:
    """`every`: on an accelerator each fourth step is read."""
    steps = np.arange(160)
    noise = np.where(before < 0.9, 0.03, 0.01) * np.sin(steps) * (before < 1)
    share = np.clip(np.where(steps < 100, before + noise, since + noise * (0 < since < 1)), 0, 1)
    loss = np.where(steps < 100, 1.0, 4.0) * (1 + 0.02 * np.sin(3 * steps))
    series = {"loss": loss, "attention_share": np.where(steps % every == 0, share, np.nan)}
    recording.write([tensor("a")], 160, series=series)
    (finding,) = recording.diagnose(loss_spike.RULE).findings
    text = " ".join(finding.evidence)
    assert (finding.facts.get("cause_class") == "mask") == bool(said)
    assert said in text and ("scaled_dot_product_attention" in finding.remedy[0].text) == bool(said)


@pytest.mark.parametrize(
    ("given", "expected"),
    [((100, 160, 1), True), ((100, 160, 4), True), ((100, 101, 1), False), ((20, 160, 40), False)],
    ids=["from there on", "read each fourth step", "with one batch", "with batches that need one"],
)
def test_a_loss_that_jumps_where_a_mask_is_given_for_the_first_time(
    recording: Recording, given: tuple[int, int, int], expected: bool
) -> None:
    at, share = np.arange(160), np.full(160, np.nan)
    share[slice(*given)] = 1.0
    loss = np.where(at < 100, 1.0, 4.0) * (1 + 0.02 * np.sin(3 * at))
    recording.write([tensor("a")], 160, series={"loss": loss, "mask_share": share})
    (finding,) = recording.diagnose(loss_spike.RULE).findings
    assert (finding.facts["cause_class"] == "mask") == expected
    assert ("was given none in the 100 steps before" in " ".join(finding.evidence)) == expected


@pytest.mark.parametrize(("op", "severity"), [("nll", "info"), ("mse", "warning")])
def test_a_cross_entropy_of_longer_rows_has_no_bound(recording: Recording, op: str, severity: str) -> None:
    at = np.arange(160)
    loss = np.where(at < 100, 1.1 * np.exp(-at / 30), 5.0) * (1 + 0.02 * np.sin(3 * at))
    series = {"loss": loss, "input_elements": np.where(at < 100, 192.0, 384.0)}
    known = [events.event(events.LossFunction(op, 3 if op == "nll" else 0), 1, 0)]
    recording.write([tensor("a")], 160, series=series, events=known)
    (finding,) = recording.diagnose(loss_spike.RULE).findings
    assert (finding.step, finding.severity) == (100, severity)


@pytest.mark.parametrize("rate", [1e-2, None], ids=["of a rate as ever", "no rate is known"])
def test_a_loss_that_climbs_is_of_no_batch(recording: Recording, rate: float | None) -> None:
    """As where the limit of a clip has fallen below 0: it leaves what it had come to by and by."""
    each = np.arange(260)
    loss = np.where(each < 140, 0.02 + 1.5 * np.exp(-each / 20), 0.02 * np.exp((each - 140) / 12))
    recording.write(
        [tensor("a"), tensor("a.weight", "grad", 1)], 260,
        series={"loss": loss * (1 + 0.1 * np.sin(7 * each))} | ({} if rate is None else {"lr": rate}),
    )  # fmt: skip
    (finding,) = recording.diagnose(loss_spike.RULE).findings
    assert (finding.severity, finding.facts["cause_class"]) == ("warning", "optimizer")
    assert "climbs steadily since step 14" in " ".join(finding.evidence) and "maximize" in finding.remedy[0].text


def test_a_loss_that_climbs_to_what_it_began_with_is_harder_data(recording: Recording) -> None:
    each = np.arange(260)
    loss = np.where(each < 140, 0.02 + 1.5 * np.exp(-each / 20), 0.02 * np.exp((each - 140) / 40))
    recording.write([tensor("a"), tensor("a.weight", "grad", 1)], 260, series={"loss": loss})
    assert [each.severity for each in recording.diagnose(loss_spike.RULE).findings] in ([], ["info"])
