"""`rangewatch completion`: a real bash completes with its script, and the other shells can read theirs."""

from __future__ import annotations

import contextlib
import io
import shutil
import subprocess
from pathlib import Path

import pytest

from rangewatch.commands import completion
from rangewatch.core.commands import COMMANDS

COMPLETE = """
source "$1"
shift
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
"$(complete -p rangewatch | sed 's/.* -F \\([^ ]*\\) .*/\\1/')" rangewatch
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """What the command prints for each shell, in files."""
    found = {}
    for shell in completion.SHELLS:
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            assert completion.main([shell]) == 0
        found[shell] = tmp_path_factory.mktemp("completion") / f"rangewatch.{shell}"
        found[shell].write_text(said.getvalue())
    return found


def bash(script: Path, *words: str) -> list[str]:
    """What a Tab after these words offers."""
    command = ["bash", "--norc", "-c", COMPLETE, "bash", str(script), "rangewatch", *words]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert ended.stderr == ""
    return ended.stdout.split()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["re"], ["report", "restore", "replay"]),
        (["serve", "--log-"], ["--log-format", "--log-level"]),
        (["serve", "--log-format", ""], ["text", "json"]),
        (["serve", "--sync", "f"], ["full"]),
        (["linkcheck", "--backend", ""], ["nccl", "gloo"]),
        (["level", "my-run", "gr"], ["grads"]),
        (["export", "my-run", "a.csv", "--format", "p"], ["parquet"]),
        (["token", ""], ["create", "list", "revoke"]),
        (["token", "create", "me", "--role", ""], ["ingest", "view", "admin"]),
        (["completion", ""], list(completion.SHELLS)),
    ],
)
def test_bash_completes(scripts: dict[str, Path], words: list[str], offered: list[str]) -> None:
    assert bash(scripts["bash"], *words) == offered


def test_bash_completes_commands_and_files(scripts: dict[str, Path], tmp_path: Path) -> None:
    assert bash(scripts["bash"], "") == list(COMMANDS)
    (tmp_path / "runs.db").touch()
    (tmp_path / "runs").mkdir()
    assert sorted(bash(scripts["bash"], "restore", f"{tmp_path}/ru")) == [f"{tmp_path}/runs", f"{tmp_path}/runs.db"]
    assert bash(scripts["bash"], "serve", "--db", f"{tmp_path}/runs.")[:1] == [f"{tmp_path}/runs.db"]
    assert bash(scripts["bash"], "replay", f"{tmp_path}/ru") == [f"{tmp_path}/runs"]


def test_a_host_without_the_server_completes_what_it_has(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(COMMANDS, "serve", COMMANDS["serve"]._replace(module="missing_module.serve"))
    completion.main(["bash"])
    said = capsys.readouterr().out
    assert "report" in said and "serve" not in said.replace("server", "")


def test_the_other_shells_have_every_command(scripts: dict[str, Path]) -> None:
    for shell in ("zsh", "fish", "tcsh"):
        text = scripts[shell].read_text()
        assert all(name in text for name in COMMANDS), shell
        assert "log-format" in text, shell


def test_the_shell_can_read_it(scripts: dict[str, Path]) -> None:
    """Those that are installed here; bash is everywhere."""
    for shell, option in {"bash": "-n", "zsh": "-n", "fish": "--no-execute"}.items():
        if shutil.which(shell) or shell == "bash":
            command = [shell, option, str(scripts[shell])]
            ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
            assert (ended.returncode, ended.stderr) == (0, ""), shell
