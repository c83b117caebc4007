"""A loss scale that stands still, only falls, or grows too often."""

from __future__ import annotations

import numpy as np
import pytest

from rangewatch.wire.records import Event
from rangewatch_server.rules.loss_scale.never_grows import RULE
from tests.server.rules.conftest import Recording
from tests.server.rules.loss_scales import GRAD_A, GRAD_B, LAYERS, bad, reported, scaled

AMAX = 16.0


def write(recording: Recording, series: dict[str, np.ndarray], *, amax: float = AMAX, **given: object) -> None:
    steps = len(series["skipped_step"])
    columns = {"inf_count": bad(series, GRAD_B, GRAD_A), "amax": amax}
    recording.write(LAYERS, steps, columns, series=series, loss_scaled=True, **given)  # type: ignore[arg-type]


def test_it_stands_still_though_there_is_room(recording: Recording) -> None:
    write(recording, scaled(6_200, (), first=64.0, interval=10**9))
    (found,) = recording.diagnose(RULE).findings
    assert (found.severity, found.step, found.subject) == ("info", 0, "loss_scale standing")
    assert "has been 64 for 6200 steps without an overflow and has not grown" in found.summary
    assert any("has 12.0 bits of headroom" in each for each in found.evidence)


def test_it_grew_before_and_does_so_no_more(recording: Recording) -> None:
    series = scaled(400, (), interval=40)
    series["loss_scale"][200:] = 2.0**16
    write(recording, series)
    (found,) = recording.diagnose(RULE).findings
    assert (found.step, found.facts["growth_interval"]) == (200, 40)


def test_gradients_that_underflow_make_it_a_warning(recording: Recording) -> None:
    series = scaled(400, (), interval=40)
    series["loss_scale"][200:] = 8.0
    small = {"full_numel": 32.0, "subnormal_count": 32.0, "sum_sq": 1e-12, "amax": AMAX}
    recording.write(LAYERS, 400, small, series=series, loss_scaled=True)
    (found,) = recording.diagnose(RULE).findings
    assert found.severity == "warning"
    assert "2 gradients underflow." in found.evidence


def test_it_only_falls(recording: Recording) -> None:
    series = scaled(400, range(145, 400, 30), first=2.0**18, interval=40)
    write(recording, series)
    (found,) = recording.diagnose(RULE).findings
    assert (found.subject, found.step, found.rank, found.tensor) == ("loss_scale falling", 145, 0, "b")
    assert found.facts == {"falls": 9, "scale_before": 2.0**21, "scale_after": 2.0**12}


def test_it_is_driven_up_at_every_few_steps(recording: Recording) -> None:
    write(recording, scaled(400, lambda scale: scale > 2.0**16, interval=2))
    (found,) = recording.diagnose(RULE).findings
    assert found.subject == "loss_scale driven"
    assert "133 of 400 steps are skipped, as the loss scale doubles after every 2 steps" in found.summary
    assert "growth_interval=2000" in found.remedy[0].code


def test_by_a_large_factor_it_grows_less_often_than_it_falls(recording: Recording) -> None:
    series = scaled(200, lambda scale: scale > 2.0**16, interval=1, growth=8.0)
    write(recording, series, events=[reported(1, growth_factor=8.0)])
    (found,) = recording.diagnose(RULE).findings
    assert found.subject == "loss_scale driven" and "is multiplied by 8 after every 1 steps" in found.summary


def test_since_when_it_is_driven_stays(recording: Recording) -> None:
    """However many changes and steps are looked at."""
    write(recording, scaled(700, lambda scale: scale > 2.0**16, interval=2))
    for stop in (200, 400, 700):
        (found,) = recording.diagnose(RULE, stop=stop).findings
        assert found.step == 0


@pytest.mark.parametrize("interval", [20, 40, 200])
def test_a_skip_each_time_it_grows_is_healthy(recording: Recording, interval: int) -> None:
    write(recording, scaled(1_000, lambda scale: scale > 2.0**15, interval=interval))
    for stop in (30, 300, 1_000):
        assert recording.diagnose(RULE, stop=stop).findings == ()


def test_so_are_the_first_steps_with_the_usual_interval(recording: Recording) -> None:
    write(recording, scaled(1_900, (0, 1, 30, 200, 700, 1_500)))
    assert recording.diagnose(RULE).findings == ()


