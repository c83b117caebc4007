"""What the commands that talk to a running server share: its address, its errors in one line, and finding a run."""

from __future__ import annotations

import argparse
import os
from typing import Any

import urllib3

TIMEOUT_S = 30.0


class ServerError(Exception):
    """Why there is no answer, in one line."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The run, and where its server is."""
    parser.add_argument("run", help="name or number of the run")
    parser.add_argument("--url", default=default_url(), help="server (default: %(default)s)")


def default_url() -> str:
    """Where a server is when nothing else is said."""
    return os.environ.get("RANGEWATCH_URL", "http://127.0.0.1:8642")


def find_run(url: str, name: str) -> dict[str, Any]:
    """The run with that name or number, as GET /api/v1/runs/{id} shows it. Raises `ServerError`."""
    runs = get(url, "/api/v1/runs")["runs"]
    named = [run["id"] for run in runs if run["name"] == name or str(run["id"]) == name]
    if not named:
        known = ", ".join(run["name"] for run in runs[:5]) or "none yet"
        raise ServerError(f"no run {name!r} at {url}; there are: {known}")
    found: dict[str, Any] = get(url, f"/api/v1/runs/{named[0]}")
    return found


def get(url: str, path: str) -> Any:
    """The JSON at `path`. Raises `ServerError`."""
    return _request("GET", url, path)


def post(url: str, path: str, body: dict[str, Any]) -> Any:
    """The JSON that answers `body` as JSON. Raises `ServerError`."""
    return _request("POST", url, path, json=body)


def _request(method: str, url: str, path: str, **options: Any) -> Any:
    """The token is that of RANGEWATCH_TOKEN. No redirect is followed: the token would go along."""
    token = os.environ.get("RANGEWATCH_TOKEN")
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    address = url.rstrip("/") + path
    try:
        answer = urllib3.request(
            method, address, headers=headers, timeout=TIMEOUT_S, retries=False, redirect=False, **options
        )
        body = answer.json()
    except (urllib3.exceptions.HTTPError, ValueError):
        raise ServerError(f"no Rangewatch server answers at {url}") from None
    if answer.status not in (200, 201):
        raise ServerError(str(body.get("error", answer.status)) if isinstance(body, dict) else str(answer.status))
    return body
