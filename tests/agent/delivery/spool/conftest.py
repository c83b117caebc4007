"""What an attached model writes goes where the test can see it, and nobody else's spools are near."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def spool_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "disk"
    monkeypatch.setenv("RANGEWATCH_SPOOL_DIR", str(folder))
    return folder
