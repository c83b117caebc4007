"""A fork cannot tell that Python was not started for it: where it finds modules, what it draws, what it was told."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests import forked
from tests.forked.forker import Forker

SHOW = "import json, sys; print(json.dumps([sys.path, sys.argv]))"
DRAW = "import random, numpy, torch; print(random.random(), numpy.random.rand(), torch.rand(1).item())"


@pytest.mark.parametrize("arguments", [("-c", SHOW), ("-m", "show"), ("show.py",), ("linked/show.py",)])
def test_modules_are_found_where_python_finds_them(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    (tmp_path / "show.py").write_text(SHOW)
    (tmp_path / "linked").symlink_to(tmp_path)
    started = subprocess.check_output([sys.executable, *arguments, "more"], cwd=tmp_path)
    assert json.loads(forked.server.run(*arguments, "more", cwd=tmp_path).stdout) == json.loads(started)


@pytest.mark.slow
def test_what_is_only_in_the_repository_is_not_there(tmp_path: Path) -> None:
    """Nor is it there for having been imported already."""
    for name in ("tests", "bench", "tools", "examples", "forker"):
        assert f"No module named '{name}'" in forked.rank.run("-c", f"import {name}", cwd=tmp_path).stderr


def test_each_draws_numbers_of_its_own() -> None:
    first, second = (forked.rank.run("-c", DRAW).stdout.split() for _ in range(2))
    assert [one == other for one, other in zip(first, second, strict=True)] == [False] * 3


def test_a_template_has_nothing_of_what_the_first_test_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is there for the tests after it, too."""
    monkeypatch.setenv("PYTHONOPTIMIZE", "1")  # read as Python starts
    assert Forker().run("-c", "import sys; print(sys.flags.optimize)").stdout == f"{sys.flags.optimize}\n"
