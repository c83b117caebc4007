"""`rangewatch report` against a real server."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np

from tests.server.conftest import Server, batch, catalogue, opening


def report(server_url: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rangewatch", "report", "--url", server_url, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


def test_report_of_the_first_overflow(server: Server) -> None:
    known = catalogue(30, kinds=("output",))
    bad = np.zeros((30, 10))
    bad[25:, 7] = 1
    server.post(opening(known, run="clean"))
    server.post(batch(known, 0, range(5), run="clean"))
    server.post(opening(known, run="broken"))
    server.post(batch(known, 0, range(10), {"inf_count": bad, "full_numel": 32.0, "amin": 0.5}, run="broken"))
    found = report(server.url, "broken")
    lines = found.stdout.splitlines()
    assert (found.returncode, lines[0]) == (0, "Detected inf/nan during step=7 (run broken, rank 0)")
    assert lines[1] == "Last 21 frames:"
    assert lines[-2:] == ["                  blocks.25.ff Linear", "5.00e-01      inf output"]
    assert len(report(server.url, "broken", "--frames", "3").stdout.splitlines()) == 3 + 2 * 3
    assert report(server.url, "2", "--step", "3").stdout.startswith("No inf/nan in step=3")
    assert json.loads(report(server.url, "broken", "--json").stdout)["first_nonfinite"] == 25
    clean = report(server.url, "clean")
    assert (clean.returncode, clean.stdout) == (1, "No NaN or Inf in run clean, steps 0 to 4.\n")


def test_what_is_wrong_is_one_line(server: Server) -> None:
    for arguments, said in (
        ((server.url, "nothing"), "no run 'nothing'"),
        (("http://127.0.0.1:9", "x"), "no Rangewatch server answers at http://127.0.0.1:9"),
    ):
        found = report(*arguments)
        assert (found.returncode, len(found.stderr.splitlines())) == (2, 1)
        assert said in found.stderr
