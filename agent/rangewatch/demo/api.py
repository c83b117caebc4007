"""What the demo asks of the server: is it there, which run is ours, and has anything overflowed yet."""

from __future__ import annotations

import os
from typing import Any

import urllib3

TIMEOUT_S = 5.0


class RunReader:
    """Reads one run of a server by its name. A server that is slow or away gives None, never an exception."""

    def __init__(self, url: str, run: str) -> None:
        self._url, self._run = url, run
        self._id: int | None = None

    def summary(self) -> dict[str, Any] | None:
        """`GET /api/v1/runs/{id}` of the run, or None while the server does not know it."""
        if self._id is None:
            runs = (get_json(f"{self._url}/api/v1/runs") or {}).get("runs", [])
            self._id = next((run["id"] for run in runs if run["name"] == self._run), None)
        return None if self._id is None else get_json(f"{self._url}/api/v1/runs/{self._id}")

    def page(self, query: str = "") -> str:
        """Address of the run's page, or of one below it such as `/step?step=3&rank=0`."""
        return f"{self._url}/runs/{self._id}{query}"


def is_server(url: str) -> bool:
    """Does a Rangewatch server answer at `url`?"""
    return (get_json(f"{url}/healthz") or {}).get("status") == "ok"


def get_json(url: str) -> dict[str, Any] | None:
    """The JSON object at `url`, or None for whatever else comes back."""
    token = os.environ.get("RANGEWATCH_TOKEN")
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        answer = urllib3.request("GET", url, headers=headers, timeout=TIMEOUT_S, retries=False)
        found = answer.json() if answer.status == 200 else None
    except (urllib3.exceptions.HTTPError, ValueError):
        return None
    return found if isinstance(found, dict) else None
