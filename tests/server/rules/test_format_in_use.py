"""What is left of tensors in the formats they are rounded to."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rangewatch.wire.events import FormatOf, FormatsInUse, ScaledOperand, ScaledOperands, event
from rangewatch_server.core import deadline
from rangewatch_server.rules.precision.format_in_use import RULE
from tests.server.rules.conftest import Recording, tensor

STEPS, ELEMENTS = 40, 1_000.0
WELL = {
    "count": ELEMENTS, "sum_sq": ELEMENTS, "spread_sq": ELEMENTS, "flushed_count": 0.0, "saturated_count": 0.0,
    "error_sq": 1e-3 * ELEMENTS, "relative_error": 0.0225 * ELEMENTS, "finer_error_sq": 0.0, "finer_lost_count": 0.0,
}  # fmt: skip
MODEL = [tensor("up", "input", 0), tensor("norm.weight", "weight", 1), tensor("up", "grad_output", 2)]


ALL = (
    FormatOf("input", "", "e4m3_tensor"), FormatOf("weight", "*norm*", "mxfp8_e4m3"),
    FormatOf("grad_output", "", "mxfp8_e5m2"),
)  # fmt: skip


COARSE = {"error_sq": 4.0, "finer_error_sq": 1.0}
E5M2, E4M3 = (FormatOf("grad_output", "", f"mxfp8_{each}") for each in ("e5m2", "e4m3"))


def write(
    recording: Recording,
    lost: dict[int, dict[str, float]],
    formats: Any = ALL,
    since: int = 20,
    *,
    model: Any = MODEL,
    steps: int = STEPS,
    **place: Any,
) -> None:
    """Each tensor is read at every tenth step; what of it is `lost` since that step."""
    columns = {f"in_use_{name}": np.zeros((len(model), steps)) for name in WELL}
    for name, value in WELL.items():
        columns[f"in_use_{name}"][:, :STEPS:10] = value
        for at, changed in lost.items():
            columns[f"in_use_{name}"][at, since:STEPS:10] = changed.get(name, value)
    events = [event(FormatsInUse(tuple(formats)), 1_000, place.get("first", 0))] if formats else []
    events += place.pop("later", [])
    recording.write(model, steps, columns, events=events, **place)


def test_what_is_well_is_quiet(recording: Recording) -> None:
    write(recording, {})
    assert recording.diagnose(RULE).findings == ()


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"flushed_count": 300.0}, "30% of it become zero"),
        ({"error_sq": 100.0}, "10.0 dB of signal"),
        ({"relative_error": 200.0}, "off by 20% on average"),
    ],
)
def test_an_input_that_is_lost(changed: dict[str, float], text: str, recording: Recording) -> None:
    write(recording, {0: changed})
    assert recording.diagnose(RULE, stop=20).findings == ()
    (found,) = recording.diagnose(RULE, stop=21).findings
    assert (found.severity, found.tensor, found.kind, found.step, found.subject) == (
        "warning",
        "up",
        "input",
        20,
        "lost",
    )
    assert text in found.summary


@pytest.mark.parametrize(("name", "count"), [("e4m3_delayed", 1), ("mxfp8_e4m3", 0)])
def test_only_a_stale_scale_saturates_what_matters(name: str, count: int, recording: Recording) -> None:
    write(recording, {0: {"saturated_count": 50.0}}, (FormatOf("input", "", name),))
    found = recording.diagnose(RULE).findings
    assert len(found) == count and all("5% of it saturate" in each.summary for each in found)


def test_what_is_small_beside_its_neighbours_may_become_zero(recording: Recording) -> None:
    write(recording, {0: {"flushed_count": 300.0, "relative_error": 300.0}}, (FormatOf("input", "", "mxfp6_e2m3"),))
    assert recording.diagnose(RULE).findings == ()


def test_gradients_with_one_bit_of_mantissa_are_too_noisy(recording: Recording) -> None:
    formats = FormatOf("input", "", "mxfp4"), FormatOf("grad_output", "", "mxfp4")
    write(recording, {0: {"error_sq": 15.0}, 2: {"error_sq": 15.0}}, formats)
    (found,) = recording.diagnose(RULE).findings
    assert (found.kind, found.subject) == ("grad_output", "lost") and "18.2 dB" in found.summary


def test_a_norm_whose_weights_become_one_number(recording: Recording) -> None:
    alike = {"spread_sq": 0.1, "error_sq": 6.0, "saturated_count": ELEMENTS}
    write(recording, {1: alike})
    (found,) = recording.diagnose(RULE).findings
    assert (found.tensor, found.kind, found.subject) == ("norm.weight", "weight", "alike")
    assert "100% of them are beyond" in found.evidence[0]


def test_weights_that_differ_by_next_to_nothing_may_become_one_number(recording: Recording) -> None:
    write(recording, {1: {"spread_sq": 1e-3, "error_sq": 1e-3}})
    assert recording.diagnose(RULE).findings == ()


@pytest.mark.parametrize(("lost", "count"), [(0.0, 1), (100.0, 0)], ids=["range enough", "range is needed"])
def test_a_bit_that_is_spent_on_range(lost: float, count: int, recording: Recording) -> None:
    write(recording, {2: {"error_sq": 4.0, "finer_error_sq": 1.0, "finer_lost_count": lost}})
    found = recording.diagnose(RULE).findings
    assert len(found) == count
    assert all(each.subject == "coarse" and "6.0 dB" in each.summary for each in found)


def test_nothing_is_said_of_formats_that_are_not_known(recording: Recording) -> None:
    write(recording, {0: {"flushed_count": 900.0}}, ())
    assert recording.diagnose(RULE).findings == ()


def test_few_elements_say_nothing(recording: Recording) -> None:
    write(recording, {0: {"count": 20.0, "flushed_count": 20.0}})
    assert recording.diagnose(RULE, stop=22).findings == ()


@pytest.mark.parametrize("formats", [(E4M3,), ()], ids=["another format", "none"])
def test_a_reading_is_of_the_format_that_its_own_process_said(formats: Any, recording: Recording) -> None:
    write(recording, {2: COARSE}, (E5M2,))
    assert [each.subject for each in recording.diagnose(RULE).findings] == ["coarse"]
    write(recording, {2: {"count": 0.0}}, formats, since=0, first=STEPS, incarnation="b")
    assert recording.diagnose(RULE).findings == ()
    (found,) = recording.diagnose(RULE, stop=STEPS).findings
    assert found.step == 30, "as it was before the restart"


def test_readings_since_a_restart_count(recording: Recording) -> None:
    write(recording, {}, (E4M3,))
    write(recording, {2: COARSE}, (E5M2,), first=STEPS, incarnation="b")
    (found,) = recording.diagnose(RULE).findings
    assert (found.subject, found.step) == ("coarse", STEPS + 30)
    assert recording.diagnose(RULE, stop=STEPS).findings == ()


def test_a_process_that_has_no_step_yet_says_nothing_of_those_before(recording: Recording) -> None:
    write(recording, {2: COARSE}, (E4M3,))
    recording.write(MODEL, 0, incarnation="b", events=[event(FormatsInUse((E5M2,)), 1_000, 0)])
    assert recording.diagnose(RULE).findings == ()


@pytest.mark.parametrize("other", ["mxfp8_e4m3", "one that is not known"])
def test_of_what_ranks_disagree_on_nothing_is_said(other: str, recording: Recording) -> None:
    lost = {0: {"flushed_count": 300.0}, 2: COARSE}
    write(recording, lost, ALL, world_size=2)
    write(recording, lost, (*ALL[:2], FormatOf("grad_output", "", other)), rank=1, world_size=2)
    (found,) = recording.diagnose(RULE).findings
    assert (found.kind, found.subject) == ("input", "lost")


def test_a_rank_that_was_left_behind_disagrees_with_nobody(recording: Recording) -> None:
    for rank in range(2):
        write(recording, {}, (E4M3,), rank=rank, world_size=2)
    for part in range(3):
        write(recording, {2: COARSE}, (E5M2,), first=STEPS * (part + 1), incarnation=f"b{part}", world_size=2)
    (found,) = recording.diagnose(RULE).findings
    assert found.subject == "coarse"


def test_a_rank_that_joins_takes_nothing_from_what_was_read(recording: Recording) -> None:
    write(recording, {2: COARSE}, (E5M2,))
    write(recording, {2: {"count": 0.0}}, (E5M2,), rank=1, first=STEPS - 5, since=0)
    recording.write(MODEL, 5, rank=2, first=STEPS - 5)
    (found,) = recording.diagnose(RULE, stop=STEPS).findings
    assert (found.subject, found.step) == ("coarse", 30)


def test_formats_that_a_process_says_anew_are_not_of_what_it_read_before(recording: Recording) -> None:
    write(recording, {2: COARSE}, (E4M3,), later=[event(FormatsInUse((E5M2,)), 1_000, 35)])
    assert recording.diagnose(RULE).findings == ()


def test_without_a_finer_format_none_is_advised(recording: Recording) -> None:
    write(recording, {2: COARSE}, (E4M3,))
    assert recording.diagnose(RULE).findings == ()


@pytest.mark.parametrize(
    "changed",
    [
        {"sum_sq": 1e-300, "error_sq": 1e300, "finer_error_sq": 1.0},
        {"sum_sq": np.inf, "error_sq": np.inf, "spread_sq": np.inf, "finer_error_sq": 1.0},
        {"sum_sq": 1e308, "error_sq": 1e-320},
        {"error_sq": 1e300, "finer_error_sq": 1e-300, "sum_sq": np.inf},
        {"relative_error": np.inf},
    ],
)
def test_sums_that_have_no_quotient_say_nothing(changed: dict[str, float], recording: Recording) -> None:
    write(recording, dict.fromkeys(range(3), changed))
    assert recording.diagnose(RULE).findings == ()


@pytest.mark.parametrize(("first", "count"), [("e4m3_tensor", 1), ("mxfp8_e4m3", 0)])
def test_the_first_pattern_that_matches_stands(first: str, count: int, recording: Recording) -> None:
    formats = [FormatOf("weight", "", "mxfp4"), FormatOf("input", "d*", "mxfp4"), FormatOf("input", "[t-v]?", first)]
    write(recording, {0: {"flushed_count": 300.0}}, (*formats, FormatOf("input", "*", "e4m3_tensor")))
    assert len(recording.diagnose(RULE).findings) == count


def test_matching_names_ends_with_the_time_of_a_request(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    model = [tensor("a" * 100 + str(at), "grad_output", at) for at in range(300)]
    formats = tuple(FormatOf("grad_output", "*a" * 30 + f"b{at}", "mxfp8_e5m2") for at in range(20))
    recording.write(model, 2, {"in_use_count": 50.0}, events=[event(FormatsInUse(formats), 1, 0)])
    looks: list[None] = []
    monkeypatch.setattr(deadline, "check", lambda: looks.append(None))
    assert recording.diagnose(RULE).findings == ()
    assert len(looks) > len(model)


@pytest.mark.parametrize("part", ["kind", "pattern", "format"])
def test_formats_of_more_than_a_name_s_length_are_not_read(part: str, recording: Recording) -> None:
    long = FormatOf(**{"kind": "input", "pattern": "", "format": "mxfp4"} | {part: "u" * 2_000})
    write(recording, {0: {"flushed_count": 300.0}}, (long, FormatOf("input", "", "e4m3_tensor")))
    assert recording.diagnose(RULE).findings == (), "what comes behind it is not the first"


CAST = [
    tensor("up", "scaled_input", 0),
    tensor("norm.weight", "scaled_weight", 1),
    tensor("up", "scaled_grad_output", 2),
]


def cast(format: str = "E4M3", **more: Any) -> Any:
    """The event of a process that casts all of `CAST` so."""
    given = {"granularity": "tensor"} | more
    operands = tuple(ScaledOperand(each.fqn, each.kind, 0, format, **given) for each in CAST)
    return event(ScaledOperands(operands), 1_000, 0)


def test_a_format_that_was_seen_needs_no_declaration(recording: Recording) -> None:
    lost = {0: {"flushed_count": 300.0}, 2: {"flushed_count": 300.0, "relative_error": 60.0}}
    write(recording, lost, (), model=CAST, later=[cast()])
    (found,) = recording.diagnose(RULE).findings
    assert (found.tensor, found.kind, found.facts["format"]) == ("up", "scaled_input", "e4m3_tensor")
    assert found.facts["tensors"] == 2


@pytest.mark.parametrize(
    "more",
    [
        {"granularity": "block 1x32", "scale_format": "e8m0"},  # by blocks, small ones may become zero
        {"granularity": "block 128x128"},  # none of the formats that are read
        {"unknown": "scales: not read"},
    ],
)
def test_a_cast_by_blocks_or_of_no_known_format_is_quiet(more: dict[str, Any], recording: Recording) -> None:
    write(recording, {0: {"flushed_count": 300.0}}, (), model=CAST, later=[cast(**more)])
    assert recording.diagnose(RULE).findings == ()


def test_what_is_declared_of_it_wins_over_what_was_seen(recording: Recording) -> None:
    declared = FormatOf("input", "", "mxfp8_e4m3"), FormatOf("grad_output", "", "e5m2_tensor")
    write(recording, {0: {"flushed_count": 300.0}, 2: {"flushed_count": 300.0}}, declared, model=CAST, later=[cast()])
    (found,) = recording.diagnose(RULE).findings
    assert (found.kind, found.facts["format"]) == ("scaled_grad_output", "e5m2_tensor")


def test_a_tensor_that_is_read_itself_is_named_once(recording: Recording) -> None:
    both = [MODEL[0], CAST[0]]
    declared = (FormatOf("input", "", "e4m3_tensor"),)
    lost = {0: {"flushed_count": 300.0}, 1: {"flushed_count": 300.0}}
    write(recording, lost, declared, model=both, later=[cast()])
    (found,) = recording.diagnose(RULE).findings
    assert (found.kind, found.facts["tensors"]) == ("input", 1)


def test_an_operand_that_is_read_seldom_is_not_forgotten(recording: Recording) -> None:
    """Formats that are seen are read in few steps: the newest reading stands for a thousand, where operands are few."""
    write(recording, {0: {"flushed_count": 300.0}}, (), model=CAST, steps=900, later=[cast()])
    (found,) = recording.diagnose(RULE).findings
    assert (found.tensor, found.step) == ("up", 30)
