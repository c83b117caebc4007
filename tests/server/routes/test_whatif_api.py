"""Which tensors survive in which format, over HTTP."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from rangewatch.statistics import formats
from tests.server.process import Run
from tests.server.whatif_batches import ELEMENTS, send


def get(run: Run, **query: Any) -> Any:
    return run.get(f"/whatif?{httpx.QueryParams(query)}")


def formats_of(answer: Any) -> dict[str, Any]:
    return {each["name"]: each for each in answer["formats"]}


def test_what_is_lost_of_a_tensor(run: Run) -> None:
    scales = {"scale_count": 4, "scale_log2": 4 * 250.0, "scale_log2_sq": 2 * 249.0**2 + 2 * 251.0**2}
    lost = {"flushed_count": 300, "saturated_count": 5, "error_sq": 100.0, "relative_error": 90.0}
    send(run.post, {(0, "mxfp4"): lost | scales})
    answer = get(run)
    assert (answer["measured"], answer["of"], answer["start"], answer["stop"]) == (3, 3, 0, 20)
    labels = [each["label"] for each in answer["tensors"]]
    assert labels == ["blocks.0.up output", "blocks.0.up.weight grad", "head output"]
    assert answer["tensors"][0]["elements"] == 3 * ELEMENTS, "three readings"
    assert answer["tensors"][0]["formats"]["mxfp4"] == {
        "survives": False, "flushed_fraction": 0.3, "saturated_fraction": 0.005, "sqnr_db": pytest.approx(10.0),
        "relative_error": 0.09, "scale_log2": pytest.approx(-6.0), "scale_spread_bits": pytest.approx(1.0),
    }  # fmt: skip
    assert answer["tensors"][0]["formats"]["float16"]["survives"]
    assert answer["tensors"][0]["formats"]["float16"]["scale_log2"] is None
    of = formats_of(answer)
    assert list(of) == [each.name for each in formats.FORMATS]
    assert (of["mxfp4"]["survive"], of["mxfp4"]["modules"]) == (2, ["blocks.0.up"])
    assert "'blocks.0.up'" in of["mxfp4"]["code"] and "quantize_" in of["mxfp4"]["code"]
    assert (of["nvfp4"]["survive"], of["nvfp4"]["code"]) == (3, "")


def test_a_parameters_gradient_names_its_module_and_limits_are_given(run: Run) -> None:
    send(run.post, {(1, "e4m3_tensor"): {"flushed_count": 20}})
    assert formats_of(get(run))["e4m3_tensor"]["module_count"] == 0
    kept = formats_of(get(run, flushed_percent=1))["e4m3_tensor"]
    assert kept["modules"] == ["blocks.0.up"] and "convert_to_float8_training" in kept["code"]
    assert get(run, flushed_percent=1)["limits"]["flushed_fraction"] == 0.01
    assert formats_of(get(run, flushed_percent=1, kind="output"))["e4m3_tensor"]["module_count"] == 0


def test_ranks_and_steps_are_added_up(run: Run) -> None:
    send(run.post, {(0, "mxfp4"): {"flushed_count": 600}}, rank=0, ranks=2)
    send(run.post, {}, rank=1, ranks=2, read=(9,))
    assert get(run)["tensors"][0]["formats"]["mxfp4"]["flushed_fraction"] == 1800 / 4000
    assert get(run, rank=1)["tensors"][0]["formats"]["mxfp4"]["flushed_fraction"] == 0
    assert get(run, start=8, stop=16)["tensors"][0]["elements"] == ELEMENTS


def test_nothing_was_read(run: Run) -> None:
    send(run.post, {}, read=())
    answer = get(run)
    assert (answer["measured"], answer["of"], answer["tensors"]) == (0, 3, [])
    assert [each["survive"] for each in answer["formats"]] == [0] * len(formats.FORMATS)


def test_some_were_read_and_some_are_asked_for(run: Run) -> None:
    send(run.post, {}, tensors=(2,))
    assert [each["label"] for each in get(run)["tensors"]] == ["head output"]
    assert get(run, q="blocks")["measured"] == 0
    assert len(get(run, limit=1)["tensors"]) == 1


@pytest.mark.parametrize("query", ["limit=0", "sqnr_db=-1", "flushed_percent=101", "kind=loud", "q=|", "rank=7"])
def test_bad_parameters(run: Run, query: str) -> None:
    send(run.post, {})
    assert run.ask(f"/whatif?{query}").status_code in (404, 422)
