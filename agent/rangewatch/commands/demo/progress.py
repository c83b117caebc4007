"""What the demo prints of its training: progress from rank 0's lines, the first overflow from the server.

What the demo asks of the server: is it there, which run is ours, and has anything overflowed yet.

How the demo talks: whole lines for what happened, and one line of progress, rewritten on a terminal.
"""

from __future__ import annotations

import math
import time
from typing import Any, TextIO

from rangewatch.client.connection import Connection, ServerError

TIMEOUT_S = 5.0


class RunReader:
    """Reads one run of a server by its name. A server that is slow or away gives None, never an exception."""

    def __init__(self, url: str, run: str) -> None:
        self._url, self._run = url, run
        self._id: int | None = None

    def summary(self) -> dict[str, Any] | None:
        """`GET /api/v1/runs/{id}` of the run, or None while the server does not know it."""
        if self._id is None:
            runs = (get_json(self._url, "/api/v1/runs") or {}).get("runs", [])
            self._id = next((run["id"] for run in runs if run["name"] == self._run), None)
        return None if self._id is None else get_json(self._url, f"/api/v1/runs/{self._id}")

    def page(self, query: str = "") -> str:
        """Address of the run's page, or of one below it such as `/step?step=3&rank=0`."""
        return f"{self._url}/runs/{self._id}{query}"


def is_server(url: str) -> bool:
    """Does a Rangewatch server answer at `url`?"""
    return (get_json(url, "/healthz") or {}).get("status") == "ok"


def get_json(url: str, path: str) -> dict[str, Any] | None:
    """The JSON object at `path` of the server at `url`, or None for whatever else comes back."""
    try:
        answer: dict[str, Any] = Connection(url, timeout_s=TIMEOUT_S).request("GET", path, dict)
    except ServerError:
        return None
    return answer


PLAIN_EVERY_S = 3.0
"""Between two lines of progress where they cannot be rewritten, as in a log file."""

_ERASE_LINE = "\r\x1b[K"


class Progress:
    """Writes to `stream`; progress is rewritten in place on a terminal, elsewhere it is a plain line now and then."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._tty = stream.isatty()
        self._shown = False
        self._last_plain_s = time.monotonic()

    def write(self, line: str) -> None:
        """One line that stays."""
        self._write(f"{self._erase()}{line}\n")
        self._shown = False

    def update(self, line: str) -> None:
        """The state just now; the next line replaces it."""
        if self._tty:
            self._write(f"{_ERASE_LINE}{line}")
            self._shown = True
        elif time.monotonic() - self._last_plain_s >= PLAIN_EVERY_S:
            self._last_plain_s = time.monotonic()
            self._write(f"{line}\n")

    def _erase(self) -> str:
        return _ERASE_LINE if self._shown else ""

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


ASK_EVERY_S = 1.0


class Account:
    """Takes in rank 0's finished steps, asks the server about overflows now and then, and says both."""

    def __init__(self, steps: int, reader: RunReader, progress: Progress) -> None:
        self._planned_steps, self._reader, self._progress = steps, reader, progress
        self._started_s: float | None = None
        self._asked_s = 0.0
        self._first: dict[str, Any] | None = None
        self._last: dict[str, Any] | None = None
        self._overflow: dict[str, Any] | None = None

    def take(self, line: dict[str, Any] | None) -> None:
        """One finished step `{step, loss, loss_scale}`, or None when there is nothing new but the time."""
        if line is not None:
            self._first, self._last = self._first or line, line
            self._progress.update(self._state(line))
        if time.monotonic() - self._asked_s >= ASK_EVERY_S:
            self._ask()

    def finish(self, patience_s: float) -> None:
        """After the last step: waits until the server has all of it, at most `patience_s`, then says how it went."""
        give_up_s = time.monotonic() + patience_s
        while not self._ask() and time.monotonic() < give_up_s:
            time.sleep(0.2)
        if self._first is not None and self._last is not None:
            scales = f"{_power_of_two(self._first['loss_scale'])} to {_power_of_two(self._last['loss_scale'])}"
            self._progress.write(f"trained {self._last['step'] + 1} steps; loss scale from {scales}")
        if self._overflow is None:
            self._progress.write("no overflow in these steps")

    def result(self, url: str, run: str, ranks: int) -> dict[str, Any]:
        """The object that `--json` prints."""
        return {
            "url": url,
            "run": run,
            "ranks": ranks,
            "steps": self._last["step"] + 1 if self._last else 0,
            "loss_scale_first": self._first["loss_scale"] if self._first else None,
            "loss_scale_last": self._last["loss_scale"] if self._last else None,
            "first_overflow": self._overflow,
        }

    def _ask(self) -> bool:
        """Asks the server; gives True when it has every step that rank 0 wrote, from every rank."""
        self._asked_s = time.monotonic()
        summary = self._reader.summary()
        if summary is None:
            return False
        self._note_overflow(summary.get("first_overflow"))
        return bool(summary["state"] == "finished")

    def _note_overflow(self, first: dict[str, Any] | None) -> None:
        if first is None:
            return
        overflow = {
            "step": first["step"],
            "rank": first["rank"],
            "tensor": first["fqn"],
            "kind": first["kind"],
        }
        if overflow == self._overflow:
            return
        # The ranks' rows do not come at the same moment: a rank that reports later may have overflowed earlier.
        self._overflow = overflow
        page = self._reader.page(f"/step?step={first['step']}&rank={first['rank']}")
        self._progress.write(
            f"first overflow: {first['what']} in {first['fqn']} ({first['kind']}) "
            f"at step {first['step']} on rank {first['rank']}: {page}"
        )

    def _state(self, line: dict[str, Any]) -> str:
        now_s = time.monotonic()
        self._started_s = self._started_s or now_s
        done = f"step {line['step'] + 1}/{self._planned_steps}"
        scale = _power_of_two(line["loss_scale"])
        return f"{done}  loss {line['loss']:.3f}  loss scale {scale}  {now_s - self._started_s:.0f} s"


def _power_of_two(scale: float) -> str:
    """Halving for ever ends in 0: GradScaler knows no least loss scale."""
    return f"2^{math.log2(scale):.0f}" if scale > 0 else "0"
