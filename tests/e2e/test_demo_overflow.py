"""The demo's overflow is real, and Rangewatch names the one that plain hooks find in the same training."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rangewatch.commands.demo import launch
from rangewatch.commands.demo.children import free_port
from tests import forked
from tests.server.process import Run

# The same training as the demo's with a still higher learning rate: the overflow comes after 10 steps, not 400.
STEPS, LR_FACTOR, RANKS = 16, 2000, 2
Refused = Callable[..., str]


def watched(run: Run) -> dict[str, Any]:
    """What `rangewatch demo --json` prints for a short training that goes to a server that is there."""
    options = [f"--steps={STEPS}", f"--lr-factor={LR_FACTOR}", f"--run={run.name}", f"--url={run.server.url}"]
    done = forked.server.run("-m", "rangewatch", "demo", "--exit", "--json", *options)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def plain(folder: Path) -> list[dict[str, Any]]:
    """What plain hooks saw in the same training without Rangewatch, for each rank."""
    script = Path(__file__).with_name("plain_training.py")
    shared = {"WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    ranks = []
    for rank in range(RANKS):
        environment = {**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": "0"}
        ranks.append(forked.rank.start(script, folder / f"{rank}.json", str(STEPS), str(LR_FACTOR), env=environment))
    assert [process.wait(90) for process in ranks] == [0] * RANKS
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(RANKS)]


def first_bad_of_all_ranks(plain: list[dict[str, Any]]) -> tuple[int, str, set[int]]:
    """The earliest (step, module) with the ranks that have just that."""
    found = {rank: tuple(seen["first_bad"]) for rank, seen in enumerate(plain) if seen["first_bad"]}
    step = min(step for step, _ in found.values())
    modules = {module for at, module in found.values() if at == step}
    assert len(modules) == 1
    return step, modules.pop(), {rank for rank, (at, _) in found.items() if at == step}


def test_named_overflow_is_the_one_that_plain_hooks_find(run: Run, tmp_path: Path) -> None:
    seen, demo = plain(tmp_path), watched(run)
    # The training is healthy, and then its loss scale falls: in all of it, and as the agent saw it.
    step, module, ranks = first_bad_of_all_ranks(seen)
    loss_scales = seen[0]["loss_scales"]
    assert step > 5 and module.startswith("blocks.3.ff.")
    assert set(loss_scales[: step + 1]) == {2.0**14} and loss_scales[-1] <= 2.0**10
    assert (demo["loss_scale_first"], demo["loss_scale_last"]) == (loss_scales[0], loss_scales[-1])

    named = demo["first_overflow"]
    assert named == {"step": step, "rank": named["rank"], "tensor": module, "kind": "output"}
    assert named["rank"] in ranks
    reported = {"url": run.server.url, "run": run.name, "ranks": RANKS, "steps": STEPS}
    assert demo.keys() == reported.keys() | {"loss_scale_first", "loss_scale_last", "first_overflow"}
    assert demo.items() >= reported.items(), "the documented object"

    first = run.get()["first_overflow"]
    assert (first["step"], first["fqn"], first["rank"]) == (step, module, named["rank"])
    for rank, of_rank in enumerate(seen):
        own_step, own_module = of_rank["first_bad"]
        page = run.get(f"/step?step={own_step}&rank={rank}")
        marked = page["frames"][page["first_nonfinite"]]
        assert (marked["fqn"], marked["kind"]) == (own_module, "output")
        assert marked["inf_count"] + marked["nan_count"] > 0


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Refused:
    """Why `rangewatch demo` does not begin, in its one line."""

    def start(*arguments: str) -> str:
        try:
            status = launch.main(list(arguments))
        except SystemExit as ended:
            status = ended.code
        said = capsys.readouterr()
        assert status and said.out == "" and len(said.err.splitlines()) == 1
        return said.err

    return start


@pytest.mark.parametrize("argument", ["--steps=0", "--steps=many", "--port=99999", "--lr-factor=-1"])
def test_bad_argument_is_one_line(refused: Refused, argument: str) -> None:
    assert argument.split("=")[0] in refused(argument)


def test_server_that_does_not_answer_is_one_line(refused: Refused) -> None:
    assert "no Rangewatch server answers" in refused(f"--url=http://127.0.0.1:{free_port()}")


def test_port_in_use_is_one_line(refused: Refused) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"port {port} is taken" in refused(f"--port={port}", "--exit")


def test_missing_torch_says_what_to_install(refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "pip install 'rangewatch[agent]'" in refused("--exit")
