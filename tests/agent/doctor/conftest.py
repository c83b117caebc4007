"""A clean planted machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.agent.doctor.planted import Planted


@pytest.fixture
def planted(tmp_path: Path) -> Planted:
    return Planted(tmp_path / "machine")
