"""docs/cli.md and the manual page are what the parsers say."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from rangewatch.commands.help import man
from rangewatch.commands.help.pages import installed_parsers, markdown, rows
from rangewatch.core.commands import COMMANDS

PAGE = Path(__file__).parents[3] / "docs" / "cli.md"


@pytest.fixture(autouse=True)
def no_setting_of_this_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    """The defaults that are shown are those of a shell without settings."""
    for name in [each for each in os.environ if each.startswith("RANGEWATCH_")]:
        monkeypatch.delenv(name)


def test_the_page_is_what_the_parsers_say() -> None:
    assert PAGE.read_text() == markdown(), "python -m rangewatch.commands.help.pages > docs/cli.md"


def test_a_default_that_changes_makes_the_page_untrue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANGEWATCH_PORT", "1234")
    assert PAGE.read_text() != markdown()


def test_no_cell_breaks_a_table() -> None:
    for line in markdown().splitlines():
        if line.startswith("|"):
            assert line.replace("\\|", "").count("|") == 3, line


def test_the_manual_page_has_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert man.main([]) == 0
    page = capsys.readouterr().out.replace("\\-", "-")
    for name, parser in installed_parsers().items():
        section = page.split(f".SS rangewatch {name}\n")[1].split("\n.SS ")[0]
        for _, shown in rows(parser):
            assert all(f"\\fB{typed}\\fR" in section for typed, _ in shown)
    assert page.count("\n.SS ") == len(COMMANDS)


@pytest.mark.slow  # and not everywhere: groff is no part of what the tests need
def test_groff_has_nothing_against_the_manual_page(capsys: pytest.CaptureFixture[str]) -> None:
    if shutil.which("groff") is None:
        pytest.skip("groff is not installed")
    man.main([])
    ended = subprocess.run(
        ["groff", "-man", "-Tutf8", "-ww"], input=capsys.readouterr().out, capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "RANGEWATCH(1)" in ended.stdout
