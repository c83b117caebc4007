"""`rangewatch import FILE.csv`, and what it says where TensorBoard is not installed."""

from __future__ import annotations

import builtins
import math
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from rangewatch.commands.importing import command
from rangewatch.commands.importing.scalars import ImportFailed, Scalars
from rangewatch.commands.importing.sources import read_csv
from tests.server.process import Run, Server

LOGS = Path(__file__).parent / "logs"


def read(folder: Path, text: str) -> Scalars:
    (folder / "run.csv").write_text(text)
    return read_csv("run", folder / "run.csv")


def test_a_file_is_a_run(served: Server, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / f"{run.name}.csv"
    path.write_text("step,loss,lr\n0,2.5,0.1\n10,1.5,\n20,inf,0.05\n")
    assert command.main([str(path), "--url", served.url]) == 0
    assert capsys.readouterr().out == f"{run.name}: 5 values of 2 series, steps 0 to 20\n"
    stored = run.get()
    assert (stored["state"], stored["last_step"], stored["series"]) == ("finished", 20, ["loss", "lr"])


def test_a_table_of_wandb(tmp_path: Path) -> None:
    """As pandas writes `run.scan_history()`: an index without a name, W&B's own columns, a row without global_step."""
    found = read(
        tmp_path,
        ",_step,_timestamp,_runtime,train/loss,train/global_step,eval/ok,note\n"
        "0,0,1795338000.5,1,2.5,10.0,,text\n1,1,1795338001.5,2,,20.0,True,\n2,2,1795338002.5,3,nan,,,\n",
    )
    assert found.values["train/loss"] | {2: 0.0} == {10: 2.5, 2: 0.0}
    assert math.isnan(found.values["train/loss"][2])
    assert found.values["eval/ok"] == {20: 1.0}
    assert set(found.values) == {"train/loss", "eval/ok"}
    assert (found.first_ns, found.last_ns) == (1795338000500000000, 1795338002500000000)
    assert found.left_out == {"that are no numbers": 1}


def test_rows_without_a_step_are_counted(tmp_path: Path) -> None:
    found = read(tmp_path, "epoch,step,loss\n0,5,1\n0,,2\n0,half,3\n1,7.5,4\n1,-1,5\n")
    assert found.values == {"epoch": {5: 0.0}, "loss": {5: 1.0}}
    assert sum(found.left_out.values()) == 8


@pytest.mark.parametrize("text", ["", "a,b\n1,2\n", "\x00" * 50, "\xff\xfe"])
def test_without_a_column_of_steps_it_is_refused(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ImportFailed, match=r"no column train/global_step|NUL"):
        read(tmp_path, text)
    assert command.main([str(tmp_path / "run.csv"), "--list"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_odd_rows_never_end_it_otherwise(tmp_path: Path) -> None:
    found = read(tmp_path, 'step,loss\n1,"a\n2,3\n4,5,6,7\n')
    assert found.values == {}
    with pytest.raises(ImportFailed, match="after line 1: field larger than"):
        read(tmp_path, "step,loss\n1," + "1" * 200_000)


def test_names_that_a_server_does_not_take(tmp_path: Path) -> None:
    found = read(tmp_path, f"step,{'x' * 5000},\N{LATIN SMALL LETTER A WITH DIAERESIS}\n1,2,3\n")
    assert found.values == {"ä": {1: 3.0}}
    assert found.left_out == {"of a name that is empty, too long, or has NUL or a lone surrogate": 1}


def test_a_runs_name_is_made_one_that_a_server_takes(
    served: Server, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + f"/{run.name} ".encode() + b"\xff.csv"))
    path.write_text("step,loss\n0,1\n")
    assert command.main([str(path), "--url", served.url]) == 0
    assert capsys.readouterr().out.startswith(f"{run.name} \\udcff: 1 values")


def test_what_follows_a_dot_in_a_folders_name_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tensorboard")
    for name in ("llama-3.1-a", "llama-3.2-c"):
        shutil.copytree(LOGS / "first", tmp_path / name)
        assert command.main([str(tmp_path / name), "--list"]) == 0
        assert capsys.readouterr().out.startswith(f"{name}: 133 values")


def test_without_tensorboard_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = builtins.__import__

    def no_tensorboard(name: str, *rest: Any) -> Any:
        if name.startswith("tensorboard"):
            raise ModuleNotFoundError("No module named 'tensorboard'", name="tensorboard")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", no_tensorboard)
    assert command.main([str(LOGS / "first"), "--list"]) == 2
    said = "rangewatch import: tensorboard is not installed; pip install 'rangewatch[tensorboard]'\n"
    assert capsys.readouterr().err == said
