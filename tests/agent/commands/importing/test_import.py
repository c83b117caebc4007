"""`rangewatch import` of logs that torch.utils.tensorboard wrote (make_logs.py), into a real server."""

from __future__ import annotations

import math
import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rangewatch.commands.importing import command, scalars
from rangewatch.commands.importing.scalars import ImportFailed, Scalars, send
from rangewatch.commands.importing.sources import read_tensorboard
from rangewatch.delivery.transport import Transport
from rangewatch.report.plotly_figures import decoded
from tests.server.process import Run, Server

pytest.importorskip("tensorboard", reason="the extra `tensorboard`; `make install` brings it")

LOGS = Path(__file__).parent / "logs"
RUNS = ["first", "pairs/losses_train", "pairs/losses_valid", "second/new_style"]


def bring(server: Server, *arguments: str) -> int:
    return command.main([*arguments, "--url", server.url])


def names(server: Server, begin: str) -> list[str]:
    """The runs of the server whose names begin so."""
    return sorted(each["name"] for each in server.get("/api/v1/runs")["runs"] if each["name"].startswith(begin))


def shown(server: Server, run: str, name: str, **span: int) -> dict[int, float]:
    """What the dashboard's figure has of a series."""
    number = next(each["id"] for each in server.get("/api/v1/runs")["runs"] if each["name"] == run)
    answer = server.client.get(f"/api/v1/runs/{number}/figures/series", params={"q": name, "columns": 2000, **span})
    trace = answer.json()["figure"]["data"][0]
    x, y = (decoded(trace[axis]) if isinstance(trace[axis], dict) else np.array(trace[axis]) for axis in "xy")
    return dict(zip(map(int, x), map(float, y), strict=True))


def about(server: Server, run: str) -> dict[str, Any]:
    number = next(each["id"] for each in server.get("/api/v1/runs")["runs"] if each["name"] == run)
    return server.get(f"/api/v1/runs/{number}")


