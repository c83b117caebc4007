"""What ingest takes can be shown: no route of a run, of the list or of the gauges answers 5xx, whatever its values."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from rangewatch import wire
from tests.fuzz import any_contents
from tests.fuzz.test_openapi import operations
from tests.server.process import Server

FIGURES = (
    "loss", "loss_scale", "step_time", "phases", "tensor", "exponents", "timeline", "layers", "ranks", "waits",
)  # fmt: skip
STATISTICS = "slice?statistic=*", "slice?axes=rank,step&statistic=amax", "slice?axes=tensor,rank&statistic=*&step=0"
WHOLE = (
    "/api/v1/runs", "/api/v1/runs?sort=loss", "/api/v1/runs?sort=headroom&down=true", "/api/v1/runs?sort=skipped",
    "/metrics", "/metrics/ranks", "/readyz", "/api/v1/alerts", "/api/v1/prune?keep_days=1",
)  # fmt: skip
OF_RUN = (
    "", "tensors", "step", "step?step=0", "step?step=1000000000000", "locate", *(f"figures/{name}" for name in FIGURES),
    *(f"figures/{name}?tensor=0&rank=0&columns=20" for name in FIGURES), "figures?figure=loss&figure=layers",
    *STATISTICS, *(f"{STATISTICS[0]}&stop=70&format={each}" for each in ("csv", "parquet", "arrow")),
    "slice?statistic=*&incarnation=0", "collectives", "collectives/step", "hang", "rank_map", "gpus", "gpus/0",
    "environment", "diagnosis", "alerts", "thresholds", "mesh", "stderr", "whatif", "scales", "experts", "report",
    "loss_scale", "loss_scale?order=oldest", "commands", "replicas",
)  # fmt: skip
NOT_OF_VALUES = {"commands/{command_id}", "gpus/{rank}", "figures/{name}"}

# The figure of what differs between two runs has its own page; each of these seeds is a run.
SEEDS = pytest.mark.parametrize("seeds", [
    range(2), pytest.param(range(2, 20), marks=[pytest.mark.slow, pytest.mark.timeout(600)]),
    pytest.param(range(20, 2_000), marks=[pytest.mark.soak, pytest.mark.timeout(7_200)]),
])  # fmt: skip


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(str(tmp_path_factory.mktemp("any") / "server.db"))
    yield server
    server.stop()


def failed(server: Server, paths: list[str]) -> dict[str, str]:
    found = {}
    for path in paths:
        answer = server.client.get(path)
        if answer.status_code >= 500:
            found[path] = answer.text[:200]
            server.client = httpx.Client(base_url=server.url, timeout=30)  # the server ends such a connection
    return found


@SEEDS
def test_no_route_fails(shared: Server, seeds: range) -> None:
    found, taken = {}, 0
    for seed in seeds:
        name = f"seed {seed}"
        for message in any_contents.messages(seed, name):
            answer = shared.post(wire.encode(message))
            assert answer.status_code in (202, 400, 409, 413, 422, 429), (seed, answer.text)
            taken += answer.status_code == 202
        listed = shared.get("/api/v1/runs?limit=1")["runs"]
        assert listed and listed[0]["name"] == name, f"the list has lost seed {seed}"
        run = listed[0]["id"]
        compared = f"/api/v1/compare?run={run}&run=1", f"/api/v1/compare/series?run={run}&run=1&name=loss"
        compared = *compared, f"/api/v1/compare/first?run={run}&run=1&noise={run}"
        of_run = (f"/api/v1/runs/{run}/{each}".rstrip("/") for each in OF_RUN)
        found |= {(seed, path): text for path, text in failed(shared, [*compared, *of_run]).items()}
    found |= {(-1, path): text for path, text in failed(shared, list(WHOLE)).items()}
    assert not found and taken > len(seeds)


def test_every_route_of_a_run_is_asked() -> None:
    paths = {
        each.removeprefix("GET /api/v1/runs/{run_id}").lstrip("/")
        for each in operations()
        if "GET" in each and "{run_id}" in each
    }
    assert paths - NOT_OF_VALUES <= {each.partition("?")[0] for each in OF_RUN}
