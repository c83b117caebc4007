"""A clean planted machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from rangewatch.checks.doctor.machine import Machine
from tests.agent.checks.doctor.planted import Planted

_answers: dict[tuple[str, ...], str] = {}
"""Of the programs of all planted machines. They are real ones, but each would be started again in every test."""


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Planted:
    machine = Planted(tmp_path / "machine")
    run = Machine.run

    def run_once(asked: Machine, command: Sequence[str], timeout_s: float) -> str:
        root = str(machine.root)
        program = machine.root / command[0].lstrip("/")
        said_by = machine.root.glob("packages/**/*.py") if command[0] == asked.python else [program]
        key = (*command, *(f"{path.relative_to(root)} {path.read_text()}" for path in sorted(said_by)))
        if key not in _answers:
            _answers[key] = run(asked, command, timeout_s).replace(root, "{root}")
        return _answers[key].replace("{root}", root)

    monkeypatch.setattr(Machine, "run", run_once)
    return machine
