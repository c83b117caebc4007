"""How scales of low precision fit, over HTTP: the worst of steps and ranks, and the heatmap with its states."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pytest

from rangewatch.wire.events import ScaledOperand, ScaledOperands
from tests.server import whatif_batches
from tests.server.process import Run
from tests.server.scale_batches import LAYERS, UNKNOWN, operands, send


def decoded(array: Any) -> Any:
    values = np.frombuffer(base64.b64decode(array["bdata"]), f"<{array['dtype']}")
    return values.reshape([int(each) for each in array["shape"].split(",")]) if "shape" in array else values


def test_each_operand_over_all_steps_and_ranks(run: Run) -> None:
    for rank in range(2):
        bits = np.zeros((6, 20))
        bits[0, 7] = 2.0 * rank  # on one rank, in one step
        bits[3, 5:] = -6.0
        send(run.post, bits, age=np.where(np.arange(20) >= 5, 12.0, 1.0), rank=rank, ranks=2)
    answer = run.get("/scales")
    assert answer["of"] == 7 and (answer["start"], answer["stop"]) == (0, 20)
    first, *others = answer["operands"]
    assert (first["name"], first["kind"], first["format"], first["granularity"]) == (
        "blocks.0.up", "scaled_input", "E4M3", "tensor"
    )  # fmt: skip
    assert first["state"] == "scale_too_small" and first["headroom_bits"] == -2
    assert first["scale_log2"] == [-7.5, -6.0]
    assert first["saturated_fraction"] == pytest.approx(10 / (2 * 20 * 200))
    assert first["flushed_fraction"] == pytest.approx(0.1)
    assert {each["state"] for each in others[:2]} == {"value"}
    assert (others[2]["history"], others[2]["history_age"]) == (256, 12)
    assert (others[-1]["state"], others[-1]["unknown"], others[-1]["tensor"]) == ("unknown", UNKNOWN, None)
    assert (others[2]["state"], others[2]["headroom_bits"]) == ("scale_stale", 6), "in a part of the steps"
    assert run.get("/scales?rank=0")["operands"][0]["state"] == "value"
    late = run.get("/scales?start=6&stop=20")["operands"]
    assert late[3]["state"] == "scale_stale" and late[3]["headroom_bits"] == 6
    named = run.get("/scales?q=down")["operands"]
    assert {each["name"] for each in named} == {"blocks.0.down"}


def test_the_heatmap_has_bits_and_states(run: Run) -> None:
    bits = np.zeros((6, 20))
    bits[0, 7] = 2.0
    bits[1] = -3.0
    bits[3, 5:] = -6.0
    send(run.post, bits, age=np.where(np.arange(20) >= 5, 12.0, 1.0))
    answer = run.get("/figures/layers?statistic=scaled_headroom_bits&kind=scaled_input&kind=scaled_weight&columns=20")
    z, states = decoded(answer["figure"]["data"][0]["z"]), decoded(answer["meta"]["states"])
    names = answer["meta"]["state_names"]
    labels = [each["label"] for each in answer["meta"]["rows"]]
    assert len(labels) == 4 and answer["meta"]["statistic"]["scale"] == "room"
    assert z[0, 7] == -2 and names[states[0, 7]] == "scale_too_small"
    assert z[0, 6] == 0 and names[states[0, 6]] == "value"
    assert set(z[1].tolist()) == {3.0}
    assert z[2, 4] == 0 and z[2, 5] == 6 and names[states[2, 5]] == "scale_stale"
    merged = run.get("/figures/layers?statistic=scaled_headroom_bits&kind=scaled_input&columns=1")
    assert names[decoded(merged["meta"]["states"])[0, 0]] == "scale_too_small"
    choices = [each["name"] for each in run.get("")["derived"]]
    assert "scaled_headroom_bits" in choices


def test_an_operand_that_is_not_read_stays_unknown_beside_one_of_its_module_that_is(run: Run) -> None:
    """MXFP8 of TransformerEngine: stored weights are read, and no input or gradient."""
    weight = ScaledOperand("head", "scaled_weight", 0, "E4M3")
    kinds = ("scaled_input", "scaled_grad_output")
    unread = [ScaledOperand("head", kind, 0, "E4M3", unknown="not kept") for kind in kinds]
    send(run.post, 0.0, said=ScaledOperands((*operands().operands[:2], weight, *unread)))
    answer = run.get("/scales")["operands"]
    states = {(each["name"], each["kind"]): each["state"] for each in answer}
    assert states["head", "scaled_input"] == states["head", "scaled_grad_output"] == "unknown"
    assert states[LAYERS[0], "scaled_input"] == "value"


def test_a_placeholder_goes_when_its_own_operand_is_read_in_another_call(run: Run) -> None:
    backward = operands().operands[0]
    placeholder = ScaledOperand(backward.fqn, backward.kind, 1, unknown="not seen yet")
    send(run.post, 0.0, said=ScaledOperands((backward, placeholder)))
    assert [each["unknown"] for each in run.get("/scales")["operands"]] == [""]


def test_a_name_also_means_operands_that_are_not_read(run: Run) -> None:
    send(run.post, 0.0)
    assert [each["name"] for each in run.get("/scales?q=head")["operands"]] == ["head"]
    assert [each["name"] for each in run.get("/scales?q=kind:scaled_input !up")["operands"]] == [LAYERS[1], "head"]
    assert run.get("/scales?q=lm_head")["operands"] == []
    assert run.ask("/scales?q=kind:").status_code == 422


def test_steps_before_a_restart_have_the_operands_of_the_process_that_recorded_them(run: Run) -> None:
    """The second process casts nothing: what the first has read is still there."""
    send(run.post, 0.0)
    send(run.post, 0.0, said=ScaledOperands(()), first=20, process="b")
    assert len(run.get("/scales?start=0&stop=20")["operands"]) == 7
    assert run.get("/scales?start=20&stop=40")["operands"] == []
    assert len(run.get("/scales")["operands"]) == 7


def test_a_process_all_of_whose_steps_are_done_again_says_nothing(run: Run) -> None:
    send(run.post, 0.0)
    send(run.post, 0.0, said=ScaledOperands(operands().operands[:1]), process="b")
    assert len(run.get("/scales")["operands"]) == 1


def test_margin_is_no_staleness(run: Run) -> None:
    """A margin of four bits leaves four bits free at least, whatever the age; the rule says nothing of it."""
    send(run.post, -4.5, age=3.0, said=operands(margin=4.0))
    assert {each["state"] for each in run.get("/scales")["operands"][:6]} == {"value"}
    answer = run.get("/figures/layers?statistic=scaled_headroom_bits&kind=scaled_input&columns=20")
    names, states = answer["meta"]["state_names"], decoded(answer["meta"]["states"])
    assert {names[each] for each in states.ravel().tolist()} == {"value"}
    send(run.post, -8.5, age=3.0, said=operands(margin=4.0), first=20, process="b")
    late = run.get("/scales?start=20&stop=40")["operands"]
    assert [each["state"] for each in late[:6]] == ["value"] * 3 + ["scale_stale"] * 3
    answer = run.get("/figures/layers?statistic=scaled_headroom_bits&kind=scaled_input&start=20&stop=40&columns=20")
    assert {names[each] for each in decoded(answer["meta"]["states"])[1].tolist()} == {"scale_stale"}


def test_where_no_margin_is_known_nothing_is_stale(run: Run) -> None:
    """The heatmap has rows of an operand of which no process has said how it is cast."""
    send(run.post, -6.0, age=12.0, said=ScaledOperands(operands().operands[:3]))
    answer = run.get("/figures/layers?statistic=scaled_headroom_bits&kind=scaled_input&columns=20")
    names, states = answer["meta"]["state_names"], decoded(answer["meta"]["states"])
    assert {names[each] for each in states.ravel().tolist()} == {"value"}


def test_a_run_without_scales_has_none(run: Run) -> None:
    whatif_batches.send(run.post, {})
    assert run.get("/scales")["operands"] == []
    assert "scaled_headroom_bits" not in [each["name"] for each in run.get("")["derived"]]


def test_it_is_said_how_often_scales_are_read(run: Run) -> None:
    """As each process said last; of those that read at different steps, the rarest."""
    send(run.post, 0.0)
    assert run.get("/scales")["every"] is None, "an agent that does not say"
    for rank, every in enumerate((8, 32)):
        send(run.post, 0.0, said=ScaledOperands(operands().operands, every), rank=rank, ranks=2, first=20, process="b")
    assert run.get("/scales?start=20&stop=40")["every"] == 32
    assert run.get("/scales?start=20&stop=40&rank=0")["every"] == 8
