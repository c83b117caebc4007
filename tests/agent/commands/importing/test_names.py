"""Names of runs and series that `rangewatch import` sends: of a run's own file alone, and such as a server takes."""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from rangewatch.commands.importing import command, wandb
from tests.agent.commands.importing.run_files import field, row, run_file
from tests.agent.commands.importing.test_import import LOGS, about, bring, project
from tests.agent.commands.importing.test_import import names as server_names
from tests.server.process import Run, Server

__all__ = ["project"]


def names(base: str, top: Path) -> list[str]:
    return [wandb.run(base, top, path).name for path in wandb.find(top)]


def test_names(tmp_path: Path) -> None:
    """Also of a run that was resumed, whose identity is the same, and of one that is named itself."""
    named = field(17, field(8, "naïve\n".encode())), row(0, loss="1")
    for folder in ("run-1-a", "offline-run-2-b", "run-3-b"):
        path = run_file(tmp_path / "wandb" / folder / f"run-{folder[-1]}.wandb", *named)
    run_file(tmp_path / "wandb" / "run-4-c" / "run-c.wandb", field(17, field(8, b"")), row(0, loss="1"))
    (tmp_path / "wandb" / "latest-run").symlink_to("run-3-b")
    wanted = ["naïve\n 1-a", "naïve\n 2-b", "naïve\n 3-b", "4-c"]
    assert names("w", tmp_path / "wandb") == [f"w/{name}" for name in wanted]
    assert names("w", tmp_path) == [f"w/wandb/{name}" for name in wanted]
    for top in (path, path.parent, tmp_path / "wandb" / "latest-run"):
        assert names("w", top) == ["w"]
    shutil.copy(path, path.parent / "run-z.wandb")
    assert names("w", path.parent) == ["w", "w/naïve\n z"]
    shutil.rmtree(tmp_path / "wandb" / "run-1-a")
    assert names("w", tmp_path / "wandb") == [f"w/{name}" for name in (*wanted[1:3], "run-3-b/naïve\n z", wanted[3])]


def test_files_in_other_folders_than_w_and_bs_have_names_of_their_own(tmp_path: Path) -> None:
    for folder in ("first", "second"):
        run_file(tmp_path / folder / "run-a.wandb", row(0, loss="1"))
    assert names("w", tmp_path) == ["w/first/a", "w/second/a"]
    assert names("w", tmp_path / "first") == ["w/a"]


def test_names_that_a_server_does_not_take(
    served: Server, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of series: they are left out, and all else of the run and the runs after it are there."""
    items = '{"\\ud800": 1, "nul\\u0000": 2, "\\ud83d\\ude00": 3}'
    run_file(tmp_path / "run-1.wandb", row(0, nested=items, loss="1"))
    run_file(tmp_path / "run-2.wandb", row(0, loss="1"))
    assert bring(served, str(tmp_path), "--run", run.name) == 0
    assert about(served, f"{run.name}/1")["series"] == ["loss", "nested.\U0001f600"]
    assert about(served, f"{run.name}/2")["series"] == ["loss"]
    said = f"{run.name}/1: 2 values left out, of a name that is empty, too long, or has NUL or a lone surrogate\n"
    assert capsys.readouterr().err == said


def test_a_runs_name_is_made_one_that_a_server_takes(served: Server, run: Run, tmp_path: Path) -> None:
    for identity, shown in (("1", b"a\0b"), ("2", "ä".encode() * 5000)):
        run_file(tmp_path / f"run-{identity}.wandb", field(17, field(8, shown)), row(0, loss="1"))
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    run_file(path / "run-3.wandb", row(0, loss="1"))
    assert bring(served, str(tmp_path), "--run", run.name) == 0
    found = [each.removeprefix(run.name) for each in server_names(served, run.name)]
    room_bytes = 4096 - len(f"{run.name}/ 2")
    assert found == ["/\\udcff/3", "/a\ufffdb 1", f"/{'ä' * (room_bytes // 2)} 2"]


def test_a_time_and_names_of_trackio_that_a_server_does_not_take(served: Server, run: Run, project: Path) -> None:
    odd = project / os.fsdecode(b"\xff.db")
    (project / "project.db").rename(odd)
    with closing(sqlite3.connect(bytes(odd))) as connection, connection:
        connection.execute("UPDATE metrics SET timestamp = '9999-01-01T00:00:00+00:00', run_name = 'a' || char(0)")
    assert bring(served, str(project), "--run", run.name) == 0
    assert server_names(served, run.name) == [
        f"{run.name}/\\udcff/a\ufffd", f"{run.name}/\\udcff/a\ufffd bbbbbbbb"
    ]  # fmt: skip


def test_what_follows_a_dot_in_a_folders_name_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("llama-3.1-a", "llama-3.2-c"):
        shutil.copytree(LOGS / "first", tmp_path / name)
        assert command.main([str(tmp_path / name), "--list"]) == 0
        assert capsys.readouterr().out.startswith(f"{name}: 133 values")
