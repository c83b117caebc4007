"""How NaN or Inf went on from where it was first, whether it went again, and what is no alarm."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from rangewatch import statistics, wire
from rangewatch.wire.records import Batch, Catalogue, Samples
from rangewatch_server.rules.nonfinite.first_nonfinite import RULE
from rangewatch_server.rules.phrases import in_float32
from rangewatch_server.rules.trend import growing
from tests.server.rules.conftest import Recording, tensor
from tests.server.rules.test_first_nonfinite import bad_at
from tests.server.rules.test_first_nonfinite_origin import ACT, BAD, MODEL, STEPS, UP, found, seen

ALL = range(len(MODEL))


def from_step(step: int, steps: int = STEPS) -> np.ndarray:
    """(tensors, steps) counts: all bad from a step on."""
    counts = np.zeros((len(MODEL), steps))
    counts[:, step:] = 1
    return counts


class TestPath:
    def test_within_the_rank(self, recording: Recording) -> None:
        finding = found(recording, UP, series={"loss": np.where(np.arange(STEPS) >= BAD, np.inf, 1.0)})
        assert finding.path == (
            "In the same forward it reached act, down.",
            f"The loss of step {BAD} was Inf.",
            "In the backward it reached the gradients of the outputs of down, act.",
            "2 of 2 recorded parameter gradients held it: down.weight, up.weight.",
            f"At step {BAD + 1} rank 0 held NaN or Inf, first the output of up.",
            f"It lasts: step {STEPS - 1}, the last that was reported, held NaN or Inf.",
        )
        assert finding.severity == "critical"

    def test_to_the_other_ranks(self, recording: Recording) -> None:
        for rank in range(3):
            counts = from_step(BAD + (rank != 1))
            recording.write(MODEL, STEPS, {"nan_count": counts}, rank=rank, world_size=3)
        (finding,) = recording.diagnose(RULE).findings
        assert (finding.rank, finding.step) == (1, BAD)
        assert f"What ranks 0 and 2 recorded at step {BAD} was finite." in finding.path
        assert any(
            each.startswith(f"Ranks 0 and 2 had it at step {BAD + 1}: through what ranks") for each in finding.path
        )
        assert f"At step {BAD + 1} all ranks held NaN or Inf, first the output of up on rank 0." in finding.path

    def test_by_the_bucket_that_carried_it(self, stored: Recording) -> None:
        for rank in range(2):
            stored.write(MODEL, STEPS, {"nan_count": from_step(BAD + rank)}, rank=rank, world_size=2)
        about = {"buckets": {"0": ["down.weight"], "3": ["up.weight", "other"]}}
        samples = Samples("collective", "", np.array([5]), {"step": np.array([0.0])}, about)
        known = wire.catalogue_digest(Catalogue(statistics.ALL, tuple(MODEL)))
        stored.send(Batch("run", 0, "a", 1, known, samples=(samples,)))
        (finding,) = stored.diagnose(RULE).findings
        carried = "Rank 1 got it through the all_reduce of buckets 0 (down.weight), 3 (up.weight) and the update of the"
        assert any(each.startswith(carried) for each in finding.path)

    def test_a_skipped_step_goes_no_further(self, recording: Recording) -> None:
        skipped = bad_at(STEPS, (0, BAD), of=1)[0]
        counts = bad_at(STEPS, *((each, BAD) for each in ALL), of=len(MODEL))
        recording.write(MODEL, STEPS, {"inf_count": counts}, series={"skipped_step": skipped}, loss_scaled=True)
        (finding,) = recording.diagnose(RULE).findings
        assert f"The loss scaler skipped step {BAD}: no weight was changed." in finding.path
        recovered = f"It recovered at step {BAD + 1}: nothing since then has held NaN or Inf that was not skipped."
        assert finding.path[-1] == recovered
        assert (finding.severity, finding.facts["recovered_step"]) == ("warning", BAD + 1)

    def test_what_is_read_now_and_then_has_not_recovered_before_it_is_read(self, recording: Recording) -> None:
        model = [*MODEL, tensor("up.weight", "exp_avg_sq", len(MODEL))]
        calls = np.ones((len(model), STEPS))
        calls[-1] = np.arange(STEPS) == BAD
        recording.write(
            model, STEPS, {"inf_count": bad_at(STEPS, (len(MODEL), BAD), of=len(model)), "call_count": calls}
        )
        (finding,) = recording.diagnose(RULE).findings
        assert "Whether it recovered is not known: the second moment (exp_avg_sq) of up.weight" in finding.path[-1]


class TestSpells:
    def test_one_that_stays_counts_more_than_one_that_went(self, recording: Recording) -> None:
        counts = from_step(BAD)
        counts[:, 10:12] = 1
        recording.write(MODEL, STEPS, {"nan_count": counts})
        (finding,) = recording.diagnose(RULE).findings
        assert (finding.step, finding.severity) == (BAD, "critical")
        assert "It was not the first time: step 10 held NaN or Inf too, and step 12 no more." in finding.evidence
        assert "the output of up is the first to hold NaN since step 12" in finding.summary

    def test_a_few_clean_steps_between_do_not_move_its_beginning(self, recording: Recording) -> None:
        """As in fp16 whose overflow some batches escape, while the scaler skips each of the others."""
        counts = from_step(15)
        counts[:, [19, 20, 30]] = 0
        skipped = np.arange(STEPS) >= 15
        recording.write(MODEL, STEPS, {"nan_count": counts}, series={"skipped_step": skipped}, loss_scaled=True)
        (finding,) = recording.diagnose(RULE).findings
        assert (finding.step, finding.severity) == (15, "critical")
        lasts = f"It lasts: step {STEPS - 1}, the last that was reported, held NaN or Inf; 3 steps between were clean."
        assert finding.path[-1] == lasts
        assert "since step" not in finding.summary and not any("first time" in each for each in finding.evidence)

    @pytest.mark.parametrize("steps", [1, 2, 700])
    def test_bad_from_the_first_step_to_the_last(self, recording: Recording, steps: int) -> None:
        recording.write(MODEL, steps, {"nan_count": 1.0})
        (finding,) = recording.diagnose(RULE).findings
        assert (finding.step, finding.severity, finding.tensor) == (0, "critical", "up")

    def test_skipped_gradients_afterwards_are_clean_steps(self, recording: Recording) -> None:
        counts = bad_at(STEPS, (UP, BAD), (3, BAD + 5), of=len(MODEL))
        skipped = bad_at(STEPS, (0, BAD), (0, BAD + 5), of=1)[0]
        recording.write(MODEL, STEPS, {"inf_count": counts}, series={"skipped_step": skipped}, loss_scaled=True)
        (finding,) = recording.diagnose(RULE).findings
        assert (finding.step, finding.severity) == (BAD, "warning")

    def test_it_lasts_though_each_step_is_skipped(self, recording: Recording) -> None:
        skipped = np.arange(STEPS) >= BAD
        counts = from_step(BAD)
        counts[3:] = 0  # outputs alone
        recording.write(MODEL, STEPS, {"nan_count": counts}, series={"skipped_step": skipped}, loss_scaled=True)
        (finding,) = recording.diagnose(RULE).findings
        assert (finding.step, finding.severity) == (BAD, "critical")

    def test_one_that_comes_back(self, recording: Recording) -> None:
        recording.write(MODEL, STEPS, {"nan_count": bad_at(STEPS, (UP, 10), (UP, 20), of=len(MODEL))})
        (finding,) = recording.diagnose(RULE).findings
        assert (finding.step, finding.severity) == (10, "warning")
        assert finding.path[-1] == "It was clean again at step 11; NaN or Inf came back at step 20."

    def test_a_rank_that_died_of_it_has_not_recovered(self, recording: Recording) -> None:
        counts = np.zeros((len(MODEL), BAD + 1))
        counts[:, BAD] = 1
        recording.write(MODEL, BAD + 1, {"nan_count": counts})
        (finding,) = recording.diagnose(RULE).findings
        assert finding.severity == "critical"


LATER = BAD - 6  # too late to be by design


class TestInfThatIsMeant:
    def test_is_a_warning_with_the_option(self, recording: Recording) -> None:
        counts = np.zeros((len(MODEL), STEPS))
        counts[ACT, LATER:] = 1
        recording.write(MODEL, STEPS, {"inf_count": counts}, series={"loss": np.ones(STEPS)})
        (finding,) = recording.diagnose(RULE).findings
        assert (finding.tensor, finding.severity, finding.subject) == ("act", "warning", "contained")
        assert finding.remedy[0].code == "rangewatch.attach(model, optimizer, allow_inf=['act'])"

    def test_hides_no_nan_that_comes_later(self, recording: Recording) -> None:
        infinities = np.zeros((len(MODEL), STEPS))
        infinities[ACT, LATER:] = 1
        nans = from_step(BAD)
        nans[:2] = 0
        recording.write(MODEL, STEPS, {"inf_count": infinities, "nan_count": nans})
        later, meant = recording.diagnose(RULE).findings
        assert (later.tensor, later.step, later.severity) == ("down", BAD, "critical")
        assert (meant.tensor, meant.severity) == ("act", "warning")

    def test_is_none_where_gradients_take_it_over(self, recording: Recording) -> None:
        recording.write(MODEL, STEPS, {"inf_count": from_step(BAD)})
        (finding,) = recording.diagnose(RULE).findings
        assert finding.severity == "critical"


def test_the_same_again(recording: Recording) -> None:
    recording.write(MODEL, STEPS, {"nan_count": from_step(BAD)}, events=[seen(MODEL[UP])])
    assert recording.diagnose(RULE) == recording.diagnose(RULE)


@pytest.mark.parametrize("is_autocast", [True, False])
def test_the_code_for_float32_does_what_it_says(is_autocast: bool) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Identity())
    model[0].weight.data.fill_(6e4)
    x = torch.ones(1, 2)
    if not is_autocast:
        model, x = model.half(), x.half()
    with torch.autocast("cpu", torch.float16, enabled=is_autocast):
        assert model(x).isinf().all()
        exec(in_float32("0"), {"model": model, "torch": torch})
        output = model(x)
    assert output.dtype == torch.float32 and output.isfinite().all()


class TestGrowth:
    STEPS = np.arange(40)

    def test_from_a_level_on(self) -> None:
        bits = 3.0 + 0.4 * (self.STEPS - 30).clip(min=0)
        grown = growing(self.STEPS, bits)
        assert grown is not None and (round(grown.bits_a_step, 3), grown.steps) == (0.4, 9)

    def test_noise_has_none(self) -> None:
        for seed in range(20):
            bits = np.random.default_rng(seed).normal(5.0, 0.3, 40)
            grown = growing(self.STEPS, bits)
            assert grown is None or grown.bits < 2.0, seed

    def test_gaps_and_too_few(self) -> None:
        bits = np.where(self.STEPS % 3 == 0, np.nan, 0.5 * self.STEPS)
        grown = growing(self.STEPS, bits)
        assert grown is not None and round(grown.bits_a_step, 3) == 0.5
        assert growing(self.STEPS[:3], bits[:3]) is None
        assert growing(self.STEPS, np.full(40, np.nan)) is None
