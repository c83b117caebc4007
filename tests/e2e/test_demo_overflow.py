"""The demo's overflow is real, and Rangewatch names the one that plain hooks find in the same training."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from rangewatch.demo import launch
from rangewatch.demo.api import get_json
from rangewatch.demo.children import free_port, start_server
from tests import forked

# The same training as the demo's with a still higher learning rate: the overflow comes after some 45 steps, not 400.
STEPS, LR_FACTOR, RANKS = 65, 300, 2
RUN = "overflow <test>"
Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def server_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("server")
    with ExitStack() as children:
        yield start_server(free_port(), folder / "test.db", folder, children)[0]


@pytest.fixture(scope="module")
def demo(server_url: str) -> dict[str, Any]:
    """What `rangewatch demo --json` prints for a short training that goes to the test's own server."""
    options = [f"--steps={STEPS}", f"--lr-factor={LR_FACTOR}", f"--run={RUN}", f"--url={server_url}"]
    done = run_demo("--exit", "--json", *options)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What plain hooks saw in the same training without Rangewatch, for each rank."""
    folder = tmp_path_factory.mktemp("plain")
    script = Path(__file__).with_name("plain_training.py")
    shared = {"WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    ranks = []
    for rank in range(RANKS):
        environment = {**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": "0"}
        ranks.append(forked.rank.start(script, folder / f"{rank}.json", str(STEPS), str(LR_FACTOR), env=environment))
    assert [process.wait(90) for process in ranks] == [0] * RANKS
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(RANKS)]


def run_demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    return forked.server.run("-m", "rangewatch", "demo", *arguments)


def first_bad_of_all_ranks(plain: list[dict[str, Any]]) -> tuple[int, str, set[int]]:
    """The earliest (step, module) with the ranks that have just that."""
    found = {rank: tuple(seen["first_bad"]) for rank, seen in enumerate(plain) if seen["first_bad"]}
    step = min(step for step, _ in found.values())
    modules = {module for at, module in found.values() if at == step}
    assert len(modules) == 1
    return step, modules.pop(), {rank for rank, (at, _) in found.items() if at == step}


def test_training_is_healthy_and_then_its_loss_scale_falls(plain: list[dict[str, Any]]) -> None:
    step, module, _ = first_bad_of_all_ranks(plain)
    loss_scales = plain[0]["loss_scales"]
    assert step > 20
    assert module.startswith("blocks.3.ff.")
    assert set(loss_scales[: step + 1]) == {2.0**14}
    assert loss_scales[-1] <= 2.0**10


def test_named_overflow_is_the_one_that_plain_hooks_find(demo: dict[str, Any], plain: list[dict[str, Any]]) -> None:
    step, module, ranks = first_bad_of_all_ranks(plain)
    named = demo["first_overflow"]
    assert (named["step"], named["tensor"], named["kind"]) == (step, module, "output")
    assert named["rank"] in ranks


def test_step_page_marks_the_same_frame(demo: dict[str, Any], server_url: str, plain: list[dict[str, Any]]) -> None:
    step, module, _ = first_bad_of_all_ranks(plain)
    run_id = run_id_of(server_url)
    summary = get_json(f"{server_url}/api/v1/runs/{run_id}")
    assert summary is not None
    assert (summary["first_overflow"]["step"], summary["first_overflow"]["fqn"]) == (step, module)
    rank = summary["first_overflow"]["rank"]
    page = get_json(f"{server_url}/api/v1/runs/{run_id}/step?step={step}&rank={rank}")
    assert page is not None
    marked = page["frames"][page["first_nonfinite"]]
    assert (marked["fqn"], marked["kind"]) == (module, "output")
    assert marked["inf_count"] + marked["nan_count"] > 0


def test_first_bad_step_of_each_rank_is_the_same(demo: dict[str, Any], server_url: str, plain: list[Any]) -> None:
    run_id = run_id_of(server_url)
    for rank, seen in enumerate(plain):
        step, module = seen["first_bad"]
        page = get_json(f"{server_url}/api/v1/runs/{run_id}/step?step={step}&rank={rank}")
        assert page is not None
        assert page["frames"][page["first_nonfinite"]]["fqn"] == module


def test_agent_does_not_change_the_training(demo: dict[str, Any], plain: list[dict[str, Any]]) -> None:
    assert demo["loss_scale_first"] == plain[0]["loss_scales"][0]
    assert demo["loss_scale_last"] == plain[0]["loss_scales"][-1]


def test_json_is_the_documented_object(demo: dict[str, Any], server_url: str) -> None:
    expected = {"url", "run", "ranks", "steps", "loss_scale_first", "loss_scale_last", "first_overflow"}
    assert set(demo) == expected
    assert (demo["url"], demo["run"], demo["ranks"], demo["steps"]) == (server_url, RUN, RANKS, STEPS)
    assert set(demo["first_overflow"]) == {"step", "rank", "tensor", "kind"}


@pytest.mark.parametrize("arguments", [["--steps=0"], ["--steps=many"], ["--port=99999"], ["--lr-factor=-1"]])
def test_bad_argument_is_one_line(arguments: list[str]) -> None:
    assert_one_line(run_demo(*arguments), arguments[0].split("=")[0])


def test_server_that_does_not_answer_is_one_line() -> None:
    assert_one_line(run_demo(f"--url=http://127.0.0.1:{free_port()}"), "no Rangewatch server answers")


def test_port_in_use_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert_one_line(run_demo(f"--port={port}", "--exit"), f"port {port} is taken")


def test_missing_torch_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert launch.main(["--exit"]) == 1
    assert "pip install 'rangewatch[agent]'" in capsys.readouterr().err


def assert_one_line(done: subprocess.CompletedProcess[str], says: str) -> None:
    assert done.returncode != 0
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert says in done.stderr


def run_id_of(server_url: str) -> int:
    answer = get_json(f"{server_url}/api/v1/runs")
    assert answer is not None
    return next(run["id"] for run in answer["runs"] if run["name"] == RUN)
