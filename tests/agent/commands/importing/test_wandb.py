"""`rangewatch import` of runs that wandb itself wrote offline (make_wandb_logs.py), into a real server."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from rangewatch.commands.importing import command, wandb, wandb_file
from tests.agent.commands.importing.run_files import LOGS, NO_NUMBERS, field, long_run, path_of, row, run_file
from tests.agent.commands.importing.test_import import about, bring, names, shown
from tests.server.process import Run, Server

BASE, SECOND, TRAINER = (
    "base run 20261122_150546-aaaa1111", "base run 20261122_150547-bbbb2222", "trainer 20261122_150548-cccc3333",
)  # fmt: skip
RUNS = [BASE, SECOND, "older/older 20261122_150551-older000", TRAINER]


def test_each_run_of_a_folder_is_a_run(served: Server, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert bring(served, str(LOGS), "--run", run.name) == 0
    assert names(served, run.name) == [f"{run.name}/{each}" for each in RUNS]
    first = about(served, f"{run.name}/{BASE}")
    assert (first["state"], first["first_step"], first["last_step"]) == ("finished", 0, 100)
    assert first["started_ns"] // 10**9 == 1_795_359_947
    nested = ["optimizer.deep.er", "optimizer.grad_norm"]
    assert first["series"] == ["flag", "float32", "late", "later", "odd", "one", *nested, "train/loss", "whole"]
    loss = shown(served, f"{run.name}/{BASE}", "train/loss")
    assert loss == pytest.approx({step: 1 / (step + 1) for step in range(20)})
    assert shown(served, f"{run.name}/{SECOND}", "train/loss") == {0: 0.0, 1: 0.125, 2: 0.25}
    said = capsys.readouterr()
    assert f"{run.name}/{TRAINER}: 12 values of 3 series, steps 10 to 40\n" in said.out
    assert f"{run.name}/{BASE}: 7 values left out, {NO_NUMBERS}\n" in said.err
    assert f"{run.name}/{SECOND}: 26 values left out, of the system, which have no step\n" in said.err


def test_one_file_is_a_run_by_the_name_it_is_given(served: Server, run: Run) -> None:
    assert bring(served, str(path_of("cccc3333")), "--run", run.name) == 0
    assert names(served, run.name) == [run.name]
    assert shown(served, run.name, "mine") == {10: 5.0, 20: 10.0, 30: 15.0, 40: 20.0}


@pytest.mark.parametrize("identity", ["aaaa1111", "older000"])
def test_values_of_the_newer_and_of_the_older_writer(identity: str) -> None:
    """The one writes the path to each nested value, the other nested JSON."""
    found = wandb.read(path_of(identity))
    assert found.values["optimizer.grad_norm"] == {step: 2.0 * step for step in range(20)}
    assert found.values["optimizer.deep.er"] == {step: float(step) for step in range(20)}
    assert found.values["flag"] == {step: float(step % 2 == 0) for step in range(20)}
    assert math.isnan(found.values["odd"].pop(20))
    assert found.values["odd"] == {21: math.inf, 22: -math.inf}
    assert [found.values[name][20] for name in ("whole", "float32", "one")] == [2.0**70, float(np.float32(0.1)), 1.5]
    assert (found.values["late"], found.values["later"]) == ({100: 2.0}, {100: 3.0})
    assert (found.left_out, found.remarks) == ({NO_NUMBERS: 7}, [])


def test_the_step_is_the_trainers_where_it_is_logged() -> None:
    """Not that of W&B, which counts rows; of a step that comes again the later value stands."""
    found = wandb.read(path_of("cccc3333"))
    assert found.values["train/loss"] == {10: 1 / 10, 20: 1 / 20, 30: 1 / 30, 40: 1 / 40}
    assert found.values["mine"] == {10: 5.0, 20: 10.0, 30: 15.0, 40: 20.0}


def test_again_changes_nothing_and_what_has_grown_stands_instead(served: Server, run: Run, tmp_path: Path) -> None:
    whole = path_of("aaaa1111").read_bytes()
    path = tmp_path / "wandb" / "run-20261122_150546-aaaa1111" / "run-aaaa1111.wandb"
    path.parent.mkdir(parents=True)
    name, seen = f"{run.name}/{BASE}", []
    for size in (len(whole) // 2, len(whole) // 2, len(whole)):
        path.write_bytes(whole[:size])
        assert bring(served, str(tmp_path / "wandb"), "--run", run.name) == 0
        seen.append(shown(served, name, "train/loss"))
    assert 5 < len(seen[0]) < 20 and seen[0] == seen[1] and len(seen[2]) == 20
    assert names(served, run.name) == [name] and about(served, name)["last_step"] == 100


def test_a_record_over_several_blocks(tmp_path: Path) -> None:
    long = long_run(tmp_path)
    found = wandb.read(long)
    assert long.stat().st_size > 4 * wandb_file.BLOCK_BYTES
    assert found.values == {"loss": {step: step / 8 for step in range(60)}}
    assert (found.name, found.remarks, found.left_out) == ("", [], {NO_NUMBERS: 60})


def test_a_run_that_logged_nothing(served: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run-1.wandb").write_bytes(b"")
    assert bring(served, str(tmp_path)) == 1
    run_file(tmp_path / "run-1.wandb", field(17, field(8, b"named")))
    assert bring(served, str(tmp_path)) == 1
    assert capsys.readouterr().err.count("there is nothing of TensorBoard, W&B or trackio in ") == 2


def test_a_run_without_its_end_is_not_finished(served: Server, run: Run, tmp_path: Path) -> None:
    """Killed, or going on; when only its end is new it is finished all the same."""
    whole = path_of("aaaa1111").read_bytes()
    path = tmp_path / "w" / "run-aaaa1111.wandb"
    path.parent.mkdir()
    last = whole.rindex(b"\x92\x01") - 7  # key 18 as a varint: the record of the exit
    for size, is_finished in ((last, False), (len(whole), True)):
        path.write_bytes(whole[:size])
        assert bring(served, str(path), "--run", run.name) == 0
        assert run.get()["state"] in (["finished"] if is_finished else ["live", "stale"])
        assert run.get()["last_step"] == 100


def test_what_is_left_out_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    named = field(17, field(8, b"a\x1b[2J\n"))
    run_file(tmp_path / "w" / "run-1" / "run-1.wandb", named, row(0, loss="1", none="null"))
    assert command.main([str(tmp_path), "--list", "--run", "w"]) == 0
    said = capsys.readouterr()
    assert said.err == f"w/w/run-1/a\\x1b[2J\\n 1: 1 values left out, {NO_NUMBERS}\n"
    assert said.out == "w/w/run-1/a\\x1b[2J\\n 1: 1 values of 1 series, steps 0 to 0\n"


@pytest.mark.slow
def test_what_the_installed_wandb_writes_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = pytest.importorskip("wandb", reason="wandb_logs/ has what a real one wrote")
    monkeypatch.setenv("WANDB_MODE", "offline")
    with installed.init(dir=str(tmp_path), project="p", name="now") as run:
        for step in range(20):
            run.log({"loss": step / 8})
    installed.teardown()  # its service writes the file, and may do so later than `finish` returns
    (path,) = wandb.find(tmp_path)
    found = wandb.run("w", tmp_path, path)
    assert found.name.startswith("w/wandb/now ") and found.is_finished
    assert found.values == {"loss": {step: step / 8 for step in range(20)}}