def test_each_folder_is_a_run_with_its_series(served: Server, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert bring(served, str(LOGS), "--run", run.name) == 0
    assert names(served, run.name) == [f"{run.name}/{each}" for each in RUNS]
    assert f"{run.name}/first: 133 values of 3 series, steps 0 to 119\n" in capsys.readouterr().out
    first = about(served, f"{run.name}/first")
    assert (first["state"], first["first_step"], first["last_step"]) == ("finished", 0, 119)
    assert first["series"] == ["lr", "odd", "train/loss"]


def test_the_values_are_those_that_were_written(served: Server, run: Run) -> None:
    bring(served, str(LOGS / "first"), "--run", run.name)
    loss = shown(served, run.name, "train/loss")
    wanted = {step: 2.0 if step >= 90 else float(np.float32(1 / (step + 1))) for step in range(120)}
    assert loss == pytest.approx(wanted, rel=1e-12)
    lr = shown(served, run.name, "lr")
    assert lr == pytest.approx({step: float(np.float32(0.1 * 0.5 ** (step // 10))) for step in range(0, 100, 10)})


def test_nan_and_inf_are_values() -> None:
    found = read("first")
    assert math.isnan(found.values["odd"][0])
    assert found.values["odd"] | {0: 0.0} == {0: 0.0, 1: math.inf, 2: -2.5}


def test_tensors_of_one_number_are_scalars_in_full_precision() -> None:
    found = read("second/new_style")
    assert found.values["precise"] == dict.fromkeys(range(0, 5000, 1000), 0.1)
    assert found.values["train/loss"] == {step * 1000: step / 4 for step in range(5)}


def read(name: str, top: Path = LOGS) -> Scalars:
    return read_tensorboard(name, sorted((top / name).glob("*tfevents*")))


def test_again_changes_nothing(served: Server, run: Run) -> None:
    bring(served, str(LOGS), "--run", run.name)
    first = f"{run.name}/first"
    before = about(served, first), shown(served, first, "train/loss")
    assert bring(served, str(LOGS), "--run", run.name) == 0
    after = about(served, first), shown(served, first, "train/loss")
    for each in (before[0], after[0]):
        for name in ("last_seen_ns", "now_ns"):
            each.pop(name, None)
        for rank in each["ranks"]:
            rank.pop("last_seen_ns", None)
    assert before == after
    assert len(names(served, run.name)) == len(RUNS)


def test_a_log_that_has_grown_stands_in_place_of_the_older(served: Server, run: Run, tmp_path: Path) -> None:
    folder = tmp_path / run.name
    folder.mkdir()
    older, newer = sorted((LOGS / "first").iterdir())
    shutil.copy(older, folder)
    bring(served, str(folder))
    assert shown(served, run.name, "train/loss")[95] == pytest.approx(1 / 96)
    shutil.copy(newer, folder)
    bring(served, str(folder))
    assert shown(served, run.name, "train/loss")[95] == 2.0
    assert max(shown(served, run.name, "train/loss")) == 119


@pytest.mark.parametrize("cut", [1, 5, 13, 100, 1000])
def test_a_file_whose_end_is_missing_is_read_as_far_as_it_goes(tmp_path: Path, cut: int) -> None:
    whole = min((LOGS / "first").iterdir())
    (tmp_path / whole.name).write_bytes(whole.read_bytes()[:-cut])
    found = read_tensorboard("cut", [tmp_path / whole.name])
    assert 80 <= len(found.values["train/loss"]) <= 100


def test_what_is_no_event_file_is_refused(
    served: Server, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "events.out.tfevents.1"
    for content in (b"\xff" * 100, struct.pack("<QI", 3, 0) + b"\x08\xff\xff" + b"\0" * 4):
        file.write_bytes(content)
        assert bring(served, str(tmp_path)) == 2
        said = capsys.readouterr().err
        assert f"{file} is not a TensorBoard event file" in said and said.count("\n") == 1
    (tmp_path / "sound").mkdir()
    shutil.copy(min((LOGS / "first").iterdir()), tmp_path / "sound")
    assert bring(served, str(tmp_path), "--run", run.name) == 2
    assert names(served, run.name) == [f"{run.name}/sound"]
    shutil.rmtree(tmp_path / "sound")
    file.write_bytes(b"")
    assert bring(served, str(tmp_path)) == 1


def test_bytes_changed_at_random_never_end_it_otherwise(tmp_path: Path) -> None:
    """Each is read, or refused as no event file."""
    whole = (min((LOGS / "second" / "new_style").iterdir())).read_bytes()
    random = np.random.default_rng(0)
    outcomes = set()
    for _ in range(150):
        content = bytearray(whole)
        for at in random.integers(0, len(content), 3):
            content[at] = random.integers(256)
        file = tmp_path / "tfevents"
        file.write_bytes(content)
        try:
            outcomes.add(type(read_tensorboard("odd", [file])))
        except ImportFailed:
            outcomes.add(ImportFailed)
    assert outcomes == {Scalars, ImportFailed}


def test_list_needs_no_server(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([str(LOGS), "--list", "--url", "http://127.0.0.1:9"]) == 0
    assert [line.split(":")[0] for line in capsys.readouterr().out.splitlines()] == [f"logs/{each}" for each in RUNS]


@pytest.mark.parametrize(
    ("folder", "url", "status", "says"),
    [
        (str(LOGS / "none"), "http://127.0.0.1:9", 2, "there is no "),
        (str(LOGS.parent), "not a url", 2, "url"),
        (str(LOGS), "http://127.0.0.1:9", 2, "does not accept it now"),
    ],
)
def test_what_is_wrong_is_one_line(
    capsys: pytest.CaptureFixture[str], folder: str, url: str, status: int, says: str
) -> None:
    assert command.main([folder, "--url", url]) == status
    said = capsys.readouterr().err
    assert said.startswith("rangewatch import: ") and says in said and said.count("\n") == 1


def test_what_a_server_does_not_take_is_left_out_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scalars, "MOST_VALUES", 3)
    found = Scalars("run")
    for step in (-1, 0, 1, 2, 3, 10**13):
        found.add("loss", step, 1.0, 5)
    found.add("", 0, 1.0, 5)
    found.add("x" * 5000, 0, 1.0, 5)
    assert found.values == {"loss": {0: 1.0, 1: 1.0, 2: 1.0}}
    assert sum(found.left_out.values()) == 5
    assert (found.first_ns, found.last_ns) == (5, 5)


def test_a_value_without_a_time_does_not_move_the_runs_start() -> None:
    found = Scalars("run")
    for step, time_ns in enumerate((0, 5, 0, 9, 0)):
        found.add("loss", step, 1.0, time_ns)
    assert (found.first_ns, found.last_ns, found.count()) == (5, 9, 5)


def test_no_more_names_than_a_server_takes() -> None:
    found = Scalars("run")
    for number in range(scalars.MOST_NAMES + 2):
        found.add(f"name {number}", 0, 1.0, 5)
    assert len(found.values) == scalars.MOST_NAMES
    assert sum(found.left_out.values()) == 2


@pytest.mark.parametrize("stride", [1, 50, 64, 1000])
def test_long_and_wide_runs_fit_the_batches_that_a_server_takes(stride: int) -> None:
    found = Scalars("long", first_ns=1, last_ns=2)
    for number in range(300):
        found.values[f"name {number:03}"] = {step * stride: float(number) for step in range(300)}
    batches = list(found.batches(256))
    assert sum(len(rows.steps) for series in batches for rows in series) == 300 * 300
    for series in batches:
        for rows in series:
            assert len(series) <= 256 and len(rows.steps) <= scalars.BATCH_STEPS
            assert len(np.unique(rows.steps // scalars.SPAN)) <= scalars.BATCH_SPANS


def test_a_long_run_arrives_whole_with_its_progress(served: Server, run: Run) -> None:
    found = Scalars(run.name, first_ns=1, last_ns=2)
    found.values = {"loss": {step * 1000: step / 7 for step in range(300)}}
    reported: list[tuple[int, int]] = []
    send(found, "a test", Transport(served.url, None), lambda done, batches: reported.append((done, batches)))
    assert reported == [(done, 3) for done in range(1, 4)]
    shown_run = run.get()
    found_steps = (shown_run["first_step"], shown_run["last_step"])
    assert (shown_run["state"], *found_steps, shown_run["series"]) == ("finished", 0, 299_000, ["loss"])


@pytest.mark.slow
def test_what_the_installed_tensorboard_writes_is_read(tmp_path: Path) -> None:
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path / "now")) as writer:
        for step in range(20):
            writer.add_scalar("loss", step / 8, step)
    assert read("now", tmp_path).values == {"loss": {step: step / 8 for step in range(20)}}
