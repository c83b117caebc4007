"""Out of memory: asked for, free, in pieces, others', and what grew since when."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rangewatch.wire.events import Failed, LiveBlocks, details_of
from rangewatch.wire.records import Event
from rangewatch_server.core.text import bytes_text
from rangewatch_server.rules.machine.out_of_memory import RULE
from rangewatch_server.rules.rule import Finding
from tests.server.rules.conftest import Stored
from tests.server.rules.test_joined_causes import LAYERS, SEGFAULT, _more, died

GIB = 1 << 30
STEPS = 400
THEN = {"total_bytes": 80 * GIB, "free_bytes": GIB, "allocated_bytes": 77 * GIB, "unallocated_bytes": GIB // 2}


def finding(stored: Stored, details: dict[str, Any], **series: Any) -> Finding:
    stored.write(LAYERS, STEPS, series=series)
    failed = Failed(**{"out_of_memory": True, "asked_bytes": 2 * GIB, "at_failure": THEN} | details)
    stored.send(_more(0, Event("failed", 1, STEPS - 1, "OutOfMemoryError: no room", details_of(failed))))
    (found,) = stored.diagnose(RULE).findings
    return found


def said(found: Finding) -> str:
    return " ".join(found.evidence)


def advice(found: Finding) -> str:
    return " ".join(f"{each.text} {each.code}" for each in found.remedy)


def test_what_was_asked_for_and_free(stored: Stored) -> None:
    found = finding(stored, {})
    assert found.summary == "Rank 0 ran out of its GPU's memory: it asked for 2 GiB with 1 GiB free."
    assert "Tensors took 77 GiB, and PyTorch held 512 MiB more for none: not fragmentation." in found.evidence
    assert "expandable_segments" not in advice(found) and "nvidia-smi" not in advice(found)
    assert "_record_memory_history" in advice(found), "who held it is not known yet"


def test_enough_in_pieces_is_fragmentation(stored: Stored) -> None:
    found = finding(stored, {"at_failure": THEN | {"allocated_bytes": 60 * GIB, "unallocated_bytes": 18 * GIB}})
    assert "PyTorch held 18 GiB in which no tensor lay" in said(found)
    assert "expandable_segments:True" in found.remedy[0].code


def test_a_few_pieces_are_enough_for_a_small_request(stored: Stored) -> None:
    then = {"allocated_bytes": 74 * GIB, "unallocated_bytes": 21 * GIB // 5, "free_bytes": 5 << 20}
    found = finding(stored, {"asked_bytes": 20 << 20, "at_failure": THEN | then})
    assert "that was enough, but in pieces" in said(found) and "not fragmentation" not in said(found)
    assert "expandable_segments:True" in advice(found)


def test_pieces_without_what_tensors_took(stored: Stored) -> None:
    found = finding(stored, {"asked_bytes": 5, "at_failure": {"unallocated_bytes": 10}})
    assert "PyTorch held 10 B in which no tensor lay: with" in said(found)


def test_too_little_in_pieces_is_none(stored: Stored) -> None:
    then = THEN | {"allocated_bytes": 60 * GIB, "unallocated_bytes": 18 * GIB}
    found = finding(stored, {"asked_bytes": 30 * GIB, "at_failure": then})
    assert "not fragmentation" in said(found) and "expandable_segments" not in advice(found)


def test_another_process_on_the_gpu_is_named(stored: Stored) -> None:
    held = {"others_bytes": 40 * GIB, "process_bytes": 39 * GIB, "allocated_bytes": 38 * GIB}
    found = finding(stored, {"at_failure": THEN | held})
    assert "Other processes held 40 GiB of the same GPU." in found.evidence
    assert found.remedy[0].code.startswith("nvidia-smi") and "amd-smi" in found.remedy[0].code


def test_a_few_megabytes_of_another_process_are_not(stored: Stored) -> None:
    found = finding(stored, {"at_failure": THEN | {"others_bytes": GIB // 4, "process_bytes": 78 * GIB}})
    assert "Other processes" not in said(found)


def test_more_than_there_is_is_a_wrong_shape(stored: Stored) -> None:
    found = finding(stored, {"asked_bytes": 300 * GIB})
    assert "more than all there is, 80 GiB" in said(found)
    assert [each.text.partition(":")[0] for each in found.remedy] == ["Read the traceback"]


def test_who_held_most_is_listed(stored: Stored) -> None:
    blocks = (LiveBlocks("scores (model/attention.py:88)", 50 * GIB, 48, 2 * GIB), LiveBlocks("", GIB, 1, GIB))
    found = finding(stored, {"blocks": blocks})
    expected = (
        "50 GiB in 48 blocks from scores (model/attention.py:88); 1 GiB in 1 block from a place that is not known."
    )
    assert said(found).endswith(expected)
    assert "_record_memory_history" not in advice(found)


# What grew.

FLAT = np.full(STEPS, 20.0 * GIB)
SINCE = np.maximum(0, np.arange(STEPS) - 100) * (GIB / 8) + 20 * GIB
JUMP = np.where(np.arange(STEPS) < 380, 20.0, 60.0) * GIB
WARM_UP = np.minimum(np.arange(STEPS), 60) * (GIB / 2) + 20 * GIB


def test_a_leak_has_its_first_step_and_its_rate(stored: Stored) -> None:
    found = finding(stored, {}, memory_allocated_bytes=SINCE)
    (text,) = (each for each in found.evidence if each.startswith("Tensors of rank 0 took"))
    since = found.facts["since_step"]
    assert 95 <= since <= 125 and f"at step {since} and" in text and "more with each step since" in text
    assert any("keeps tensors of earlier steps" in each.text for each in found.remedy)


def test_of_a_long_run_bounded_columns_are_read(stored: Stored) -> None:
    failed = Failed(out_of_memory=True, asked_bytes=GIB, at_failure=THEN)
    event = Event("failed", 1, 2_399, "no room", details_of(failed))
    stored.write(LAYERS[:1], 2_400, series={"memory_allocated_bytes": np.repeat(SINCE, 6)}, events=[event])
    (found,) = stored.diagnose(RULE).findings
    assert 570 <= found.facts["since_step"] <= 750


def test_what_came_at_once_is_no_leak(stored: Stored) -> None:
    found = finding(stored, {}, memory_allocated_bytes=JUMP)
    assert "20 GiB until step 379 and 60 GiB at the end: more at once, and no leak." in said(found)
    assert "keeps tensors" not in advice(found)


def test_what_rose_for_some_steps_and_stays_is_no_leak(stored: Stored) -> None:
    held = np.interp(np.arange(STEPS), [240, 320], [10.0 * GIB, 20.0 * GIB])
    found = finding(stored, {}, memory_allocated_bytes=held)
    assert "20 GiB from about step 3" in said(found) and "no leak" in said(found)
    assert "more with each step" not in said(found) and "keeps tensors" not in advice(found)


@pytest.mark.parametrize("held", [FLAT, np.zeros(STEPS), WARM_UP, FLAT + np.sin(np.arange(STEPS)) * GIB])
def test_what_stays_had_not_grown(stored: Stored, held: np.ndarray) -> None:
    found = finding(stored, {}, memory_allocated_bytes=held)
    assert "had not grown" in said(found) and "keeps tensors" not in advice(found)


def test_on_the_host(stored: Stored) -> None:
    then = {"total_bytes": 64 * GIB, "available_bytes": 3 * GIB}
    found = finding(stored, {"on_host": True, "at_failure": then}, process_resident_bytes=SINCE)
    assert found.summary == "Rank 0 ran out of its host's or container's memory: it asked for 2 GiB with 3 GiB free."
    assert "The process of rank 0 took 2" in said(found)
    assert "keeps tensors" in advice(found)


def test_in_a_container_its_limit_counts(stored: Stored) -> None:
    then = {"total_bytes": 512 * GIB, "available_bytes": 300 * GIB}
    then |= {"container_limit_bytes": 16 * GIB, "container_used_bytes": 15 * GIB}
    found = finding(stored, {"on_host": True, "at_failure": then})
    assert found.summary.endswith("with 1 GiB free.")


def test_more_than_a_container_may_have_is_a_wrong_shape_too(stored: Stored) -> None:
    then = {"total_bytes": 512 * GIB, "container_limit_bytes": 16 * GIB, "container_used_bytes": 15 * GIB}
    assert "more than all there is, 16 GiB" in said(
        finding(stored, {"on_host": True, "at_failure": then, "asked_bytes": 17 * GIB})
    )


def test_a_kill_whose_process_had_not_grown_points_elsewhere(stored: Stored) -> None:
    stored.write(LAYERS, STEPS, series={"process_resident_bytes": FLAT})
    stored.send(_more(0, died(0, SEGFAULT | {"signal": 9, "oom_kills": 1}, step=STEPS)))
    found = next(each for each in stored.diagnose(RULE).findings)
    assert "had not grown" in said(found) and "data loader's workers" in said(found)


def test_sizes_as_text() -> None:
    assert [bytes_text(size) for size in (0, 999, 1 << 20, 3 * GIB // 2, 77 << 40)] == [
        "0 B", "999 B", "1 MiB", "1.5 GiB", "77 TiB",
    ]  # fmt: skip
