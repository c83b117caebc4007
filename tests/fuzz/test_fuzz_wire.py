"""The coverage-guided fuzz of decoding: 3,000 bodies, and in `make soak` an hour of them, or `RANGEWATCH_FUZZ_S`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SECONDS = int(os.environ.get("RANGEWATCH_FUZZ_S", "3600"))


@pytest.mark.parametrize("limit", [
    pytest.param("-runs=3000", marks=pytest.mark.slow),
    pytest.param(f"-max_total_time={SECONDS}", marks=[pytest.mark.soak, pytest.mark.timeout(SECONDS + 120)], id="time"),
])  # fmt: skip
def test_any_body_is_decoded_or_refused(tmp_path: Path, limit: str) -> None:
    pytest.importorskip("atheris", reason="has no build for this Python")
    command = [sys.executable, "-m", "tests.fuzz.fuzz_wire", limit, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, f"{[each.name for each in tmp_path.iterdir()]}\n{done.stderr[-3_000:]}"
    units = re.search(r"number_of_executed_units: (\d+)", done.stderr)
    covered = re.findall(r"cov: (\d+)", done.stderr)
    assert units is not None and int(units[1]) > 1_000 and int(covered[-1]) > 250, "it has got behind the checks"
    print(f"{units[1]} executions, {covered[-1]} branches")