def test_so_is_one_that_grows_after_the_usual_interval(recording: Recording) -> None:
    write(recording, scaled(7_000, (0, 1, 4_500)))
    assert recording.diagnose(RULE).findings == ()


@pytest.mark.parametrize("amax", [4_000.0, 60_000.0])
def test_without_room_it_need_not_grow(recording: Recording, amax: float) -> None:
    write(recording, scaled(6_200, (), first=64.0, interval=10**9), amax=amax)
    assert recording.diagnose(RULE).findings == ()


def test_a_restart_begins_anew(recording: Recording) -> None:
    series = scaled(7_000, ())
    series["loss_scale"][:] = 2.0**16
    for number, first in enumerate(range(0, 7_000, 1_000)):
        part = {name: values[first : first + 1_000] for name, values in series.items()}
        write(recording, part, first=first, incarnation=chr(ord("a") + number))
    assert recording.diagnose(RULE).findings == ()


class TestSettings:
    """The growth_interval that the agent read counts, and not the usual one."""

    STANDS = scaled(400, (), first=64.0, interval=10**9)

    def test_it_stands_still_for_longer_than_its_own_interval(self, recording: Recording) -> None:
        write(recording, self.STANDS, events=[reported(40)])
        (found,) = recording.diagnose(RULE).findings
        assert found.evidence[0] == "Its growth_interval is 40 clean steps; 400 steps have passed."
        assert "So update() is given a value, or something else sets the scale back." in found.evidence

    def test_it_has_not_had_the_time(self, recording: Recording) -> None:
        write(recording, scaled(6_200, (), first=64.0, interval=10**9), events=[reported(5_000)])
        assert recording.diagnose(RULE).findings == ()

    def test_one_that_is_for_ever_is_judged_by_the_usual_one(self, recording: Recording) -> None:
        write(recording, scaled(6_200, (), first=64.0, interval=10**9), events=[reported(10**9)])
        (found,) = recording.diagnose(RULE).findings
        assert found.evidence[0] == "Its growth_interval is 1000000000 clean steps; 6200 steps have passed."
        assert "So few clean steps are not enough for it to grow." in found.evidence

    def test_a_factor_that_is_no_growth(self, recording: Recording) -> None:
        write(recording, self.STANDS, events=[reported(40, growth_factor=1.0)])
        (found,) = recording.diagnose(RULE).findings
        assert "Its growth_factor is 1: it never grows." in found.evidence

    @pytest.mark.parametrize(
        "event",
        [
            reported(40, series="loss_scale/1"), Event("scaler", 1, 0, "", {"series": 3, "growth_interval": "x"}),
            Event("scaler", 1, 0, "", {"series": "loss_scale", "growth_interval": -1.0}),
            Event("scaler", 1, 0, "", {"series": "loss_scale", "class": "DynamicLossScaler"}),
        ],
        ids=["another scaler's", "unreadable", "impossible", "not known"],
    )  # fmt: skip
    def test_unknown_stays_unknown(self, recording: Recording, event: Event) -> None:
        write(recording, self.STANDS, events=[event])
        report = recording.diagnose(RULE)
        assert (report.findings, report.failed) == ((), {})

    def test_nor_is_it_another_process_s(self, recording: Recording) -> None:
        write(recording, self.STANDS, events=[reported(40)])
        write(recording, self.STANDS, first=400, incarnation="b")
        assert recording.diagnose(RULE).findings == ()

    def test_of_several_scalers_each_has_its_own(self, recording: Recording) -> None:
        write(recording, self.STANDS, events=[reported(40), reported(5_000, series="loss_scale/1")])
        assert len(recording.diagnose(RULE).findings) == 1

    def test_the_newest_counts_and_that_of_the_last_process(self, recording: Recording) -> None:
        write(recording, self.STANDS, events=[reported(40), reported(5_000, step=200)])
        assert recording.diagnose(RULE).findings == ()
        again = {name: values[:200] for name, values in self.STANDS.items()}
        write(recording, again, first=400, incarnation="b", events=[reported(40, step=400)])
        (found,) = recording.diagnose(RULE).findings
        assert found.step == 400


def test_no_scaler_no_finding(recording: Recording) -> None:
    recording.write(LAYERS, 300)
    report = recording.diagnose(RULE)
    assert (report.findings, report.failed) == ((), {})
