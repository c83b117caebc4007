"""`rangewatch report RUN`: the classic text report of a step, from a running server. Needs no torch and no store."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlencode

import urllib3

TIMEOUT_S = 30.0


class ReportError(Exception):
    """Why there is no report, in one line."""


def main(argv: Sequence[str]) -> int:
    """Print the report; 0 when it found a NaN or Inf or the step was named, 1 when there is none, 2 for an error."""
    options = _parser().parse_args(argv)
    try:
        return _report(options)
    except ReportError as error:
        sys.stderr.write(f"rangewatch report: {error}\n")
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="rangewatch report",
        description="Print the frames of one rank and step in call order, up to the first NaN or Inf. Without --step: "
        "the run's first overflow.",
    )
    add = parser.add_argument
    add("run", help="name or number of the run")
    add(
        "--url", default=os.environ.get("RANGEWATCH_URL", "http://127.0.0.1:8642"), help="server (default: %(default)s)"
    )
    add("--step", type=int, help="this step, overflow or not")
    add("--rank", type=int, help="this rank (default: where it overflowed first, else the lowest)")
    add("--frames", type=int, default=21, help="how many tensors to go back (default: %(default)s)")
    add("--json", action="store_true", help="print what the server says of the step, as JSON")
    return parser


def _report(options: argparse.Namespace) -> int:
    run = _run(options)
    first = run["first_overflow"]
    if options.step is None and first is None:
        sys.stdout.write(f"No NaN or Inf in run {run['name']}, steps {run['first_step']} to {run['last_step']}.\n")
        return 1
    step = first["step"] if options.step is None else options.step
    rank = options.rank if options.rank is not None else first["rank"] if first else None
    query = {"step": step, "report_frames": options.frames} | ({} if rank is None else {"rank": rank})
    found = _get(options.url, f"/api/v1/runs/{run['id']}/step?{urlencode(query)}")
    if not found["observed"]:
        raise ReportError(f"nothing is stored for step {step} of rank {found['rank']}")
    sys.stdout.write((json.dumps(found) if options.json else found["report"]) + "\n")
    return 0


def _run(options: argparse.Namespace) -> dict[str, Any]:
    runs = _get(options.url, "/api/v1/runs")["runs"]
    named = [run["id"] for run in runs if run["name"] == options.run or str(run["id"]) == options.run]
    if not named:
        known = ", ".join(run["name"] for run in runs[:5]) or "none yet"
        raise ReportError(f"no run {options.run!r} at {options.url}; there are: {known}")
    return _get(options.url, f"/api/v1/runs/{named[0]}")


def _get(url: str, path: str) -> Any:
    token = os.environ.get("RANGEWATCH_TOKEN")
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        answer = urllib3.request("GET", url.rstrip("/") + path, headers=headers, timeout=TIMEOUT_S, retries=False)
        body = answer.json()
    except (urllib3.exceptions.HTTPError, ValueError):
        raise ReportError(f"no Rangewatch server answers at {url}") from None
    if answer.status != 200:
        raise ReportError(str(body.get("error", answer.status)))
    return body
