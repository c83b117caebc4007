"""A user's script takes up Rangewatch with two lines: it trains as before, to the bit, and its run can be looked at.

One environment with the wheel serves a plain loop and two ranks of DDP. In a soak each of the five has one of its own,
in which pip has installed everything.
"""

from __future__ import annotations

import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from rangewatch.commands.demo.children import free_port
from rangewatch.commands.demo.progress import get_json
from tests import forked
from tests.adoption.environments import ROOT, Environment, beside_ours, build_wheel, separate
from tests.adoption.trainings import ALL, SCRIPTS, Training

TRAIN_S = 110
ARRIVE_S = 60
Train = Callable[..., subprocess.CompletedProcess[str]]


class Place(NamedTuple):
    environment: Environment
    url: str


class Trained(NamedTuple):
    """A training with the two lines and the same without, and where its run is."""

    training: Training
    before: subprocess.CompletedProcess[str]
    after: subprocess.CompletedProcess[str]
    run: dict[str, Any]
    api: str

    def ask(self, path: str) -> dict[str, Any]:
        answer = get_json(self.api, path)
        assert answer is not None, path
        return answer


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def shared(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """An environment to train in, and the server that runs in it."""
    environment = beside_ours(tmp_path_factory.mktemp("environment") / "shared", wheel)
    with serving(environment, environment.folder) as url:
        yield Place(environment, url)


def trained(training: Training, place: Place, folder: Path, start: Train) -> Trained:
    """The training without the two lines, begun by `start`, and with them."""
    (folder / "before.py").write_text(training.source)
    (folder / "after.py").write_text(training.taken_up())
    before = start(place.environment, training, folder / "before.py")
    reported = {
        "RANGEWATCH_URL": place.url,
        "RANGEWATCH_QUIET": "1",  # the run's address is meant to differ
        "RANGEWATCH_RUN": training.script,
        "RANGEWATCH_SPOOL_DIR": str(folder / "s"),
    }
    after = train(place.environment, training, folder / "after.py", **reported)
    return Trained(training, before, after, *finished_run(place.url, training.script))


def finished_run(url: str, name: str) -> tuple[dict[str, Any], str]:
    """The run and its address, once the server has all of it: the watcher sends what a process could not any more."""
    give_up_s = time.monotonic() + ARRIVE_S
    while True:
        listed = [each for each in (get_json(url, "/api/v1/runs") or {"runs": []})["runs"] if each["name"] == name]
        api = f"{url}/api/v1/runs/{listed[0]['id']}" if listed else ""
        run = (get_json(api, "") if api else None) or {"state": "not there"}
        if run["state"] == "finished" or time.monotonic() > give_up_s:
            assert run["state"] == "finished", run
            return run, api
        time.sleep(0.1)


@contextmanager
def serving(environment: Environment, folder: Path) -> Iterator[str]:
    """`rangewatch serve` as a user starts it; its address."""
    command = [environment.program("rangewatch"), "serve", "--port", "0", "--db", str(folder / "runs.db")]
    with (folder / "server.log").open("w") as log:
        server = subprocess.Popen(
            command, cwd=folder, env=environment.variables(), stdout=subprocess.PIPE, stderr=log, text=True
        )
        try:
            assert server.stdout is not None
            said = re.match(r"Rangewatch is at (http://\S+)\n", server.stdout.readline())
            assert said is not None, (folder / "server.log").read_text()
            yield said[1]
        finally:
            server.send_signal(signal.SIGINT)
            server.communicate(timeout=60)
    assert server.returncode == 0
    assert (folder / "server.log").read_text() == ""


def train(
    environment: Environment, training: Training, script: Path, **variables: str
) -> subprocess.CompletedProcess[str]:
    """As the user starts it: python, or torchrun for several ranks."""
    start = [environment.program("python")]
    if training.ranks > 1:
        port = free_port()
        start += ["-m", "torch.distributed.run", f"--nproc-per-node={training.ranks}", f"--master-port={port}"]
    done = subprocess.run(
        [*start, str(script)], cwd=script.parent, env=environment.variables(**variables), capture_output=True,
        text=True, timeout=TRAIN_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done


def train_in_forks(environment: Environment, training: Training, script: Path) -> subprocess.CompletedProcess[str]:
    """The same without a launcher, in processes that have imported torch already: seconds less of each."""
    ranks = {"WORLD_SIZE": str(training.ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    processes = [
        forked.rank.start(
            script, env=environment.variables(**ranks, RANK=str(rank)), cwd=script.parent, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True,
        )
        for rank in range(training.ranks)
    ]  # fmt: skip
    said = [process.communicate(timeout=TRAIN_S) for process in processes]
    assert [process.returncode for process in processes] == [0] * training.ranks, said
    return subprocess.CompletedProcess(
        [str(script)], 0, "".join(out for out, _ in said), "".join(err for _, err in said)
    )


def lines_of(done: subprocess.CompletedProcess[str]) -> list[str]:
    """What the script prints, without what a library prints."""
    return sorted(line for line in done.stdout.splitlines() if line.startswith(("rank ", "step ", "weights ")))


def warnings_of(done: subprocess.CompletedProcess[str]) -> list[str]:
    """What standard error says, without the times, processes and file names that differ from one start to the next."""
    return sorted(re.sub(r"\S*(before|after)\.py\S*|\d+", "", line) for line in done.stderr.splitlines())


def test_two_lines_are_the_only_difference() -> None:
    for training in ALL:
        difference = training.difference()
        assert len(difference) == len(training.lines) == 2, training.script
        assert [line[2:].strip() for line in difference] == list(training.lines.values()), training.script
        assert all(line.startswith("+ ") for line in difference), training.script
        assert "rangewatch" not in training.source, training.script


def test_the_lines_are_those_that_the_documents_give() -> None:
    documents = "".join((ROOT / name).read_text() for name in ("README.md", "docs/integrations.md"))
    for training in ALL:
        for line in training.lines.values():
            assert line.removesuffix(",") in documents or line == "rangewatch.attach(model, optimizer)", line
    assert "rangewatch.attach(model, optimizer, scaler=scaler)" in documents


def test_every_script_is_one_of_the_five() -> None:
    assert sorted(each.stem for each in SCRIPTS.glob("*.py")) == sorted(each.script for each in ALL)
    assert len(ALL) == 5


@pytest.mark.slow
@pytest.mark.parametrize(
    "training", [each for each in ALL if each.script in ("plain_loop", "ddp")], ids=lambda each: each.script
)
def test_it_trains_as_before_and_is_shown(training: Training, shared: Place, tmp_path: Path) -> None:
    check(trained(training, shared, tmp_path, train_in_forks))


@pytest.mark.soak
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("training", ALL, ids=[each.script for each in ALL])
def test_so_it_does_with_nothing_but_what_pip_installs(training: Training, wheel: Path, tmp_path: Path) -> None:
    environment = separate(tmp_path / "own", wheel, training.libraries)
    with serving(environment, tmp_path) as url:
        found = trained(training, Place(environment, url), tmp_path, train)
        assert warnings_of(found.after) == warnings_of(found.before)  # of forks they are behind them
        check(found)


def check(trained: Trained) -> None:
    """All that is said of a training that has taken Rangewatch up."""
    it_trained_as_before_to_the_bit(trained)
    nothing_was_said_on_standard_error(trained)
    the_run_has_all_ranks_and_steps(trained)
    every_layer_is_shown(trained)
    each_rank_has_a_value_of_each_tensor_at_each_step(trained)
    what_is_logged_is_shown(trained)


def it_trained_as_before_to_the_bit(trained: Trained) -> None:
    lines = lines_of(trained.after)
    assert lines == lines_of(trained.before)
    training = trained.training
    assert sum("loss 0x" in line or "loss -0x" in line for line in lines) == training.steps * training.ranks
    assert sum("weights " in line for line in lines) == training.ranks


def nothing_was_said_on_standard_error(trained: Trained) -> None:
    assert "rangewatch" not in trained.after.stderr.lower()
    assert "after.py" not in trained.after.stderr  # where a warning says that its cause is the script's line


def the_run_has_all_ranks_and_steps(trained: Trained) -> None:
    run, training = trained.run, trained.training
    assert (run["name"], run["state"]) == (training.script, "finished")
    assert (run["first_step"], run["last_step"]) == (0, training.steps - 1)
    assert [rank["rank"] for rank in run["ranks"]] == list(range(training.ranks))
    assert not any(rank["faults"] for rank in run["ranks"])
    assert run["first_overflow"] is None


def every_layer_is_shown(trained: Trained) -> None:
    listed = trained.ask("/tensors")["tensors"]
    assert {(tensor["fqn"], tensor["kind"]) for tensor in listed} >= trained.training.tensors
    layers = {fqn for fqn, kind in trained.training.tensors if kind == "output"}
    figure = trained.ask("/figures/layers?kind=output")
    assert "z" in figure["figure"]["data"][0]
    labels = " ".join(row["label"] for row in figure["meta"]["rows"])
    assert all(layer in labels for layer in layers)


def each_rank_has_a_value_of_each_tensor_at_each_step(trained: Trained) -> None:
    training = trained.training
    numbers = {each["tensor"]: (each["fqn"], each["kind"]) for each in trained.ask("/tensors")["tensors"]}
    for rank in range(training.ranks):
        found = trained.ask(f"/slice?axes=step,tensor&rank={rank}")
        assert found["columns"]["steps"] == list(range(training.steps))
        rows = dict(zip(map(numbers.get, found["rows"]["tensors"]), found["values"]["amax"], strict=True))
        for tensor in training.tensors:
            assert None not in rows[tensor], (rank, tensor)


def what_is_logged_is_shown(trained: Trained) -> None:
    for name in trained.training.series:
        answer = trained.ask("/figures/loss_scale" if name == "loss_scale" else f"/figures/series?q={name}")
        assert answer["figure"]["data"], name


@pytest.mark.slow
def test_rangewatch_is_that_of_the_wheel(shared: Place) -> None:
    environment = shared.environment
    script = "import rangewatch, rangewatch_server; print(rangewatch.__file__); print(rangewatch_server.__file__)"
    command = [environment.program("python"), "-c", script]
    said = subprocess.run(command, env=environment.variables(), capture_output=True, text=True, timeout=60, check=True)
    assert all(Path(line).is_relative_to(environment.folder) for line in said.stdout.splitlines())
