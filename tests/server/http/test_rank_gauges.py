"""GET /metrics/ranks: each rank of the live runs; nothing that is not known; names are text."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
from prometheus_client.parser import text_string_to_metric_families

from rangewatch_server.http.metrics.rank_gauges import GPU_GAUGES, RANK_GAUGES
from tests.server.process import Run, Server
from tests.server.records import batch, catalogue, opening

KNOWN = catalogue(3)
DASHBOARD = Path(__file__).parents[3] / "docs" / "grafana.json"


def scraped(run: Run) -> dict[str, dict[str, float]]:
    """metric -> rank of this run -> value."""
    text = run.server.client.get("/metrics/ranks").text
    return {
        family.name: {each.labels["rank"]: each.value for each in family.samples if each.labels["run"] == run.name}
        for family in text_string_to_metric_families(text)
    }


def test_every_rank_of_a_live_run(run: Run) -> None:
    steps = np.arange(40)
    bad = np.zeros((3, 40))
    bad[1, 30] = 2
    series = {"loss": 5.0 - steps * 0.1, "loss_scale": 1024.0, "skipped_step": steps == 30, "step_time_s": 0.25}
    for rank in range(2):
        run.post(opening(KNOWN, rank=rank, world_size=2))
        run.post(
            batch(KNOWN, 0, range(40), {"amax": 2.0 ** (rank + 1), "inf_count": bad * rank}, rank=rank, series=series)
        )
    found = scraped(run)
    one, other = "0", "1"
    assert found["rangewatch_rank_up"] == {one: 1.0, other: 1.0}
    assert found["rangewatch_rank_last_step"] == {one: 39.0, other: 39.0}
    assert round(found["rangewatch_rank_loss"][one], 6) == 1.1
    assert found["rangewatch_rank_step_seconds"][other] == 0.25
    assert (found["rangewatch_rank_loss_scale"][one], found["rangewatch_rank_skipped_steps"][one]) == (1024.0, 1.0)
    assert found["rangewatch_rank_nonfinite_values"] == {one: 0.0, other: 2.0}
    run.post(batch(KNOWN, 1, [40], {"inf_count": np.full((3, 1), 5.0)}, rank=1))
    assert scraped(run)["rangewatch_rank_nonfinite_values"][other] == 17.0, "the newest step counts"
    bits = found["rangewatch_rank_least_headroom_bits"]
    assert [round(bits[each], 1) for each in (one, other)] == [15.0, 14.0]
    assert all(value < 3_600 for value in found["rangewatch_rank_silent_seconds"].values())


def test_what_is_not_known_has_no_sample(run: Run) -> None:
    assert all(not found for found in scraped(run).values())
    run.post(opening(KNOWN))
    found = scraped(run)
    assert found["rangewatch_rank_up"] == {"0": 1.0}
    for name in ("last_step", "loss", "loss_scale", "step_seconds", "least_headroom_bits", "nonfinite_values"):
        assert found[f"rangewatch_rank_{name}"] == {}, name


def test_a_loss_that_is_nan_is_told(run: Run) -> None:
    run.post(opening(KNOWN))
    run.post(batch(KNOWN, 0, range(4), series={"loss": np.array([1.0, 2.0, np.nan, np.nan])}))
    assert np.isnan(scraped(run)["rangewatch_rank_loss"]["0"])


def test_names_are_text(served: Server) -> None:
    hostile = Run(served, 'a"b\\c\n{run="x"} 1')
    hostile.post(opening(KNOWN))
    assert scraped(hostile)["rangewatch_rank_up"] == {"0": 1.0}


def test_the_dashboard_asks_for_what_there_is(served: Server) -> None:
    """Every metric of its expressions is one of ours, of this route or of /metrics."""
    own = {*RANK_GAUGES, *(name for name, _ in GPU_GAUGES.values())}
    reported = set(re.findall(r"^# TYPE (\w+)", served.client.get("/metrics").text, re.MULTILINE))
    board = json.loads(DASHBOARD.read_text())
    expressions = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    queries = [each["query"]["query"] for each in board["templating"]["list"] if each["type"] == "query"]
    asked = {name for text in expressions + queries for name in re.findall(r"rangewatch_\w+", text)}
    assert asked <= own | reported and own <= asked | {"rangewatch_rank_up"}
